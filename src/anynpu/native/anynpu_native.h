/* The functions of the extension module anynpu._native.
 *
 * Pointers and descriptors in, bytes out: no Python objects, no allocation, no locks. The build script hands this text, without its
 * preprocessor lines, to cffi; so it stays within what cffi can read. Calls from Python run without the GIL. */
#ifndef ANYNPU_NATIVE_H
#define ANYNPU_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* ---- instruction sets: the best is chosen at the first call ---- */

int anynpu_level_count(void);
const char *anynpu_level_name(int level);
const char *anynpu_level(void);
/* 1 where the processor has it. For tests and comparisons: the results do not depend on it. */
int anynpu_use_level(const char *name);

/* ---- statistics; NaN counts nowhere ---- */

/* range[0] is the smallest and range[1] the largest value; infinity and -infinity where there is none. */
void anynpu_minmax_f32(const float *values, size_t count, float range[2]);
/* The same by channel of an NCHW tensor. */
void anynpu_minmax_channels_f32(const float *values, size_t n, size_t c, size_t hw, float *low, float *high);
/* Adds to counts[(int)((value - low) * inverse_step)], the index clamped to the first and last bin. */
void anynpu_histogram_f32(const float *values, size_t count, float low, float inverse_step, uint32_t bins, uint64_t *counts);

/* ---- conversions ---- */

enum anynpu_type {
    ANYNPU_F32,
    ANYNPU_F16,
    ANYNPU_BF16,
    ANYNPU_I8,
    ANYNPU_U8,
    ANYNPU_I16,
    ANYNPU_U16,
    ANYNPU_I32,
    ANYNPU_U32,
    ANYNPU_I64,
    ANYNPU_U64,
    ANYNPU_BOOL,
    ANYNPU_TYPES
};

/* How a tensor lies in memory: [n][c1][d][h_stride][w_stride][c2]. NCHW has blocks of one channel, NHWC one block of all. */
struct anynpu_place {
    int32_t type;
    size_t c1;
    size_t c2;
    size_t h_stride;
    size_t w_stride;
};

enum anynpu_step {
    ANYNPU_MOVE,     /* the elements as they are; both types have the same size */
    ANYNPU_FLIP,     /* byte ^ flip */
    ANYNPU_LINE,     /* clamp((slope * (byte ^ flip) + offset) >> 16, low, high), by channel */
    ANYNPU_TABLE,    /* table[256 * channel + byte] */
    ANYNPU_INTEGERS, /* integers to integers, clamped to low and high */
    ANYNPU_VALUES    /* (code - source_zero) * source_scale, then (x - mean) / std, then the code of that in the target */
};

/* Arrays have one entry, or with by_channel one for each channel of the padded source and target. */
struct anynpu_conversion {
    size_t n, c, d, h, w;
    struct anynpu_place source;
    struct anynpu_place target;
    uint64_t fill; /* what padding in the target becomes: an element in the low bytes */
    int32_t step;
    int32_t by_channel;
    int32_t flip;
    int64_t low, high;
    const int32_t *source_zero;
    const float *source_scale;
    const float *mean; /* NULL: no mean and std */
    const float *std;
    const int32_t *target_zero;
    const float *target_scale;
    const int32_t *slope;
    const int32_t *offset;
    const uint8_t *table;
};

/* One pass from source to target, which must not overlap. */
void anynpu_convert(const struct anynpu_conversion *conversion, const void *source, void *target);

/* Four bits: two elements a byte, the first in the low half; unpacked one a byte, signed ones extended. */
void anynpu_unpack_int4(const uint8_t *source, uint8_t *target, size_t count, int is_signed);
void anynpu_pack_int4(const uint8_t *source, uint8_t *target, size_t count);

#endif
