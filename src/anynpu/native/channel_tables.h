/* Tables that differ per channel, where there are few different ones.
 *
 * Channels of one table are often scattered, and a run of two or three of them is no vector. So every code is looked up in each table, and
 * the entry of its own channel's table is kept, byte by byte: two or three passes over whole vectors. */
#ifndef ANYNPU_CHANNEL_TABLES_H
#define ANYNPU_CHANNEL_TABLES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CHANNEL_TABLES 4   /* different tables for which that pays */
#define CHANNEL_BLOCK 2048 /* bytes at a time: the buffers stay in the first-level cache */
#define CHANNEL_SLACK 64   /* a kernel may read whole vectors */

/* y[i] = table[(uint8_t)y[i]], for rows of count quantized values */
typedef void translate_in_place(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table);

/* The different rows in use; 0 where there are more than CHANNEL_TABLES. */
static inline size_t different_rows(const int32_t *row, size_t channels, int32_t rows[CHANNEL_TABLES])
{
    size_t count = 0;
    for (size_t channel = 0; channel < channels; channel++) {
        size_t i = 0;
        while (i < count && rows[i] != row[channel])
            i++;
        if (i == count) {
            if (count == CHANNEL_TABLES)
                return 0;
            rows[count++] = row[channel];
        }
    }
    return count;
}

/* y = table[row of the channel][x] for dense pixels of channels; x and y may be the same. 0 where it does not pay: nothing was done. */
static inline int translate_by_channel(const int8_t *table, const int32_t *row, const int8_t *x, int8_t *y, size_t channels,
                                       size_t pixels, translate_in_place *translate)
{
    int32_t rows[CHANNEL_TABLES];
    int8_t chosen[CHANNEL_BLOCK + CHANNEL_SLACK], other[CHANNEL_BLOCK + CHANNEL_SLACK];
    int8_t masks[CHANNEL_TABLES][CHANNEL_BLOCK];
    const size_t tables = channels <= CHANNEL_BLOCK ? different_rows(row, channels, rows) : 0;
    if (tables == 0)
        return 0;
    const size_t whole = CHANNEL_BLOCK / channels < pixels ? CHANNEL_BLOCK / channels : pixels;
    for (size_t t = 1; t < tables; t++)
        for (size_t pixel = 0; pixel < whole; pixel++)
            for (size_t channel = 0; channel < channels; channel++)
                masks[t][pixel * channels + channel] = row[channel] == rows[t] ? -1 : 0;
    for (size_t done = 0, some; done < pixels; done += some) {
        some = pixels - done < whole ? pixels - done : whole;
        const size_t count = some * channels;
        memcpy(chosen, x + done * channels, count);
        translate(chosen, 1, 0, count, table + 256 * (ptrdiff_t)rows[0]);
        for (size_t t = 1; t < tables; t++) {
            memcpy(other, x + done * channels, count);
            translate(other, 1, 0, count, table + 256 * (ptrdiff_t)rows[t]);
            for (size_t i = 0; i < count; i++)
                chosen[i] = (int8_t)((chosen[i] & ~masks[t][i]) | (other[i] & masks[t][i]));
        }
        memcpy(y + done * channels, chosen, count);
    }
    return 1;
}

#endif
