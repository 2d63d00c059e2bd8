/* Tiles of a matmul with NEON, compiled twice: with ANYNPU_DOTPROD (and +dotprod) sdot adds four products of bytes; without, quantized values
 * become 16 bits on their way into a register and smlal adds one product to each sum. */
#include <arm_neon.h>
#include <string.h>

#include "kernels.h"
#include "unroll.h"

#define INTEGERS int32x4_t
#define FLOATS float32x4_t
#define BLOCKS 4
#define LANES 4

#define load_integers(from) vld1q_s32(from)
#define store_integers(to, values) vst1q_s32(to, values)
#define add_integers(x, y) vaddq_s32(x, y)
#define set_integer(value) vdupq_n_s32(value)
#define load_floats(from) vld1q_f32(from)
#define load_halves(from) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)))
#define store_floats(to, values) vst1q_f32(to, values)
#define set_float(value) vdupq_n_f32(value)
#define multiply_floats(sum, x, y) vfmaq_f32(sum, x, y)

#ifdef ANYNPU_DOTPROD

#define MATRICES anynpu_matrices_neon_dotprod
#define NAME "matmul_neon_dotprod"
#define CODES int8x16_t
#define A_BYTES 4
#define B_BYTES 16
enum { GROUP = 4, A_SIZE = 1 };

#define load_codes(from) vld1q_s8((const int8_t *)(from))
#define multiply_codes(sum, codes, row) (*(sum) = vdotq_s32(*(sum), codes, row))

CONV_INLINE int8x16_t spread_codes(const uint8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

#else

#define MATRICES anynpu_matrices_neon
#define NAME "matmul_neon"
#define CODES int16x4_t
#define A_BYTES 2
#define B_BYTES 4
enum { GROUP = 1, A_SIZE = 2 };

#define multiply_codes(sum, codes, row) (*(sum) = vmlal_s16(*(sum), codes, row))

CONV_INLINE int16x4_t load_codes(const uint8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    return vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))));
}

CONV_INLINE int16x4_t spread_codes(const uint8_t *from)
{
    int16_t one;
    memcpy(&one, from, sizeof one);
    return vdup_n_s16(one);
}

#endif

#include "matmul_tile.h"

const struct anynpu_matrix_kernels MATRICES = {
    .codes = {.name = NAME, .width = WIDTH, .rows = TILE_ROWS, .group = GROUP, .depth = 1024, .near_bytes = 1 << 13,
              .a_size = A_SIZE, .tile = tile_codes},
    .floats = {.name = NAME, .width = WIDTH, .rows = TILE_ROWS, .group = 1, .depth = 1024, .near_bytes = 1 << 13, .a_size = 4,
               .takes_halves = 1, .tile = tile_floats},
};
