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
    size_t (*packed_size)(const struct anynpu_conv *conv);
    void (*pack)(const struct anynpu_conv *conv, void *packed);
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
};

/* Lists end with NULL. */
extern const struct anynpu_conv_kernel *const anynpu_conv_vnni[];           /* conv_vnni.c: AVX512-VNNI, with and without VBMI */
extern const struct anynpu_conv_kernel *const anynpu_conv_avx2[];           /* conv_avx2.c */
extern const struct anynpu_conv_kernel *const anynpu_conv_neon_dotprod[];   /* conv_neon.c, compiled with +dotprod */
extern const struct anynpu_conv_kernel *const anynpu_conv_neon[];           /* conv_neon.c */
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
