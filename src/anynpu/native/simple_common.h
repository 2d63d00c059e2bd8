/* int8 operators without weights, a vector of channels at a time, for whichever lanes_*.h was included before: table, binary,
 * pooling, concat, resize, matmul. */
#ifndef ANYNPU_SIMPLE_COMMON_H
#define ANYNPU_SIMPLE_COMMON_H

#include <string.h>

#include "kernels.h"
#include "lanes_epilogue.h"
#include "sizes.h"

#define BLOCK_CODES 8192 /* what goes through several steps does so in pieces that stay in the first-level cache */
#define RESIZE_BITS 11

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The farthest that a code can be from a zero point. */
static double farthest(int32_t zero)
{
    return 128.0 + fabs((double)zero);
}

/* memcpy is a call; rows of a few channels are not worth one. */
INLINE void copy_codes(int8_t *target, const int8_t *source, size_t count)
{
    for (size_t i = 0; i < count; i += BYTE_LANES)
        bytes_store(target + i, bytes_load(source + i), count - i);
}

/* ---- table ---- */

static void simple_table(const struct anynpu_table *table, const int8_t *x, int8_t *y)
{
    const size_t channels = table->row == NULL ? table->count : table->channels;
    if (channels > 0)
        translate_channels(table->table, table->row, x, channels, y, channels, channels, table->count / channels);
}

#include "binary_common.h"

/* ---- pooling ---- */

/* The part of a window along one axis that lies inside the input. */
struct span {
    size_t first;  /* position in the input of its first element */
    size_t inside; /* elements inside the input */
    size_t padded; /* elements inside the padded input */
};

static size_t elements_before(ptrdiff_t start, size_t step, size_t taps, size_t end)
{
    const size_t distance = start >= (ptrdiff_t)end ? 0 : (size_t)((ptrdiff_t)end - start);
    return smaller(taps, step == 1 ? distance : (distance + step - 1) / step); /* a division for each pixel would be felt */
}

static struct span span_of(size_t position, size_t stride, size_t before, size_t after, size_t step, size_t taps, size_t size)
{
    const ptrdiff_t start = (ptrdiff_t)(position * stride) - (ptrdiff_t)before;
    const size_t outside = elements_before(start, step, taps, 0), last = elements_before(start, step, taps, size);
    struct span span = {.first = (size_t)(start + (ptrdiff_t)(outside * step)), .inside = last - outside};
    span.padded = elements_before(start, step, taps, size + after);
    return span;
}

/* One output row: where its windows lie. */
struct pool_row {
    const struct anynpu_pool *pool;
    const int8_t *image;
    struct span rows;
    int8_t *y;
};

/* The elements of one output pixel's window that lie inside the input. */
struct window {
    const int8_t *x;
    size_t rows, columns;
    size_t row_step, column_step; /* in quantized values */
    int32_t count;                /* by which an average divides */
};

static struct window window_of(const struct pool_row *row, size_t position)
{
    const struct anynpu_pool *pool = row->pool;
    const struct span rows = row->rows;
    const struct span columns = span_of(position, pool->sw, pool->left, pool->right, pool->dw, pool->kw, pool->w);
    const size_t inside = rows.inside * columns.inside;
    const size_t count = pool->count_include_pad ? rows.padded * columns.padded : inside;
    const struct window window = {
        .x = inside == 0 ? row->image : row->image + (rows.first * pool->w + columns.first) * pool->c,
        .rows = inside == 0 ? 0 : rows.inside,
        .columns = columns.inside,
        .row_step = pool->dh * pool->w * pool->c,
        .column_step = pool->dw * pool->c,
        .count = count == 0 ? 1 : (int32_t)count,
    };
    return window;
}

static void max_window(const struct window *window, size_t channels, int8_t *y)
{
    for (size_t c = 0; c < channels; c += BYTE_LANES) {
        bytes largest = bytes_set(INT8_MIN);
        for (size_t row = 0; row < window->rows; row++) {
            const int8_t *x = window->x + row * window->row_step + c;
            for (size_t column = 0; column < window->columns; column++, x += window->column_step)
                largest = bytes_max(largest, bytes_load(x));
        }
        bytes_store(y + c, largest, channels - c);
    }
}

static void max_row(const struct pool_row *row)
{
    const size_t channels = row->pool->c;
    for (size_t position = 0; position < row->pool->ow; position++) {
        const struct window window = window_of(row, position);
        max_window(&window, channels, row->y + position * channels);
    }
}

/* A number with FIXED_MAGIC. */
INLINE floats with_magic(const int32_t *numbers)
{
    return floats_add(floats_from_ints(ints_load(numbers)), floats_set(FIXED_MAGIC));
}

/* The second stage of the chip's rule, with a factor for the number of elements. */
INLINE ints average_codes(const struct anynpu_pool *pool, const struct window *window, floats sum, size_t channel)
{
    const struct anynpu_epilogue *e = &pool->epilogue;
    const double factor = fixed_factor(pool->divisor_multiplier[window->count], pool->divisor_shift[window->count]);
    const struct fixed_lanes lanes = {.second = floats_set((float)factor),
                                      .offset = with_magic(e->zero_point + channel),
                                      .low = with_magic(e->low + channel),
                                      .high = with_magic(e->high + channel)};
    return fixed_finish(&lanes, sum);
}

/* The epilogue but for its table. */
INLINE void average_store(const struct anynpu_pool *pool, const struct window *window, ints sum, size_t channel, int8_t *y)
{
    if (pool->epilogue.fixed != NULL) {
        const ints zeros = ints_mul(ints_set((int32_t)(window->rows * window->columns)), ints_load(pool->input_zero + channel));
        const ints codes = average_codes(pool, window, floats_from_ints(ints_sub(sum, zeros)), channel);
        codes_store(y + channel, codes, pool->c - channel);
        return;
    }
    const struct finish finish = finish_load(&pool->epilogue, channel);
    const ints zeros = ints_mul(ints_set((int32_t)(window->rows * window->columns)), ints_load(pool->input_zero + channel));
    const floats multiplier = floats_div(floats_load(pool->epilogue.multiplier + channel), floats_set((float)window->count));
    const floats f = floats_mul(floats_from_ints(ints_sub(sum, zeros)), multiplier);
    codes_store(y + channel, finish_codes(&finish, f), pool->c - channel);
}

/* Several vectors of channels at a time, so that a cache line is used once. */
INLINE void average_channels(const struct anynpu_pool *pool, const struct window *window, size_t channel, const int vectors,
                             int8_t *y)
{
    ints sums[4];
    UNROLLED
    for (int i = 0; i < vectors; i++)
        sums[i] = ints_set(0);
    for (size_t row = 0; row < window->rows; row++) {
        const int8_t *x = window->x + row * window->row_step + channel;
        for (size_t column = 0; column < window->columns; column++, x += window->column_step)
            UNROLLED
            for (int i = 0; i < vectors; i++)
                sums[i] = ints_add(sums[i], ints_from_codes(x + i * LANES));
    }
    UNROLLED
    for (int i = 0; i < vectors; i++)
        average_store(pool, window, sums[i], channel + (size_t)i * LANES, y);
}

static void average_row(const struct pool_row *row)
{
    const struct anynpu_pool *pool = row->pool;
    const struct anynpu_epilogue *e = &pool->epilogue;
    int8_t *y = row->y;
    for (size_t position = 0; position < pool->ow; position++, y += pool->c) {
        const struct window window = window_of(row, position);
        size_t c = 0;
        for (; c + 4 * LANES <= pool->c; c += 4 * LANES)
            average_channels(pool, &window, c, 4, y);
        for (; c + 2 * LANES <= pool->c; c += 2 * LANES)
            average_channels(pool, &window, c, 2, y);
        for (; c < pool->c; c += LANES)
            average_channels(pool, &window, c, 1, y);
    }
    if (e->table != NULL)
        translate_channels(e->table, e->row, row->y, pool->c, row->y, pool->c, pool->c, pool->ow);
}

/* Whether the second stage is exact in float32 (fixed_forms.h): sums and results are small enough. */
static int fixed_pool_fits(const struct anynpu_pool *pool)
{
    const size_t counts = pool->kh * pool->kw;
    double sum = 0.0, zero = 0.0;
    for (size_t c = 0; c < pool->c; c++) {
        if (!fixed_channel_fits(&pool->epilogue, c))
            return 0;
        sum = fmax(sum, (double)counts * farthest(pool->input_zero[c]));
        zero = fmax(zero, fabs((double)pool->epilogue.zero_point[c]));
    }
    if (sum > FIXED_MAX_SUM)
        return 0;
    for (size_t count = 1; count <= counts; count++) {
        const int32_t multiplier = pool->divisor_multiplier[count], shift = pool->divisor_shift[count];
        if (!fixed_within(multiplier, 0, 1 << 20) || !fixed_within(shift, 0, 31) ||
            sum * fixed_factor(multiplier, shift) + zero + 1.0 > FIXED_MAX_RESULT)
            return 0;
    }
    return 1;
}

static int simple_pool_fits(const struct anynpu_pool *pool)
{
    const size_t largest = 1 << 23; /* elements whose sum, and whose number as a float, are exact */
    return pool->kh <= largest && pool->kw <= largest && pool->kh * pool->kw <= largest &&
           (!pool->average ||
            (pool->epilogue.fixed != NULL ? fixed_pool_fits(pool) : epilogue_fits(&pool->epilogue, pool->c)));
}

static void simple_pool(const struct anynpu_pool *pool, const int8_t *x, int8_t *y, size_t first_row, size_t last_row)
{
    for (size_t position = first_row; position < last_row; position++) {
        const struct pool_row row = {
            .pool = pool,
            .image = x + position / pool->oh * pool->h * pool->w * pool->c,
            .rows = span_of(position % pool->oh, pool->sh, pool->top, pool->bottom, pool->dh, pool->kh, pool->h),
            .y = y + position * pool->ow * pool->c,
        };
        if (pool->average)
            average_row(&row);
        else
            max_row(&row);
    }
}

/* ---- concat ---- */

/* Blocks of one input to their places in the output; sizes in bytes. */
static void concat_input(const struct anynpu_table *table, const int8_t *x, size_t inner, int8_t *y, size_t y_step, size_t outer)
{
    if (table->table == NULL)
        for (; outer > 0; outer--, x += inner, y += y_step)
            copy_codes(y, x, inner);
    else if (table->row == NULL || table->channels == inner)
        translate_channels(table->table, table->row, x, inner, y, y_step, inner, outer);
    else
        for (; outer > 0; outer--, x += inner, y += y_step)
            translate_channels(table->table, table->row, x, table->channels, y, table->channels, table->channels,
                               inner / table->channels);
}

/* Tables are of quantized values of one byte; without them elements may have any size. */
static void simple_concat(const struct anynpu_concat *concat, const int8_t *const *inputs, int8_t *y)
{
    size_t total = 0;
    for (size_t i = 0; i < concat->inputs; i++)
        total += concat->inner[i] * concat->element_size;
    /* a line of the output is then in the cache for all its inputs */
    const size_t at_once = total == 0 ? 1 : BLOCK_CODES / total + 1;
    for (size_t first = 0; first < concat->outer; first += at_once) {
        int8_t *target = y + first * total;
        for (size_t i = 0; i < concat->inputs; i++) {
            const size_t inner = concat->inner[i] * concat->element_size;
            if (inner > 0)
                concat_input(&concat->tables[i], inputs[i] + first * inner, inner, target, total,
                             smaller(at_once, concat->outer - first));
            target += inner;
        }
    }
}

/* ---- resize ---- */

/* Which rows or columns: three numbers each. */
static size_t index_at(const int32_t *indices, size_t position)
{
    return (size_t)indices[3 * position];
}

static void nearest_row(const struct anynpu_resize *resize, const int8_t *x, int8_t *y)
{
    const size_t c = resize->c;
    for (size_t first = 0, last; first < resize->ow; first = last) {
        /* neighbors of the input that are neighbors of the output go together */
        for (last = first + 1; last < resize->ow && index_at(resize->columns, last) == index_at(resize->columns, last - 1) + 1;)
            last++;
        copy_codes(y + first * c, x + index_at(resize->columns, first) * c, (last - first) * c);
    }
}

INLINE ints blend(ints first, ints second, ints weight)
{
    const ints rest = ints_sub(ints_set(1 << RESIZE_BITS), weight);
    return ints_add(ints_mul(first, rest), ints_mul(second, weight));
}

/* sum / 2^22, half to even: half of the divisor is added, less one unit where the quotient is even. */
INLINE ints shift_rounded(ints sum)
{
    const ints odd = ints_and(ints_shift_right(sum, 2 * RESIZE_BITS), ints_set(1));
    return ints_shift_right(ints_add(ints_add(sum, ints_set((1 << (2 * RESIZE_BITS - 1)) - 1)), odd), 2 * RESIZE_BITS);
}

static void linear_row(const struct anynpu_resize *resize, const int8_t *upper, const int8_t *lower, int32_t row_weight,
                       int8_t *y)
{
    const size_t channels = resize->c;
    const ints down = ints_set(row_weight);
    for (size_t column = 0; column < resize->ow; column++, y += channels) {
        const int32_t *indices = resize->columns + 3 * column;
        const size_t left = (size_t)indices[0] * channels, right = (size_t)indices[1] * channels;
        const ints across = ints_set(indices[2]);
        for (size_t c = 0; c < channels; c += LANES) {
            const ints first = blend(ints_from_codes(upper + left + c), ints_from_codes(lower + left + c), down);
            const ints second = blend(ints_from_codes(upper + right + c), ints_from_codes(lower + right + c), down);
            codes_store(y + c, shift_rounded(blend(first, second, across)), channels - c);
        }
    }
}

static void simple_resize(const struct anynpu_resize *resize, const int8_t *x, int8_t *y)
{
    const size_t x_row = resize->w * resize->c, y_row = resize->ow * resize->c;
    for (size_t image = 0; image < resize->n; image++, x += resize->h * x_row)
        for (size_t row = 0; row < resize->oh; row++, y += y_row) {
            const int32_t *indices = resize->rows + 3 * row;
            if (resize->linear)
                linear_row(resize, x + (size_t)indices[0] * x_row, x + (size_t)indices[1] * x_row, indices[2], y);
            else if (row > 0 && indices[0] == indices[-3])
                memcpy(y, y - y_row, y_row);
            else
                nearest_row(resize, x + (size_t)indices[0] * x_row, y);
        }
}

/* ---- matmul of two activations ---- */

#define MATMUL_ROWS 4
#define MATMUL_VECTORS 2

/* Scratch, one after the other: by column the numbers of the chip's rule and the largest exact sum; b as factors [step][column]; factors of
 * MATMUL_ROWS rows of a. A step is ROWS_TOGETHER elements along k. */
struct matmul_scratch {
    size_t columns, steps; /* columns: whole vectors */
    float *fixed;
    stored_factor *b, *a;
    size_t size;
};

static struct matmul_scratch matmul_scratch_of(const struct anynpu_matmul *matmul, void *scratch)
{
    struct matmul_scratch parts = {.columns = size_whole(matmul->n, MATMUL_VECTORS * LANES)};
    parts.steps = size_whole(matmul->k, ROWS_TOGETHER) / ROWS_TOGETHER;
    const size_t fixed = size_times(size_times(FIXED_ARRAYS + 1, parts.columns), sizeof(float));
    const size_t b = size_times(size_times(parts.steps, parts.columns), sizeof(stored_factor));
    const size_t a = size_times(size_times(MATMUL_ROWS, parts.steps), sizeof(stored_factor));
    parts.size = size_plus(size_plus(fixed, b), size_plus(a, 64));
    if (scratch != NULL) {
        parts.fixed = scratch;
        parts.b = (stored_factor *)(void *)((int8_t *)scratch + fixed);
        parts.a = (stored_factor *)(void *)((int8_t *)scratch + fixed + b);
    }
    return parts;
}

static size_t simple_matmul_scratch(const struct anynpu_matmul *matmul)
{
    return matmul_scratch_of(matmul, NULL).size;
}

/* Zero points and differences fit 16 bits, and sums 32: else quantized values would not be ANYNPU_CODES_I8. */
static int simple_matmul_fits(const struct anynpu_matmul *matmul)
{
    const struct anynpu_epilogue *e = &matmul->epilogue;
    double rows = 0.0, products = 0.0;
    if (e->staircases != NULL || matmul->k == 0 || simple_matmul_scratch(matmul) > ANYNPU_MAX_SCRATCH)
        return 0;
    if (e->fixed == NULL)
        return e->residual_multiplier == NULL && epilogue_fits(e, matmul->n);
    if (e->fixed->curves != NULL || e->fixed->residual_multiplier != 0)
        return 0;
    for (size_t i = 0; i < matmul->k; i++) {
        rows += farthest(matmul->a_zero[i]);
        products += matmul->transpose_b ? farthest(matmul->a_zero[i]) * farthest(matmul->b_zero[i]) : 0.0;
    }
    for (size_t column = 0; column < matmul->n; column++) {
        const double largest = matmul->transpose_b ? products : rows * farthest(matmul->b_zero[column]);
        if (fixed_clamped_form(e, column, largest) != FIXED_SINGLE)
            return 0;
    }
    return 1;
}

static void matmul_fill_numbers(const struct anynpu_matmul *matmul, const struct matmul_scratch *parts)
{
    memset(parts->fixed, 0, (FIXED_ARRAYS + 1) * parts->columns * sizeof(float));
    if (matmul->epilogue.fixed == NULL)
        return;
    fixed_fill(&matmul->epilogue, 0, matmul->n, parts->fixed, parts->columns);
    for (size_t column = 0; column < matmul->n; column++)
        parts->fixed[FIXED_ARRAYS * parts->columns + column] = (float)fixed_exact_sum(&matmul->epilogue, column);
}

static void matmul_fill_b(const struct anynpu_matmul *matmul, const int8_t *b, const struct matmul_scratch *parts)
{
    const size_t k = matmul->k, n = matmul->n;
    const int32_t *zero = matmul->b_zero;
    for (size_t step = 0; step < parts->steps; step++) {
        stored_factor *target = parts->b + step * parts->columns;
        memset(target + n, 0, (parts->columns - n) * sizeof *target);
        for (size_t column = 0; column < n; column++) {
            int16_t rows[ROWS_TOGETHER] = {0};
            for (size_t i = 0, at = step * ROWS_TOGETHER; i < ROWS_TOGETHER && at < k; i++, at++)
                rows[i] = (int16_t)(matmul->transpose_b ? b[column * k + at] - zero[at] : b[at * n + column] - zero[column]);
            target[column] = factor_of_rows(rows);
        }
    }
}

static void matmul_fill_a(const struct anynpu_matmul *matmul, const int8_t *a, size_t rows, const struct matmul_scratch *parts)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t step = 0; step < parts->steps; step++) {
            int16_t together[ROWS_TOGETHER] = {0};
            for (size_t i = 0, at = step * ROWS_TOGETHER; i < ROWS_TOGETHER && at < matmul->k; i++, at++)
                together[i] = (int16_t)(a[row * matmul->k + at] - matmul->a_zero[at]);
            parts->a[row * parts->steps + step] = factor_of_rows(together);
        }
}

/* LANES columns from `column` on of one row. */
INLINE void matmul_store(const struct anynpu_epilogue *e, const struct matmul_scratch *parts, ints sum, size_t column, size_t count, int8_t *y)
{
    const float *fixed = parts->fixed + column;
    floats f = floats_from_ints(sum);
    if (e->fixed == NULL) {
        const struct finish finish = finish_load(e, column);
        codes_store(y, finish_codes(&finish, floats_mul(f, floats_load(e->multiplier + column))), count);
    } else {
        const struct fixed_lanes lanes = fixed_lanes_load(fixed, parts->columns);
        const floats most = floats_load(fixed + FIXED_ARRAYS * parts->columns);
        f = floats_min(floats_max(f, floats_sub(floats_set(0.0f), most)), most);
        codes_store(y, fixed_finish(&lanes, fixed_stage(f, lanes.first)), count);
    }
}

/* All columns of MATMUL_ROWS rows, of which some may not exist: their sums are not stored. */
static __attribute__((noinline)) void matmul_rows(const struct anynpu_matmul *matmul, const struct matmul_scratch *shared, size_t rows, int8_t *y)
{
    const struct matmul_scratch parts = *shared;
    const size_t n = matmul->n, steps = parts.steps;
    for (size_t column = 0; column < n; column += MATMUL_VECTORS * LANES) {
        ints sums[MATMUL_ROWS][MATMUL_VECTORS];
        UNROLLED
        for (int row = 0; row < MATMUL_ROWS; row++)
            UNROLLED
            for (int j = 0; j < MATMUL_VECTORS; j++)
                sums[row][j] = ints_set(0);
        const stored_factor *b = parts.b + column;
        for (size_t step = 0; step < steps; step++, b += parts.columns) {
            const factors first = factors_load(b), second = factors_load(b + LANES);
            UNROLLED
            for (int row = 0; row < MATMUL_ROWS; row++) {
                const factors left = factors_set(parts.a[(size_t)row * steps + step]);
                sums[row][0] = ints_multiply_add(sums[row][0], left, first);
                sums[row][1] = ints_multiply_add(sums[row][1], left, second);
            }
        }
        ints copies[MATMUL_ROWS][MATMUL_VECTORS];
        memcpy(copies, sums, sizeof copies);
        for (size_t row = 0; row < rows; row++)
            for (size_t j = 0; j < MATMUL_VECTORS && column + j * LANES < n; j++)
                matmul_store(&matmul->epilogue, &parts, copies[row][j], column + j * LANES, n - column - j * LANES,
                             y + row * n + column + j * LANES);
    }
}

static void simple_matmul(const struct anynpu_matmul *matmul, const int8_t *a, const int8_t *b, int8_t *y, void *scratch)
{
    const struct matmul_scratch parts = matmul_scratch_of(matmul, scratch);
    const struct anynpu_epilogue *e = &matmul->epilogue;
    const size_t m = matmul->m, n = matmul->n;
    matmul_fill_numbers(matmul, &parts);
    memset(parts.a, 0, MATMUL_ROWS * parts.steps * sizeof *parts.a);
    for (size_t batch = 0; batch < matmul->batch; batch++, y += m * n) {
        if (batch == 0 || matmul->b_offsets[batch] != matmul->b_offsets[batch - 1])
            matmul_fill_b(matmul, b + matmul->b_offsets[batch], &parts);
        for (size_t row = 0; row < m; row += MATMUL_ROWS) {
            const size_t rows = smaller(MATMUL_ROWS, m - row);
            matmul_fill_a(matmul, a + matmul->a_offsets[batch] + row * matmul->k, rows, &parts);
            matmul_rows(matmul, &parts, rows, y + row * n);
        }
        if (e->table != NULL)
            translate_channels(e->table, e->row, y, n, y, n, n, m);
    }
}

#define SIMPLE_KERNELS                                                                                                         \
    {                                                                                                                          \
        .table = simple_table, .binary_fits = simple_binary_fits, .binary = simple_binary, .pool_fits = simple_pool_fits,      \
        .pool = simple_pool, .concat = simple_concat, .resize = simple_resize, .matmul_fits = simple_matmul_fits,              \
        .matmul_scratch = simple_matmul_scratch, .matmul = simple_matmul                                                       \
    }

#endif
