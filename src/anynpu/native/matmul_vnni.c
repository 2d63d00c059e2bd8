/* Tiles of a matmul with AVX512-VNNI. vpdpbusd multiplies unsigned by signed bytes: a stays signed, b is stored as code + 128. */
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "unroll.h"

#define INTEGERS __m512i
#define CODES __m512i
#define FLOATS __m512
#define BLOCKS 4
#define LANES 16
#define A_BYTES 4
#define B_BYTES 64

#define FETCH 4096 /* bytes of b ahead */

#define load_integers(from) _mm512_loadu_si512(from)
#define store_integers(to, values) _mm512_storeu_si512(to, values)
#define add_integers(x, y) _mm512_add_epi32(x, y)
#define set_integer(value) _mm512_set1_epi32(value)
#define load_codes(from) _mm512_loadu_si512(from)
#define load_floats(from) _mm512_loadu_ps(from)
#define load_halves(from) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from)))
#define store_floats(to, values) _mm512_storeu_ps(to, values)
#define set_float(value) _mm512_set1_ps(value)
#define multiply_floats(sum, x, y) _mm512_fmadd_ps(x, y, sum)

CONV_INLINE __m512i spread_codes(const uint8_t *from)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}

/* As assembly, because compilers reorder the intrinsics until the sums no longer fit the registers. */
CONV_INLINE void multiply_codes(__m512i *sum, __m512i codes, __m512i row)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(row));
}

#include "matmul_tile.h"

const struct anynpu_matrix_kernels anynpu_matrices_vnni = {
    .codes = {.name = "matmul_vnni", .width = WIDTH, .rows = TILE_ROWS, .group = 4, .depth = 2048, .near_bytes = 1 << 16,
              .a_size = 1, .shift = 128, .tile = tile_codes},
    .floats = {.name = "matmul_vnni", .width = WIDTH, .rows = TILE_ROWS, .group = 1, .depth = 1024, .near_bytes = 1 << 13,
               .a_size = 4, .takes_halves = 1, .tile = tile_floats},
    .few = &anynpu_few_vnni,
};
