/* libawnn over the vip_ calls: load, run, read. Plain C, for a board as well as for the software NPU.
 *
 * Who owns what: a context owns its network, its buffers and the floats of its outputs. Inputs stay the caller's; their addresses are kept for
 * awnn_dump_io. One mutex in the context lets runs take turns; the list of live contexts has a lock of its own; everything else is for one
 * thread at a time.
 *
 * The vip_ functions are those of the program, if it is linked with a VIPLite; otherwise the first library that is found is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "awnn.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void awnn_init(unsigned int mem_size);
EXPORT void awnn_uninit(void);
EXPORT Awnn_Context_t *awnn_create(const char *nbg);
EXPORT void awnn_destroy(Awnn_Context_t *context);
EXPORT void awnn_set_input_buffers(Awnn_Context_t *context, void **input_buffers);
EXPORT float **awnn_get_output_buffers(Awnn_Context_t *context);
EXPORT void *awnn_get_output_buffer(Awnn_Context_t *context, int i);
EXPORT void awnn_run(Awnn_Context_t *context);
EXPORT void awnn_dump_io(Awnn_Context_t *context, const char *path);

#define FUNCTIONS(each) \
    each(vip_init) each(vip_destroy) each(vip_create_network) each(vip_destroy_network) each(vip_prepare_network) each(vip_finish_network) \
    each(vip_query_network) each(vip_query_input) each(vip_query_output) each(vip_set_input) each(vip_set_output) each(vip_run_network) \
    each(vip_create_buffer) each(vip_destroy_buffer) each(vip_map_buffer) each(vip_unmap_buffer) each(vip_get_buffer_size) each(vip_flush_buffer)

/* The functions of VIPLite, once they are found. */
#define MEMBER(name) __typeof__(&name) name;
static struct {
    FUNCTIONS(MEMBER)
} vip;
static int found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* One tensor; programs that look inside a context expect the fields in this order. */
typedef struct {
    vip_buffer_create_params_t vip_param;
    char name[256];
    vip_uint32_t elements;
} tensor_t;

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static struct live {
    Awnn_Context_t *context;
    struct live *next;
} *live; /* contexts that were not destroyed: what is destroyed twice is recognized by its address alone */

struct Awnn_Context {
    pthread_mutex_t mutex;
    vip_network network;
    vip_uint32_t input_count;
    vip_uint32_t output_count;
    vip_buffer *input_buffers;
    vip_buffer *output_buffers;
    tensor_t *input_params;
    tensor_t *output_params;
    float **quantize_maps; /* for outputs of one byte, the value of each code; null for others */
    void **user_input_buffers;
    float **user_output_buffers;
};

_Static_assert(sizeof(tensor_t) == 308, "Awnn_params_t has 308 bytes");

static void find_functions(void)
{
    static const char *const libraries[] = {"libVIPlite.so", "libNBGlinker.so"};
    void *library = RTLD_DEFAULT;
    int loaded = dlsym(RTLD_DEFAULT, "vip_run_network") != NULL;
    for (size_t index = 0; !loaded && index < sizeof libraries / sizeof *libraries; index++) {
        library = dlopen(libraries[index], RTLD_NOW | RTLD_GLOBAL);
        loaded = library != NULL;
    }
    if (!loaded) {
        fprintf(stderr, "awnn: neither libVIPlite.so nor libNBGlinker.so can be loaded: %s\n", dlerror());
        return;
    }
    found = 1;
#define LOOK_UP(name) \
    vip.name = (__typeof__(&name))dlsym(library, #name); \
    found = found && vip.name != NULL;
    FUNCTIONS(LOOK_UP)
    if (!found)
        fprintf(stderr, "awnn: the VIPLite library lacks a call\n");
}

static int ready(void)
{
    pthread_once(&once, find_functions);
    return found;
}

static int failed(const char *what, vip_status_e status)
{
    if (status == VIP_SUCCESS)
        return 0;
    fprintf(stderr, "awnn: fail to %s, status=%d\n", what, (int)status);
    return 1;
}

static int query(vip_network network, int is_input, vip_uint32_t index, tensor_t *tensor)
{
    __typeof__(&vip_query_input) ask = is_input ? vip.vip_query_input : vip.vip_query_output;
    vip_buffer_create_params_t *param = &tensor->vip_param;
    vip_status_e status = ask(network, index, VIP_BUFFER_PROP_DATA_FORMAT, &param->data_format);
    if (status == VIP_SUCCESS)
        status = ask(network, index, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &param->num_of_dims);
    if (status == VIP_SUCCESS && param->num_of_dims > 6)
        status = VIP_ERROR_NOT_SUPPORTED;
    if (status == VIP_SUCCESS)
        status = ask(network, index, VIP_BUFFER_PROP_SIZES_OF_DIMENSION, param->sizes);
    if (status == VIP_SUCCESS)
        status = ask(network, index, VIP_BUFFER_PROP_QUANT_FORMAT, &param->quant_format);
    if (status == VIP_SUCCESS && param->quant_format == VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT)
        status = ask(network, index, VIP_BUFFER_PROP_FIXED_POINT_POS, &param->quant_data.dfp.fixed_point_pos);
    if (status == VIP_SUCCESS && param->quant_format == VIP_BUFFER_QUANTIZE_TF_ASYMM) {
        status = ask(network, index, VIP_BUFFER_PROP_TF_SCALE, &param->quant_data.affine.scale);
        if (status == VIP_SUCCESS)
            status = ask(network, index, VIP_BUFFER_PROP_TF_ZERO_POINT, &param->quant_data.affine.zeroPoint);
    }
    if (failed("query a tensor", status))
        return 0;
    ask(network, index, VIP_BUFFER_PROP_NAME, tensor->name); /* older drivers have no names */
    tensor->elements = 1;
    for (vip_uint32_t axis = 0; axis < param->num_of_dims; axis++)
        tensor->elements *= param->sizes[axis];
    param->memory_type = VIP_BUFFER_MEMORY_TYPE_DEFAULT;
    return 1;
}

/* 2 to a power that may be negative. */
static float power_of_two(int exponent)
{
    float value = 1.0f;
    for (; exponent > 0; exponent--)
        value *= 2.0f;
    for (; exponent < 0; exponent++)
        value *= 0.5f;
    return value;
}

/* What an integer stands for: its value by the tensor's quantization, or itself. */
static float meaning(const vip_buffer_create_params_t *param, long long code)
{
    if (param->quant_format == VIP_BUFFER_QUANTIZE_TF_ASYMM)
        return (float)(code - param->quant_data.affine.zeroPoint) * param->quant_data.affine.scale;
    if (param->quant_format == VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT)
        return (float)code * power_of_two(-param->quant_data.dfp.fixed_point_pos);
    return (float)code;
}

static float from_bits(vip_uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Exact, with subnormal numbers, infinities and what is no number. */
static float from_half(vip_uint16_t half)
{
    vip_uint32_t sign = (vip_uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;
    if (exponent == 31)
        return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float value = (float)fraction * power_of_two(-24);
    return sign ? -value : value;
}

static void to_floats(const tensor_t *tensor, const float *map, const void *memory, vip_uint32_t bytes, float *floats)
{
    const vip_buffer_create_params_t *param = &tensor->vip_param;
    vip_uint32_t count = tensor->elements, width = param->sizes[0], row = (width + 1) / 2;
    switch (param->data_format) {
#define AS_NUMBERS(format, type) \
    case format: \
        for (vip_uint32_t i = 0; i < count; i++) \
            floats[i] = meaning(param, ((const type *)memory)[i]); \
        break;
    case VIP_BUFFER_FORMAT_UINT8:
    case VIP_BUFFER_FORMAT_INT8:
        for (vip_uint32_t i = 0; i < count; i++)
            floats[i] = map[((const vip_uint8_t *)memory)[i]];
        break;
    case VIP_BUFFER_FORMAT_FP32:
        memcpy(floats, memory, bytes < 4 * count ? bytes : 4 * count);
        break;
    case VIP_BUFFER_FORMAT_FP16:
        for (vip_uint32_t i = 0; i < count; i++)
            floats[i] = from_half(((const vip_uint16_t *)memory)[i]);
        break;
    case VIP_BUFFER_FORMAT_BFP16:
        for (vip_uint32_t i = 0; i < count; i++)
            floats[i] = from_bits((vip_uint32_t)((const vip_uint16_t *)memory)[i] << 16);
        break;
    case VIP_BUFFER_FORMAT_INT4:
    case VIP_BUFFER_FORMAT_UINT4:
        for (vip_uint32_t i = 0; i < count; i++) {
            vip_uint8_t byte = ((const vip_uint8_t *)memory)[i / width * row + i % width / 2];
            int code = i % width % 2 ? byte >> 4 : byte & 15;
            floats[i] = meaning(param, param->data_format == VIP_BUFFER_FORMAT_INT4 && code > 7 ? code - 16 : code);
        }
        break;
    case VIP_BUFFER_FORMAT_BOOL8:
        for (vip_uint32_t i = 0; i < count; i++)
            floats[i] = ((const vip_uint8_t *)memory)[i] != 0;
        break;
    case VIP_BUFFER_FORMAT_FP64:
        for (vip_uint32_t i = 0; i < count; i++)
            floats[i] = (float)((const double *)memory)[i];
        break;
        AS_NUMBERS(VIP_BUFFER_FORMAT_INT16, vip_int16_t)
        AS_NUMBERS(VIP_BUFFER_FORMAT_UINT16, vip_uint16_t)
        AS_NUMBERS(VIP_BUFFER_FORMAT_INT32, vip_int32_t)
        AS_NUMBERS(VIP_BUFFER_FORMAT_UINT32, vip_uint32_t)
        AS_NUMBERS(VIP_BUFFER_FORMAT_INT64, vip_int64_t)
        AS_NUMBERS(VIP_BUFFER_FORMAT_UINT64, vip_uint64_t)
        AS_NUMBERS(VIP_BUFFER_FORMAT_CHAR, vip_int8_t)
    default:
        memset(floats, 0, sizeof(float) * count);
    }
}

void awnn_init(unsigned int mem_size)
{
    if (ready())
        failed("init VIPLite", vip.vip_init(mem_size));
}

void awnn_uninit(void)
{
    if (ready())
        failed("destroy VIPLite", vip.vip_destroy());
}

/* Buffers for one side, and what they hold. */
static int make_side(Awnn_Context_t *context, int is_input, vip_uint32_t *count, tensor_t **tensors, vip_buffer **buffers)
{
    vip_uint32_t wanted = 0;
    int property = is_input ? VIP_NETWORK_PROP_INPUT_COUNT : VIP_NETWORK_PROP_OUTPUT_COUNT;
    if (failed("query the network", vip.vip_query_network(context->network, property, &wanted)))
        return 0;
    *tensors = calloc(wanted, sizeof **tensors);
    *buffers = calloc(wanted, sizeof **buffers);
    if (wanted != 0 && (*tensors == NULL || *buffers == NULL))
        return 0;
    for (*count = 0; *count < wanted; ++*count) {
        tensor_t *tensor = &(*tensors)[*count];
        if (!query(context->network, is_input, *count, tensor))
            return 0;
        if (failed("create a buffer", vip.vip_create_buffer(&tensor->vip_param, 0, &(*buffers)[*count])))
            return 0;
    }
    return 1;
}

static int make_outputs(Awnn_Context_t *context)
{
    context->quantize_maps = calloc(context->output_count, sizeof(float *));
    context->user_output_buffers = calloc(context->output_count, sizeof(float *));
    context->user_input_buffers = calloc(context->input_count, sizeof(void *));
    if (context->quantize_maps == NULL || context->user_output_buffers == NULL || context->user_input_buffers == NULL)
        return 0;
    for (vip_uint32_t i = 0; i < context->output_count; i++) {
        const vip_buffer_create_params_t *param = &context->output_params[i].vip_param;
        context->user_output_buffers[i] = calloc(context->output_params[i].elements, sizeof(float));
        if (context->user_output_buffers[i] == NULL)
            return 0;
        int is_signed = param->data_format == VIP_BUFFER_FORMAT_INT8;
        if (!is_signed && param->data_format != VIP_BUFFER_FORMAT_UINT8)
            continue;
        float *map = context->quantize_maps[i] = malloc(256 * sizeof(float));
        if (map == NULL)
            return 0;
        for (int code = 0; code < 256; code++)
            map[code] = meaning(param, is_signed && code > 127 ? code - 256 : code);
    }
    return 1;
}

static int bind_all(Awnn_Context_t *context)
{
    for (vip_uint32_t i = 0; i < context->input_count; i++)
        if (failed("set an input", vip.vip_set_input(context->network, i, context->input_buffers[i])))
            return 0;
    for (vip_uint32_t i = 0; i < context->output_count; i++)
        if (failed("set an output", vip.vip_set_output(context->network, i, context->output_buffers[i])))
            return 0;
    return 1;
}

static int remember(Awnn_Context_t *context)
{
    struct live *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return 0;
    pthread_mutex_lock(&live_lock);
    *entry = (struct live){context, live};
    live = entry;
    pthread_mutex_unlock(&live_lock);
    return 1;
}

static int forget(Awnn_Context_t *context)
{
    struct live *gone = NULL;
    pthread_mutex_lock(&live_lock);
    for (struct live **place = &live; *place != NULL; place = &(*place)->next) {
        if ((*place)->context == context) {
            gone = *place;
            *place = gone->next;
            break;
        }
    }
    pthread_mutex_unlock(&live_lock);
    free(gone);
    return gone != NULL;
}

Awnn_Context_t *awnn_create(const char *nbg)
{
    Awnn_Context_t *context = ready() && nbg != NULL ? calloc(1, sizeof *context) : NULL;
    if (context == NULL)
        return NULL;
    if (!remember(context)) {
        free(context);
        return NULL;
    }
    pthread_mutex_init(&context->mutex, NULL);
    if (failed("create the network", vip.vip_create_network(nbg, 0, VIP_CREATE_NETWORK_FROM_FILE, &context->network)) ||
        !make_side(context, 1, &context->input_count, &context->input_params, &context->input_buffers) ||
        !make_side(context, 0, &context->output_count, &context->output_params, &context->output_buffers) ||
        !make_outputs(context) || failed("prepare the network", vip.vip_prepare_network(context->network)) || !bind_all(context)) {
        awnn_destroy(context);
        return NULL;
    }
    return context;
}

void awnn_destroy(Awnn_Context_t *context)
{
    if (context == NULL)
        return;
    if (!forget(context)) {
        fprintf(stderr, "awnn: awnn_destroy of a context that does not exist, or no longer\n");
        return;
    }
    if (context->network != NULL) {
        vip.vip_finish_network(context->network);
        vip.vip_destroy_network(context->network);
    }
    for (vip_uint32_t i = 0; context->input_buffers != NULL && i < context->input_count; i++)
        vip.vip_destroy_buffer(context->input_buffers[i]);
    for (vip_uint32_t i = 0; context->output_buffers != NULL && i < context->output_count; i++) {
        vip.vip_destroy_buffer(context->output_buffers[i]);
        if (context->quantize_maps != NULL)
            free(context->quantize_maps[i]);
        if (context->user_output_buffers != NULL)
            free(context->user_output_buffers[i]);
    }
    free(context->quantize_maps);
    free(context->user_output_buffers);
    free(context->user_input_buffers);
    free(context->input_params);
    free(context->output_params);
    free(context->input_buffers);
    free(context->output_buffers);
    pthread_mutex_destroy(&context->mutex);
    free(context);
}

void awnn_set_input_buffers(Awnn_Context_t *context, void **input_buffers)
{
    if (context == NULL || input_buffers == NULL)
        return;
    for (vip_uint32_t i = 0; i < context->input_count; i++) {
        void *memory = vip.vip_map_buffer(context->input_buffers[i]);
        context->user_input_buffers[i] = input_buffers[i];
        if (memory == NULL || input_buffers[i] == NULL)
            continue;
        memcpy(memory, input_buffers[i], vip.vip_get_buffer_size(context->input_buffers[i]));
        vip.vip_unmap_buffer(context->input_buffers[i]);
        vip.vip_flush_buffer(context->input_buffers[i], VIP_BUFFER_OPER_TYPE_FLUSH);
    }
}

float **awnn_get_output_buffers(Awnn_Context_t *context)
{
    return context == NULL ? NULL : context->user_output_buffers;
}

void *awnn_get_output_buffer(Awnn_Context_t *context, int i)
{
    return context == NULL || i < 0 || (vip_uint32_t)i >= context->output_count ? NULL : vip.vip_map_buffer(context->output_buffers[i]);
}

void awnn_run(Awnn_Context_t *context)
{
    if (context == NULL)
        return;
    pthread_mutex_lock(&context->mutex);
    if (!failed("run network", vip.vip_run_network(context->network))) {
        for (vip_uint32_t i = 0; i < context->output_count; i++) {
            vip_buffer buffer = context->output_buffers[i];
            vip.vip_flush_buffer(buffer, VIP_BUFFER_OPER_TYPE_INVALIDATE);
            void *memory = vip.vip_map_buffer(buffer);
            if (memory != NULL)
                to_floats(&context->output_params[i], context->quantize_maps[i], memory, vip.vip_get_buffer_size(buffer),
                          context->user_output_buffers[i]);
            vip.vip_unmap_buffer(buffer);
        }
    }
    pthread_mutex_unlock(&context->mutex);
}

static FILE *open_text(const char *path, const char *what, vip_uint32_t index)
{
    char name[4096];
    if ((size_t)snprintf(name, sizeof name, "%s.%s_%u.txt", path, what, (unsigned)index) >= sizeof name)
        return NULL;
    FILE *file = fopen(name, "wb");
    if (file == NULL)
        fprintf(stderr, "awnn: fail to open %s\n", name);
    return file;
}

/* One element of an input, as a number of its own type. */
static void print_element(FILE *file, int format, const void *memory, vip_uint32_t i)
{
    switch (format) {
    case VIP_BUFFER_FORMAT_FP32:
        fprintf(file, "%f\n", ((const float *)memory)[i]);
        break;
    case VIP_BUFFER_FORMAT_FP16:
        fprintf(file, "%f\n", from_half(((const vip_uint16_t *)memory)[i]));
        break;
    case VIP_BUFFER_FORMAT_INT8:
        fprintf(file, "%d\n", ((const vip_int8_t *)memory)[i]);
        break;
    case VIP_BUFFER_FORMAT_INT16:
        fprintf(file, "%d\n", ((const vip_int16_t *)memory)[i]);
        break;
    case VIP_BUFFER_FORMAT_UINT16:
    case VIP_BUFFER_FORMAT_BFP16:
        fprintf(file, "%u\n", ((const vip_uint16_t *)memory)[i]);
        break;
    case VIP_BUFFER_FORMAT_INT32:
        fprintf(file, "%d\n", ((const vip_int32_t *)memory)[i]);
        break;
    case VIP_BUFFER_FORMAT_INT64:
        fprintf(file, "%lld\n", (long long)((const vip_int64_t *)memory)[i]);
        break;
    default:
        fprintf(file, "%u\n", ((const vip_uint8_t *)memory)[i]);
    }
}

void awnn_dump_io(Awnn_Context_t *context, const char *path)
{
    if (context == NULL || path == NULL)
        return;
    for (vip_uint32_t i = 0; i < context->input_count; i++) {
        const void *memory = context->user_input_buffers[i];
        FILE *file = memory == NULL ? NULL : open_text(path, "input", i);
        for (vip_uint32_t j = 0; file != NULL && j < context->input_params[i].elements; j++)
            print_element(file, context->input_params[i].vip_param.data_format, memory, j);
        if (file != NULL)
            fclose(file);
    }
    for (vip_uint32_t i = 0; i < context->output_count; i++) {
        FILE *file = open_text(path, "output", i);
        for (vip_uint32_t j = 0; file != NULL && j < context->output_params[i].elements; j++)
            fprintf(file, "%f\n", context->user_output_buffers[i][j]);
        if (file != NULL)
            fclose(file);
    }
}
