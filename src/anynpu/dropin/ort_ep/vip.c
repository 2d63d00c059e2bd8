/* Networks on the VIPLite calls: the vendor's libVIPlite.so or libNBGlinker.so, or the drop-in library.
 *
 * VIPLite has buffers of the network's own types, so the conversions from and to the caller's tensors are here. They give the bits that
 * a session of anynpu gives: (x - mean) / std in float32, then round-half-even(x / scale) + zero point, clamped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../native/float16.h"
#include "../../vip/abi.h"
#include "provider.h"

#define CALLS(each) \
    each(init) each(destroy) each(create_network) each(destroy_network) each(prepare_network) each(finish_network) each(query_network) \
    each(query_input) each(query_output) each(set_network) each(set_input) each(set_output) each(run_network) each(create_buffer) \
    each(destroy_buffer) each(map_buffer) each(get_buffer_size) each(flush_buffer)

enum { CHUNK = 512, VIP_RANK = 6 };

/* How the elements of a tensor are stored: value = (element - zero) * scale. */
typedef struct {
    OrtElementType type;
    float zero, scale;
    bool nhwc;
} Form;

typedef struct {
    vip_buffer_create_params_t params;
    Form form;
    size_t count;
} VipTensor;

typedef struct {
    vip_buffer buffer;
    void *memory;
} VipBuffer;

/* One network of the library with its buffers, inputs first. */
typedef struct {
    vip_network network;
    VipBuffer *buffers;
} VipContext;

typedef struct {
    Network base;
#define MEMBER(name) __typeof__(&vip_##name) name;
    CALLS(MEMBER)
#undef MEMBER
    void *library;
    char library_path[PATH_SIZE];
    const Source *source; /* while contexts are added */
    int priority;
    bool started; /* vip_init was called */
    VipTensor *tensors; /* inputs, then outputs */
    VipContext contexts[MAX_CONTEXTS];
    int count;
} VipNetwork;

static const struct {
    int code;
    const char *name, *hint;
} codes[] = {
    {VIP_ERROR_POWER_STOP, "VIP_ERROR_POWER_STOP", "another program has stopped the NPU; start it by vip_power_management"},
    {VIP_ERROR_POWER_OFF, "VIP_ERROR_POWER_OFF", "another program has turned the NPU off; turn it on by vip_power_management"},
    {VIP_ERROR_FAILURE, "VIP_ERROR_FAILURE", "see the log of the driver (dmesg); /dev/vipcore must be accessible"},
    {VIP_ERROR_NETWORK_INCOMPATIBLE, "VIP_ERROR_NETWORK_INCOMPATIBLE", "the model was compiled for another chip: compile it for this one"},
    {VIP_ERROR_INVALID_NETWORK, "VIP_ERROR_INVALID_NETWORK", "the model is damaged: compile it again"},
    {VIP_ERROR_OUT_OF_MEMORY, "VIP_ERROR_OUT_OF_MEMORY", "set the option contexts to 1, or free memory"},
    {VIP_ERROR_OUT_OF_RESOURCE, "VIP_ERROR_OUT_OF_RESOURCE", "set the option contexts to 1, or close other sessions"},
    {VIP_ERROR_NOT_SUPPORTED, "VIP_ERROR_NOT_SUPPORTED", "this driver does not support an option of the session, such as priority"},
    {VIP_ERROR_INVALID_ARGUMENTS, "VIP_ERROR_INVALID_ARGUMENTS", "compare the inputs with session.get_inputs()"},
    {VIP_ERROR_IO, "VIP_ERROR_IO", "see the log of the driver (dmesg)"},
    {VIP_ERROR_TIMEOUT, "VIP_ERROR_TIMEOUT", "the NPU did not finish in time; see dmesg"},
};

static OrtStatus *failed(const VipNetwork *network, const char *call, int code)
{
    const char *name = "unknown error", *hint = "see the log of the driver (dmesg)";
    for (size_t index = 0; index < sizeof codes / sizeof *codes; index++)
        if (codes[index].code == code) {
            name = codes[index].name;
            hint = codes[index].hint;
        }
    return fail("anynpu: vip_%s returned %s (%d), library %s\n  hint: %s", call, name, code, network->library_path, hint);
}

#define CHECKED(call, ...) \
    do { \
        vip_status_e checked_code = network->call(__VA_ARGS__); \
        if (checked_code != VIP_SUCCESS) \
            return failed(network, #call, (int)checked_code); \
    } while (0)

/* -- conversions */

static const struct {
    vip_enum format;
    OrtElementType element;
} types[] = {
    {VIP_BUFFER_FORMAT_FP32, ELEMENT_FLOAT},   {VIP_BUFFER_FORMAT_FP16, ELEMENT_FLOAT16},   {VIP_BUFFER_FORMAT_BFP16, ELEMENT_BFLOAT16},
    {VIP_BUFFER_FORMAT_UINT8, ELEMENT_UINT8},  {VIP_BUFFER_FORMAT_INT8, ELEMENT_INT8},      {VIP_BUFFER_FORMAT_CHAR, ELEMENT_INT8},
    {VIP_BUFFER_FORMAT_UINT16, ELEMENT_UINT16}, {VIP_BUFFER_FORMAT_INT16, ELEMENT_INT16},   {VIP_BUFFER_FORMAT_INT32, ELEMENT_INT32},
    {VIP_BUFFER_FORMAT_UINT32, ELEMENT_UINT32}, {VIP_BUFFER_FORMAT_INT64, ELEMENT_INT64},   {VIP_BUFFER_FORMAT_UINT64, ELEMENT_UINT64},
    {VIP_BUFFER_FORMAT_FP64, ELEMENT_DOUBLE},  {VIP_BUFFER_FORMAT_BOOL8, ELEMENT_BOOL},
};

static OrtElementType element_of(vip_enum format)
{
    for (size_t index = 0; index < sizeof types / sizeof *types; index++)
        if (types[index].format == format)
            return types[index].element;
    return 0;
}

/* Types whose values pass through float32 without loss where they are quantized. */
static bool is_convertible(OrtElementType type)
{
    switch (type) {
    case ELEMENT_FLOAT:
    case ELEMENT_FLOAT16:
    case ELEMENT_BFLOAT16:
    case ELEMENT_UINT8:
    case ELEMENT_INT8:
    case ELEMENT_UINT16:
    case ELEMENT_INT16:
        return true;
    default:
        return false;
    }
}

#define LOAD(type, value) \
    for (size_t index = 0; index < count; index++) { \
        type element = ((const type *)data)[index * step]; \
        values[index] = (value); \
    } \
    break

static void load(const Form *form, const void *data, size_t step, size_t count, float *values)
{
    const float zero = form->zero, scale = form->scale;
    switch (form->type) {
    case ELEMENT_FLOAT:
        LOAD(float, element);
    case ELEMENT_FLOAT16:
        LOAD(uint16_t, one_f32_from_f16(element));
    case ELEMENT_BFLOAT16:
        LOAD(uint16_t, float_of((uint32_t)element << 16));
    case ELEMENT_UINT8:
        LOAD(uint8_t, ((float)element - zero) * scale);
    case ELEMENT_INT8:
        LOAD(int8_t, ((float)element - zero) * scale);
    case ELEMENT_UINT16:
        LOAD(uint16_t, ((float)element - zero) * scale);
    default:
        LOAD(int16_t, ((float)element - zero) * scale);
    }
}

/* The quantized value; 0 for a value that is not a number. Adding and subtracting 1.5 * 2^23 rounds half to even up to 2^22. */
static float quantized(float value, const Form *form, float low, float high)
{
    const float round = 12582912.0f, limit = 4194304.0f;
    float quotient = value / form->scale;
    float bounded = quotient < -limit ? -limit : quotient > limit ? limit : quotient;
    float rounded = ((bounded + round) - round) + form->zero;
    return quotient != quotient ? 0.0f : rounded < low ? low : rounded > high ? high : rounded;
}

static uint16_t bfloat16(float value)
{
    uint16_t bits;
    bf16_from_f32(&value, &bits, 1);
    return bits;
}

#define STORE(type, value) \
    for (size_t index = 0; index < count; index++) \
        ((type *)data)[index * step] = (type)(value); \
    break

static void store(const Form *form, const float *values, size_t step, size_t count, void *data)
{
    switch (form->type) {
    case ELEMENT_FLOAT:
        STORE(float, values[index]);
    case ELEMENT_FLOAT16:
        STORE(uint16_t, one_f16_from_f32(values[index]));
    case ELEMENT_BFLOAT16:
        STORE(uint16_t, bfloat16(values[index]));
    case ELEMENT_UINT8:
        STORE(uint8_t, quantized(values[index], form, 0, UINT8_MAX));
    case ELEMENT_INT8:
        STORE(int8_t, quantized(values[index], form, INT8_MIN, INT8_MAX));
    case ELEMENT_UINT16:
        STORE(uint16_t, quantized(values[index], form, 0, UINT16_MAX));
    default:
        STORE(int16_t, quantized(values[index], form, INT16_MIN, INT16_MAX));
    }
}

/* The elements of one channel of one image, which are step elements apart. */
typedef struct {
    size_t first, step;
} Plane;

static Plane plane_of(const Form *form, size_t channels, size_t pixels, size_t image, size_t channel)
{
    size_t start = image * channels * pixels;
    return form->nhwc ? (Plane){start + channel, channels} : (Plane){start + channel * pixels, 1};
}

/* From one form to another, by planes where the order of the axes or the normalization differs per channel. */
static void convert(const Form *from, const void *source, const Form *to, void *target, const Port *port, size_t count,
                    const Normalization *normalization)
{
    bool same = from->type == to->type && from->zero == to->zero && from->scale == to->scale && from->nhwc == to->nhwc;
    if (same && normalization->mean == NULL) {
        memcpy(target, source, count * element_size(from->type));
        return;
    }
    bool planes = port->rank >= 2 && (from->nhwc != to->nhwc || normalization->mean != NULL);
    size_t images = planes ? (size_t)port->dims[0] : 1, channels = planes ? (size_t)port->dims[1] : 1;
    size_t pixels = images * channels == 0 ? 0 : count / images / channels;
    float values[CHUNK];
    for (size_t plane = 0; plane < images * channels; plane++) {
        size_t channel = plane % channels;
        Plane in = plane_of(from, channels, pixels, plane / channels, channel), out = plane_of(to, channels, pixels, plane / channels, channel);
        for (size_t at = 0; at < pixels; at += CHUNK) {
            size_t length = pixels - at < CHUNK ? pixels - at : CHUNK;
            load(from, (const char *)source + (in.first + at * in.step) * element_size(from->type), in.step, length, values);
            if (normalization->mean != NULL) {
                size_t place = normalization->count > 1 ? channel : 0;
                for (size_t index = 0; index < length; index++)
                    values[index] = (values[index] - normalization->mean[place]) / normalization->std[place];
            }
            store(to, values, out.step, length, (char *)target + (out.first + at * out.step) * element_size(to->type));
        }
    }
}

/* -- what the network has */

/* 2^exponent for the exponents of normal numbers. */
static float power_of_two(int exponent)
{
    return float_of((uint32_t)(exponent < -126 ? 1 : exponent > 127 ? 254 : exponent + 127) << 23);
}

static OrtStatus *describe(VipNetwork *network, bool is_input, vip_uint32_t index, VipTensor *tensor, Port *port)
{
    __typeof__(&vip_query_input) query = is_input ? network->query_input : network->query_output;
    const char *call = is_input ? "query_input" : "query_output";
    vip_network handle = network->contexts[0].network;
    vip_buffer_create_params_t *params = &tensor->params;
    char name[256] = "";
    vip_status_e status = query(handle, index, VIP_BUFFER_PROP_DATA_FORMAT, &params->data_format);
    if (status == VIP_SUCCESS)
        status = query(handle, index, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &params->num_of_dims);
    if (status == VIP_SUCCESS && params->num_of_dims > VIP_RANK)
        status = VIP_ERROR_NOT_SUPPORTED;
    if (status == VIP_SUCCESS)
        status = query(handle, index, VIP_BUFFER_PROP_SIZES_OF_DIMENSION, params->sizes);
    if (status == VIP_SUCCESS)
        status = query(handle, index, VIP_BUFFER_PROP_QUANT_FORMAT, &params->quant_format);
    tensor->form = (Form){.type = element_of(params->data_format), .scale = 1};
    if (status == VIP_SUCCESS && params->quant_format == VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT) {
        status = query(handle, index, VIP_BUFFER_PROP_FIXED_POINT_POS, &params->quant_data.dfp.fixed_point_pos);
        tensor->form.scale = power_of_two(-params->quant_data.dfp.fixed_point_pos);
    }
    if (status == VIP_SUCCESS && params->quant_format == VIP_BUFFER_QUANTIZE_TF_ASYMM) {
        status = query(handle, index, VIP_BUFFER_PROP_TF_SCALE, &params->quant_data.affine.scale);
        if (status == VIP_SUCCESS)
            status = query(handle, index, VIP_BUFFER_PROP_TF_ZERO_POINT, &params->quant_data.affine.zeroPoint);
        tensor->form.scale = params->quant_data.affine.scale;
        tensor->form.zero = (float)params->quant_data.affine.zeroPoint;
    }
    if (status != VIP_SUCCESS)
        return failed(network, call, (int)status);
    query(handle, index, VIP_BUFFER_PROP_NAME, name); /* older drivers have no names */
    snprintf(port->name, sizeof port->name, "%.*s", (int)sizeof name - 1, name);
    port->rank = params->num_of_dims;
    port->type = tensor->form.type;
    port->image = port->rank == 4;
    /* a node for preprocessing reads images as bytes with the channels last */
    tensor->form.nhwc = port->image && params->quant_format == VIP_BUFFER_QUANTIZE_NONE && port->type == ELEMENT_UINT8 && params->sizes[0] == 3;
    for (size_t axis = 0; axis < port->rank; axis++) { /* the sizes begin with the innermost dimension */
        static const size_t nhwc_axis[] = {0, 3, 1, 2};
        size_t place = tensor->form.nhwc ? nhwc_axis[axis] : axis;
        port->dims[axis] = params->sizes[port->rank - 1 - place];
    }
    if (!element_count(port->dims, port->rank, &tensor->count) || element_size(port->type) == 0)
        return fail("anynpu: tensor %s of the model has the format %d, which is not supported", port->name, (int)params->data_format);
    return NULL;
}

static OrtStatus *describe_all(VipNetwork *network)
{
    Network *base = &network->base;
    vip_uint32_t inputs = 0, outputs = 0;
    CHECKED(query_network, network->contexts[0].network, VIP_NETWORK_PROP_INPUT_COUNT, &inputs);
    CHECKED(query_network, network->contexts[0].network, VIP_NETWORK_PROP_OUTPUT_COUNT, &outputs);
    if (inputs > MAX_PORTS || outputs > MAX_PORTS)
        return fail("anynpu: the model has %u inputs and %u outputs; at most %d are supported", inputs, outputs, MAX_PORTS);
    base->inputs = calloc(inputs + 1, sizeof *base->inputs);
    base->outputs = calloc(outputs + 1, sizeof *base->outputs);
    network->tensors = calloc((size_t)inputs + outputs + 1, sizeof *network->tensors);
    if (base->inputs == NULL || base->outputs == NULL || network->tensors == NULL)
        return no_memory();
    base->input_count = inputs;
    base->output_count = outputs;
    for (vip_uint32_t index = 0; index < inputs; index++)
        TRY(describe(network, true, index, &network->tensors[index], &base->inputs[index]));
    for (vip_uint32_t index = 0; index < outputs; index++)
        TRY(describe(network, false, index, &network->tensors[inputs + index], &base->outputs[index]));
    return NULL;
}

/* -- contexts */

static OrtStatus *load_network(VipNetwork *network, VipContext *context)
{
    const Source *source = network->source;
    if (source->size > UINT32_MAX)
        return fail("anynpu: the model has %zu bytes; vip_create_network takes at most 4 GB", source->size);
    const void *data = source->data != NULL ? source->data : source->path;
    vip_enum kind = source->data != NULL ? VIP_CREATE_NETWORK_FROM_MEMORY : VIP_CREATE_NETWORK_FROM_FILE;
    CHECKED(create_network, data, source->data != NULL ? (vip_uint32_t)source->size : 0, kind, &context->network);
    if (network->priority >= 0) {
        static const vip_uint8_t levels[] = {255, 128, 0};
        vip_uint8_t level = levels[network->priority];
        CHECKED(set_network, context->network, VIP_NETWORK_PROP_SET_PRIORITY, &level);
    }
    CHECKED(prepare_network, context->network);
    return NULL;
}

static OrtStatus *add_buffers(VipNetwork *network, VipContext *context)
{
    size_t inputs = network->base.input_count, count = inputs + network->base.output_count;
    context->buffers = calloc(count + 1, sizeof *context->buffers);
    if (context->buffers == NULL)
        return no_memory();
    for (size_t index = 0; index < count; index++) {
        VipTensor *tensor = &network->tensors[index];
        VipBuffer *buffer = &context->buffers[index];
        size_t bytes;
        CHECKED(create_buffer, &tensor->params, sizeof tensor->params, &buffer->buffer);
        buffer->memory = network->map_buffer(buffer->buffer);
        if (buffer->memory == NULL || !byte_count(tensor->count, tensor->form.type, &bytes) || network->get_buffer_size(buffer->buffer) < bytes)
            return fail("anynpu: a buffer of %zu elements cannot be mapped, library %s", tensor->count, network->library_path);
        if (index < inputs)
            CHECKED(set_input, context->network, (vip_uint32_t)index, buffer->buffer);
        else
            CHECKED(set_output, context->network, (vip_uint32_t)(index - inputs), buffer->buffer);
    }
    return NULL;
}

/* The model is loaded again: V85x cannot duplicate a network, and these chips have one core. */
static OrtStatus *add_context(Network *base, int index)
{
    VipNetwork *network = (VipNetwork *)base;
    VipContext *context = &network->contexts[index];
    network->count = index + 1;
    TRY(load_network(network, context));
    return add_buffers(network, context);
}

static OrtStatus *write_input(const VipNetwork *network, size_t number, const Tensor *input, const VipBuffer *buffer)
{
    const Port *port = &network->base.inputs[number];
    Form native = network->tensors[number].form, given = {.type = input->type, .scale = 1, .nhwc = input->nhwc};
    Normalization normalization = input->normalization;
    bool exact = native.type == given.type && native.zero == 0 && native.scale == 1;
    if (input->raw && native.type == given.type) {
        native.zero = 0;
        native.scale = 1;
        normalization.mean = NULL;
    } else if (!exact && (!is_convertible(native.type) || !is_convertible(given.type))) {
        return fail("anynpu: input %s is declared as %s, the model reads %s\n  hint: write the EPContext model with 'anynpu ort wrap'",
                    port->name, element_name(given.type), element_name(native.type));
    }
    if (native.nhwc)
        normalization.mean = NULL; /* a node of the network does it */
    convert(&given, input->data, &native, buffer->memory, port, input->count, &normalization);
    CHECKED(flush_buffer, buffer->buffer, VIP_BUFFER_OPER_TYPE_FLUSH);
    return NULL;
}

static OrtStatus *read_output(const VipNetwork *network, size_t number, const Tensor *output, const VipBuffer *buffer)
{
    const Port *port = &network->base.outputs[number];
    Form native = network->tensors[network->base.input_count + number].form, wanted = {.type = output->type, .scale = 1, .nhwc = output->nhwc};
    CHECKED(flush_buffer, buffer->buffer, VIP_BUFFER_OPER_TYPE_INVALIDATE);
    if (native.type == wanted.type) { /* the values that the network writes */
        native.zero = 0;
        native.scale = 1;
    } else if (!is_convertible(native.type)) {
        return fail("anynpu: output %s is declared as %s, the model writes %s\n  hint: write the EPContext model with 'anynpu ort wrap'",
                    port->name, element_name(wanted.type), element_name(native.type));
    }
    convert(&native, buffer->memory, &wanted, output->data, port, output->count, &(Normalization){.mean = NULL});
    return NULL;
}

static OrtStatus *run(Network *base, int index, uint32_t core_mask, const Tensor *inputs, const Tensor *outputs)
{
    VipNetwork *network = (VipNetwork *)base;
    const VipContext *context = &network->contexts[index];
    if (core_mask > 1 && core_mask != ALL_CORES)
        return fail_with(ORT_INVALID_ARGUMENT, "anynpu: core_mask names cores that this chip does not have\n  hint: use auto, 0 or all");
    for (size_t number = 0; number < base->input_count; number++)
        TRY(write_input(network, number, &inputs[number], &context->buffers[number]));
    CHECKED(run_network, context->network);
    for (size_t number = 0; number < base->output_count; number++)
        TRY(read_output(network, number, &outputs[number], &context->buffers[base->input_count + number]));
    return NULL;
}

static void close_network(Network *base)
{
    VipNetwork *network = (VipNetwork *)base;
    size_t buffers = base->input_count + base->output_count;
    for (int index = network->count - 1; index >= 0; index--) {
        VipContext *context = &network->contexts[index];
        if (context->network != NULL) {
            network->finish_network(context->network);
            network->destroy_network(context->network);
        }
        for (size_t number = 0; context->buffers != NULL && number < buffers; number++)
            if (context->buffers[number].buffer != NULL)
                network->destroy_buffer(context->buffers[number].buffer);
        free(context->buffers);
    }
    if (network->started)
        network->destroy(); /* it is counted */
    free(base->inputs);
    free(base->outputs);
    free(network->tensors);
    free(network); /* the library stays loaded: it may have started threads */
}

static const NetworkCalls calls = {.add_context = add_context, .run = run, .close = close_network};

/* Boards have one of two libraries with the same calls. */
static OrtStatus *load_either(VipNetwork *network, const Settings *settings)
{
    OrtStatus *status = load_library(settings, "libVIPlite.so", &network->library, network->library_path, sizeof network->library_path);
    if (status == NULL)
        return NULL;
    OrtStatus *other = load_library(settings, "libNBGlinker.so", &network->library, network->library_path, sizeof network->library_path);
    drop(other == NULL ? status : other);
    return other == NULL ? NULL : status;
}

static OrtStatus *open_with(VipNetwork *network, const Settings *settings)
{
    TRY(load_either(network, settings));
#define LOOK_UP(name) \
    network->name = (__typeof__(&vip_##name))dlsym(network->library, "vip_" #name); \
    if (network->name == NULL) \
        return fail("anynpu: %s has no vip_" #name "\n  hint: the option library takes the path of libVIPlite.so", network->library_path);
    CALLS(LOOK_UP)
#undef LOOK_UP
    CHECKED(init, 0);
    network->started = true;
    network->count = 1;
    TRY(load_network(network, &network->contexts[0]));
    TRY(describe_all(network));
    return add_buffers(network, &network->contexts[0]);
}

OrtStatus *open_vip(const Settings *settings, const Source *source, Network **out)
{
    VipNetwork *network = calloc(1, sizeof *network);
    if (network == NULL)
        return no_memory();
    network->base.calls = &calls;
    network->source = source;
    network->priority = settings->priority;
    OrtStatus *status = open_with(network, settings);
    if (status != NULL)
        close_network(&network->base);
    else
        *out = &network->base;
    return status;
}
