/* What an instruction set has of its own: tables of fast kernels, in the order of preference. Where an entry is missing or does not fit,
 * the plain C of operators_*.c serves; the bytes are the same. */
#ifndef ANYNPU_KERNELS_H
#define ANYNPU_KERNELS_H

#include "engine.h"

/* A convolution (or, as one of height 1 and kernel 1x1, a fully connected layer) of int8. Rows are output rows over all images: image r / oh,
 * row r % oh; a run may be split by rows over several threads, each with scratch of its own. */
struct anynpu_conv_kernel {
    const char *name;
    int (*fits)(const struct anynpu_conv *conv);
    /* The weights alone, which layers may share; packed_weights_size is NULL where a kernel keeps weights and constants together. */
    size_t (*packed_weights_size)(const struct anynpu_conv *conv);
    void (*pack_weights)(const struct anynpu_conv *conv, void *weights);
    /* Everything else, with the address of the weights. */
    size_t (*packed_size)(const struct anynpu_conv *conv);
    void (*pack)(const struct anynpu_conv *conv, const void *weights, void *packed);
    size_t (*scratch_size)(const struct anynpu_conv *conv);
    void (*run)(const struct anynpu_conv *conv, const void *packed, const int8_t *x, const int8_t *residual, int8_t *y, void *scratch,
                size_t first_row, size_t last_row);
};

/* int8 operators without weights; NULL where the instruction set has nothing of its own. */
struct anynpu_simple_kernels {
    void (*table)(const struct anynpu_table *table, const int8_t *x, int8_t *y);
    int (*binary_fits)(const struct anynpu_binary *binary);
    void (*binary)(const struct anynpu_binary *binary, const int8_t *a, const int8_t *b, int8_t *y);
    int (*pool_fits)(const struct anynpu_pool *pool);
    void (*pool)(const struct anynpu_pool *pool, const int8_t *x, int8_t *y, size_t first_row, size_t last_row);
    void (*concat)(const struct anynpu_concat *concat, const int8_t *const *inputs, int8_t *y);
    void (*resize)(const struct anynpu_resize *resize, const int8_t *x, int8_t *y);
    int (*matmul_fits)(const struct anynpu_matmul *matmul);
    size_t (*matmul_scratch)(const struct anynpu_matmul *matmul);
    void (*matmul)(const struct anynpu_matmul *matmul, const int8_t *a, const int8_t *b, int8_t *y, void *scratch);
};

/* A tile of a matmul: a few rows of packed a times a panel of packed b, added to what c holds or, where it is the first block of
 * steps, to 0, and to start (by row; quantized values only). See matmul.c for how the operands lie. */
typedef void anynpu_matrix_tile(size_t rows, size_t steps, const void *a, const void *b, void *c, size_t stride, const int32_t *start,
                                int first);

struct anynpu_matrix_kernel {
    const char *name;
    size_t width;  /* columns of a panel */
    size_t rows;   /* of a tile, at the most */
    size_t group;  /* steps that lie side by side and are one step of a tile */
    size_t depth;  /* steps of a block; a multiple of the group */
    size_t near_bytes; /* of a panel that all tiles take before the next ones; each time the sums pass through c */
    size_t a_size; /* bytes of an element of packed a: int8 (groups of 4 only), int16 or float32 */
    int32_t shift; /* what is added to the quantized values of b */
    int32_t takes_halves; /* floats: whether a tile takes b in float16; else it takes float32 */
    anynpu_matrix_tile *tile;
};

/* Products of a few rows of int8 with b as it lies in memory. Sums are added to start (by row). Strides are in elements. */
enum {
    ANYNPU_FEW_RUN = 32,
    ANYNPU_LINE_CODES = 64,
    ANYNPU_FEW_COLUMNS = 16,  /* that are packed together */
    ANYNPU_FEW_BY_ROW = 64,   /* rows of a product by row, at the most */
    ANYNPU_FEW_SUMS = 1 << 16 /* of a call by row, at the most: they stay in the second cache */
};

/* Columns of b that are runs of 32 quantized values, one after the other or with gaps. */
struct anynpu_few_columns {
    size_t rows, columns, runs;
    const int8_t *a;
    size_t a_stride;
    const int16_t *words; /* where the kernels take it: the same quantized values as 16 bits, by run and row */
    const uint8_t *b;
    size_t column_stride, run_stride;
    size_t ahead; /* from what is read to what is worth fetching meanwhile */
    int32_t *c;
    size_t c_stride;
    const int32_t *start;
    int first; /* else c holds sums that are added, too */
};

/* Rows of b without gaps; a call takes all rows and steps of a product. */
struct anynpu_few_rows {
    size_t rows, columns, steps; /* steps: a multiple of 4 */
    const int8_t *a;
    size_t a_stride;
    const uint8_t *b;
    size_t b_stride;
    int32_t *c;
    size_t c_stride;
    const int32_t *start;
    int32_t *sums; /* working memory: of all columns up to a whole 64, for each row */
};

/* Packs columns without gaps into a panel of 64 of the kernel for many rows, shifted; a multiple of 16 of them and of the group in steps. */
typedef void anynpu_pack_columns(const uint8_t *b, size_t b_stride, size_t columns, size_t steps, uint8_t *panel);

/* by_column: the rows of a product are shared out among calls, and each call takes a part of b that the next one finds in a cache. */
struct anynpu_few_kernels {
    size_t rows;                 /* by_column: of a call, at the most */
    size_t max_rows_by_column;   /* of a product; with more of them it pays to pack b */
    size_t max_rows_by_row;      /* 0: b is packed for any number */
    size_t columns;              /* by_column: of a call; blocks have columns of their own */
    size_t words;                /* by_column: quantized values of a that are used together, 0 for all */
    int32_t shift;               /* what a start is to make up for: -shift * (sum of the row) */
    int32_t takes_words;         /* by_column takes the rows of a as 16 bits */
    void (*by_column)(const struct anynpu_few_columns *few);
    void (*by_row)(const struct anynpu_few_rows *few);
    /* Packs 64 columns of rows of b without gaps into whole panels of the kernel for many rows, shifted; steps is a multiple of the group. */
    void (*pack_rows)(const uint8_t *b, size_t b_stride, size_t steps, uint8_t *panels);
    anynpu_pack_columns *pack_columns; /* NULL: there is none */
};

extern const struct anynpu_few_kernels anynpu_few_vnni; /* matmul_few_vnni.c */
extern const struct anynpu_few_kernels anynpu_few_avx2; /* matmul_few_avx2.c */

struct anynpu_matrix_kernels {
    struct anynpu_matrix_kernel codes;    /* int8, sums in int32 */
    struct anynpu_matrix_kernel floats;   /* float32 */
    const struct anynpu_few_kernels *few; /* NULL: there are none */
};

extern const struct anynpu_matrix_kernels anynpu_matrices_vnni;         /* matmul_vnni.c */
extern const struct anynpu_matrix_kernels anynpu_matrices_avx2;         /* matmul_avx2.c */
extern const struct anynpu_matrix_kernels anynpu_matrices_neon_dotprod; /* matmul_neon.c, compiled with +dotprod */
extern const struct anynpu_matrix_kernels anynpu_matrices_neon;         /* matmul_neon.c */

/* Lists end with NULL. */
extern const struct anynpu_conv_kernel *const anynpu_conv_vnni[];           /* conv_vnni.c: AVX512-VNNI, with and without VBMI */
extern const struct anynpu_conv_kernel *const anynpu_conv_avx2[];           /* conv_avx2.c */
extern const struct anynpu_conv_kernel *const anynpu_conv_neon_dotprod[];   /* conv_neon.c, compiled with +dotprod */
extern const struct anynpu_conv_kernel *const anynpu_conv_neon[];           /* conv_neon.c */
extern const struct anynpu_conv_kernel anynpu_depthwise_bytes_vnni;         /* depthwise_bytes_vnni.c */
extern const struct anynpu_conv_kernel *const anynpu_depthwise_vnni[];      /* depthwise_vnni.c */
extern const struct anynpu_conv_kernel *const anynpu_depthwise_avx2[];      /* depthwise_avx2.c */
extern const struct anynpu_conv_kernel *const anynpu_depthwise_neon[];      /* depthwise_neon.c */
extern const struct anynpu_simple_kernels anynpu_simple_vnni;               /* simple_vnni.c */
extern const struct anynpu_simple_kernels anynpu_simple_avx2;               /* simple_avx2.c */
extern const struct anynpu_simple_kernels anynpu_simple_neon;               /* simple_neon.c */

/* See anynpu_peak; rounds of multiply-accumulate instructions that nothing holds up. */
typedef uint64_t anynpu_peak_loop(uint64_t rounds);
anynpu_peak_loop anynpu_peak_vnni, anynpu_peak_avx2, anynpu_peak_neon_dotprod, anynpu_peak_neon; /* peak_*.c */

#endif
