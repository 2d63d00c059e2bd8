/* Networks on the RKNN calls: the vendor's librknnrt.so or the drop-in library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../rknn/abi.h"
#include "provider.h"

#define REQUIRED(each) \
    each(init) each(destroy) each(query) each(inputs_set) each(run) each(outputs_get) each(outputs_release)
#define OPTIONAL(each) \
    each(dup_context) each(set_core_mask) each(set_input_shapes) each(create_mem_from_fd) each(set_io_mem) each(destroy_mem)

/* Shared memory that a context uses for one input or output.
 *
 * region, offset: where it lies
 * rejected: the library does not take memory for this port; the ordinary calls do */
typedef struct {
    rknn_tensor_mem *memory;
    uint64_t region;
    size_t offset;
    bool rejected;
} Bound;

/* A context for tensors in shared memory; the vendor's library does not take both kinds of calls on one. */
typedef struct {
    rknn_context context;
    uint32_t mask;
    Bound *ports; /* inputs, then outputs */
} InPlace;

typedef struct {
    Network base;
#define MEMBER(name) __typeof__(&rknn_##name) name;
    REQUIRED(MEMBER)
    OPTIONAL(MEMBER)
#undef MEMBER
    void *library;
    char library_path[PATH_SIZE];
    rknn_tensor_attr *inputs, *outputs;
    rknn_context contexts[MAX_CONTEXTS];
    uint32_t masks[MAX_CONTEXTS];
    InPlace *in_place[MAX_CONTEXTS]; /* null until a run needs it */
    int count;
} RknnNetwork;

static const struct {
    int code;
    const char *name, *hint;
} codes[] = {
    {RKNN_ERR_FAIL, "RKNN_ERR_FAIL", "see the log of the runtime (RKNN_LOG_LEVEL=4)"},
    {RKNN_ERR_TIMEOUT, "RKNN_ERR_TIMEOUT", "the NPU did not finish in time; see dmesg"},
    {RKNN_ERR_DEVICE_UNAVAILABLE, "RKNN_ERR_DEVICE_UNAVAILABLE", "the driver is not loaded, or /dev/dri and /dev/rknpu are not accessible"},
    {RKNN_ERR_MALLOC_FAIL, "RKNN_ERR_MALLOC_FAIL", "set the option contexts to a smaller number, or free memory"},
    {RKNN_ERR_PARAM_INVALID, "RKNN_ERR_PARAM_INVALID", "the runtime does not support an option of the session, such as core_mask"},
    {RKNN_ERR_MODEL_INVALID, "RKNN_ERR_MODEL_INVALID", "the model is damaged, or the runtime is older than the toolkit that built it; 'anynpu inspect' shows both"},
    {RKNN_ERR_CTX_INVALID, "RKNN_ERR_CTX_INVALID", "create the session in the process that runs it"},
    {RKNN_ERR_INPUT_INVALID, "RKNN_ERR_INPUT_INVALID", "compare the type and shape of the inputs with session.get_inputs()"},
    {RKNN_ERR_OUTPUT_INVALID, "RKNN_ERR_OUTPUT_INVALID", "compare the types of the outputs with session.get_outputs()"},
    {RKNN_ERR_DEVICE_UNMATCH, "RKNN_ERR_DEVICE_UNMATCH", "update the driver and the runtime to the same release"},
    {RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL, "RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL", "build the model again for this chip"},
    {RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION, "RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION", "update the runtime"},
    {RKNN_ERR_TARGET_PLATFORM_UNMATCH, "RKNN_ERR_TARGET_PLATFORM_UNMATCH", "the model was compiled for another chip: compile it for this one"},
};

/* hint: null for the one that belongs to the code */
static OrtStatus *failed(const RknnNetwork *network, const char *call, int code, const char *own_hint)
{
    const char *name = "unknown error", *hint = "see the log of the runtime";
    for (size_t index = 0; index < sizeof codes / sizeof *codes; index++)
        if (codes[index].code == code) {
            name = codes[index].name;
            hint = codes[index].hint;
        }
    return fail("anynpu: rknn_%s returned %s (%d), library %s\n  hint: %s", call, name, code, network->library_path,
                own_hint != NULL ? own_hint : hint);
}

#define CHECKED(call, ...) \
    do { \
        int checked_code = network->call(__VA_ARGS__); \
        if (checked_code != RKNN_SUCC) \
            return failed(network, #call, checked_code, NULL); \
    } while (0)

static const struct {
    rknn_tensor_type rknn;
    OrtElementType element;
} types[] = {
    {RKNN_TENSOR_FLOAT32, ELEMENT_FLOAT}, {RKNN_TENSOR_FLOAT16, ELEMENT_FLOAT16}, {RKNN_TENSOR_INT8, ELEMENT_INT8},
    {RKNN_TENSOR_UINT8, ELEMENT_UINT8},   {RKNN_TENSOR_INT16, ELEMENT_INT16},     {RKNN_TENSOR_UINT16, ELEMENT_UINT16},
    {RKNN_TENSOR_INT32, ELEMENT_INT32},   {RKNN_TENSOR_UINT32, ELEMENT_UINT32},   {RKNN_TENSOR_INT64, ELEMENT_INT64},
    {RKNN_TENSOR_BOOL, ELEMENT_BOOL},     {RKNN_TENSOR_BFLOAT16, ELEMENT_BFLOAT16},
};

static OrtElementType element_of(rknn_tensor_type type)
{
    for (size_t index = 0; index < sizeof types / sizeof *types; index++)
        if (types[index].rknn == type)
            return types[index].element;
    return 0;
}

static rknn_tensor_type rknn_of(OrtElementType type)
{
    for (size_t index = 0; index < sizeof types / sizeof *types; index++)
        if (types[index].element == type)
            return types[index].rknn;
    return RKNN_TENSOR_TYPE_MAX;
}

static void describe(const rknn_tensor_attr *attr, Port *port)
{
    snprintf(port->name, sizeof port->name, "%.*s", (int)sizeof attr->name, attr->name);
    port->rank = attr->n_dims < MAX_RANK ? attr->n_dims : MAX_RANK;
    port->type = element_of(attr->type);
    port->image = attr->n_dims == 4 && attr->fmt == RKNN_TENSOR_NHWC;
    for (size_t axis = 0; axis < port->rank; axis++) {
        static const size_t nhwc_axis[] = {0, 3, 1, 2};
        port->dims[axis] = attr->dims[port->image ? nhwc_axis[axis] : axis];
    }
}

static OrtStatus *query_ports(RknnNetwork *network)
{
    rknn_input_output_num count;
    CHECKED(query, network->contexts[0], RKNN_QUERY_IN_OUT_NUM, &count, sizeof count);
    if (count.n_input > MAX_PORTS || count.n_output > MAX_PORTS)
        return fail("anynpu: the model has %u inputs and %u outputs; at most %d are supported", count.n_input, count.n_output, MAX_PORTS);
    Network *base = &network->base;
    base->inputs = calloc(count.n_input + 1, sizeof(Port));
    base->outputs = calloc(count.n_output + 1, sizeof(Port));
    network->inputs = calloc(count.n_input + 1, sizeof(rknn_tensor_attr));
    network->outputs = calloc(count.n_output + 1, sizeof(rknn_tensor_attr));
    if (base->inputs == NULL || base->outputs == NULL || network->inputs == NULL || network->outputs == NULL)
        return no_memory();
    base->input_count = count.n_input;
    base->output_count = count.n_output;
    for (uint32_t index = 0; index < count.n_input; index++) {
        network->inputs[index].index = index;
        CHECKED(query, network->contexts[0], RKNN_QUERY_INPUT_ATTR, &network->inputs[index], sizeof(rknn_tensor_attr));
        describe(&network->inputs[index], &base->inputs[index]);
    }
    for (uint32_t index = 0; index < count.n_output; index++) {
        network->outputs[index].index = index;
        CHECKED(query, network->contexts[0], RKNN_QUERY_OUTPUT_ATTR, &network->outputs[index], sizeof(rknn_tensor_attr));
        describe(&network->outputs[index], &base->outputs[index]);
    }
    return NULL;
}

/* Whether the model was compiled for several sets of shapes. Runtimes log an error for the others, so they are not asked. */
static OrtStatus *query_shapes(RknnNetwork *network, bool declared)
{
    if (!declared)
        return NULL;
    rknn_input_range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return no_memory();
    int code = network->query(network->contexts[0], RKNN_QUERY_INPUT_DYNAMIC_RANGE, range, sizeof *range);
    network->base.dynamic = code == RKNN_SUCC && range->shape_number > 1 && network->set_input_shapes != NULL;
    free(range);
    return NULL;
}

static OrtStatus *add_context(Network *base, int index)
{
    RknnNetwork *network = (RknnNetwork *)base;
    if (network->dup_context == NULL)
        return fail("anynpu: %s has no rknn_dup_context\n  hint: set the option contexts to 1", network->library_path);
    CHECKED(dup_context, &network->contexts[0], &network->contexts[index]);
    network->count = index + 1;
    return NULL;
}

static OrtStatus *set_shapes(Network *base, int index, const Tensor *inputs, Port *outputs)
{
    RknnNetwork *network = (RknnNetwork *)base;
    rknn_tensor_attr *attrs = calloc(base->input_count + 1, sizeof *attrs);
    if (attrs == NULL)
        return no_memory();
    for (size_t number = 0; number < base->input_count; number++) {
        rknn_tensor_attr *attr = &attrs[number];
        const Tensor *input = &inputs[number];
        *attr = network->inputs[number];
        attr->n_dims = (uint32_t)input->rank;
        for (size_t axis = 0; axis < input->rank; axis++) {
            static const size_t nchw_axis[] = {0, 2, 3, 1};
            bool reorder = base->inputs[number].image && !input->nhwc;
            attr->dims[axis] = (uint32_t)input->dims[reorder ? nchw_axis[axis] : axis];
        }
    }
    int code = network->set_input_shapes(network->contexts[index], (uint32_t)base->input_count, attrs);
    free(attrs);
    if (code != RKNN_SUCC)
        return failed(network, "set_input_shapes", code, "the model was not compiled for these shapes: add them to the option shape");
    for (uint32_t number = 0; number < base->output_count; number++) {
        rknn_tensor_attr attr = {.index = number};
        CHECKED(query, network->contexts[index], RKNN_QUERY_CURRENT_OUTPUT_ATTR, &attr, sizeof attr);
        describe(&attr, &outputs[number]);
    }
    return NULL;
}

/* -- tensors in shared memory */

static OrtStatus *use_mask(const RknnNetwork *network, rknn_context context, uint32_t *mask, uint32_t wanted)
{
    if (*mask != wanted && network->set_core_mask != NULL) {
        CHECKED(set_core_mask, context, (rknn_core_mask)wanted);
        *mask = wanted;
    }
    return NULL;
}

/* Whether the library reads or writes a tensor as it lies: images in NHWC without padding, outputs in the order of ONNX. */
static bool lies_right(const Port *port, const rknn_tensor_attr *attr, const Tensor *tensor, bool is_input)
{
    bool padded = attr->w_stride != 0 && attr->n_dims == 4 && attr->w_stride != attr->dims[attr->fmt == RKNN_TENSOR_NHWC ? 2 : 3];
    return is_input ? !padded && (port->rank != 4 || tensor->nhwc) : !tensor->nhwc;
}

static rknn_tensor_format format_of(const Port *port, const Tensor *tensor)
{
    return port->rank != 4 ? RKNN_TENSOR_UNDEFINED : tensor->nhwc ? RKNN_TENSOR_NHWC : RKNN_TENSOR_NCHW;
}

/* Let a port use the memory in which its tensor lies; false if the library does not take it. */
static bool use_memory(
    const RknnNetwork *network, rknn_context context, Bound *bound, const Port *port, const rknn_tensor_attr *known, const Tensor *tensor,
    const SharedPlace *place)
{
    if (bound->rejected || (bound->memory != NULL && bound->region == place->region && bound->offset == place->offset))
        return !bound->rejected;
    uint64_t end = place->offset + tensor->bytes; /* of memory that exists */
    rknn_tensor_mem *memory = end > INT32_MAX ? NULL : network->create_mem_from_fd(
        context, place->descriptor, place->base, (uint32_t)tensor->bytes, (int32_t)place->offset);
    rknn_tensor_attr attr = *known;
    attr.type = rknn_of(tensor->type);
    attr.fmt = format_of(port, tensor);
    attr.size = (uint32_t)tensor->bytes;
    attr.pass_through = 0;
    bool taken = memory != NULL && network->set_io_mem(context, memory, &attr) == RKNN_SUCC;
    rknn_tensor_mem *old = taken ? bound->memory : memory;
    if (old != NULL)
        network->destroy_mem(context, old);
    if (taken)
        *bound = (Bound){.memory = memory, .region = place->region, .offset = place->offset};
    else
        bound->rejected = true;
    return taken;
}

static InPlace *make_in_place(RknnNetwork *network)
{
    InPlace *made = calloc(1, sizeof *made);
    Bound *ports = calloc(network->base.input_count + network->base.output_count + 1, sizeof *ports);
    if (made == NULL || ports == NULL || network->dup_context(&network->contexts[0], &made->context) != RKNN_SUCC) {
        free(made);
        free(ports);
        return NULL;
    }
    made->ports = ports;
    return made;
}

/* Run on tensors that all lie in shared memory; done is false where that is not so, or the library does not take it. */
static OrtStatus *run_in_place(
    RknnNetwork *network, int index, uint32_t core_mask, const Tensor *inputs, const Tensor *outputs, bool *done)
{
    const Network *base = &network->base;
    size_t count = base->input_count + base->output_count;
    SharedPlace places[2 * MAX_PORTS];
    *done = false;
    if (base->dynamic || network->dup_context == NULL || network->create_mem_from_fd == NULL || network->set_io_mem == NULL
        || network->destroy_mem == NULL)
        return NULL;
    for (size_t number = 0; number < count; number++) {
        bool is_input = number < base->input_count;
        size_t place = is_input ? number : number - base->input_count;
        const Tensor *tensor = is_input ? &inputs[place] : &outputs[place];
        const Port *port = is_input ? &base->inputs[place] : &base->outputs[place];
        if (!find_shared(tensor, &places[number])
            || !lies_right(port, is_input ? &network->inputs[place] : &network->outputs[place], tensor, is_input))
            return NULL;
    }
    if (network->in_place[index] == NULL && (network->in_place[index] = make_in_place(network)) == NULL)
        return NULL;
    InPlace *own = network->in_place[index];
    for (size_t number = 0; number < count; number++) {
        bool is_input = number < base->input_count;
        size_t place = is_input ? number : number - base->input_count;
        if (!use_memory(network, own->context, &own->ports[number], is_input ? &base->inputs[place] : &base->outputs[place],
                        is_input ? &network->inputs[place] : &network->outputs[place], is_input ? &inputs[place] : &outputs[place],
                        &places[number]))
            return NULL;
    }
    TRY(use_mask(network, own->context, &own->mask, core_mask));
    CHECKED(run, own->context, NULL);
    *done = true;
    return NULL;
}

static void close_in_place(RknnNetwork *network, InPlace *own)
{
    for (size_t number = 0; number < network->base.input_count + network->base.output_count; number++)
        if (own->ports[number].memory != NULL)
            network->destroy_mem(own->context, own->ports[number].memory);
    network->destroy(own->context);
    free(own->ports);
    free(own);
}

static OrtStatus *run(Network *base, int index, uint32_t core_mask, const Tensor *inputs, const Tensor *outputs)
{
    RknnNetwork *network = (RknnNetwork *)base;
    rknn_context context = network->contexts[index];
    rknn_input fed[MAX_PORTS];
    rknn_output got[MAX_PORTS];
    bool done;
    TRY(run_in_place(network, index, core_mask, inputs, outputs, &done));
    if (done)
        return NULL;
    TRY(use_mask(network, context, &network->masks[index], core_mask));
    for (uint32_t number = 0; number < base->input_count; number++) {
        const Tensor *input = &inputs[number];
        fed[number] = (rknn_input){.index = number,
                                   .buf = input->data,
                                   .size = (uint32_t)input->bytes,
                                   .type = rknn_of(input->type),
                                   .fmt = format_of(&base->inputs[number], input)};
    }
    CHECKED(inputs_set, context, (uint32_t)base->input_count, fed);
    CHECKED(run, context, NULL);
    for (uint32_t number = 0; number < base->output_count; number++) {
        const Tensor *output = &outputs[number];
        bool want_float = output->type == ELEMENT_FLOAT;
        got[number] = (rknn_output){
            .index = number, .want_float = want_float, .is_prealloc = 1, .buf = output->data, .size = (uint32_t)output->bytes};
    }
    CHECKED(outputs_get, context, (uint32_t)base->output_count, got, NULL);
    CHECKED(outputs_release, context, (uint32_t)base->output_count, got);
    return NULL;
}

static void close_network(Network *base)
{
    RknnNetwork *network = (RknnNetwork *)base;
    for (int index = network->count - 1; index >= 0; index--) {
        if (network->in_place[index] != NULL)
            close_in_place(network, network->in_place[index]);
        network->destroy(network->contexts[index]);
    }
    free(base->inputs);
    free(base->outputs);
    free(network->inputs);
    free(network->outputs);
    free(network); /* the library stays loaded: it may have started threads */
}

static const NetworkCalls calls = {.add_context = add_context, .set_shapes = set_shapes, .run = run, .close = close_network};

static OrtStatus *open_with(RknnNetwork *network, const Settings *settings, const Source *source)
{
    TRY(load_library(settings, "librknnrt.so", &network->library, network->library_path, sizeof network->library_path));
#define LOOK_UP(name) network->name = (__typeof__(&rknn_##name))dlsym(network->library, "rknn_" #name);
    REQUIRED(LOOK_UP)
    OPTIONAL(LOOK_UP)
#undef LOOK_UP
#define CHECK(name) \
    if (network->name == NULL) \
        return fail("anynpu: %s has no rknn_" #name "\n  hint: the option library takes the path of librknnrt.so", network->library_path);
    REQUIRED(CHECK)
#undef CHECK
    if (source->size > UINT32_MAX)
        return fail("anynpu: the model has %zu bytes; rknn_init takes at most 4 GB", source->size);
    void *model = source->data != NULL ? (void *)source->data : (void *)source->path;
    uint32_t size = source->data != NULL ? (uint32_t)source->size : 0;
    CHECKED(init, &network->contexts[0], model, size, settings->priority > 0 ? (uint32_t)settings->priority : 0, NULL);
    network->count = 1;
    TRY(query_ports(network));
    return query_shapes(network, source->dynamic);
}

OrtStatus *open_rknn(const Settings *settings, const Source *source, Network **out)
{
    RknnNetwork *network = calloc(1, sizeof *network);
    if (network == NULL)
        return no_memory();
    network->base.calls = &calls;
    OrtStatus *status = open_with(network, settings, source);
    if (status != NULL)
        close_network(&network->base);
    else
        *out = &network->base;
    return status;
}
