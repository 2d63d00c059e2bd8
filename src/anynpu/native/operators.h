/* The plain C of every operator: its meaning, and what runs where an instruction set has nothing better. Compiled once for each level;
 * a table holds one level's functions. Entries in brackets are by enum anynpu_codes. */
#ifndef ANYNPU_OPERATORS_H
#define ANYNPU_OPERATORS_H

#include "engine.h"

/* Output rows [first_row, last_row) over all images: image row / oh, row % oh. residual may be NULL. */
typedef void anynpu_conv_operator(const struct anynpu_conv *conv, const void *x, const void *residual, void *y, void *scratch,
                                  size_t first_row, size_t last_row);

struct anynpu_product_operators {
    size_t (*conv_scratch)(const struct anynpu_conv *conv);
    size_t (*matmul_scratch)(const struct anynpu_matmul *matmul);
    anynpu_conv_operator *conv[ANYNPU_CODES];
    anynpu_conv_operator *conv_transpose[ANYNPU_CODES];
    void (*matmul[ANYNPU_CODES])(const struct anynpu_matmul *matmul, const void *a, const void *b, void *y, void *scratch);
};

struct anynpu_elementwise_operators {
    void (*binary[ANYNPU_CODES])(const struct anynpu_binary *binary, const void *a, const void *b, void *y);
    void (*table[ANYNPU_CODES])(const struct anynpu_table *table, const void *x, void *y);
};

struct anynpu_window_operators {
    size_t (*pool_scratch)(const struct anynpu_pool *pool);
    void (*pool[ANYNPU_CODES])(const struct anynpu_pool *pool, const void *x, void *y, void *scratch, size_t first_row, size_t last_row);
    void (*resize[ANYNPU_CODES])(const struct anynpu_resize *resize, const void *x, void *y);
};

struct anynpu_layout_operators {
    /* inputs: places in the table of tensors */
    void (*concat)(const struct anynpu_concat *concat, int codes, void *const *tensors, const int32_t *inputs, void *y);
    void (*move)(const struct anynpu_move *move, const void *x, void *y);
    void (*pad)(const struct anynpu_pad *pad, const void *x, void *y);
};

struct anynpu_float_operators {
    void (*binary)(const struct anynpu_float_binary *binary, const float *a, const float *b, float *y);
    void (*unary)(const struct anynpu_float_unary *unary, const float *x, float *y);
    void (*reduce)(const struct anynpu_float_reduce *reduce, const float *x, float *y);
    void (*softmax)(const struct anynpu_float_softmax *softmax, const float *x, float *y);
    void (*normalize)(const struct anynpu_float_normalize *normalize, const float *x, const float *scale, const float *bias, float *y);
    void (*matmul)(const struct anynpu_float_matmul *matmul, const float *a, const float *b, float *y);
    void (*cast)(const struct anynpu_float_cast *cast, const void *x, void *y);
};

struct anynpu_operators {
    const struct anynpu_product_operators *products;
    const struct anynpu_elementwise_operators *elementwise;
    const struct anynpu_window_operators *windows;
    const struct anynpu_layout_operators *layout;
    const struct anynpu_float_operators *floats;
};

#endif
