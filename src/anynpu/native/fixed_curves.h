/* Activations as tables of codes: the code is a function of the curve's index alone (arithmetic.h), which takes few values.
 *
 * A table has the code of each index from -16384, below which nothing changes, to the one from which on nothing changes: the end of the
 * curve's own tables, or where its straight line reaches the largest code. Neighbouring channels with the same numbers share a table. */
#ifndef ANYNPU_FIXED_CURVES_H
#define ANYNPU_FIXED_CURVES_H

#include "arithmetic.h"

#define CURVE_MAX_INDEX (1 << 20)
#define CURVE_MAX_TABLES 16

/* Where packed memory has them: by channel the place of index 0 and the last index, then the entries. */
struct curve_tables {
    const int32_t *zero, *last;
    const int8_t *entries;
};

static inline size_t curve_channels(size_t channels)
{
    return (channels + ANYNPU_CHANNEL_PADDING - 1) / ANYNPU_CHANNEL_PADDING * ANYNPU_CHANNEL_PADDING;
}

static inline const struct anynpu_curve *curve_of_channel(const struct anynpu_fixed_point *fixed, size_t channel)
{
    return fixed->curves + (fixed->curve == NULL ? 0 : fixed->curve[channel]);
}

static inline int32_t curve_code(const struct anynpu_epilogue *e, size_t channel, int64_t index)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const int64_t value = anynpu_curve_entry(curve_of_channel(fixed, channel), index);
    return anynpu_fixed_output(e, channel, value, fixed->multiplier[channel], fixed->shift[channel]);
}

/* The first index from which on the code stays; 0 where that is too far. The line rises, and so do the codes. */
static inline int32_t curve_last(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
    int32_t low = ANYNPU_CURVE_HALF, high = CURVE_MAX_INDEX;
    if (curve->slope == 0)
        return low;
    if (curve->slope < 0 || e->fixed->multiplier[channel] < 0)
        return 0;
    const int32_t end = curve_code(e, channel, high);
    if (end != e->high[channel] && end != curve_code(e, channel, low))
        return 0;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (curve_code(e, channel, middle) == end)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Whether the channel's table is that of the channel before. */
static inline int curve_is_shared(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const size_t before = channel - 1;
    return channel > 0 && curve_of_channel(fixed, channel) == curve_of_channel(fixed, before) &&
           fixed->multiplier[channel] == fixed->multiplier[before] && fixed->shift[channel] == fixed->shift[before] &&
           e->zero_point[channel] == e->zero_point[before] && e->low[channel] == e->low[before] && e->high[channel] == e->high[before];
}

/* Whether all channels have tables, and there are few of them. Their other numbers are within the limits of fixed_forms.h. */
static inline int curves_fit(const struct anynpu_epilogue *e, size_t channels)
{
    size_t tables = 0;
    for (size_t channel = 0; channel < channels; channel++) {
        const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
        if (curve_is_shared(e, channel))
            continue;
        if (++tables > CURVE_MAX_TABLES || curve->multiplier < 0 || curve->multiplier > 1 << 20 || curve->shift < 0 ||
            curve->shift > 31 || curve_last(e, channel) == 0)
            return 0;
    }
    return 1;
}

static inline size_t curves_size(const struct anynpu_epilogue *e, size_t channels)
{
    size_t size = 2 * sizeof(int32_t) * curve_channels(channels);
    if (e->fixed == NULL || e->fixed->curves == NULL)
        return 0;
    for (size_t channel = 0; channel < channels; channel++)
        if (!curve_is_shared(e, channel))
            size += (size_t)(ANYNPU_CURVE_HALF + curve_last(e, channel) + 1);
    return (size + 63) / 64 * 64;
}

static inline struct curve_tables curve_tables_at(const void *packed, size_t channels)
{
    const int32_t *zero = packed, *last = zero + curve_channels(channels);
    return (struct curve_tables){zero, last, (const int8_t *)(last + curve_channels(channels))};
}

static inline void curves_pack(const struct anynpu_epilogue *e, size_t channels, void *packed)
{
    int32_t *zero = packed, *last = zero + curve_channels(channels), at = 0;
    int8_t *entries = (int8_t *)(last + curve_channels(channels));
    if (e->fixed == NULL || e->fixed->curves == NULL)
        return;
    for (size_t channel = 0; channel < channels; channel++) {
        if (curve_is_shared(e, channel)) {
            zero[channel] = zero[channel - 1];
            last[channel] = last[channel - 1];
            continue;
        }
        zero[channel] = at + ANYNPU_CURVE_HALF;
        last[channel] = curve_last(e, channel);
        for (int32_t index = -ANYNPU_CURVE_HALF; index <= last[channel]; index++)
            entries[at++] = (int8_t)curve_code(e, channel, index);
    }
}

#endif
