/* Loops over the shape of a tile, which must vanish. */
#ifndef ANYNPU_UNROLL_H
#define ANYNPU_UNROLL_H

/* What is inlined into a tile of accumulators sees its shape as constants. Loops over the shape must vanish, so that
 * accumulators are registers. gcc would also make a copy of a row function for one run of known length, and spill the
 * accumulators in it. */
#define CONV_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define CONV_UNROLL _Pragma("clang loop unroll(full)")
#define CONV_ROW_FUNCTION static __attribute__((noinline)) void
#else
#define CONV_UNROLL _Pragma("GCC unroll 16")
#define CONV_ROW_FUNCTION static __attribute__((noinline, noclone)) void
#endif

#endif
