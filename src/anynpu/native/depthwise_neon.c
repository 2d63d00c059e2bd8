/* Depthwise convolution on aarch64 NEON; see depthwise_common.h. */
#include "lanes_neon.h"

#include "depthwise_common.h"

static const struct anynpu_conv_kernel DEPTHWISE = DEPTHWISE_KERNEL("depthwise_neon");

const struct anynpu_conv_kernel *const anynpu_depthwise_neon[] = {&DEPTHWISE, NULL};
