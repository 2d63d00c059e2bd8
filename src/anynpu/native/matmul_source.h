/* Packs the right factor of a product from where its owner keeps it; see anynpu_matrix_source. */
#ifndef ANYNPU_MATMUL_SOURCE_H
#define ANYNPU_MATMUL_SOURCE_H

#include "levels.h"

enum { ANYNPU_PIECE_STEPS = 64, ANYNPU_PIECE_COLUMNS = 64 };

/* Memory for elements on their way from quantized values to what the kernel takes. */
struct anynpu_matrix_piece {
    int8_t codes[ANYNPU_PIECE_STEPS * ANYNPU_PIECE_COLUMNS];
    float values[ANYNPU_PIECE_STEPS * ANYNPU_PIECE_COLUMNS];
    uint16_t halves[ANYNPU_PIECE_STEPS * ANYNPU_PIECE_COLUMNS];
};

/* set: that of the level for which b is packed.
 * Steps [first, first + count) of the panel that begins at a column, as [step / group][column][group]; steps up to the next whole group and
 * columns up to the kernel's width that do not exist become zero. last: the column after the last one that exists. Panels that follow may
 * be packed with it, up to ANYNPU_LINE_CODES columns. Gives how many columns were packed. */
size_t anynpu_matrix_pack_panels(const struct anynpu_matrix *b, const struct anynpu_kernel_set *set,
                                 const struct anynpu_matrix_kernel *kernel, const struct anynpu_matrix_source *source,
                                 const void *values, size_t column, size_t last, size_t first, size_t count, void *packed,
                                 struct anynpu_matrix_piece *piece);

#endif
