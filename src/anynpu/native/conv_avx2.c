/* Convolution of int8 with AVX2.
 *
 * The byte multiplication of AVX2 (vpmaddubsw) saturates and is never used. Activations become 16 bits on their way into the
 * ring, weights are packed as code - zero point in 16 bits, and vpmaddwd adds two exact products at a time; no sums of
 * activations are needed. */
#include <immintrin.h>

#include "conv_common.h"

/* A tile is one or two registers of 8 channels times `pixels`: 12 accumulators, and 4 registers for weights, activations and
 * products. */
#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL
#define ROW_FUNCTION CONV_ROW_FUNCTION

#define MAX_BLOCKS 2
#define MAX_PIXELS 12

/* ---------------------------------------------------------------- from accumulators to quantized values */

INLINE __m256i load_integers(const int32_t *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

/* Rounded to integers, before the zero point is added. A float that is too large is clamped here; one that is too small
 * becomes the smallest integer, which stays the smallest when it is packed, and the lower clamp waits until all quantized values are in
 * one register. */
INLINE __m256i finish_block(__m256i accumulator, const struct conv_line *line, size_t channel, const int8_t *residual, int slope)
{
    const struct conv_channels *channels = &line->channels;
    __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(accumulator), _mm256_loadu_ps(channels->multiplier + channel));
    if (residual) {
        __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(residual + channel)));
        __m256 values = _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, load_integers(channels->residual_zero + channel)));
        f = _mm256_add_ps(f, _mm256_mul_ps(values, _mm256_loadu_ps(channels->residual_multiplier + channel)));
    }
    if (slope) {
        __m256 negative = _mm256_cmp_ps(f, _mm256_setzero_ps(), _CMP_LT_OQ);
        f = _mm256_blendv_ps(f, _mm256_mul_ps(f, _mm256_loadu_ps(channels->slope + channel)), negative);
    }
    return _mm256_cvtps_epi32(_mm256_min_ps(f, _mm256_loadu_ps(channels->high + channel)));
}

/* The same by the chip's rule: see fixed_forms.h. The zero point is in it. */
INLINE __m256i finish_fixed(__m256i accumulator, const struct conv_line *line, size_t channel, const int8_t *residual)
{
    const struct conv_channels *channels = &line->channels;
    const __m256 magic = _mm256_set1_ps(FIXED_MAGIC);
    const __m256 most = _mm256_loadu_ps(channels->high + channel), least = _mm256_xor_ps(most, _mm256_set1_ps(-0.0f));
    __m256 sum = _mm256_min_ps(_mm256_max_ps(_mm256_cvtepi32_ps(accumulator), least), most);
    __m256 t = _mm256_sub_ps(_mm256_fmadd_ps(sum, _mm256_loadu_ps(channels->multiplier + channel), magic), magic);
    if (residual) {
        __m256i codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(residual + channel)));
        __m256 values = _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, load_integers(channels->residual_zero + channel)));
        values = _mm256_fmadd_ps(values, _mm256_loadu_ps(channels->residual_multiplier + channel), magic);
        t = _mm256_add_ps(t, _mm256_sub_ps(values, magic));
    }
    t = _mm256_fmadd_ps(t, _mm256_loadu_ps(channels->factor + channel), _mm256_loadu_ps(channels->offset + channel));
    return _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(FIXED_MAGIC_BITS));
}

/* Quantized values of two blocks; packing interleaves them by lanes of 128 bits, and so it does with their zero points. */
INLINE __m128i pack_blocks(__m256i first, __m256i second, __m256i zero, const int8_t *low)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_adds_epi16(_mm256_packs_epi32(first, second), zero), 0xd8);
    __m128i codes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    return _mm_max_epi8(codes, _mm_loadu_si128((const __m128i *)low));
}

INLINE __m128i pack_fixed(__m256i first, __m256i second, const struct conv_channels *channels)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
    __m128i codes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    codes = _mm_min_epi8(codes, _mm_loadu_si128((const __m128i *)channels->high_codes));
    return _mm_max_epi8(codes, _mm_loadu_si128((const __m128i *)channels->low_codes));
}

INLINE __m256i load_zero_points(int blocks, const struct conv_line *line)
{
    const int32_t *zero = line->channels.zero_point;
    return _mm256_packs_epi32(load_integers(zero), load_integers(blocks == 2 ? zero + 8 : zero));
}

/* What is rare: a residual, a slope, channels that do not exist. From memory, and for all shapes of tiles. */
ROW_FUNCTION finish_rare(int blocks, int pixels, __m256i accumulators[][MAX_BLOCKS], const struct conv_line *line,
                         ptrdiff_t first)
{
    __m256i zero = load_zero_points(blocks, line);
    for (int i = 0; i < pixels; i++) {
        ptrdiff_t at = (first + i) * line->out_stride;
        const int8_t *residual = line->residual ? line->residual + at : NULL;
        if (line->form >= FIXED_CURVE) {
            fixed_codes(line->form, line->epilogue, &line->tables, line->channel, line->valid, (const int32_t *)accumulators[i],
                        residual, line->y + at);
            continue;
        }
        __m256i rounded[MAX_BLOCKS] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int j = 0; j < blocks; j++)
            rounded[j] = line->form == FIXED_NONE
                             ? finish_block(accumulators[i][j], line, 8 * (size_t)j, residual, line->has_slope)
                             : finish_fixed(accumulators[i][j], line, 8 * (size_t)j, residual);
        int8_t codes[16];
        _mm_storeu_si128((__m128i *)codes, line->form == FIXED_NONE
                                               ? pack_blocks(rounded[0], rounded[1], zero, line->channels.low_codes)
                                               : pack_fixed(rounded[0], rounded[1], &line->channels));
        memcpy(line->y + at, codes, line->valid);
    }
}

INLINE void store_codes(int blocks, __m128i codes, int8_t *y)
{
    if (blocks == 2)
        _mm_storeu_si128((__m128i *)y, codes);
    else
        _mm_storel_epi64((__m128i *)y, codes);
}

/* FIXED_CURVE without a residual: see fixed_single_curve_codes in fixed_forms.h. The index has its place in the low 16 bits. */
INLINE __m256i curve_index_of(__m256i accumulator, const float *numbers, size_t stride)
{
    const __m256 magic = _mm256_set1_ps(FIXED_MAGIC);
    __m256 t = _mm256_fmadd_ps(_mm256_cvtepi32_ps(accumulator), _mm256_loadu_ps(numbers + CURVE_CHANNEL * stride), magic);
    t = _mm256_sub_ps(t, _mm256_loadu_ps(numbers + CURVE_BACK * stride));
    t = _mm256_fmadd_ps(t, _mm256_loadu_ps(numbers + CURVE_FACTOR * stride), magic);
    t = _mm256_max_ps(t, _mm256_loadu_ps(numbers + CURVE_LOW * stride));
    t = _mm256_min_ps(t, _mm256_loadu_ps(numbers + CURVE_HIGH * stride));
    return _mm256_and_si256(_mm256_castps_si256(t), _mm256_set1_epi32(0xffff));
}

ROW_FUNCTION finish_words(const struct conv_line *line, ptrdiff_t first, int pixels, const uint16_t *words)
{
    const struct curve_tables *curves = &line->tables.curves;
    int8_t *y = line->y + first * line->out_stride;
    for (int i = 0; i < pixels; i++, y += line->out_stride, words += 16)
        curve_look_up_words(curves, words, line->valid, y);
}

INLINE void finish_curve(int blocks, int pixels, __m256i accumulators[][MAX_BLOCKS], const struct conv_line *line, ptrdiff_t first)
{
    const size_t stride = line->tables.stride;
    const float *numbers = line->tables.curves.numbers + line->channel;
    const __m256i begin = _mm256_set1_epi16((short)line->tables.curves.words->first);
    uint16_t words[MAX_PIXELS * 16];
    UNROLL for (int i = 0; i < pixels; i++) {
        const __m256i a = curve_index_of(accumulators[i][0], numbers, stride);
        const __m256i b = blocks == 2 ? curve_index_of(accumulators[i][1], numbers + 8, stride) : a;
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
        _mm256_storeu_si256((__m256i *)(words + 16 * i), _mm256_sub_epi16(both, begin));
    }
    finish_words(line, first, pixels, words);
}

INLINE void finish_tile(int blocks, int pixels, __m256i accumulators[][MAX_BLOCKS], const struct conv_line *line,
                        ptrdiff_t first)
{
    if (line->form == FIXED_CURVE && !line->residual && line->tables.curves.words->usable) {
        finish_curve(blocks, pixels, accumulators, line, first);
        return;
    }
    if (line->residual || line->has_slope || line->form >= FIXED_CURVE || line->valid != (size_t)(8 * blocks)) {
        __m256i copies[MAX_PIXELS][MAX_BLOCKS];
        UNROLL for (int i = 0; i < pixels; i++)
            UNROLL for (int j = 0; j < blocks; j++)
                copies[i][j] = accumulators[i][j];
        finish_rare(blocks, pixels, copies, line, first);
        return;
    }
    if (line->form == FIXED_SINGLE) {
        UNROLL for (int i = 0; i < pixels; i++) {
            __m256i rounded[MAX_BLOCKS];
            UNROLL for (int j = 0; j < blocks; j++)
                rounded[j] = finish_fixed(accumulators[i][j], line, 8 * (size_t)j, NULL);
            __m128i codes = pack_fixed(rounded[0], rounded[blocks - 1], &line->channels);
            store_codes(blocks, codes, line->y + (first + i) * line->out_stride);
        }
        return;
    }
    __m256i zero = load_zero_points(blocks, line);
    UNROLL for (int i = 0; i < pixels; i++) {
        __m256i rounded[MAX_BLOCKS];
        UNROLL for (int j = 0; j < blocks; j++)
            rounded[j] = finish_block(accumulators[i][j], line, 8 * (size_t)j, NULL, 0);
        __m128i codes = pack_blocks(rounded[0], rounded[blocks - 1], zero, line->channels.low_codes);
        store_codes(blocks, codes, line->y + (first + i) * line->out_stride);
    }
}

/* ---------------------------------------------------------------- multiplication */

/* As assembly, because compilers reorder the intrinsics until the accumulators no longer fit the 16 registers. */
INLINE void multiply(__m256i *accumulator, __m256i weights, __m256i activations)
{
    __m256i products;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*accumulator), "=&x"(products) : "x"(weights), "x"(activations));
}

INLINE __m256i broadcast2(const uint8_t *from)
{
    int32_t two;
    memcpy(&two, from, sizeof two);
    return _mm256_set1_epi32(two);
}

INLINE void tile(int blocks, int pixels, const struct conv_line *line, ptrdiff_t first)
{
    __m256i acc[MAX_PIXELS][MAX_BLOCKS];
    UNROLL for (int j = 0; j < blocks; j++)
        UNROLL for (int i = 0; i < pixels; i++)
            acc[i][j] = load_integers(line->channels.bias + 8 * j);

    const uint8_t *weights = line->weights;
    const ptrdiff_t stride = line->pixel_stride;
    const size_t steps = line->steps;
    for (size_t run = 0; run < line->run_count; run++) {
        const uint8_t *a = (const uint8_t *)line->runs[run] + first * stride;
        for (size_t step = 0; step < steps; step++) {
            __m256i w[MAX_BLOCKS];
            UNROLL for (int j = 0; j < blocks; j++)
                w[j] = _mm256_loadu_si256((const __m256i *)(weights + 32 * j));
            UNROLL for (int i = 0; i < pixels; i++) {
                __m256i two = broadcast2(a + i * stride);
                UNROLL for (int j = 0; j < blocks; j++)
                    multiply(&acc[i][j], w[j], two);
            }
            weights += 32 * blocks;
            a += 4;
        }
    }
    finish_tile(blocks, pixels, acc, line, first);
}

#define DEFINE_ROW(blocks, pixels)                                                                                    \
    ROW_FUNCTION row_##blocks##_##pixels(const struct conv_line *shared, size_t first, size_t tiles)                  \
    {                                                                                                                 \
        const struct conv_line line = *shared; /* a copy that no store to the output can change */                    \
        for (size_t t = 0; t < tiles; t++)                                                                            \
            tile(blocks, pixels, &line, (ptrdiff_t)(first + t * pixels));                                             \
    }

#define TO_6(use, b) use(b, 1) use(b, 2) use(b, 3) use(b, 4) use(b, 5) use(b, 6)
#define TO_12(use, b) TO_6(use, b) use(b, 7) use(b, 8) use(b, 9) use(b, 10) use(b, 11) use(b, 12)

TO_6(DEFINE_ROW, 2)
TO_12(DEFINE_ROW, 1)

#define NAME_ROW(blocks, pixels) row_##blocks##_##pixels,

static conv_row_function *const rows_of_16[] = {TO_6(NAME_ROW, 2)}; /* by pixels - 1 */
static conv_row_function *const rows_of_8[] = {TO_12(NAME_ROW, 1)};

static size_t tile_width(size_t channels, size_t pixels)
{
    (void)pixels;
    return channels >= 16 ? 16 : 8;
}

static void compute(const struct conv_line *line, size_t width)
{
    if (width == 16)
        conv_cut_line(line, rows_of_16, 6);
    else
        conv_cut_line(line, rows_of_8, 12);
}

/* ---------------------------------------------------------------- tables */

/* The low four bits of a code look up in 16 tables of 16; its upper bits, moved to the top one after the other, choose. */
INLINE __m256i choose_of_2(const __m256i *tables, __m256i low, __m256i codes)
{
    __m256i even = _mm256_shuffle_epi8(tables[0], low), odd = _mm256_shuffle_epi8(tables[1], low);
    return _mm256_blendv_epi8(even, odd, _mm256_slli_epi16(codes, 3));
}

INLINE __m256i choose_of_4(const __m256i *tables, __m256i low, __m256i codes)
{
    return _mm256_blendv_epi8(choose_of_2(tables, low, codes), choose_of_2(tables + 2, low, codes), _mm256_slli_epi16(codes, 2));
}

INLINE __m256i choose_of_8(const __m256i *tables, __m256i low, __m256i codes)
{
    return _mm256_blendv_epi8(choose_of_4(tables, low, codes), choose_of_4(tables + 4, low, codes), _mm256_slli_epi16(codes, 1));
}

static void look_up(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table)
{
    __m256i tables[16];
    for (size_t i = 0; i < 16; i++)
        tables[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table + 16 * i)));
    for (size_t row = 0; row < rows; row++, y += stride) {
        size_t i = 0;
        for (; i + 32 <= count; i += 32) {
            __m256i codes = _mm256_loadu_si256((const __m256i *)(y + i)), low = _mm256_and_si256(codes, _mm256_set1_epi8(15));
            __m256i entries = _mm256_blendv_epi8(choose_of_8(tables, low, codes), choose_of_8(tables + 8, low, codes), codes);
            _mm256_storeu_si256((__m256i *)(y + i), entries);
        }
        for (; i < count; i++)
            y[i] = table[(uint8_t)y[i]];
    }
}

/* ---------------------------------------------------------------- the kernel */

static void widen(void *to, const int8_t *from, size_t count)
{
    int16_t *words = to;
    size_t i = 0;
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(words + i), _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < count; i++)
        words[i] = from[i];
}

static const struct conv_target target = {
    .form = CONV_WEIGHTS_CENTRED,
    .element_size = 2,
    .granule = 2,
    .interleave = 2,
    .line_pixels = 96,
    .tile_width = tile_width,
    .copy = widen,
    .compute = compute,
    .look_up = look_up,
};

#include "conv_kernel.h"

static const struct anynpu_conv_kernel kernel = CONV_KERNEL("conv_avx2");

const struct anynpu_conv_kernel *const anynpu_conv_avx2[] = {&kernel, NULL};
