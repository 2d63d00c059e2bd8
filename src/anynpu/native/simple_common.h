/* int8 operators without weights, a vector of channels at a time, for whichever lanes_*.h was included before: table, binary,
 * pooling, concat, resize. */
#ifndef ANYNPU_SIMPLE_COMMON_H
#define ANYNPU_SIMPLE_COMMON_H

#include <string.h>

#include "kernels.h"
#include "lanes_epilogue.h"

#define BLOCK_CODES 8192 /* what goes through several steps does so in pieces that stay in the first-level cache */
#define AXES 6
#define CHANNEL_AXIS (AXES - 1)
#define SHORTEST_RUN 16 /* elements below which plain C is as good */
#define RESIZE_BITS 11

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
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

/* ---- binary ---- */

/* How an operand moves while the output goes through a dense block of pixels times channels. */
enum pattern { PATTERN_NONE, PATTERN_DENSE, PATTERN_CHANNELS, PATTERN_SCALAR };

struct operand {
    enum pattern pattern;
    const size_t *strides;
    const int32_t *zero;
    const float *multiplier;
    const int8_t *codes; /* of the block at hand */
};

/* The output as blocks of pixels times channels: outer axes are those before split. */
struct blocks {
    const struct anynpu_binary *binary;
    struct operand left, right;
    size_t split, pixels, channels;
    int uniform; /* all channels have the same numbers */
};

static size_t extent(const size_t *shape, size_t first, size_t last)
{
    size_t product = 1;
    for (size_t axis = first; axis < last; axis++)
        product *= shape[axis];
    return product;
}

static enum pattern pattern_of(const size_t *shape, const size_t *strides, size_t split)
{
    int dense = 1, channels = 1, scalar = 1;
    size_t dense_stride = 1;
    for (size_t axis = AXES; axis-- > split;) {
        if (shape[axis] > 1) {
            dense &= strides[axis] == dense_stride;
            scalar &= strides[axis] == 0;
            channels &= strides[axis] == (axis == CHANNEL_AXIS ? 1 : 0);
        }
        dense_stride *= shape[axis];
    }
    return dense ? PATTERN_DENSE : scalar ? PATTERN_SCALAR : channels ? PATTERN_CHANNELS : PATTERN_NONE;
}

/* As few and as large blocks as the patterns allow. */
static struct blocks blocks_of(const struct anynpu_binary *binary)
{
    struct blocks blocks = {
        .binary = binary,
        .left = {.strides = binary->a_strides, .zero = binary->a_zero, .multiplier = binary->a_multiplier},
        .right = {.strides = binary->b_strides, .zero = binary->b_zero, .multiplier = binary->b_multiplier},
    };
    for (; blocks.split < AXES; blocks.split++) {
        blocks.left.pattern = pattern_of(binary->shape, binary->a_strides, blocks.split);
        blocks.right.pattern = pattern_of(binary->shape, binary->b_strides, blocks.split);
        if (blocks.left.pattern != PATTERN_NONE && blocks.right.pattern != PATTERN_NONE)
            break;
    }
    blocks.channels = binary->shape[CHANNEL_AXIS];
    blocks.pixels = blocks.split < AXES ? extent(binary->shape, blocks.split, CHANNEL_AXIS) : 1;
    return blocks;
}

static int simple_binary_fits(const struct anynpu_binary *binary)
{
    const struct blocks blocks = blocks_of(binary);
    return blocks.split < AXES && blocks.pixels * blocks.channels >= SHORTEST_RUN &&
           binary->epilogue.residual_multiplier == NULL && epilogue_fits(&binary->epilogue, blocks.channels);
}

static int same_ints(const int32_t *values, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (values[i] != values[0])
            return 0;
    return 1;
}

static int same_floats(const float *values, size_t count)
{
    for (size_t i = 1; values != NULL && i < count; i++)
        if (values[i] != values[0])
            return 0;
    return 1;
}

static int is_uniform(const struct anynpu_binary *binary, size_t channels)
{
    const struct anynpu_epilogue *e = &binary->epilogue;
    return e->row == NULL && same_ints(binary->a_zero, channels) && same_ints(binary->b_zero, channels) &&
           same_floats(binary->a_multiplier, channels) && same_floats(binary->b_multiplier, channels) &&
           same_ints(e->zero_point, channels) && same_ints(e->low, channels) && same_ints(e->high, channels) &&
           same_floats(e->slope, channels);
}

/* The numbers of LANES channels. */
struct binary_lanes {
    ints left_zero, right_zero;
    floats left_multiplier, right_multiplier, product_multiplier;
    struct finish finish;
};

INLINE struct binary_lanes binary_lanes_load(const struct blocks *blocks, size_t channel)
{
    const struct binary_lanes lanes = {
        .left_zero = ints_load(blocks->left.zero + channel),
        .right_zero = ints_load(blocks->right.zero + channel),
        .left_multiplier = floats_load(blocks->left.multiplier + channel),
        .right_multiplier = floats_load(blocks->right.multiplier + channel),
        .product_multiplier = floats_load(blocks->binary->a_multiplier + channel),
        .finish = finish_load(&blocks->binary->epilogue, channel),
    };
    return lanes;
}

INLINE struct binary_lanes binary_lanes_set(const struct blocks *blocks)
{
    const struct binary_lanes lanes = {
        .left_zero = ints_set(blocks->left.zero[0]),
        .right_zero = ints_set(blocks->right.zero[0]),
        .left_multiplier = floats_set(blocks->left.multiplier[0]),
        .right_multiplier = floats_set(blocks->right.multiplier[0]),
        .product_multiplier = floats_set(blocks->binary->a_multiplier[0]),
        .finish = finish_set(&blocks->binary->epilogue),
    };
    return lanes;
}

/* An operand's share: the difference to its zero point, scaled but for a product. */
INLINE floats term(const int kind, const int8_t *codes, ints zero, floats multiplier)
{
    const floats difference = floats_from_ints(ints_sub(ints_from_codes(codes), zero));
    return kind == ANYNPU_MUL ? difference : floats_mul(difference, multiplier);
}

INLINE floats combine(const int kind, floats left, floats right, floats product_multiplier)
{
    switch (kind) {
    case ANYNPU_ADD:
        return floats_add(left, right);
    case ANYNPU_SUB:
        return floats_sub(left, right);
    case ANYNPU_MUL:
        return floats_mul(floats_mul(left, right), product_multiplier);
    case ANYNPU_MAX:
        return floats_max(left, right);
    default:
        return floats_min(left, right);
    }
}

/* Vectors of up to LANES elements; from one to the next the operands and the output move by their steps. */
struct vectors {
    const int8_t *left, *right;
    int8_t *y;
    size_t left_step, right_step, y_step;
    size_t vectors, count;
};

/* The structures come by value: a store of codes may be to anywhere, and what it could change would be loaded again each time. */
INLINE void binary_vectors(const int kind, const int right_stays, const struct binary_lanes lanes, struct vectors v)
{
    const floats constant = term(kind, v.right, lanes.right_zero, lanes.right_multiplier);
    for (; v.vectors > 0; v.vectors--, v.left += v.left_step, v.right += v.right_step, v.y += v.y_step) {
        const floats left = term(kind, v.left, lanes.left_zero, lanes.left_multiplier);
        const floats right = right_stays ? constant : term(kind, v.right, lanes.right_zero, lanes.right_multiplier);
        codes_store(v.y, finish_codes(&lanes.finish, combine(kind, left, right, lanes.product_multiplier)), v.count);
    }
}

#define BINARY_CASE(kind)                                                                                                      \
    case kind:                                                                                                                 \
        if (v->right_step == 0)                                                                                                \
            binary_vectors(kind, 1, *lanes, *v);                                                                               \
        else                                                                                                                   \
            binary_vectors(kind, 0, *lanes, *v);                                                                               \
        break;

static void binary_run(int32_t kind, const struct binary_lanes *lanes, const struct vectors *v)
{
    switch (kind) {
        BINARY_CASE(ANYNPU_ADD)
        BINARY_CASE(ANYNPU_SUB)
        BINARY_CASE(ANYNPU_MUL)
        BINARY_CASE(ANYNPU_MAX)
        BINARY_CASE(ANYNPU_MIN)
    }
}

/* A block whose elements all have the same numbers: one run of vectors, and a shorter one at the end. */
static void binary_flat(const struct blocks *blocks, int8_t *y, size_t count)
{
    const struct binary_lanes lanes = binary_lanes_set(blocks);
    const size_t left_step = blocks->left.pattern == PATTERN_DENSE ? LANES : 0;
    const size_t right_step = blocks->right.pattern == PATTERN_DENSE ? LANES : 0;
    const size_t whole = count / LANES;
    struct vectors v = {blocks->left.codes, blocks->right.codes, y, left_step, right_step, LANES, whole, LANES};
    binary_run(blocks->binary->kind, &lanes, &v);
    if (count % LANES == 0)
        return;
    v = (struct vectors){v.left + whole * left_step, v.right + whole * right_step, y + whole * LANES, 0, 0, 0, 1, count % LANES};
    binary_run(blocks->binary->kind, &lanes, &v);
}

/* Vectors of channels, each down the pixels. */
static void binary_pixels(const struct blocks *blocks, int8_t *y, size_t pixels)
{
    const size_t channels = blocks->channels;
    const struct operand *left = &blocks->left, *right = &blocks->right;
    for (size_t c = 0; c < channels; c += LANES) {
        const struct binary_lanes lanes = binary_lanes_load(blocks, c);
        const struct vectors v = {
            .left = left->codes + (left->pattern == PATTERN_SCALAR ? 0 : c),
            .right = right->codes + (right->pattern == PATTERN_SCALAR ? 0 : c),
            .y = y + c,
            .left_step = left->pattern == PATTERN_DENSE ? channels : 0,
            .right_step = right->pattern == PATTERN_DENSE ? channels : 0,
            .y_step = channels,
            .vectors = pixels,
            .count = channels - c,
        };
        binary_run(blocks->binary->kind, &lanes, &v);
    }
}

/* One block of the output, in pieces, each with its table before the next begins. */
static void binary_block(struct blocks *blocks, int8_t *y)
{
    const struct anynpu_epilogue *e = &blocks->binary->epilogue;
    const int flat =
        blocks->uniform && blocks->left.pattern != PATTERN_CHANNELS && blocks->right.pattern != PATTERN_CHANNELS;
    const size_t channels = flat ? 1 : blocks->channels, pixels = flat ? blocks->pixels * blocks->channels : blocks->pixels;
    const size_t at_once = BLOCK_CODES / channels + 1;
    for (size_t first = 0; first < pixels; first += at_once) {
        const size_t count = smaller(at_once, pixels - first);
        if (flat)
            binary_flat(blocks, y, count);
        else
            binary_pixels(blocks, y, count);
        if (e->table != NULL)
            translate_channels(e->table, e->row, y, channels, y, channels, channels, count);
        blocks->left.codes += blocks->left.pattern == PATTERN_DENSE ? count * channels : 0;
        blocks->right.codes += blocks->right.pattern == PATTERN_DENSE ? count * channels : 0;
        y += count * channels;
    }
}

/* The operand's codes in a block; a scalar is spread over a vector. */
static const int8_t *block_codes(const struct blocks *blocks, const struct operand *operand, const int8_t *codes, size_t block,
                                 int8_t spread[LANES])
{
    const size_t *shape = blocks->binary->shape;
    for (size_t axis = blocks->split; axis-- > 0; block /= shape[axis])
        codes += block % shape[axis] * operand->strides[axis];
    if (operand->pattern != PATTERN_SCALAR)
        return codes;
    memset(spread, codes[0], LANES);
    return spread;
}

static void simple_binary(const struct anynpu_binary *binary, const int8_t *a, const int8_t *b, int8_t *y)
{
    struct blocks blocks = blocks_of(binary);
    const size_t count = extent(binary->shape, 0, blocks.split), size = blocks.pixels * blocks.channels;
    int8_t left_spread[LANES], right_spread[LANES];
    blocks.uniform = blocks.pixels > 1 && is_uniform(binary, blocks.channels);
    if (blocks.left.pattern != PATTERN_DENSE && blocks.right.pattern == PATTERN_DENSE && binary->kind != ANYNPU_SUB) {
        /* all but the difference commute, and an operand that stays is cheaper on the right */
        const struct operand left = blocks.left;
        const int8_t *codes = a;
        blocks.left = blocks.right;
        blocks.right = left;
        a = b;
        b = codes;
    }
    for (size_t block = 0; block < count; block++) {
        blocks.left.codes = block_codes(&blocks, &blocks.left, a, block, left_spread);
        blocks.right.codes = block_codes(&blocks, &blocks.right, b, block, right_spread);
        binary_block(&blocks, y + block * size);
    }
}

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
    size_t row_step, column_step; /* in codes */
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

/* The epilogue but for its table. */
INLINE void average_store(const struct anynpu_pool *pool, const struct window *window, ints sum, size_t channel, int8_t *y)
{
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

static int simple_pool_fits(const struct anynpu_pool *pool)
{
    const size_t largest = 1 << 23; /* elements whose sum, and whose number as a float, are exact */
    return pool->kh <= largest && pool->kw <= largest && pool->kh * pool->kw <= largest &&
           (!pool->average || epilogue_fits(&pool->epilogue, pool->c));
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

/* Tables are of codes of one byte; without them elements may have any size. */
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
        /* neighbours of the input that are neighbours of the output go together */
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

#define SIMPLE_KERNELS                                                                                                         \
    {                                                                                                                          \
        .table = simple_table, .binary_fits = simple_binary_fits, .binary = simple_binary, .pool_fits = simple_pool_fits,      \
        .pool = simple_pool, .concat = simple_concat, .resize = simple_resize                                                  \
    }

#endif
