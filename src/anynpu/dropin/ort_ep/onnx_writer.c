/* A graph of ONNX Runtime as the bytes of an ONNX model, in protobuf's wire format.
 *
 * Node N of the file is node N of Graph_GetNodes. Values carry the types and shapes that ONNX Runtime has inferred. Attributes that are graphs
 * are left out, and their nodes marked with the attribute anynpu.subgraph. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_writer.h"

enum { WIRE_VARINT = 0, WIRE_BYTES = 2, WIRE_FLOAT = 5 };
enum { MODEL_VERSION = 1, MODEL_GRAPH = 7, MODEL_OPSET = 8 };
enum { OPSET_DOMAIN = 1, OPSET_NUMBER = 2 };
enum { GRAPH_NODE = 1, GRAPH_NAME = 2, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT = 12, GRAPH_VALUE = 13 };
enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_TYPE = 4, NODE_ATTRIBUTE = 5, NODE_DOMAIN = 7 };
enum { TENSOR_DIMS = 1, TENSOR_TYPE = 2, TENSOR_NAME = 8, TENSOR_RAW = 9 };
enum { VALUE_NAME = 1, VALUE_TYPE = 2, TYPE_TENSOR = 1, ELEMENT_TYPE = 1, TENSOR_SHAPE = 2, SHAPE_DIM = 1, DIM_VALUE = 1, DIM_NAME = 2 };
enum { ATTRIBUTE_NAME = 1, VALUE_F = 2, VALUE_I = 3, VALUE_S = 4, VALUE_T = 5, VALUE_FLOATS = 7, VALUE_INTS = 8, VALUE_STRINGS = 9, KIND = 20 };
enum { KIND_FLOAT = 1, KIND_INT = 2, KIND_STRING = 3, KIND_TENSOR = 4, KIND_FLOATS = 6, KIND_INTS = 7, KIND_STRINGS = 8 };
enum { IR_VERSION = 10, MAX_VALUES = 4096 };

/* The initializers that are written already: a hash table of names. */
typedef struct {
    const char **names;
    size_t room, count;
} Names;

static void put_varint(Buffer *buffer, uint64_t value)
{
    uint8_t bytes[10];
    size_t size = 0;
    do {
        bytes[size] = (uint8_t)(value & 0x7f);
        value >>= 7;
        bytes[size++] |= value != 0 ? 0x80 : 0;
    } while (value != 0);
    put(buffer, bytes, size);
}

static void put_integer(Buffer *buffer, int field, int64_t value)
{
    put_varint(buffer, (uint64_t)field << 3 | WIRE_VARINT);
    put_varint(buffer, (uint64_t)value);
}

static void put_float(Buffer *buffer, int field, float value)
{
    put_varint(buffer, (uint64_t)field << 3 | WIRE_FLOAT);
    put(buffer, &value, sizeof value);
}

static void put_bytes(Buffer *buffer, int field, const void *data, size_t size)
{
    put_varint(buffer, (uint64_t)field << 3 | WIRE_BYTES);
    put_varint(buffer, size);
    put(buffer, data, size);
}

static void put_string(Buffer *buffer, int field, const char *text)
{
    put_bytes(buffer, field, text, strlen(text));
}

static void put_message(Buffer *buffer, int field, Buffer *message)
{
    put_bytes(buffer, field, message->data, message->size);
    buffer->failed = buffer->failed || message->failed;
    release(message);
}

static size_t slot_of(const Names *names, const char *name)
{
    uint64_t hash = 14695981039346656037u;
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (uint8_t)*at) * 1099511628211u;
    size_t slot = (size_t)hash & (names->room - 1);
    while (names->names[slot] != NULL && strcmp(names->names[slot], name) != 0)
        slot = (slot + 1) & (names->room - 1);
    return slot;
}

/* Adds a name; found states whether it was there. */
static OrtStatus *add_name(Names *names, const char *name, bool *found)
{
    if (2 * names->count >= names->room) {
        Names grown = {.room = names->room == 0 ? 256 : 2 * names->room, .count = names->count};
        if ((grown.names = calloc(grown.room, sizeof *grown.names)) == NULL)
            return no_memory();
        for (size_t index = 0; index < names->room; index++)
            if (names->names[index] != NULL)
                grown.names[slot_of(&grown, names->names[index])] = names->names[index];
        free(names->names);
        *names = grown;
    }
    size_t slot = slot_of(names, name);
    *found = names->names[slot] != NULL;
    if (!*found) {
        names->names[slot] = name; /* ONNX Runtime owns it, as long as the graph */
        names->count++;
    }
    return NULL;
}

static OrtStatus *put_tensor(Buffer *buffer, int field, const char *name, const OrtValue *value)
{
    OrtTensorTypeAndShapeInfo *info;
    OrtElementType type = 0;
    size_t rank = 0, bytes = 0;
    int64_t dims[64];
    const void *data = NULL;
    TRY(ort.GetTensorTypeAndShape(value, &info));
    OrtStatus *status = ort.GetTensorElementType(info, &type);
    if (status == NULL)
        status = ort.GetDimensionsCount(info, &rank);
    if (status == NULL && rank > sizeof dims / sizeof *dims)
        status = fail("anynpu: a constant has %zu dimensions", rank);
    if (status == NULL)
        status = ort.GetDimensions(info, dims, rank);
    ort.ReleaseTensorTypeAndShapeInfo(info);
    if (status == NULL && type != ELEMENT_STRING)
        status = ort.GetTensorSizeInBytes(value, &bytes);
    if (status == NULL && bytes > 0)
        status = ort.GetTensorData(value, &data);
    if (status != NULL)
        return status;
    Buffer tensor = {.data = NULL};
    for (size_t axis = 0; axis < rank; axis++)
        put_integer(&tensor, TENSOR_DIMS, dims[axis]);
    put_integer(&tensor, TENSOR_TYPE, type);
    put_string(&tensor, TENSOR_NAME, name);
    put_bytes(&tensor, TENSOR_RAW, data, bytes);
    put_message(buffer, field, &tensor);
    return NULL;
}

/* A value with its type and, for tensors, its shape. */
static OrtStatus *put_value(Buffer *buffer, int field, const OrtValueInfo *value)
{
    const char *name, *symbols[64];
    const OrtTypeInfo *type;
    const OrtTensorTypeAndShapeInfo *info = NULL;
    Buffer written = {.data = NULL}, kind = {.data = NULL}, tensor = {.data = NULL}, shape = {.data = NULL};
    TRY(ort.GetValueInfoName(value, &name));
    TRY(ort.GetValueInfoTypeInfo(value, &type));
    TRY(ort.CastTypeInfoToTensorInfo(type, &info));
    put_string(&written, VALUE_NAME, name);
    if (info != NULL) {
        OrtElementType element;
        size_t rank;
        int64_t dims[64];
        TRY(ort.GetTensorElementType(info, &element));
        TRY(ort.GetDimensionsCount(info, &rank));
        if (rank > sizeof dims / sizeof *dims)
            return fail("anynpu: %s has %zu dimensions", name, rank);
        TRY(ort.GetDimensions(info, dims, rank));
        TRY(ort.GetSymbolicDimensions(info, symbols, rank));
        put_integer(&tensor, ELEMENT_TYPE, element);
        for (size_t axis = 0; axis < rank; axis++) {
            Buffer dim = {.data = NULL};
            if (dims[axis] >= 0)
                put_integer(&dim, DIM_VALUE, dims[axis]);
            else
                put_string(&dim, DIM_NAME, symbols[axis]);
            put_message(&shape, SHAPE_DIM, &dim);
        }
        put_message(&tensor, TENSOR_SHAPE, &shape);
        put_message(&kind, TYPE_TENSOR, &tensor);
        put_message(&written, VALUE_TYPE, &kind);
    }
    put_message(buffer, field, &written);
    return NULL;
}

static void put_attribute_value(Buffer *written, OrtOpAttrType type, const char *data, size_t size)
{
    int64_t integer;
    float number;
    switch (type) {
    case ATTRIBUTE_INT:
        memcpy(&integer, data, sizeof integer);
        put_integer(written, VALUE_I, integer);
        put_integer(written, KIND, KIND_INT);
        break;
    case ATTRIBUTE_FLOAT:
        memcpy(&number, data, sizeof number);
        put_float(written, VALUE_F, number);
        put_integer(written, KIND, KIND_FLOAT);
        break;
    case ATTRIBUTE_INTS:
        for (size_t at = 0; at + sizeof integer <= size; at += sizeof integer) {
            memcpy(&integer, data + at, sizeof integer);
            put_integer(written, VALUE_INTS, integer);
        }
        put_integer(written, KIND, KIND_INTS);
        break;
    case ATTRIBUTE_FLOATS:
        for (size_t at = 0; at + sizeof number <= size; at += sizeof number) {
            memcpy(&number, data + at, sizeof number);
            put_float(written, VALUE_FLOATS, number);
        }
        put_integer(written, KIND, KIND_FLOATS);
        break;
    case ATTRIBUTE_STRING:
        put_bytes(written, VALUE_S, data, size);
        put_integer(written, KIND, KIND_STRING);
        break;
    default: /* strings, each with a NUL after it */
        for (size_t at = 0; at < size; at += strnlen(data + at, size - at) + 1)
            put_bytes(written, VALUE_STRINGS, data + at, strnlen(data + at, size - at));
        put_integer(written, KIND, KIND_STRINGS);
    }
}

static OrtStatus *put_attribute(Buffer *buffer, const OrtOpAttr *attribute)
{
    const char *name;
    OrtOpAttrType type;
    Buffer written = {.data = NULL};
    TRY(ort.OpAttr_GetName(attribute, &name));
    TRY(ort.OpAttr_GetType(attribute, &type));
    OrtStatus *status = NULL;
    if (type == ATTRIBUTE_GRAPH || type == ATTRIBUTE_UNDEFINED) {
        put_string(&written, ATTRIBUTE_NAME, "anynpu.subgraph");
        put_attribute_value(&written, ATTRIBUTE_STRING, name, strlen(name));
    } else if (type == ATTRIBUTE_TENSOR) {
        OrtValue *value;
        TRY(ort.OpAttr_GetTensorAttributeAsOrtValue(attribute, &value));
        put_string(&written, ATTRIBUTE_NAME, name);
        status = put_tensor(&written, VALUE_T, "", value);
        put_integer(&written, KIND, KIND_TENSOR);
        ort.ReleaseValue(value);
    } else {
        size_t size = 0, got = 0;
        drop(ort.ReadOpAttr(attribute, type, NULL, 0, &size)); /* fails, and gives the size */
        char *data = calloc(1, size < SIZE_MAX - 8 ? size + 8 : size);
        status = data == NULL ? no_memory() : size > 0 ? ort.ReadOpAttr(attribute, type, data, size, &got) : NULL;
        put_string(&written, ATTRIBUTE_NAME, name);
        if (status == NULL)
            put_attribute_value(&written, type, data, size);
        free(data);
    }
    put_message(buffer, NODE_ATTRIBUTE, &written);
    return status;
}

/* The names of a node's inputs; the constants among them go into the graph. */
static OrtStatus *put_inputs(Buffer *node, Buffer *graph, Names *constants, const OrtValueInfo *const *values, size_t count)
{
    for (size_t index = 0; index < count; index++) {
        const char *name = "";
        bool constant = false, known = false;
        const OrtValue *value;
        if (values[index] != NULL) {
            TRY(ort.GetValueInfoName(values[index], &name));
            TRY(ort.ValueInfo_IsConstantInitializer(values[index], &constant));
        }
        put_string(node, NODE_INPUT, name);
        if (constant)
            TRY(add_name(constants, name, &known));
        if (!constant || known)
            continue;
        TRY(ort.ValueInfo_GetInitializerValue(values[index], &value));
        TRY(put_tensor(graph, GRAPH_INITIALIZER, name, value));
    }
    return NULL;
}

static OrtStatus *put_outputs(Buffer *node, Buffer *graph, const OrtValueInfo *const *values, size_t count)
{
    for (size_t index = 0; index < count; index++) {
        const char *name = "";
        if (values[index] != NULL) {
            TRY(ort.GetValueInfoName(values[index], &name));
            TRY(put_value(graph, GRAPH_VALUE, values[index]));
        }
        put_string(node, NODE_OUTPUT, name);
    }
    return NULL;
}

static OrtStatus *put_parts_of_node(Buffer *written, Buffer *graph, Names *constants, const OrtNode *node, const void **list)
{
    size_t count;
    const char *text;
    TRY(ort.Node_GetNumInputs(node, &count));
    if (count > MAX_VALUES)
        return fail("anynpu: a node has %zu inputs", count);
    TRY(ort.Node_GetInputs(node, (const OrtValueInfo **)list, count));
    TRY(put_inputs(written, graph, constants, (const OrtValueInfo *const *)list, count));
    TRY(ort.Node_GetNumOutputs(node, &count));
    if (count > MAX_VALUES)
        return fail("anynpu: a node has %zu outputs", count);
    TRY(ort.Node_GetOutputs(node, (const OrtValueInfo **)list, count));
    TRY(put_outputs(written, graph, (const OrtValueInfo *const *)list, count));
    TRY(ort.Node_GetNumAttributes(node, &count));
    if (count > MAX_VALUES)
        return fail("anynpu: a node has %zu attributes", count);
    TRY(ort.Node_GetAttributes(node, (const OrtOpAttr **)list, count));
    for (size_t index = 0; index < count; index++)
        TRY(put_attribute(written, list[index]));
    TRY(ort.Node_GetName(node, &text));
    put_string(written, NODE_NAME, text);
    TRY(ort.Node_GetOperatorType(node, &text));
    put_string(written, NODE_TYPE, text);
    TRY(ort.Node_GetDomain(node, &text));
    put_string(written, NODE_DOMAIN, text);
    return NULL;
}

static OrtStatus *put_node(Buffer *graph, Names *constants, const OrtNode *node)
{
    const void **list = calloc(MAX_VALUES, sizeof *list);
    Buffer written = {.data = NULL};
    OrtStatus *status = list == NULL ? no_memory() : put_parts_of_node(&written, graph, constants, node, list);
    put_message(graph, GRAPH_NODE, &written);
    free(list);
    return status;
}

static OrtStatus *put_ends(Buffer *buffer, const OrtGraph *graph, bool is_input)
{
    size_t count;
    const OrtValueInfo *values[MAX_VALUES];
    TRY(is_input ? ort.Graph_GetNumInputs(graph, &count) : ort.Graph_GetNumOutputs(graph, &count));
    if (count > MAX_VALUES)
        return fail("anynpu: the graph has %zu %s", count, is_input ? "inputs" : "outputs");
    TRY(is_input ? ort.Graph_GetInputs(graph, values, count) : ort.Graph_GetOutputs(graph, values, count));
    for (size_t index = 0; index < count; index++) {
        bool constant = false;
        if (is_input)
            TRY(ort.ValueInfo_IsConstantInitializer(values[index], &constant));
        if (!constant)
            TRY(put_value(buffer, is_input ? GRAPH_INPUT : GRAPH_OUTPUT, values[index]));
    }
    return NULL;
}

static OrtStatus *put_opsets(Buffer *model, const OrtGraph *graph)
{
    size_t count;
    const char *domains[64];
    int64_t versions[64];
    TRY(ort.Graph_GetNumOperatorSets(graph, &count));
    if (count > sizeof domains / sizeof *domains)
        return fail("anynpu: the graph has %zu operator sets", count);
    TRY(ort.Graph_GetOperatorSets(graph, domains, versions, count));
    for (size_t index = 0; index < count; index++) {
        Buffer entry = {.data = NULL};
        put_string(&entry, OPSET_DOMAIN, domains[index]);
        put_integer(&entry, OPSET_NUMBER, versions[index]);
        put_message(model, MODEL_OPSET, &entry);
    }
    return NULL;
}

OrtStatus *write_onnx(const OrtGraph *graph, const OrtNode *const *nodes, size_t count, Buffer *model)
{
    Buffer written = {.data = NULL};
    Names constants = {.names = NULL};
    OrtStatus *status = NULL;
    for (size_t index = 0; index < count && status == NULL; index++)
        status = put_node(&written, &constants, nodes[index]);
    put_string(&written, GRAPH_NAME, "model");
    if (status == NULL)
        status = put_ends(&written, graph, true);
    if (status == NULL)
        status = put_ends(&written, graph, false);
    put_integer(model, MODEL_VERSION, IR_VERSION);
    put_message(model, MODEL_GRAPH, &written);
    if (status == NULL)
        status = put_opsets(model, graph);
    if (status == NULL && model->failed)
        status = no_memory();
    if (status == NULL && model->size > INT_MAX)
        status = fail("anynpu: the model has %zu bytes; an ONNX file holds at most 2 GB\n  hint: compile it with 'anynpu compile'", model->size);
    free(constants.names);
    return status;
}
