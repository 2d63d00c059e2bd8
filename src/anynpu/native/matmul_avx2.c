/* Tiles of a matmul with AVX2 and FMA. Quantized values become 16 bits on their way into a register and vpmaddwd adds two exact products;
 * vpmaddubsw, which saturates, is never used. */
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "unroll.h"

#define INTEGERS __m256i
#define CODES __m256i
#define FLOATS __m256
#define BLOCKS 2
#define LANES 8
#define A_BYTES 4
#define B_BYTES 16

#define FETCH 4096 /* bytes of b ahead */

#define load_integers(from) _mm256_loadu_si256((const __m256i *)(from))
#define store_integers(to, values) _mm256_storeu_si256((__m256i *)(to), values)
#define add_integers(x, y) _mm256_add_epi32(x, y)
#define set_integer(value) _mm256_set1_epi32(value)
#define load_codes(from) _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(from)))
#define load_floats(from) _mm256_loadu_ps(from)
#define load_halves(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from)))
#define store_floats(to, values) _mm256_storeu_ps(to, values)
#define set_float(value) _mm256_set1_ps(value)
#define multiply_floats(sum, x, y) _mm256_fmadd_ps(x, y, sum)

CONV_INLINE __m256i spread_codes(const uint8_t *from)
{
    int32_t two;
    memcpy(&two, from, sizeof two);
    return _mm256_set1_epi32(two);
}

/* As assembly, because compilers reorder the intrinsics until the sums no longer fit the 16 registers. */
CONV_INLINE void multiply_codes(__m256i *sum, __m256i codes, __m256i row)
{
    __m256i products;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*sum), "=&x"(products) : "x"(codes), "x"(row));
}

#include "matmul_tile.h"

const struct anynpu_matrix_kernels anynpu_matrices_avx2 = {
    .codes = {.name = "matmul_avx2", .width = WIDTH, .rows = TILE_ROWS, .group = 2, .depth = 2048, .near_bytes = 1 << 15,
              .a_size = 2, .tile = tile_codes},
    .floats = {.name = "matmul_avx2", .width = WIDTH, .rows = TILE_ROWS, .group = 1, .depth = 1024, .near_bytes = 1 << 13,
               .a_size = 4, .takes_halves = 1, .tile = tile_floats},
    .few = &anynpu_few_avx2,
};
