/* layouts_rknn MODEL: every struct that a program exchanges with the library, field by field, and the bytes of its outputs.
 * Built with our headers, or with declarations made from the published tables (PUBLIC): it must print the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PUBLIC
#include "public_rknn.h"
#else
#include "rknn_api.h"
#include "rknn_matmul_api.h"
#endif

#define OK(call) \
    do { \
        int code_ = (call); \
        if (code_ != RKNN_SUCC) { \
            fprintf(stderr, "line %d: %s = %d\n", __LINE__, #call, code_); \
            exit(1); \
        } \
    } while (0)

static void show(const char *what, const void *data, size_t size)
{
    uint64_t total = 17;
    for (size_t i = 0; i < size; i++)
        total = total * 1099511628211u + ((const uint8_t *)data)[i];
    printf("%s %zu %016llx\n", what, size, (unsigned long long)total);
}

static void show_attr(const char *what, const rknn_tensor_attr *a)
{
    printf("%s %u %s n_dims %u dims", what, a->index, a->name, a->n_dims);
    for (uint32_t i = 0; i < a->n_dims && i < RKNN_MAX_DIMS; i++)
        printf(" %u", a->dims[i]);
    printf(" n_elems %u size %u fmt %d type %d qnt %d fl %d zp %d scale %a strides %u %u %u pass %d\n", a->n_elems, a->size, (int)a->fmt,
           (int)a->type, (int)a->qnt_type, a->fl, a->zp, a->scale, a->w_stride, a->h_stride, a->size_with_stride, a->pass_through);
}

static void fill(uint8_t *bytes, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 37u + i / 251u);
}

static rknn_tensor_attr ask(rknn_context context, rknn_query_cmd query, const char *what)
{
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    OK(rknn_query(context, query, &attr, sizeof attr));
    show_attr(what, &attr);
    return attr;
}

static void general(rknn_context context, const rknn_tensor_attr *in, const rknn_tensor_attr *out)
{
    uint8_t *pixels = malloc(in->n_elems);
    fill(pixels, in->n_elems);
    rknn_input input;
    memset(&input, 0, sizeof input);
    input.index = 0, input.buf = pixels, input.size = in->n_elems, input.type = RKNN_TENSOR_UINT8, input.fmt = RKNN_TENSOR_NHWC;
    OK(rknn_inputs_set(context, 1, &input));
    rknn_run_extend run;
    memset(&run, 0, sizeof run);
    OK(rknn_run(context, &run));
    printf("frame %llu\n", (unsigned long long)run.frame_id);
    for (int wanted = 0; wanted < 2; wanted++) {
        rknn_output output;
        rknn_output_extend extend;
        memset(&output, 0, sizeof output);
        memset(&extend, 0, sizeof extend);
        output.want_float = (uint8_t)wanted;
        OK(rknn_outputs_get(context, 1, &output, &extend));
        show("output", output.buf, output.size);
        OK(rknn_outputs_release(context, 1, &output));
    }
    void *own = malloc(out->n_elems * sizeof(float));
    rknn_output output;
    memset(&output, 0, sizeof output);
    output.want_float = 1, output.is_prealloc = 1, output.buf = own, output.size = out->n_elems * (uint32_t)sizeof(float);
    OK(rknn_outputs_get(context, 1, &output, NULL));
    show("own", own, output.size);
    OK(rknn_outputs_release(context, 1, &output));
    free(own);
    free(pixels);
}

static void zero_copy(rknn_context context)
{
    rknn_tensor_attr in = ask(context, RKNN_QUERY_NATIVE_INPUT_ATTR, "native input");
    rknn_tensor_attr out = ask(context, RKNN_QUERY_NATIVE_OUTPUT_ATTR, "native output");
    ask(context, RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR, "nhwc input");
    ask(context, RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR, "nhwc output");
    rknn_tensor_mem *input = rknn_create_mem(context, in.size_with_stride), *output = rknn_create_mem(context, out.size_with_stride);
    printf("memory %u %u flags %u %u fd %d offset %d\n", input->size, output->size, input->flags, output->flags, input->fd >= 0, input->offset);
    in.type = RKNN_TENSOR_UINT8, in.fmt = RKNN_TENSOR_NHWC;
    fill(input->virt_addr, input->size);
    OK(rknn_set_io_mem(context, input, &in));
    OK(rknn_set_io_mem(context, output, &out));
    OK(rknn_mem_sync(context, input, RKNN_MEMORY_SYNC_TO_DEVICE));
    OK(rknn_run(context, NULL));
    OK(rknn_mem_sync(context, output, RKNN_MEMORY_SYNC_FROM_DEVICE));
    show("bound", output->virt_addr, out.size);
    OK(rknn_destroy_mem(context, input));
    OK(rknn_destroy_mem(context, output));
}

static void product(void)
{
    rknn_matmul_ctx context = 0;
    rknn_matmul_info info;
    rknn_matmul_io_attr io;
    memset(&info, 0, sizeof info);
    memset(&io, 0, sizeof io);
    info.M = 2, info.K = 32, info.N = 32, info.type = RKNN_INT8_MM_INT8_TO_INT32;
    OK(rknn_matmul_create(&context, &info, &io));
    rknn_matmul_tensor_attr *attrs[3] = {&io.A, &io.B, &io.C};
    rknn_tensor_mem *memories[3];
    for (int i = 0; i < 3; i++) {
        printf("matrix %s %u: %u %u size %u type %d\n", attrs[i]->name, attrs[i]->n_dims, attrs[i]->dims[0], attrs[i]->dims[1],
               attrs[i]->size, (int)attrs[i]->type);
        memories[i] = rknn_create_mem(context, attrs[i]->size);
        if (i < 2)
            fill(memories[i]->virt_addr, attrs[i]->size);
        OK(rknn_matmul_set_io_mem(context, memories[i], attrs[i]));
    }
    OK(rknn_matmul_run(context));
    show("product", memories[2]->virt_addr, io.C.size);
    for (int i = 0; i < 3; i++)
        OK(rknn_destroy_mem(context, memories[i]));
    OK(rknn_matmul_destroy(context));
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    rknn_context context = 0;
    rknn_init_extend extend;
    memset(&extend, 0, sizeof extend);
    OK(rknn_init(&context, arguments[1], 0, RKNN_FLAG_PRIOR_HIGH, &extend));
    printf("extend %d\n", extend.ctx == context);
    rknn_input_output_num number;
    OK(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &number, sizeof number));
    printf("number %u %u\n", number.n_input, number.n_output);
    rknn_sdk_version version;
    OK(rknn_query(context, RKNN_QUERY_SDK_VERSION, &version, sizeof version));
    printf("version %s; %s\n", version.api_version, version.drv_version);
    rknn_mem_size memory;
    memset(&memory, 0, sizeof memory);
    OK(rknn_query(context, RKNN_QUERY_MEM_SIZE, &memory, sizeof memory));
    printf("memory %u %u %llu %u\n", memory.total_weight_size, memory.total_internal_size,
           (unsigned long long)memory.total_dma_allocated_size, memory.total_sram_size);
    rknn_custom_string text;
    OK(rknn_query(context, RKNN_QUERY_CUSTOM_STRING, &text, sizeof text));
    printf("text %s\n", text.string);
    OK(rknn_set_core_mask(context, RKNN_NPU_CORE_0_1_2));
    rknn_tensor_attr in = ask(context, RKNN_QUERY_INPUT_ATTR, "input"), out = ask(context, RKNN_QUERY_OUTPUT_ATTR, "output");
    general(context, &in, &out);
    zero_copy(context);
    rknn_perf_run times;
    memset(&times, 0, sizeof times);
    OK(rknn_query(context, RKNN_QUERY_PERF_RUN, &times, sizeof times));
    rknn_perf_detail detail;
    memset(&detail, 0, sizeof detail);
    OK(rknn_query(context, RKNN_QUERY_PERF_DETAIL, &detail, sizeof detail));
    printf("times %d %d\n", times.run_duration > 0, detail.perf_data != NULL && detail.data_len > 0);
    OK(rknn_destroy(context));
    product();
    return 0;
}
