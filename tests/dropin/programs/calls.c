/* Every call of the interface, in C and in C++: calls FOLDER. The folder has the models; outputs are written there for the test to compare.
 *
 * What one way of using the library gives is compared here with what another gives; the test compares the first with the engine. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>

#include "rknn_custom_op.h"
#include "rknn_matmul_api.h"
#include "support.h"

static const char *folder;

static const char *in_folder(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static rknn_context open_model(const char *name, uint32_t flags, rknn_init_extend *extend)
{
    uint32_t size = 0;
    void *bytes = read_file(in_folder(name), &size);
    rknn_context context = 0;
    OK(rknn_init(&context, bytes, size, flags, extend));
    memset(bytes, 0xee, size); /* the library has made its copy */
    free(bytes);
    CHECK(context != 0);
    return context;
}

static rknn_tensor_attr attributes(rknn_context context, rknn_query_cmd query, uint32_t index)
{
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.index = index;
    OK(rknn_query(context, query, &attr, sizeof attr));
    return attr;
}

static uint8_t *picture(uint32_t size, uint32_t seed)
{
    uint8_t *pixels = (uint8_t *)malloc(size);
    CHECK(pixels != NULL);
    fill_bytes(pixels, size, seed);
    return pixels;
}

static void give_input(rknn_context context, uint8_t *pixels, uint32_t size)
{
    rknn_input input;
    memset(&input, 0, sizeof input);
    input.buf = pixels;
    input.size = size;
    input.type = RKNN_TENSOR_UINT8;
    input.fmt = RKNN_TENSOR_NHWC;
    OK(rknn_inputs_set(context, 1, &input));
}

/* The first output as floats; the caller frees it. */
static float *take_output(rknn_context context, uint32_t *size)
{
    rknn_output output;
    memset(&output, 0, sizeof output);
    output.want_float = 1;
    OK(rknn_outputs_get(context, 1, &output, NULL));
    float *values = (float *)malloc(output.size);
    CHECK(values != NULL);
    memcpy(values, output.buf, output.size);
    *size = output.size;
    OK(rknn_outputs_release(context, 1, &output));
    return values;
}

static float *infer(rknn_context context, uint32_t seed, uint32_t *size)
{
    rknn_tensor_attr attr = attributes(context, RKNN_QUERY_INPUT_ATTR, 0);
    uint8_t *pixels = picture(attr.n_elems, seed);
    give_input(context, pixels, attr.n_elems);
    OK(rknn_run(context, NULL));
    free(pixels);
    return take_output(context, size);
}

static void expect_same(rknn_context context, uint32_t seed, const float *expected, uint32_t expected_size)
{
    uint32_t size = 0;
    float *found = infer(context, seed, &size);
    CHECK(size == expected_size && memcmp(found, expected, size) == 0);
    free(found);
}

/* the calls that most programs make */
static void general(void)
{
    rknn_context context = open_model("small.rknn", RKNN_FLAG_COLLECT_PERF_MASK, NULL);
    rknn_sdk_version version;
    rknn_input_output_num count;
    rknn_mem_size sizes;
    rknn_custom_string text;
    rknn_input_range *range = (rknn_input_range *)calloc(1, sizeof *range);
    OK(rknn_query(context, RKNN_QUERY_SDK_VERSION, &version, sizeof version));
    CHECK(strchr(version.api_version, '(') != NULL && strlen(version.drv_version) > 0);
    OK(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count));
    CHECK(count.n_input == 1 && count.n_output == 1);
    OK(rknn_query(context, RKNN_QUERY_MEM_SIZE, &sizes, sizeof sizes));
    CHECK(sizes.total_weight_size > 0);
    OK(rknn_query(context, RKNN_QUERY_CUSTOM_STRING, &text, sizeof text));
    CHECK_CODE(rknn_query(context, RKNN_QUERY_INPUT_DYNAMIC_RANGE, range, sizeof *range), RKNN_ERR_MODEL_INVALID);
    CHECK_CODE(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &count, 4), RKNN_ERR_PARAM_INVALID);
    CHECK_CODE(rknn_query(context + 77, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count), RKNN_ERR_CTX_INVALID);
    rknn_tensor_attr input = attributes(context, RKNN_QUERY_INPUT_ATTR, 0), output = attributes(context, RKNN_QUERY_OUTPUT_ATTR, 0);
    CHECK(input.fmt == RKNN_TENSOR_NHWC && input.n_dims == 4 && strcmp(get_type_string(input.type), "INT8") == 0);
    CHECK(output.fmt == RKNN_TENSOR_NCHW && strcmp(output.name, "features") == 0);
    OK(rknn_set_core_mask(context, RKNN_NPU_CORE_0_1_2));
    OK(rknn_set_batch_core_num(context, 1));

    uint32_t size = 0;
    float *values = infer(context, 1, &size);
    CHECK(size == output.n_elems * sizeof(float));
    write_file(in_folder("general.bin"), values, size);

    rknn_output given;
    memset(&given, 0, sizeof given);
    given.is_prealloc = 1;
    given.buf = malloc(output.n_elems);
    given.size = output.n_elems;
    OK(rknn_outputs_get(context, 1, &given, NULL));
    for (uint32_t index = 0; index < output.n_elems; index++)
        CHECK(values[index] == ((float)((int8_t *)given.buf)[index] - (float)output.zp) * output.scale);
    OK(rknn_outputs_release(context, 1, &given));
    free(given.buf);

    rknn_perf_run run;
    rknn_perf_detail detail;
    OK(rknn_query(context, RKNN_QUERY_PERF_RUN, &run, sizeof run));
    OK(rknn_query(context, RKNN_QUERY_PERF_DETAIL, &detail, sizeof detail));
    CHECK(run.run_duration > 0 && detail.data_len >= strlen(detail.perf_data) && strstr(detail.perf_data, "Conv") != NULL);
    OK(rknn_destroy(context));
    CHECK_CODE(rknn_destroy(context), RKNN_ERR_CTX_INVALID);

    context = open_model("small.rknn", 0, NULL);
    expect_same(context, 1, values, size);
    rknn_run_extend extend; /* without waiting */
    memset(&extend, 0, sizeof extend);
    extend.non_block = 1;
    OK(rknn_run(context, &extend));
    OK(rknn_wait(context, &extend));
    uint32_t later_size = 0;
    float *later = take_output(context, &later_size);
    CHECK(later_size == size && memcmp(later, values, size) == 0);
    free(later);
    OK(rknn_destroy(context));
    free(values);
    free(range);
}

/* inputs and outputs in memory of the device, of every origin */
static void zero_copy(void)
{
    rknn_context context = open_model("small.rknn", 0, NULL);
    rknn_tensor_attr input = attributes(context, RKNN_QUERY_NATIVE_INPUT_ATTR, 0);
    rknn_tensor_attr output = attributes(context, RKNN_QUERY_NATIVE_OUTPUT_ATTR, 0);
    CHECK(input.w_stride >= input.dims[2] && output.fmt == RKNN_TENSOR_NC1HWC2);
    input.type = RKNN_TENSOR_UINT8;
    input.pass_through = 0;
    rknn_tensor_mem *pixels = rknn_create_mem2(context, input.size_with_stride, RKNN_FLAG_MEMORY_CACHEABLE);
    rknn_tensor_mem *codes = rknn_create_mem(context, output.size_with_stride);
    CHECK(pixels != NULL && codes != NULL);
    CHECK(pixels->fd >= 0 && pixels->phys_addr != 0 && pixels->offset == 0 && pixels->size == input.size_with_stride);
    uint32_t row = input.dims[2] * input.dims[3];
    uint8_t *image = picture(row * input.dims[1], 1);
    for (uint32_t line = 0; line < input.dims[1]; line++)
        memcpy((uint8_t *)pixels->virt_addr + line * input.w_stride * input.dims[3], image + line * row, row);
    OK(rknn_set_io_mem(context, pixels, &input));
    OK(rknn_set_io_mem(context, codes, &output));
    OK(rknn_mem_sync(context, pixels, RKNN_MEMORY_SYNC_TO_DEVICE));
    OK(rknn_run(context, NULL));
    OK(rknn_mem_sync(context, codes, RKNN_MEMORY_SYNC_FROM_DEVICE));
    write_file(in_folder("native.bin"), codes->virt_addr, output.n_elems);

    /* the same memory, handed in by its descriptor, and by its physical address */
    uint8_t *first = (uint8_t *)malloc(output.n_elems);
    memcpy(first, codes->virt_addr, output.n_elems);
    memset(codes->virt_addr, 0, output.n_elems);
    rknn_tensor_mem *by_fd = rknn_create_mem_from_fd(context, codes->fd, codes->virt_addr, output.size_with_stride, 0);
    rknn_tensor_mem *by_address = rknn_create_mem_from_phys(context, pixels->phys_addr, pixels->virt_addr, input.size_with_stride);
    CHECK(by_fd != NULL && by_address != NULL && by_fd->flags == RKNN_TENSOR_MEMORY_FLAGS_FROM_FD);
    OK(rknn_set_io_mem(context, by_address, &input));
    OK(rknn_set_io_mem(context, by_fd, &output));
    OK(rknn_run(context, NULL));
    CHECK(memcmp(codes->virt_addr, first, output.n_elems) == 0);

    /* as floats in the order of the general calls */
    rknn_tensor_attr plain = attributes(context, RKNN_QUERY_OUTPUT_ATTR, 0);
    plain.type = RKNN_TENSOR_FLOAT32;
    rknn_tensor_mem *floats = rknn_create_mem(context, plain.n_elems * (uint32_t)sizeof(float));
    OK(rknn_set_io_mem(context, floats, &plain));
    OK(rknn_run(context, NULL));
    uint32_t size = 0;
    void *general_output = read_file(in_folder("general.bin"), &size);
    CHECK(size == plain.n_elems * sizeof(float) && memcmp(general_output, floats->virt_addr, size) == 0);
    free(general_output);

    CHECK(rknn_create_mem_from_mb_blk(context, NULL, 0) == NULL);
    OK(rknn_destroy_mem(context, by_fd));
    OK(rknn_destroy_mem(context, by_address));
    OK(rknn_destroy_mem(context, floats));
    OK(rknn_destroy_mem(context, pixels));
    OK(rknn_destroy_mem(context, codes));
    CHECK_CODE(rknn_destroy_mem(context, codes), RKNN_ERR_PARAM_INVALID);
    OK(rknn_destroy(context));
    free(first);
    free(image);
}

static void dynamic_shapes(void)
{
    rknn_context context = open_model("dynamic.rknn", 0, NULL);
    rknn_input_range *range = (rknn_input_range *)calloc(1, sizeof *range);
    OK(rknn_query(context, RKNN_QUERY_INPUT_DYNAMIC_RANGE, range, sizeof *range));
    CHECK(range->shape_number == 2 && range->n_dims == 4);
    for (uint32_t choice = 0; choice < 2; choice++) {
        rknn_tensor_attr attr = attributes(context, RKNN_QUERY_INPUT_ATTR, 0);
        memcpy(attr.dims, range->dyn_range[choice], sizeof attr.dims);
        attr.fmt = RKNN_TENSOR_NHWC;
        if (choice == 0)
            OK(rknn_set_input_shapes(context, 1, &attr));
        else
            OK(rknn_set_input_shape(context, &attr));
        rknn_tensor_attr now = attributes(context, RKNN_QUERY_CURRENT_INPUT_ATTR, 0);
        rknn_tensor_attr output = attributes(context, RKNN_QUERY_CURRENT_OUTPUT_ATTR, 0);
        CHECK(now.dims[1] == range->dyn_range[choice][1] && output.dims[2] == now.dims[1]);
        uint8_t *pixels = picture(now.n_elems, 5);
        give_input(context, pixels, now.n_elems);
        OK(rknn_run(context, NULL));
        uint32_t size = 0;
        float *values = take_output(context, &size);
        CHECK(size == output.n_elems * sizeof(float));
        write_file(in_folder(now.dims[1] == 16 ? "dynamic16.bin" : "dynamic24.bin"), values, size);
        free(values);
        free(pixels);
    }
    OK(rknn_destroy(context));
    free(range);
}

/* Two models take turns in one piece of internal memory; a third has its weights in memory of ours too. */
static void memory_outside(void)
{
    uint32_t size[2] = {0, 0};
    float *expected[2];
    const char *names[2] = {"small.rknn", "other.rknn"};
    rknn_context contexts[2];
    uint32_t largest = 1;
    for (int index = 0; index < 2; index++) {
        rknn_context reference = open_model(names[index], 0, NULL);
        expected[index] = infer(reference, 7, &size[index]);
        OK(rknn_destroy(reference));
        contexts[index] = open_model(names[index], RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE, NULL);
        rknn_mem_size sizes;
        OK(rknn_query(contexts[index], RKNN_QUERY_MEM_SIZE, &sizes, sizeof sizes));
        if (sizes.total_internal_size > largest)
            largest = sizes.total_internal_size;
    }
    rknn_tensor_mem *internal = rknn_create_mem(contexts[0], largest);
    CHECK(internal != NULL);
    for (int index = 0; index < 2; index++)
        OK(rknn_set_internal_mem(contexts[index], internal));
    for (int round = 0; round < 3; round++)
        for (int index = 0; index < 2; index++)
            expect_same(contexts[index], 7, expected[index], size[index]);

    rknn_context outside = open_model("other.rknn", RKNN_FLAG_MEM_ALLOC_OUTSIDE, NULL);
    rknn_mem_size sizes;
    OK(rknn_query(outside, RKNN_QUERY_MEM_SIZE, &sizes, sizeof sizes));
    rknn_tensor_mem *weights = rknn_create_mem(outside, sizes.total_weight_size);
    CHECK(weights != NULL);
    OK(rknn_set_weight_mem(outside, weights));
    OK(rknn_set_internal_mem(outside, internal));
    expect_same(outside, 7, expected[1], size[1]);
    OK(rknn_destroy(outside));
    OK(rknn_destroy_mem(contexts[0], weights));
    OK(rknn_destroy_mem(contexts[0], internal));
    for (int index = 0; index < 2; index++) {
        OK(rknn_destroy(contexts[index]));
        free(expected[index]);
    }
}

static void shared_weights(void)
{
    rknn_context master = open_model("other.rknn", 0, NULL);
    uint32_t size = 0;
    float *expected = infer(master, 9, &size);
    rknn_init_extend extend;
    memset(&extend, 0, sizeof extend);
    extend.ctx = master;
    rknn_context slave = open_model("other.rknn", RKNN_FLAG_SHARE_WEIGHT_MEM, &extend);
    expect_same(slave, 9, expected, size);
    OK(rknn_destroy(master)); /* the weights stay as long as somebody uses them */
    expect_same(slave, 9, expected, size);
    OK(rknn_destroy(slave));
    free(expected);
}

struct worker {
    rknn_context context;
    uint32_t seed;
    float *expected;
    uint32_t size;
};

static void *work(void *argument)
{
    struct worker *self = (struct worker *)argument;
    for (int round = 0; round < 20; round++)
        expect_same(self->context, self->seed, self->expected, self->size);
    return NULL;
}

static void threads_with_duplicates(void)
{
    struct worker workers[3];
    pthread_t threads[3];
    rknn_context first = open_model("other.rknn", 0, NULL);
    for (uint32_t index = 0; index < 3; index++) {
        workers[index].seed = 20 + index;
        workers[index].expected = infer(first, workers[index].seed, &workers[index].size);
        OK(rknn_dup_context(&first, &workers[index].context));
        OK(rknn_set_core_mask(workers[index].context, (rknn_core_mask)(1u << index)));
    }
    OK(rknn_destroy(first)); /* what was duplicated goes first */
    for (int index = 0; index < 3; index++)
        CHECK(pthread_create(&threads[index], NULL, work, &workers[index]) == 0);
    for (int index = 0; index < 3; index++) {
        CHECK(pthread_join(threads[index], NULL) == 0);
        OK(rknn_destroy(workers[index].context));
        free(workers[index].expected);
    }
}

enum { M = 4, K = 64, N = 64 };

static int8_t a_values[M * K], b_values[K * N];

static void expect_product(const int32_t *found, int rows)
{
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < N; column++) {
            int32_t sum = 0;
            for (int index = 0; index < K; index++)
                sum += a_values[row * K + index] * b_values[index * N + column];
            CHECK(found[row * N + column] == sum);
        }
}

static void multiply(rknn_matmul_ctx context, rknn_matmul_io_attr *attr, const void *b, int rows)
{
    rknn_tensor_mem *memories[3] = {rknn_create_mem(context, attr->A.size), rknn_create_mem(context, attr->B.size),
                                    rknn_create_mem(context, attr->C.size)};
    CHECK(memories[0] != NULL && memories[1] != NULL && memories[2] != NULL);
    memcpy(memories[0]->virt_addr, a_values, (size_t)(rows * K));
    memcpy(memories[1]->virt_addr, b, K * N);
    OK(rknn_matmul_set_io_mem(context, memories[0], &attr->A));
    OK(rknn_matmul_set_io_mem(context, memories[1], &attr->B));
    OK(rknn_matmul_set_io_mem(context, memories[2], &attr->C));
    OK(rknn_matmul_run(context));
    expect_product((int32_t *)memories[2]->virt_addr, rows);
    for (int index = 0; index < 3; index++)
        OK(rknn_destroy_mem(context, memories[index]));
}

static void products(void)
{
    fill_bytes((uint8_t *)a_values, sizeof a_values, 31);
    fill_bytes((uint8_t *)b_values, sizeof b_values, 32);
    rknn_matmul_info info;
    rknn_matmul_io_attr attr;
    rknn_matmul_ctx context = 0;
    memset(&info, 0, sizeof info);
    info.M = M;
    info.K = K;
    info.N = N;
    info.type = RKNN_INT8_MM_INT8_TO_INT32;
    OK(rknn_matmul_create(&context, &info, &attr));
    CHECK(context != 0 && attr.A.size == M * K && attr.C.size == M * N * 4 && strcmp(attr.B.name, "B") == 0);
    OK(rknn_matmul_set_core_mask(context, RKNN_NPU_CORE_1));
    multiply(context, &attr, b_values, M);
    OK(rknn_matmul_destroy(context));
    CHECK_CODE(rknn_matmul_run(context), RKNN_ERR_CTX_INVALID);

    /* B in the native layout, converted by both forms of the call */
    info.B_layout = RKNN_MM_LAYOUT_NATIVE;
    OK(rknn_matmul_create(&context, &info, &attr));
    int8_t native[K * N], older[K * N];
    OK(rknn_B_normal_layout_to_native_layout(b_values, native, K, N, &info));
    int (*older_form)(void *, void *, int, int, int, int, rknn_matmul_type);
    *(void **)(&older_form) = dlsym(RTLD_DEFAULT, "rknn_B_normal_layout_to_native_layout");
    CHECK(older_form != NULL);
    OK(older_form(b_values, older, K, N, (int)attr.B.dims[2], (int)attr.B.dims[3], RKNN_INT8_MM_INT8_TO_INT32));
    CHECK(memcmp(native, older, sizeof native) == 0);
    multiply(context, &attr, native, M);
    OK(rknn_matmul_destroy(context));

    /* several shapes, under both names of the call */
    info.B_layout = RKNN_MM_LAYOUT_NORM;
    rknn_matmul_shape shapes[2] = {{M, K, N}, {1, K, N}};
    rknn_matmul_io_attr both[2];
    for (int form = 0; form < 2; form++) {
        if (form == 0)
            OK(rknn_matmul_create_dynamic_shape(&context, &info, 2, shapes, both));
        else {
            int (*older_name)(rknn_matmul_ctx *, rknn_matmul_info *, int, rknn_matmul_shape *, rknn_matmul_io_attr *);
            *(void **)(&older_name) = dlsym(RTLD_DEFAULT, "rknn_matmul_create_dyn_shape");
            OK(older_name(&context, &info, 2, shapes, both));
        }
        for (int index = 0; index < 2; index++) {
            OK(rknn_matmul_set_dynamic_shape(context, &shapes[index]));
            multiply(context, &both[index], b_values, shapes[index].M);
        }
        OK(rknn_matmul_destroy(context));
    }

    /* a scale for each column of B */
    float scales[N], largest = 0;
    int32_t zeros[N];
    for (int column = 0; column < N; column++) {
        scales[column] = 0.5f + 0.25f * (float)(column % 3);
        zeros[column] = 0;
    }
    rknn_quant_params params;
    info.B_quant_type = RKNN_QUANT_TYPE_PER_CHANNEL_SYM;
    OK(rknn_matmul_create(&context, &info, &attr));
    memset(&params, 0, sizeof params);
    params.scale = scales;
    params.scale_len = N;
    params.zp = zeros;
    params.zp_len = N;
    memcpy(params.name, attr.B.name, sizeof params.name);
    OK(rknn_matmul_set_quant_params(context, &params));
    memset(scales, 0, sizeof scales); /* the library has made its copy */
    OK(rknn_matmul_get_quant_params(context, &params, &largest));
    CHECK(largest == 1.0f && params.scale_len == N && params.scale[1] == 0.75f);
    OK(rknn_matmul_destroy(context));
}

static int prepared, computed, ended;

static float gain_of(rknn_custom_op_context *context)
{
    rknn_custom_op_attr attr;
    rknn_custom_op_get_op_attr(context, "gain", &attr);
    CHECK(attr.n_elems == 1 && attr.dtype == RKNN_TENSOR_FLOAT32);
    return *(float *)attr.data;
}

static int start_gain(rknn_custom_op_context *context, rknn_custom_op_tensor *inputs, uint32_t n_inputs, rknn_custom_op_tensor *outputs,
                      uint32_t n_outputs)
{
    (void)inputs, (void)outputs;
    context->priv_data = malloc(sizeof(float));
    *(float *)context->priv_data = gain_of(context);
    return n_inputs == 1 && n_outputs == 1 ? 0 : -1;
}

static int prepare_gain(rknn_custom_op_context *context, rknn_custom_op_tensor *inputs, uint32_t n_inputs, rknn_custom_op_tensor *outputs,
                        uint32_t n_outputs)
{
    (void)context, (void)inputs, (void)n_inputs, (void)outputs, (void)n_outputs;
    prepared++;
    return 0;
}

static int compute_gain(rknn_custom_op_context *context, rknn_custom_op_tensor *inputs, uint32_t n_inputs, rknn_custom_op_tensor *outputs,
                        uint32_t n_outputs)
{
    (void)n_inputs, (void)n_outputs;
    const float *from = (const float *)((const char *)inputs[0].mem.virt_addr + inputs[0].mem.offset);
    float *to = (float *)((char *)outputs[0].mem.virt_addr + outputs[0].mem.offset);
    for (uint32_t index = 0; index < outputs[0].attr.n_elems; index++)
        to[index] = from[index] * *(float *)context->priv_data;
    computed++;
    return 0;
}

static int end_gain(rknn_custom_op_context *context)
{
    free(context->priv_data);
    ended++;
    return 0;
}

static void custom_operators(void)
{
    rknn_context context = open_model("custom.rknn", 0, NULL);
    rknn_custom_op *gain = (rknn_custom_op *)calloc(1, sizeof *gain);
    gain->version = 1;
    gain->target = RKNN_TARGET_TYPE_CPU;
    strcpy(gain->op_type, "Gain");
    gain->init = start_gain;
    gain->prepare = prepare_gain;
    gain->compute = compute_gain;
    gain->destroy = end_gain;
    OK(rknn_register_custom_ops(context, gain, 1));
    free(gain);
    uint32_t size = 0;
    float *values = infer(context, 41, &size);
    write_file(in_folder("custom.bin"), values, size);
    free(values);
    OK(rknn_destroy(context));
    CHECK(prepared == 1 && computed == 1 && ended == 1);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    folder = argv[1];
    general();
    zero_copy();
    dynamic_shapes();
    memory_outside();
    shared_weights();
    threads_with_duplicates();
    products();
    custom_operators();
    printf("done\n");
    return 0;
}
