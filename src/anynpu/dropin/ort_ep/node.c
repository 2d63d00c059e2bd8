/* Nodes: a network, the tensors that ONNX Runtime passes to it, and the pool of its contexts. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "provider.h"

enum { UNUSED = MAX_PORTS };

/* One input or output of the kernel.
 *
 * port: its index in the network; UNUSED for an input that the network does not read */
typedef struct {
    size_t port;
    Tensor fixed; /* type, layout and, for networks without dynamic shapes, sizes; without its data */
} Binding;

struct Node {
    OrtNodeComputeInfo info;
    Network *network;
    Binding *inputs, *outputs;
    size_t input_count; /* of the kernel */
    sem_t free_count;
    uint64_t free_mask;
    uint32_t core_mask;
    unsigned generation; /* of the process that created the node */
};

static unsigned generation; /* counts forks on the way to this process */

static void count_fork(void)
{
    generation++;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

static int take_context(Node *node)
{
    while (sem_wait(&node->free_count) != 0)
        if (errno != EINTR)
            return -1;
    uint64_t mask = __atomic_load_n(&node->free_mask, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(&node->free_mask, &mask, mask & (mask - 1), 1, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
        ;
    return __builtin_ctzll(mask);
}

static void give_context(Node *node, int index)
{
    __atomic_fetch_or(&node->free_mask, (uint64_t)1 << index, __ATOMIC_RELEASE);
    sem_post(&node->free_count);
}

/* -- what the kernel is given */

static OrtStatus *read_shape(const OrtValue *value, Tensor *tensor)
{
    OrtTensorTypeAndShapeInfo *info;
    TRY(ort.GetTensorTypeAndShape(value, &info));
    OrtStatus *status = ort.GetDimensionsCount(info, &tensor->rank);
    if (status == NULL && tensor->rank > MAX_RANK)
        status = fail("anynpu: a tensor has %zu dimensions; at most %d are supported", tensor->rank, MAX_RANK);
    if (status == NULL)
        status = ort.GetDimensions(info, tensor->dims, tensor->rank);
    ort.ReleaseTensorTypeAndShapeInfo(info);
    return status;
}

static OrtStatus *size_tensor(Tensor *tensor, const char *name)
{
    if (!element_count(tensor->dims, tensor->rank, &tensor->count) || !byte_count(tensor->count, tensor->type, &tensor->bytes)
        || tensor->bytes > UINT32_MAX)
        return fail("anynpu: tensor %s is too large; at most 4 GB are supported", name);
    return NULL;
}

static OrtStatus *read_inputs(const Node *node, OrtKernelContext *kernel, Tensor *tensors)
{
    const Network *network = node->network;
    for (size_t index = 0; index < node->input_count; index++) {
        const Binding *binding = &node->inputs[index];
        if (binding->port == UNUSED)
            continue;
        const Port *port = &network->inputs[binding->port];
        Tensor *tensor = &tensors[binding->port];
        const OrtValue *value;
        size_t bytes;
        const void *data;
        *tensor = binding->fixed;
        TRY(ort.KernelContext_GetInput(kernel, index, &value));
        if (network->dynamic) {
            TRY(read_shape(value, tensor));
            TRY(size_tensor(tensor, port->name));
        }
        TRY(ort.GetTensorSizeInBytes(value, &bytes));
        if (bytes != tensor->bytes)
            return fail("anynpu: input %s has %zu bytes, the model takes %zu (%s)\n  hint: compile the model for this shape", port->name, bytes,
                        tensor->bytes, element_name(tensor->type));
        TRY(ort.GetTensorData(value, &data));
        tensor->data = (void *)data;
    }
    return NULL;
}

static OrtStatus *make_outputs(const Node *node, OrtKernelContext *kernel, const Port *ports, Tensor *tensors)
{
    for (size_t index = 0; index < node->network->output_count; index++) {
        const Binding *binding = &node->outputs[index];
        const Port *port = &ports[binding->port];
        Tensor *tensor = &tensors[binding->port];
        OrtValue *value;
        *tensor = binding->fixed;
        if (node->network->dynamic) {
            tensor->rank = port->rank;
            memcpy(tensor->dims, port->dims, sizeof tensor->dims);
            TRY(size_tensor(tensor, port->name));
        }
        TRY(ort.KernelContext_GetOutput(kernel, index, tensor->dims, tensor->rank, &value));
        TRY(ort.GetTensorMutableData(value, &tensor->data));
    }
    return NULL;
}

static OrtStatus *run_on(const Node *node, int context, OrtKernelContext *kernel, const Tensor *inputs)
{
    Network *network = node->network;
    Tensor outputs[MAX_PORTS];
    Port *ports = network->outputs;
    OrtStatus *status = NULL;
    if (network->dynamic) {
        ports = malloc((network->output_count + 1) * sizeof *ports);
        status = ports == NULL ? no_memory() : network->calls->set_shapes(network, context, inputs, ports);
    }
    if (status == NULL)
        status = make_outputs(node, kernel, ports, outputs);
    if (status == NULL)
        status = network->calls->run(network, context, __atomic_load_n(&node->core_mask, __ATOMIC_RELAXED), inputs, outputs);
    if (ports != network->outputs)
        free(ports);
    return status;
}

static OrtStatus *compute(OrtNodeComputeInfo *self, void *state, OrtKernelContext *kernel)
{
    (void)state;
    Node *node = (Node *)self;
    Tensor inputs[MAX_PORTS];
    if (node->generation != generation)
        return fail("anynpu: the session was created before fork() and cannot run in the child process\n"
                    "  hint: create the session in the child, or start processes with the method 'spawn'");
    TRY(read_inputs(node, kernel, inputs));
    int context = take_context(node);
    if (context < 0)
        return fail("anynpu: waiting for an NPU context failed");
    OrtStatus *status = run_on(node, context, kernel, inputs);
    give_context(node, context);
    return status;
}

static OrtStatus *create_state(OrtNodeComputeInfo *self, OrtNodeComputeContext *context, void **state)
{
    (void)context;
    *state = self;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *self, void *state)
{
    (void)self;
    (void)state;
}

/* -- attributes */

OrtStatus *read_string(const OrtNode *node, const char *name, char **text, size_t *length)
{
    const OrtOpAttr *attribute = NULL;
    *text = NULL;
    *length = 0;
    OrtStatus *status = ort.Node_GetAttributeByName(node, name, &attribute);
    if (status != NULL || attribute == NULL) {
        drop(status);
        return NULL;
    }
    size_t size = 0, total;
    drop(ort.ReadOpAttr(attribute, ATTRIBUTE_STRING, NULL, 0, &size)); /* fails, and gives the size */
    if (__builtin_add_overflow(size, (size_t)1, &total) || (*text = malloc(total)) == NULL)
        return no_memory();
    status = size == 0 ? NULL : ort.ReadOpAttr(attribute, ATTRIBUTE_STRING, *text, size, length);
    (*text)[*length] = '\0';
    if (status != NULL) {
        free(*text);
        *text = NULL;
    }
    return status;
}

OrtStatus *read_floats(const OrtNode *node, const char *name, float **numbers, size_t *count)
{
    const OrtOpAttr *attribute = NULL;
    *numbers = NULL;
    *count = 0;
    OrtStatus *status = ort.Node_GetAttributeByName(node, name, &attribute);
    if (status != NULL || attribute == NULL) {
        drop(status);
        return NULL;
    }
    size_t size = 0;
    drop(ort.ReadOpAttr(attribute, ATTRIBUTE_FLOATS, NULL, 0, &size)); /* fails, and gives the size */
    if (size < sizeof **numbers)
        return NULL;
    *numbers = malloc(size);
    status = *numbers == NULL ? no_memory() : ort.ReadOpAttr(attribute, ATTRIBUTE_FLOATS, *numbers, size, &size);
    *count = size / sizeof **numbers;
    if (status != NULL) {
        free(*numbers);
        *numbers = NULL;
    }
    return status;
}

/* -- making a node */

/* Name, element type and shape of a value of the graph. Dynamic dimensions are -1. */
static OrtStatus *read_value(const OrtValueInfo *value, const char **name, Tensor *tensor)
{
    const OrtTypeInfo *type;
    const OrtTensorTypeAndShapeInfo *info = NULL;
    TRY(ort.GetValueInfoName(value, name));
    TRY(ort.GetValueInfoTypeInfo(value, &type));
    TRY(ort.CastTypeInfoToTensorInfo(type, &info));
    if (info == NULL)
        return fail("anynpu: %s is not a tensor", *name);
    TRY(ort.GetTensorElementType(info, &tensor->type));
    TRY(ort.GetDimensionsCount(info, &tensor->rank));
    if (tensor->rank > MAX_RANK)
        return fail("anynpu: %s has %zu dimensions; at most %d are supported", *name, tensor->rank, MAX_RANK);
    return ort.GetDimensions(info, tensor->dims, tensor->rank);
}

/* Whether the dimensions that the model declares can be those of a port, read in this order of axes. */
static bool fits(const Tensor *declared, const Port *port, bool nhwc)
{
    static const size_t nhwc_axis[] = {0, 2, 3, 1};
    if (declared->rank != port->rank)
        return false;
    for (size_t axis = 0; axis < port->rank; axis++) {
        int64_t wanted = declared->dims[axis], given = port->dims[nhwc ? nhwc_axis[axis] : axis];
        if (wanted >= 0 && wanted != given)
            return false;
    }
    return true;
}

static void write_dims(const int64_t *dims, size_t rank, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t axis = 0; axis < rank && used + 24 < size; axis++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", axis ? "x" : "", (long long)dims[axis]);
}

/* layout: 'H' for NHWC, 'Q' for quantized values, 'C' for real values in the order of ONNX */
static OrtStatus *bind(const Node *node, const OrtValueInfo *value, bool is_input, size_t place, char layout, bool own_part, Binding *binding)
{
    const Network *network = node->network;
    const Port *ports = is_input ? network->inputs : network->outputs;
    size_t count = is_input ? network->input_count : network->output_count;
    const char *name, *kind = is_input ? "input" : "output";
    Tensor *fixed = &binding->fixed;
    TRY(read_value(value, &name, fixed));
    binding->port = own_part ? UNUSED : place;
    for (size_t index = 0; index < count; index++)
        if (strcmp(ports[index].name, name) == 0)
            binding->port = index;
    if (binding->port == UNUSED && is_input)
        return NULL; /* only its shape is read, which is known */
    if (binding->port == UNUSED)
        return fail("anynpu: the compiled part has no output %s\n  hint: remove the folder of compiled models and report this", name);
    const Port *port = &ports[binding->port];
    bool nchw = fits(fixed, port, false), nhwc = port->image && fits(fixed, port, true);
    if (!network->dynamic && !nchw && !nhwc) {
        char declared[256], own[256];
        write_dims(fixed->dims, fixed->rank, declared, sizeof declared);
        write_dims(port->dims, port->rank, own, sizeof own);
        return fail("anynpu: %s %s is declared as %s, the compiled model has %s\n  hint: write the EPContext model with 'anynpu ort wrap'", kind,
                    name, declared, own);
    }
    fixed->nhwc = nhwc && (layout == 'H' || !nchw);
    fixed->raw = layout == 'Q';
    if (element_size(fixed->type) == 0)
        return fail("anynpu: %s %s is of type %s, which the NPU does not take", kind, name, element_name(fixed->type));
    if (!is_input && fixed->type != ELEMENT_FLOAT && fixed->type != port->type)
        return fail("anynpu: output %s is declared as %s; the compiled model gives %s or float32\n"
                    "  hint: write the EPContext model with 'anynpu ort wrap'", name, element_name(fixed->type), element_name(port->type));
    if (!network->dynamic) {
        fixed->rank = port->rank;
        static const size_t nhwc_axis[] = {0, 2, 3, 1};
        for (size_t axis = 0; axis < port->rank; axis++)
            fixed->dims[axis] = port->dims[fixed->nhwc ? nhwc_axis[axis] : axis];
        TRY(size_tensor(fixed, name));
    }
    return NULL;
}

/* Mean and standard deviation of an input, which VIPLite does not apply. */
static OrtStatus *read_normalization(const OrtNode *context, size_t place, const Port *port, Normalization *out)
{
    char mean[32], std[32];
    size_t means, stds;
    snprintf(mean, sizeof mean, "input_mean_%zu", place);
    snprintf(std, sizeof std, "input_std_%zu", place);
    TRY(read_floats(context, mean, &out->mean, &means));
    TRY(read_floats(context, std, &out->std, &stds));
    out->count = means;
    bool fits_channels = means <= 1 || (port->rank >= 2 && (int64_t)means == port->dims[1]);
    if (means != stds || !fits_channels)
        return fail("anynpu: input %s has %zu means and %zu standard deviations\n  hint: write the EPContext model with 'anynpu ort wrap'",
                    port->name, means, stds);
    return NULL;
}

static OrtStatus *bind_all(Node *node, const OrtNode *fused, bool is_input, const OrtNode *context, const char *layouts)
{
    bool own_part = context == NULL;
    size_t expected = is_input ? node->network->input_count : node->network->output_count, count;
    TRY(is_input ? ort.Node_GetNumInputs(fused, &count) : ort.Node_GetNumOutputs(fused, &count));
    if (own_part ? count < expected || count > MAX_PORTS : count != expected)
        return fail("anynpu: the ONNX node has %zu %s, the compiled model %zu\n  hint: write the EPContext model with 'anynpu ort wrap'", count,
                    is_input ? "inputs" : "outputs", expected);
    const OrtValueInfo *values[MAX_PORTS];
    Binding *bindings = calloc(count + 1, sizeof *bindings);
    if (bindings == NULL)
        return no_memory();
    if (is_input) {
        node->inputs = bindings;
        node->input_count = count;
    } else {
        node->outputs = bindings;
    }
    size_t letters = layouts != NULL ? strlen(layouts) : 0;
    TRY(is_input ? ort.Node_GetInputs(fused, values, count) : ort.Node_GetOutputs(fused, values, count));
    uint8_t used[MAX_PORTS] = {0};
    for (size_t index = 0; index < count; index++) {
        TRY(bind(node, values[index], is_input, index, index < letters ? layouts[index] : 'C', own_part, &bindings[index]));
        if (is_input && !own_part)
            TRY(read_normalization(context, index, &node->network->inputs[bindings[index].port], &bindings[index].fixed.normalization));
        if (bindings[index].port != UNUSED && used[bindings[index].port]++)
            return fail("anynpu: two %s of the ONNX node belong to %s of the compiled model", is_input ? "inputs" : "outputs",
                        (is_input ? node->network->inputs : node->network->outputs)[bindings[index].port].name);
    }
    for (size_t port = 0; port < expected; port++)
        if (!used[port])
            return fail("anynpu: no %s of the ONNX node belongs to %s of the compiled model", is_input ? "input" : "output",
                        (is_input ? node->network->inputs : node->network->outputs)[port].name);
    return NULL;
}

static OrtStatus *add_contexts(Node *node, const Settings *settings, const char *chip)
{
    /* the vendor's library does not duplicate contexts with dynamic shapes */
    int wanted = settings->contexts > 0 ? settings->contexts : node->network->dynamic ? 1 : cores_of(chip);
    int count = 1;
    for (; count < wanted; count++) {
        OrtStatus *status = node->network->calls->add_context(node->network, count);
        if (status != NULL && settings->contexts > 0)
            return status; /* the number was asked for */
        if (status != NULL) {
            drop(status);
            break;
        }
    }
    node->free_mask = count == 64 ? UINT64_MAX : ((uint64_t)1 << count) - 1;
    return sem_init(&node->free_count, 0, (unsigned)count) == 0 ? NULL : fail("anynpu: a semaphore cannot be created");
}

/* Whether an input is declared with a dynamic shape. */
static OrtStatus *declares_dynamic(const OrtNode *fused, bool *dynamic)
{
    const OrtValueInfo *values[MAX_PORTS];
    size_t count, elements;
    *dynamic = false;
    TRY(ort.Node_GetNumInputs(fused, &count));
    if (count > MAX_PORTS)
        return fail("anynpu: a node has %zu inputs; at most %d are supported", count, MAX_PORTS);
    TRY(ort.Node_GetInputs(fused, values, count));
    for (size_t index = 0; index < count; index++) {
        const char *name;
        Tensor declared;
        TRY(read_value(values[index], &name, &declared));
        *dynamic = *dynamic || !element_count(declared.dims, declared.rank, &elements);
    }
    return NULL;
}

/* Allwinner's models run on VIPLite: by the chip, or by the first bytes of a vendor's file that names none. */
static bool is_vip(const Source *source)
{
    char head[4] = "";
    if (source->chip[0] != '\0')
        return strncmp(source->chip, "rk", 2) != 0 && strncmp(source->chip, "rv", 2) != 0;
    if (source->data != NULL) {
        memcpy(head, source->data, source->size < sizeof head ? source->size : sizeof head);
    } else {
        FILE *file = fopen(source->path, "rbe");
        if (file != NULL && fread(head, 1, sizeof head, file) != sizeof head)
            head[0] = '\0';
        if (file != NULL)
            fclose(file);
    }
    return memcmp(head, "VPMN", sizeof head) == 0;
}

static OrtStatus *open_node(Node *node, const Settings *settings, Source *source, const OrtNode *fused, const OrtNode *context)
{
    char *layouts = NULL;
    size_t ignored;
    if (context != NULL)
        TRY(declares_dynamic(fused, &source->dynamic));
    TRY(is_vip(source) ? open_vip(settings, source, &node->network) : open_rknn(settings, source, &node->network));
    if (context != NULL)
        TRY(read_string(context, "input_layouts", &layouts, &ignored));
    OrtStatus *status = bind_all(node, fused, true, context, layouts);
    free(layouts);
    if (status == NULL)
        status = bind_all(node, fused, false, context, NULL);
    return status != NULL ? status : add_contexts(node, settings, source->chip);
}

OrtStatus *make_node(const Settings *settings, Source *source, const OrtNode *fused, const OrtNode *context, Node **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    Node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return no_memory();
    node->info = (OrtNodeComputeInfo){
        .ort_version_supported = ORT_VERSION_USED, .CreateState = create_state, .Compute = compute, .ReleaseState = release_state};
    node->core_mask = settings->core_mask;
    node->generation = generation;
    OrtStatus *status = open_node(node, settings, source, fused, context);
    if (status != NULL)
        free_node(node);
    else
        *out = node;
    return status;
}

void free_node(Node *node)
{
    /* in a forked child the contexts are the parent's */
    if (node->network != NULL && node->generation == generation)
        node->network->calls->close(node->network);
    for (size_t index = 0; node->inputs != NULL && index < node->input_count; index++) {
        free(node->inputs[index].fixed.normalization.mean);
        free(node->inputs[index].fixed.normalization.std);
    }
    free(node->inputs);
    free(node->outputs);
    free(node);
}

OrtNodeComputeInfo *node_compute_info(Node *node)
{
    return &node->info;
}

Node *node_of(OrtNodeComputeInfo *info)
{
    return (Node *)info;
}

void set_core_mask(Node *node, uint32_t mask)
{
    __atomic_store_n(&node->core_mask, mask, __ATOMIC_RELAXED);
}
