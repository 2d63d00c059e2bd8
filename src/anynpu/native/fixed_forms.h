/* The chip's rule (anynpu_fixed_code in arithmetic.h) in floating point, exactly.
 *
 * A float of 1.5 * 2^23 + n with |n| <= 2^22 has the unit 1, and it is even where n is. So one fused multiply-add
 *     a * b + (1.5 * 2^23 + z)
 * whose product is not rounded by itself gives 1.5 * 2^23 + RNE(a * b + z): one rounding, to nearest, ties to even. Both stages are such steps:
 *     t    = sum * (channel / 2^14) + M - M
 *     code = t * (multiplier / 2^shift) + (M + z), whose low bits are the code
 * They are exact as long as the factors are exact in float32 (integers below 2^24 over a power of two), sums are (|sum| <= 2^24), and no
 * result leaves |n| <= 2^22. FIXED_SINGLE means that whatever the input none of that can happen; else the same steps are done in double,
 * with M = 1.5 * 2^52, where any sum of 32 bits will do (FIXED_DOUBLE).
 *
 * Bounds of t: the second stage never falls when t rises, so clamping t is the same as clamping the code to the codes of the bounds.
 * A curve: its index is one more such step, in double; the code then is an entry of fixed_curves.h.
 * A slope in double: sum * channel * multiplier is one product of an exact sum with an exact constant (channel * multiplier < 2^53). */
#ifndef ANYNPU_FIXED_FORMS_H
#define ANYNPU_FIXED_FORMS_H

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "fixed_curves.h"

enum fixed_form { FIXED_NONE, FIXED_SINGLE, FIXED_DOUBLE, FIXED_REFUSED };

#define FIXED_MAGIC 12582912.0f              /* 1.5 * 2^23 */
#define FIXED_MAGIC_BITS 0x4b400000          /* the same as bits */
#define FIXED_DOUBLE_MAGIC 6755399441055744.0 /* 1.5 * 2^52 */
#define FIXED_MAX_SUM (1 << 24)
#define FIXED_MAX_RESULT (1 << 22)
#define FIXED_RUN 64 /* channels that fixed_codes takes at a time, at the most */

static inline int fixed_within(int32_t value, int32_t low, int32_t high)
{
    return value >= low && value <= high;
}

/* Whether the numbers of a channel are such that the argument above holds. */
static inline int fixed_channel_fits(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const int32_t most = 1 << 20;
    if (!fixed_within(e->zero_point[channel], -most, most) || e->low[channel] < INT8_MIN || e->high[channel] > INT8_MAX ||
        e->low[channel] > e->high[channel])
        return 0;
    if (fixed->multiplier != NULL &&
        (!fixed_within(fixed->multiplier[channel], 0, most) || !fixed_within(fixed->shift[channel], 0, 31)))
        return 0;
    if (fixed->channel != NULL && !fixed_within(fixed->channel[channel], 0, most))
        return 0;
    if (fixed->slope != NULL && !fixed_within(fixed->slope[channel], -most, most))
        return 0;
    if (fixed->low != NULL && fixed->low[channel] > fixed->high[channel])
        return 0;
    return fixed->residual_multiplier == 0 ||
           (e->residual_zero != NULL && fixed_within(e->residual_zero[channel], -most, most) &&
            fixed_within(fixed->residual_multiplier, -most, most) && fixed_within(fixed->residual_shift, 0, 31));
}

static inline double fixed_factor(int32_t multiplier, int32_t shift)
{
    return multiplier / (double)((int64_t)1 << shift);
}

/* c / 2^14 */
static inline double fixed_channel_factor(const struct anynpu_fixed_point *fixed, size_t channel)
{
    return fixed->channel == NULL ? 1.0 : fixed_factor(fixed->channel[channel], ANYNPU_CHANNEL_BITS);
}

static inline double fixed_output_factor(const struct anynpu_fixed_point *fixed, size_t channel)
{
    return fixed_factor(fixed->multiplier[channel], fixed->shift[channel]);
}

/* The form for a channel whose sums are at most so far from 0. */
static inline enum fixed_form fixed_channel_form(const struct anynpu_epilogue *e, size_t channel, double sum)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    if (!fixed_channel_fits(e, channel))
        return FIXED_REFUSED;
    if (fixed->curves != NULL)
        return FIXED_DOUBLE; /* curves_fit has the last word */
    double scaled = sum * fixed_channel_factor(fixed, channel) + 1.0, other = 0.0;
    if (fixed->residual_multiplier != 0) {
        const double factor = fixed_factor(fixed->residual_multiplier, fixed->residual_shift);
        other = (abs(e->residual_zero[channel]) + 128.0) * fabs(factor) + 1.0;
    }
    const double result = (scaled + other) * fixed_output_factor(fixed, channel) + abs(e->zero_point[channel]) + 1.0;
    return fixed->slope == NULL && sum <= FIXED_MAX_SUM && scaled <= FIXED_MAX_RESULT && other <= FIXED_MAX_RESULT &&
                   result <= FIXED_MAX_RESULT
               ? FIXED_SINGLE
               : FIXED_DOUBLE;
}

static inline int fixed_has_residual(const struct anynpu_epilogue *e)
{
    return e->fixed == NULL ? e->residual_multiplier != NULL : e->fixed->residual_multiplier != 0;
}

/* The limits of a channel's codes: those of its bounds, where it has some. */
static inline int32_t fixed_low_code(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    if (fixed == NULL || fixed->low == NULL || fixed->slope != NULL)
        return e->low[channel];
    return anynpu_fixed_output(e, channel, fixed->low[channel], fixed->multiplier[channel], fixed->shift[channel]);
}

static inline int32_t fixed_high_code(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    if (fixed == NULL || fixed->high == NULL || fixed->slope != NULL)
        return e->high[channel];
    return anynpu_fixed_output(e, channel, fixed->high[channel], fixed->multiplier[channel], fixed->shift[channel]);
}

/* RNE(a * b), for |a * b| <= 2^51 */
static inline double fixed_round(double a, double b)
{
    return __builtin_fma(a, b, FIXED_DOUBLE_MAGIC) - FIXED_DOUBLE_MAGIC;
}

static inline double fixed_saturate(double value)
{
    value = value < (double)INT32_MIN ? (double)INT32_MIN : value;
    return value > (double)INT32_MAX ? (double)INT32_MAX : value;
}

/* The last steps of fixed_codes with curves; values are scaled sums. */
static inline void fixed_curve_codes(const struct anynpu_epilogue *e, const struct curve_tables *tables, size_t first, size_t count,
                                     const double *values, int8_t *y)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    int32_t places[FIXED_RUN];
    for (size_t i = 0; i < count; i++) {
        const struct anynpu_curve *curve = curve_of_channel(fixed, first + i);
        const double low = fixed->low == NULL ? INT32_MIN : fixed->low[first + i];
        const double high = fixed->high == NULL ? INT32_MAX : fixed->high[first + i];
        double value = values[i] < low ? low : values[i];
        value = value > high ? high : value;
        double index = fixed_round(value + curve->offset, fixed_factor(curve->multiplier, curve->shift));
        index = index < -ANYNPU_CURVE_HALF ? -ANYNPU_CURVE_HALF : index;
        index = index > tables->last[first + i] ? tables->last[first + i] : index;
        places[i] = (int32_t)index + tables->zero[first + i];
    }
    for (size_t i = 0; i < count; i++)
        y[i] = tables->entries[places[i]];
}

/* FIXED_DOUBLE: the codes of channels [first, first + count), at most FIXED_RUN, before the table. */
static __attribute__((noinline, unused)) void fixed_codes(const struct anynpu_epilogue *e, const struct curve_tables *tables, size_t first,
                                                          size_t count, const int32_t *sums, const int8_t *residual, int8_t *y)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    double values[FIXED_RUN], factors[FIXED_RUN];
    for (size_t i = 0; i < count; i++) {
        values[i] = fixed_saturate(fixed_round(sums[i], fixed_channel_factor(fixed, first + i)));
        factors[i] = fixed_output_factor(fixed, first + i);
    }
    if (residual != NULL) {
        const double factor = fixed_factor(fixed->residual_multiplier, fixed->residual_shift);
        for (size_t i = 0; i < count; i++)
            values[i] = fixed_saturate(values[i] + fixed_round(residual[i] - e->residual_zero[first + i], factor));
    }
    if (fixed->slope != NULL) {
        for (size_t i = 0; i < count; i++) {
            const int negative = residual != NULL ? values[i] < 0.0 : sums[i] < 0;
            const double positive_factor = residual != NULL ? factors[i] : factors[i] * fixed_channel_factor(fixed, first + i);
            const double positive_value = residual != NULL ? values[i] : sums[i];
            factors[i] = negative ? factors[i] * fixed_factor(fixed->slope[first + i], ANYNPU_CHANNEL_BITS) : positive_factor;
            values[i] = negative ? values[i] : positive_value;
        }
    } else if (fixed->curves != NULL) {
        fixed_curve_codes(e, tables, first, count, values, y);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const double low = fixed_low_code(e, first + i), high = fixed_high_code(e, first + i);
        double code = __builtin_fma(values[i], factors[i], FIXED_DOUBLE_MAGIC + e->zero_point[first + i]) - FIXED_DOUBLE_MAGIC;
        code = code < low ? low : code;
        code = code > high ? high : code;
        y[i] = (int8_t)(int32_t)code;
    }
}

#endif
