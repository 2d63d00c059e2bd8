/* Sizes of memory that follow from the numbers of a model file. SIZE_MAX stands for every size that size_t cannot hold; sums and products
 * of it stay SIZE_MAX. */
#ifndef ANYNPU_SIZES_H
#define ANYNPU_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* Scratch memory of a fast convolution, in bytes, at most; where it needs more, plain C runs, whose scratch does not depend on pads and
 * dilations. Dilated convolutions of real networks need about 40 MB. */
#define ANYNPU_MAX_SCRATCH ((size_t)64 << 20)

static inline size_t size_plus(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

static inline size_t size_times(size_t a, size_t b)
{
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

/* count, rounded up to a multiple of unit. */
static inline size_t size_whole(size_t count, size_t unit)
{
    size_t sum = size_plus(count, unit - 1);
    return sum == SIZE_MAX ? SIZE_MAX : sum / unit * unit;
}

/* Positions from the first to the last element under count windows of taps elements. */
static inline size_t size_reach(size_t count, size_t stride, size_t taps, size_t dilation)
{
    return size_plus(size_plus(size_times(count - 1, stride), size_times(taps - 1, dilation)), 1);
}

#endif
