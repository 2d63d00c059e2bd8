/* Programs after the patterns of the vendor's demonstrations, one per name: patterns NAME MODEL [OUTPUT]. */
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.h"

static rknn_tensor_attr queried(rknn_context context, rknn_query_cmd command, uint32_t index)
{
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.index = index;
    OK(rknn_query(context, command, &attr, sizeof attr));
    return attr;
}

/* Read into a buffer that is freed at once, as most programs do. */
static rknn_context opened(const char *path, uint32_t flags)
{
    uint32_t size;
    void *bytes = read_file(path, &size);
    rknn_context context = 0;
    int code = rknn_init(&context, bytes, size, flags, NULL);
    free(bytes);
    if (code != 0) {
        printf("rknn_init fail! ret=%d\n", code);
        exit(3);
    }
    return context;
}

/* Asks for the times of layers without having collected them, and ends where that fails. */
static void perf(const char *path)
{
    rknn_context context = opened(path, 0);
    rknn_tensor_attr attr = queried(context, RKNN_QUERY_INPUT_ATTR, 0);
    uint8_t *picture = malloc(attr.n_elems);
    fill_bytes(picture, attr.n_elems, 1);
    rknn_input input = {.index = 0, .buf = picture, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    OK(rknn_inputs_set(context, 1, &input));
    OK(rknn_run(context, NULL));
    rknn_perf_detail detail;
    OK(rknn_query(context, RKNN_QUERY_PERF_DETAIL, &detail, sizeof detail));
    CHECK(strlen(detail.perf_data) == detail.data_len);
    printf("%s\n", detail.perf_data);
    free(picture);
    OK(rknn_destroy(context));
}

/* The small runtime: the image as the NHWC query has it, outputs as float32 or as they are. */
static void mini(const char *path, const char *result, int floats)
{
    rknn_context context = opened(path, 0);
    rknn_input_output_num count;
    OK(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count));
    CHECK(count.n_input == 1);
    rknn_tensor_attr input = queried(context, RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR, 0);
    rknn_tensor_mem *picture = rknn_create_mem(context, input.size_with_stride);
    fill_bytes(picture->virt_addr, input.size, 7);
    OK(rknn_set_io_mem(context, picture, &input));
    rknn_tensor_attr output = queried(context, RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR, 0);
    size_t bytes = output.n_elems;
    if (floats) {
        output.type = RKNN_TENSOR_FLOAT32;
        bytes *= sizeof(float);
    }
    rknn_tensor_mem *memory = rknn_create_mem(context, (uint32_t)bytes);
    OK(rknn_set_io_mem(context, memory, &output));
    OK(rknn_run(context, NULL));
    write_file(result, memory->virt_addr, bytes);
    printf("%d %d %u\n", input.type, input.fmt, output.n_dims);
    OK(rknn_destroy_mem(context, picture));
    OK(rknn_destroy_mem(context, memory));
    OK(rknn_destroy(context));
}

/* Memory of the heap that the small chips have. As in the model zoo's demos, a heap that cannot be opened is reported and not handled. */
static void *heap_memory(const char *heap, size_t size, int *fd)
{
    struct {
        uint64_t size;
        uint32_t fd, fd_flags;
        uint64_t heap_flags;
    } request = {.size = size, .fd_flags = O_CLOEXEC | O_RDWR};
    int device = open(heap, O_RDWR);
    if (device < 0) {
        printf("open %s fail!\n", heap);
        return NULL;
    }
    OK(ioctl(device, _IOWR('H', 0x0, request), &request));
    close(device);
    *fd = (int)request.fd;
    void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(address != MAP_FAILED);
    return address;
}

static void mini_heap(const char *path, const char *result)
{
    rknn_context context = opened(path, 0);
    rknn_tensor_attr input = queried(context, RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR, 0);
    rknn_tensor_attr output = queried(context, RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR, 0);
    int fd = -1;
    void *address = heap_memory("/dev/rk_dma_heap/rk-dma-heap-cma", input.size_with_stride, &fd);
    if (address == NULL)
        exit(4);
    fill_bytes(address, input.size, 7);
    rknn_tensor_mem *image = rknn_create_mem_from_fd(context, fd, address, input.size_with_stride, 0);
    rknn_tensor_mem *memory = rknn_create_mem(context, output.n_elems);
    CHECK(image != NULL && memory != NULL);
    OK(rknn_set_io_mem(context, image, &input));
    OK(rknn_set_io_mem(context, memory, &output));
    OK(rknn_run(context, NULL));
    write_file(result, memory->virt_addr, output.n_elems);
    OK(rknn_destroy_mem(context, image));
    OK(rknn_destroy_mem(context, memory));
    OK(rknn_destroy(context));
    munmap(address, input.size_with_stride);
    close(fd);
}

/* A detector that asks for the type of the first output and reads all of them as that. */
static void detector(const char *path, const char *result)
{
    rknn_context context = opened(path, 0);
    rknn_input_output_num count;
    OK(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count));
    rknn_tensor_attr attr = queried(context, RKNN_QUERY_INPUT_ATTR, 0);
    uint8_t *picture = malloc(attr.n_elems);
    fill_bytes(picture, attr.n_elems, 3);
    rknn_input input = {.index = 0, .buf = picture, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    OK(rknn_inputs_set(context, 1, &input));
    OK(rknn_run(context, NULL));
    rknn_tensor_attr first = queried(context, RKNN_QUERY_OUTPUT_ATTR, 0);
    int quantized = first.qnt_type == RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC && first.type != RKNN_TENSOR_FLOAT16;
    CHECK(quantized);
    rknn_output outputs[16];
    memset(outputs, 0, sizeof outputs);
    for (uint32_t index = 0; index < count.n_output; index++) {
        outputs[index].index = index;
        outputs[index].want_float = !quantized;
    }
    OK(rknn_outputs_get(context, count.n_output, outputs, NULL));
    FILE *file = fopen(result, "wb");
    CHECK(file != NULL);
    for (uint32_t index = 0; index < count.n_output; index++) {
        rknn_tensor_attr each = queried(context, RKNN_QUERY_OUTPUT_ATTR, index);
        const int8_t *codes = outputs[index].buf;
        for (uint32_t element = 0; element < each.n_elems; element++) {
            float value = ((float)codes[element] - (float)each.zp) * each.scale;
            CHECK(fwrite(&value, sizeof value, 1, file) == 1);
        }
    }
    fclose(file);
    OK(rknn_outputs_release(context, count.n_output, outputs));
    free(picture);
    OK(rknn_destroy(context));
}

/* An older detector: the array of outputs is cleared, want_float is set, and every index is left at 0. */
static void older_detector(const char *path, const char *result)
{
    rknn_context context = opened(path, 0);
    rknn_input_output_num count;
    OK(rknn_query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count));
    rknn_tensor_attr attr = queried(context, RKNN_QUERY_INPUT_ATTR, 0);
    uint8_t *image = malloc(attr.n_elems);
    fill_bytes(image, attr.n_elems, 3);
    rknn_input inputs[1];
    memset(inputs, 0, sizeof inputs);
    inputs[0].buf = image;
    inputs[0].size = attr.n_elems;
    inputs[0].type = RKNN_TENSOR_UINT8;
    inputs[0].fmt = RKNN_TENSOR_NHWC;
    OK(rknn_inputs_set(context, count.n_input, inputs));
    OK(rknn_run(context, NULL));
    rknn_output outputs[16];
    memset(outputs, 0, sizeof outputs);
    for (uint32_t index = 0; index < count.n_output; index++)
        outputs[index].want_float = 1;
    OK(rknn_outputs_get(context, count.n_output, outputs, NULL));
    FILE *file = fopen(result, "wb");
    CHECK(file != NULL);
    for (uint32_t index = 0; index < count.n_output; index++) {
        CHECK(outputs[index].index == index);
        CHECK(fwrite(outputs[index].buf, 1, outputs[index].size, file) == outputs[index].size);
    }
    fclose(file);
    OK(rknn_outputs_release(context, count.n_output, outputs));
    free(image);
    OK(rknn_destroy(context));
}

/* Gives half a buffer from two places, from the first of them more than once. */
static void half_buffers(const char *path)
{
    rknn_context context = opened(path, 0);
    rknn_tensor_attr attr = queried(context, RKNN_QUERY_INPUT_ATTR, 0);
    uint8_t *image = calloc(attr.n_elems, 1);
    rknn_input input = {.index = 0, .buf = image, .size = attr.n_elems / 2, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    for (int time = 0; time < 3; time++)
        CHECK_CODE(rknn_inputs_set(context, 1, &input), RKNN_ERR_PARAM_INVALID);
    CHECK_CODE(rknn_inputs_set(context, 1, &input), RKNN_ERR_PARAM_INVALID);
    free(image);
    OK(rknn_destroy(context));
    CHECK(rknn_run(context, NULL) != 0);
}

/* Runs five times on floats; from the third time on one of them is no number, in memory of its own or bound. */
static void no_number(const char *path, int bound)
{
    rknn_context context = opened(path, 0);
    rknn_tensor_attr attr = queried(context, RKNN_QUERY_INPUT_ATTR, 0), result = queried(context, RKNN_QUERY_OUTPUT_ATTR, 0);
    attr.type = result.type = RKNN_TENSOR_FLOAT32;
    uint32_t size = attr.n_elems * (uint32_t)sizeof(float);
    rknn_tensor_mem *memory = rknn_create_mem(context, size);
    rknn_tensor_mem *values = rknn_create_mem(context, result.n_elems * (uint32_t)sizeof(float));
    CHECK(memory != NULL && values != NULL);
    if (bound) {
        OK(rknn_set_io_mem(context, memory, &attr));
        OK(rknn_set_io_mem(context, values, &result));
    }
    float *given = memory->virt_addr;
    for (uint32_t element = 0; element < attr.n_elems; element++)
        given[element] = 0.25f;
    rknn_input input = {.index = 0, .buf = given, .size = size, .type = RKNN_TENSOR_FLOAT32, .fmt = RKNN_TENSOR_NHWC};
    rknn_output output = {.index = 0, .want_float = 1, .is_prealloc = 1, .buf = values->virt_addr, .size = values->size};
    for (int time = 0; time < 5; time++) {
        if (time == 2)
            given[5] = 0.0f / (given[5] - given[4]);
        if (!bound)
            OK(rknn_inputs_set(context, 1, &input));
        OK(rknn_run(context, NULL));
        if (!bound)
            OK(rknn_outputs_get(context, 1, &output, NULL));
        fprintf(stderr, "run %d\n", time);
    }
    OK(rknn_destroy_mem(context, memory));
    OK(rknn_destroy_mem(context, values));
    OK(rknn_destroy(context));
}

/* Writes behind everything that it was given, as a program does that was made for another model. */
static void beyond(const char *path)
{
    for (int round = 0; round < 50; round++) {
        rknn_context context = opened(path, 0);
        rknn_tensor_attr attr = queried(context, RKNN_QUERY_INPUT_ATTR, 0);
        uint8_t *picture = calloc(attr.n_elems, 1);
        rknn_input input = {.index = 0, .buf = picture, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
        OK(rknn_inputs_set(context, 1, &input));
        OK(rknn_run(context, NULL));
        rknn_output output = {.index = 0};
        OK(rknn_outputs_get(context, 1, &output, NULL));
        memset((char *)output.buf + output.size, 0xff, 1000);
        rknn_tensor_mem *memory = rknn_create_mem(context, 64);
        memset((char *)memory + sizeof *memory, 0xff, 1000);
        OK(rknn_outputs_release(context, 1, &output));
        OK(rknn_destroy_mem(context, memory));
        OK(rknn_destroy(context));
        free(picture);
    }
}

int main(int count, char **arguments)
{
    CHECK(count > 2);
    const char *name = arguments[1], *result = count > 3 ? arguments[3] : "";
    if (strcmp(name, "perf") == 0)
        perf(arguments[2]);
    else if (strcmp(name, "mini") == 0)
        mini(arguments[2], result, 0);
    else if (strcmp(name, "mini-floats") == 0)
        mini(arguments[2], result, 1);
    else if (strcmp(name, "mini-heap") == 0)
        mini_heap(arguments[2], result);
    else if (strcmp(name, "missing") == 0)
        for (int time = 0; time < 2; time++)
            CHECK(open(arguments[2], O_RDWR) == -1);
    else if (strcmp(name, "detector") == 0)
        detector(arguments[2], result);
    else if (strcmp(name, "older-detector") == 0)
        older_detector(arguments[2], result);
    else if (strcmp(name, "half-buffers") == 0)
        half_buffers(arguments[2]);
    else if (strcmp(name, "no-number") == 0)
        no_number(arguments[2], 0);
    else if (strcmp(name, "no-number-bound") == 0)
        no_number(arguments[2], 1);
    else if (strcmp(name, "beyond") == 0)
        beyond(arguments[2]);
    else
        CHECK(!"a name that is known");
    printf("done\n");
    return 0;
}
