/* Pooling and resizing. Plain C, compiled once for each level; the innermost loops run over channels. */
#include <string.h>

#include "arithmetic.h"
#include "levels.h"
#include "sizes.h"

static size_t pool_scratch(const struct anynpu_pool *pool)
{
    return size_times(pool->c, sizeof(int64_t));
}

/* Elements of one axis of a window: those inside the input are [begin, end), and counted is how many an average divides by. */
struct window {
    size_t begin, end, counted;
};

/* How many of a window's elements lie before the position end; the window begins at origin. */
static size_t elements_before(ptrdiff_t origin, size_t dilation, size_t kernel, size_t end)
{
    size_t distance = origin >= (ptrdiff_t)end ? 0 : (size_t)((ptrdiff_t)end - origin);
    size_t count = (distance + dilation - 1) / dilation;
    return count < kernel ? count : kernel;
}

static struct window window_of(size_t position, size_t stride, size_t dilation, size_t kernel, size_t before, size_t after,
                               size_t extent, int count_padding)
{
    ptrdiff_t origin = (ptrdiff_t)(position * stride) - (ptrdiff_t)before;
    struct window window = {elements_before(origin, dilation, kernel, 0), elements_before(origin, dilation, kernel, extent), 0};
    /* none lies before the padding */
    window.counted = count_padding ? elements_before(origin, dilation, kernel, extent + after) : window.end - window.begin;
    return window;
}

/* The largest code of each channel. */
#define MAX_POOL(name, type, smallest)                                                                                         \
    static void max_pool_##name(const struct anynpu_pool *pool, const type *image, struct window rows, struct window columns,   \
                                size_t top, size_t left, type *restrict y)                                                     \
    {                                                                                                                          \
        for (size_t c = 0; c < pool->c; c++)                                                                                   \
            y[c] = smallest;                                                                                                   \
        for (size_t a = rows.begin; a < rows.end; a++)                                                                         \
            for (size_t b = columns.begin; b < columns.end; b++) {                                                             \
                size_t place = (top + a * pool->dh - pool->top) * pool->w + (left + b * pool->dw - pool->left);                \
                const type *restrict x = image + place * pool->c;                                                              \
                for (size_t c = 0; c < pool->c; c++)                                                                           \
                    y[c] = x[c] > y[c] ? x[c] : y[c];                                                                          \
            }                                                                                                                  \
    }

MAX_POOL(i8, int8_t, INT8_MIN)
MAX_POOL(i16, int16_t, INT16_MIN)

#define AVERAGE_POOL(name, type, sum_type, store)                                                                              \
    static void average_pool_##name(const struct anynpu_pool *pool, const type *image, struct window rows,                     \
                                    struct window columns, size_t top, size_t left, sum_type *restrict sums, type *y)          \
    {                                                                                                                          \
        memset(sums, 0, pool->c * sizeof *sums);                                                                               \
        for (size_t a = rows.begin; a < rows.end; a++)                                                                         \
            for (size_t b = columns.begin; b < columns.end; b++) {                                                             \
                size_t place = (top + a * pool->dh - pool->top) * pool->w + (left + b * pool->dw - pool->left);                \
                const type *restrict x = image + place * pool->c;                                                              \
                for (size_t c = 0; c < pool->c; c++)                                                                           \
                    sums[c] += x[c];                                                                                           \
            }                                                                                                                  \
        sum_type inside = (sum_type)(rows.begin < rows.end && columns.begin < columns.end                                      \
                                         ? (rows.end - rows.begin) * (columns.end - columns.begin)                             \
                                         : 0);                                                                                 \
        size_t counted = rows.counted * columns.counted;                                                                       \
        float divisor = (float)(counted > 0 ? counted : 1);                                                                    \
        float values[ANYNPU_RUN];                                                                                              \
        int32_t codes[ANYNPU_RUN];                                                                                             \
        for (size_t first = 0; first < pool->c; first += ANYNPU_RUN) {                                                         \
            size_t count = pool->c - first < ANYNPU_RUN ? pool->c - first : ANYNPU_RUN;                                        \
            if (pool->epilogue.fixed != NULL) {                                                                                \
                for (size_t i = 0; i < count; i++)                                                                             \
                    codes[i] = anynpu_fixed_output(&pool->epilogue, first + i,                                                 \
                                                   anynpu_saturate(sums[first + i] - inside * pool->input_zero[first + i]),    \
                                                   pool->divisor_multiplier[counted], pool->divisor_shift[counted]);           \
            } else {                                                                                                           \
                for (size_t i = 0; i < count; i++) {                                                                           \
                    float multiplier = pool->epilogue.multiplier[first + i] / divisor;                                         \
                    values[i] = (float)(sums[first + i] - inside * pool->input_zero[first + i]) * multiplier;                  \
                }                                                                                                              \
                anynpu_finish(&pool->epilogue, first, count, values, codes);                                                   \
            }                                                                                                                  \
            store(&pool->epilogue, first, count, codes, y + first);                                                            \
        }                                                                                                                      \
    }

AVERAGE_POOL(i8, int8_t, int32_t, anynpu_store_i8)
AVERAGE_POOL(i8_wide, int8_t, int64_t, anynpu_store_i8)
AVERAGE_POOL(i16, int16_t, int64_t, anynpu_store_i16)

#define POOL(name, type, max_pool, average_pool)                                                                               \
    static void pool_##name(const struct anynpu_pool *pool, const void *x, void *y, void *scratch, size_t first, size_t last)  \
    {                                                                                                                          \
        type *target = (type *)y + first * pool->ow * pool->c;                                                                 \
        int padding = pool->count_include_pad;                                                                                 \
        for (size_t row = first; row < last; row++) {                                                                          \
            size_t i = row % pool->oh;                                                                                         \
            const type *image = (const type *)x + row / pool->oh * pool->h * pool->w * pool->c;                                \
            struct window rows = window_of(i, pool->sh, pool->dh, pool->kh, pool->top, pool->bottom, pool->h, padding);        \
            for (size_t j = 0; j < pool->ow; j++, target += pool->c) {                                                         \
                struct window columns = window_of(j, pool->sw, pool->dw, pool->kw, pool->left, pool->right, pool->w, padding); \
                if (pool->average)                                                                                             \
                    average_pool(pool, image, rows, columns, i * pool->sh, j * pool->sw, scratch, target);                     \
                else                                                                                                           \
                    max_pool(pool, image, rows, columns, i * pool->sh, j * pool->sw, target);                                  \
            }                                                                                                                  \
        }                                                                                                                      \
    }

POOL(i8, int8_t, max_pool_i8, average_pool_i8)
POOL(i8_wide, int8_t, max_pool_i8, average_pool_i8_wide)
POOL(i16, int16_t, max_pool_i16, average_pool_i16)

enum { ONE = 1 << 11 }; /* the weights of two neighbors together */

/* Four neighbors; the sum has 22 fraction bits. */
#define RESIZE(name, type, sum_type, shift)                                                                                    \
    static void resize_##name(const struct anynpu_resize *resize, const void *x, void *y)                                      \
    {                                                                                                                          \
        type *restrict target = y;                                                                                             \
        size_t c = resize->c, row = resize->w * c;                                                                             \
        for (size_t n = 0; n < resize->n; n++)                                                                                 \
            for (size_t i = 0; i < resize->oh; i++) {                                                                          \
                const int32_t *vertical = resize->rows + 3 * i;                                                                \
                const type *image = (const type *)x + n * resize->h * row;                                                     \
                const type *upper = image + (size_t)vertical[0] * row, *lower = image + (size_t)vertical[1] * row;             \
                for (size_t j = 0; j < resize->ow; j++, target += c) {                                                         \
                    const int32_t *across = resize->columns + 3 * j;                                                           \
                    size_t left = (size_t)across[0] * c, right = (size_t)across[1] * c;                                        \
                    if (!resize->linear) {                                                                                     \
                        memcpy(target, upper + left, c * sizeof(type));                                                        \
                        continue;                                                                                              \
                    }                                                                                                          \
                    sum_type below = vertical[2], after = across[2], above = ONE - below, before = ONE - after;                \
                    for (size_t k = 0; k < c; k++) {                                                                           \
                        sum_type first = upper[left + k] * above + lower[left + k] * below;                                    \
                        sum_type second = upper[right + k] * above + lower[right + k] * below;                                 \
                        target[k] = (type)shift(first * before + second * after);                                              \
                    }                                                                                                          \
                }                                                                                                              \
            }                                                                                                                  \
    }

RESIZE(i8, int8_t, int32_t, anynpu_resize_shift_i32)
RESIZE(i16, int16_t, int64_t, anynpu_resize_shift_i64)

extern const struct anynpu_window_operators LEVELLED(windows);
const struct anynpu_window_operators LEVELLED(windows) = {
    .pool_scratch = pool_scratch,
    .pool = {pool_i8, pool_i8_wide, pool_i16},
    .resize = {resize_i8, resize_i8, resize_i16},
};
