/* Tiles of a matmul in plain C: what the kernels for single instruction sets must give, to the byte. */
#include <string.h>

#include "levels.h"

enum {
    WIDTH = 32, /* a narrower loop gcc unrolls first, and then vectorises along k with shuffles */
    ROWS = 4
};

static void tile_codes(size_t rows, size_t steps, const void *packed_a, const void *packed_b, void *result, size_t stride,
                       const int32_t *start, int first)
{
    const int16_t *a = packed_a;
    for (size_t row = 0; row < rows; row++) {
        const int8_t *b = packed_b;
        int32_t *c = (int32_t *)result + row * stride;
        int32_t sums[WIDTH];
        for (size_t i = 0; i < WIDTH; i++)
            sums[i] = (first ? 0 : c[i]) + start[row];
        for (size_t step = 0; step < steps; step++, b += WIDTH) {
            const int16_t factor = a[step * rows + row];
            for (size_t i = 0; i < WIDTH; i++)
                sums[i] += factor * (int16_t)b[i];
        }
        memcpy(c, sums, sizeof sums);
    }
}

static void tile_floats(size_t rows, size_t steps, const void *packed_a, const void *packed_b, void *result, size_t stride,
                        const int32_t *start, int first)
{
    const float *a = packed_a;
    (void)start;
    for (size_t row = 0; row < rows; row++) {
        const float *b = packed_b;
        float *c = (float *)result + row * stride;
        float sums[WIDTH];
        for (size_t i = 0; i < WIDTH; i++)
            sums[i] = first ? 0.0f : c[i];
        for (size_t step = 0; step < steps; step++, b += WIDTH) {
            const float factor = a[step * rows + row];
            for (size_t i = 0; i < WIDTH; i++)
                sums[i] = sums[i] + factor * b[i];
        }
        memcpy(c, sums, sizeof sums);
    }
}

extern const struct anynpu_matrix_kernels LEVELLED(plain_matrices);
const struct anynpu_matrix_kernels LEVELLED(plain_matrices) = {
    .codes = {.name = "plain", .width = WIDTH, .rows = ROWS, .group = 1, .depth = 1024, .near_bytes = 1 << 13, .a_size = 2,
              .tile = tile_codes},
    .floats = {.name = "plain", .width = WIDTH, .rows = ROWS, .group = 1, .depth = 256, .near_bytes = 1 << 13, .a_size = 4,
               .tile = tile_floats},
};
