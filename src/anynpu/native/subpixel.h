/* Transposed convolution by a fast kernel for ordinary ones. */
#ifndef ANYNPU_SUBPIXEL_H
#define ANYNPU_SUBPIXEL_H

#include "kernels.h"

size_t anynpu_subpixel_scratch(const struct anynpu_subpixel *subpixel, const struct anynpu_conv_kernel *kernel);
/* Rows [first_row, last_row) of the ordinary convolution, over all images; each is up to sh rows of the output. */
void anynpu_run_subpixel(const struct anynpu_subpixel *subpixel, const struct anynpu_conv_kernel *kernel, const void *packed,
                         const int8_t *x, int8_t *y, void *scratch, size_t first_row, size_t last_row);

#endif
