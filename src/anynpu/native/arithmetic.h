/* From sums to quantized values: the arithmetic of anynpu.program.arithmetic, in the one place where C has it.
 *
 * The chip's rule is integers (anynpu_fixed_...). In rounding mode ``simulator`` every step is a float32 operation, rounded on its own: the build switches contraction off. The loops run over channels and have no
 * branches inside, so that a compiler vectorises them. */
#ifndef ANYNPU_ARITHMETIC_H
#define ANYNPU_ARITHMETIC_H

#include "engine.h"

/* Channels that go through the float steps together; their values stay in registers or in the first cache. */
enum { ANYNPU_RUN = 64 };

/* Half to even, below 2^22: a float of 2^23 and more has no space for a fraction, and adding rounds. */
static inline float anynpu_round(float value)
{
    return (value + 12582912.0f) - 12582912.0f;
}

/* values = (quantized values - zeros), in float */
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

/* The quantized values of channels [first, first + count), through the table where there is one. */
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

/* The code of a number. */
static inline int8_t anynpu_climb(const struct anynpu_staircase *stairs, float value)
{
    const float place = (value - stairs->edges[0]) * stairs->cells_per_unit;
    const int32_t last = stairs->cells - 1;
    int32_t i = stairs->starts[!(place > 0.0f) ? 0 : place < (float)last ? (int32_t)place : last];
    while (i < stairs->count && value >= stairs->edges[i])
        i++;
    return stairs->codes[i];
}

/* The code of a sum, through its channel's threshold table. */
static inline int8_t anynpu_stairs_code(const struct anynpu_epilogue *epilogue, size_t channel, int64_t sum)
{
    const struct anynpu_staircase *stairs = epilogue->staircases + (epilogue->staircase == NULL ? 0 : epilogue->staircase[channel]);
    return anynpu_climb(stairs, (float)sum * epilogue->multiplier[channel]);
}

/* value / 2^bits, rounded half to even. */
static inline int64_t anynpu_shift_right(int64_t value, int32_t bits)
{
    return bits == 0 ? value : (value + (((int64_t)1 << (bits - 1)) - 1) + ((value >> bits) & 1)) >> bits;
}

static inline int64_t anynpu_clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* The chip holds sums and what becomes of them in 32 bits. */
static inline int64_t anynpu_saturate(int64_t value)
{
    return anynpu_clamp(value, INT32_MIN, INT32_MAX);
}

enum { ANYNPU_CHANNEL_BITS = 14, ANYNPU_CURVE_HALF = 1 << 14, ANYNPU_CURVE_LAST = 512 };

/* The value of a curve for an index, in units of its tables. */
static inline int64_t anynpu_curve_entry(const struct anynpu_curve *curve, int64_t index)
{
    int64_t value;
    if (index > ANYNPU_CURVE_HALF && curve->slope != 0) {
        value = curve->positive[ANYNPU_CURVE_LAST] + (((index - ANYNPU_CURVE_HALF) * curve->slope) >> curve->slope_shift);
    } else {
        const int16_t *table = index < 0 ? curve->negative : curve->positive;
        const int64_t place = anynpu_clamp(index < 0 ? index + ANYNPU_CURVE_HALF : index, 0, ANYNPU_CURVE_HALF);
        const int64_t entry = anynpu_clamp(place >> 5, 0, ANYNPU_CURVE_LAST - 1);
        value = table[entry] + (((int64_t)(table[entry + 1] - table[entry]) * (place - (entry << 5))) >> 5);
    }
    return anynpu_saturate(value);
}

/* The same for a scaled sum. */
static inline int64_t anynpu_curve_value(const struct anynpu_curve *curve, int64_t scaled)
{
    return anynpu_curve_entry(curve, anynpu_saturate(anynpu_shift_right((scaled + curve->offset) * curve->multiplier, curve->shift)));
}

/* The second stage. */
static inline int32_t anynpu_fixed_output(const struct anynpu_epilogue *epilogue, size_t channel, int64_t value, int32_t multiplier,
                                          int32_t shift)
{
    /* a product, because a negative number must not be shifted to the left */
    const int64_t code = anynpu_shift_right(value * multiplier + epilogue->zero_point[channel] * ((int64_t)1 << shift), shift);
    return (int32_t)anynpu_clamp(code, epilogue->low[channel], epilogue->high[channel]);
}

/* A sum of one channel to its code before the table; residual is the difference to its zero point, 0 without one. */
static inline int32_t anynpu_fixed_code(const struct anynpu_epilogue *epilogue, size_t channel, int64_t sum, int32_t residual)
{
    const struct anynpu_fixed_point *fixed = epilogue->fixed;
    int64_t product = anynpu_saturate(sum) * (fixed->channel == NULL ? 1 << ANYNPU_CHANNEL_BITS : fixed->channel[channel]);
    int64_t value = anynpu_saturate(anynpu_shift_right(product, ANYNPU_CHANNEL_BITS));
    if (fixed->residual_multiplier != 0) {
        value = anynpu_saturate(value + anynpu_shift_right((int64_t)residual * fixed->residual_multiplier, fixed->residual_shift));
        product = value * (1 << ANYNPU_CHANNEL_BITS);
    }
    if (fixed->slope != NULL)
        return anynpu_fixed_output(epilogue, channel, product < 0 ? value * fixed->slope[channel] : product,
                                   fixed->multiplier[channel], fixed->shift[channel] + ANYNPU_CHANNEL_BITS);
    if (fixed->low != NULL)
        value = anynpu_clamp(value, fixed->low[channel], fixed->high[channel]);
    if (fixed->curves != NULL)
        value = anynpu_curve_value(fixed->curves + (fixed->curve == NULL ? 0 : fixed->curve[channel]), value);
    return anynpu_fixed_output(epilogue, channel, value, fixed->multiplier[channel], fixed->shift[channel]);
}

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
