/* Instruction sets ("levels"), and the table that holds what runs at one of them.
 *
 * Plain C is compiled for several instruction sets and the compiler vectorises it; only where it needs help are there intrinsics. For what
 * is hot in a network there are kernels written for one instruction set (kernels.h). With contraction switched off every level gives the
 * same bytes. Conversions go through anynpu_kernels(), which picks the best level that the processor has; a layer of a program holds what was
 * chosen for it. */
#ifndef ANYNPU_LEVELS_H
#define ANYNPU_LEVELS_H

#include <stddef.h>
#include <stdint.h>

#include "anynpu_native.h"
#include "kernels.h"
#include "operators.h"

/* One function for each level of a file: LEVELLED(minmax_f32) is anynpu_minmax_f32_avx2 where ANYNPU_LEVEL is avx2. */
#define ANYNPU_PASTE3(name, level) anynpu_##name##_##level
#define ANYNPU_PASTE2(name, level) ANYNPU_PASTE3(name, level)
#define LEVELLED(name) ANYNPU_PASTE2(name, ANYNPU_LEVEL)

/* float32 from quantized values and back, for a run of elements: all of one channel, or element i with the i-th scale and zero point. */
struct anynpu_type_kernels {
    void (*load)(const void *source, float *target, size_t count, int32_t zero, float scale);
    void (*load_each)(const void *source, float *target, size_t count, const int32_t *zero, const float *scale);
    void (*store)(const float *source, void *target, size_t count, int32_t zero, float scale, int64_t low, int64_t high);
    void (*store_each)(const float *source, void *target, size_t count, const int32_t *zero, const float *scale, int64_t low,
                       int64_t high);
};

/* target[column * target_stride + row] = source[row * source_stride + column]; strides in elements. */
typedef void anynpu_transpose(const void *source, size_t source_stride, void *target, size_t target_stride, size_t rows,
                              size_t columns);

struct anynpu_element_kernels {
    struct anynpu_type_kernels types[ANYNPU_TYPES];

    /* (x - mean) / std */
    void (*normalize)(const float *source, float *target, size_t count, float mean, float std);
    void (*normalize_each)(const float *source, float *target, size_t count, const float *mean, const float *std);

    /* bytes to bytes */
    void (*flip)(const uint8_t *source, uint8_t *target, size_t count, uint8_t mask);
    /* clamp((slope * (byte ^ flip) + offset) >> 16) */
    void (*line)(const uint8_t *source, uint8_t *target, size_t count, int32_t slope, int32_t offset, uint8_t flip, int32_t low,
                 int32_t high);
    void (*line_each)(const uint8_t *source, uint8_t *target, size_t count, const int32_t *slope, const int32_t *offset,
                      uint8_t flip, int32_t low, int32_t high);

    void (*unpack_int4)(const uint8_t *source, uint8_t *target, size_t count, int is_signed);
    void (*pack_int4)(const uint8_t *source, uint8_t *target, size_t count);
};

struct anynpu_transpose_kernels {
    anynpu_transpose *by_size[4]; /* elements of 1, 2, 4 and 8 bytes */
};

struct anynpu_statistics_kernels {
    void (*minmax_f32)(const float *values, size_t count, float range[2]);
    void (*histogram_f32)(const float *values, size_t count, float low, float inverse_step, uint32_t bins, uint64_t *counts);
    int (*worst)(int type, const void *values, size_t count);
};

/* All that runs at one level. A level without kernels of its own for something has those of the next one. */
struct anynpu_kernel_set {
    const char *name;
    const struct anynpu_element_kernels *elements;
    const struct anynpu_transpose_kernels *transpose;
    const struct anynpu_statistics_kernels *statistics;
    struct anynpu_operators operators;
    const struct anynpu_conv_kernel *const *convolutions[3]; /* lists in the order of preference; NULL: fewer lists */
    const struct anynpu_simple_kernels *simple;              /* NULL: none */
    const struct anynpu_matrix_kernels *plain_matrices;
    const struct anynpu_matrix_kernels *matrices; /* NULL: the plain ones */
    anynpu_peak_loop *peak;
};

const struct anynpu_kernel_set *anynpu_kernels(void);
/* NULL where the processor does not have it. */
const struct anynpu_kernel_set *anynpu_kernels_at(int level);

#endif
