/* From sums to codes: the arithmetic of anynpu.arithmetic, in the one place where C has it.
 *
 * Every step is a float32 operation, rounded by itself: the build switches contraction off. The loops run over channels and have no
 * branches inside, so that a compiler vectorises them. */
#ifndef ANYNPU_ARITHMETIC_H
#define ANYNPU_ARITHMETIC_H

#include "engine.h"

/* Channels that go through the float steps together; their values stay in registers or in the first cache. */
enum { ANYNPU_RUN = 64 };

/* Half to even, below 2^22: a float of 2^23 and more has no room for a fraction, and adding rounds. */
static inline float anynpu_round(float value)
{
    return (value + 12582912.0f) - 12582912.0f;
}

/* values = (codes - zeros), in float */
static inline void anynpu_differences_i8(const int8_t *restrict codes, const int32_t *restrict zeros, size_t count,
                                         float *restrict values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(codes[i] - zeros[i]);
}

static inline void anynpu_differences_i16(const int16_t *restrict codes, const int32_t *restrict zeros, size_t count,
                                          float *restrict values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(codes[i] - zeros[i]);
}

/* values += differences * residual_multiplier */
static inline void anynpu_add_residual(const struct anynpu_epilogue *epilogue, size_t first, size_t count,
                                       const float *restrict differences, float *restrict values)
{
    const float *restrict multiplier = epilogue->residual_multiplier + first;
    for (size_t i = 0; i < count; i++)
        values[i] = values[i] + differences[i] * multiplier[i];
}

/* Slope, rounding, zero point and clamp. The clamp comes first, in float: low - zero and high - zero are integers, which rounding
 * does not change, so the order makes no difference to the result and keeps values where rounding and conversion are defined. */
static inline void anynpu_finish(const struct anynpu_epilogue *epilogue, size_t first, size_t count, float *restrict values,
                                 int32_t *restrict codes)
{
    const int32_t *restrict zero = epilogue->zero_point + first;
    const int32_t *restrict low = epilogue->low + first;
    const int32_t *restrict high = epilogue->high + first;
    if (epilogue->slope != NULL) {
        const float *restrict slope = epilogue->slope + first;
        for (size_t i = 0; i < count; i++)
            values[i] = values[i] < 0.0f ? values[i] * slope[i] : values[i];
    }
    for (size_t i = 0; i < count; i++) {
        float smallest = (float)(low[i] - zero[i]), largest = (float)(high[i] - zero[i]);
        float value = values[i];
        value = value < smallest ? smallest : value;
        value = value > largest ? largest : value;
        codes[i] = (int32_t)anynpu_round(value) + zero[i];
    }
}

/* The codes of channels [first, first + count), through the table where there is one. */
#define ANYNPU_STORE(name, type, index, entries)                                                                               \
    static inline void anynpu_store_##name(const struct anynpu_epilogue *epilogue, size_t first, size_t count,                  \
                                           const int32_t *restrict codes, type *restrict y)                                    \
    {                                                                                                                          \
        const type *restrict table = epilogue->table;                                                                          \
        if (table == NULL)                                                                                                     \
            for (size_t i = 0; i < count; i++)                                                                                 \
                y[i] = (type)codes[i];                                                                                         \
        else if (epilogue->row == NULL)                                                                                        \
            for (size_t i = 0; i < count; i++)                                                                                 \
                y[i] = table[(index)codes[i]];                                                                                 \
        else                                                                                                                   \
            for (size_t i = 0; i < count; i++)                                                                                 \
                y[i] = table[(size_t)epilogue->row[first + i] * entries + (index)codes[i]];                                    \
    }

ANYNPU_STORE(i8, int8_t, uint8_t, 256)
ANYNPU_STORE(i16, int16_t, uint16_t, 65536)

/* accumulator / 2^22, rounded half to even: the last step of a linear resize. */
static inline int32_t anynpu_resize_shift_i32(int32_t accumulator)
{
    return (accumulator + ((1 << 21) - 1) + ((accumulator >> 22) & 1)) >> 22;
}

static inline int64_t anynpu_resize_shift_i64(int64_t accumulator)
{
    return (accumulator + ((1 << 21) - 1) + ((accumulator >> 22) & 1)) >> 22;
}

#endif
