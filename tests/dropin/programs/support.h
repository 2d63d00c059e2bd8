/* What the test programs share. A check that fails prints where and ends the program with status 1. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rknn_api.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#define CHECK_CODE(call, expected) \
    do { \
        int code_ = (call); \
        if (code_ != (expected)) { \
            fprintf(stderr, "%s:%d: %s gave %d, not %d\n", __FILE__, __LINE__, #call, code_, (expected)); \
            exit(1); \
        } \
    } while (0)

#define OK(call) CHECK_CODE(call, 0)

/* A file in memory; the caller frees it. */
static inline void *read_file(const char *path, uint32_t *size)
{
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    long length = ftell(file);
    CHECK(length > 0);
    rewind(file);
    void *bytes = malloc((size_t)length);
    CHECK(bytes != NULL && fread(bytes, 1, (size_t)length, file) == (size_t)length);
    fclose(file);
    *size = (uint32_t)length;
    return bytes;
}

static inline void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, size, file) == size);
    fclose(file);
}

/* The same bytes for the same seed, in C and in the Python that checks the results. */
static inline void fill_bytes(uint8_t *bytes, size_t size, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1u;
    for (size_t index = 0; index < size; index++) {
        state = state * 1664525u + 1013904223u;
        bytes[index] = (uint8_t)(state >> 24);
    }
}

#endif
