/* Depthwise convolution on AVX2; see depthwise_common.h. */
#include "lanes_avx2.h"

#include "depthwise_common.h"

static const struct anynpu_conv_kernel DEPTHWISE = DEPTHWISE_KERNEL("depthwise_avx2");

const struct anynpu_conv_kernel *const anynpu_depthwise_avx2[] = {&DEPTHWISE, NULL};
