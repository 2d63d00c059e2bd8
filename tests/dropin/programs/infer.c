/* infer MODEL RUNS: one context, so many runs on core 0; prints the number of each. */
#include "support.h"

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    rknn_context context = 0;
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    OK(rknn_init(&context, argv[1], 0, 0, NULL));
    OK(rknn_query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr));
    uint8_t *pixels = malloc(attr.n_elems);
    CHECK(pixels != NULL);
    fill_bytes(pixels, attr.n_elems, 1);
    rknn_input input = {.index = 0, .buf = pixels, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    OK(rknn_set_core_mask(context, RKNN_NPU_CORE_0));
    for (int round = 0; round < atoi(argv[2]); round++) {
        OK(rknn_inputs_set(context, 1, &input));
        OK(rknn_run(context, NULL));
        rknn_output output = {.want_float = 1};
        OK(rknn_outputs_get(context, 1, &output, NULL));
        OK(rknn_outputs_release(context, 1, &output));
        printf("%d\n", round);
        fflush(stdout);
    }
    CHECK_CODE(rknn_set_core_mask(context, (rknn_core_mask)64), RKNN_ERR_PARAM_INVALID);
    OK(rknn_destroy(context));
    free(pixels);
    return 0;
}
