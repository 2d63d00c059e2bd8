/* float32: the operators of float layers. Plain C, compiled once for each level; tensors lie as ONNX has them. */
#include <math.h>

#include "float16.h"
#include "levels.h"
#include "unroll.h"

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

/* x through a polynomial, the highest power first. */
#define POLYNOMIAL(name, ...)                                                                                                  \
    static inline float name(float x)                                                                                          \
    {                                                                                                                          \
        static const float factors[] = {__VA_ARGS__};                                                                          \
        float sum = factors[0];                                                                                                \
        for (size_t i = 1; i < sizeof factors / sizeof *factors; i++)                                                          \
            sum = sum * x + factors[i];                                                                                        \
        return sum;                                                                                                            \
    }

/* erf(x) / x - 1 for x^2 up to 1; -ln(1 - erf(x)) for x from 0.95 to 4; (tanh(x) / x - 1) / x^2 for x^2 up to 0.4. Fitted for the least
 * relative error of the function. */
POLYNOMIAL(erf_near, 0x1.4ae4c6p-14f, -0x1.a485e8p-11f, 0x1.5419f4p-8f, -0x1.b7fbb4p-6f, 0x1.ce2d2p-4f, -0x1.81273ep-2f, 0x1.06eba8p-3f)
POLYNOMIAL(erf_far, 0x1.67cc1ep-16f, -0x1.cbd51p-12f, 0x1.12a6eap-8f, -0x1.9c6a3cp-6f, 0x1.bbd954p-4f, 0x1.443c48p-1f, 0x1.212a52p+0f,
           -0x1.7ea5bcp-13f)
POLYNOMIAL(tanh_near, -0x1.8d4b22p-8f, 0x1.57a788p-6f, -0x1.b91cb2p-5f, 0x1.110dfep-3f, -0x1.555552p-2f)

static inline float with_sign(float magnitude, float sign)
{
    return float_of((bits_of(magnitude) & 0x7fffffff) | (bits_of(sign) & 0x80000000));
}

static inline float error_function(float x)
{
    float size = float_of(bits_of(x) & 0x7fffffff), limited = size > 4.0f ? 4.0f : size;
    float near = x + x * erf_near(x * x), far = with_sign(1.0f - exponential(-erf_far(limited)), x);
    return size < 1.0f ? near : far;
}

static inline float hyperbolic_tangent(float x)
{
    float size = float_of(bits_of(x) & 0x7fffffff), square = x * x;
    float near = x + x * square * tanh_near(square), far = with_sign(1.0f - 2.0f / (exponential(size + size) + 1.0f), x);
    return size < 0.625f ? near : far;
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
        EACH(hyperbolic_tangent(value));
    case ANYNPU_FLOAT_ERF:
        EACH(error_function(value));
    case ANYNPU_FLOAT_GELU:
        EACH(0.5f * value * (1.0f + error_function(value * 0.707106781f)));
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
        if (b_step == 0 && b[0] == 2.0f) { /* the square of a normalization */
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

#if defined(__AVX512F__)
enum { VECTOR = 16 };
#elif defined(__AVX__)
enum { VECTOR = 8 };
#else
enum { VECTOR = 4 };
#endif
typedef float vector __attribute__((vector_size(VECTOR * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef int32_t vector_mask __attribute__((vector_size(VECTOR * sizeof(float))));

static inline vector vector_where(vector_mask mask, vector yes, vector no)
{
    return (vector)((mask & (vector_mask)yes) | (~mask & (vector_mask)no));
}

#define SUM(total, value) ((total) + (value))
#define LARGER(total, value) ((total) > (value) || (total) != (total) ? (total) : (value))
#define SMALLER(total, value) ((total) < (value) || (total) != (total) ? (total) : (value))
#define VECTOR_SUM(total, value) ((total) + (value))
#define VECTOR_LARGER(total, value) vector_where(((total) > (value)) | ((total) != (total)), total, value)
#define VECTOR_SMALLER(total, value) vector_where(((total) < (value)) | ((total) != (total)), total, value)

#define FOLD(name, combine, first)                                                                                             \
    static float name##_of_row(const float *restrict x, size_t count)                                                          \
    {                                                                                                                          \
        vector totals[LANES / VECTOR];                                                                                         \
        float each[LANES], total;                                                                                              \
        size_t i = 0;                                                                                                          \
        CONV_UNROLL for (int j = 0; j < LANES / VECTOR; j++)                                                                   \
            totals[j] = (vector){0.0f} + first;                                                                                \
        for (; i + LANES <= count; i += LANES)                                                                                 \
            CONV_UNROLL for (int j = 0; j < LANES / VECTOR; j++)                                                               \
                totals[j] = VECTOR_##combine(totals[j], *(const vector *)(x + i + j * VECTOR));                                \
        memcpy(each, totals, sizeof each);                                                                                     \
        for (size_t half = LANES / 2; half > 0; half /= 2)                                                                     \
            for (size_t lane = 0; lane < half; lane++)                                                                         \
                each[lane] = combine(each[lane], each[lane + half]);                                                           \
        total = each[0];                                                                                                       \
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
    float share = 1.0f / sum;
    for (size_t i = 0; i < count; i++)
        y[i] *= share;
}

static void softmax_columns(const float *restrict x, float *restrict y, size_t extent, size_t stride, size_t count)
{
    float largest[COLUMNS], sum[COLUMNS];
    largest_of_columns(x, extent, stride, count, largest);
    for (size_t row = 0; row < extent; row++)
        for (size_t i = 0; i < count; i++)
            y[row * stride + i] = exponential(x[row * stride + i] - largest[i]);
    sum_of_columns(y, extent, stride, count, sum);
    for (size_t i = 0; i < count; i++)
        sum[i] = 1.0f / sum[i];
    for (size_t row = 0; row < extent; row++)
        for (size_t i = 0; i < count; i++)
            y[row * stride + i] *= sum[i];
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

static void normalize(const struct anynpu_float_normalize *normalize, const float *x, const float *restrict scale,
                      const float *restrict bias, float *y)
{
    size_t extent = normalize->extent;
    for (size_t row = 0; row < normalize->rows; row++, x += extent, y += extent) {
        const float *restrict from = x;
        float *restrict to = y, mean = sum_of_row(from, extent) / (float)extent;
        for (size_t i = 0; i < extent; i++)
            to[i] = (from[i] - mean) * (from[i] - mean);
        float factor = 1.0f / sqrtf(sum_of_row(to, extent) / (float)extent + normalize->epsilon);
        if (bias == NULL)
            for (size_t i = 0; i < extent; i++)
                to[i] = (from[i] - mean) * factor * scale[i];
        else
            for (size_t i = 0; i < extent; i++)
                to[i] = (from[i] - mean) * factor * scale[i] + bias[i];
    }
}

/* ---- matmul ---- */

/* A tile of y is computed at once, its sums in registers; a panel of b as wide as a tile is copied together first, as deep as the first-level
 * cache has space for. Products are added in the order of k, each rounded before it is added, as everywhere here: tiles may differ. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { TILE_ROWS = 6, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif
enum { PANEL = VECTOR * TILE_VECTORS, DEPTH = 128 };

/* Part of the sums: a few rows of a, with steps between them, times a panel of b. */
struct product_part {
    const float *a, *b;
    float *y;
    size_t a_step, b_step, y_step, depth;
    int continues; /* y has the sums so far */
};

static inline __attribute__((always_inline)) void product_tile(const struct product_part *part, const int rows, const int vectors)
{
    const float *a = part->a, *b = part->b;
    const size_t a_step = part->a_step, b_step = part->b_step, y_step = part->y_step, depth = part->depth;
    vector sums[TILE_ROWS][TILE_VECTORS];
    CONV_UNROLL for (int row = 0; row < rows; row++)
        CONV_UNROLL for (int j = 0; j < vectors; j++)
            sums[row][j] = part->continues ? *(const vector *)(part->y + (size_t)row * y_step + j * VECTOR) : (vector){0.0f};
    for (size_t i = 0; i < depth; i++, a++, b += b_step) {
        vector right[TILE_VECTORS];
        CONV_UNROLL for (int j = 0; j < vectors; j++)
            right[j] = *(const vector *)(b + j * VECTOR);
        CONV_UNROLL for (int row = 0; row < rows; row++)
            CONV_UNROLL for (int j = 0; j < vectors; j++)
                sums[row][j] += a[(size_t)row * a_step] * right[j];
    }
    CONV_UNROLL for (int row = 0; row < rows; row++)
        CONV_UNROLL for (int j = 0; j < vectors; j++)
            *(vector *)(part->y + (size_t)row * y_step + j * VECTOR) = sums[row][j];
}

typedef void tile_function(const struct product_part *part);

#define DEFINE_TILE(rows, vectors)                                                                                             \
    CONV_ROW_FUNCTION tile_##rows##_##vectors(const struct product_part *part)                                            \
    {                                                                                                                          \
        product_tile(part, rows, vectors);                                                                                     \
    }

DEFINE_TILE(1, 1)
DEFINE_TILE(2, 1)
DEFINE_TILE(4, 1)
DEFINE_TILE(1, TILE_VECTORS)
DEFINE_TILE(2, TILE_VECTORS)
DEFINE_TILE(4, TILE_VECTORS)
#if defined(__AVX512F__) || defined(__aarch64__)
DEFINE_TILE(6, 1)
DEFINE_TILE(6, TILE_VECTORS)
#else
#define tile_6_1 NULL
#define tile_6_TILE_VECTORS NULL
#endif

/* All rows of a times a panel; rows is a multiple of nothing. */
static void product_panel(struct product_part part, size_t rows, int is_wide)
{
    while (rows > 0) {
        size_t some = rows >= TILE_ROWS ? TILE_ROWS : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        tile_function *run = some == 6   ? is_wide ? tile_6_TILE_VECTORS : tile_6_1
                             : some == 4 ? is_wide ? tile_4_TILE_VECTORS : tile_4_1
                             : some == 2 ? is_wide ? tile_2_TILE_VECTORS : tile_2_1
                             : is_wide   ? tile_1_TILE_VECTORS
                                         : tile_1_1;
        run(&part);
        part.a += some * part.a_step;
        part.y += some * part.y_step;
        rows -= some;
    }
}

/* Columns [0, columns) of b and y, columns at most PANEL; only whole vectors of b are read where it is not copied. */
static void product_columns(const float *a, const float *b, float *y, size_t m, size_t k, size_t n, size_t columns)
{
    enum { FEW_ROWS = 4 };
    const int is_wide = columns == PANEL, is_whole = is_wide || columns == VECTOR;
    float panel[DEPTH * PANEL], rest[TILE_ROWS * VECTOR];
    struct product_part part = {.a_step = k, .y_step = n};
    for (size_t first = 0; first < k || first == 0; first += DEPTH) {
        const size_t depth = k - first < DEPTH ? k - first : DEPTH, width = is_wide ? PANEL : VECTOR;
        part.a = a + first, part.b = b + first * n, part.b_step = n, part.y = y, part.depth = depth, part.continues = first > 0;
        if (!is_whole || m > FEW_ROWS) {
            for (size_t i = 0; i < depth; i++) {
                memcpy(panel + i * width, b + (first + i) * n, columns * sizeof *b);
                memset(panel + i * width + columns, 0, (width - columns) * sizeof *b);
            }
            part.b = panel, part.b_step = width;
        }
        if (is_whole) {
            product_panel(part, m, is_wide);
            continue;
        }
        for (size_t row = 0; row < m; row += TILE_ROWS, part.a += TILE_ROWS * k) {
            const size_t rows = m - row < TILE_ROWS ? m - row : TILE_ROWS;
            for (size_t i = 0; part.continues && i < rows; i++)
                memcpy(rest + i * VECTOR, y + (row + i) * n, columns * sizeof *y);
            struct product_part narrow = part;
            narrow.y = rest, narrow.y_step = VECTOR;
            product_panel(narrow, rows, 0);
            for (size_t i = 0; i < rows; i++)
                memcpy(y + (row + i) * n, rest + i * VECTOR, columns * sizeof *y);
        }
    }
}

static void product(const float *a, const float *b, float *y, size_t m, size_t k, size_t n)
{
    for (size_t column = 0, columns; column < n; column += columns) {
        columns = n - column >= PANEL ? PANEL : n - column >= VECTOR ? VECTOR : n - column;
        product_columns(a, b + column, y + column, m, k, n, columns);
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
