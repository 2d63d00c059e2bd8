/* Products of a few rows with AVX2, straight from where b's owner keeps it: each byte of b comes from memory once. Quantized values become 16 bits on
 * their way into a register and vpmaddwd adds two exact products; vpmaddubsw, which saturates, is never used. The other factor is a memory
 * operand that was made ready beforehand, so that two instructions do sixteen products. */
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "unroll.h"

#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL

enum { RUN = ANYNPU_FEW_RUN, ROWS = 6, PAIR = 2, HALF = 16, WIDTH = 16 };

/* As assembly, because compilers reorder the intrinsics until the sums no longer fit the 16 registers. */
INLINE void add_products(__m256i *sum, __m256i codes, const __m256i *row)
{
    __m256i products;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(*sum), "=&x"(products) : "m"(*row), "x"(codes));
}

INLINE __m256i widen(const uint8_t *from)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
}

/* ---------------------------------------------------------------- columns that are runs along k */

/* The sums of two rows' and two columns' eight parts. */
INLINE __m128i four_sums(const __m256i first[PAIR], const __m256i second[PAIR])
{
    const __m256i parts = _mm256_hadd_epi32(_mm256_hadd_epi32(first[0], first[1]), _mm256_hadd_epi32(second[0], second[1]));
    return _mm_add_epi32(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
}

INLINE void put_two(int32_t *c, __m128i sums, int32_t start, int first)
{
    sums = _mm_add_epi32(sums, _mm_set1_epi32(start));
    if (!first)
        sums = _mm_add_epi32(sums, _mm_loadl_epi64((const __m128i *)(const void *)c));
    _mm_storel_epi64((__m128i *)(void *)c, sums);
}

INLINE void two_columns(int rows, const struct anynpu_few_columns *few, const uint8_t *b, int32_t *c)
{
    __m256i sums[ROWS + 1][PAIR]; /* one more than there are, for four_sums */
    UNROLL for (int i = 0; i <= ROWS; i++)
        UNROLL for (int j = 0; j < PAIR; j++)
            sums[i][j] = _mm256_setzero_si256();
    const int16_t *a = few->words;
    for (size_t run = 0; run < few->runs; run++) {
        UNROLL for (int half = 0; half < RUN; half += HALF) {
            __m256i codes[PAIR];
            UNROLL for (int j = 0; j < PAIR; j++)
                codes[j] = widen(b + (size_t)j * few->column_stride + half);
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int j = 0; j < PAIR; j++)
                    add_products(&sums[i][j], codes[j], (const __m256i *)(const void *)(a + i * RUN + half));
        }
        UNROLL for (int j = 0; j < PAIR; j++)
            _mm_prefetch((const char *)b + few->ahead + (size_t)j * few->column_stride, _MM_HINT_T0);
        a += rows * RUN;
        b += few->run_stride;
    }
    UNROLL for (int i = 0; i < rows; i += PAIR) {
        const __m128i four = four_sums(sums[i], sums[i + 1]);
        put_two(c + (size_t)i * few->c_stride, four, few->start[i], few->first);
        if (i + 1 < rows)
            put_two(c + (size_t)(i + 1) * few->c_stride, _mm_unpackhi_epi64(four, four), few->start[i + 1], few->first);
    }
}

#define DEFINE_COLUMNS(rows)                                                                                                   \
    CONV_ROW_FUNCTION columns_##rows(const struct anynpu_few_columns *few)                                                     \
    {                                                                                                                          \
        const struct anynpu_few_columns own = *few; /* a copy that no store to the result can change */                        \
        for (size_t j = 0; j < own.columns; j += PAIR)                                                                         \
            two_columns(rows, &own, own.b + j * own.column_stride, own.c + j);                                                 \
    }

DEFINE_COLUMNS(1)
DEFINE_COLUMNS(2)
DEFINE_COLUMNS(3)
DEFINE_COLUMNS(4)
DEFINE_COLUMNS(5)
DEFINE_COLUMNS(6)

static void by_column(const struct anynpu_few_columns *few)
{
    static void (*const kernels[])(const struct anynpu_few_columns *) = {columns_1, columns_2, columns_3, columns_4, columns_5, columns_6};
    kernels[few->rows - 1](few);
}

/* ---------------------------------------------------------------- rows without gaps */

/* Two rows of b side by side, by sixteen columns. All of a line of the cache is taken at once: rows often lie so far apart that they share
 * the places of a cache, and a line would be gone before the next sixteen columns were due. */
static void pack_rows(const uint8_t *b, size_t b_stride, size_t steps, uint8_t *panels)
{
    for (size_t step = 0; step < steps; step += 2, b += 2 * b_stride)
        UNROLL for (size_t panel = 0; panel < ANYNPU_LINE_CODES / WIDTH; panel++) {
            const __m128i upper = _mm_loadu_si128((const __m128i *)(const void *)(b + panel * WIDTH));
            const __m128i lower = _mm_loadu_si128((const __m128i *)(const void *)(b + b_stride + panel * WIDTH));
            if (panel < 2)
                _mm_prefetch((const char *)b + panel * b_stride + ANYNPU_LINE_CODES, _MM_HINT_T1);
            uint8_t *packed = panels + (panel * steps + step) * WIDTH;
            _mm_storeu_si128((__m128i *)(void *)packed, _mm_unpacklo_epi8(upper, lower));
            _mm_storeu_si128((__m128i *)(void *)(packed + WIDTH), _mm_unpackhi_epi8(upper, lower));
        }
}

const struct anynpu_few_kernels anynpu_few_avx2 = {.rows = ROWS, .max_rows_by_column = 16, .columns = 2, .words = 4096, .takes_words = 1,
                                                   .by_column = by_column, .pack_rows = pack_rows};
