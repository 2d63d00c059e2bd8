/* Products of a few rows with AVX512-VNNI, straight from where b's owner keeps it: each byte of b is read once and written nowhere.
 * vpdpbusd multiplies unsigned by signed bytes: a stays signed, the top bit of b is turned on the way into a register. */
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "unroll.h"

#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL

enum { RUN = ANYNPU_FEW_RUN, MAX_COLUMNS = 16, MAX_PAIRS = 16, PARTS = 8, LANES = 16, CHUNK = 64, STEPS = 8, AHEAD = 4 };

/* As assembly, because compilers reorder the intrinsics until the sums no longer fit the registers. */
INLINE void add_run(__m256i *sum, __m256i codes, __m256i row)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(row));
}

INLINE void add_group(__m512i *sum, __m512i codes, __m512i row)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(row));
}

/* The eight parts of each sum, by row and column, become results. */
static __attribute__((noinline)) void finish(const struct anynpu_few_columns *few, const int32_t *parts, size_t rows, size_t columns,
                                             int32_t *c)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++, parts += PARTS) {
            int32_t *target = c + i * few->c_stride + j;
            const __m256i eight = _mm256_loadu_si256((const void *)parts);
            __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
            four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
            four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
            *target = (few->first ? 0 : *target) + few->start[i] + _mm_cvtsi128_si32(four);
        }
}

INLINE void strip(int rows, int columns, const struct anynpu_few_columns *few, const uint8_t *b, int32_t *c)
{
    const __m256i top = _mm256_set1_epi8((char)0x80);
    __m256i sums[4][MAX_COLUMNS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++)
            sums[i][j] = _mm256_setzero_si256();
    const int8_t *a = few->a;
    for (size_t run = 0; run < few->runs; run++) {
        __m256i row[4];
        UNROLL for (int i = 0; i < rows; i++)
            row[i] = _mm256_loadu_si256((const void *)(a + (size_t)i * few->a_stride));
        UNROLL for (int j = 0; j < columns; j++) {
            __m256i codes = _mm256_xor_si256(top, _mm256_loadu_si256((const void *)(b + (size_t)j * few->column_stride)));
            UNROLL for (int i = 0; i < rows; i++)
                add_run(&sums[i][j], codes, row[i]);
        }
        a += RUN;
        b += few->run_stride;
    }
    int32_t parts[4 * MAX_COLUMNS * PARTS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++)
            _mm256_storeu_si256((void *)(parts + (i * columns + j) * PARTS), sums[i][j]);
    finish(few, parts, (size_t)rows, (size_t)columns, c);
}

/* As a strip, of columns that lie side by side: two of them fill a register. fetch: bytes that are worth fetching beforehand, by run. */
INLINE void block(int rows, int pairs, const struct anynpu_few_columns *few, const uint8_t *b, int32_t *c, size_t fetch)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    __m512i sums[4][MAX_PAIRS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < pairs; j++)
            sums[i][j] = _mm512_setzero_si512();
    const int8_t *a = few->a;
    for (size_t run = 0; run < few->runs; run++) {
        __m512i row[4];
        UNROLL for (int i = 0; i < rows; i++)
            row[i] = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(a + (size_t)i * few->a_stride)));
        UNROLL for (int j = 0; j < pairs; j++) {
            __m512i codes = _mm512_xor_si512(top, _mm512_loadu_si512(b + j * 2 * RUN));
            UNROLL for (int i = 0; i < rows; i++)
                add_group(&sums[i][j], codes, row[i]);
        }
        for (size_t line = 0; line < fetch; line += 64)
            _mm_prefetch((const char *)b + AHEAD * few->run_stride + line, _MM_HINT_T0);
        a += RUN;
        b += few->run_stride;
    }
    int32_t parts[4 * MAX_PAIRS * 2 * PARTS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < pairs; j++)
            _mm512_storeu_si512(parts + (i * pairs + j) * 2 * PARTS, sums[i][j]);
    finish(few, parts, (size_t)rows, 2 * (size_t)pairs, c);
}

#define DEFINE_COLUMNS(rows, strip_columns, block_columns)                                                                     \
    static void columns_##rows(const struct anynpu_few_columns *few)                                                           \
    {                                                                                                                          \
        /* What the first strip of a wide block passes over, the next ones find in the cache. */                               \
        size_t j = 0, fetch = few->columns > (block_columns) ? few->columns * RUN : 0;                                         \
        if (few->column_stride == RUN)                                                                                         \
            for (; j + (block_columns) <= few->columns; j += block_columns, fetch = 0)                                         \
                block(rows, (block_columns) / 2, few, few->b + j * RUN, few->c + j, fetch);                                    \
        for (; j < few->columns; j += strip_columns)                                                                           \
            strip(rows, strip_columns, few, few->b + j * few->column_stride, few->c + j);                                      \
    }

DEFINE_COLUMNS(1, 16, 32)
DEFINE_COLUMNS(2, 8, 16)
DEFINE_COLUMNS(3, 8, 16)
DEFINE_COLUMNS(4, 4, 8)

static void by_column(const struct anynpu_few_columns *few)
{
    static void (*const kernels[])(const struct anynpu_few_columns *) = {columns_1, columns_2, columns_3, columns_4};
    kernels[few->rows - 1](few);
}

/* Four registers of which each holds four columns of each row's sixteen, as four that hold sixteen columns; and back. */
INLINE void turn(__m512i v[4])
{
    __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x88), b = _mm512_shuffle_i32x4(v[0], v[1], 0xdd);
    __m512i c = _mm512_shuffle_i32x4(v[2], v[3], 0x88), d = _mm512_shuffle_i32x4(v[2], v[3], 0xdd);
    v[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    v[2] = _mm512_shuffle_i32x4(a, c, 0xdd);
    v[1] = _mm512_shuffle_i32x4(b, d, 0x88);
    v[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

INLINE __mmask16 lanes(size_t columns, int block)
{
    const size_t before = (size_t)block * LANES;
    return columns >= before + LANES ? 0xffff : columns <= before ? 0 : (__mmask16)((1u << (columns - before)) - 1);
}

/* Four rows of 64 codes: in each register four columns of each sixteen, with their codes of all rows side by side. */
INLINE void interleave(const __m512i rows[4], __m512i codes[4])
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    __m512i low[2], high[2];
    UNROLL for (int j = 0; j < 2; j++) {
        low[j] = _mm512_unpacklo_epi8(rows[2 * j], rows[2 * j + 1]);
        high[j] = _mm512_unpackhi_epi8(rows[2 * j], rows[2 * j + 1]);
    }
    codes[0] = _mm512_xor_si512(top, _mm512_unpacklo_epi16(low[0], low[1]));
    codes[1] = _mm512_xor_si512(top, _mm512_unpackhi_epi16(low[0], low[1]));
    codes[2] = _mm512_xor_si512(top, _mm512_unpacklo_epi16(high[0], high[1]));
    codes[3] = _mm512_xor_si512(top, _mm512_unpackhi_epi16(high[0], high[1]));
}

static void pack_rows(const uint8_t *b, size_t b_stride, size_t steps, uint8_t *panel)
{
    for (size_t step = 0; step < steps; step += 4, b += 4 * b_stride, panel += 4 * CHUNK) {
        __m512i rows[4], codes[4];
        UNROLL for (int j = 0; j < 4; j++)
            rows[j] = _mm512_loadu_si512(b + (size_t)j * b_stride);
        interleave(rows, codes);
        turn(codes);
        UNROLL for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(panel + j * CHUNK, codes[j]);
    }
}

/* Up to 64 columns of some rows of b. */
INLINE void chunk(int rows, const struct anynpu_few_rows *few, const uint8_t *b, const int8_t *a, size_t steps, int32_t *c, size_t columns,
                  int first)
{
    const __mmask64 exist = columns >= CHUNK ? ~(__mmask64)0 : ((__mmask64)1 << columns) - 1;
    __m512i sums[4][4];
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < 4; j++)
            sums[i][j] = first ? _mm512_set1_epi32(few->start[i])
                               : _mm512_maskz_loadu_epi32(lanes(columns, j), c + (size_t)i * few->c_stride + j * LANES);
        turn(sums[i]);
    }
    for (size_t step = 0; step < steps; step += 4, b += 4 * few->b_stride) {
        __m512i below[4], codes[4];
        UNROLL for (int j = 0; j < 4; j++)
            below[j] = _mm512_maskz_loadu_epi8(exist, b + (size_t)j * few->b_stride);
        interleave(below, codes);
        UNROLL for (int i = 0; i < rows; i++) {
            int32_t four;
            memcpy(&four, a + (size_t)i * few->a_stride + step, sizeof four);
            const __m512i row = _mm512_set1_epi32(four);
            UNROLL for (int j = 0; j < 4; j++)
                add_group(&sums[i][j], codes[j], row);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        turn(sums[i]);
        UNROLL for (int j = 0; j < 4; j++)
            _mm512_mask_storeu_epi32(c + (size_t)i * few->c_stride + j * LANES, lanes(columns, j), sums[i][j]);
    }
}

/* A few rows of b at a time, from the first to the last column: memory is read along the rows. */
INLINE void all_chunks(int rows, const struct anynpu_few_rows *few)
{
    for (size_t step = 0; step < few->steps; step += STEPS) {
        const size_t steps = few->steps - step < STEPS ? few->steps - step : STEPS;
        for (size_t j = 0; j < few->columns; j += CHUNK)
            chunk(rows, few, few->b + step * few->b_stride + j, few->a + step, steps, few->c + j, few->columns - j,
                  step == 0 && few->first);
    }
}

static void rows_1(const struct anynpu_few_rows *few)
{
    all_chunks(1, few);
}

static void rows_2(const struct anynpu_few_rows *few)
{
    all_chunks(2, few);
}

static void rows_3(const struct anynpu_few_rows *few)
{
    all_chunks(3, few);
}

static void rows_4(const struct anynpu_few_rows *few)
{
    all_chunks(4, few);
}

static void by_row(const struct anynpu_few_rows *few)
{
    static void (*const kernels[])(const struct anynpu_few_rows *) = {rows_1, rows_2, rows_3, rows_4};
    kernels[few->rows - 1](few);
}

const struct anynpu_few_kernels anynpu_few_vnni = {.rows = 4, .max_rows_by_column = 16, .max_rows_by_row = 8, .columns = 16, .words = 0,
                                                   .row_columns = 1024, .steps = 16, .shift = 128, .by_column = by_column, .by_row = by_row,
                                                   .pack_rows = pack_rows};
