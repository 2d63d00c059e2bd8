/* Statistics of float tensors for calibration. Compiled once for each level. */
#include <math.h>
#include <string.h>

#include "levels.h"

/* As many independent minima and maxima as fill the vector registers: one alone would wait for itself. */
#define LANES 64

static void minmax_f32(const float *values, size_t count, float range[2])
{
    float low = INFINITY, high = -INFINITY;
    size_t i = 0;
    if (count >= LANES) {
        float lows[LANES], highs[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            lows[lane] = INFINITY;
            highs[lane] = -INFINITY;
        }
        for (; i + LANES <= count; i += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                float value = values[i + lane];
                lows[lane] = value < lows[lane] ? value : lows[lane];
                highs[lane] = value > highs[lane] ? value : highs[lane];
            }
        for (int lane = 0; lane < LANES; lane++) {
            low = lows[lane] < low ? lows[lane] : low;
            high = highs[lane] > high ? highs[lane] : high;
        }
    }
    for (; i < count; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    range[0] = low;
    range[1] = high;
}

/* The largest magnitude of floats states all: the bits of a NaN are above those of infinity, and these above all others. */
#define WORST(name, type, mask, infinity)                                                                                \
    static int name(const void *values, size_t count)                                                                          \
    {                                                                                                                          \
        const type *restrict bits = values;                                                                                    \
        type largest = 0;                                                                                                      \
        for (size_t i = 0; i < count; i++) {                                                                                   \
            type magnitude = (type)(bits[i] & mask);                                                                           \
            largest = magnitude > largest ? magnitude : largest;                                                               \
        }                                                                                                                      \
        return largest < infinity ? ANYNPU_FINITE : largest > infinity ? ANYNPU_NAN : ANYNPU_INFINITE;                         \
    }

WORST(worst_f32, int32_t, 0x7fffffff, 0x7f800000)
WORST(worst_f16, int16_t, 0x7fff, 0x7c00)
WORST(worst_bf16, int16_t, 0x7fff, 0x7f80)

static int worst(int type, const void *values, size_t count)
{
    switch (type) {
    case ANYNPU_F32:
        return worst_f32(values, count);
    case ANYNPU_F16:
        return worst_f16(values, count);
    case ANYNPU_BF16:
        return worst_bf16(values, count);
    default:
        return ANYNPU_FINITE;
    }
}

/* Neighboring values often fall into the same bin (zeros after ReLU), and a counter that is written cannot be read again for some
 * cycles: so neighbors count into separate tables. */
#define TABLES 4
#define TABLE_BINS 4096
#define TILE 1024
#define TABLE_LIMIT (1u << 30)

static void bin_indices(const float *restrict values, int count, float low, float inverse_step, uint32_t bins, int32_t *restrict index)
{
    float last = (float)(bins - 1);
    int32_t nowhere = (int32_t)bins;
    for (int i = 0; i < count; i++) {
        float position = (values[i] - low) * inverse_step;
        float clamped = position > 0.0f ? position : 0.0f;
        clamped = clamped < last ? clamped : last;
        int32_t bin = (int32_t)clamped;
        index[i] = position == position ? bin : nowhere;
    }
}

static void histogram_f32(const float *values, size_t count, float low, float inverse_step, uint32_t bins, uint64_t *counts)
{
    int32_t index[TILE];
    if (bins == 0)
        return;
    if (bins > TABLE_BINS) {
        for (size_t start = 0; start < count; start += TILE) {
            int length = count - start < TILE ? (int)(count - start) : TILE;
            bin_indices(values + start, length, low, inverse_step, bins, index);
            for (int i = 0; i < length; i++)
                if (index[i] != (int32_t)bins)
                    counts[index[i]]++;
        }
        return;
    }
    uint32_t tables[TABLES][TABLE_BINS + 1];
    while (count > 0) {
        size_t part = count < TABLE_LIMIT ? count : TABLE_LIMIT;
        for (int table = 0; table < TABLES; table++)
            memset(tables[table], 0, (bins + 1) * sizeof(uint32_t));
        for (size_t start = 0; start < part; start += TILE) {
            int length = part - start < TILE ? (int)(part - start) : TILE;
            bin_indices(values + start, length, low, inverse_step, bins, index);
            int i = 0;
            for (; i + TABLES <= length; i += TABLES)
                for (int table = 0; table < TABLES; table++)
                    tables[table][index[i + table]]++;
            for (; i < length; i++)
                tables[0][index[i]]++;
        }
        for (uint32_t bin = 0; bin < bins; bin++)
            for (int table = 0; table < TABLES; table++)
                counts[bin] += tables[table][bin];
        values += part;
        count -= part;
    }
}

extern const struct anynpu_statistics_kernels LEVELLED(statistics);
const struct anynpu_statistics_kernels LEVELLED(statistics) = {minmax_f32, histogram_f32, worst};
