/* Products of two matrices: a [m][k] times b [k][n], where b was packed beforehand.
 *
 * int8 times int8 gives int32, exact modulo 2^32. float16 times float16 gives float32: an element of the result is
 *   sum = 0;  for each step of k in order: sum = sum + a * b
 * in float32. A product of two float16 values is exact in float32 (22 bits of 24, and no exponent leaves the range), so a fused multiply
 * and add rounds as the two operations do, and every instruction set gives the same bytes. Which NaN a NaN is stays open.
 *
 * k is cut into blocks of `depth` steps; packed b lies in the order in which it is read: [block][panel of width columns][step][column], and
 * with groups [step / group][column][group]. Rows of a are packed, a block of them at a time, as [tile][step / group][row][group]. Steps and
 * columns that do not exist are zero. The result holds the sums between two blocks. A kernel computes a tile: a few rows times one panel.
 *
 * b that was not packed beforehand is packed on its way: panel by panel where each is used but once, else all of it first. No caller sees a
 * difference but in time.
 *
 * Where an instruction multiplies unsigned by signed bytes, b is packed as code + shift and each sum starts at -shift * (sum of its row). */
#include <string.h>

#include "matmul_source.h"
#include "sizes.h"
#include "workers.h"

enum {
    ALIGNMENT = 64,
    MAX_ROWS = 192,       /* rows of a that are packed at a time; a multiple of the rows of every kernel's tile */
    RESULT_SIZE = 4,      /* bytes of int32 and float32 */
    FEW_ROWS = 16,        /* with so few, b passes through the first cache once: blocks of few steps, and of one line of it */
    FEW_STEPS = 64,
    FEW_COLUMNS = 64,
    SHORT_SUM = 256, /* quantized values whose sum fits 16 bits */
    MAX_FEW = 16 /* rows of the products that kernels for a few take */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t whole(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

static const struct anynpu_matrix_kernel *kernel_in(const struct anynpu_kernel_set *set, const struct anynpu_matrix *b)
{
    const struct anynpu_matrix_kernels *kernels = set->matrices != NULL ? set->matrices : set->plain_matrices;
    return b->type == ANYNPU_F16 ? &kernels->floats : &kernels->codes;
}

static const struct anynpu_matrix_kernel *kernel_of(const struct anynpu_matrix *b)
{
    return kernel_in(anynpu_kernels_at(b->level), b);
}

static size_t element_size(const struct anynpu_matrix *b)
{
    return b->type == ANYNPU_F16 ? sizeof(uint16_t) : sizeof(int8_t);
}

const char *anynpu_matrix_kernel_name(const struct anynpu_matrix *b)
{
    return kernel_of(b)->name;
}

/* ---------------------------------------------------------------- b */

static size_t packed_size(const struct anynpu_matrix *b)
{
    const struct anynpu_matrix_kernel *kernel = kernel_of(b);
    return size_times(size_times(size_whole(b->k, kernel->group), size_whole(b->n, kernel->width)), element_size(b));
}

/* ---------------------------------------------------------------- a */

/* Rows are shared out evenly: tile t of a block has rows / tiles of them, and the first ones have one more. */
struct tiles {
    size_t count, rows, more;
};

static struct tiles cut(size_t rows, size_t most)
{
    const size_t count = (rows + most - 1) / most;
    return (struct tiles){count, rows / count, rows % count};
}

static size_t tile_rows(const struct tiles *tiles, size_t tile)
{
    return tiles->rows + (tile < tiles->more);
}

/* Four quantized values a row, which lie in a as they must lie in the tile; those after the last are zero. */
static void pack_rows_of_bytes(const struct anynpu_transpose_kernels *transpose, const int8_t *a, size_t k, size_t rows, size_t count,
                               uint8_t *packed)
{
    if (k % 4 == 0 && count % 4 == 0) {
        transpose->by_size[2](a, k / 4, packed, rows, rows, count / 4);
        return;
    }
    for (size_t row = 0; row < rows; row++) {
        const int8_t *from = a + row * k;
        uint8_t *to = packed + 4 * row;
        size_t step = 0;
        for (; step + 4 <= count; step += 4, to += 4 * rows)
            memcpy(to, from + step, 4);
        if (step < count) {
            memset(to, 0, 4);
            memcpy(to, from + step, count - step);
        }
    }
}

static void pack_rows_of_words(const int8_t *a, size_t k, size_t rows, size_t count, size_t group, int16_t *packed)
{
    for (size_t row = 0; row < rows; row++) {
        const int8_t *from = a + row * k;
        int16_t *to = packed + group * row;
        for (size_t step = 0; step < count; step += group, to += group * rows)
            for (size_t i = 0; i < group; i++)
                to[i] = step + i < count ? from[step + i] : 0;
    }
}

static void pack_rows_of_floats(const struct anynpu_element_kernels *elements, const uint16_t *a, size_t k, size_t rows, size_t count,
                                float *values, float *packed)
{
    for (size_t row = 0; row < rows; row++) {
        elements->types[ANYNPU_F16].load(a + row * k, values, count, 0, 1.0f);
        for (size_t step = 0; step < count; step++)
            packed[step * rows + row] = values[step];
    }
}

static void sum_rows(const int8_t *a, size_t k, size_t rows, size_t count, int32_t shift, int32_t *start)
{
    for (size_t row = 0; row < rows; row++) {
        const int8_t *codes = a + row * k;
        int32_t sum = 0;
        for (size_t first = 0; first < count; first += SHORT_SUM) {
            const size_t last = least(first + SHORT_SUM, count);
            int16_t part = 0; /* compilers add twice as many of these at a time */
            for (size_t step = first; step < last; step++)
                part = (int16_t)(part + codes[step]);
            sum += part;
        }
        start[row] = -shift * sum;
    }
}

/* ---------------------------------------------------------------- the product */

/* Some columns of a product. */
struct product {
    const struct anynpu_matrix *b;
    const struct anynpu_kernel_set *set;
    const struct anynpu_matrix_kernel *kernel;
    const void *packed;                        /* these columns of b, or NULL */
    const struct anynpu_matrix_source *source; /* where there is no packed b */
    const void *values;
    const uint8_t *a;
    size_t a_stride, m;
    uint8_t *c;
    size_t first, last; /* columns */
    size_t depth;       /* steps of a block */
    size_t together;    /* columns that are packed on their way before they are multiplied */
    int gathers;        /* whether sums wait in scratch for the last block of steps */
};

/* Parts of the scratch memory, each aligned. */
struct scratch {
    uint8_t *a;     /* packed rows of one block */
    float *b;       /* a block of a panel as float32, where the kernel takes that */
    float *values;  /* a row of a as float32 */
    void *edge;     /* a tile of the last panel, where not all of its columns exist */
    int32_t *start; /* by row */
    uint8_t *panel; /* packed on its way, or several of them */
    struct anynpu_matrix_piece *piece;
    int16_t *words; /* all rows of a, for kernels for a few */
    uint8_t *sums;  /* of a few rows, panel after panel: rows of c are often so far apart that they displace each other in a cache */
    size_t size;
};

enum { PARTS = 9 };

static size_t waiting_sums(const struct anynpu_matrix *b, const struct anynpu_matrix_kernel *kernel, size_t m)
{
    const size_t by_row = m > ANYNPU_FEW_BY_ROW ? 0 : least(size_times(m, size_whole(b->n, ANYNPU_LINE_CODES)), ANYNPU_FEW_SUMS);
    return m > FEW_ROWS ? by_row : most(by_row, size_times(m, size_whole(b->n, kernel->width)));
}

static struct scratch scratch_of(const struct anynpu_matrix *b, const struct anynpu_matrix_kernel *kernel, size_t m, size_t panel,
                                 uint8_t *memory)
{
    const size_t rows = least(m, MAX_ROWS), depth = least(kernel->depth, whole(b->k, kernel->group));
    const size_t floats = b->type == ANYNPU_F16 ? depth * sizeof(float) : 0;
    const size_t sizes[PARTS] = {rows * depth * kernel->a_size,
                                 kernel->takes_halves ? 0 : kernel->width * floats,
                                 floats,
                                 kernel->rows * kernel->width * RESULT_SIZE,
                                 rows * sizeof(int32_t),
                                 panel,
                                 panel > 0 ? sizeof(struct anynpu_matrix_piece) : 0,
                                 panel > 0 && m <= MAX_FEW ? size_times(size_times(m, b->k), sizeof(int16_t)) : 0,
                                 panel > 0 ? size_times(waiting_sums(b, kernel, m), RESULT_SIZE) : 0};
    size_t offsets[PARTS + 1] = {0};
    for (size_t i = 0; i < PARTS; i++)
        offsets[i + 1] = size_plus(offsets[i], size_whole(sizes[i], ALIGNMENT));
    if (memory == NULL)
        return (struct scratch){.size = offsets[PARTS]};
    return (struct scratch){memory,
                            (float *)(void *)(memory + offsets[1]),
                            (float *)(void *)(memory + offsets[2]),
                            memory + offsets[3],
                            (int32_t *)(void *)(memory + offsets[4]),
                            memory + offsets[5],
                            (struct anynpu_matrix_piece *)(void *)(memory + offsets[6]),
                            (int16_t *)(void *)(memory + offsets[7]),
                            memory + offsets[8],
                            offsets[PARTS]};
}

static void copy_rows(uint8_t *to, size_t to_stride, const uint8_t *from, size_t from_stride, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++)
        memcpy(to + RESULT_SIZE * row * to_stride, from + RESULT_SIZE * row * from_stride, RESULT_SIZE * columns);
}

/* All rows of a block times steps [from, from + count) of one panel; c is the block's first row in the panel's first column. */
static void multiply_steps(const struct anynpu_matrix_kernel *kernel, const struct scratch *scratch, const struct tiles *tiles,
                           size_t steps, size_t from, size_t count, const void *panel, uint8_t *c, size_t n, size_t columns, int first)
{
    static const int32_t nothing[MAX_ROWS];
    const uint8_t *a = scratch->a;
    const int32_t *start = from == 0 ? scratch->start : nothing;
    for (size_t tile = 0; tile < tiles->count; tile++) {
        const size_t rows = tile_rows(tiles, tile);
        const uint8_t *own = a + rows * from * kernel->a_size;
        if (columns == kernel->width)
            kernel->tile(rows, count / kernel->group, own, panel, c, n, start, first);
        else {
            if (!first)
                copy_rows(scratch->edge, kernel->width, c, n, rows, columns);
            kernel->tile(rows, count / kernel->group, own, panel, scratch->edge, kernel->width, start, first);
            copy_rows(c, n, scratch->edge, kernel->width, rows, columns);
        }
        a += rows * steps * kernel->a_size;
        c += RESULT_SIZE * rows * n;
        start += rows;
    }
}

/* All rows of a block times one panel: so many steps at a time that they stay in a near cache until all tiles had them. */
static void multiply_panel(const struct anynpu_matrix_kernel *kernel, const struct scratch *scratch, const struct tiles *tiles,
                           size_t steps, const uint8_t *panel, size_t size, uint8_t *c, size_t n, size_t columns, int first)
{
    const size_t row_size = kernel->width * size, group = kernel->group;
    const size_t near = tiles->count > 1 ? kernel->near_bytes / row_size / group * group : steps;
    for (size_t from = 0; from < steps; from += near)
        multiply_steps(kernel, scratch, tiles, steps, from, least(near, steps - from), panel + from * row_size, c, n, columns,
                       first && from == 0);
}

/* Steps [first, first + count) of the rows of all tiles. */
static void pack_block(const struct product *product, const struct scratch *scratch, const struct tiles *tiles, size_t row, size_t first,
                       size_t count)
{
    const struct anynpu_matrix *b = product->b;
    const struct anynpu_matrix_kernel *kernel = product->kernel;
    const size_t steps = whole(count, kernel->group), stride = product->a_stride;
    const uint8_t *a = product->a + (row * stride + first) * element_size(b);
    uint8_t *packed = scratch->a;
    int32_t *start = scratch->start;
    for (size_t tile = 0; tile < tiles->count; tile++) {
        const size_t rows = tile_rows(tiles, tile);
        if (b->type == ANYNPU_F16)
            pack_rows_of_floats(product->set->elements, (const void *)a, stride, rows, count, scratch->values,
                                (void *)packed);
        else {
            if (kernel->a_size == 1)
                pack_rows_of_bytes(product->set->transpose, (const void *)a, stride, rows, count, packed);
            else
                pack_rows_of_words((const void *)a, stride, rows, count, kernel->group, (void *)packed);
            sum_rows((const void *)a, stride, rows, kernel->shift != 0 ? count : 0, kernel->shift, start);
        }
        packed += rows * steps * kernel->a_size;
        a += rows * stride * element_size(b);
        start += rows;
    }
}

/* Some panels that begin at a column; gives the column after the last that was packed. */
static size_t pack_panels(const struct product *product, const struct scratch *scratch, size_t column, size_t first, size_t count)
{
    const struct anynpu_matrix *b = product->b;
    const size_t last = least(column + product->together, product->last), size = whole(count, product->kernel->group) * element_size(b);
    for (uint8_t *packed = scratch->panel; column < last;) {
        const size_t columns = anynpu_matrix_pack_panels(b, product->set, product->kernel, product->source, product->values, column,
                                                         product->last, first, count, packed, scratch->piece);
        packed += columns * size;
        column += columns;
    }
    return column;
}

static void multiply(const struct product *product, const struct scratch *scratch)
{
    const struct anynpu_matrix *b = product->b;
    const struct anynpu_matrix_kernel *kernel = product->kernel;
    const struct anynpu_element_kernels *elements = product->set->elements;
    const size_t size = element_size(b), width = kernel->width;
    for (size_t row = 0; row < product->m; row += MAX_ROWS) {
        const struct tiles tiles = cut(least(MAX_ROWS, product->m - row), kernel->rows);
        const uint8_t *packed = product->packed;
        for (size_t first = 0; first < b->k; first += product->depth) {
            const size_t count = least(product->depth, b->k - first), steps = whole(count, kernel->group);
            pack_block(product, scratch, &tiles, row, first, count);
            const uint8_t *block = packed;
            for (size_t column = product->first, ready = column; column < product->last; column += width, block += steps * width * size) {
                if (packed == NULL && column == ready) {
                    ready = pack_panels(product, scratch, column, first, count);
                    block = scratch->panel;
                }
                const uint8_t *panel = block;
                if (b->type == ANYNPU_F16 && !kernel->takes_halves) {
                    elements->types[ANYNPU_F16].load(block, scratch->b, steps * width, 0, 1.0f);
                    panel = (const uint8_t *)scratch->b;
                }
                uint8_t *c = product->c + RESULT_SIZE * (row * b->n + column);
                const size_t columns = least(width, product->last - column), b_size = panel == block ? size : sizeof(float);
                if (!product->gathers) {
                    multiply_panel(kernel, scratch, &tiles, steps, panel, b_size, c, b->n, columns, first == 0);
                    continue;
                }
                uint8_t *sums = scratch->sums + RESULT_SIZE * product->m * (column - product->first);
                multiply_panel(kernel, scratch, &tiles, steps, panel, b_size, sums, width, width, first == 0);
                if (first + count == b->k)
                    copy_rows(c, b->n, sums, width, product->m, columns);
            }
            if (packed != NULL)
                packed = block;
        }
    }
}

/* ---------------------------------------------------------------- b that is packed on its way */

/* Of the packed matrix, or of the panels that are packed together. */
static size_t panels_size(const struct anynpu_matrix *b, const struct anynpu_matrix_kernel *kernel, size_t m)
{
    if (m > MAX_ROWS)
        return packed_size(b);
    const size_t columns = most(kernel->width, ANYNPU_LINE_CODES) * least(kernel->depth, whole(b->k, kernel->group));
    return most(columns, whole(FEW_COLUMNS, kernel->width) * FEW_STEPS) * element_size(b);
}

size_t anynpu_matrix_source_scratch_size(const struct anynpu_matrix *b, size_t m)
{
    const struct anynpu_matrix_kernel *kernel = kernel_of(b);
    return scratch_of(b, kernel, m, panels_size(b, kernel, m), NULL).size;
}

/* All rows of a product by kernels for a few; b is not packed beforehand. */
static void multiply_few_by_row(const struct product *product, const struct anynpu_few_kernels *few, int32_t *sums)
{
    const struct anynpu_matrix *b = product->b;
    const size_t n = product->source->n, together = ANYNPU_FEW_SUMS / product->m / ANYNPU_LINE_CODES * ANYNPU_LINE_CODES;
    int32_t start[ANYNPU_FEW_BY_ROW];
    sum_rows((const int8_t *)product->a, product->a_stride, product->m, few->shift != 0 ? b->k : 0, few->shift, start);
    for (size_t column = product->first; column < product->last; column += together)
        few->by_row(&(struct anynpu_few_rows){
            .rows = product->m,
            .columns = least(together, product->last - column),
            .steps = b->k,
            .a = (const int8_t *)product->a,
            .a_stride = product->a_stride,
            .b = (const uint8_t *)product->values + product->source->first * n + column,
            .b_stride = n,
            .c = (int32_t *)(void *)product->c + column,
            .c_stride = b->n,
            .start = start,
            .sums = sums,
        });
}

/* By run and row. */
static void widen_rows(const int8_t *a, size_t stride, size_t rows, size_t k, int16_t *words)
{
    for (size_t run = 0; run < k; run += ANYNPU_FEW_RUN)
        for (size_t row = 0; row < rows; row++, words += ANYNPU_FEW_RUN)
            for (size_t i = 0; i < ANYNPU_FEW_RUN; i++)
                words[i] = a[row * stride + run + i];
}

static void multiply_few_by_column(const struct product *product, const struct anynpu_few_kernels *few, int16_t *words)
{
    const struct anynpu_matrix *b = product->b;
    const struct anynpu_matrix_source *source = product->source;
    const struct tiles tiles = cut(product->m, few->rows);
    const int blocked = source->order == ANYNPU_BLOCKED;
    const size_t block_n = blocked ? source->block_n : few->columns, segment = blocked ? source->segment : source->k;
    const size_t stride = product->a_stride, run = ANYNPU_FEW_RUN;
    const size_t together = few->words != 0 ? whole(few->words / product->m, run) : b->k;
    const int8_t *a = (const int8_t *)product->a;
    for (size_t tile = 0, row = 0; few->takes_words && tile < tiles.count; row += tile_rows(&tiles, tile++))
        widen_rows(a + row * stride, stride, tile_rows(&tiles, tile), b->k, words + row * b->k);
    for (size_t step = 0; step < b->k;) {
        const size_t k = source->first + step, before = k / segment * segment, depth = least(segment, source->k - before);
        const size_t count = least(together, least(depth - (k - before), b->k - step));
        int32_t start[MAX_FEW];
        sum_rows(a + step, stride, product->m, few->shift != 0 ? count : 0, few->shift, start);
        for (size_t column = product->first, columns; column < product->last; column += columns) {
            const size_t within = blocked ? column % block_n : 0; /* threads may share a block */
            const size_t at = (column - within) * depth + (blocked ? (k - before) * block_n + within * run : k);
            columns = least(block_n - within, product->last - column);
            for (size_t tile = 0, row = 0; tile < tiles.count; row += tile_rows(&tiles, tile++))
                few->by_column(&(struct anynpu_few_columns){
                    .rows = tile_rows(&tiles, tile),
                    .columns = columns,
                    .runs = count / run,
                    .a = a + row * stride + step,
                    .a_stride = stride,
                    .words = words + row * b->k + step * tile_rows(&tiles, tile),
                    .b = (const uint8_t *)product->values + before * source->n + at,
                    .column_stride = blocked ? run : source->k,
                    .run_stride = blocked ? run * block_n : run,
                    .ahead = tile == 0 && column + columns < product->last ? block_n * depth : 0,
                    .c = (int32_t *)(void *)product->c + row * b->n + column,
                    .c_stride = b->n,
                    .start = start + row,
                    .first = step == 0,
                });
        }
        step += count;
    }
}

/* The kernels for a few rows, where the product is one for them; else NULL. */
static const struct anynpu_few_kernels *few_of(const struct product *product)
{
    const struct anynpu_matrix *b = product->b;
    const struct anynpu_matrix_source *source = product->source;
    const struct anynpu_few_kernels *few = product->set->matrices != NULL ? product->set->matrices->few : NULL;
    if (few == NULL || b->type == ANYNPU_F16 || source->bits != 8)
        return NULL;
    if (source->order == ANYNPU_BY_ROW)
        return b->k % 4 == 0 && product->m <= few->max_rows_by_row ? few : NULL;
    if (product->m > few->max_rows_by_column)
        return NULL;
    if (b->k % ANYNPU_FEW_RUN != 0 || source->first % ANYNPU_FEW_RUN != 0 || b->n % 16 != 0)
        return NULL;
    if (source->order == ANYNPU_BLOCKED && (source->block_k != ANYNPU_FEW_RUN || source->block_n % 16 != 0 || source->block_n > 64))
        return NULL;
    return few;
}

struct shared_product {
    struct product product;
    uint8_t *memory;
    size_t step; /* bytes of scratch from one thread to the next */
};

/* The columns of panels [first, last). */
static void multiply_panels(const void *job, size_t thread, size_t first, size_t last)
{
    const struct shared_product *shared = job;
    struct product product = shared->product;
    const struct anynpu_matrix *b = product.b;
    const struct anynpu_matrix_kernel *kernel = product.kernel;
    const struct scratch scratch =
        scratch_of(b, kernel, product.m, panels_size(b, kernel, product.m), shared->memory + thread * shared->step);
    product.first = first * kernel->width;
    product.last = least(last * kernel->width, b->n);
    const struct anynpu_few_kernels *few = few_of(&product);
    if (few != NULL) {
        if (product.source->order == ANYNPU_BY_ROW)
            multiply_few_by_row(&product, few, (int32_t *)(void *)scratch.sums);
        else
            multiply_few_by_column(&product, few, scratch.words);
        return;
    }
    if (product.m > MAX_ROWS) {
        uint8_t *packed = scratch.panel;
        for (size_t step = 0; step < b->k; step += product.depth) {
            const size_t count = least(product.depth, b->k - step);
            for (size_t column = product.first; column < product.last;) {
                const size_t columns = anynpu_matrix_pack_panels(b, product.set, kernel, product.source, product.values, column,
                                                                 product.last, step, count, packed, scratch.piece);
                packed += whole(count, kernel->group) * columns * element_size(b);
                column += columns;
            }
        }
        product.packed = scratch.panel;
    }
    multiply(&product, &scratch);
}

void anynpu_matrix_multiply_source(const struct anynpu_matrix *b, const struct anynpu_matrix_source *source, const void *values,
                                   const void *a, size_t a_stride, size_t m, void *c, struct anynpu_workers *workers, void *memory)
{
    const struct anynpu_kernel_set *set = anynpu_kernels_at(b->level);
    const struct anynpu_matrix_kernel *kernel = kernel_in(set, b);
    const struct shared_product shared = {
        .product = {.b = b, .set = set, .kernel = kernel, .source = source, .values = values, .a = a, .a_stride = a_stride, .m = m, .c = c,
                    .depth = m <= FEW_ROWS ? least(FEW_STEPS, kernel->depth) : kernel->depth,
                    .together = m <= FEW_ROWS ? FEW_COLUMNS : 1,
                    .gathers = m <= FEW_ROWS && b->k > FEW_STEPS},
        .memory = memory,
        .step = scratch_of(b, kernel, m, panels_size(b, kernel, m), NULL).size};
    const size_t panels = (b->n + kernel->width - 1) / kernel->width;
    if (workers != NULL && anynpu_workers_usable(workers))
        anynpu_share_rows(workers, anynpu_workers_threads(workers), multiply_panels, &shared, panels);
    else
        multiply_panels(&shared, 0, 0, panels);
}
