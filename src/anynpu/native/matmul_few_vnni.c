/* Products of a few rows with AVX512-VNNI, straight from where b's owner keeps it: each byte of b is read once and written nowhere.
 * vpdpbusd multiplies unsigned by signed bytes: a stays signed, the top bit of b is turned on the way into a register.
 *
 * What comes next is fetched into the second cache: processors do not do it across a page, and columns or rows of b are often a page apart,
 * so that few of them fit the first cache together. */
#include <immintrin.h>
#include <string.h>

#include "kernels.h"
#include "unroll.h"

#define INLINE CONV_INLINE
#define UNROLL CONV_UNROLL

enum {
    RUN = ANYNPU_FEW_RUN,
    MAX_ROWS = 6, /* of a call */
    MAX_COLUMNS = 16,
    MAX_PAIRS = 16, /* of columns */
    MAX_SUMS = 48,
    PARTS = 8,
    LANES = 16,
    CHUNK = 64, /* columns of rows without gaps: a line of the cache */
    STEPS = 64, /* of a chunk before the next columns: rows are often a page apart, and of so many pages the processor knows the places */
    AHEAD = 3 * CHUNK, /* columns */
    BLOCKS_AHEAD = 4096, /* bytes of blocks that lie without gaps */
    MAX_DIRECT = 5 /* rows whose sums leave registers for putting b in order */
};

/* As assembly, because compilers reorder the intrinsics until the sums no longer fit the registers. */
INLINE void add_run(__m256i *sum, __m256i codes, __m256i row)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(row));
}

INLINE void add_group(__m512i *sum, __m512i codes, __m512i row)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(row));
}

/* The eight parts of each sum, by row and column, become results: eight sums at a time. There are parts, of any value, up to a whole
 * eight of sums. */
static __attribute__((noinline)) void finish(const struct anynpu_few_columns *few, const int32_t *parts, size_t rows, size_t columns,
                                             int32_t *c)
{
    int32_t sums[MAX_SUMS];
    for (size_t i = 0; i < rows * columns; i += 8, parts += 8 * PARTS) {
        __m512i pairs[4], halves[2];
        UNROLL for (int j = 0; j < 4; j++)
            pairs[j] = _mm512_loadu_si512(parts + j * 2 * PARTS);
        UNROLL for (int j = 0; j < 2; j++)
            halves[j] = _mm512_add_epi32(_mm512_unpacklo_epi32(pairs[2 * j], pairs[2 * j + 1]),
                                         _mm512_unpackhi_epi32(pairs[2 * j], pairs[2 * j + 1]));
        const __m512i quarters = _mm512_add_epi32(_mm512_unpacklo_epi64(halves[0], halves[1]), _mm512_unpackhi_epi64(halves[0], halves[1]));
        const __m256i even = _mm512_castsi512_si256(quarters), odd = _mm512_extracti64x4_epi64(quarters, 1);
        const __m128i evens = _mm_add_epi32(_mm256_castsi256_si128(even), _mm256_extracti128_si256(even, 1));
        const __m128i odds = _mm_add_epi32(_mm256_castsi256_si128(odd), _mm256_extracti128_si256(odd, 1));
        _mm_storeu_si128((void *)(sums + i), _mm_unpacklo_epi32(evens, odds));
        _mm_storeu_si128((void *)(sums + i + 4), _mm_unpackhi_epi32(evens, odds));
    }
    for (size_t i = 0; i < rows; i++, c += few->c_stride)
        for (size_t j = 0; j < columns; j += 4) {
            __m128i four = _mm_add_epi32(_mm_set1_epi32(few->start[i]), _mm_loadu_si128((const void *)(sums + i * columns + j)));
            if (!few->first)
                four = _mm_add_epi32(four, _mm_loadu_si128((const void *)(c + j)));
            _mm_storeu_si128((void *)(c + j), four);
        }
}

INLINE void strip(int rows, int columns, const struct anynpu_few_columns *few, const uint8_t *b, int32_t *c)
{
    const __m256i top = _mm256_set1_epi8((char)0x80);
    __m256i sums[MAX_ROWS][MAX_COLUMNS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++)
            sums[i][j] = _mm256_setzero_si256();
    const int8_t *a = few->a;
    for (size_t run = 0; run < few->runs; run++) {
        __m256i row[MAX_ROWS];
        UNROLL for (int i = 0; i < rows; i++)
            row[i] = _mm256_loadu_si256((const void *)(a + (size_t)i * few->a_stride));
        UNROLL for (int j = 0; j < columns; j++) {
            __m256i codes = _mm256_xor_si256(top, _mm256_loadu_si256((const void *)(b + (size_t)j * few->column_stride)));
            UNROLL for (int i = 0; i < rows; i++)
                add_run(&sums[i][j], codes, row[i]);
            _mm_prefetch((const char *)b + (size_t)(j + columns) * few->column_stride, _MM_HINT_T1);
        }
        a += RUN;
        b += few->run_stride;
    }
    int32_t parts[MAX_SUMS * PARTS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++)
            _mm256_storeu_si256((void *)(parts + (i * columns + j) * PARTS), sums[i][j]);
    finish(few, parts, (size_t)rows, (size_t)columns, c);
}

/* As a strip, of columns that lie side by side: two of them fill a register. */
INLINE void block(int rows, int pairs, const struct anynpu_few_columns *few, const uint8_t *b, int32_t *c)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    __m512i sums[MAX_ROWS][MAX_PAIRS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < pairs; j++)
            sums[i][j] = _mm512_setzero_si512();
    const int8_t *a = few->a;
    for (size_t run = 0; run < few->runs; run++) {
        __m512i row[MAX_ROWS];
        UNROLL for (int i = 0; i < rows; i++)
            row[i] = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(a + (size_t)i * few->a_stride)));
        UNROLL for (int j = 0; j < pairs; j++) {
            __m512i codes = _mm512_xor_si512(top, _mm512_loadu_si512(b + j * 2 * RUN));
            UNROLL for (int i = 0; i < rows; i++)
                add_group(&sums[i][j], codes, row[i]);
            _mm_prefetch((const char *)b + few->ahead + j * 2 * RUN, _MM_HINT_T1);
        }
        a += RUN;
        b += few->run_stride;
    }
    int32_t parts[MAX_SUMS * PARTS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < pairs; j++)
            _mm512_storeu_si512(parts + (i * pairs + j) * 2 * PARTS, sums[i][j]);
    finish(few, parts, (size_t)rows, 2 * (size_t)pairs, c);
}

#define DEFINE_COLUMNS(rows, strip_columns, block_columns)                                                                     \
    static void columns_##rows(const struct anynpu_few_columns *few)                                                           \
    {                                                                                                                          \
        size_t j = 0;                                                                                                          \
        if (few->column_stride == RUN)                                                                                         \
            for (; j + (block_columns) <= few->columns; j += block_columns)                                                    \
                block(rows, (block_columns) / 2, few, few->b + j * RUN, few->c + j);                                           \
        for (; j < few->columns; j += strip_columns)                                                                           \
            strip(rows, strip_columns, few, few->b + j * few->column_stride, few->c + j);                                      \
    }

DEFINE_COLUMNS(1, 16, 32)
DEFINE_COLUMNS(2, 8, 16)
DEFINE_COLUMNS(3, 8, 16)
DEFINE_COLUMNS(4, 4, 8)
DEFINE_COLUMNS(5, 4, 8)
DEFINE_COLUMNS(6, 4, 8)

static void by_column(const struct anynpu_few_columns *few)
{
    static void (*const kernels[])(const struct anynpu_few_columns *) = {columns_1, columns_2, columns_3, columns_4, columns_5, columns_6};
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

/* Four rows of 64 quantized values: in each register four columns of each sixteen, with their quantized values of all rows side by side. */
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
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (size_t step = 0; step < steps; step += 4, b += 4 * b_stride, panel += 4 * CHUNK) {
        __m512i rows[4], codes[4];
        UNROLL for (int j = 0; j < 4; j++)
            rows[j] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(b + (size_t)j * b_stride));
        UNROLL for (int j = 0; j < 4; j++)
            _mm_prefetch((const char *)b + (size_t)j * b_stride + CHUNK, _MM_HINT_T1);
        interleave(rows, codes);
        UNROLL for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(panel + j * CHUNK, codes[j]);
    }
}

/* Sixteen columns of up to 16 groups: a transposition of the groups. */
INLINE void pack_groups(const uint8_t *b, size_t b_stride, size_t groups, uint8_t *panel)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    const __mmask16 exist = groups >= LANES ? 0xffff : (__mmask16)((1u << groups) - 1);
    __m512i v[LANES], w[LANES];
    UNROLL for (int i = 0; i < LANES; i++) {
        v[i] = _mm512_xor_si512(top, _mm512_maskz_loadu_epi32(exist, b + (size_t)i * b_stride));
        _mm_prefetch((const char *)b + (size_t)(i + LANES) * b_stride, _MM_HINT_T1);
    }
    UNROLL for (int i = 0; i < LANES; i += 2) {
        w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
        UNROLL for (int j = 0; j < 2; j++) { /* group 2 * j or the one after it, of every fourth group */
            v[i + 2 * j] = _mm512_unpacklo_epi64(w[i + j], w[i + j + 2]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(w[i + j], w[i + j + 2]);
        }
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i lines[4] = {v[j], v[j + 4], v[j + 8], v[j + 12]};
        turn(lines);
        UNROLL for (int i = 0; i < 4; i++)
            if ((size_t)(4 * i + j) < groups)
                _mm512_storeu_si512(panel + (4 * i + j) * 4 * CHUNK, lines[i]);
    }
}

/* Sixteen columns of eight groups, as blocks have them. */
INLINE void pack_eight_groups(const uint8_t *b, size_t b_stride, uint8_t *panel)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    const __m512i near = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), far = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    __m512i v[8], w[8];
    UNROLL for (int i = 0; i < 8; i++) { /* columns i and i + 8 */
        const __m256i low = _mm256_loadu_si256((const void *)(b + (size_t)i * b_stride));
        const __m256i high = _mm256_loadu_si256((const void *)(b + (size_t)(i + 8) * b_stride));
        v[i] = _mm512_xor_si512(top, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        _mm_prefetch((const char *)b + BLOCKS_AHEAD + i * CHUNK, _MM_HINT_T1);
    }
    UNROLL for (int i = 0; i < 8; i += 2) {
        w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
        UNROLL for (int j = 0; j < 2; j++) { /* groups 2 * j and 2 * j + 1, and those four after them, of four columns and of other four */
            v[i + 2 * j] = _mm512_unpacklo_epi64(w[i + j], w[i + j + 2]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(w[i + j], w[i + j + 2]);
        }
    UNROLL for (int j = 0; j < 4; j++) {
        _mm512_storeu_si512(panel + j * 4 * CHUNK, _mm512_permutex2var_epi64(v[j], near, v[j + 4]));
        _mm512_storeu_si512(panel + (j + 4) * 4 * CHUNK, _mm512_permutex2var_epi64(v[j], far, v[j + 4]));
    }
}

static void pack_columns(const uint8_t *b, size_t b_stride, size_t columns, size_t steps, uint8_t *panel)
{
    for (size_t column = 0; column < columns; column += LANES, b += LANES * b_stride)
        if (steps == 4 * 8)
            pack_eight_groups(b, b_stride, panel + 4 * column);
        else
            for (size_t step = 0; step < steps; step += 4 * LANES)
                pack_groups(b + step, b_stride, (steps - step) / 4, panel + step * CHUNK + 4 * column);
}

/* A part of the steps of one chunk: 64 columns. Sums lie as [row][64], each 64 of them as quantized values of interleave do. */
struct chunk {
    size_t groups; /* of four steps */
    const uint8_t *b, *next; /* what is read now and what comes then */
    size_t b_stride;
    __mmask64 exist;
    uint8_t *panel; /* takes what the first rows have put in order, for all others */
    int first;
};

INLINE void begin(int rows, const struct chunk *chunk, const int32_t *start, const int32_t *from, __m512i sums[][4])
{
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < 4; j++)
            sums[i][j] = chunk->first ? _mm512_set1_epi32(start[i]) : _mm512_loadu_si512(from + i * CHUNK + j * LANES);
}

INLINE void add_step(int rows, const uint8_t *a, const __m512i codes[4], __m512i sums[][4])
{
    UNROLL for (int i = 0; i < rows; i++) {
        int32_t four;
        memcpy(&four, a + 4 * i, sizeof four);
        const __m512i row = _mm512_set1_epi32(four);
        UNROLL for (int j = 0; j < 4; j++)
            add_group(&sums[i][j], codes[j], row);
    }
}

INLINE void end(int rows, __m512i sums[][4], int32_t *to)
{
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(to + i * CHUNK + j * LANES, sums[i][j]);
}

/* The first rows: while they multiply what is in order the next is on its way. */
INLINE void direct(int rows, const struct chunk *chunk, const uint8_t *a, const int32_t *start, int32_t *c)
{
    const uint8_t *b = chunk->b, *next = chunk->next;
    const size_t stride = chunk->b_stride;
    uint8_t *panel = chunk->panel;
    __m512i sums[MAX_DIRECT][4];
    begin(rows, chunk, start, c, sums);
    for (size_t group = 0; group < chunk->groups; group++) {
        __m512i below[4], codes[4];
        UNROLL for (int j = 0; j < 4; j++)
            below[j] = _mm512_maskz_loadu_epi8(chunk->exist, b + (size_t)j * stride);
        UNROLL for (int j = 0; j < 4; j++)
            _mm_prefetch((const char *)next + (size_t)j * stride, _MM_HINT_T1);
        interleave(below, codes);
        UNROLL for (int j = 0; j < 4; j++)
            _mm512_storeu_si512(panel + j * CHUNK, codes[j]);
        add_step(rows, a, codes, sums);
        a += 4 * rows;
        b += 4 * stride;
        next += 4 * stride;
        panel += 4 * CHUNK;
    }
    end(rows, sums, c);
}

/* All other rows. */
INLINE void indirect(int rows, const struct chunk *chunk, const uint8_t *a, const int32_t *start, int32_t *c)
{
    const uint8_t *panel = chunk->panel;
    __m512i sums[MAX_ROWS][4];
    begin(rows, chunk, start, c, sums);
    for (size_t group = 0; group < chunk->groups; group++, a += 4 * rows, panel += 4 * CHUNK) {
        __m512i codes[4];
        UNROLL for (int j = 0; j < 4; j++)
            codes[j] = _mm512_loadu_si512(panel + j * CHUNK);
        add_step(rows, a, codes, sums);
    }
    end(rows, sums, c);
}

#define DEFINE_CHUNK(name, rows)                                                                                               \
    CONV_ROW_FUNCTION name##_##rows(const struct chunk *chunk, const uint8_t *a, const int32_t *start, int32_t *c)              \
    {                                                                                                                          \
        name(rows, chunk, a, start, c);                                                                                        \
    }

DEFINE_CHUNK(direct, 1)
DEFINE_CHUNK(direct, 2)
DEFINE_CHUNK(direct, 3)
DEFINE_CHUNK(direct, 4)
DEFINE_CHUNK(direct, 5)
DEFINE_CHUNK(indirect, 3)
DEFINE_CHUNK(indirect, 4)
DEFINE_CHUNK(indirect, 5)
DEFINE_CHUNK(indirect, 6)

typedef void rows_of_chunk(const struct chunk *chunk, const uint8_t *a, const int32_t *start, int32_t *c);

static rows_of_chunk *const direct_rows[] = {direct_1, direct_2, direct_3, direct_4, direct_5}; /* by rows - 1 */
static rows_of_chunk *const indirect_rows[] = {indirect_3, indirect_4, indirect_5, indirect_6}; /* by rows - 3: see share_rows */

/* How many rows each tile has; gives how many tiles. The first is direct. */
static size_t share_rows(size_t rows, size_t tiles[])
{
    const size_t others = rows <= MAX_DIRECT ? 0 : (rows - MAX_DIRECT + MAX_ROWS - 1) / MAX_ROWS;
    tiles[0] = rows / (others + 1);
    for (size_t tile = 1; tile <= others; tile++)
        tiles[tile] = (rows - tiles[0]) / others + (tile - 1 < (rows - tiles[0]) % others);
    return others + 1;
}

/* Four quantized values of each of a tile's rows, side by side. */
static void pack_a(const int8_t *a, size_t stride, size_t rows, size_t steps, uint8_t *packed)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t step = 0; step < steps; step += 4)
            memcpy(packed + step * rows + 4 * i, a + i * stride + step, 4);
}

static void put_in_order(const struct anynpu_few_rows *few, const int32_t *sums)
{
    for (size_t column = 0; column < few->columns; column += CHUNK)
        for (size_t i = 0; i < few->rows; i++, sums += CHUNK) {
            __m512i ordered[4];
            UNROLL for (int j = 0; j < 4; j++)
                ordered[j] = _mm512_loadu_si512(sums + j * LANES);
            turn(ordered);
            UNROLL for (int j = 0; j < 4; j++)
                _mm512_mask_storeu_epi32(few->c + i * few->c_stride + column + j * LANES, lanes(few->columns - column, j), ordered[j]);
        }
}

/* A few rows of b at a time, from the first to the last column: memory is read along the rows. */
static void by_row(const struct anynpu_few_rows *few)
{
    uint8_t a[ANYNPU_FEW_BY_ROW * STEPS] __attribute__((aligned(64))), panel[CHUNK * STEPS] __attribute__((aligned(64)));
    size_t tiles[1 + ANYNPU_FEW_BY_ROW / MAX_ROWS];
    const size_t count = share_rows(few->rows, tiles), ahead = AHEAD < few->columns ? AHEAD : few->columns;
    for (size_t step = 0; step < few->steps; step += STEPS) {
        const size_t steps = few->steps - step < STEPS ? few->steps - step : STEPS;
        for (size_t tile = 0, row = 0; tile < count; row += tiles[tile++])
            pack_a(few->a + row * few->a_stride + step, few->a_stride, tiles[tile], steps, a + row * steps);
        const uint8_t *b = few->b + step * few->b_stride;
        const size_t after = steps * few->b_stride;
        for (size_t column = 0; column < few->columns; column += CHUNK) {
            const size_t columns = few->columns - column;
            const struct chunk chunk = {.groups = steps / 4,
                                        .b = b + column,
                                        .next = b + (columns > ahead ? column + ahead : after + column + ahead - few->columns),
                                        .b_stride = few->b_stride,
                                        .exist = columns >= CHUNK ? ~(__mmask64)0 : ((__mmask64)1 << columns) - 1,
                                        .panel = panel,
                                        .first = step == 0};
            int32_t *sums = few->sums + column * few->rows;
            direct_rows[tiles[0] - 1](&chunk, a, few->start, sums);
            for (size_t tile = 1, row = tiles[0]; tile < count; row += tiles[tile++])
                indirect_rows[tiles[tile] - 3](&chunk, a + row * steps, few->start + row, sums + row * CHUNK);
        }
    }
    put_in_order(few, few->sums);
}

const struct anynpu_few_kernels anynpu_few_vnni = {.rows = MAX_ROWS, .max_rows_by_column = 16, .max_rows_by_row = ANYNPU_FEW_BY_ROW,
                                                   .columns = 16, .words = 0, .shift = 128,
                                                   .by_column = by_column, .by_row = by_row, .pack_rows = pack_rows, .pack_columns = pack_columns};
