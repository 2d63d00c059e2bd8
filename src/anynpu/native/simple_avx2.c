/* Operators without weights on AVX2; see simple_common.h. */
#include "lanes_avx2.h"

#include "simple_common.h"

const struct anynpu_simple_kernels anynpu_simple_avx2 = SIMPLE_KERNELS;
