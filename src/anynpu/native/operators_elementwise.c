/* Element by element: two tensors, and tables. Plain C, compiled once for each level. */
#include "arithmetic.h"
#include "levels.h"

/* What two tensors give before slope, rounding and clamp; see anynpu.program.Binary. */
static void combine(const struct anynpu_binary *binary, size_t first, size_t count, const float *restrict a, const float *restrict b,
                    float *restrict values)
{
    const float *restrict a_multiplier = binary->a_multiplier + first, *restrict b_multiplier = binary->b_multiplier + first;
    switch (binary->kind) {
    case ANYNPU_MUL:
        for (size_t i = 0; i < count; i++)
            values[i] = (a[i] * b[i]) * a_multiplier[i];
        break;
    case ANYNPU_ADD:
        for (size_t i = 0; i < count; i++)
            values[i] = a[i] * a_multiplier[i] + b[i] * b_multiplier[i];
        break;
    case ANYNPU_SUB:
        for (size_t i = 0; i < count; i++)
            values[i] = a[i] * a_multiplier[i] - b[i] * b_multiplier[i];
        break;
    case ANYNPU_MAX:
        for (size_t i = 0; i < count; i++) {
            float left = a[i] * a_multiplier[i], right = b[i] * b_multiplier[i];
            values[i] = left > right ? left : right;
        }
        break;
    default:
        for (size_t i = 0; i < count; i++) {
            float left = a[i] * a_multiplier[i], right = b[i] * b_multiplier[i];
            values[i] = left < right ? left : right;
        }
    }
}

/* The same by the chip's rule. */
static void combine_fixed(const struct anynpu_binary *binary, size_t first, size_t count, const float *restrict a,
                          const float *restrict b, int32_t *restrict codes)
{
    for (size_t i = 0; i < count; i++) {
        int64_t left = (int64_t)a[i], right = (int64_t)b[i], sum;
        if (binary->kind == ANYNPU_MUL) {
            sum = left * right;
        } else {
            left = anynpu_shift_right(left * binary->a_factor, binary->a_shift);
            right = anynpu_shift_right(right * binary->b_factor, binary->b_shift);
            sum = binary->kind == ANYNPU_ADD   ? left + right
                  : binary->kind == ANYNPU_SUB ? left - right
                  : (binary->kind == ANYNPU_MAX) == (left > right) ? left
                                                                   : right;
        }
        codes[i] = anynpu_fixed_code(&binary->epilogue, first + i, sum, 0);
    }
}

/* A row is the channels of one place; a step of 0 along it repeats its one element. */
#define BINARY(name, type)                                                                                                     \
    static void load_##name(const type *source, size_t step, const int32_t *restrict zeros, size_t first, size_t count,         \
                            float *restrict values)                                                                            \
    {                                                                                                                          \
        if (step != 0) {                                                                                                       \
            anynpu_differences_##name(source + first, zeros + first, count, values);                                           \
            return;                                                                                                            \
        }                                                                                                                      \
        for (size_t i = 0; i < count; i++)                                                                                     \
            values[i] = (float)(source[0] - zeros[first + i]);                                                                 \
    }                                                                                                                          \
                                                                                                                               \
    static void binary_row_##name(const struct anynpu_binary *binary, const type *a, const type *b, type *y)                   \
    {                                                                                                                          \
        float left[ANYNPU_RUN], right[ANYNPU_RUN], values[ANYNPU_RUN];                                                         \
        int32_t codes[ANYNPU_RUN];                                                                                             \
        size_t channels = binary->shape[5];                                                                                    \
        for (size_t first = 0; first < channels; first += ANYNPU_RUN) {                                                        \
            size_t count = channels - first < ANYNPU_RUN ? channels - first : ANYNPU_RUN;                                      \
            load_##name(a, binary->a_strides[5], binary->a_zero, first, count, left);                                          \
            load_##name(b, binary->b_strides[5], binary->b_zero, first, count, right);                                         \
            if (binary->epilogue.fixed != NULL) {                                                                              \
                combine_fixed(binary, first, count, left, right, codes);                                                       \
            } else {                                                                                                           \
                combine(binary, first, count, left, right, values);                                                            \
                anynpu_finish(&binary->epilogue, first, count, values, codes);                                                 \
            }                                                                                                                  \
            anynpu_store_##name(&binary->epilogue, first, count, codes, y + first);                                            \
        }                                                                                                                      \
    }                                                                                                                          \
                                                                                                                               \
    static void binary_axis_##name(const struct anynpu_binary *binary, size_t axis, const type *a, const type *b, type **y)    \
    {                                                                                                                          \
        if (axis == 5) {                                                                                                       \
            binary_row_##name(binary, a, b, *y);                                                                               \
            *y += binary->shape[5];                                                                                            \
            return;                                                                                                            \
        }                                                                                                                      \
        for (size_t i = 0; i < binary->shape[axis]; i++)                                                                       \
            binary_axis_##name(binary, axis + 1, a + i * binary->a_strides[axis], b + i * binary->b_strides[axis], y);         \
    }                                                                                                                          \
                                                                                                                               \
    static void binary_##name(const struct anynpu_binary *binary, const void *a, const void *b, void *y)                       \
    {                                                                                                                          \
        type *target = y;                                                                                                      \
        binary_axis_##name(binary, 0, a, b, &target);                                                                          \
    }

BINARY(i8, int8_t)
BINARY(i16, int16_t)

#define TABLE(name, type, index, entries)                                                                                      \
    static void table_##name(const struct anynpu_table *table, const void *x, void *y)                                         \
    {                                                                                                                          \
        const index *restrict codes = x;                                                                                       \
        const type *restrict entry = table->table;                                                                             \
        type *restrict target = y;                                                                                             \
        if (table->row == NULL) {                                                                                              \
            for (size_t i = 0; i < table->count; i++)                                                                          \
                target[i] = entry[codes[i]];                                                                                   \
            return;                                                                                                            \
        }                                                                                                                      \
        for (size_t i = 0; i < table->count; i += table->channels)                                                             \
            for (size_t c = 0; c < table->channels; c++)                                                                       \
                target[i + c] = entry[(size_t)table->row[c] * entries + codes[i + c]];                                         \
    }

TABLE(i8, int8_t, uint8_t, 256)
TABLE(i16, int16_t, uint16_t, 65536)

extern const struct anynpu_elementwise_operators LEVELLED(elementwise);
const struct anynpu_elementwise_operators LEVELLED(elementwise) = {
    .binary = {binary_i8, binary_i8, binary_i16},
    .table = {table_i8, table_i8, table_i16},
};
