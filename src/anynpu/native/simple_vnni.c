/* Operators without weights on AVX512, with and without VBMI; see simple_common.h. */
#include "lanes_vnni.h"

#include "simple_common.h"

const struct anynpu_simple_kernels anynpu_simple_vnni = SIMPLE_KERNELS;
