/* The integer engine: operators as descriptors, kernels as tables of functions, one call that runs a segment of layers.
 *
 * What each operator computes is written in anynpu.program and anynpu.program.arithmetic (Python); the plain C of every operator (operators_*.c)
 * is its meaning here, and a fast kernel gives the same bytes. All tensors lie with their channels last. Nothing here allocates or
 * locks; a kernel may read, but not use, up to 64 bytes after a tensor, and writes inside its output only.
 *
 * Who owns what: descriptors and packed weights belong to a prepared program and never change after that; tensors and scratch belong to a
 * context. Several threads may run the same program on tensors and scratch of their own. */
#ifndef ANYNPU_ENGINE_H
#define ANYNPU_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/* Arrays per output channel are padded to a multiple of this many entries, so that a vector load never leaves them. */
enum { ANYNPU_CHANNEL_PADDING = 64 };

/* An activation as two tables of 513 entries; see anynpu.program.Curve. */
struct anynpu_curve {
    int32_t offset, multiplier, shift;
    int32_t slope, slope_shift;
    const int16_t *negative;
    const int16_t *positive;
};

/* The chip's integers from an accumulator to a code; see anynpu.program.FixedPoint. Arrays per output channel, padded. */
struct anynpu_fixed_point {
    const int32_t *channel;    /* in units of 2^-14; NULL: the sum is taken as it is */
    const int32_t *multiplier; /* NULL for pooling: its divisors have them */
    const int32_t *shift;
    const int32_t *low;        /* bounds of the scaled sum; NULL: none */
    const int32_t *high;
    const int32_t *slope;      /* in units of 2^-14; NULL: none */
    int32_t residual_multiplier, residual_shift;
    const struct anynpu_curve *curves; /* NULL: none */
    const int32_t *curve;      /* of each channel; NULL: there is one */
};

/* The code of every number; see anynpu.program.Staircase. Cells of equal width lie over the edges: starts has for each how many edges are
 * surely not above a number in it, also where its place was computed one cell off. */
struct anynpu_staircase {
    const float *edges;
    const int8_t *codes; /* one more than edges */
    const int32_t *starts;
    int32_t count;  /* edges */
    int32_t cells;
    float cells_per_unit;
};

/* From an accumulator to a stored code; see anynpu.program.Epilogue. Every array has one entry for each output channel, padded.
 *   f = float(acc) * multiplier
 *   f = f + float(residual - residual_zero) * residual_multiplier
 *   f = f < 0 ? f * slope : f
 *   code = clamp(round_half_even(f) + zero_point, low, high), clamped in float before it becomes an integer
 *   code = table[256 * row + (uint8_t)code]
 * With fixed, the steps before the table are those of struct anynpu_fixed_point; multiplier and slope are not looked at.
 * With threshold tables, the code is that of float(acc) * multiplier, and nothing else is looked at. */
struct anynpu_epilogue {
    const float *multiplier;
    const int32_t *zero_point;
    const int32_t *low;
    const int32_t *high;
    const float *slope;               /* NULL: none */
    const float *residual_multiplier; /* NULL: no residual */
    const int32_t *residual_zero;     /* per channel, where there is a residual */
    const void *table;                /* NULL: none; int8: rows of 256, int16: rows of 65536 */
    const int32_t *row;               /* row of the table per channel; NULL: there is one row */
    const struct anynpu_fixed_point *fixed; /* NULL: rounding mode ``simulator`` */
    const struct anynpu_staircase *staircases; /* NULL: none; convolutions of int8 only */
    const int32_t *staircase;         /* of each channel; NULL: there is one */
};

/* Convolution, and transposed convolution. The padding has the value zero, which is the code input_zero. A fully connected layer is a
 * convolution with a kernel of 1x1 over an image of height 1, whose pixels are the rows. */
struct anynpu_conv {
    size_t n, h, w, cin;   /* input */
    size_t oh, ow, cout;   /* output */
    size_t kh, kw;
    size_t sh, sw;
    size_t top, left;      /* pads before; those after follow from the output's size */
    size_t dh, dw;
    size_t groups;
    int32_t input_zero;          /* where all channels have the same */
    const int32_t *input_zeros;  /* by input channel, padded; NULL: input_zero for all */
    const void *weights;         /* int8 or int16 [cout][kh][kw][cin / groups] */
    const int32_t *weight_zero;  /* per output channel, padded */
    const void *bias;            /* int32 (int8 weights) or int64 (int16) per output channel, padded */
    struct anynpu_epilogue epilogue;
};

/* A transposed convolution as an ordinary one, for a fast kernel: each of its pixels has the output's sh x sw pixels side by side, of cout
 * channels each. Kernel elements that a phase of the stride does not have are zero. */
struct anynpu_subpixel {
    struct anynpu_conv conv; /* cout is sh * sw times that of the output */
    size_t sh, sw;
    size_t oh, ow, cout;
};

/* a [batch][m][k] times b [batch][k][n], or b [batch][n][k] with transpose_b. */
struct anynpu_matmul {
    size_t batch, m, k, n;
    const size_t *a_offsets; /* where each batch's matrix begins, in elements */
    const size_t *b_offsets;
    const int32_t *a_zero;   /* by position in k, padded */
    const int32_t *b_zero;   /* by position in the last axis of b, padded */
    int32_t transpose_b;
    struct anynpu_epilogue epilogue;
};

enum anynpu_binary_kind { ANYNPU_ADD, ANYNPU_SUB, ANYNPU_MUL, ANYNPU_MAX, ANYNPU_MIN };

/* Two tensors element by element. The output has at most 6 axes, the last is the channel; a stride of 0 broadcasts. Zeros and multipliers by
 * output channel, padded. */
struct anynpu_binary {
    int32_t kind;
    size_t shape[6];
    size_t a_strides[6]; /* in elements */
    size_t b_strides[6];
    const int32_t *a_zero;
    const int32_t *b_zero;
    const float *a_multiplier; /* NULL where the epilogue has fixed */
    const float *b_multiplier;
    int32_t a_factor, b_factor; /* terms are RNE(difference * factor, shift) where the epilogue has fixed */
    int32_t a_shift, b_shift;
    struct anynpu_epilogue epilogue; /* without its multiplier */
};

/* table[x], for count elements whose innermost size is channels. */
struct anynpu_table {
    size_t count, channels;
    const void *table;
    const int32_t *row; /* NULL: one row */
};

/* Inputs one after the other: each is outer blocks of inner[i] elements, through its table if it has one. */
struct anynpu_concat {
    size_t outer;
    size_t inputs;
    const size_t *inner;
    const struct anynpu_table *tables; /* one an input, of inner[i] elements; .table NULL: as it is */
    size_t element_size;
};

/* Any move of elements: output element [i0][i1]... is input element at start + sum(i * strides); at most 8 axes. Slice and transpose. */
struct anynpu_move {
    size_t axes;
    size_t shape[8];
    ptrdiff_t strides[8]; /* in elements of the input */
    ptrdiff_t start;
    size_t element_size;
};

enum anynpu_pad_mode { ANYNPU_PAD_CONSTANT, ANYNPU_PAD_REFLECT, ANYNPU_PAD_EDGE };

/* The last axis moves runs of elements: the inner axes that have no padding. */
struct anynpu_pad {
    int32_t mode;
    size_t axes; /* at least 1, at most 8 */
    size_t shape[8]; /* of the input, in runs */
    size_t before[8];
    size_t after[8];
    uint64_t value; /* an element in the low bytes */
    size_t run;     /* elements */
    size_t element_size;
};

struct anynpu_pool {
    int32_t average; /* 0: max */
    size_t n, h, w, c, oh, ow;
    size_t kh, kw, sh, sw, top, left, bottom, right, dh, dw;
    int32_t count_include_pad;
    const int32_t *input_zero; /* per channel, padded */
    const int32_t *divisor_multiplier; /* by count, where the epilogue has fixed */
    const int32_t *divisor_shift;
    struct anynpu_epilogue epilogue; /* multiplier is divided by the count in float32 */
};

/* Rows and columns: [size][3] = first index, second index, weight of the second in units of 2^-11. */
struct anynpu_resize {
    int32_t linear;
    size_t n, h, w, c, oh, ow;
    const int32_t *rows;
    const int32_t *columns;
};

/* ---- float32: what float layers are made of; anynpu.npu.engines.float_kernels writes these ---- */

enum anynpu_float_binary_kind {
    ANYNPU_FLOAT_ADD,
    ANYNPU_FLOAT_SUB,
    ANYNPU_FLOAT_MUL,
    ANYNPU_FLOAT_DIV,
    ANYNPU_FLOAT_POW,
    ANYNPU_FLOAT_MAX,
    ANYNPU_FLOAT_MIN
};

/* Strides as in struct anynpu_binary. */
struct anynpu_float_binary {
    int32_t kind;
    size_t shape[6];
    size_t a_strides[6];
    size_t b_strides[6];
};

enum anynpu_float_unary_kind {
    ANYNPU_FLOAT_SIGMOID,
    ANYNPU_FLOAT_EXP,
    ANYNPU_FLOAT_LOG,
    ANYNPU_FLOAT_SQRT,
    ANYNPU_FLOAT_TANH,
    ANYNPU_FLOAT_ERF,
    ANYNPU_FLOAT_RECIPROCAL,
    ANYNPU_FLOAT_NEG,
    ANYNPU_FLOAT_ABS,
    ANYNPU_FLOAT_CLIP,        /* to [alpha, beta] */
    ANYNPU_FLOAT_LEAKY_RELU,  /* x < 0 ? alpha * x : x */
    ANYNPU_FLOAT_HARD_SIGMOID, /* clamp(alpha * x + beta, 0, 1) */
    ANYNPU_FLOAT_GELU
};

struct anynpu_float_unary {
    int32_t kind;
    size_t count;
    float alpha, beta;
};

enum anynpu_float_reduce_kind { ANYNPU_FLOAT_SUM, ANYNPU_FLOAT_MEAN, ANYNPU_FLOAT_LARGEST, ANYNPU_FLOAT_SMALLEST };

/* [outer][size][inner] to [outer][inner]. */
struct anynpu_float_reduce {
    int32_t kind;
    size_t outer, extent, inner;
};

/* Over the size of [outer][size][inner]. */
struct anynpu_float_softmax {
    size_t outer, extent, inner;
};

/* (x - mean) / sqrt(variance + epsilon) * scale + bias over each row; scale and bias have a row's size, the bias may be missing. */
struct anynpu_float_normalize {
    size_t rows, extent;
    float epsilon;
};

/* a [batch][m][k] times b [batch][k][n]. */
struct anynpu_float_matmul {
    size_t batch, m, k, n;
    const size_t *a_offsets; /* where each batch's matrix begins, in elements */
    const size_t *b_offsets;
};

/* Between float16 and float32. */
struct anynpu_float_cast {
    size_t count;
    int32_t to_half;
};

/* ---- layers ---- */

enum anynpu_layer_kind {
    ANYNPU_LAYER_CONV,
    ANYNPU_LAYER_CONV_TRANSPOSE, /* struct anynpu_conv */
    ANYNPU_LAYER_SUBPIXEL,       /* runs with a fast kernel only */
    ANYNPU_LAYER_MATMUL,
    ANYNPU_LAYER_BINARY,
    ANYNPU_LAYER_TABLE,
    ANYNPU_LAYER_CONCAT,
    ANYNPU_LAYER_MOVE,
    ANYNPU_LAYER_PAD,
    ANYNPU_LAYER_POOL,
    ANYNPU_LAYER_RESIZE,
    ANYNPU_LAYER_CONVERT, /* struct anynpu_conversion */
    ANYNPU_LAYER_FLOAT_BINARY,
    ANYNPU_LAYER_FLOAT_UNARY,
    ANYNPU_LAYER_FLOAT_REDUCE,
    ANYNPU_LAYER_FLOAT_SOFTMAX,
    ANYNPU_LAYER_FLOAT_NORMALIZE,
    ANYNPU_LAYER_FLOAT_MATMUL,
    ANYNPU_LAYER_FLOAT_CAST
};

/* Quantized values of 8 bits whose sums fit 32 bits, and whose differences to zero points fit 16; the same where they do not; quantized values of 16 bits. Bias is
 * int32 with the first and int64 with the others. Operators that only move elements, and those in float, do not look at it. */
enum anynpu_codes { ANYNPU_CODES_I8, ANYNPU_CODES_I8_WIDE, ANYNPU_CODES_I16, ANYNPU_CODES };

/* One step. Shared by all who run the program: tensors are places in a table of pointers that each of them has. */
struct anynpu_layer {
    int32_t kind;
    int32_t codes;
    const void *descriptor;
    const int32_t *inputs; /* places of the inputs; of a convolution the input and the residual, of a normalization the
                            * input, scale and bias; -1 for none */
    int32_t output;
    /* What anynpu_choose found. */
    const void *operators; /* plain C of a level */
    const void *kernel;    /* a fast kernel; NULL: plain C */
    const void *packed;    /* weights as the kernel wants them; the caller's memory */
};

#endif
