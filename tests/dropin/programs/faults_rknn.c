/* Wrong programs with the RKNN calls, and the same ones fixed: faults_rknn MODEL wrong|fixed CASE... */
#include <pthread.h>
#include <unistd.h>

#include "support.h"

static const char *model;
static int wrong;
static rknn_tensor_attr input_attr, output_attr;
static uint8_t *pixels;

static rknn_context open_model(uint32_t flags)
{
    rknn_context ctx = 0;
    OK(rknn_init(&ctx, (void *)model, 0, flags, NULL));
    memset(&input_attr, 0, sizeof input_attr);
    memset(&output_attr, 0, sizeof output_attr);
    OK(rknn_query(ctx, RKNN_QUERY_NATIVE_INPUT_ATTR, &input_attr, sizeof input_attr));
    OK(rknn_query(ctx, RKNN_QUERY_NATIVE_OUTPUT_ATTR, &output_attr, sizeof output_attr));
    input_attr.type = RKNN_TENSOR_UINT8;
    input_attr.pass_through = 0;
    free(pixels);
    pixels = malloc(input_attr.n_elems);
    fill_bytes(pixels, input_attr.n_elems, 3);
    return ctx;
}

static int set_input(rknn_context ctx, uint32_t size)
{
    rknn_input input = {.index = 0, .buf = pixels, .size = size, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    return rknn_inputs_set(ctx, 1, &input);
}

static rknn_tensor_mem *bound(rknn_context ctx, rknn_tensor_attr *attr)
{
    rknn_tensor_mem *mem = rknn_create_mem(ctx, attr->size_with_stride);
    CHECK(mem != NULL);
    OK(rknn_set_io_mem(ctx, mem, attr));
    return mem;
}

static void write_rows(rknn_tensor_mem *mem)
{
    uint32_t height = input_attr.dims[1], width = input_attr.dims[2];
    for (uint32_t y = 0; y < height; y++)
        memcpy((uint8_t *)mem->virt_addr + y * input_attr.w_stride * 3, pixels + y * width * 3, width * 3);
}

static void zero_copy(uint32_t flags, int flush, int invalidate, int early_read)
{
    rknn_context ctx = open_model(flags);
    rknn_tensor_mem *in = bound(ctx, &input_attr), *out = bound(ctx, &output_attr);
    write_rows(in);
    if (flush)
        OK(rknn_mem_sync(ctx, in, RKNN_MEMORY_SYNC_TO_DEVICE));
    OK(rknn_run(ctx, NULL));
    if (invalidate)
        OK(rknn_mem_sync(ctx, out, RKNN_MEMORY_SYNC_FROM_DEVICE));
    int total = 0;
    for (uint32_t i = 0; early_read && i < out->size; i++)
        total += ((uint8_t *)out->virt_addr)[i] != 0;
    printf("%d\n", total);
    OK(rknn_destroy_mem(ctx, in));
    OK(rknn_destroy_mem(ctx, out));
    OK(rknn_destroy(ctx));
}

static void no_flush(void) { zero_copy(RKNN_FLAG_DISABLE_FLUSH_INPUT_MEM_CACHE, !wrong, 0, 1); }

static void no_invalidate(void) { zero_copy(RKNN_FLAG_DISABLE_FLUSH_OUTPUT_MEM_CACHE, 0, !wrong, 1); }

static void output_for_other_hardware(void) { zero_copy(RKNN_FLAG_DISABLE_FLUSH_OUTPUT_MEM_CACHE, 0, 0, wrong); }

static void use_after_destroy(void)
{
    rknn_context ctx = open_model(0);
    OK(set_input(ctx, input_attr.n_elems));
    if (!wrong)
        OK(rknn_run(ctx, NULL));
    OK(rknn_destroy(ctx));
    if (wrong)
        CHECK(rknn_run(ctx, NULL) < 0);
}

static void double_destroy(void)
{
    rknn_context ctx = open_model(0);
    OK(rknn_destroy(ctx));
    if (wrong)
        CHECK(rknn_destroy(ctx) < 0);
}

static void uninitialised(void)
{
    rknn_context ctx = 0x77;
    if (!wrong)
        ctx = open_model(0);
    CHECK((rknn_destroy(ctx) < 0) == wrong);
}

static void memory_after_context(void)
{
    rknn_context ctx = open_model(0);
    rknn_tensor_mem *mem = rknn_create_mem(ctx, 64);
    if (wrong)
        OK(rknn_destroy(ctx));
    rknn_destroy_mem(ctx, mem);
    if (!wrong)
        OK(rknn_destroy(ctx));
}

static void context_leak(void)
{
    rknn_context ctx = open_model(0);
    if (!wrong)
        OK(rknn_destroy(ctx));
}

static void memory_leak(void)
{
    rknn_context ctx = open_model(0);
    rknn_tensor_mem *mem = rknn_create_mem(ctx, 4096);
    if (!wrong)
        OK(rknn_destroy_mem(ctx, mem));
    OK(rknn_destroy(ctx));
}

static void run_once(rknn_context ctx, int releases, int behind)
{
    rknn_output output = {.want_float = 1};
    OK(set_input(ctx, input_attr.n_elems));
    OK(rknn_run(ctx, NULL));
    OK(rknn_outputs_get(ctx, 1, &output, NULL));
    if (behind)
        ((volatile char *)output.buf)[output.size + 1] = 1;
    while (releases-- > 0)
        OK(rknn_outputs_release(ctx, 1, &output));
}

static void not_released(void)
{
    rknn_context ctx = open_model(0);
    run_once(ctx, !wrong, 0);
    OK(rknn_destroy(ctx));
}

static void released_twice(void)
{
    rknn_context ctx = open_model(0);
    run_once(ctx, 1 + wrong, 0);
    OK(rknn_destroy(ctx));
}

static void behind_output(void)
{
    rknn_context ctx = open_model(0);
    run_once(ctx, 1, wrong);
    OK(rknn_destroy(ctx));
}

static void behind_memory(void)
{
    rknn_context ctx = open_model(0);
    rknn_tensor_mem *mem = rknn_create_mem(ctx, 100);
    memset(mem->virt_addr, 1, wrong ? 101 : 100);
    OK(rknn_destroy_mem(ctx, mem));
    OK(rknn_destroy(ctx));
}

static void dense_rows(void)
{
    rknn_context ctx = open_model(0);
    rknn_tensor_mem *in = bound(ctx, &input_attr), *out = bound(ctx, &output_attr);
    CHECK(input_attr.w_stride > input_attr.dims[2]);
    if (wrong)
        memcpy(in->virt_addr, pixels, input_attr.n_elems);
    else
        write_rows(in);
    OK(rknn_run(ctx, NULL));
    OK(rknn_destroy_mem(ctx, in));
    OK(rknn_destroy_mem(ctx, out));
    OK(rknn_destroy(ctx));
}

static void half_a_picture(void)
{
    rknn_context ctx = open_model(0);
    CHECK((set_input(ctx, input_attr.n_elems / (wrong ? 2 : 1)) < 0) == wrong);
    OK(rknn_destroy(ctx));
}

static void mixed(void)
{
    rknn_context ctx = open_model(0);
    rknn_tensor_mem *out = NULL;
    OK(set_input(ctx, input_attr.n_elems));
    if (wrong)
        out = bound(ctx, &output_attr);
    OK(rknn_run(ctx, NULL));
    if (out != NULL)
        OK(rknn_destroy_mem(ctx, out));
    OK(rknn_destroy(ctx));
}

static void no_input(void)
{
    rknn_context ctx = open_model(0);
    if (!wrong)
        OK(set_input(ctx, input_attr.n_elems));
    CHECK((rknn_run(ctx, NULL) < 0) == wrong);
    OK(rknn_destroy(ctx));
}

static void core_mask(void)
{
    rknn_context ctx = open_model(0);
    CHECK((rknn_set_core_mask(ctx, wrong ? 8 : RKNN_NPU_CORE_0_1_2) < 0) == wrong);
    OK(rknn_destroy(ctx));
}

static volatile int finished;

static void *run_often(void *argument)
{
    rknn_context ctx = *(rknn_context *)argument;
    for (int i = 0; i < 6; i++)
        OK(rknn_run(ctx, NULL));
    finished = 1;
    return NULL;
}

/* The program sets ANYNPU_REALTIME so that a run takes a while. */
static void two_threads(void)
{
    rknn_context ctx = open_model(0);
    pthread_t thread;
    OK(set_input(ctx, input_attr.n_elems));
    OK(pthread_create(&thread, NULL, run_often, &ctx));
    while (wrong && !finished) {
        OK(rknn_set_core_mask(ctx, RKNN_NPU_CORE_0));
        usleep(1000);
    }
    OK(pthread_join(thread, NULL));
    OK(rknn_destroy(ctx));
}

static void small_stack_body(void)
{
    rknn_context ctx = open_model(0);
    OK(rknn_destroy(ctx));
    if (wrong)
        CHECK(rknn_destroy(ctx) < 0);
}

static void *small_stack_thread(void *unused)
{
    small_stack_body();
    return unused;
}

/* A thread with little stack is served by another one; its calls are watched all the same. */
static void small_stack(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    OK(pthread_attr_init(&attributes));
    OK(pthread_attr_setstacksize(&attributes, 128 << 10));
    OK(pthread_create(&thread, &attributes, small_stack_thread, NULL));
    OK(pthread_join(thread, NULL));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"no_flush", no_flush},
    {"no_invalidate", no_invalidate},
    {"output_for_other_hardware", output_for_other_hardware},
    {"use_after_destroy", use_after_destroy},
    {"double_destroy", double_destroy},
    {"uninitialised", uninitialised},
    {"memory_after_context", memory_after_context},
    {"context_leak", context_leak},
    {"memory_leak", memory_leak},
    {"not_released", not_released},
    {"released_twice", released_twice},
    {"behind_output", behind_output},
    {"behind_memory", behind_memory},
    {"dense_rows", dense_rows},
    {"half_a_picture", half_a_picture},
    {"mixed", mixed},
    {"no_input", no_input},
    {"core_mask", core_mask},
    {"small_stack", small_stack},
    {"two_threads", two_threads},
};

int main(int argc, char **argv)
{
    CHECK(argc > 3);
    model = argv[1];
    wrong = strcmp(argv[2], "wrong") == 0;
    for (int argument = 3; argument < argc; argument++) {
        size_t i = 0;
        while (i < sizeof cases / sizeof *cases && strcmp(cases[i].name, argv[argument]) != 0)
            i++;
        CHECK(i < sizeof cases / sizeof *cases);
        cases[i].run();
    }
    return 0;
}
