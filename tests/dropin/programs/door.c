/* door MODEL PIXELS NUMBERS: one run on the bytes of an image in a file; the first output goes to a file as floats. */
#include "support.h"

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    rknn_context context = 0;
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    OK(rknn_init(&context, argv[1], 0, 0, NULL));
    OK(rknn_query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr));
    uint8_t *pixels = malloc(attr.n_elems);
    CHECK(pixels != NULL);
    FILE *file = fopen(argv[2], "rb");
    CHECK(file != NULL);
    CHECK(fread(pixels, 1, attr.n_elems, file) == attr.n_elems);
    fclose(file);
    rknn_input input = {.index = 0, .buf = pixels, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    OK(rknn_inputs_set(context, 1, &input));
    OK(rknn_run(context, NULL));
    rknn_output output = {.want_float = 1};
    OK(rknn_outputs_get(context, 1, &output, NULL));
    file = fopen(argv[3], "wb");
    CHECK(file != NULL);
    CHECK(fwrite(output.buf, 1, output.size, file) == output.size);
    CHECK(fclose(file) == 0);
    OK(rknn_outputs_release(context, 1, &output));
    OK(rknn_destroy(context));
    free(pixels);
    return 0;
}
