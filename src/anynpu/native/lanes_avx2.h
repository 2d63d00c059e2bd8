/* Vectors of AVX2, with the words of lanes_vnni.h. */
#ifndef ANYNPU_LANES_AVX2_H
#define ANYNPU_LANES_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define BYTE_LANES 32
#define ROWS_TOGETHER 2
#define INLINE static inline __attribute__((always_inline))

/* A loop with few and constant steps whose arrays are registers. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 24")
#endif

typedef __m256i ints;
typedef __m256 floats;
typedef __m256i bytes;
typedef __m256i factors;
typedef int32_t stored_factor;

INLINE ints ints_set(int32_t value) { return _mm256_set1_epi32(value); }
INLINE ints ints_load(const int32_t *source) { return _mm256_loadu_si256((const __m256i *)source); }
INLINE ints ints_from_codes(const int8_t *source) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)source)); }
INLINE ints ints_add(ints a, ints b) { return _mm256_add_epi32(a, b); }
INLINE ints ints_sub(ints a, ints b) { return _mm256_sub_epi32(a, b); }
INLINE ints ints_mul(ints a, ints b) { return _mm256_mullo_epi32(a, b); }
INLINE ints ints_min(ints a, ints b) { return _mm256_min_epi32(a, b); }
INLINE ints ints_max(ints a, ints b) { return _mm256_max_epi32(a, b); }
INLINE ints ints_and(ints a, ints b) { return _mm256_and_si256(a, b); }
#define ints_shift_right(a, bits) _mm256_srai_epi32(a, bits)

INLINE floats floats_set(float value) { return _mm256_set1_ps(value); }
INLINE floats floats_load(const float *source) { return _mm256_loadu_ps(source); }
INLINE floats floats_from_ints(ints a) { return _mm256_cvtepi32_ps(a); }
INLINE floats floats_add(floats a, floats b) { return _mm256_add_ps(a, b); }
INLINE floats floats_sub(floats a, floats b) { return _mm256_sub_ps(a, b); }
INLINE floats floats_mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
INLINE floats floats_div(floats a, floats b) { return _mm256_div_ps(a, b); }
INLINE floats floats_min(floats a, floats b) { return _mm256_min_ps(a, b); }
INLINE floats floats_max(floats a, floats b) { return _mm256_max_ps(a, b); }

INLINE floats floats_fma(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
INLINE ints ints_from_magic(floats a) { return _mm256_sub_epi32(_mm256_castps_si256(a), _mm256_set1_epi32(0x4b400000)); }
INLINE ints ints_from_bits(floats a) { return _mm256_castps_si256(a); }
INLINE void ints_store(int32_t *target, ints a) { _mm256_storeu_si256((__m256i *)target, a); }

INLINE floats floats_scale_negative(floats a, floats slope)
{
    return _mm256_blendv_ps(a, _mm256_mul_ps(a, slope), _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_LT_OQ));
}

INLINE ints ints_round(floats a) { return _mm256_cvtps_epi32(a); }

INLINE factors factors_set(stored_factor value) { return _mm256_set1_epi32(value); }
INLINE factors factors_load(const stored_factor *source) { return _mm256_loadu_si256((const __m256i *)source); }
INLINE factors factors_from_codes(const int8_t *pairs) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)pairs)); }
INLINE stored_factor factor_of_rows(const int16_t rows[ROWS_TOGETHER])
{
    return (int32_t)((uint32_t)(uint16_t)rows[1] << 16 | (uint16_t)rows[0]);
}
INLINE ints ints_multiply_add(ints sum, factors a, factors b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

INLINE void interleave_rows(int8_t *target, const int8_t *const rows[ROWS_TOGETHER], size_t count)
{
    for (size_t i = 0; i < count; i += BYTE_LANES) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(rows[0] + i));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(rows[1] + i));
        const __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        _mm256_storeu_si256((__m256i *)(target + 2 * i), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(target + 2 * i + BYTE_LANES), _mm256_permute2x128_si256(low, high, 0x31));
    }
}

/* The first count bytes, count < 8. */
INLINE void store_few(int8_t *target, uint64_t packed, size_t count)
{
    if (count & 4) {
        memcpy(target, &packed, 4);
        target += 4;
        packed >>= 32;
    }
    if (count & 2) {
        memcpy(target, &packed, 2);
        target += 2;
        packed >>= 16;
    }
    if (count & 1)
        *target = (int8_t)packed;
}

INLINE void codes_store(int8_t *target, ints codes, size_t count)
{
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    const __m128i packed = _mm_packs_epi16(words, words);
    if (count >= LANES)
        _mm_storel_epi64((__m128i *)target, packed);
    else
        store_few(target, (uint64_t)_mm_cvtsi128_si64(packed), count);
}

INLINE bytes bytes_set(int8_t value) { return _mm256_set1_epi8(value); }
INLINE bytes bytes_load(const int8_t *source) { return _mm256_loadu_si256((const __m256i *)source); }
INLINE bytes bytes_max(bytes a, bytes b) { return _mm256_max_epi8(a, b); }

INLINE void bytes_store(int8_t *target, bytes codes, size_t count)
{
    if (count >= BYTE_LANES) {
        _mm256_storeu_si256((__m256i *)target, codes);
        return;
    }
    __m128i rest = _mm256_castsi256_si128(codes);
    if (count & 16) {
        _mm_storeu_si128((__m128i *)target, rest);
        target += 16;
        rest = _mm256_extracti128_si256(codes, 1);
    }
    if (count & 8) {
        _mm_storel_epi64((__m128i *)target, rest);
        target += 8;
        rest = _mm_unpackhi_epi64(rest, rest);
    }
    store_few(target, (uint64_t)_mm_cvtsi128_si64(rest), count & 7);
}

/* 256 entries as 16 rows of 16. A byte shuffle looks up the low four bits and gives 0 where the top bit is set. The index goes
 * down by 16 from row to row, so that every row up to the right one gives something; as a row holds the difference (exclusive or)
 * to the one before, what is left of all of them is the right row's entry. The upper half of the table comes with the top bit
 * turned round. */
INLINE bytes lookup(const bytes rows[16], bytes index)
{
    const bytes sixteen = _mm256_set1_epi8(16);
    bytes lower = index, upper = _mm256_xor_si256(index, _mm256_set1_epi8(INT8_MIN));
    bytes found = _mm256_setzero_si256();
    UNROLLED
    for (int i = 0; i < 8; i++) {
        const bytes either = _mm256_xor_si256(_mm256_shuffle_epi8(rows[i], lower), _mm256_shuffle_epi8(rows[8 + i], upper));
        found = _mm256_xor_si256(found, either);
        lower = _mm256_subs_epi8(lower, sixteen); /* saturates: what is negative stays so */
        upper = _mm256_subs_epi8(upper, sixteen);
    }
    return found;
}

static inline void translate_rows(const int8_t *table, const int8_t *x, size_t x_step, int8_t *y, size_t y_step, size_t width,
                                  size_t rows)
{
    bytes differences[16];
    for (int i = 0; i < 16; i++) {
        const __m128i row = _mm_loadu_si128((const __m128i *)(table + 16 * i));
        const __m128i before = i % 8 == 0 ? _mm_setzero_si128() : _mm_loadu_si128((const __m128i *)(table + 16 * (i - 1)));
        differences[i] = _mm256_broadcastsi128_si256(_mm_xor_si128(row, before));
    }
    for (; rows > 0; rows--, x += x_step, y += y_step)
        for (size_t i = 0; i < width; i += BYTE_LANES)
            bytes_store(y + i, lookup(differences, bytes_load(x + i)), width - i);
}

#endif
