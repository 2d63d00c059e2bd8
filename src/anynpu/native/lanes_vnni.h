/* Vectors of AVX512 (F, BW, VL, VNNI): the words in which depthwise_common.h and simple_common.h are written. lanes_avx2.h and
 * lanes_neon.h have the same words. A load may read up to a vector beyond what is used; a store writes what it receives and
 * no more. */
#ifndef ANYNPU_LANES_VNNI_H
#define ANYNPU_LANES_VNNI_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 16        /* channels in a vector of 32-bit numbers */
#define BYTE_LANES 64   /* quantized values in a vector of bytes */
/* Rows of a convolution whose quantized values lie interleaved, for an instruction that adds as many products: two of 16 bits or, with LANES_OF_BYTES,
 * four of bytes. Its quantized values are unsigned then: CODE_SHIFT is added to them. */
#ifdef LANES_OF_BYTES
#define ROWS_TOGETHER 4
#define CODE_SHIFT 128
#define SMALLEST_FACTOR INT8_MIN
#define LARGEST_FACTOR INT8_MAX
#else
#define ROWS_TOGETHER 2
#endif
#define INLINE static inline __attribute__((always_inline))

/* A loop with few and constant steps whose arrays are registers. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 24")
#endif

typedef __m512i ints;
typedef __m512 floats;
typedef __m512i bytes;
typedef __m512i factors; /* LANES pairs of int16 or quartets of bytes, one of each row */
typedef int32_t stored_factor;

INLINE ints ints_set(int32_t value) { return _mm512_set1_epi32(value); }
INLINE ints ints_load(const int32_t *source) { return _mm512_loadu_si512(source); }
INLINE ints ints_from_codes(const int8_t *source) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)source)); }
INLINE ints ints_add(ints a, ints b) { return _mm512_add_epi32(a, b); }
INLINE ints ints_sub(ints a, ints b) { return _mm512_sub_epi32(a, b); }
INLINE ints ints_mul(ints a, ints b) { return _mm512_mullo_epi32(a, b); }
INLINE ints ints_min(ints a, ints b) { return _mm512_min_epi32(a, b); }
INLINE ints ints_max(ints a, ints b) { return _mm512_max_epi32(a, b); }
INLINE ints ints_and(ints a, ints b) { return _mm512_and_si512(a, b); }
#define ints_shift_right(a, bits) _mm512_srai_epi32(a, bits)

INLINE floats floats_set(float value) { return _mm512_set1_ps(value); }
INLINE floats floats_load(const float *source) { return _mm512_loadu_ps(source); }
INLINE floats floats_from_ints(ints a) { return _mm512_cvtepi32_ps(a); }
INLINE floats floats_add(floats a, floats b) { return _mm512_add_ps(a, b); }
INLINE floats floats_sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
INLINE floats floats_mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
INLINE floats floats_div(floats a, floats b) { return _mm512_div_ps(a, b); }
INLINE floats floats_min(floats a, floats b) { return _mm512_min_ps(a, b); }
INLINE floats floats_max(floats a, floats b) { return _mm512_max_ps(a, b); }

/* a * b + c, rounded once */
INLINE floats floats_fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
/* n of 1.5 * 2^23 + n; only the low byte counts */
INLINE ints ints_from_magic(floats a) { return _mm512_castps_si512(a); }
INLINE ints ints_from_bits(floats a) { return _mm512_castps_si512(a); }
INLINE void ints_store(int32_t *target, ints a) { _mm512_storeu_si512(target, a); }

/* a < 0 ? a * slope : a */
INLINE floats floats_scale_negative(floats a, floats slope)
{
    return _mm512_mask_mul_ps(a, _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_LT_OQ), a, slope);
}

/* Half to even. */
INLINE ints ints_round(floats a) { return _mm512_cvtps_epi32(a); }

INLINE factors factors_set(stored_factor value) { return _mm512_set1_epi32(value); }
INLINE factors factors_load(const stored_factor *source) { return _mm512_loadu_si512(source); }
#ifdef LANES_OF_BYTES
INLINE factors factors_from_codes(const int8_t *quartets) { return _mm512_loadu_si512(quartets); }
INLINE stored_factor factor_of_rows(const int16_t rows[ROWS_TOGETHER])
{
    uint32_t factor = 0;
    for (int i = 0; i < ROWS_TOGETHER; i++)
        factor |= (uint32_t)(uint8_t)rows[i] << 8 * i;
    return (int32_t)factor;
}
INLINE ints ints_multiply_add(ints sum, factors a, factors b) { return _mm512_dpbusd_epi32(sum, a, b); }

/* Quantized values of four rows as quartets, shifted; writes whole vectors. */
INLINE void interleave_rows(int8_t *target, const int8_t *const rows[ROWS_TOGETHER], size_t count)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), top = _mm512_set1_epi8((char)0x80);
    for (size_t i = 0; i < count; i += BYTE_LANES) {
        __m512i v[4], low[2], high[2];
        UNROLLED
        for (int j = 0; j < 4; j++)
            v[j] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(rows[j] + i));
        UNROLLED
        for (int j = 0; j < 2; j++) {
            low[j] = _mm512_unpacklo_epi8(v[2 * j], v[2 * j + 1]);
            high[j] = _mm512_unpackhi_epi8(v[2 * j], v[2 * j + 1]);
        }
        int8_t *to = target + ROWS_TOGETHER * i;
        _mm512_storeu_si512(to, _mm512_xor_si512(top, _mm512_unpacklo_epi16(low[0], low[1])));
        _mm512_storeu_si512(to + BYTE_LANES, _mm512_xor_si512(top, _mm512_unpackhi_epi16(low[0], low[1])));
        _mm512_storeu_si512(to + 2 * BYTE_LANES, _mm512_xor_si512(top, _mm512_unpacklo_epi16(high[0], high[1])));
        _mm512_storeu_si512(to + 3 * BYTE_LANES, _mm512_xor_si512(top, _mm512_unpackhi_epi16(high[0], high[1])));
    }
}
#else
INLINE factors factors_from_codes(const int8_t *pairs)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)pairs));
}
INLINE stored_factor factor_of_rows(const int16_t rows[ROWS_TOGETHER])
{
    return (int32_t)((uint32_t)(uint16_t)rows[1] << 16 | (uint16_t)rows[0]);
}
INLINE ints ints_multiply_add(ints sum, factors a, factors b) { return _mm512_dpwssd_epi32(sum, a, b); }

/* Quantized values of two rows as pairs; writes whole vectors. */
INLINE void interleave_rows(int8_t *target, const int8_t *const rows[ROWS_TOGETHER], size_t count)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (size_t i = 0; i < count; i += BYTE_LANES) {
        const __m512i a = _mm512_loadu_si512(rows[0] + i), b = _mm512_loadu_si512(rows[1] + i);
        const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
        _mm512_storeu_si512(target + 2 * i, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(target + 2 * i + BYTE_LANES, _mm512_permutex2var_epi64(low, second, high));
    }
}
#endif

/* The first count quantized values of a vector of numbers that lie in the range of a code. */
INLINE void codes_store(int8_t *target, ints codes, size_t count)
{
    const __m128i packed = _mm512_cvtepi32_epi8(codes);
    if (count >= LANES)
        _mm_storeu_si128((__m128i *)target, packed);
    else
        _mm_mask_storeu_epi8(target, (__mmask16)((1u << count) - 1), packed);
}

INLINE bytes bytes_set(int8_t value) { return _mm512_set1_epi8(value); }
INLINE bytes bytes_load(const int8_t *source) { return _mm512_loadu_si512(source); }
INLINE bytes bytes_max(bytes a, bytes b) { return _mm512_max_epi8(a, b); }

INLINE void bytes_store(int8_t *target, bytes codes, size_t count)
{
    if (count >= BYTE_LANES)
        _mm512_storeu_si512(target, codes);
    else
        _mm512_mask_storeu_epi8(target, ((__mmask64)1 << count) - 1, codes);
}

/* 256 entries are four vectors of 64 bytes; the top bit of the index chooses between two pairs of them. */
__attribute__((target("avx512vbmi"), always_inline)) static inline bytes lookup_bytes(const bytes table[4], bytes index)
{
    const bytes low = _mm512_permutex2var_epi8(table[0], index, table[1]);
    const bytes high = _mm512_permutex2var_epi8(table[2], index, table[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
}

/* The entry of each index 0...255 held in 16 bits; the entry is in the low byte. */
INLINE bytes lookup_half(const bytes table[4], bytes index)
{
    const bytes word = _mm512_srli_epi16(index, 1);
    const bytes low = _mm512_permutex2var_epi16(table[0], word, table[1]);
    const bytes high = _mm512_permutex2var_epi16(table[2], word, table[3]);
    const bytes pair = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(word, _mm512_set1_epi16(64)), low, high);
    const bytes shift = _mm512_slli_epi16(_mm512_and_si512(index, _mm512_set1_epi16(1)), 3);
    return _mm512_srlv_epi16(pair, shift);
}

/* Processors with VNNI and without VBMI permute 16 bits at least: pairs of entries, for the even and the odd bytes. */
INLINE bytes lookup_words(const bytes table[4], bytes index)
{
    const bytes even = lookup_half(table, _mm512_and_si512(index, _mm512_set1_epi16(0xff)));
    const bytes odd = lookup_half(table, _mm512_srli_epi16(index, 8));
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, _mm512_slli_epi16(odd, 8));
}

#define DEFINE_TRANSLATE(name, lookup)                                                                                         \
    static void name(const int8_t *table, const int8_t *x, size_t x_step, int8_t *y, size_t y_step, size_t width, size_t rows) \
    {                                                                                                                          \
        const bytes parts[4] = {bytes_load(table), bytes_load(table + 64), bytes_load(table + 128), bytes_load(table + 192)};  \
        for (; rows > 0; rows--, x += x_step, y += y_step)                                                                     \
            for (size_t i = 0; i < width; i += BYTE_LANES)                                                                     \
                bytes_store(y + i, lookup(parts, bytes_load(x + i)), width - i);                                               \
    }

__attribute__((target("avx512vbmi"))) DEFINE_TRANSLATE(translate_bytes, lookup_bytes)
DEFINE_TRANSLATE(translate_words, lookup_words)

/* table[x] for rows of width quantized values, table of 256 entries; x and y may be the same. */
INLINE void translate_rows(const int8_t *table, const int8_t *x, size_t x_step, int8_t *y, size_t y_step, size_t width,
                           size_t rows)
{
    if (__builtin_cpu_supports("avx512vbmi"))
        translate_bytes(table, x, x_step, y, y_step, width, rows);
    else
        translate_words(table, x, x_step, y, y_step, width, rows);
}

#endif
