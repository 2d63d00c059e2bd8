/* float16 and bfloat16, to nearest, ties to even. The processor's instructions where the level has them, else the same in integers;
 * a NaN stays a NaN, made quiet, with the upper bits of its payload. */
#ifndef ANYNPU_FLOAT16_H
#define ANYNPU_FLOAT16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t one_f16_from_f32(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    /* normal: rebias the exponent by 112 and round the lower 13 bits away; the carry may run into the exponent, up to infinity */
    uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    /* subnormal: adding 0.5 lets the addition do the shift and the rounding */
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x1ff);
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x47800000 ? 0x7c00 : half;
    half = magnitude > 0x7f800000 ? nan : half;
    return (uint16_t)(sign | half);
}

static inline float one_f32_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t subnormal = bits_of((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t special = 0x7f800000 | magnitude << 13 | (magnitude > 0x7c00 ? 0x400000 : 0);
    uint32_t bits = magnitude < 0x400 ? subnormal : normal;
    bits = magnitude >= 0x7c00 ? special : bits;
    return float_of(sign | bits);
}

static inline void f16_from_f32(const float *restrict source, uint16_t *restrict target, size_t count)
{
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(target + i), _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4)
        vst1_u16(target + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(source + i))));
#endif
    for (; i < count; i++)
        target[i] = one_f16_from_f32(source[i]);
}

static inline void f32_from_f16(const uint16_t *restrict source, float *restrict target, size_t count)
{
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(target + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(source + i))));
#endif
    for (; i < count; i++)
        target[i] = one_f32_from_f16(source[i]);
}

static inline void bf16_from_f32(const float *restrict source, uint16_t *restrict target, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(source[i]);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        target[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 | 0x40) : rounded);
    }
}

static inline void f32_from_bf16(const uint16_t *restrict source, float *restrict target, size_t count)
{
    for (size_t i = 0; i < count; i++)
        target[i] = float_of((uint32_t)source[i] << 16);
}

#endif
