/* float32: the operators of float layers. Plain C, compiled once for each level; tensors lie as ONNX has them. */
#include <math.h>

#include "float16.h"
#include "levels.h"

/* ---- functions ---- */

/* e^x to about an ulp, as arithmetic that a compiler vectorises: x = n * ln 2 + r with |r| <= ln 2 / 2, the series of e^r, and 2^n in two
 * factors, so that neither leaves the range of normal numbers. */
static inline float exponential(float x)
{
    const float to_integer = 0x1.8p23f; /* a sum with it has the integer in its low bits */
    float limited = x < -104.0f ? -104.0f : x;
    limited = limited > 89.0f ? 89.0f : limited;
    float sum = limited * 1.44269504f + to_integer;
    int32_t n = (int32_t)(bits_of(sum) - bits_of(to_integer));
    float turns = sum - to_integer;
    float r = (limited - turns * 0x1.62ep-1f) - turns * 0x1.0bfbe8p-15f; /* ln 2 in two parts; the first product is exact */
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    int32_t half = n >> 1;
    return series * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(n - half + 127) << 23);
}

#define EACH(expression)                                                                                                       \
    for (size_t i = 0; i < unary->count; i++) {                                                                                \
        float value = x[i];                                                                                                    \
        y[i] = (expression);                                                                                                   \
    }                                                                                                                          \
    break

static void unary(const struct anynpu_float_unary *unary, const float *restrict x, float *restrict y)
{
    float alpha = unary->alpha, beta = unary->beta;
    switch ((enum anynpu_float_unary_kind)unary->kind) {
    case ANYNPU_FLOAT_SIGMOID:
        EACH(1.0f / (1.0f + exponential(-value)));
    case ANYNPU_FLOAT_EXP:
        EACH(exponential(value));
    case ANYNPU_FLOAT_LOG:
        EACH(logf(value));
    case ANYNPU_FLOAT_SQRT:
        EACH(sqrtf(value));
    case ANYNPU_FLOAT_TANH:
        EACH(tanhf(value));
    case ANYNPU_FLOAT_ERF:
        EACH(erff(value));
    case ANYNPU_FLOAT_RECIPROCAL:
        EACH(1.0f / value);
    case ANYNPU_FLOAT_NEG:
        EACH(-value);
    case ANYNPU_FLOAT_ABS:
        EACH(fabsf(value));
    case ANYNPU_FLOAT_CLIP:
        EACH(value < alpha ? alpha : value > beta ? beta : value);
    case ANYNPU_FLOAT_LEAKY_RELU:
        EACH(value < 0.0f ? alpha * value : value);
    case ANYNPU_FLOAT_HARD_SIGMOID:
        for (size_t i = 0; i < unary->count; i++) {
            float value = alpha * x[i] + beta;
            y[i] = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
        }
        break;
    }
}

/* ---- two tensors ---- */

/* A step of 0 repeats the one element. Loops with constant steps become vectors. */
#define ROW(left, right, expression)                                                                                           \
    for (size_t i = 0; i < count; i++) {                                                                                       \
        float p = (left), q = (right);                                                                                         \
        y[i] = (expression);                                                                                                   \
    }

#define ROWS(expression)                                                                                                       \
    if (a_step == 1 && b_step == 1)                                                                                            \
        ROW(a[i], b[i], expression)                                                                                            \
    else if (a_step == 1 && b_step == 0)                                                                                       \
        ROW(a[i], b[0], expression)                                                                                            \
    else if (a_step == 0 && b_step == 1)                                                                                       \
        ROW(a[0], b[i], expression)                                                                                            \
    else                                                                                                                       \
        ROW(a[i * a_step], b[i * b_step], expression)                                                                          \
    break

static void binary_row(int32_t kind, const float *restrict a, size_t a_step, const float *restrict b, size_t b_step,
                       float *restrict y, size_t count)
{
    switch ((enum anynpu_float_binary_kind)kind) {
    case ANYNPU_FLOAT_ADD:
        ROWS(p + q);
    case ANYNPU_FLOAT_SUB:
        ROWS(p - q);
    case ANYNPU_FLOAT_MUL:
        ROWS(p * q);
    case ANYNPU_FLOAT_DIV:
        ROWS(p / q);
    case ANYNPU_FLOAT_POW:
        if (b_step == 0 && b[0] == 2.0f) { /* the square of a normalisation */
            for (size_t i = 0; i < count; i++)
                y[i] = a[i * a_step] * a[i * a_step];
            break;
        }
        ROWS(powf(p, q));
    case ANYNPU_FLOAT_MAX: /* what is not a number stays that */
        ROWS(p > q || p != p ? p : q);
    case ANYNPU_FLOAT_MIN:
        ROWS(p < q || p != p ? p : q);
    }
}

static void binary_axis(const struct anynpu_float_binary *binary, size_t axis, const float *a, const float *b, float **y)
{
    if (axis == 5) {
        binary_row(binary->kind, a, binary->a_strides[5], b, binary->b_strides[5], *y, binary->shape[5]);
        *y += binary->shape[5];
        return;
    }
    for (size_t i = 0; i < binary->shape[axis]; i++)
        binary_axis(binary, axis + 1, a + i * binary->a_strides[axis], b + i * binary->b_strides[axis], y);
}

static void binary(const struct anynpu_float_binary *binary, const float *a, const float *b, float *y)
{
    binary_axis(binary, 0, a, b, &y);
}

/* ---- along an axis ---- */

/* Sums and extremes of a row go by this many lanes: the order is fixed, and vectors fit it. Columns go by as many at a time. */
enum { LANES = 16, COLUMNS = 256 };

#define SUM(total, value) ((total) + (value))
#define LARGER(total, value) ((total) > (value) || (total) != (total) ? (total) : (value))
#define SMALLER(total, value) ((total) < (value) || (total) != (total) ? (total) : (value))

#define FOLD(name, combine, first)                                                                                             \
    static float name##_of_row(const float *restrict x, size_t count)                                                          \
    {                                                                                                                          \
        float lanes[LANES], total = first;                                                                                     \
        size_t i = 0;                                                                                                          \
        for (size_t lane = 0; lane < LANES; lane++)                                                                            \
            lanes[lane] = first;                                                                                               \
        for (; i + LANES <= count; i += LANES)                                                                                 \
            for (size_t lane = 0; lane < LANES; lane++)                                                                        \
                lanes[lane] = combine(lanes[lane], x[i + lane]);                                                               \
        for (size_t lane = 0; lane < LANES; lane++)                                                                            \
            total = combine(total, lanes[lane]);                                                                               \
        for (; i < count; i++)                                                                                                 \
            total = combine(total, x[i]);                                                                                      \
        return total;                                                                                                          \
    }                                                                                                                          \
                                                                                                                               \
    static void name##_of_columns(const float *restrict x, size_t extent, size_t stride, size_t count, float *restrict y)      \
    {                                                                                                                          \
        for (size_t i = 0; i < count; i++)                                                                                     \
            y[i] = first;                                                                                                      \
        for (size_t row = 0; row < extent; row++)                                                                              \
            for (size_t i = 0; i < count; i++)                                                                                 \
                y[i] = combine(y[i], x[row * stride + i]);                                                                     \
    }                                                                                                                          \
                                                                                                                               \
    static void name##_of(const struct anynpu_float_reduce *reduce, const float *x, float *y)                                  \
    {                                                                                                                          \
        for (size_t outer = 0; outer < reduce->outer; outer++, x += reduce->extent * reduce->inner, y += reduce->inner)        \
            if (reduce->inner == 1)                                                                                            \
                *y = name##_of_row(x, reduce->extent);                                                                         \
            else                                                                                                               \
                name##_of_columns(x, reduce->extent, reduce->inner, reduce->inner, y);                                         \
    }

FOLD(sum, SUM, 0.0f)
FOLD(largest, LARGER, -INFINITY)
FOLD(smallest, SMALLER, INFINITY)

static void reduce(const struct anynpu_float_reduce *reduce, const float *x, float *y)
{
    switch ((enum anynpu_float_reduce_kind)reduce->kind) {
    case ANYNPU_FLOAT_SUM:
    case ANYNPU_FLOAT_MEAN:
        sum_of(reduce, x, y);
        if (reduce->kind == ANYNPU_FLOAT_MEAN)
            for (size_t i = 0; i < reduce->outer * reduce->inner; i++)
                y[i] /= (float)reduce->extent;
        break;
    case ANYNPU_FLOAT_LARGEST:
        largest_of(reduce, x, y);
        break;
    case ANYNPU_FLOAT_SMALLEST:
        smallest_of(reduce, x, y);
        break;
    }
}

static void softmax_row(const float *restrict x, float *restrict y, size_t count)
{
    float largest = largest_of_row(x, count);
    for (size_t i = 0; i < count; i++)
        y[i] = exponential(x[i] - largest);
    float sum = sum_of_row(y, count);
    for (size_t i = 0; i < count; i++)
        y[i] /= sum;
}

static void softmax_columns(const float *restrict x, float *restrict y, size_t extent, size_t stride, size_t count)
{
    float largest[COLUMNS], sum[COLUMNS];
    largest_of_columns(x, extent, stride, count, largest);
    for (size_t row = 0; row < extent; row++)
        for (size_t i = 0; i < count; i++)
            y[row * stride + i] = exponential(x[row * stride + i] - largest[i]);
    sum_of_columns(y, extent, stride, count, sum);
    for (size_t row = 0; row < extent; row++)
        for (size_t i = 0; i < count; i++)
            y[row * stride + i] /= sum[i];
}

static void softmax(const struct anynpu_float_softmax *softmax, const float *x, float *y)
{
    size_t inner = softmax->inner, block = softmax->extent * inner;
    for (size_t outer = 0; outer < softmax->outer; outer++, x += block, y += block)
        if (inner == 1)
            softmax_row(x, y, softmax->extent);
        else
            for (size_t i = 0; i < inner; i += COLUMNS)
                softmax_columns(x + i, y + i, softmax->extent, inner, inner - i < COLUMNS ? inner - i : COLUMNS);
}

static void normalize(const struct anynpu_float_normalize *normalize, const float *x, const float *scale, const float *bias, float *y)
{
    size_t extent = normalize->extent;
    for (size_t row = 0; row < normalize->rows; row++, x += extent, y += extent) {
        float mean = sum_of_row(x, extent) / (float)extent;
        for (size_t i = 0; i < extent; i++)
            y[i] = (x[i] - mean) * (x[i] - mean);
        float deviation = sqrtf(sum_of_row(y, extent) / (float)extent + normalize->epsilon);
        for (size_t i = 0; i < extent; i++)
            y[i] = (x[i] - mean) / deviation * scale[i];
        for (size_t i = 0; bias != NULL && i < extent; i++)
            y[i] += bias[i];
    }
}

/* ---- matrix product ---- */

/* ROWS_AT_ONCE rows of a with WIDTH columns of b: the sums stay in registers. Products are added in the order of k, as everywhere here. */
enum { ROWS_AT_ONCE = 4, WIDTH = 16 };

static inline void product_block(const float *restrict a, const float *restrict b, float *restrict y, size_t rows, size_t k, size_t n,
                                 size_t columns)
{
    float sums[ROWS_AT_ONCE][WIDTH] = {{0.0f}};
    for (size_t i = 0; i < k; i++)
        for (size_t row = 0; row < rows; row++) {
            float factor = a[row * k + i];
            for (size_t column = 0; column < columns; column++)
                sums[row][column] += factor * b[i * n + column];
        }
    for (size_t row = 0; row < rows; row++)
        for (size_t column = 0; column < columns; column++)
            y[row * n + column] = sums[row][column];
}

static void product(const float *a, const float *b, float *y, size_t m, size_t k, size_t n)
{
    for (size_t row = 0; row < m; row += ROWS_AT_ONCE) {
        size_t rows = m - row < ROWS_AT_ONCE ? m - row : ROWS_AT_ONCE;
        for (size_t column = 0; column < n; column += WIDTH) {
            size_t columns = n - column < WIDTH ? n - column : WIDTH;
            const float *left = a + row * k, *right = b + column;
            float *target = y + row * n + column;
            if (rows == ROWS_AT_ONCE && columns == WIDTH)
                product_block(left, right, target, ROWS_AT_ONCE, k, n, WIDTH);
            else if (columns == WIDTH)
                product_block(left, right, target, rows, k, n, WIDTH);
            else
                product_block(left, right, target, rows, k, n, columns);
        }
    }
}

static void matmul(const struct anynpu_float_matmul *matmul, const float *a, const float *b, float *y)
{
    for (size_t batch = 0; batch < matmul->batch; batch++)
        product(a + matmul->a_offsets[batch], b + matmul->b_offsets[batch], y + batch * matmul->m * matmul->n, matmul->m, matmul->k,
                matmul->n);
}

/* ---- types ---- */

static void cast(const struct anynpu_float_cast *cast, const void *x, void *y)
{
    if (cast->to_half)
        f16_from_f32(x, y, cast->count);
    else
        f32_from_f16(x, y, cast->count);
}

extern const struct anynpu_float_operators LEVELLED(floats);
const struct anynpu_float_operators LEVELLED(floats) = {
    .binary = binary,
    .unary = unary,
    .reduce = reduce,
    .softmax = softmax,
    .normalize = normalize,
    .matmul = matmul,
    .cast = cast,
};
