/* Depthwise convolution on AVX512-VNNI with factors of bytes, four rows at a time; see depthwise_common.h. */
#define LANES_OF_BYTES
#include "lanes_vnni.h"

#include "depthwise_common.h"

const struct anynpu_conv_kernel anynpu_depthwise_bytes_vnni = DEPTHWISE_KERNEL("depthwise_bytes_vnni");
