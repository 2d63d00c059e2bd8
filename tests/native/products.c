/* Multiplies random matrices at every level that the processor has and compares with a product in the order of its definition.
 *
 * Memory is allocated to the byte, so that AddressSanitizer notices what lies outside; results have guard bytes around them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "levels.h"

enum { GUARD = 64, GUARD_BYTE = 0xA5, ALIGNMENT = 64 };

static const size_t SHAPES[][3] = {
    /* m, k, n */
    {1, 1, 1},    {1, 3, 5},     {2, 4, 64},   {3, 5, 63},    {4, 7, 65},    {5, 64, 16},  {6, 33, 17},  {7, 130, 130},
    {13, 37, 15}, {1, 1025, 70}, {8, 2049, 9}, {193, 10, 33}, {200, 51, 12}, {1, 4100, 3}, {12, 2, 129}, {385, 1030, 2},
};

static uint32_t state = 12345;

static uint32_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static void *allocate(size_t size)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, size > 0 ? size : 1) != 0)
        exit(2);
    return memory;
}

/* Codes with the smallest one among them, or float16 values that are small multiples of 2^-10. */
static void fill(int type, void *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (type == ANYNPU_I8)
            ((int8_t *)values)[i] = (int8_t)(next_random() % 4 == 0 ? -128 : (int)(next_random() % 256) - 128);
        else
            ((uint16_t *)values)[i] = (uint16_t)((next_random() & 0x8000) | (0x2c00 + next_random() % 0x1400));
}

/* The values that fill() makes: normal, or zero. */
static float float_of_half(uint16_t half)
{
    float value = (float)(1024 + (half & 0x3ff)) / 1024.0f;
    for (int exponent = half >> 10 & 31; exponent < 15; exponent++)
        value /= 2.0f;
    for (int exponent = half >> 10 & 31; exponent > 15; exponent--)
        value *= 2.0f;
    return half & 0x8000 ? -value : value;
}

static void define(int type, const void *a, const void *b, size_t m, size_t k, size_t n, void *c)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            int32_t codes = 0;
            float values = 0.0f;
            for (size_t step = 0; step < k; step++)
                if (type == ANYNPU_I8)
                    codes += ((const int8_t *)a)[i * k + step] * ((const int8_t *)b)[step * n + j];
                else
                    values = values + float_of_half(((const uint16_t *)a)[i * k + step]) *
                                          float_of_half(((const uint16_t *)b)[step * n + j]);
            if (type == ANYNPU_I8)
                ((int32_t *)c)[i * n + j] = codes;
            else
                ((float *)c)[i * n + j] = values;
        }
}

static int guards_are_intact(const uint8_t *guarded, size_t size)
{
    for (size_t i = 0; i < GUARD; i++)
        if (guarded[i] != GUARD_BYTE || guarded[GUARD + size + i] != GUARD_BYTE)
            return 0;
    return 1;
}

static int passes(int level, int type, const size_t shape[3])
{
    const size_t m = shape[0], k = shape[1], n = shape[2], element = type == ANYNPU_I8 ? 1 : 2, size = 4 * m * n;
    void *a = allocate(m * k * element), *b = allocate(k * n * element), *expected = allocate(size);
    uint8_t *guarded = allocate(size + 2 * GUARD);
    fill(type, a, m * k);
    fill(type, b, k * n);
    define(type, a, b, m, k, n, expected);
    memset(guarded, GUARD_BYTE, size + 2 * GUARD);
    const struct anynpu_matrix matrix = {type, level, k, n};
    const struct anynpu_matrix_source source = {.order = ANYNPU_BY_ROW, .bits = 8 * (int32_t)element, .k = k, .n = n};
    void *scratch = allocate(anynpu_matrix_source_scratch_size(&matrix, m));
    anynpu_matrix_multiply_source(&matrix, &source, b, a, k, m, guarded + GUARD, NULL, scratch);
    const int good = memcmp(guarded + GUARD, expected, size) == 0 && guards_are_intact(guarded, size);
    if (!good)
        printf("%s %zux%zux%zu with %s is wrong\n", type == ANYNPU_I8 ? "int8" : "float16", m, k, n,
               anynpu_matrix_kernel_name(&matrix));
    free(scratch), free(guarded), free(expected), free(b), free(a);
    return good;
}

int main(void)
{
    size_t passed = 0, failed = 0;
    for (int level = 0; level < anynpu_level_count(); level++) {
        if (!anynpu_has_level(level))
            continue;
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
            for (int kind = 0; kind < 2; kind++)
                if (passes(level, kind == 0 ? ANYNPU_I8 : ANYNPU_F16, SHAPES[i]))
                    passed++;
                else
                    failed++;
        const struct anynpu_matrix matrix = {ANYNPU_I8, level, 1, 1};
        printf("%s: %s\n", anynpu_level_name(level), anynpu_matrix_kernel_name(&matrix));
    }
    printf("%zu passed, %zu failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
