/* CPU time of one inference: overheads MODEL SECONDS general|zero. One number, in seconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rknn_api.h"

static double seconds_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void must(int code, const char *call)
{
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", call, code);
        exit(1);
    }
}

static unsigned char *pixels;
static unsigned size;
static rknn_tensor_mem *memories[2];

static void general(rknn_context context)
{
    rknn_input input = {.buf = pixels, .size = size, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    rknn_output output = {.want_float = 1};
    must(rknn_inputs_set(context, 1, &input), "rknn_inputs_set");
    must(rknn_run(context, NULL), "rknn_run");
    must(rknn_outputs_get(context, 1, &output, NULL), "rknn_outputs_get");
    must(rknn_outputs_release(context, 1, &output), "rknn_outputs_release");
}

static void zero_copy(rknn_context context)
{
    memcpy(memories[0]->virt_addr, pixels, size);
    must(rknn_mem_sync(context, memories[0], RKNN_MEMORY_SYNC_TO_DEVICE), "rknn_mem_sync");
    must(rknn_run(context, NULL), "rknn_run");
    must(rknn_mem_sync(context, memories[1], RKNN_MEMORY_SYNC_FROM_DEVICE), "rknn_mem_sync");
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    int bound = !strcmp(arguments[3], "zero");
    rknn_context context = 0;
    must(rknn_init(&context, arguments[1], 0, 0, NULL), "rknn_init");
    rknn_tensor_attr attr = {0};
    must(rknn_query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr), "rknn_query");
    size = attr.n_elems;
    pixels = malloc(size);
    srand(2);
    for (unsigned index = 0; index < size; index++)
        pixels[index] = (unsigned char)(rand() >> 7);
    for (int side = 0; bound && side < 2; side++) {
        rknn_tensor_attr native = {0};
        must(rknn_query(context, side ? RKNN_QUERY_NATIVE_OUTPUT_ATTR : RKNN_QUERY_NATIVE_INPUT_ATTR, &native, sizeof native), "rknn_query");
        if (!side) {
            native.type = RKNN_TENSOR_UINT8;
            native.pass_through = 0;
        }
        memories[side] = rknn_create_mem(context, native.size_with_stride);
        must(rknn_set_io_mem(context, memories[side], &native), "rknn_set_io_mem");
    }
    double best = 1e9, end = 0;
    for (int run = 0; run < 5 || seconds_of(CLOCK_MONOTONIC) < end; run++) {
        pixels[run % size]++; /* another image, which a recording has to write */
        double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        (bound ? zero_copy : general)(context);
        double taken = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
        if (run < 4) /* values are evaluated for the first images only */
            end = seconds_of(CLOCK_MONOTONIC) + atof(arguments[2]);
        else if (taken < best)
            best = taken;
    }
    for (int side = 0; bound && side < 2; side++)
        must(rknn_destroy_mem(context, memories[side]), "rknn_destroy_mem");
    must(rknn_destroy(context), "rknn_destroy");
    free(pixels);
    printf("%.9f\n", best);
    return 0;
}
