/* Sums of products: convolution, transposed convolution, product of two matrices. Plain C, compiled once for each level.
 *
 * One way for all of them: the operands of a few output pixels are gathered as rows of differences to their zero points (padding is zero
 * then), so are the weights of a few output channels, and every sum is a product of two rows. A transposed convolution is one ordinary
 * convolution for each phase of its stride: a kernel element belongs to exactly one phase along each axis. */
#include <string.h>

#include "arithmetic.h"
#include "levels.h"
#include "sizes.h"

enum {
    PIXELS = 32,  /* output pixels whose operands are gathered at a time: the weights are gathered once for each such block */
    CHANNELS = 4, /* output channels whose weights are gathered at a time */
    ROW = 16,     /* rows of operands are a multiple of this long, filled up with zeros */
    OPERAND_BYTES = 4,
    SUM_BYTES = 8
};

/* Called for each pixel or block: copies in every caller would only make the library larger. */
#define NOINLINE __attribute__((noinline))

static size_t whole(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

static int conv_is_depthwise(const struct anynpu_conv *conv)
{
    return conv->groups > 1 && conv->groups == conv->cin && conv->groups == conv->cout;
}

/* How output positions of one phase meet input positions along one axis:
 * output first + t * out_step meets input t * step + offset + j * offset_step through kernel element tap + j * tap_step. */
struct axis {
    size_t first, out_step, outputs;
    ptrdiff_t step, offset, offset_step;
    size_t tap, tap_step, taps;
};

static struct axis conv_axis(size_t kernel, size_t stride, size_t pad, size_t dilation, size_t outputs)
{
    return (struct axis){.first = 0,
                         .out_step = 1,
                         .outputs = outputs,
                         .step = (ptrdiff_t)stride,
                         .offset = -(ptrdiff_t)pad,
                         .offset_step = (ptrdiff_t)dilation,
                         .tap = 0,
                         .tap_step = 1,
                         .taps = kernel};
}

static struct axis transposed_axis(size_t kernel, size_t stride, size_t pad, size_t dilation, size_t outputs, size_t phase)
{
    struct axis axis = {.first = phase, .out_step = stride, .step = 1, .tap_step = 1};
    axis.outputs = phase < outputs ? (outputs - phase - 1) / stride + 1 : 0;
    if (axis.outputs == 0)
        return axis;
    while (axis.tap < kernel && (phase + pad + axis.tap * (stride - dilation % stride)) % stride != 0)
        axis.tap++;
    if (axis.tap == kernel)
        return axis;
    size_t divisor = stride;
    for (size_t rest = dilation % stride; rest != 0;) {
        size_t next = divisor % rest;
        divisor = rest, rest = next;
    }
    axis.tap_step = stride / divisor; /* the first multiple of the dilation that is one of the stride */
    axis.taps = (kernel - axis.tap - 1) / axis.tap_step + 1;
    axis.offset = ((ptrdiff_t)(phase + pad) - (ptrdiff_t)(axis.tap * dilation)) / (ptrdiff_t)stride;
    axis.offset_step = -(ptrdiff_t)(axis.tap_step * dilation / stride);
    return axis;
}

/* Sums of some pixels, then rows of operands for them and for some channels. */
static size_t gathered_scratch(size_t channels, size_t length)
{
    size_t sums = size_times(PIXELS * SUM_BYTES, size_whole(channels, ANYNPU_CHANNEL_PADDING));
    return size_plus(sums, size_times((PIXELS + CHANNELS) * OPERAND_BYTES, size_whole(length, ROW)));
}

static size_t conv_scratch(const struct anynpu_conv *conv)
{
    size_t taps = size_times(conv->kh, conv->kw), channels = size_whole(conv->cin, ANYNPU_CHANNEL_PADDING);
    size_t gathered = gathered_scratch(conv->cout, size_times(taps, conv->cin / conv->groups));
    /* one sum for each channel, then its weights and zero points */
    size_t depthwise = size_times(channels, size_plus(SUM_BYTES, size_times(size_plus(taps, 1), OPERAND_BYTES)));
    return conv_is_depthwise(conv) && depthwise > gathered ? depthwise : gathered;
}

static size_t matmul_scratch(const struct anynpu_matmul *matmul)
{
    return gathered_scratch(matmul->n, matmul->k);
}

#define CODE int8_t
#define OPERAND int16_t
#define SUM int32_t
#define NAME(name) name##_i8
#define STORE anynpu_store_i8
#define DIFFERENCES anynpu_differences_i8
#include "operators_conv_body.h"

#define CODE int8_t
#define OPERAND int32_t
#define SUM int64_t
#define NAME(name) name##_i8_wide
#define STORE anynpu_store_i8
#define DIFFERENCES anynpu_differences_i8
#include "operators_conv_body.h"

#define CODE int16_t
#define OPERAND int32_t
#define SUM int64_t
#define NAME(name) name##_i16
#define STORE anynpu_store_i16
#define DIFFERENCES anynpu_differences_i16
#include "operators_conv_body.h"

extern const struct anynpu_product_operators LEVELLED(products);
const struct anynpu_product_operators LEVELLED(products) = {
    .conv_scratch = conv_scratch,
    .matmul_scratch = matmul_scratch,
    .conv = {conv_i8, conv_i8_wide, conv_i16},
    .conv_transpose = {conv_transpose_i8, conv_transpose_i8_wide, conv_transpose_i16},
    .matmul = {matmul_i8, matmul_i8_wide, matmul_i16},
};
