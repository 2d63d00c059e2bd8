/* Convolution of int8 with NEON, compiled twice.
 *
 * With ANYNPU_DOTPROD (and +dotprod): sdot adds four products of bytes. Weights are packed as they are;
 *   acc = sum(a * w) - weight_zero * S + bias,    S = sum of the activations under the pixel.
 * Without: activations become 16 bits on their way into the ring, weights are packed as code - zero point in 16 bits, and
 * smlal multiplies four channels by one activation; no sums are needed. */
#include <arm_neon.h>

#include "conv_common.h"

/* A tile is `blocks` registers of 4 channels times `pixels`: 16 accumulators of the 32 registers. */
#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL
#define ROW_FUNCTION CONV_ROW_FUNCTION

#define MAX_BLOCKS 4
#define MAX_PIXELS 8

/* ---------------------------------------------------------------- from accumulators to quantized values */

/* Rounded to integers of 16 bits, before the zero point is added. Conversion and narrowing saturate. */
INLINE int16x4_t finish_block(int32x4_t accumulator, const struct conv_line *line, size_t channel, const int8_t *residual,
                              int slope)
{
    const struct conv_channels *channels = &line->channels;
    float32x4_t f = vmulq_f32(vcvtq_f32_s32(accumulator), vld1q_f32(channels->multiplier + channel));
    if (residual) {
        int32_t four;
        memcpy(&four, residual + channel, sizeof four);
        int32x4_t codes = vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
        float32x4_t values = vcvtq_f32_s32(vsubq_s32(codes, vld1q_s32(channels->residual_zero + channel)));
        f = vaddq_f32(f, vmulq_f32(values, vld1q_f32(channels->residual_multiplier + channel)));
    }
    if (slope)
        f = vbslq_f32(vcltzq_f32(f), vmulq_f32(f, vld1q_f32(channels->slope + channel)), f);
    return vqmovn_s32(vcvtnq_s32_f32(vminq_f32(f, vld1q_f32(channels->high + channel))));
}

/* The same by the chip's rule: see fixed_forms.h. The zero point is in it. */
INLINE int16x4_t finish_fixed(int32x4_t accumulator, const struct conv_line *line, size_t channel, const int8_t *residual)
{
    const struct conv_channels *channels = &line->channels;
    const float32x4_t magic = vdupq_n_f32(FIXED_MAGIC);
    const float32x4_t most = vld1q_f32(channels->high + channel);
    float32x4_t sum = vminq_f32(vmaxq_f32(vcvtq_f32_s32(accumulator), vnegq_f32(most)), most);
    float32x4_t t = vsubq_f32(vfmaq_f32(magic, sum, vld1q_f32(channels->multiplier + channel)), magic);
    if (residual) {
        int32_t four;
        memcpy(&four, residual + channel, sizeof four);
        int32x4_t codes = vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
        float32x4_t values = vcvtq_f32_s32(vsubq_s32(codes, vld1q_s32(channels->residual_zero + channel)));
        values = vfmaq_f32(magic, values, vld1q_f32(channels->residual_multiplier + channel));
        t = vaddq_f32(t, vsubq_f32(values, magic));
    }
    t = vfmaq_f32(vld1q_f32(channels->offset + channel), t, vld1q_f32(channels->factor + channel));
    return vqmovn_s32(vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(FIXED_MAGIC_BITS)));
}

/* Quantized values of two blocks. */
INLINE int8x8_t pack_blocks(int16x4_t first, int16x4_t second, const struct conv_line *line, size_t channel)
{
    const int32_t *zero_point = line->channels.zero_point + channel;
    int16x8_t zero = vcombine_s16(vqmovn_s32(vld1q_s32(zero_point)), vqmovn_s32(vld1q_s32(zero_point + 4)));
    int8x8_t codes = vqmovn_s16(vqaddq_s16(vcombine_s16(first, second), zero));
    return vmax_s8(codes, vld1_s8(line->channels.low_codes + channel));
}

INLINE int8x8_t pack_fixed(int16x4_t first, int16x4_t second, const struct conv_line *line, size_t channel)
{
    int8x8_t codes = vmin_s8(vqmovn_s16(vcombine_s16(first, second)), vld1_s8(line->channels.high_codes + channel));
    return vmax_s8(codes, vld1_s8(line->channels.low_codes + channel));
}

/* Quantized values of blocks j and j + 1. */
INLINE int8x8_t finish_pair(const int32x4_t *accumulators, const struct conv_line *line, int j, const int8_t *residual,
                            enum fixed_form form, int slope)
{
    size_t channel = 4 * (size_t)j;
    if (form == FIXED_NONE)
        return pack_blocks(finish_block(accumulators[j], line, channel, residual, slope),
                           finish_block(accumulators[j + 1], line, channel + 4, residual, slope), line, channel);
    return pack_fixed(finish_fixed(accumulators[j], line, channel, residual),
                      finish_fixed(accumulators[j + 1], line, channel + 4, residual), line, channel);
}

/* What is rare: a residual, a slope, channels that do not exist. From memory, and for all shapes of tiles. */
ROW_FUNCTION finish_rare(int blocks, int pixels, int32x4_t accumulators[][MAX_BLOCKS], const struct conv_line *line,
                         ptrdiff_t first)
{
    for (int i = 0; i < pixels; i++) {
        ptrdiff_t at = (first + i) * line->out_stride;
        const int8_t *residual = line->residual ? line->residual + at : NULL;
        if (line->form >= FIXED_CURVE) {
            fixed_codes(line->form, line->epilogue, &line->tables, line->channel, line->valid, (const int32_t *)accumulators[i],
                        residual, line->y + at);
            continue;
        }
        int8_t codes[4 * MAX_BLOCKS];
        for (int j = 0; j < blocks; j += 2)
            vst1_s8(codes + 4 * j, finish_pair(accumulators[i], line, j, residual, line->form, line->has_slope));
        memcpy(line->y + at, codes, line->valid);
    }
}

INLINE void finish_tile(int blocks, int pixels, int32x4_t accumulators[][MAX_BLOCKS], const struct conv_line *line,
                        ptrdiff_t first)
{
    if (line->residual || line->has_slope || line->form >= FIXED_CURVE || line->valid != (size_t)(4 * blocks)) {
        int32x4_t copies[MAX_PIXELS][MAX_BLOCKS];
        UNROLL for (int i = 0; i < pixels; i++)
            UNROLL for (int j = 0; j < blocks; j++)
                copies[i][j] = accumulators[i][j];
        finish_rare(blocks, pixels, copies, line, first);
        return;
    }
    if (line->form == FIXED_SINGLE) {
        UNROLL for (int i = 0; i < pixels; i++)
            UNROLL for (int j = 0; j < blocks; j += 2)
                vst1_s8(line->y + (first + i) * line->out_stride + 4 * j,
                        finish_pair(accumulators[i], line, j, NULL, FIXED_SINGLE, 0));
        return;
    }
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int j = 0; j < blocks; j += 2)
            vst1_s8(line->y + (first + i) * line->out_stride + 4 * j, finish_pair(accumulators[i], line, j, NULL, FIXED_NONE, 0));
}

/* ---------------------------------------------------------------- multiplication */

#ifdef ANYNPU_DOTPROD

#define BIAS_OF_PIXEL(line, channel, pixel)                                                                           \
    vmlsq_n_s32(vld1q_s32((line)->channels.bias + (channel)), vld1q_s32((line)->channels.weight_zero + (channel)),    \
                (line)->sums[pixel])

/* Four steps: element 4 * lane + 0..3 of 16 activations of every pixel. The lane of an instruction must be a literal. */
#define MULTIPLY_LANE(lane)                                                                                           \
    do {                                                                                                              \
        UNROLL for (int j = 0; j < blocks; j++) {                                                                     \
            int8x16_t w = vld1q_s8(weights + 16 * (blocks * (lane) + j));                                             \
            UNROLL for (int i = 0; i < pixels; i++)                                                                   \
                acc[i][j] = vdotq_laneq_s32(acc[i][j], w, a16[i], lane);                                              \
        }                                                                                                             \
    } while (0)

INLINE const int8_t *multiply_run(int blocks, int pixels, int32x4_t acc[][MAX_BLOCKS], const int8_t *weights, const void *run,
                                  ptrdiff_t stride, size_t steps)
{
    const int8_t *a = run;
    size_t step = 0;
    for (; step + 4 <= steps; step += 4) {
        int8x16_t a16[MAX_PIXELS];
        UNROLL for (int i = 0; i < pixels; i++)
            a16[i] = vld1q_s8(a + i * stride);
        MULTIPLY_LANE(0);
        MULTIPLY_LANE(1);
        MULTIPLY_LANE(2);
        MULTIPLY_LANE(3);
        weights += 64 * blocks;
        a += 16;
    }
    for (; step < steps; step++) {
        UNROLL for (int i = 0; i < pixels; i++) {
            int32_t four;
            memcpy(&four, a + i * stride, sizeof four);
            UNROLL for (int j = 0; j < blocks; j++)
                acc[i][j] = vdotq_s32(acc[i][j], vld1q_s8(weights + 16 * j), vreinterpretq_s8_s32(vdupq_n_s32(four)));
        }
        weights += 16 * blocks;
        a += 4;
    }
    return weights;
}

#else

#define BIAS_OF_PIXEL(line, channel, pixel) ((void)(pixel), vld1q_s32((line)->channels.bias + (channel)))

/* One element of the four activations of a step of every pixel. The lane of an instruction must be a literal. */
#define MULTIPLY_LANE(lane)                                                                                           \
    do {                                                                                                              \
        UNROLL for (int j = 0; j < blocks; j += 2) {                                                                  \
            int16x8_t w = vld1q_s16(weights + 4 * (blocks * (lane) + j));                                             \
            UNROLL for (int i = 0; i < pixels; i++) {                                                                 \
                acc[i][j] = vmlal_lane_s16(acc[i][j], vget_low_s16(w), a4[i], lane);                                  \
                acc[i][j + 1] = vmlal_high_lane_s16(acc[i][j + 1], w, a4[i], lane);                                   \
            }                                                                                                         \
        }                                                                                                             \
    } while (0)

INLINE const int16_t *multiply_run(int blocks, int pixels, int32x4_t acc[][MAX_BLOCKS], const int16_t *weights, const void *run,
                                   ptrdiff_t stride, size_t steps)
{
    const uint8_t *a = run;
    for (size_t step = 0; step < steps; step++) {
        int16x4_t a4[MAX_PIXELS];
        UNROLL for (int i = 0; i < pixels; i++)
            a4[i] = vreinterpret_s16_u8(vld1_u8(a + i * stride));
        MULTIPLY_LANE(0);
        MULTIPLY_LANE(1);
        MULTIPLY_LANE(2);
        MULTIPLY_LANE(3);
        weights += 16 * blocks;
        a += 8;
    }
    return weights;
}

#endif

INLINE void tile(int blocks, int pixels, const struct conv_line *line, ptrdiff_t first)
{
    int32x4_t acc[MAX_PIXELS][MAX_BLOCKS];
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int j = 0; j < blocks; j++)
            acc[i][j] = BIAS_OF_PIXEL(line, 4 * j, first + i);

    const void *weights = line->weights;
    for (size_t run = 0; run < line->run_count; run++) {
        const uint8_t *a = (const uint8_t *)line->runs[run] + first * line->pixel_stride;
        weights = multiply_run(blocks, pixels, acc, weights, a, line->pixel_stride, line->steps);
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

#define TO_4(use, b) use(b, 1) use(b, 2) use(b, 3) use(b, 4)
#define TO_8(use, b) TO_4(use, b) use(b, 5) use(b, 6) use(b, 7) use(b, 8)

TO_4(DEFINE_ROW, 4)
TO_8(DEFINE_ROW, 2)

#define NAME_ROW(blocks, pixels) row_##blocks##_##pixels,

static conv_row_function *const rows_of_16[] = {TO_4(NAME_ROW, 4)}; /* by pixels - 1 */
static conv_row_function *const rows_of_8[] = {TO_8(NAME_ROW, 2)};

static size_t tile_width(size_t channels, size_t pixels)
{
    (void)pixels;
    return channels >= 16 ? 16 : 8;
}

static void compute(const struct conv_line *line, size_t width)
{
    if (width == 16)
        conv_cut_line(line, rows_of_16, 4);
    else
        conv_cut_line(line, rows_of_8, 8);
}

/* ---------------------------------------------------------------- tables */

/* Four tables of 64; an index outside of one leaves what the others found. */
static void look_up(int8_t *y, size_t rows, size_t stride, size_t count, const int8_t *table)
{
    const uint8_t *bytes = (const uint8_t *)table;
    const uint8x16x4_t t0 = vld1q_u8_x4(bytes), t1 = vld1q_u8_x4(bytes + 64);
    const uint8x16x4_t t2 = vld1q_u8_x4(bytes + 128), t3 = vld1q_u8_x4(bytes + 192);
    for (size_t row = 0; row < rows; row++, y += stride) {
        size_t i = 0;
        for (; i + 16 <= count; i += 16) {
            uint8x16_t codes = vreinterpretq_u8_s8(vld1q_s8(y + i));
            uint8x16_t entries = vqtbl4q_u8(t0, codes);
            entries = vqtbx4q_u8(entries, t1, vsubq_u8(codes, vdupq_n_u8(64)));
            entries = vqtbx4q_u8(entries, t2, vsubq_u8(codes, vdupq_n_u8(128)));
            entries = vqtbx4q_u8(entries, t3, vsubq_u8(codes, vdupq_n_u8(192)));
            vst1q_s8(y + i, vreinterpretq_s8_u8(entries));
        }
        for (; i < count; i++)
            y[i] = table[(uint8_t)y[i]];
    }
}

/* ---------------------------------------------------------------- activations on their way in */

#ifdef ANYNPU_DOTPROD

/* The rest of a run is a whole load of which only the first elements are multiplied by 1, the others by 0. */
INLINE int32_t sum_pixel(const struct conv_runs *runs, size_t pixel, int8x16_t rest)
{
    const int8_t *run = runs->first + pixel * runs->pixel_stride;
    int32x4_t sum = vdupq_n_s32(0);
    for (size_t tap = 0; tap < runs->taps; tap++, run += runs->tap_stride) {
        size_t k = 0;
        for (; k + 16 <= runs->length; k += 16)
            sum = vdotq_s32(sum, vld1q_s8(run + k), vdupq_n_s8(1));
        if (k < runs->length)
            sum = vdotq_s32(sum, vld1q_s8(run + k), rest);
    }
    return vaddvq_s32(sum);
}

static void sum_runs(const struct conv_runs *runs, int32_t *sums)
{
    int8_t ones[16] = {0};
    memset(ones, 1, runs->length % 16);
    int8x16_t rest = vld1q_s8(ones);
    for (size_t i = 0; i < runs->pixels; i++)
        sums[i] = sum_pixel(runs, i, rest);
}

static void copy(void *to, const int8_t *from, size_t count)
{
    memcpy(to, from, count);
}

#else

static void widen(void *to, const int8_t *from, size_t count)
{
    int16_t *words = to;
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        int8x16_t bytes = vld1q_s8(from + i);
        vst1q_s16(words + i, vmovl_s8(vget_low_s8(bytes)));
        vst1q_s16(words + i + 8, vmovl_high_s8(bytes));
    }
    for (; i < count; i++)
        words[i] = from[i];
}

#endif

/* ---------------------------------------------------------------- the kernel */

static const struct conv_target target = {
#ifdef ANYNPU_DOTPROD
    .form = CONV_WEIGHTS_SIGNED,
    .element_size = 1,
    .interleave = 4,
    .line_pixels = 192,
    .copy = copy,
    .sum_runs = sum_runs,
#else
    .form = CONV_WEIGHTS_CENTRED,
    .element_size = 2,
    .interleave = 1,
    .line_pixels = 64,
    .copy = widen,
#endif
    .granule = 4,
    .tile_width = tile_width,
    .compute = compute,
    .look_up = look_up,
};

#include "conv_kernel.h"

#ifdef ANYNPU_DOTPROD
static const struct anynpu_conv_kernel kernel = CONV_KERNEL("conv_neon_dotprod");

const struct anynpu_conv_kernel *const anynpu_conv_neon_dotprod[] = {&kernel, NULL};
#else
static const struct anynpu_conv_kernel kernel = CONV_KERNEL("conv_neon");

const struct anynpu_conv_kernel *const anynpu_conv_neon[] = {&kernel, NULL};
#endif
