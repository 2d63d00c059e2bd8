/* Vectors of aarch64 NEON, with the words of lanes_vnni.h: eight 32-bit lanes are two registers. */
#ifndef ANYNPU_LANES_NEON_H
#define ANYNPU_LANES_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define BYTE_LANES 16
#define ROWS_TOGETHER 1 /* products are added one by one */
#define INLINE static inline __attribute__((always_inline))

/* A loop with few and constant steps whose arrays are registers. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 24")
#endif

typedef struct {
    int32x4_t low, high;
} ints;

typedef struct {
    float32x4_t low, high;
} floats;

typedef int8x16_t bytes;
typedef int16x8_t factors;
typedef int16_t stored_factor;

/* The same instruction for both halves. */
#define BOTH(type, instruction, a, b) ((type){instruction((a).low, (b).low), instruction((a).high, (b).high)})

INLINE ints ints_set(int32_t value) { return (ints){vdupq_n_s32(value), vdupq_n_s32(value)}; }
INLINE ints ints_load(const int32_t *source) { return (ints){vld1q_s32(source), vld1q_s32(source + 4)}; }
INLINE ints ints_from_words(int16x8_t words) { return (ints){vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)}; }
INLINE ints ints_from_codes(const int8_t *source) { return ints_from_words(vmovl_s8(vld1_s8(source))); }
INLINE ints ints_add(ints a, ints b) { return BOTH(ints, vaddq_s32, a, b); }
INLINE ints ints_sub(ints a, ints b) { return BOTH(ints, vsubq_s32, a, b); }
INLINE ints ints_mul(ints a, ints b) { return BOTH(ints, vmulq_s32, a, b); }
INLINE ints ints_min(ints a, ints b) { return BOTH(ints, vminq_s32, a, b); }
INLINE ints ints_max(ints a, ints b) { return BOTH(ints, vmaxq_s32, a, b); }
INLINE ints ints_and(ints a, ints b) { return BOTH(ints, vandq_s32, a, b); }
#define ints_shift_right(a, bits) ((ints){vshrq_n_s32((a).low, bits), vshrq_n_s32((a).high, bits)})

INLINE floats floats_set(float value) { return (floats){vdupq_n_f32(value), vdupq_n_f32(value)}; }
INLINE floats floats_load(const float *source) { return (floats){vld1q_f32(source), vld1q_f32(source + 4)}; }
INLINE floats floats_from_ints(ints a) { return (floats){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
INLINE floats floats_add(floats a, floats b) { return BOTH(floats, vaddq_f32, a, b); }
INLINE floats floats_sub(floats a, floats b) { return BOTH(floats, vsubq_f32, a, b); }
INLINE floats floats_mul(floats a, floats b) { return BOTH(floats, vmulq_f32, a, b); }
INLINE floats floats_div(floats a, floats b) { return BOTH(floats, vdivq_f32, a, b); }
INLINE floats floats_min(floats a, floats b) { return BOTH(floats, vminq_f32, a, b); }
INLINE floats floats_max(floats a, floats b) { return BOTH(floats, vmaxq_f32, a, b); }

INLINE floats floats_fma(floats a, floats b, floats c)
{
    return (floats){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
INLINE ints ints_from_magic(floats a) { return (ints){vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)}; }
INLINE ints ints_from_bits(floats a) { return ints_from_magic(a); }
INLINE void ints_store(int32_t *target, ints a)
{
    vst1q_s32(target, a.low);
    vst1q_s32(target + 4, a.high);
}

INLINE float32x4_t scale_negative(float32x4_t a, float32x4_t slope) { return vbslq_f32(vcltzq_f32(a), vmulq_f32(a, slope), a); }
INLINE floats floats_scale_negative(floats a, floats slope) { return BOTH(floats, scale_negative, a, slope); }

INLINE ints ints_round(floats a) { return (ints){vcvtnq_s32_f32(a.low), vcvtnq_s32_f32(a.high)}; }

INLINE factors factors_set(stored_factor value) { return vdupq_n_s16(value); }
INLINE factors factors_load(const stored_factor *source) { return vld1q_s16(source); }
INLINE factors factors_from_codes(const int8_t *source) { return vmovl_s8(vld1_s8(source)); }
INLINE stored_factor factor_of_rows(const int16_t rows[ROWS_TOGETHER]) { return rows[0]; }
INLINE ints ints_multiply_add(ints sum, factors a, factors b)
{
    return (ints){vmlal_s16(sum.low, vget_low_s16(a), vget_low_s16(b)), vmlal_high_s16(sum.high, a, b)};
}

INLINE void interleave_rows(int8_t *target, const int8_t *const rows[ROWS_TOGETHER], size_t count)
{
    memcpy(target, rows[0], count);
}

/* The first count bytes, count < 8. */
INLINE void store_few(int8_t *target, int8x8_t codes, size_t count)
{
    uint64_t packed = vget_lane_u64(vreinterpret_u64_s8(codes), 0);
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
    const int8x8_t packed = vmovn_s16(vcombine_s16(vmovn_s32(codes.low), vmovn_s32(codes.high)));
    if (count >= LANES)
        vst1_s8(target, packed);
    else
        store_few(target, packed, count);
}

INLINE bytes bytes_set(int8_t value) { return vdupq_n_s8(value); }
INLINE bytes bytes_load(const int8_t *source) { return vld1q_s8(source); }
INLINE bytes bytes_max(bytes a, bytes b) { return vmaxq_s8(a, b); }

INLINE void bytes_store(int8_t *target, bytes codes, size_t count)
{
    if (count >= BYTE_LANES) {
        vst1q_s8(target, codes);
        return;
    }
    int8x8_t rest = vget_low_s8(codes);
    if (count & 8) {
        vst1_s8(target, rest);
        target += 8;
        rest = vget_high_s8(codes);
    }
    store_few(target, rest, count & 7);
}

static inline int8x16x4_t table_part(const int8_t *table)
{
    return (int8x16x4_t){{vld1q_s8(table), vld1q_s8(table + 16), vld1q_s8(table + 32), vld1q_s8(table + 48)}};
}

/* Four tables of 64 entries; a look-up leaves the lanes alone whose index is beyond its table. */
static inline void translate_rows(const int8_t *table, const int8_t *x, size_t x_step, int8_t *y, size_t y_step, size_t width,
                                  size_t rows)
{
    const int8x16x4_t parts[4] = {table_part(table), table_part(table + 64), table_part(table + 128), table_part(table + 192)};
    for (; rows > 0; rows--, x += x_step, y += y_step)
        for (size_t i = 0; i < width; i += BYTE_LANES) {
            const uint8x16_t index = vreinterpretq_u8_s8(bytes_load(x + i));
            bytes found = vqtbl4q_s8(parts[0], index);
            found = vqtbx4q_s8(found, parts[1], vsubq_u8(index, vdupq_n_u8(64)));
            found = vqtbx4q_s8(found, parts[2], vsubq_u8(index, vdupq_n_u8(128)));
            found = vqtbx4q_s8(found, parts[3], vsubq_u8(index, vdupq_n_u8(192)));
            bytes_store(y + i, found, width - i);
        }
}

#endif
