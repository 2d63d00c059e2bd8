/* ONNX Runtime's tables, errors, log lines, and the arithmetic of tensor sizes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "provider.h"

OrtApi ort;
OrtEpApi ort_ep;
OrtModelEditorApi ort_editor;

static OrtStatus *fail_as(OrtErrorCode code, const char *format, va_list arguments)
{
    char text[4096];
    vsnprintf(text, sizeof text, format, arguments);
    return ort.CreateStatus(code, text);
}

OrtStatus *fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    OrtStatus *status = fail_as(ORT_FAIL, format, arguments);
    va_end(arguments);
    return status;
}

OrtStatus *fail_with(OrtErrorCode code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    OrtStatus *status = fail_as(code, format, arguments);
    va_end(arguments);
    return status;
}

OrtStatus *no_memory(void)
{
    return fail("anynpu: out of memory");
}

void drop(OrtStatus *status)
{
    if (status != NULL)
        ort.ReleaseStatus(status);
}

void logged(const OrtLogger *logger, OrtLogLevel level, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (logger != NULL)
        drop(ort.Logger_LogMessage(logger, level, text, "anynpu", 0, PROVIDER_NAME));
}

static const struct {
    OrtElementType type;
    size_t size;
    const char *name;
} elements[] = {
    {ELEMENT_FLOAT, 4, "float32"}, {ELEMENT_UINT8, 1, "uint8"},     {ELEMENT_INT8, 1, "int8"},       {ELEMENT_UINT16, 2, "uint16"},
    {ELEMENT_INT16, 2, "int16"},   {ELEMENT_INT32, 4, "int32"},     {ELEMENT_INT64, 8, "int64"},     {ELEMENT_STRING, 0, "string"},
    {ELEMENT_BOOL, 1, "bool"},     {ELEMENT_FLOAT16, 2, "float16"}, {ELEMENT_DOUBLE, 8, "float64"},  {ELEMENT_UINT32, 4, "uint32"},
    {ELEMENT_UINT64, 8, "uint64"}, {ELEMENT_BFLOAT16, 2, "bfloat16"},
};

size_t element_size(OrtElementType type)
{
    for (size_t index = 0; index < sizeof elements / sizeof *elements; index++)
        if (elements[index].type == type)
            return elements[index].size;
    return 0;
}

const char *element_name(OrtElementType type)
{
    for (size_t index = 0; index < sizeof elements / sizeof *elements; index++)
        if (elements[index].type == type)
            return elements[index].name;
    return "an unknown type";
}

bool element_count(const int64_t *dims, size_t rank, size_t *count)
{
    size_t product = 1;
    for (size_t axis = 0; axis < rank; axis++)
        if (dims[axis] < 0 || (uint64_t)dims[axis] > SIZE_MAX || __builtin_mul_overflow(product, (size_t)dims[axis], &product))
            return false;
    *count = product;
    return true;
}

bool byte_count(size_t count, OrtElementType type, size_t *bytes)
{
    size_t size = element_size(type);
    return size != 0 && !__builtin_mul_overflow(count, size, bytes);
}
