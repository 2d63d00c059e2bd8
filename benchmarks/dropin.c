/* Times of calls through librknnrt.so: dropin MODEL SECONDS. One line of JSON. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "rknn_api.h"

enum { CALLS = 5000, ROUNDS = 40, THREADS = 3 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void must(int code, const char *call)
{
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", call, code);
        exit(1);
    }
}

static uint8_t *pixels;
static uint32_t size;
static double seconds;

static void infer(rknn_context context)
{
    rknn_input input = {.buf = pixels, .size = size, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    rknn_output output = {.want_float = 1};
    must(rknn_inputs_set(context, 1, &input), "rknn_inputs_set");
    must(rknn_run(context, NULL), "rknn_run");
    must(rknn_outputs_get(context, 1, &output, NULL), "rknn_outputs_get");
    must(rknn_outputs_release(context, 1, &output), "rknn_outputs_release");
}

struct worker {
    rknn_context context;
    long done;
};

static void *work(void *argument)
{
    struct worker *self = argument;
    for (double end = now() + seconds; now() < end; self->done++)
        infer(self->context);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    seconds = atof(argv[2]);
    rknn_context context = 0;
    double cpu = cpu_seconds(), begin = now();
    must(rknn_init(&context, argv[1], 0, 0, NULL), "rknn_init");
    printf("{\"cold_cpu\": %.4f, \"cold\": %.4f", cpu_seconds() - cpu, now() - begin);

    rknn_tensor_attr attr = {0};
    rknn_input_output_num count;
    must(rknn_query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr), "rknn_query");
    size = attr.n_elems;
    pixels = malloc(size);
    memset(pixels, 77, size);
    rknn_tensor_mem *memory = rknn_create_mem(context, 64);
    double empty = 1e9, query = 1e9, inference = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        begin = now();
        for (int call = 0; call < CALLS; call++)
            rknn_mem_sync(context, memory, RKNN_MEMORY_SYNC_TO_DEVICE);
        if (now() - begin < empty)
            empty = now() - begin;
        begin = now();
        for (int call = 0; call < CALLS; call++)
            rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count);
        if (now() - begin < query)
            query = now() - begin;
    }
    infer(context);
    for (double end = now() + seconds; now() < end;) {
        begin = now();
        infer(context);
        if (now() - begin < inference)
            inference = now() - begin;
    }
    printf(", \"empty\": %.9f, \"query\": %.9f, \"inference\": %.9f", empty / CALLS, query / CALLS, inference);

    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++) {
        must(rknn_dup_context(&context, &workers[index].context), "rknn_dup_context");
        must(rknn_set_core_mask(workers[index].context, (rknn_core_mask)(1 << index)), "rknn_set_core_mask");
        infer(workers[index].context);
    }
    for (int number = 1; number <= THREADS; number++) {
        long done = 0;
        begin = now();
        for (int index = 0; index < number; index++) {
            workers[index].done = 0;
            pthread_create(&threads[index], NULL, work, &workers[index]);
        }
        for (int index = 0; index < number; index++) {
            pthread_join(threads[index], NULL);
            done += workers[index].done;
        }
        printf(", \"threads%d\": %.2f", number, (double)done / (now() - begin));
    }
    printf("}\n");
    return 0;
}
