/* Operators without weights on aarch64 NEON; see simple_common.h. */
#include "lanes_neon.h"

#include "simple_common.h"

const struct anynpu_simple_kernels anynpu_simple_neon = SIMPLE_KERNELS;
