/* Quantized values of a curve with AVX512-VBMI: a table as steps (fixed_curves.h), 64 words at a time. */
#ifndef ANYNPU_CURVES_VNNI_H
#define ANYNPU_CURVES_VNNI_H

#include <immintrin.h>

#include "fixed_curves.h"

#define CURVE_GROUP 128 /* words that are read, and quantized values that are written, at a time */

struct curve_place {
    __m512i bucket, index; /* index: in the bucket, from where its code begins */
    __mmask64 upper;       /* the bucket is one of the last 128 */
};

__attribute__((target("avx512vbmi"), always_inline)) static inline struct curve_place curve_place_of(const struct curve_steps *steps, const uint16_t *words)
{
    const __m512i even = _mm512_set_epi64(0x7e7c7a7876747270, 0x6e6c6a6866646260, 0x5e5c5a5856545250, 0x4e4c4a4846444240,
                                          0x3e3c3a3836343230, 0x2e2c2a2826242220, 0x1e1c1a1816141210, 0x0e0c0a0806040200);
    const __m512i first = _mm512_loadu_si512(words), second = _mm512_loadu_si512(words + 32);
    const __m128i shift = _mm_cvtsi32_si128(steps->shift);
    const __m512i mask = _mm512_set1_epi8((char)((1 << steps->shift) - 1));
    struct curve_place place;
    place.bucket = _mm512_permutex2var_epi8(_mm512_srl_epi16(first, shift), even, _mm512_srl_epi16(second, shift));
    place.index = _mm512_and_si512(_mm512_permutex2var_epi8(first, even, second), mask);
    if (steps->turn > 0) {
        const __mmask64 falls = steps->turn > 255 ? ~0ull : _mm512_cmplt_epu8_mask(place.bucket, _mm512_set1_epi8((char)steps->turn));
        place.index = _mm512_mask_sub_epi8(place.index, falls, mask, place.index);
    }
    place.upper = _mm512_movepi8_mask(place.bucket);
    return place;
}

__attribute__((target("avx512vbmi"), always_inline)) static inline __m512i curve_of_bucket(const uint8_t *table, int is_large, const struct curve_place *place)
{
    __m512i found = _mm512_permutex2var_epi8(_mm512_loadu_si512(table), place->bucket, _mm512_loadu_si512(table + 64));
    if (is_large) {
        const __m512i other = _mm512_permutex2var_epi8(_mm512_loadu_si512(table + 128), place->bucket, _mm512_loadu_si512(table + 192));
        found = _mm512_mask_blend_epi8(place->upper, found, other);
    }
    return found;
}

__attribute__((target("avx512vbmi"), always_inline)) static inline void curve_add_steps(const struct curve_steps *steps, const int is_large, const uint16_t *words, int8_t *y)
{
    const __m512i one = _mm512_set1_epi8(1);
    const struct curve_place a = curve_place_of(steps, words), b = curve_place_of(steps, words + 64);
    __m512i first = curve_of_bucket(steps->codes, is_large, &a), second = curve_of_bucket(steps->codes, is_large, &b);
    for (int32_t i = 0; i < steps->count; i++) {
        const __mmask64 of_first = _mm512_cmpgt_epu8_mask(a.index, curve_of_bucket(steps->last[i], is_large, &a));
        const __mmask64 of_second = _mm512_cmpgt_epu8_mask(b.index, curve_of_bucket(steps->last[i], is_large, &b));
        first = _mm512_mask_add_epi8(first, of_first, first, one);
        second = _mm512_mask_add_epi8(second, of_second, second, one);
    }
    _mm512_storeu_si512(y, first);
    _mm512_storeu_si512(y + 64, second);
}

/* count is rounded up to a multiple of CURVE_GROUP. */
__attribute__((target("avx512vbmi"))) static void curve_add_words(const struct curve_steps *steps, const uint16_t *words, size_t count, int8_t *y)
{
    if (steps->buckets == 128)
        for (size_t i = 0; i < count; i += CURVE_GROUP)
            curve_add_steps(steps, 0, words + i, y + i);
    else
        for (size_t i = 0; i < count; i += CURVE_GROUP)
            curve_add_steps(steps, 1, words + i, y + i);
}

/* The same as curve_look_up_words. */
static inline void curve_find_words(const struct curve_tables *curves, const uint16_t *words, size_t count, int8_t *y)
{
    if (curves->words->steps.count > 0 && __builtin_cpu_supports("avx512vbmi"))
        curve_add_words(&curves->words->steps, words, count, y);
    else
        curve_look_up_words(curves, words, count, y);
}

#endif
