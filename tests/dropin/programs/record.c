/* Three runs, by the general calls or on memory that is bound: record general|zero-copy MODEL. */
#include "support.h"

int main(int count, char **arguments)
{
    CHECK(count > 2);
    int bound = strcmp(arguments[1], "zero-copy") == 0;
    rknn_context context = 0;
    OK(rknn_init(&context, arguments[2], 0, 0, NULL));
    rknn_input_output_num number;
    OK(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &number, sizeof number));
    CHECK(number.n_input == 1 && number.n_output <= 8);
    rknn_tensor_attr input, outputs[8];
    memset(&input, 0, sizeof input);
    OK(rknn_query(context, bound ? RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR : RKNN_QUERY_INPUT_ATTR, &input, sizeof input));
    rknn_tensor_mem *memory[9];
    if (bound) {
        input.type = RKNN_TENSOR_UINT8;
        memory[8] = rknn_create_mem(context, input.size_with_stride);
        CHECK(memory[8] != NULL);
        OK(rknn_set_io_mem(context, memory[8], &input));
        for (uint32_t index = 0; index < number.n_output; index++) {
            memset(&outputs[index], 0, sizeof *outputs);
            outputs[index].index = index;
            OK(rknn_query(context, RKNN_QUERY_NATIVE_OUTPUT_ATTR, &outputs[index], sizeof *outputs));
            memory[index] = rknn_create_mem(context, outputs[index].size_with_stride);
            CHECK(memory[index] != NULL);
            OK(rknn_set_io_mem(context, memory[index], &outputs[index]));
        }
    }
    for (int run = 0; run < 3; run++) {
        unsigned char *pixels = bound ? memory[8]->virt_addr : malloc(input.n_elems);
        for (uint32_t index = 0; index < input.n_elems; index++)
            pixels[index] = (unsigned char)(index * 31 + run);
        if (!bound) {
            rknn_input given = {0, pixels, input.n_elems, 0, RKNN_TENSOR_UINT8, RKNN_TENSOR_NHWC};
            OK(rknn_inputs_set(context, 1, &given));
            free(pixels);
        } else
            OK(rknn_mem_sync(context, memory[8], RKNN_MEMORY_SYNC_TO_DEVICE));
        OK(rknn_run(context, NULL));
        if (!bound) {
            rknn_output found[8];
            memset(found, 0, sizeof found);
            for (uint32_t index = 0; index < number.n_output; index++) {
                found[index].index = index;
                found[index].want_float = 1;
            }
            OK(rknn_outputs_get(context, number.n_output, found, NULL));
            OK(rknn_outputs_release(context, number.n_output, found));
        }
    }
    OK(rknn_destroy(context));
    return 0;
}
