/* The functions of a convolution kernel. Include it after `target`, the file's own struct conv_target. */
#ifndef ANYNPU_CONV_KERNEL_H
#define ANYNPU_CONV_KERNEL_H

#include "conv_common.h"

static size_t packed_weights_size(const struct anynpu_conv *conv)
{
    return conv_packed_weights_size(conv, &target);
}

static void pack_weights(const struct anynpu_conv *conv, void *weights)
{
    conv_pack_weights(conv, &target, weights);
}

static size_t packed_size(const struct anynpu_conv *conv)
{
    return conv_packed_size(conv, &target);
}

static void pack(const struct anynpu_conv *conv, const void *weights, void *packed)
{
    conv_pack(conv, &target, weights, packed);
}

static size_t scratch_size(const struct anynpu_conv *conv)
{
    return conv_plan(conv, &target).scratch_size;
}

static void run(const struct anynpu_conv *conv, const void *packed, const int8_t *x, const int8_t *residual, int8_t *y,
                void *scratch, size_t first_row, size_t last_row)
{
    conv_run(conv, &target, packed, x, residual, y, scratch, first_row, last_row);
}

#define CONV_KERNEL(called)                                                                                                      \
    {                                                                                                                            \
        .name = called, .fits = conv_fits, .packed_weights_size = packed_weights_size, .pack_weights = pack_weights,             \
        .packed_size = packed_size, .pack = pack, .scratch_size = scratch_size, .run = run,                                      \
    }

#endif
