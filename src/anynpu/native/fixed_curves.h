/* Activations as tables of quantized values: the code is a function of the curve's index alone (arithmetic.h), which takes few values.
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

/* A table as steps, for processors that look up many bytes at once: buckets of indices of the same width, for each the code at its
 * beginning, and by how many indices each step up by 1 comes later. Where quantized values fall, in the first buckets, all that is seen from the end. */
enum { CURVE_BUCKETS = 256, CURVE_MAX_STEPS = 15, CURVE_NO_STEP = 255 };

struct curve_steps {
    int32_t shift;   /* 2^shift indices are a bucket */
    int32_t buckets; /* 128 or 256 */
    int32_t turn;    /* the first bucket where quantized values do not fall */
    int32_t count;   /* of steps in a bucket, at the most; 0: the table is not held as steps */
    uint8_t codes[CURVE_BUCKETS];
    uint8_t last[CURVE_MAX_STEPS][CURVE_BUCKETS]; /* the last index of the bucket before the step; CURVE_NO_STEP: there is none */
};

/* How all channels end if they share a table, and the indices among which quantized values change are not too many: then a place in the table is a
 * word of 16 bits. */
struct curve_words {
    int32_t usable;
    int32_t first, last; /* nothing changes up to the one, nor from the other on */
    struct curve_steps steps;
};

#define CURVE_WORDS_BYTES ((sizeof(struct curve_words) + 63) / 64 * 64)

/* Where packed memory has them: struct curve_words; per channel the place of index 0, the same less the bits of a magic number, and floats
 * (fixed_forms.h); then the entries. */
struct curve_tables {
    const struct curve_words *words;
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

/* The first index from which on the code stays; 0 where that is too far. The line rises, and so do the quantized values. */
static inline int32_t curve_last(const struct anynpu_epilogue *e, size_t channel)
{
    const struct anynpu_curve *curve = curve_of_channel(e->fixed, channel);
    int32_t low = ANYNPU_CURVE_HALF, high = CURVE_MAX_INDEX;
    if (curve->slope == 0)
        return low;
    if (curve->slope < 0 || e->fixed->multiplier[channel] < 0)
        return 0;
    const int32_t end = curve_code(e, channel, high);
    if (curve_code(e, channel, INT32_MAX) != end) /* a line that hardly rises goes on beyond the largest index */
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

/* Whether two channels' quantized values are the same function of the index. */
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
    size_t size = size_plus(CURVE_WORDS_BYTES, size_times(CURVE_CHANNEL_BYTES, curve_channels(channels)));
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
    const int32_t *zero = (const int32_t *)(const void *)((const uint8_t *)packed + CURVE_WORDS_BYTES);
    const float *numbers = (const float *)(const void *)(zero + 2 * count);
    return (struct curve_tables){packed, zero, zero + count, numbers, (const int8_t *)(numbers + CURVE_NUMBERS * count)};
}

/* Quantized values at places in the entries. Eight at a time are one store: quantized values are written where the compiler cannot know what else lies, and it
 * would look for the entries again after each. */
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

/* Quantized values of words: places in the table, counted from that of the index `first`. */
static inline void curve_look_up_words(const struct curve_tables *curves, const uint16_t *words, size_t count, int8_t *y)
{
    const int8_t *entries = curves->entries + curves->zero[0] + curves->words->first;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        int8_t eight[8] = {entries[words[i]],     entries[words[i + 1]], entries[words[i + 2]], entries[words[i + 3]],
                           entries[words[i + 4]], entries[words[i + 5]], entries[words[i + 6]], entries[words[i + 7]]};
        memcpy(y + i, eight, sizeof eight);
    }
    for (; i < count; i++)
        y[i] = entries[words[i]];
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

/* Buckets of 2^shift entries, the first of which may be below the table's; 0 where a bucket has too many steps, or both up and down. */
static inline int curve_pack_steps(const int8_t *entries, int32_t count, int32_t buckets, int32_t shift, struct curve_steps *steps)
{
    const int32_t width = 1 << shift, mask = width - 1;
    *steps = (struct curve_steps){.shift = shift, .buckets = buckets, .count = 1};
    memset(steps->last, CURVE_NO_STEP, sizeof steps->last);
    for (int32_t at = 1; at < count; at++)
        if (entries[at] < entries[at - 1] && (at & mask) != 0)
            steps->turn = (at >> shift) + 1;
    for (int32_t bucket = 0; bucket < buckets; bucket++) {
        const int32_t first = bucket << shift, falls = bucket < steps->turn;
        const int32_t begin = falls ? first + mask : first;
        int32_t found = 0;
        steps->codes[bucket] = (uint8_t)entries[begin < count ? begin : count - 1];
        for (int32_t i = 1; i < width; i++) { /* from the bucket's begin, wherever that is */
            const int32_t to = falls ? begin - i : begin + i, from = falls ? to + 1 : to - 1;
            int32_t rise = entries[to < count ? to : count - 1] - entries[from < count ? from : count - 1];
            if (rise < 0)
                return 0;
            for (; rise > 0; rise--) {
                if (found == CURVE_MAX_STEPS)
                    return 0;
                steps->last[found++][bucket] = (uint8_t)(i - 1);
            }
        }
        steps->count = found > steps->count ? found : steps->count;
    }
    return 1;
}

/* The form that costs least: a step of 128 buckets takes 3 instructions, one of 256 takes 5. */
static inline void curve_choose_steps(const int8_t *entries, int32_t count, struct curve_steps *steps)
{
    enum { MOST = 70 };
    struct curve_steps fine;
    int32_t shift = 0, has_coarse, has_fine;
    while (count > 128 << shift)
        shift++;
    has_coarse = shift <= 8 && curve_pack_steps(entries, count, 128, shift, steps);
    shift -= shift > 0;
    has_fine = count <= 256 << shift && shift <= 8 && curve_pack_steps(entries, count, 256, shift, &fine);
    if (has_fine && (!has_coarse || 5 * fine.count + 3 < 3 * steps->count + 1))
        *steps = fine;
    else if (!has_coarse)
        steps->count = 0;
    if ((steps->buckets == 128 ? 3 : 5) * steps->count > MOST)
        steps->count = 0;
}

/* Whether all channels share a table, whose entries begin with that of the smallest index, and what follows from it. */
static inline void curve_pack_words(const struct anynpu_epilogue *e, size_t channels, const int32_t *zero, const int8_t *entries,
                                    struct curve_words *words)
{
    int32_t first = 0, last = ANYNPU_CURVE_HALF + curve_last(e, 0);
    for (size_t channel = 1; channel < channels; channel++)
        if (zero[channel] != zero[0])
            return;
    /* not beyond index 0, which lanes without a channel have: kernels look them up, too */
    while (first < last && first < ANYNPU_CURVE_HALF && entries[first + 1] == entries[0])
        first++;
    while (last > first && entries[last - 1] == entries[last])
        last--;
    words->first = first - ANYNPU_CURVE_HALF;
    words->last = last - ANYNPU_CURVE_HALF;
    words->usable = last - first <= UINT16_MAX;
    if (words->usable)
        curve_choose_steps(entries + first, last - first + 1, &words->steps);
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
