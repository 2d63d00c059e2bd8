/* Element by element: types, quantization, mean and std, byte maps. Compiled once for each level. */
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "float16.h"
#include "levels.h"

/* ---- from a type to float32: (code - zero) * scale ---- */

#define PLAIN(x) ((float)(x))
#define TRUTH(x) ((x) != 0 ? 1.0f : 0.0f)

#define LOAD(name, type, value)                                                                                                \
    static void load_##name(const void *source, float *restrict target, size_t count, int32_t zero, float scale)                \
    {                                                                                                                          \
        const type *restrict codes = source;                                                                                   \
        float origin = (float)zero;                                                                                            \
        for (size_t i = 0; i < count; i++)                                                                                     \
            target[i] = (value(codes[i]) - origin) * scale;                                                                    \
    }                                                                                                                          \
    static void load_each_##name(const void *source, float *restrict target, size_t count, const int32_t *restrict zero,        \
                                 const float *restrict scale)                                                                  \
    {                                                                                                                          \
        const type *restrict codes = source;                                                                                   \
        for (size_t i = 0; i < count; i++)                                                                                     \
            target[i] = (value(codes[i]) - (float)zero[i]) * scale[i];                                                         \
    }

LOAD(f32, float, PLAIN)
LOAD(i8, int8_t, PLAIN)
LOAD(u8, uint8_t, PLAIN)
LOAD(i16, int16_t, PLAIN)
LOAD(u16, uint16_t, PLAIN)
LOAD(i32, int32_t, PLAIN)
LOAD(u32, uint32_t, PLAIN)
LOAD(i64, int64_t, PLAIN)
LOAD(u64, uint64_t, PLAIN)
LOAD(bool, uint8_t, TRUTH)

/* The float types carry no quantization: zero and scale are not looked at. */
#define LOAD_FLOAT(name, convert)                                                                                              \
    static void load_##name(const void *source, float *target, size_t count, int32_t zero, float scale)                        \
    {                                                                                                                          \
        (void)zero, (void)scale;                                                                                               \
        convert(source, target, count);                                                                                        \
    }                                                                                                                          \
    static void load_each_##name(const void *source, float *target, size_t count, const int32_t *zero, const float *scale)     \
    {                                                                                                                          \
        (void)zero, (void)scale;                                                                                               \
        convert(source, target, count);                                                                                        \
    }

LOAD_FLOAT(f16, f32_from_f16)
LOAD_FLOAT(bf16, f32_from_bf16)

/* ---- from float32 to a type: clamp(round_half_even(value / scale) + zero), NaN gives 0 ---- */

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, half to even, for |x| <= 2^22. Beyond that a quantized value of 16 bits is clamped
 * anyway, so x may be clamped first. */
#define ROUND_F32 12582912.0f
#define ROUND_LIMIT_F32 4194304.0f

static inline int32_t small_code(float value, float zero, float scale, float low, float high)
{
    float quotient = value / scale;
    float bounded = quotient < ROUND_LIMIT_F32 ? quotient : ROUND_LIMIT_F32;
    bounded = bounded > -ROUND_LIMIT_F32 ? bounded : -ROUND_LIMIT_F32;
    float code = ((bounded + ROUND_F32) - ROUND_F32) + zero;
    code = code > low ? code : low;
    code = code < high ? code : high;
    int32_t whole = (int32_t)code;
    return quotient == quotient ? whole : 0;
}

/* The same for 32 bits, where the zero point is added in double: float32 would lose its low bits. */
#define ROUND_F64 6755399441055744.0
#define ROUND_LIMIT_F64 2251799813685248.0

static inline int64_t wide_code(float value, double zero, float scale, double low, double high)
{
    float quotient = value / scale;
    double bounded = quotient < ROUND_LIMIT_F64 ? (double)quotient : ROUND_LIMIT_F64;
    bounded = bounded > -ROUND_LIMIT_F64 ? bounded : -ROUND_LIMIT_F64;
    double code = ((bounded + ROUND_F64) - ROUND_F64) + zero;
    code = code > low ? code : low;
    code = code < high ? code : high;
    int64_t whole = (int64_t)code;
    return quotient == quotient ? whole : 0;
}

/* 64 bits hold numbers as they are: no zero point, no scale. 2^63 and 2^64 are the first floats that do not fit. */
static inline int64_t long_code(float value)
{
    if (!(value == value))
        return 0;
    if (value >= 9223372036854775808.0f)
        return INT64_MAX;
    if (value < -9223372036854775808.0f)
        return INT64_MIN;
    float magnitude = value < 0 ? -value : value;
    return (int64_t)(magnitude < ROUND_LIMIT_F32 ? (value + ROUND_F32) - ROUND_F32 : __builtin_rintf(value));
}

static inline uint64_t unsigned_long_code(float value)
{
    if (!(value > 0))
        return 0;
    if (value >= 18446744073709551616.0f)
        return UINT64_MAX;
    return (uint64_t)(value < ROUND_LIMIT_F32 ? (value + ROUND_F32) - ROUND_F32 : __builtin_rintf(value));
}

#define STORE(name, type, code, real)                                                                                          \
    static void store_##name(const float *restrict source, void *target, size_t count, int32_t zero, float scale, int64_t low,  \
                             int64_t high)                                                                                     \
    {                                                                                                                          \
        type *restrict codes = target;                                                                                         \
        real origin = (real)zero, first = (real)low, last = (real)high;                                                        \
        for (size_t i = 0; i < count; i++)                                                                                     \
            codes[i] = (type)code(source[i], origin, scale, first, last);                                                      \
    }                                                                                                                          \
    static void store_each_##name(const float *restrict source, void *target, size_t count, const int32_t *restrict zero,      \
                                  const float *restrict scale, int64_t low, int64_t high)                                      \
    {                                                                                                                          \
        type *restrict codes = target;                                                                                         \
        real first = (real)low, last = (real)high;                                                                             \
        for (size_t i = 0; i < count; i++)                                                                                     \
            codes[i] = (type)code(source[i], (real)zero[i], scale[i], first, last);                                            \
    }

STORE(i8, int8_t, small_code, float)
STORE(u8, uint8_t, small_code, float)
STORE(i16, int16_t, small_code, float)
STORE(u16, uint16_t, small_code, float)
STORE(i32, int32_t, wide_code, double)
STORE(u32, uint32_t, wide_code, double)

#define STORE_PLAIN(name, write)                                                                                               \
    static void store_##name(const float *source, void *target, size_t count, int32_t zero, float scale, int64_t low,          \
                             int64_t high)                                                                                     \
    {                                                                                                                          \
        (void)zero, (void)scale, (void)low, (void)high;                                                                        \
        write(source, target, count);                                                                                          \
    }                                                                                                                          \
    static void store_each_##name(const float *source, void *target, size_t count, const int32_t *zero, const float *scale,    \
                                  int64_t low, int64_t high)                                                                   \
    {                                                                                                                          \
        (void)zero, (void)scale, (void)low, (void)high;                                                                        \
        write(source, target, count);                                                                                          \
    }

static void write_f32(const float *source, float *target, size_t count)
{
    memcpy(target, source, count * sizeof *target);
}

static void write_i64(const float *restrict source, int64_t *restrict target, size_t count)
{
    for (size_t i = 0; i < count; i++)
        target[i] = long_code(source[i]);
}

static void write_u64(const float *restrict source, uint64_t *restrict target, size_t count)
{
    for (size_t i = 0; i < count; i++)
        target[i] = unsigned_long_code(source[i]);
}

static void write_bool(const float *restrict source, uint8_t *restrict target, size_t count)
{
    for (size_t i = 0; i < count; i++)
        target[i] = source[i] != 0.0f;
}

STORE_PLAIN(f32, write_f32)
STORE_PLAIN(f16, f16_from_f32)
STORE_PLAIN(bf16, bf16_from_f32)
STORE_PLAIN(i64, write_i64)
STORE_PLAIN(u64, write_u64)
STORE_PLAIN(bool, write_bool)

/* ---- mean and std ---- */

static void normalize(const float *restrict source, float *restrict target, size_t count, float mean, float std)
{
    for (size_t i = 0; i < count; i++)
        target[i] = (source[i] - mean) / std;
}

static void normalize_each(const float *restrict source, float *restrict target, size_t count, const float *restrict mean,
                           const float *restrict std)
{
    for (size_t i = 0; i < count; i++)
        target[i] = (source[i] - mean[i]) / std[i];
}

/* ---- bytes to bytes ---- */

static void flip(const uint8_t *restrict source, uint8_t *restrict target, size_t count, uint8_t mask)
{
    for (size_t i = 0; i < count; i++)
        target[i] = source[i] ^ mask;
}

static inline uint8_t on_line(uint8_t byte, int32_t slope, int32_t offset, int32_t low, int32_t high)
{
    int32_t code = (slope * (int32_t)byte + offset) >> 16;
    code = code > low ? code : low;
    code = code < high ? code : high;
    return (uint8_t)code;
}

/* step is 1 where every element has its own slope and offset, 0 where all share one */
static inline void map_line(const uint8_t *restrict source, uint8_t *restrict target, size_t count, const int32_t *restrict slope,
                            const int32_t *restrict offset, size_t step, uint8_t flip, int32_t low, int32_t high)
{
    size_t i = 0;
#if defined(__AVX2__)
    /* The compiler clamps and narrows in many steps; packing with saturation does both in one. */
    int is_signed = low == INT8_MIN && high == INT8_MAX, is_unsigned = low == 0 && high == UINT8_MAX;
    if (is_signed || is_unsigned) {
        const __m128i mask = _mm_set1_epi8((char)flip);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        __m256i slopes = _mm256_set1_epi32(slope[0]), offsets = _mm256_set1_epi32(offset[0]);
        for (; i + 32 <= count; i += 32) {
            __m256i lanes[4];
            for (size_t part = 0; part < 4; part++) {
                size_t at = i + 8 * part;
                if (step) {
                    slopes = _mm256_loadu_si256((const __m256i *)(slope + at));
                    offsets = _mm256_loadu_si256((const __m256i *)(offset + at));
                }
                __m128i bytes = _mm_xor_si128(_mm_loadl_epi64((const __m128i *)(source + at)), mask);
                __m256i product = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), slopes);
                lanes[part] = _mm256_srai_epi32(_mm256_add_epi32(product, offsets), 16);
            }
            __m256i first = _mm256_packs_epi32(lanes[0], lanes[1]), second = _mm256_packs_epi32(lanes[2], lanes[3]);
            __m256i codes = is_signed ? _mm256_packs_epi16(first, second) : _mm256_packus_epi16(first, second);
            _mm256_storeu_si256((__m256i *)(target + i), _mm256_permutevar8x32_epi32(codes, order));
        }
    }
#endif
    for (; i < count; i++)
        target[i] = on_line(source[i] ^ flip, slope[i * step], offset[i * step], low, high);
}

static void line(const uint8_t *source, uint8_t *target, size_t count, int32_t slope, int32_t offset, uint8_t flip, int32_t low,
                 int32_t high)
{
    map_line(source, target, count, &slope, &offset, 0, flip, low, high);
}

static void line_each(const uint8_t *source, uint8_t *target, size_t count, const int32_t *slope, const int32_t *offset, uint8_t flip,
                      int32_t low, int32_t high)
{
    map_line(source, target, count, slope, offset, 1, flip, low, high);
}

/* ---- four bits: two elements a byte, the first in the low half ---- */

static void unpack_int4(const uint8_t *restrict source, uint8_t *restrict target, size_t count, int is_signed)
{
    uint8_t sign = is_signed ? 8 : 0;
    for (size_t i = 0; i < count / 2; i++) {
        target[2 * i] = (uint8_t)(((source[i] & 15) ^ sign) - sign);
        target[2 * i + 1] = (uint8_t)(((source[i] >> 4) ^ sign) - sign);
    }
    if (count % 2)
        target[count - 1] = (uint8_t)(((source[count / 2] & 15) ^ sign) - sign);
}

static void pack_int4(const uint8_t *restrict source, uint8_t *restrict target, size_t count)
{
    for (size_t i = 0; i < count / 2; i++)
        target[i] = (uint8_t)((source[2 * i] & 15) | (source[2 * i + 1] << 4));
    if (count % 2)
        target[count / 2] = source[count - 1] & 15;
}

#define TYPE(name) {load_##name, load_each_##name, store_##name, store_each_##name}

extern const struct anynpu_element_kernels LEVELLED(elements);
const struct anynpu_element_kernels LEVELLED(elements) = {
    .types =
        {
            [ANYNPU_F32] = TYPE(f32),
            [ANYNPU_F16] = TYPE(f16),
            [ANYNPU_BF16] = TYPE(bf16),
            [ANYNPU_I8] = TYPE(i8),
            [ANYNPU_U8] = TYPE(u8),
            [ANYNPU_I16] = TYPE(i16),
            [ANYNPU_U16] = TYPE(u16),
            [ANYNPU_I32] = TYPE(i32),
            [ANYNPU_U32] = TYPE(u32),
            [ANYNPU_I64] = TYPE(i64),
            [ANYNPU_U64] = TYPE(u64),
            [ANYNPU_BOOL] = TYPE(bool),
        },
    .normalize = normalize,
    .normalize_each = normalize_each,
    .flip = flip,
    .line = line,
    .line_each = line_each,
    .unpack_int4 = unpack_int4,
    .pack_int4 = pack_int4,
};
