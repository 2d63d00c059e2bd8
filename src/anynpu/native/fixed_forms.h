/* The chip's rule (anynpu_fixed_code in arithmetic.h) in floating point, exactly.
 *
 * A float of 1.5 * 2^23 + n with |n| <= 2^22 has the unit 1, and it is even where n is. So one fused multiply-add
 *     a * b + (1.5 * 2^23 + z)
 * whose product is not rounded on its own gives 1.5 * 2^23 + RNE(a * b + z): one rounding, to nearest, ties to even. Both stages are such steps:
 *     t    = sum * (channel / 2^14) + M - M
 *     code = t * (multiplier / 2^shift) + (M + z), whose low bits are the code
 * They are exact as long as the factors are exact in float32 (integers below 2^24 over a power of two), sums are (|sum| <= 2^24), and no
 * result leaves |n| <= 2^22. FIXED_SINGLE means that whatever the input none of that can happen, if need be because sums are clamped to
 * where the code has reached its limit already (fixed_clamped_form); else the same steps are done in double, with M = 1.5 * 2^52, where any
 * sum of 32 bits will do (FIXED_DOUBLE). Layers with threshold tables, which are of rounding mode ``simulator``, end where FIXED_DOUBLE does.
 *
 * Bounds of t: the second stage never falls when t rises, so clamping t is the same as clamping the code to the quantized values of the bounds.
 * A curve: its index is one more such step; the code then is an entry of fixed_curves.h. In float32 (FIXED_CURVE) sums need no clamp: no step
 * falls when a sum rises, rounded as it may be, so that it is enough where the index of the largest sum for which all steps are exact
 * (fixed_curve_form) is beyond the table's end.
 * A slope in double: sum * channel * multiplier is one product of an exact sum with an exact constant (channel * multiplier < 2^53). */
#ifndef ANYNPU_FIXED_FORMS_H
#define ANYNPU_FIXED_FORMS_H

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "fixed_curves.h"

enum fixed_form { FIXED_NONE, FIXED_SINGLE, FIXED_CURVE, FIXED_DOUBLE, FIXED_REFUSED };

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

/* How far from 0 the residual's part of a scaled sum can be. */
static inline double fixed_largest_residual(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    if (fixed->residual_multiplier == 0)
        return 0.0;
    return (abs(e->residual_zero[channel]) + 128.0) * fabs(fixed_factor(fixed->residual_multiplier, fixed->residual_shift)) + 1.0;
}

/* The same for a channel with a curve; curves_fit has the last word. */
static inline enum fixed_form fixed_curve_form(const struct anynpu_epilogue *e, size_t channel, double sum)
{
    const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
    const double first = fixed_channel_factor(e->fixed, channel), second = fixed_factor(curve->multiplier, curve->shift);
    const double other = fixed_largest_residual(e, channel) + fabs((double)curve->offset) + 2.0;
    const double indices = second > 0.0 ? (FIXED_MAX_RESULT - 2) / second - other : FIXED_MAX_RESULT;
    const double scaled = indices < FIXED_MAX_RESULT - 2 ? indices : FIXED_MAX_RESULT - 2;
    const double sums = first > 0.0 ? floor(scaled / first) : FIXED_MAX_SUM;
    const double limit = sums < FIXED_MAX_SUM ? sums : FIXED_MAX_SUM;
    if (other > FIXED_MAX_RESULT || limit < 1.0)
        return FIXED_DOUBLE;
    return sum <= limit || (limit * first - other) * second > curve_last(e, channel) + 1 ? FIXED_CURVE : FIXED_DOUBLE;
}

/* The form for a channel whose sums are at most so far from 0. */
static inline enum fixed_form fixed_channel_form(const struct anynpu_epilogue *e, size_t channel, double sum)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    if (!fixed_channel_fits(e, channel))
        return FIXED_REFUSED;
    if (fixed_channel_factor(fixed, channel) == 0.0)
        sum = 0.0; /* weights of nearly nothing: whatever the sum, 0 is left of it */
    if (fixed->curves != NULL)
        return fixed_curve_form(e, channel, sum);
    const double scaled = sum * fixed_channel_factor(fixed, channel) + 1.0, other = fixed_largest_residual(e, channel);
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

/* The largest sum of a channel for which all steps are exact in float32 (with a slope or a curve the first one). A channel that is nearly
 * always 0 has a second factor so large that only small sums are. */
static inline double fixed_exact_sum(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const double first = fixed_channel_factor(fixed, channel);
    if (first <= 0.0)
        return FIXED_MAX_SUM;
    double limit = floor((FIXED_MAX_RESULT - 2) / first);
    if (fixed->slope == NULL && fixed->curves == NULL) {
        const double second = fixed_output_factor(fixed, channel), results = FIXED_MAX_RESULT - 1.0 - abs(e->zero_point[channel]);
        const double scaled = second > 0.0 ? results / second - fixed_largest_residual(e, channel) : FIXED_MAX_RESULT;
        limit = floor(((scaled < FIXED_MAX_RESULT ? scaled : FIXED_MAX_RESULT) - 1.0) / first);
        limit = limit < 0.0 ? 0.0 : limit < FIXED_MAX_SUM ? limit : FIXED_MAX_SUM;
        if (fixed_channel_form(e, channel, limit + 1.0) == FIXED_SINGLE) /* the quotients were rounded */
            limit += 1.0;
    }
    return limit < FIXED_MAX_SUM ? limit : FIXED_MAX_SUM;
}

/* Whether sums of a channel that are at most so far from 0 have to be clamped for it. */
static inline int fixed_needs_clamp(const struct anynpu_epilogue *e, size_t channel, double sum)
{
    return fixed_channel_factor(e->fixed, channel) > 0.0 && sum > fixed_exact_sum(e, channel);
}

/* The limits of a channel's quantized values: those of its bounds, where it has some. */
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

/* The form for a channel where sums beyond fixed_exact_sum are taken for it. Quantized values do not fall when a sum rises: that is no change where
 * the code of such a sum is the smallest or the largest anyway, whatever the residual. */
static inline enum fixed_form fixed_clamped_form(const struct anynpu_epilogue *e, size_t channel, double sum)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const enum fixed_form form = fixed_channel_form(e, channel, sum);
    if (form != FIXED_DOUBLE || fixed->slope != NULL || fixed->curves != NULL)
        return form;
    const double limit = fixed_exact_sum(e, channel), zero = e->zero_point[channel];
    const double scaled = limit * fixed_channel_factor(fixed, channel) - 1.0 - fixed_largest_residual(e, channel);
    const double reach = scaled * fixed_output_factor(fixed, channel);
    if (sum <= limit || reach + zero < fixed_high_code(e, channel) + 1 || zero - reach > fixed_low_code(e, channel) - 1)
        return form;
    return fixed_channel_form(e, channel, limit);
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

/* The numbers of FIXED_DOUBLE, per channel. */
enum fixed_number {
    NUMBER_CHANNEL,  /* factor of the first stage */
    NUMBER_SECOND,   /* factor of the second stage; of a curve's index */
    NUMBER_POSITIVE, /* with a slope, of a sum that is not negative: both stages in one */
    NUMBER_NEGATIVE, /* with a slope, of a scaled sum that is */
    NUMBER_OFFSET,   /* FIXED_DOUBLE_MAGIC and the zero point; what is added before a curve */
    NUMBER_LOW,      /* limits of the code; of a curve's index */
    NUMBER_HIGH,
    FIXED_NUMBERS
};

/* Where packed memory has them, each number for all channels; then the tables of curves. */
struct fixed_tables {
    const double *numbers;
    size_t stride;
    struct curve_tables curves;
};

static inline size_t fixed_numbers_size(size_t channels)
{
    return size_times(FIXED_NUMBERS * sizeof(double), curve_channels(channels));
}

static inline size_t fixed_tables_size(const struct anynpu_epilogue *e, size_t channels)
{
    return e->fixed == NULL ? 0 : size_plus(fixed_numbers_size(channels), curves_size(e, channels));
}

static inline struct fixed_tables fixed_tables_at(const void *packed, size_t channels)
{
    const void *curves = (const uint8_t *)packed + fixed_numbers_size(channels);
    return (struct fixed_tables){packed, curve_channels(channels), curve_tables_at(curves, channels)};
}

static inline void fixed_numbers_pack(const struct anynpu_epilogue *e, size_t channel, double *numbers, size_t stride)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const double factor = fixed_output_factor(fixed, channel);
    numbers[NUMBER_CHANNEL * stride] = fixed_channel_factor(fixed, channel);
    if (fixed->curves != NULL) {
        const struct anynpu_curve *curve = curve_of_channel(fixed, channel);
        numbers[NUMBER_SECOND * stride] = fixed_factor(curve->multiplier, curve->shift);
        numbers[NUMBER_OFFSET * stride] = curve->offset;
        numbers[NUMBER_LOW * stride] = curve_lowest(e, channel);
        numbers[NUMBER_HIGH * stride] = curve_highest(e, channel);
        return;
    }
    numbers[NUMBER_SECOND * stride] = factor;
    numbers[NUMBER_POSITIVE * stride] = factor * fixed_channel_factor(fixed, channel);
    if (fixed->slope != NULL)
        numbers[NUMBER_NEGATIVE * stride] = factor * fixed_factor(fixed->slope[channel], ANYNPU_CHANNEL_BITS);
    numbers[NUMBER_OFFSET * stride] = FIXED_DOUBLE_MAGIC + e->zero_point[channel];
    numbers[NUMBER_LOW * stride] = fixed_low_code(e, channel);
    numbers[NUMBER_HIGH * stride] = fixed_high_code(e, channel);
}

/* The numbers of FIXED_CURVE. Where there are words, indices beyond which nothing changes are limited to those. */
static inline void fixed_curve_pack(const struct anynpu_epilogue *e, size_t channel, const struct curve_words *words, float *numbers,
                                    size_t stride)
{
    const int64_t lowest = curve_lowest(e, channel), highest = curve_highest(e, channel);
    const int64_t low = words->usable ? anynpu_clamp(lowest, words->first, words->last) : lowest;
    const int64_t high = words->usable ? anynpu_clamp(highest, words->first, words->last) : highest;
    const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
    numbers[CURVE_CHANNEL * stride] = (float)fixed_channel_factor(e->fixed, channel);
    numbers[CURVE_BACK * stride] = FIXED_MAGIC - (float)curve->offset;
    numbers[CURVE_FACTOR * stride] = (float)fixed_factor(curve->multiplier, curve->shift);
    numbers[CURVE_LOW * stride] = FIXED_MAGIC + (float)low;
    numbers[CURVE_HIGH * stride] = FIXED_MAGIC + (float)high;
}

static inline void fixed_tables_pack(const struct anynpu_epilogue *e, size_t channels, void *packed)
{
    const size_t stride = curve_channels(channels);
    struct curve_words *words = (struct curve_words *)(void *)((uint8_t *)packed + fixed_numbers_size(channels));
    int32_t *zero = (int32_t *)(void *)((uint8_t *)words + CURVE_WORDS_BYTES), *start = zero + stride;
    float *numbers = (float *)(start + stride);
    if (e->fixed == NULL)
        return;
    for (size_t channel = 0; channel < channels; channel++)
        fixed_numbers_pack(e, channel, (double *)packed + channel, stride);
    if (e->fixed->curves == NULL)
        return;
    curves_pack(e, channels, zero, (int8_t *)(numbers + CURVE_NUMBERS * stride));
    curve_pack_words(e, channels, zero, (int8_t *)(numbers + CURVE_NUMBERS * stride), words);
    for (size_t channel = 0; channel < channels; channel++) {
        start[channel] = (int32_t)((uint32_t)zero[channel] - FIXED_MAGIC_BITS);
        fixed_curve_pack(e, channel, words, numbers + channel, stride);
    }
}

static inline double fixed_clamp(double value, double low, double high)
{
    value = value < low ? low : value;
    return value > high ? high : value;
}

/* The last steps of fixed_codes with curves; values are scaled sums, numbers those of the first channel. */
static inline void fixed_curve_codes(const struct fixed_tables *tables, size_t first, size_t count, const double *values, int8_t *y)
{
    const double *numbers = tables->numbers + first;
    const size_t stride = tables->stride;
    const int32_t *zero = tables->curves.zero + first;
    int32_t places[FIXED_RUN];
    for (size_t i = 0; i < count; i++) {
        const double index = fixed_round(values[i] + numbers[NUMBER_OFFSET * stride + i], numbers[NUMBER_SECOND * stride + i]);
        places[i] = (int32_t)fixed_clamp(index, numbers[NUMBER_LOW * stride + i], numbers[NUMBER_HIGH * stride + i]) + zero[i];
    }
    for (size_t i = 0; i < count; i++)
        y[i] = tables->curves.entries[places[i]];
}

/* FIXED_CURVE: the quantized values of channels [first, first + count), at most FIXED_RUN, before the table. */
static inline void fixed_single_curve_codes(const struct anynpu_epilogue *e, const struct fixed_tables *tables, size_t first, size_t count,
                                            const int32_t *sums, const int8_t *residual, int8_t *y)
{
    const size_t stride = tables->stride;
    const float *numbers = tables->curves.numbers + first;
    const int32_t *start = tables->curves.start + first;
    float values[FIXED_RUN];
    uint32_t places[FIXED_RUN];
    for (size_t i = 0; i < count; i++)
        values[i] = __builtin_fmaf((float)sums[i], numbers[CURVE_CHANNEL * stride + i], FIXED_MAGIC) - numbers[CURVE_BACK * stride + i];
    if (residual != NULL) {
        const float factor = (float)fixed_factor(e->fixed->residual_multiplier, e->fixed->residual_shift);
        for (size_t i = 0; i < count; i++)
            values[i] += __builtin_fmaf((float)(residual[i] - e->residual_zero[first + i]), factor, FIXED_MAGIC) - FIXED_MAGIC;
    }
    for (size_t i = 0; i < count; i++) {
        float index = __builtin_fmaf(values[i], numbers[CURVE_FACTOR * stride + i], FIXED_MAGIC);
        index = index > numbers[CURVE_LOW * stride + i] ? index : numbers[CURVE_LOW * stride + i];
        index = index < numbers[CURVE_HIGH * stride + i] ? index : numbers[CURVE_HIGH * stride + i];
        memcpy(&places[i], &index, sizeof index);
        places[i] += (uint32_t)start[i];
    }
    curve_look_up(tables->curves.entries, places, count, y);
}

/* The quantized values of channels whose activation is a threshold table: how conv_form has them too. */
static inline void stairs_codes(const struct anynpu_epilogue *e, size_t first, size_t count, const int32_t *sums, int8_t *y)
{
    if (e->staircase != NULL) {
        for (size_t i = 0; i < count; i++)
            y[i] = anynpu_stairs_code(e, first + i, sums[i]);
        return;
    }
    const struct anynpu_staircase stairs = *e->staircases;
    const float *restrict multiplier = e->multiplier + first;
    const float last = (float)(stairs.cells - 1), least = stairs.edges[0];
    float values[FIXED_RUN];
    int32_t places[FIXED_RUN];
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)sums[i] * multiplier[i];
        float place = (values[i] - least) * stairs.cells_per_unit;
        place = place > 0.0f ? place : 0.0f;
        places[i] = (int32_t)(place < last ? place : last);
    }
    for (size_t i = 0; i < count; i++) {
        int32_t at = stairs.starts[places[i]];
        while (at < stairs.count && values[i] >= stairs.edges[at])
            at++;
        y[i] = stairs.codes[at];
    }
}

/* FIXED_CURVE and FIXED_DOUBLE: the quantized values of channels [first, first + count), at most FIXED_RUN, before the table. */
static __attribute__((noinline, unused)) void fixed_codes(enum fixed_form form, const struct anynpu_epilogue *e,
                                                          const struct fixed_tables *tables, size_t first, size_t count,
                                                          const int32_t *sums, const int8_t *residual, int8_t *y)
{
    if (form == FIXED_CURVE) {
        fixed_single_curve_codes(e, tables, first, count, sums, residual, y);
        return;
    }
    if (e->staircases != NULL) {
        stairs_codes(e, first, count, sums, y);
        return;
    }
    const struct anynpu_fixed_point *fixed = e->fixed;
    const double *numbers = tables->numbers + first;
    const size_t stride = tables->stride;
    double values[FIXED_RUN], factors[FIXED_RUN];
    for (size_t i = 0; i < count; i++) {
        values[i] = fixed_saturate(fixed_round(sums[i], numbers[NUMBER_CHANNEL * stride + i]));
        factors[i] = numbers[NUMBER_SECOND * stride + i];
    }
    if (residual != NULL) {
        const double factor = fixed_factor(fixed->residual_multiplier, fixed->residual_shift);
        for (size_t i = 0; i < count; i++)
            values[i] = fixed_saturate(values[i] + fixed_round(residual[i] - e->residual_zero[first + i], factor));
    }
    if (fixed->curves != NULL) {
        fixed_curve_codes(tables, first, count, values, y);
        return;
    }
    if (fixed->slope != NULL && residual != NULL) {
        for (size_t i = 0; i < count; i++)
            factors[i] = values[i] < 0.0 ? numbers[NUMBER_NEGATIVE * stride + i] : factors[i];
    } else if (fixed->slope != NULL) {
        for (size_t i = 0; i < count; i++) {
            factors[i] = sums[i] < 0 ? numbers[NUMBER_NEGATIVE * stride + i] : numbers[NUMBER_POSITIVE * stride + i];
            values[i] = sums[i] < 0 ? values[i] : sums[i];
        }
    }
    for (size_t i = 0; i < count; i++) {
        const double code = __builtin_fma(values[i], factors[i], numbers[NUMBER_OFFSET * stride + i]) - FIXED_DOUBLE_MAGIC;
        y[i] = (int8_t)(int32_t)fixed_clamp(code, numbers[NUMBER_LOW * stride + i], numbers[NUMBER_HIGH * stride + i]);
    }
}

#endif
