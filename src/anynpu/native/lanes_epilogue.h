/* The epilogue's arithmetic in vectors, for whichever lanes_*.h was included before: its one place for kernels of lanes. */
#ifndef ANYNPU_LANES_EPILOGUE_H
#define ANYNPU_LANES_EPILOGUE_H

#include "channel_tables.h"
#include "engine.h"
#include "fixed_forms.h"

/* What turns a scaled sum into a code, for LANES channels. */
struct finish {
    floats low, high; /* of the rounded number, before the zero point is added */
    ints zero;
    floats slope;
    int has_slope;
};

INLINE struct finish finish_of(ints zero, ints low, ints high)
{
    /* The limits are integers, so that it is the same to clamp before the rounding; and then the conversion cannot overflow. */
    const struct finish finish = {.low = floats_from_ints(ints_sub(low, zero)),
                                  .high = floats_from_ints(ints_sub(high, zero)),
                                  .zero = zero,
                                  .slope = floats_set(1.0f)};
    return finish;
}

INLINE struct finish finish_load(const struct anynpu_epilogue *e, size_t channel)
{
    const ints zero = ints_load(e->zero_point + channel);
    struct finish finish = finish_of(zero, ints_load(e->low + channel), ints_load(e->high + channel));
    finish.has_slope = e->slope != NULL;
    if (finish.has_slope)
        finish.slope = floats_load(e->slope + channel);
    return finish;
}

/* All lanes as the first channel. */
INLINE struct finish finish_set(const struct anynpu_epilogue *e)
{
    struct finish finish = finish_of(ints_set(e->zero_point[0]), ints_set(e->low[0]), ints_set(e->high[0]));
    finish.has_slope = e->slope != NULL;
    if (finish.has_slope)
        finish.slope = floats_set(e->slope[0]);
    return finish;
}

/* Slope, clamp, rounding, zero point. */
INLINE ints finish_codes(const struct finish *finish, floats f)
{
    if (finish->has_slope)
        f = floats_scale_negative(f, finish->slope);
    f = floats_min(floats_max(f, finish->low), finish->high);
    return ints_add(ints_round(f), finish->zero);
}

/* The chip's rule for LANES channels, in the form FIXED_SINGLE of fixed_forms.h. */
struct fixed_lanes {
    floats first, second, offset; /* factors of the stages; FIXED_MAGIC with the zero point */
    floats low, high;             /* of a code, with FIXED_MAGIC */
};

/* Their numbers as arrays, one after the other, each of so many floats. */
enum { FIXED_ARRAYS = 5 };

static inline void fixed_fill(const struct anynpu_epilogue *e, size_t channel, size_t count, float *arrays, size_t stride)
{
    for (size_t i = 0; i < count; i++) {
        arrays[i] = (float)fixed_channel_factor(e->fixed, channel + i);
        arrays[stride + i] = (float)fixed_output_factor(e->fixed, channel + i);
        arrays[2 * stride + i] = FIXED_MAGIC + (float)e->zero_point[channel + i];
        arrays[3 * stride + i] = FIXED_MAGIC + (float)fixed_low_code(e, channel + i);
        arrays[4 * stride + i] = FIXED_MAGIC + (float)fixed_high_code(e, channel + i);
    }
}

INLINE struct fixed_lanes fixed_lanes_load(const float *arrays, size_t stride)
{
    const struct fixed_lanes lanes = {floats_load(arrays), floats_load(arrays + stride), floats_load(arrays + 2 * stride),
                                      floats_load(arrays + 3 * stride), floats_load(arrays + 4 * stride)};
    return lanes;
}

/* RNE(a * factor) */
INLINE floats fixed_stage(floats a, floats factor)
{
    const floats magic = floats_set(FIXED_MAGIC);
    return floats_sub(floats_fma(a, factor, magic), magic);
}

/* The second stage. */
INLINE ints fixed_finish(const struct fixed_lanes *lanes, floats t)
{
    const floats code = floats_fma(t, lanes->second, lanes->offset);
    return ints_from_magic(floats_min(floats_max(code, lanes->low), lanes->high));
}

/* The same in the form FIXED_CURVE, without a residual: the places of quantized values in the curves' entries. */
INLINE ints curve_places(const struct fixed_tables *tables, size_t channel, ints sum)
{
    const float *numbers = tables->curves.numbers + channel;
    const size_t stride = tables->stride;
    const floats magic = floats_set(FIXED_MAGIC);
    floats t = floats_fma(floats_from_ints(sum), floats_load(numbers + CURVE_CHANNEL * stride), magic);
    t = floats_fma(floats_sub(t, floats_load(numbers + CURVE_BACK * stride)), floats_load(numbers + CURVE_FACTOR * stride), magic);
    t = floats_min(floats_max(t, floats_load(numbers + CURVE_LOW * stride)), floats_load(numbers + CURVE_HIGH * stride));
    return ints_add(ints_from_bits(t), ints_load(tables->curves.start + channel));
}

static inline void translate_codes(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table)
{
    translate_rows(table, y, stride, y, stride, count, rows);
}

/* table[x] for rows of as many quantized values as there are channels; row gives a channel's row of the table, NULL: there is one. */
static inline void translate_channels(const int8_t *table, const int32_t *row, const int8_t *x, size_t x_step, int8_t *y,
                                      size_t y_step, size_t channels, size_t rows)
{
    if (row == NULL) {
        const int dense = x_step == channels && y_step == channels;
        translate_rows(table, x, x_step, y, y_step, dense ? channels * rows : channels, dense ? 1 : rows);
        return;
    }
    if (x_step == channels && y_step == channels && translate_by_channel(table, row, x, y, channels, rows, translate_codes))
        return;
    for (size_t first = 0, last; first < channels; first = last) {
        for (last = first + 1; last < channels && row[last] == row[first];)
            last++;
        translate_rows(table + 256 * (ptrdiff_t)row[first], x + first, x_step, y + first, y_step, last - first, rows);
    }
}

/* Whether quantized values are int8 and the limits above are exact in float32. */
static inline int epilogue_fits(const struct anynpu_epilogue *e, size_t channels)
{
    for (size_t c = 0; c < channels; c++)
        if (e->zero_point[c] < -(1 << 22) || e->zero_point[c] > 1 << 22 || e->low[c] < INT8_MIN || e->high[c] > INT8_MAX ||
            e->low[c] > e->high[c])
            return 0;
    return 1;
}

#endif
