/* Packs the right factor of a product from where its owner keeps it.
 *
 * The matrix is taken in pieces that lie in memory without gaps along k ([n][k], and each block of the blocked order) or along n ([k][n]).
 * A piece of quantized values that the kernel does not take as they are (four bits, or quantized values that are multiplied by float16) is first converted,
 * at most 64 by 64 at a time. Then it is one transposition into the panel: of units of a whole group where k runs along the memory, or of
 * the rows of one group where n does. Where a kernel wants quantized values shifted by 128 the top bit of all is turned at the end. */
#include <string.h>

#include "matmul_source.h"

struct packing {
    const struct anynpu_matrix_kernel *kernel;
    const struct anynpu_matrix_source *source;
    const struct anynpu_kernel_set *set;
    const uint8_t *values;
    struct anynpu_matrix_piece *piece;
    size_t size; /* bytes of an element of the panel */
    uint8_t *packed;
    size_t column, first; /* of the panel */
    anynpu_pack_columns *whole; /* for panels that are whole and need no conversion but the shift; else NULL */
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int converts(const struct packing *packing)
{
    return packing->source->bits != 8 * (int32_t)packing->size;
}

/* Where an element of the panel lies; step is a multiple of the group. */
static uint8_t *place(const struct packing *packing, size_t step, size_t column)
{
    const size_t group = packing->kernel->group;
    return packing->packed + ((step - packing->first) * packing->kernel->width + (column - packing->column) * group) * packing->size;
}

/* A run of elements that begins at an index of the source, as the kernel takes them. zero: of each element, or of all where there is but
 * one. */
static void convert_run(const struct packing *packing, size_t index, size_t count, const int32_t *zero, int each, uint8_t *target)
{
    struct anynpu_matrix_piece *piece = packing->piece;
    const struct anynpu_element_kernels *elements = packing->set->elements;
    const void *codes = packing->values + index;
    if (packing->source->bits == 4) {
        void *unpacked = packing->size == 1 ? (void *)target : (void *)piece->codes;
        elements->unpack_int4(packing->values + index / 2, unpacked, count, 1);
        codes = unpacked;
    }
    if (packing->size == 1)
        return;
    elements->types[ANYNPU_I8].load(codes, piece->values, count, each || zero == NULL ? 0 : *zero, 1.0f);
    if (each && zero != NULL)
        for (size_t i = 0; i < count; i++)
            piece->values[i] -= (float)zero[i];
    elements->types[ANYNPU_F16].store(piece->values, target, count, 0, 1.0f, 0, 0);
}

/* Columns by column: [columns][steps] with a stride between columns, into the panel. step is a multiple of the group. */
static void put_columns(const struct packing *packing, const uint8_t *from, size_t stride, size_t step, size_t steps, size_t column,
                        size_t columns)
{
    const size_t group = packing->kernel->group, unit = group * packing->size, whole = steps / group * group;
    uint8_t *to = place(packing, step, column);
    if (packing->whole != NULL) {
        packing->whole(from, stride, columns, steps, to);
        return;
    }
    if (whole > 0 && stride % group == 0) {
        anynpu_transpose *transpose = packing->set->transpose->by_size[unit == 1 ? 0 : unit == 2 ? 1 : 2];
        transpose(from, stride / group, to, packing->kernel->width, columns, whole / group);
    }
    for (size_t k = stride % group == 0 ? whole : 0; k < steps; k++)
        for (size_t i = 0; i < columns; i++)
            memcpy(place(packing, step + k / group * group, column + i) + k % group * packing->size,
                   from + (i * stride + k) * packing->size, packing->size);
}

/* Steps [step, step + steps) of some columns; the first element is at an index of the source, and a column has stride elements. */
static void pack_columns(const struct packing *packing, size_t index, size_t stride, size_t step, size_t steps, size_t column,
                         size_t columns)
{
    if (!converts(packing)) {
        put_columns(packing, packing->values + index * packing->size, stride, step, steps, column, columns);
        return;
    }
    uint8_t *converted = packing->size == 1 ? (uint8_t *)packing->piece->codes : (uint8_t *)packing->piece->halves;
    for (size_t n = 0; n < columns; n += ANYNPU_PIECE_COLUMNS)
        for (size_t k = 0; k < steps; k += ANYNPU_PIECE_STEPS) {
            const size_t high = least(ANYNPU_PIECE_STEPS, steps - k), wide = least(ANYNPU_PIECE_COLUMNS, columns - n);
            for (size_t i = 0; i < wide; i++) {
                const int32_t *zero = packing->source->zero;
                convert_run(packing, index + (n + i) * stride + k, high, zero == NULL ? NULL : zero + column + n + i, 0,
                            converted + i * ANYNPU_PIECE_STEPS * packing->size);
            }
            put_columns(packing, converted, ANYNPU_PIECE_STEPS, step + k, high, column + n, wide);
        }
}

/* The rows of one group, of which n runs along the memory. */
static void pack_group(const struct packing *packing, size_t step, size_t steps, size_t column, size_t columns)
{
    const struct anynpu_matrix_source *source = packing->source;
    const size_t group = packing->kernel->group, index = (source->first + step) * source->n + column;
    const uint8_t *rows = packing->values + index * packing->size;
    size_t stride = source->n;
    uint8_t *to = place(packing, step, column);
    if (converts(packing)) {
        uint8_t *converted = packing->size == 1 ? (uint8_t *)packing->piece->codes : (uint8_t *)packing->piece->halves;
        const int32_t *zero = source->zero;
        for (size_t row = 0; row < steps; row++)
            convert_run(packing, index + row * source->n, columns, zero == NULL ? NULL : zero + column, 1,
                        converted + row * ANYNPU_PIECE_COLUMNS * packing->size);
        rows = converted;
        stride = ANYNPU_PIECE_COLUMNS;
    }
    if (group == 1)
        memcpy(to, rows, columns * packing->size);
    else if (steps == group)
        packing->set->transpose->by_size[0](rows, stride, to, group, group, columns);
    else
        for (size_t row = 0; row < steps; row++)
            for (size_t i = 0; i < columns; i++)
                to[i * group + row] = rows[row * stride + i];
}

/* Blocks that the panel touches, in the order in which they lie. */
static void pack_blocks(const struct packing *packing, size_t last, size_t count)
{
    const struct anynpu_matrix_source *source = packing->source;
    const size_t begin = source->first + packing->first, end = begin + count;
    for (size_t column = packing->column; column < last;) {
        const size_t in_block = column % source->block_n, columns = least(source->block_n - in_block, last - column);
        for (size_t k = begin; k < end;) {
            const size_t segment = k / source->segment * source->segment, depth = least(source->segment, source->k - segment);
            const size_t block = (k - segment) / source->block_k, in_row = (k - segment) % source->block_k;
            const size_t steps = least(source->block_k - in_row, end - k);
            const size_t tile = (column / source->block_n * (depth / source->block_k) + block) * source->block_n + in_block;
            pack_columns(packing, segment * source->n + tile * source->block_k + in_row, source->block_k, k - source->first, steps,
                         column, columns);
            k += steps;
        }
        column += columns;
    }
}

size_t anynpu_matrix_pack_panels(const struct anynpu_matrix *b, const struct anynpu_kernel_set *set,
                                 const struct anynpu_matrix_kernel *kernel, const struct anynpu_matrix_source *source,
                                 const void *values, size_t column, size_t last, size_t first, size_t count, void *packed,
                                 struct anynpu_matrix_piece *piece)
{
    struct packing packing = {kernel, source, set, values, piece, b->type == ANYNPU_F16 ? 2 : 1, packed, column, first, NULL};
    const size_t group = kernel->group, columns = least(kernel->width, last - column), steps = (count + group - 1) / group * group;
    const size_t size = steps * kernel->width * packing.size;
    const struct anynpu_few_kernels *few = set->matrices != NULL ? set->matrices->few : NULL;
    if (few != NULL && !converts(&packing) && packing.size == 1 && last - column >= ANYNPU_LINE_CODES && count == steps) {
        if (source->order == ANYNPU_BY_ROW) {
            few->pack_rows(packing.values + (source->first + first) * source->n + column, source->n, count, packed);
            return ANYNPU_LINE_CODES;
        }
        if (source->order == ANYNPU_BY_COLUMN || source->block_n % ANYNPU_FEW_COLUMNS == 0)
            packing.whole = few->pack_columns;
    }
    if (columns < kernel->width || count < steps)
        memset(packed, 0, size);
    if (source->order == ANYNPU_BLOCKED)
        pack_blocks(&packing, column + columns, count);
    else if (source->order == ANYNPU_BY_COLUMN)
        pack_columns(&packing, column * source->k + source->first + first, source->k, first, count, column, columns);
    else
        for (size_t step = 0; step < count; step += group)
            pack_group(&packing, first + step, least(group, count - step), column, columns);
    if (kernel->shift != 0 && packing.whole == NULL)
        packing.set->elements->flip(packed, packed, size, (uint8_t)kernel->shift);
    return kernel->width;
}
