/* Depthwise convolution on AVX512-VNNI; see depthwise_common.h. */
#include "lanes_vnni.h"

#include "depthwise_common.h"

static const struct anynpu_conv_kernel DEPTHWISE = DEPTHWISE_KERNEL("depthwise_vnni");

const struct anynpu_conv_kernel *const anynpu_depthwise_vnni[] = {&anynpu_depthwise_bytes_vnni, &DEPTHWISE, NULL};
