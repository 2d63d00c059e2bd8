/* Transposition of matrices of 1, 2, 4 and 8 byte elements. Compiled once for each level.
 *
 * Square tiles are turned in vector registers; the last tile of a side that does not divide evenly overlaps the one before it and
 * writes some elements twice. What is thinner than a tile is left to plain loops. */
#include <string.h>

#include "levels.h"

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(vector, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(vector, a, b, ...) __builtin_shuffle(a, b, (vector){__VA_ARGS__})
#endif

#define LOW_U8(a, b) SHUFFLE(u8x16, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_U8(a, b) SHUFFLE(u8x16, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_U16(a, b) SHUFFLE(u16x8, a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_U16(a, b) SHUFFLE(u16x8, a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_U32(a, b) SHUFFLE(u32x4, a, b, 0, 4, 1, 5)
#define HIGH_U32(a, b) SHUFFLE(u32x4, a, b, 2, 6, 3, 7)
#define LOW_U64(a, b) SHUFFLE(u64x2, a, b, 0, 2)
#define HIGH_U64(a, b) SHUFFLE(u64x2, a, b, 1, 3)

/* Interleaving row i with row i + half, log2(rows) times, is a transposition. */
#define INTERLEAVE(LOW, HIGH, count, from, to)                                                                                 \
    for (int i = 0; i < (count) / 2; i++) {                                                                                    \
        to[2 * i] = LOW(from[i], from[i + (count) / 2]);                                                                       \
        to[2 * i + 1] = HIGH(from[i], from[i + (count) / 2]);                                                                  \
    }

static inline void tile_u8_16x16(const uint8_t *source, size_t source_stride, uint8_t *target, size_t target_stride)
{
    u8x16 a[16], b[16];
    for (int i = 0; i < 16; i++)
        memcpy(&a[i], source + i * source_stride, 16);
    INTERLEAVE(LOW_U8, HIGH_U8, 16, a, b)
    INTERLEAVE(LOW_U8, HIGH_U8, 16, b, a)
    INTERLEAVE(LOW_U8, HIGH_U8, 16, a, b)
    INTERLEAVE(LOW_U8, HIGH_U8, 16, b, a)
    for (int i = 0; i < 16; i++)
        memcpy(target + i * target_stride, &a[i], 16);
}

/* Eight rows of 16 columns become 16 rows of 8: how a block of eight channels is packed. */
static inline void tile_u8_8x16(const uint8_t *source, size_t source_stride, uint8_t *target, size_t target_stride)
{
    u8x16 a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], source + i * source_stride, 16);
    INTERLEAVE(LOW_U8, HIGH_U8, 8, a, b)
    INTERLEAVE(LOW_U8, HIGH_U8, 8, b, a)
    INTERLEAVE(LOW_U8, HIGH_U8, 8, a, b)
    for (int i = 0; i < 8; i++) {
        memcpy(target + 2 * i * target_stride, &b[i], 8);
        memcpy(target + (2 * i + 1) * target_stride, (const uint8_t *)&b[i] + 8, 8);
    }
}

/* 16 rows of eight columns become eight rows of 16: how it is unpacked. */
static inline void tile_u8_16x8(const uint8_t *source, size_t source_stride, uint8_t *target, size_t target_stride)
{
    u8x16 rows[16], a[8], b[8];
    for (int i = 0; i < 16; i++) {
        uint64_t row;
        memcpy(&row, source + i * source_stride, 8);
        rows[i] = (u8x16)(u64x2){row, 0};
    }
    for (int i = 0; i < 8; i++)
        a[i] = LOW_U8(rows[i], rows[i + 8]);
    INTERLEAVE(LOW_U8, HIGH_U8, 8, a, b)
    INTERLEAVE(LOW_U8, HIGH_U8, 8, b, a)
    INTERLEAVE(LOW_U8, HIGH_U8, 8, a, b)
    for (int i = 0; i < 8; i++)
        memcpy(target + i * target_stride, &b[i], 16);
}

static inline void tile_u16_8x8(const uint16_t *source, size_t source_stride, uint16_t *target, size_t target_stride)
{
    u16x8 a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], source + i * source_stride, 16);
    INTERLEAVE(LOW_U16, HIGH_U16, 8, a, b)
    INTERLEAVE(LOW_U16, HIGH_U16, 8, b, a)
    INTERLEAVE(LOW_U16, HIGH_U16, 8, a, b)
    for (int i = 0; i < 8; i++)
        memcpy(target + i * target_stride, &b[i], 16);
}

static inline void tile_u32_4x4(const uint32_t *source, size_t source_stride, uint32_t *target, size_t target_stride)
{
    u32x4 a[4], b[4];
    for (int i = 0; i < 4; i++)
        memcpy(&a[i], source + i * source_stride, 16);
    INTERLEAVE(LOW_U32, HIGH_U32, 4, a, b)
    INTERLEAVE(LOW_U32, HIGH_U32, 4, b, a)
    for (int i = 0; i < 4; i++)
        memcpy(target + i * target_stride, &a[i], 16);
}

static inline void tile_u64_2x2(const uint64_t *source, size_t source_stride, uint64_t *target, size_t target_stride)
{
    u64x2 a, b;
    memcpy(&a, source, 16);
    memcpy(&b, source + source_stride, 16);
    u64x2 low = LOW_U64(a, b), high = HIGH_U64(a, b);
    memcpy(target, &low, 16);
    memcpy(target + target_stride, &high, 16);
}

/* Interleaving and separating two to four channels, with the whole of the interleaved side contiguous: the compiler's vectoriser knows
 * these patterns. */
#define THIN(type, name)                                                                                                       \
    static void name##_join2(const type *restrict s, size_t stride, type *restrict t, size_t n)                                \
    {                                                                                                                          \
        const type *restrict s1 = s + stride;                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                         \
            t[2 * i] = s[i], t[2 * i + 1] = s1[i];                                                                             \
    }                                                                                                                          \
    static void name##_join3(const type *restrict s, size_t stride, type *restrict t, size_t n)                                \
    {                                                                                                                          \
        const type *restrict s1 = s + stride, *restrict s2 = s1 + stride;                                                      \
        for (size_t i = 0; i < n; i++)                                                                                         \
            t[3 * i] = s[i], t[3 * i + 1] = s1[i], t[3 * i + 2] = s2[i];                                                       \
    }                                                                                                                          \
    static void name##_join4(const type *restrict s, size_t stride, type *restrict t, size_t n)                                \
    {                                                                                                                          \
        const type *restrict s1 = s + stride, *restrict s2 = s1 + stride, *restrict s3 = s2 + stride;                          \
        for (size_t i = 0; i < n; i++)                                                                                         \
            t[4 * i] = s[i], t[4 * i + 1] = s1[i], t[4 * i + 2] = s2[i], t[4 * i + 3] = s3[i];                                 \
    }                                                                                                                          \
    static void name##_split2(const type *restrict s, type *restrict t, size_t stride, size_t n)                               \
    {                                                                                                                          \
        type *restrict t1 = t + stride;                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                                         \
            t[i] = s[2 * i], t1[i] = s[2 * i + 1];                                                                             \
    }                                                                                                                          \
    static void name##_split3(const type *restrict s, type *restrict t, size_t stride, size_t n)                               \
    {                                                                                                                          \
        type *restrict t1 = t + stride, *restrict t2 = t1 + stride;                                                            \
        for (size_t i = 0; i < n; i++)                                                                                         \
            t[i] = s[3 * i], t1[i] = s[3 * i + 1], t2[i] = s[3 * i + 2];                                                       \
    }                                                                                                                          \
    static void name##_split4(const type *restrict s, type *restrict t, size_t stride, size_t n)                               \
    {                                                                                                                          \
        type *restrict t1 = t + stride, *restrict t2 = t1 + stride, *restrict t3 = t2 + stride;                                \
        for (size_t i = 0; i < n; i++)                                                                                         \
            t[i] = s[4 * i], t1[i] = s[4 * i + 1], t2[i] = s[4 * i + 2], t3[i] = s[4 * i + 3];                                 \
    }                                                                                                                          \
    static int name##_thin(const type *s, size_t s_stride, type *t, size_t t_stride, size_t rows, size_t columns)              \
    {                                                                                                                          \
        if (rows == 1 && t_stride == 1) {                                                                                      \
            memcpy(t, s, columns * sizeof(type));                                                                              \
        } else if (columns == 1 && s_stride == 1) {                                                                            \
            memcpy(t, s, rows * sizeof(type));                                                                                 \
        } else if (t_stride == rows && rows == 2) {                                                                            \
            name##_join2(s, s_stride, t, columns);                                                                             \
        } else if (t_stride == rows && rows == 3) {                                                                            \
            name##_join3(s, s_stride, t, columns);                                                                             \
        } else if (t_stride == rows && rows == 4) {                                                                            \
            name##_join4(s, s_stride, t, columns);                                                                             \
        } else if (s_stride == columns && columns == 2) {                                                                      \
            name##_split2(s, t, t_stride, rows);                                                                               \
        } else if (s_stride == columns && columns == 3) {                                                                      \
            name##_split3(s, t, t_stride, rows);                                                                               \
        } else if (s_stride == columns && columns == 4) {                                                                      \
            name##_split4(s, t, t_stride, rows);                                                                               \
        } else {                                                                                                               \
            return 0;                                                                                                          \
        }                                                                                                                      \
        return 1;                                                                                                              \
    }                                                                                                                          \
    /* the longer side innermost */                                                                                            \
    static void name##_loop(const type *restrict s, size_t s_stride, type *restrict t, size_t t_stride, size_t rows,           \
                            size_t columns)                                                                                    \
    {                                                                                                                          \
        if (columns > rows)                                                                                                    \
            for (size_t row = 0; row < rows; row++)                                                                            \
                for (size_t column = 0; column < columns; column++)                                                            \
                    t[column * t_stride + row] = s[row * s_stride + column];                                                   \
        else                                                                                                                   \
            for (size_t column = 0; column < columns; column++)                                                                \
                for (size_t row = 0; row < rows; row++)                                                                        \
                    t[column * t_stride + row] = s[row * s_stride + column];                                                   \
    }

THIN(uint8_t, u8)
THIN(uint16_t, u16)
THIN(uint32_t, u32)
THIN(uint64_t, u64)

/* Tiles of height x width over the whole matrix, the last of each side moved back to fit. */
#define TILED(tile, height, width)                                                                                             \
    for (size_t row = 0; row < rows; row += height) {                                                                          \
        size_t r = row + height <= rows ? row : rows - height;                                                                 \
        for (size_t column = 0; column < columns; column += width) {                                                           \
            size_t c = column + width <= columns ? column : columns - width;                                                   \
            tile(s + r * source_stride + c, source_stride, t + c * target_stride + r, target_stride);                          \
        }                                                                                                                      \
    }

static void transpose_u8(const void *source, size_t source_stride, void *target, size_t target_stride, size_t rows, size_t columns)
{
    const uint8_t *s = source;
    uint8_t *t = target;
    if (u8_thin(s, source_stride, t, target_stride, rows, columns))
        return;
    if (rows >= 16 && columns >= 16) {
        TILED(tile_u8_16x16, 16, 16)
    } else if (rows >= 8 && columns >= 16) {
        TILED(tile_u8_8x16, 8, 16)
    } else if (rows >= 16 && columns >= 8) {
        TILED(tile_u8_16x8, 16, 8)
    } else {
        u8_loop(s, source_stride, t, target_stride, rows, columns);
    }
}

static void transpose_u16(const void *source, size_t source_stride, void *target, size_t target_stride, size_t rows, size_t columns)
{
    const uint16_t *s = source;
    uint16_t *t = target;
    if (u16_thin(s, source_stride, t, target_stride, rows, columns))
        return;
    if (rows >= 8 && columns >= 8) {
        TILED(tile_u16_8x8, 8, 8)
    } else {
        u16_loop(s, source_stride, t, target_stride, rows, columns);
    }
}

static void transpose_u32(const void *source, size_t source_stride, void *target, size_t target_stride, size_t rows, size_t columns)
{
    const uint32_t *s = source;
    uint32_t *t = target;
    if (u32_thin(s, source_stride, t, target_stride, rows, columns))
        return;
    if (rows >= 4 && columns >= 4) {
        TILED(tile_u32_4x4, 4, 4)
    } else {
        u32_loop(s, source_stride, t, target_stride, rows, columns);
    }
}

static void transpose_u64(const void *source, size_t source_stride, void *target, size_t target_stride, size_t rows, size_t columns)
{
    const uint64_t *s = source;
    uint64_t *t = target;
    if (u64_thin(s, source_stride, t, target_stride, rows, columns))
        return;
    if (rows >= 2 && columns >= 2) {
        TILED(tile_u64_2x2, 2, 2)
    } else {
        u64_loop(s, source_stride, t, target_stride, rows, columns);
    }
}

extern const struct anynpu_transpose_kernels LEVELLED(transpose);
const struct anynpu_transpose_kernels LEVELLED(transpose) = {{transpose_u8, transpose_u16, transpose_u32, transpose_u64}};
