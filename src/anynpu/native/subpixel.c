/* Transposed convolution by a fast kernel: a few rows of the ordinary convolution at a time, whose pixels are then put in their places while
 * they are in the cache. */
#include <string.h>

#include "sizes.h"
#include "subpixel.h"

enum { BLOCK_BYTES = 64 << 10 };

static size_t row_bytes(const struct anynpu_subpixel *subpixel)
{
    return size_times(subpixel->conv.ow, subpixel->conv.cout);
}

/* Rows of the ordinary convolution that are computed at a time. */
static size_t rows_at_once(const struct anynpu_subpixel *subpixel)
{
    size_t rows = BLOCK_BYTES / row_bytes(subpixel);
    return rows > 0 ? rows : 1;
}

static size_t kernel_scratch(const struct anynpu_subpixel *subpixel, const struct anynpu_conv_kernel *kernel)
{
    return size_whole(kernel->scratch_size(&subpixel->conv), 64);
}

size_t anynpu_subpixel_scratch(const struct anynpu_subpixel *subpixel, const struct anynpu_conv_kernel *kernel)
{
    return size_plus(kernel_scratch(subpixel, kernel), size_times(rows_at_once(subpixel), row_bytes(subpixel)));
}

/* count runs of size bytes that lie step bytes apart, side by side */
static void collect(const int8_t *source, size_t step, int8_t *target, size_t size, size_t count)
{
    switch (size) {
    case 2:
        for (size_t i = 0; i < count; i++)
            memcpy(target + 2 * i, source + i * step, 2);
        break;
    case 4:
        for (size_t i = 0; i < count; i++)
            memcpy(target + 4 * i, source + i * step, 4);
        break;
    default:
        for (size_t i = 0; i < count; i++)
            memcpy(target + size * i, source + i * step, size);
    }
}

/* One row of the ordinary convolution: up to sh rows of the output. */
static void place_row(const struct anynpu_subpixel *subpixel, const int8_t *row, size_t t, int8_t *image)
{
    size_t run = subpixel->sw * subpixel->cout, whole = subpixel->ow / subpixel->sw, rest = subpixel->ow % subpixel->sw;
    for (size_t phase = 0; phase < subpixel->sh && t * subpixel->sh + phase < subpixel->oh; phase++) {
        const int8_t *source = row + phase * run;
        int8_t *target = image + (t * subpixel->sh + phase) * subpixel->ow * subpixel->cout;
        collect(source, subpixel->conv.cout, target, run, whole);
        memcpy(target + whole * run, source + whole * subpixel->conv.cout, rest * subpixel->cout);
    }
}

void anynpu_run_subpixel(const struct anynpu_subpixel *subpixel, const struct anynpu_conv_kernel *kernel, const void *packed,
                         const int8_t *x, int8_t *y, void *scratch, size_t first_row, size_t last_row)
{
    const struct anynpu_conv *conv = &subpixel->conv;
    int8_t *block = (int8_t *)scratch + kernel_scratch(subpixel, kernel);
    size_t bytes = row_bytes(subpixel), at_once = rows_at_once(subpixel);
    size_t image_bytes = subpixel->oh * subpixel->ow * subpixel->cout;
    for (size_t first = first_row; first < last_row; first += at_once) {
        size_t last = first + at_once < last_row ? first + at_once : last_row;
        /* A kernel writes row r of its output at r * bytes: where the whole output would begin, if the block were a part of it. */
        int8_t *output = (int8_t *)((uintptr_t)block - first * bytes);
        kernel->run(conv, packed, x, NULL, output, scratch, first, last);
        for (size_t row = first; row < last; row++)
            place_row(subpixel, block + (row - first) * bytes, row % conv->oh, y + row / conv->oh * image_bytes);
    }
}
