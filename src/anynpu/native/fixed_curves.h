/* Activations as tables of codes: the code is a function of the curve's index alone (arithmetic.h), which takes few values.
 *
 * A table has the code of each index from -16384, below which nothing changes, to the one from which on nothing changes: the end of the
 * curve's own tables, or where its straight line reaches the largest code. Channels with the same numbers
 * share a table. */
#ifndef ANYNPU_FIXED_CURVES_H
#define ANYNPU_FIXED_CURVES_H

#include <string.h>

#include "arithmetic.h"
#include "sizes.h"

#define CURVE_MAX_INDEX (1 << 20)
#define CURVE_MAX_TABLES 16

/* Where packed memory has them: by channel the place of index 0, the same less the bits of a magic number, and floats (fixed_forms.h);
 * then the entries. */
struct curve_tables {
    const int32_t *zero, *start;
    const float *numbers;
    const int8_t *entries;
};

/* The floats, each for all channels. */
enum curve_number {
    CURVE_CHANNEL, /* factor of the first stage */
    CURVE_BACK,    /* what is taken away after it: the magic number less the offset */
    CURVE_FACTOR,  /* from there to the index */
    CURVE_LOW,     /* limits of the index, with the magic number */
    CURVE_HIGH,
    CURVE_NUMBERS
};

#define CURVE_CHANNEL_BYTES (2 * sizeof(int32_t) + CURVE_NUMBERS * sizeof(float))

static inline size_t curve_channels(size_t channels)
{
    return size_whole(channels, ANYNPU_CHANNEL_PADDING);
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

/* Whether two channels' codes are the same function of the index. */
static inline int curve_is_same(const struct anynpu_epilogue *e, size_t channel, size_t other)
{
    const struct anynpu_fixed_point *fixed = e->fixed;
    const struct anynpu_curve *a = curve_of_channel(fixed, channel), *b = curve_of_channel(fixed, other);
    const size_t size = (ANYNPU_CURVE_LAST + 1) * sizeof *a->negative;
    return fixed->multiplier[channel] == fixed->multiplier[other] && fixed->shift[channel] == fixed->shift[other] &&
           e->zero_point[channel] == e->zero_point[other] && e->low[channel] == e->low[other] && e->high[channel] == e->high[other] &&
           (a == b || (a->slope == b->slope && a->slope_shift == b->slope_shift && memcmp(a->negative, b->negative, size) == 0 &&
                       memcmp(a->positive, b->positive, size) == 0));
}

/* The channels that have a table of their own: the first of all that share it. */
struct curve_owners {
    size_t channels[CURVE_MAX_TABLES];
    size_t count;
};

/* The channel whose table is that of the channel, which becomes an owner if there is none; SIZE_MAX where there are too many. Channels are
 * asked for in order. */
static inline size_t curve_owner(const struct anynpu_epilogue *e, struct curve_owners *owners, size_t channel)
{
    for (size_t i = owners->count; i-- > 0;)
        if (curve_is_same(e, channel, owners->channels[i]))
            return owners->channels[i];
    if (owners->count == CURVE_MAX_TABLES)
        return SIZE_MAX;
    owners->channels[owners->count++] = channel;
    return channel;
}

/* Whether all channels have tables, and there are few of them. Their other numbers are within the limits of fixed_forms.h. */
static inline int curves_fit(const struct anynpu_epilogue *e, size_t channels)
{
    struct curve_owners owners = {.count = 0};
    for (size_t channel = 0; channel < channels; channel++) {
        const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
        const size_t owner = curve_owner(e, &owners, channel);
        if (owner == SIZE_MAX || curve->multiplier < 0 || curve->multiplier > 1 << 20 || curve->shift < 0 || curve->shift > 31 ||
            (owner == channel && curve_last(e, channel) == 0))
            return 0;
    }
    return 1;
}

static inline size_t curves_size(const struct anynpu_epilogue *e, size_t channels)
{
    struct curve_owners owners = {.count = 0};
    size_t size = size_times(CURVE_CHANNEL_BYTES, curve_channels(channels));
    if (e->fixed == NULL || e->fixed->curves == NULL)
        return 0;
    for (size_t channel = 0; channel < channels; channel++)
        if (curve_owner(e, &owners, channel) == channel)
            size = size_plus(size, (size_t)(ANYNPU_CURVE_HALF + curve_last(e, channel) + 1));
    return size_whole(size, 64);
}

static inline struct curve_tables curve_tables_at(const void *packed, size_t channels)
{
    const size_t count = curve_channels(channels);
    const int32_t *zero = packed;
    const float *numbers = (const float *)packed + 2 * count;
    return (struct curve_tables){zero, zero + count, numbers, (const int8_t *)(numbers + CURVE_NUMBERS * count)};
}

/* Codes at places in the entries. Eight at a time are one store: codes are written where the compiler cannot know what else lies, and it
 * would look for the entries anew after each. */
static inline void curve_look_up(const int8_t *entries, const uint32_t *places, size_t count, int8_t *y)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        int8_t eight[8] = {entries[places[i]],     entries[places[i + 1]], entries[places[i + 2]], entries[places[i + 3]],
                           entries[places[i + 4]], entries[places[i + 5]], entries[places[i + 6]], entries[places[i + 7]]};
        memcpy(y + i, eight, sizeof eight);
    }
    for (; i < count; i++)
        y[i] = entries[places[i]];
}

/* The index that a scaled sum has, within the limits of the channel's table. */
static inline int32_t curve_index(const struct anynpu_epilogue *e, size_t channel, int64_t scaled)
{
    const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
    const int64_t index = anynpu_shift_right((scaled + curve->offset) * curve->multiplier, curve->shift);
    return (int32_t)anynpu_clamp(index, -ANYNPU_CURVE_HALF, curve_last(e, channel));
}

/* The limits of the index: those of the bounds, where there are some, for it does not fall when a sum rises. */
static inline int32_t curve_lowest(const struct anynpu_epilogue *e, size_t channel)
{
    return e->fixed->low == NULL ? -ANYNPU_CURVE_HALF : curve_index(e, channel, e->fixed->low[channel]);
}

static inline int32_t curve_highest(const struct anynpu_epilogue *e, size_t channel)
{
    return e->fixed->high == NULL ? curve_last(e, channel) : curve_index(e, channel, e->fixed->high[channel]);
}

/* Tables, and where each channel has its own. */
static inline void curves_pack(const struct anynpu_epilogue *e, size_t channels, int32_t *zero, int8_t *entries)
{
    struct curve_owners owners = {.count = 0};
    int32_t at = 0;
    for (size_t channel = 0; channel < channels; channel++) {
        const size_t owner = curve_owner(e, &owners, channel);
        zero[channel] = zero[owner];
        if (owner != channel)
            continue;
        zero[channel] = at + ANYNPU_CURVE_HALF;
        const int32_t last = curve_last(e, channel);
        for (int32_t index = -ANYNPU_CURVE_HALF; index <= last; index++)
            entries[at++] = (int8_t)curve_code(e, channel, index);
    }
}

#endif
