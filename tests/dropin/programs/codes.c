/* codes OUTPUT MODEL Images [MODEL Images ...]: the images of a file through its model, one run per image; writes the codes of
   the first output. */
#include "support.h"

int main(int argc, char **argv)
{
    CHECK(argc >= 4 && argc % 2 == 0);
    FILE *result = fopen(argv[1], "wb");
    CHECK(result != NULL);
    for (int number = 2; number < argc; number += 2) {
        FILE *source = fopen(argv[number + 1], "rb");
        CHECK(source != NULL);
        rknn_context context = 0;
        rknn_tensor_attr attr;
        memset(&attr, 0, sizeof attr);
        OK(rknn_init(&context, argv[number], 0, 0, NULL));
        OK(rknn_query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr));
        uint8_t *pixels = malloc(attr.n_elems);
        CHECK(pixels != NULL);
        while (fread(pixels, 1, attr.n_elems, source) == attr.n_elems) {
            rknn_input input = {.index = 0, .buf = pixels, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
            rknn_output output = {.want_float = 0};
            OK(rknn_inputs_set(context, 1, &input));
            OK(rknn_run(context, NULL));
            OK(rknn_outputs_get(context, 1, &output, NULL));
            CHECK(fwrite(output.buf, 1, output.size, result) == output.size);
            OK(rknn_outputs_release(context, 1, &output));
        }
        OK(rknn_destroy(context));
        free(pixels);
        fclose(source);
    }
    CHECK(fclose(result) == 0);
    return 0;
}
