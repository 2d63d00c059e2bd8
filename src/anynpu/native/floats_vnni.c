/* The float operators on AVX512, the same C in wider vectors. */
#if !defined(__clang__)
#pragma GCC target("f16c,prefer-vector-width=512")
#endif
#define ANYNPU_LEVEL avx512

#include "float_operators.c"
