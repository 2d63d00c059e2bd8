/* Convolution of int8 with AVX512-VNNI.
 *
 * vpdpbusd multiplies unsigned by signed bytes. Activations stay signed as they are and the weights are the unsigned side,
 * stored as code + 128: every channel has a weight zero point anyway, so the shift costs nothing.
 *   acc = sum(a * wu) - weight_zero * S + bias,    S = sum of the activations under the pixel
 * S is one addition for every Cout multiplications, and padding with the input's zero point makes it right at the borders
 * too. */
#include <immintrin.h>

#include "conv_common.h"
#include "curves_vnni.h"

/* A tile is `blocks` registers of 16 channels, perhaps half of one more, times `pixels`: as many accumulators as the 32
 * registers hold beside the weights. */
#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL
#define ROW_FUNCTION CONV_ROW_FUNCTION
#define MAX_BLOCKS 4
#define MAX_PIXELS 14
#define MAX_WORDS 384 /* accumulators of a tile, at the most */

/* ---------------------------------------------------------------- from accumulators to quantized values */

/* Zero points of the tile's blocks as packs_epi32 would leave them. */
struct zero_points {
    __m512i pairs[MAX_BLOCKS / 2];
};

INLINE struct zero_points load_zero_points(int count, const struct conv_line *line)
{
    struct zero_points zero;
    UNROLL for (int pair = 0; 2 * pair < count; pair++) {
        const int32_t *first = line->channels.zero_point + 32 * pair;
        const int32_t *second = 2 * pair + 1 < count ? first + 16 : first;
        zero.pairs[pair] = _mm512_packs_epi32(_mm512_loadu_si512(first), _mm512_loadu_si512(second));
    }
    return zero;
}

/* Rounded to integers, before the zero point is added. A float that is too large is clamped here; one that is too small
 * becomes the smallest integer, which stays the smallest when it is packed, and the lower clamp waits until 64 quantized values are in
 * one register. */
INLINE __m512i finish_block(__m512i accumulator, const struct conv_line *line, size_t channel, const int8_t *residual, int slope)
{
    const struct conv_channels *channels = &line->channels;
    __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(accumulator), _mm512_loadu_ps(channels->multiplier + channel));
    if (residual) {
        __m512i codes = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(residual + channel)));
        __m512 values = _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_loadu_si512(channels->residual_zero + channel)));
        f = _mm512_add_ps(f, _mm512_mul_ps(values, _mm512_loadu_ps(channels->residual_multiplier + channel)));
    }
    if (slope) {
        __mmask16 negative = _mm512_cmp_ps_mask(f, _mm512_setzero_ps(), _CMP_LT_OQ);
        f = _mm512_mask_mul_ps(f, negative, f, _mm512_loadu_ps(channels->slope + channel));
    }
    return _mm512_cvtps_epi32(_mm512_min_ps(f, _mm512_loadu_ps(channels->high + channel)));
}

/* The same by the chip's rule: see fixed_forms.h. The zero point is in it, and sums are clamped already (clamp_sums). */
INLINE __m512i finish_fixed(__m512i accumulator, const struct conv_line *line, size_t channel, const int8_t *residual)
{
    const struct conv_channels *channels = &line->channels;
    const __m512 magic = _mm512_set1_ps(FIXED_MAGIC);
    __m512 t = _mm512_sub_ps(_mm512_fmadd_ps(_mm512_cvtepi32_ps(accumulator), _mm512_loadu_ps(channels->multiplier + channel), magic), magic);
    if (residual) {
        __m512i codes = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(residual + channel)));
        __m512 values = _mm512_cvtepi32_ps(_mm512_sub_epi32(codes, _mm512_loadu_si512(channels->residual_zero + channel)));
        values = _mm512_fmadd_ps(values, _mm512_loadu_ps(channels->residual_multiplier + channel), magic);
        t = _mm512_add_ps(t, _mm512_sub_ps(values, magic));
    }
    t = _mm512_fmadd_ps(t, _mm512_loadu_ps(channels->factor + channel), _mm512_loadu_ps(channels->offset + channel));
    return _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(FIXED_MAGIC_BITS));
}

/* Quantized values of up to four blocks in one register. Packing saturates and interleaves by lanes of 128 bits; zero points are added
 * between. */
INLINE __m512i pack_blocks(int count, const __m512i *blocks, const struct zero_points *zero, const int8_t *low)
{
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(blocks[0], blocks[count > 1 ? 1 : 0]), zero->pairs[0]);
    __m512i second = first;
    if (count > 2)
        second = _mm512_adds_epi16(_mm512_packs_epi32(blocks[2], blocks[count > 3 ? 3 : 2]), zero->pairs[1]);
    __m512i codes = _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(first, second));
    return _mm512_max_epi8(codes, _mm512_loadu_si512(low));
}

INLINE __m512i pack_fixed(int count, const __m512i *blocks, const struct conv_channels *channels)
{
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i first = _mm512_packs_epi32(blocks[0], blocks[count > 1 ? 1 : 0]);
    __m512i second = count > 2 ? _mm512_packs_epi32(blocks[2], blocks[count > 3 ? 3 : 2]) : first;
    __m512i codes = _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(first, second));
    codes = _mm512_min_epi8(codes, _mm512_loadu_si512(channels->high_codes));
    return _mm512_max_epi8(codes, _mm512_loadu_si512(channels->low_codes));
}

INLINE void store_codes(int blocks, int half, __m512i codes, int8_t *y)
{
    if (blocks == 4)
        _mm512_storeu_si512(y, codes);
    if (blocks == 2 || blocks == 3)
        _mm256_storeu_si256((__m256i *)y, _mm512_castsi512_si256(codes));
    if (blocks == 3)
        _mm_storeu_si128((__m128i *)(y + 32), _mm512_extracti32x4_epi32(codes, 2));
    if (blocks == 1)
        _mm_storeu_si128((__m128i *)y, _mm512_castsi512_si128(codes));
    if (blocks == 1 && half)
        _mm_storel_epi64((__m128i *)(y + 16), _mm512_extracti32x4_epi32(codes, 1));
    if (blocks == 0)
        _mm_storel_epi64((__m128i *)y, _mm512_castsi512_si128(codes));
}

/* FIXED_CURVE without a residual: see fixed_single_curve_codes in fixed_forms.h. The index has its place in the low 16 bits. */
struct curve_numbers {
    __m512 channel, back, factor, low, high;
};

INLINE struct curve_numbers load_curve_numbers(const float *numbers, size_t stride)
{
    return (struct curve_numbers){
        _mm512_loadu_ps(numbers + CURVE_CHANNEL * stride), _mm512_loadu_ps(numbers + CURVE_BACK * stride),
        _mm512_loadu_ps(numbers + CURVE_FACTOR * stride), _mm512_loadu_ps(numbers + CURVE_LOW * stride),
        _mm512_loadu_ps(numbers + CURVE_HIGH * stride)};
}

INLINE __m512i curve_index_of(__m512i accumulator, const struct curve_numbers *numbers)
{
    const __m512 magic = _mm512_set1_ps(FIXED_MAGIC);
    __m512 t = _mm512_fmadd_ps(_mm512_cvtepi32_ps(accumulator), numbers->channel, magic);
    t = _mm512_fmadd_ps(_mm512_sub_ps(t, numbers->back), numbers->factor, magic);
    return _mm512_castps_si512(_mm512_min_ps(_mm512_max_ps(t, numbers->low), numbers->high));
}

/* Quantized values of a tile, the pixels of which have `width` words each. */
static __attribute__((noinline)) void finish_words(const struct conv_line *line, ptrdiff_t first, size_t pixels, size_t width,
                                                   const uint16_t *words)
{
    int8_t codes[MAX_WORDS + CURVE_GROUP];
    int8_t *y = line->y + first * line->out_stride;
    curve_find_words(&line->tables.curves, words, pixels * width, codes);
    if ((size_t)line->out_stride == width) {
        memcpy(y, codes, pixels * width);
        return;
    }
    for (size_t i = 0; i < pixels; i++, y += line->out_stride)
        if (line->valid == 64)
            memcpy(y, codes + i * width, 64);
        else if (line->valid == 32)
            memcpy(y, codes + i * width, 32);
        else if (line->valid == 16)
            memcpy(y, codes + i * width, 16);
        else
            memcpy(y, codes + i * width, line->valid);
}

INLINE void finish_curve(int blocks, int half, int pixels, __m512i accumulators[][MAX_BLOCKS], const struct conv_line *line,
                         ptrdiff_t first)
{
    const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22, 20, 18,
                                          16, 14, 12, 10, 8, 6, 4, 2, 0);
    const int width = 16 * blocks + 8 * half;
    const size_t stride = line->tables.stride;
    const float *numbers = line->tables.curves.numbers + line->channel;
    const __m512i begin = _mm512_set1_epi16((short)line->tables.curves.words->first);
    uint16_t words[MAX_WORDS + CURVE_GROUP];
    UNROLL for (int j = 0; j < blocks + half; j += 2) {
        const int pair = j + 1 < blocks + half;
        const struct curve_numbers left = load_curve_numbers(numbers + 16 * j, stride);
        const struct curve_numbers right = pair ? load_curve_numbers(numbers + 16 * j + 16, stride) : left;
        UNROLL for (int i = 0; i < pixels; i++) {
            uint16_t *to = words + i * width + 16 * j;
            const __m512i a = curve_index_of(accumulators[i][j], &left);
            const __m512i b = pair ? curve_index_of(accumulators[i][j + 1], &right) : a;
            const __m512i both = _mm512_sub_epi16(_mm512_permutex2var_epi16(a, even, b), begin);
            const int some = width - 16 * j;
            if (some >= 32) {
                _mm512_storeu_si512(to, both);
            } else if (some >= 16) {
                _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(both));
                if (some == 24)
                    _mm_storeu_si128((__m128i *)(to + 16), _mm512_extracti32x4_epi32(both, 2));
            } else {
                _mm_storeu_si128((__m128i *)to, _mm512_castsi512_si128(both));
            }
        }
    }
    finish_words(line, first, (size_t)pixels, (size_t)width, words);
}

/* What is rare: a slope, channels that do not exist, rounding mode ``simulator`` with a residual. From memory, and for all shapes of tiles. */
ROW_FUNCTION finish_rare(size_t blocks, size_t pixels, __m512i accumulators[][MAX_BLOCKS], const struct conv_line *line,
                         ptrdiff_t first)
{
    struct zero_points zero = load_zero_points(MAX_BLOCKS, line);
    for (size_t i = 0; i < pixels; i++) {
        ptrdiff_t at = (first + (ptrdiff_t)i) * line->out_stride;
        const int8_t *residual = line->residual ? line->residual + at : NULL;
        if (line->form >= FIXED_CURVE) {
            fixed_codes(line->form, line->epilogue, &line->tables, line->channel, line->valid, (const int32_t *)accumulators[i],
                        residual, line->y + at);
            continue;
        }
        __m512i rounded[MAX_BLOCKS] = {0};
        for (size_t j = 0; j < blocks; j++)
            rounded[j] = line->form == FIXED_NONE ? finish_block(accumulators[i][j], line, 16 * j, residual, line->has_slope)
                                                  : finish_fixed(accumulators[i][j], line, 16 * j, residual);
        __m512i codes = line->form == FIXED_NONE ? pack_blocks(MAX_BLOCKS, rounded, &zero, line->channels.low_codes)
                                                 : pack_fixed(MAX_BLOCKS, rounded, &line->channels);
        _mm512_mask_storeu_epi8(line->y + at, ~0ull >> (64 - line->valid), codes);
    }
}

/* The chip's rule with a residual, in tiles whose channels all exist. */
#define DEFINE_RESIDUAL(blocks, half)                                                                                          \
    ROW_FUNCTION finish_residual_##blocks##_##half(size_t pixels, __m512i accumulators[][MAX_BLOCKS],                          \
                                                   const struct conv_line *shared, ptrdiff_t first)                            \
    {                                                                                                                          \
        const struct conv_line line = *shared;                                                                                 \
        for (size_t i = 0; i < pixels; i++) {                                                                                  \
            const ptrdiff_t at = (first + (ptrdiff_t)i) * line.out_stride;                                                     \
            __m512i rounded[MAX_BLOCKS];                                                                                       \
            UNROLL for (int j = 0; j < blocks + half; j++)                                                                     \
                rounded[j] = finish_fixed(accumulators[i][j], &line, 16 * (size_t)j, line.residual + at);                      \
            store_codes(blocks, half, pack_fixed(blocks + half, rounded, &line.channels), line.y + at);                        \
        }                                                                                                                      \
    }

DEFINE_RESIDUAL(4, 0)
DEFINE_RESIDUAL(3, 0)
DEFINE_RESIDUAL(2, 0)
DEFINE_RESIDUAL(1, 1)
DEFINE_RESIDUAL(1, 0)
DEFINE_RESIDUAL(0, 1)

INLINE void finish_residual(int blocks, int half, size_t pixels, __m512i accumulators[][MAX_BLOCKS], const struct conv_line *line,
                            ptrdiff_t first)
{
    if (blocks == 4)
        finish_residual_4_0(pixels, accumulators, line, first);
    else if (blocks == 3)
        finish_residual_3_0(pixels, accumulators, line, first);
    else if (blocks == 2)
        finish_residual_2_0(pixels, accumulators, line, first);
    else if (blocks == 1 && half)
        finish_residual_1_1(pixels, accumulators, line, first);
    else if (blocks == 1)
        finish_residual_1_0(pixels, accumulators, line, first);
    else
        finish_residual_0_1(pixels, accumulators, line, first);
}

/* No sum beyond what FIXED_SINGLE holds. */
INLINE void clamp_sums(int blocks, int pixels, __m512i accumulators[][MAX_BLOCKS], const struct conv_line *line)
{
    UNROLL for (int j = 0; j < blocks; j++) {
        const __m512i most = _mm512_cvtps_epi32(_mm512_loadu_ps(line->channels.high + 16 * j));
        const __m512i least = _mm512_sub_epi32(_mm512_setzero_si512(), most);
        UNROLL for (int i = 0; i < pixels; i++)
            accumulators[i][j] = _mm512_min_epi32(_mm512_max_epi32(accumulators[i][j], least), most);
    }
}

INLINE void finish_tile(int blocks, int half, int pixels, __m512i accumulators[][MAX_BLOCKS], const struct conv_line *line,
                        ptrdiff_t first)
{
    if (line->form == FIXED_CURVE && !line->residual && line->tables.curves.words->usable) {
        finish_curve(blocks, half, pixels, accumulators, line, first);
        return;
    }
    if (line->form == FIXED_SINGLE && line->clamps)
        clamp_sums(blocks + half, pixels, accumulators, line);
    if (line->residual || line->has_slope || line->form >= FIXED_CURVE || line->valid != (size_t)(16 * blocks + 8 * half)) {
        __m512i copies[MAX_PIXELS][MAX_BLOCKS];
        UNROLL for (int i = 0; i < pixels; i++)
            UNROLL for (int j = 0; j < blocks + half; j++)
                copies[i][j] = accumulators[i][j];
        if (line->form == FIXED_SINGLE && line->residual && line->valid == (size_t)(16 * blocks + 8 * half))
            finish_residual(blocks, half, (size_t)pixels, copies, line, first);
        else
            finish_rare((size_t)(blocks + half), (size_t)pixels, copies, line, first);
        return;
    }
    if (line->form == FIXED_SINGLE) {
        UNROLL for (int i = 0; i < pixels; i++) {
            __m512i rounded[MAX_BLOCKS];
            UNROLL for (int j = 0; j < blocks + half; j++)
                rounded[j] = finish_fixed(accumulators[i][j], line, 16 * (size_t)j, NULL);
            store_codes(blocks, half, pack_fixed(blocks + half, rounded, &line->channels), line->y + (first + i) * line->out_stride);
        }
        return;
    }
    struct zero_points zero = load_zero_points(blocks + half, line);
    UNROLL for (int i = 0; i < pixels; i++) {
        __m512i rounded[MAX_BLOCKS];
        UNROLL for (int j = 0; j < blocks + half; j++)
            rounded[j] = finish_block(accumulators[i][j], line, 16 * (size_t)j, NULL, 0);
        __m512i codes = pack_blocks(blocks + half, rounded, &zero, line->channels.low_codes);
        store_codes(blocks, half, codes, line->y + (first + i) * line->out_stride);
    }
}

/* ---------------------------------------------------------------- multiplication */

INLINE __m512i broadcast4(const int8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

/* As assembly, because gcc 12 copies and spills accumulators around the intrinsic and halves the speed. */
INLINE void multiply(__m512i *accumulator, __m512i weights, __m512i activations)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*accumulator) : "v"(weights), "v"(activations));
}

INLINE void multiply_half(__m512i *accumulator, __m256i weights, __m256i activations)
{
    __m256i half = _mm512_castsi512_si256(*accumulator);
    __asm__("vpdpbusd %2, %1, %0" : "+v"(half) : "v"(weights), "v"(activations));
    *accumulator = _mm512_castsi256_si512(half);
}

/* One tile. The half block has the lower half of an accumulator: a 256-bit multiplication takes half the time. */
INLINE void tile(int blocks, int half, int pixels, const struct conv_line *line, ptrdiff_t first)
{
    __m512i acc[MAX_PIXELS][MAX_BLOCKS];
    UNROLL for (int j = 0; j < blocks + half; j++) {
        __m512i bias = _mm512_loadu_si512(line->channels.bias + 16 * j);
        __m512i zero = _mm512_loadu_si512(line->channels.weight_zero + 16 * j);
        if (line->is_scaled)
            UNROLL for (int i = 0; i < pixels; i++)
                acc[i][j] = _mm512_sub_epi32(bias, _mm512_set1_epi32(line->sums[first + i]));
        else
            UNROLL for (int i = 0; i < pixels; i++)
                acc[i][j] = _mm512_sub_epi32(bias, _mm512_mullo_epi32(zero, _mm512_set1_epi32(line->sums[first + i])));
    }

    const uint8_t *weights = line->weights;
    const ptrdiff_t stride = line->pixel_stride;
    const size_t steps = line->steps;
    for (size_t run = 0; run < line->run_count; run++) {
        const int8_t *a = (const int8_t *)line->runs[run] + first * stride;
        for (size_t step = 0; step < steps; step++) {
            __m512i w[MAX_BLOCKS];
            UNROLL for (int j = 0; j < blocks; j++)
                w[j] = _mm512_loadu_si512(weights + 64 * j);
            __m256i w_half = half ? _mm256_loadu_si256((const __m256i *)(weights + 64 * blocks)) : _mm256_setzero_si256();
            UNROLL for (int i = 0; i < pixels; i++) {
                __m512i four = broadcast4(a + i * stride);
                UNROLL for (int j = 0; j < blocks; j++)
                    multiply(&acc[i][j], w[j], four);
                if (half)
                    multiply_half(&acc[i][blocks], w_half, _mm512_castsi512_si256(four));
            }
            weights += 64 * blocks + 32 * half;
            a += 4;
        }
    }

    finish_tile(blocks, half, pixels, acc, line, first);
}

#define DEFINE_ROW(blocks, half, pixels)                                                                              \
    ROW_FUNCTION row_##blocks##_##half##_##pixels(const struct conv_line *shared, size_t first, size_t tiles)         \
    {                                                                                                                 \
        const struct conv_line line = *shared; /* a copy that no store to the output can change */                    \
        for (size_t t = 0; t < tiles; t++)                                                                            \
            tile(blocks, half, pixels, &line, (ptrdiff_t)(first + t * pixels));                                       \
    }

#define TO_6(use, b, h) use(b, h, 1) use(b, h, 2) use(b, h, 3) use(b, h, 4) use(b, h, 5) use(b, h, 6)
#define TO_8(use, b, h) TO_6(use, b, h) use(b, h, 7) use(b, h, 8)
#define TO_12(use, b, h) TO_8(use, b, h) use(b, h, 9) use(b, h, 10) use(b, h, 11) use(b, h, 12)
#define TO_14(use, b, h) TO_12(use, b, h) use(b, h, 13) use(b, h, 14)

TO_6(DEFINE_ROW, 4, 0)
TO_8(DEFINE_ROW, 3, 0)
TO_12(DEFINE_ROW, 2, 0)
TO_12(DEFINE_ROW, 1, 1)
TO_14(DEFINE_ROW, 1, 0)
TO_12(DEFINE_ROW, 0, 1)

#define NAME_ROW(blocks, half, pixels) row_##blocks##_##half##_##pixels,

static const struct {
    size_t width, most_pixels;
    conv_row_function *rows[MAX_PIXELS]; /* by pixels - 1 */
} shapes[] = {
    {64, 6, {TO_6(NAME_ROW, 4, 0)}},   {48, 8, {TO_8(NAME_ROW, 3, 0)}},   {32, 12, {TO_12(NAME_ROW, 2, 0)}},
    {24, 12, {TO_12(NAME_ROW, 1, 1)}}, {16, 14, {TO_14(NAME_ROW, 1, 0)}}, {8, 12, {TO_12(NAME_ROW, 0, 1)}},
};

/* Wide tiles first, but none so wide that a slow narrow one has to follow. Lines of 7 or 8 pixels are one tile of 48 channels, but two of
 * 64, which would read the weights twice. */
static size_t tile_width(size_t channels, size_t pixels)
{
    if (channels >= 96 && (pixels == 7 || pixels == 8))
        return 48;
    switch (channels / 8) {
    case 1:
        return 8;
    case 2:
        return 16;
    case 3:
    case 5:
        return 24;
    case 4:
    case 7:
        return 32;
    case 6:
    case 9:
    case 10:
    case 12:
    case 13:
        return 48;
    default:
        return 64;
    }
}

static void compute(const struct conv_line *line, size_t width)
{
    size_t shape = 0;
    while (shapes[shape].width != width)
        shape++;
    conv_cut_line(line, shapes[shape].rows, shapes[shape].most_pixels);
}

/* ---------------------------------------------------------------- sums of activations */

/* Sums of 4 elements each. The rest of a run is a whole load of which only the first elements are multiplied by 1, the
 * others by 0. */
INLINE __m512i sum_pixel(const struct conv_runs *runs, size_t pixel)
{
    const __m512i one = _mm512_set1_epi8(1);
    const size_t whole = runs->length / 64 * 64;
    const __m512i rest = _mm512_maskz_mov_epi8((1ull << (runs->length - whole)) - 1, one);
    const int8_t *run = runs->first + pixel * runs->pixel_stride;
    __m512i sum = _mm512_setzero_si512();
    for (size_t tap = 0; tap < runs->taps; tap++, run += runs->tap_stride) {
        for (size_t k = 0; k < whole; k += 64)
            sum = _mm512_dpbusd_epi32(sum, one, _mm512_loadu_si512(run + k));
        if (whole < runs->length)
            sum = _mm512_dpbusd_epi32(sum, rest, _mm512_loadu_si512(run + whole));
    }
    return sum;
}

/* In each lane of 128 bits the sums of the four registers' elements. */
INLINE __m512i reduce_lanes(__m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

INLINE __m128i add_lanes(__m512i lanes)
{
    __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64(lanes, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

INLINE __m512i load_lanes(const int8_t *first, size_t stride)
{
    __m512i lanes = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)first));
    lanes = _mm512_inserti32x4(lanes, _mm_loadu_si128((const __m128i *)(first + stride)), 1);
    lanes = _mm512_inserti32x4(lanes, _mm_loadu_si128((const __m128i *)(first + 2 * stride)), 2);
    return _mm512_inserti32x4(lanes, _mm_loadu_si128((const __m128i *)(first + 3 * stride)), 3);
}

/* 16 pixels whose runs fit a lane each. */
static void sum_short_runs(const struct conv_runs *runs, size_t pixel, int32_t *sums)
{
    const __m512i ones = _mm512_broadcast_i32x4(_mm_maskz_set1_epi8((__mmask16)((1u << runs->length) - 1), 1));
    const size_t stride = runs->pixel_stride;
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t tap = 0; tap < runs->taps; tap++)
        for (size_t i = 0; i < 4; i++) {
            const int8_t *first = runs->first + (pixel + i) * stride + tap * runs->tap_stride;
            sum[i] = _mm512_dpbusd_epi32(sum[i], ones, load_lanes(first, 4 * stride));
        }
    _mm512_storeu_si512(sums + pixel, reduce_lanes(sum[0], sum[1], sum[2], sum[3]));
}

static void sum_runs(const struct conv_runs *runs, int32_t *sums)
{
    size_t i = 0;
    if (runs->length <= 16)
        for (; i + 16 <= runs->pixels; i += 16)
            sum_short_runs(runs, i, sums);
    for (; i + 4 <= runs->pixels; i += 4) {
        __m512i lanes = reduce_lanes(sum_pixel(runs, i), sum_pixel(runs, i + 1), sum_pixel(runs, i + 2), sum_pixel(runs, i + 3));
        _mm_storeu_si128((__m128i *)(sums + i), add_lanes(lanes));
    }
    for (; i < runs->pixels; i++)
        sums[i] = _mm512_reduce_add_epi32(sum_pixel(runs, i));
}

/* ---------------------------------------------------------------- tables */

/* A table of 256 bytes is four registers: two permutations of 128 entries each, and the top bit chooses. */
__attribute__((target("avx512vbmi")))
static void look_up_vbmi(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table)
{
    const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
    const __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
    for (size_t row = 0; row < rows; row++, y += stride)
        for (size_t i = 0; i < count; i += 64) {
            __mmask64 valid = count - i >= 64 ? ~0ull : ~0ull >> (64 - (count - i));
            __m512i codes = _mm512_maskz_loadu_epi8(valid, y + i);
            __m512i positive = _mm512_permutex2var_epi8(t0, codes, t1), negative = _mm512_permutex2var_epi8(t2, codes, t3);
            _mm512_mask_storeu_epi8(y + i, valid, _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), positive, negative));
        }
}

/* Entries for the quantized values in the low bytes of words: pairs of entries by code / 2, then the byte that is meant, in the low byte. */
INLINE __m512i look_up_words(__m512i codes, __m512i t0, __m512i t1, __m512i t2, __m512i t3)
{
    __m512i pair = _mm512_srli_epi16(codes, 1);
    __mmask32 negative = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x80));
    __m512i lower = _mm512_permutex2var_epi16(t0, pair, t1), upper = _mm512_permutex2var_epi16(t2, pair, t3);
    __m512i entries = _mm512_mask_blend_epi16(negative, lower, upper);
    __m512i bits = _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(1)), 3);
    return _mm512_and_si512(_mm512_srlv_epi16(entries, bits), _mm512_set1_epi16(0xff));
}

static void look_up_plain(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table)
{
    const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
    const __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
    for (size_t row = 0; row < rows; row++, y += stride)
        for (size_t i = 0; i < count; i += 64) {
            __mmask64 valid = count - i >= 64 ? ~0ull : ~0ull >> (64 - (count - i));
            __m512i codes = _mm512_maskz_loadu_epi8(valid, y + i);
            __m512i even = look_up_words(_mm512_and_si512(codes, _mm512_set1_epi16(0xff)), t0, t1, t2, t3);
            __m512i odd = look_up_words(_mm512_srli_epi16(codes, 8), t0, t1, t2, t3);
            _mm512_mask_storeu_epi8(y + i, valid, _mm512_or_si512(even, _mm512_slli_epi16(odd, 8)));
        }
}

static void look_up(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table)
{
    if (__builtin_cpu_supports("avx512vbmi"))
        look_up_vbmi(y, rows, stride, count, table);
    else
        look_up_plain(y, rows, stride, count, table);
}

/* ---------------------------------------------------------------- the kernel */

static void copy(void *to, const int8_t *from, size_t count)
{
    memcpy(to, from, count);
}

static const struct conv_target target = {
    .form = CONV_WEIGHTS_UNSIGNED,
    .element_size = 1,
    .granule = 4,
    .interleave = 4,
    .line_pixels = 288,
    .tile_width = tile_width,
    .copy = copy,
    .sum_runs = sum_runs,
    .compute = compute,
    .look_up = look_up,
};

#include "conv_kernel.h"

static const struct anynpu_conv_kernel kernel = CONV_KERNEL("conv_vnni");

const struct anynpu_conv_kernel *const anynpu_conv_vnni[] = {&kernel, NULL};
