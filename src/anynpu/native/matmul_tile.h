/* Tiles of a matmul from a few operations on registers, which the including file defines:
 *
 *   INTEGERS, FLOATS         a register of int32 and of float32
 *   Quantized values                    a register of packed quantized values of b, as multiply_codes takes them
 *   BLOCKS, LANES            registers side by side in a tile, and results in each
 *   A_BYTES, B_BYTES         of one row and of one register in a step
 *   FETCH                    how many bytes ahead packed b is fetched, where the processor does not do that itself; may be missing
 *   load_integers, store_integers, add_integers, set_integer, load_codes, spread_codes, multiply_codes
 *   load_floats, load_halves (float32 from float16), store_floats, set_float, multiply_floats
 *
 * A tile has up to 6 rows: its sums are registers. */
#ifndef ANYNPU_MATMUL_TILE_H
#define ANYNPU_MATMUL_TILE_H

#include "kernels.h"
#include "unroll.h"

#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL

enum { TILE_ROWS = 6, WIDTH = BLOCKS * LANES };

INLINE void rows_of_codes(int rows, size_t steps, const uint8_t *a, const uint8_t *b, int32_t *c, size_t stride, const int32_t *start,
                          int first)
{
    INTEGERS sums[TILE_ROWS][BLOCKS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < BLOCKS; j++) {
            sums[i][j] = set_integer(start[i]);
            if (!first)
                sums[i][j] = add_integers(sums[i][j], load_integers(c + (size_t)i * stride + j * LANES));
#ifdef FETCH
            else
                __builtin_prefetch(c + (size_t)i * stride + j * LANES, 1);
#endif
        }
    for (size_t step = 0; step < steps; step++) {
        CODES codes[BLOCKS];
        UNROLL for (int j = 0; j < BLOCKS; j++)
            codes[j] = load_codes(b + j * B_BYTES);
#ifdef FETCH
        UNROLL for (int j = 0; j < BLOCKS * B_BYTES; j += 64)
            __builtin_prefetch(b + FETCH + j);
#endif
        UNROLL for (int i = 0; i < rows; i++) {
            CODES row = spread_codes(a + i * A_BYTES);
            UNROLL for (int j = 0; j < BLOCKS; j++)
                multiply_codes(&sums[i][j], codes[j], row);
        }
        a += rows * A_BYTES;
        b += BLOCKS * B_BYTES;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < BLOCKS; j++)
            store_integers(c + (size_t)i * stride + j * LANES, sums[i][j]);
}

/* b is float16: to convert it in each tile again costs less than to write it as float32 and read that. */
INLINE void rows_of_floats(int rows, size_t steps, const float *a, const uint16_t *b, float *c, size_t stride, int first)
{
    FLOATS sums[TILE_ROWS][BLOCKS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < BLOCKS; j++)
            sums[i][j] = first ? set_float(0.0f) : load_floats(c + (size_t)i * stride + j * LANES);
    for (size_t step = 0; step < steps; step++) {
        FLOATS values[BLOCKS];
        UNROLL for (int j = 0; j < BLOCKS; j++)
            values[j] = load_halves(b + j * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            FLOATS row = set_float(a[i]);
            UNROLL for (int j = 0; j < BLOCKS; j++)
                sums[i][j] = multiply_floats(sums[i][j], values[j], row);
        }
        a += rows;
        b += WIDTH;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < BLOCKS; j++)
            store_floats(c + (size_t)i * stride + j * LANES, sums[i][j]);
}

#define DEFINE_ROWS(rows)                                                                                                      \
    CONV_ROW_FUNCTION codes_##rows(size_t steps, const void *a, const void *b, void *c, size_t stride, const int32_t *start,     \
                                   int first)                                                                                  \
    {                                                                                                                          \
        rows_of_codes(rows, steps, a, b, c, stride, start, first);                                                             \
    }                                                                                                                          \
    CONV_ROW_FUNCTION floats_##rows(size_t steps, const void *a, const void *b, void *c, size_t stride, const int32_t *start,    \
                                    int first)                                                                                 \
    {                                                                                                                          \
        (void)start;                                                                                                           \
        rows_of_floats(rows, steps, a, b, c, stride, first);                                                                   \
    }

DEFINE_ROWS(1)
DEFINE_ROWS(2)
DEFINE_ROWS(3)
DEFINE_ROWS(4)
DEFINE_ROWS(5)
DEFINE_ROWS(6)

typedef void tile_of_rows(size_t steps, const void *a, const void *b, void *c, size_t stride, const int32_t *start, int first);

static tile_of_rows *const code_tiles[TILE_ROWS] = {codes_1, codes_2, codes_3, codes_4, codes_5, codes_6}; /* by rows - 1 */
static tile_of_rows *const float_tiles[TILE_ROWS] = {floats_1, floats_2, floats_3, floats_4, floats_5, floats_6};

static void tile_codes(size_t rows, size_t steps, const void *a, const void *b, void *c, size_t stride, const int32_t *start, int first)
{
    code_tiles[rows - 1](steps, a, b, c, stride, start, first);
}

static void tile_floats(size_t rows, size_t steps, const void *a, const void *b, void *c, size_t stride, const int32_t *start,
                        int first)
{
    float_tiles[rows - 1](steps, a, b, c, stride, start, first);
}

#endif
