/* Depthwise convolution of int8, a vector of channels at a time, for whichever lanes_*.h was included before.
 *
 * The rows that an output row needs lie in a ring of scratch, padding included, so that no border is a special case; where the
 * instruction set adds several products at once, quantized values of ROWS_TOGETHER neighboring rows of the kernel lie interleaved there.
 * A tile is several neighboring pixels of one vector of channels: a column of the input is loaded once for all the pixels whose
 * windows meet it.
 *
 *   sum((x - x_zero) * (w - w_zero)) + bias = sum(x * (w - w_zero)) + (bias - sum(x_zero * (w - w_zero)))
 *
 * Sums may wrap on the way; fits() sees to it that the result lies within 32 bits. */
#ifndef ANYNPU_DEPTHWISE_COMMON_H
#define ANYNPU_DEPTHWISE_COMMON_H

#include <string.h>

#include "kernels.h"
#include "lanes_epilogue.h"
#include "sizes.h"

#define TILE 8 /* pixels */
#define MAX_KERNEL 32
#define HEADER_BYTES 64   /* of packed memory */
#define SLACK (ROWS_TOGETHER > 2 ? 256 : 128) /* bytes after a row of scratch: the last pixels are read and written as whole vectors */
#define BLOCK_BYTES 16384 /* of input that is used by all channels before the next pixels: half of a first-level cache */

#ifndef CODE_SHIFT /* lanes whose factors have 16 bits take all differences, and quantized values as they are */
#define CODE_SHIFT 0
#define SMALLEST_FACTOR (-255)
#define LARGEST_FACTOR 255
#endif

/* Packed, one after the other: the form of the chip's rule, whether sums are clamped for it, and its numbers (lanes_epilogue.h) and the
 * largest exact sums where there is one; bias per channel,
 * factors [vector of channels][rows together][kernel column][lane], the code of the padding per channel, what FIXED_DOUBLE needs. */
struct depthwise {
    const struct anynpu_conv *conv;
    enum fixed_form form;
    int clamps;
    const float *fixed;
    const int32_t *bias;
    const stored_factor *factors;
    const int8_t *padding;
    struct fixed_tables tables;
};

/* A vector of channels of one output row. */
struct strip {
    const int8_t *rows[MAX_KERNEL]; /* of the ring, at the strip's first channel */
    const stored_factor *factors;
    ints bias;
    const struct anynpu_epilogue *epilogue;
    enum fixed_form form;
    int clamps;             /* FIXED_SINGLE: sums may be beyond what it holds */
    const float *fixed;     /* of the strip's first channel */
    size_t fixed_stride;
    const struct fixed_tables *tables;
    const int8_t *residual; /* NULL: none */
    int8_t *y;
    size_t height, kw, stride, dilation; /* height: rows of the ring */
    size_t channels;                     /* from pixel to pixel */
    size_t channel, count;               /* the first of the strip, and how many it has */
};

typedef void strip_function(const struct strip *strip, size_t first_pixel, size_t last_pixel);

static size_t padded_channels(const struct anynpu_conv *conv)
{
    return size_whole(conv->cout, ANYNPU_CHANNEL_PADDING);
}

/* Rows of the ring in a window. */
static size_t ring_height(const struct anynpu_conv *conv)
{
    return (conv->kh + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
}

static size_t fixed_floats(const struct anynpu_conv *conv)
{
    return conv->epilogue.fixed == NULL ? 0 : size_times(FIXED_ARRAYS + 1, padded_channels(conv));
}

static struct depthwise depthwise_of(const struct anynpu_conv *conv, const void *packed)
{
    const size_t channels = padded_channels(conv);
    struct depthwise depthwise = {.conv = conv, .form = (enum fixed_form)*(const int32_t *)packed, .clamps = ((const int32_t *)packed)[1]};
    depthwise.fixed = (const float *)((const int8_t *)packed + HEADER_BYTES);
    depthwise.bias = (const int32_t *)(depthwise.fixed + fixed_floats(conv));
    depthwise.factors = (const stored_factor *)(depthwise.bias + channels);
    depthwise.padding = (const int8_t *)(depthwise.factors + channels * ring_height(conv) * conv->kw);
    depthwise.tables = fixed_tables_at(depthwise.padding + channels, conv->cout);
    return depthwise;
}

static int32_t input_zero(const struct anynpu_conv *conv, size_t channel)
{
    return conv->input_zeros != NULL ? conv->input_zeros[channel] : conv->input_zero;
}

static int32_t weight(const struct anynpu_conv *conv, size_t channel, size_t tap)
{
    return ((const int8_t *)conv->weights)[channel * conv->kh * conv->kw + tap] - conv->weight_zero[channel];
}

/* How far from 0 the channel's sum can be, whatever the input; -1: that leaves 32 bits, or a factor does not fit. */
static int64_t largest_sum(const struct anynpu_conv *conv, size_t channel)
{
    const int64_t zero = input_zero(conv, channel), bias = ((const int32_t *)conv->bias)[channel];
    int64_t largest = bias, smallest = bias;
    if (zero < INT8_MIN || zero > INT8_MAX || conv->weight_zero[channel] < INT8_MIN || conv->weight_zero[channel] > INT8_MAX)
        return -1;
    for (size_t tap = 0; tap < conv->kh * conv->kw; tap++) {
        const int64_t factor = weight(conv, channel, tap);
        if (factor < SMALLEST_FACTOR || factor > LARGEST_FACTOR)
            return -1;
        largest += factor * ((factor > 0 ? INT8_MAX : INT8_MIN) - zero);
        smallest += factor * ((factor > 0 ? INT8_MIN : INT8_MAX) - zero);
    }
    if (largest > INT32_MAX || smallest < INT32_MIN)
        return -1;
    return largest > -smallest ? largest : -smallest;
}

/* The form in which all channels are exact; where one does not fit, FIXED_REFUSED. clamps: sums have to be clamped for it. */
static enum fixed_form form_of(const struct anynpu_conv *conv, int32_t *clamps)
{
    *clamps = 0;
    enum fixed_form form = conv->epilogue.fixed == NULL ? FIXED_NONE : FIXED_SINGLE;
    for (size_t c = 0; c < conv->cout && form != FIXED_REFUSED; c++) {
        const int64_t sum = largest_sum(conv, c);
        const enum fixed_form of_channel = sum < 0                        ? FIXED_REFUSED
                                           : conv->epilogue.fixed == NULL ? FIXED_NONE
                                                                          : fixed_clamped_form(&conv->epilogue, c, (double)sum);
        *clamps |= conv->epilogue.fixed != NULL && fixed_needs_clamp(&conv->epilogue, c, (double)sum);
        form = of_channel > form ? of_channel : form;
    }
    if (form != FIXED_REFUSED && conv->epilogue.fixed != NULL && conv->epilogue.fixed->curves != NULL && !curves_fit(&conv->epilogue, conv->cout))
        return FIXED_REFUSED;
    return form;
}

static int depthwise_fits(const struct anynpu_conv *conv)
{
    if (conv->groups != conv->cin || conv->cin != conv->cout || conv->kh > MAX_KERNEL || conv->kw > MAX_KERNEL ||
        (ROWS_TOGETHER > 2 && conv->kh <= 2) || /* half of the rows together would be missing */
        conv->epilogue.staircases != NULL ||
        (conv->epilogue.fixed == NULL && !epilogue_fits(&conv->epilogue, conv->cout)))
        return 0;
    int32_t clamps;
    return form_of(conv, &clamps) != FIXED_REFUSED;
}

static size_t depthwise_packed_size(const struct anynpu_conv *conv)
{
    const size_t factors = size_times(size_times(ring_height(conv), conv->kw), sizeof(stored_factor));
    const size_t by_channel = size_times(padded_channels(conv), size_plus(factors, sizeof(int32_t) + 1));
    const size_t fixed = size_times(fixed_floats(conv), sizeof(float));
    return size_plus(size_plus(HEADER_BYTES, fixed), size_plus(by_channel, fixed_tables_size(&conv->epilogue, conv->cout)));
}

/* The factor of rows of the kernel that lie together; those beyond the kernel's height are 0. */
static stored_factor packed_factor(const struct anynpu_conv *conv, size_t channel, size_t ring_row, size_t column)
{
    int16_t rows[ROWS_TOGETHER] = {0};
    for (size_t i = 0; i < ROWS_TOGETHER; i++)
        if (ring_row * ROWS_TOGETHER + i < conv->kh)
            rows[i] = (int16_t)weight(conv, channel, (ring_row * ROWS_TOGETHER + i) * conv->kw + column);
    return factor_of_rows(rows);
}

static void depthwise_pack(const struct anynpu_conv *conv, const void *weights, void *packed)
{
    (void)weights; /* they lie among the constants */
    const size_t taps = ring_height(conv) * conv->kw;
    float *fixed = (float *)((int8_t *)packed + HEADER_BYTES);
    int32_t *bias = (int32_t *)(fixed + fixed_floats(conv));
    stored_factor *stored = (stored_factor *)(bias + padded_channels(conv));
    int8_t *padding = (int8_t *)(stored + padded_channels(conv) * taps);
    memset(packed, 0, depthwise_packed_size(conv));
    *(int32_t *)packed = (int32_t)form_of(conv, (int32_t *)packed + 1);
    if (conv->epilogue.fixed != NULL)
        fixed_fill(&conv->epilogue, 0, conv->cout, fixed, padded_channels(conv));
    for (size_t c = 0; conv->epilogue.fixed != NULL && c < conv->cout; c++)
        fixed[FIXED_ARRAYS * padded_channels(conv) + c] = (float)fixed_exact_sum(&conv->epilogue, c);
    fixed_tables_pack(&conv->epilogue, conv->cout, padding + padded_channels(conv));
    for (size_t c = 0; c < conv->cout; c++) {
        int64_t sum = 0;
        for (size_t tap = 0; tap < conv->kh * conv->kw; tap++)
            sum += weight(conv, c, tap);
        for (size_t tap = 0; tap < taps; tap++)
            stored[(c / LANES * taps + tap) * LANES + c % LANES] = packed_factor(conv, c, tap / conv->kw, tap % conv->kw);
        /* modulo 2^32, as the sums */
        bias[c] = (int32_t)(uint32_t)(((const int32_t *)conv->bias)[c] - sum * (input_zero(conv, c) + CODE_SHIFT));
        padding[c] = (int8_t)input_zero(conv, c);
    }
}

/* The ring: rows of the padded input, counted from its first row of padding. Row r holds the input's rows r, r + dilation ...
 * together. Before it in scratch lies a row of padding. */
struct ring {
    const struct depthwise *depthwise;
    const int8_t *padding;
    int8_t *rows;
    size_t row_bytes, slots;
    size_t step; /* between rows that any window needs */
    size_t next; /* the first row that was not yet filled */
};

/* Input columns, padding included, that an output row needs. */
static size_t padded_columns(const struct anynpu_conv *conv)
{
    return size_reach(conv->ow, conv->sw, conv->kw, conv->dw);
}

static size_t padding_bytes(const struct anynpu_conv *conv)
{
    const size_t columns = padded_columns(conv);
    return size_plus(size_times(columns > conv->w ? columns : conv->w, conv->cin), SLACK);
}

static size_t common_divisor(size_t a, size_t b)
{
    while (b != 0) {
        const size_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Without scratch: its sizes alone. */
static struct ring ring_of(const struct depthwise *depthwise, void *scratch)
{
    const struct anynpu_conv *conv = depthwise->conv;
    struct ring ring = {.depthwise = depthwise, .padding = scratch};
    ring.rows = scratch == NULL ? NULL : (int8_t *)scratch + padding_bytes(conv);
    const size_t rows = size_times(ROWS_TOGETHER, conv->dh); /* from a row of the ring to the next one of a window */
    ring.row_bytes = size_plus(size_times(ROWS_TOGETHER, size_times(padded_columns(conv), conv->cin)), SLACK);
    ring.step = common_divisor(conv->sh, rows);
    ring.slots = size_plus(size_times(ring_height(conv) - 1, rows / ring.step), 1);
    return ring;
}

static size_t depthwise_scratch_size(const struct anynpu_conv *conv)
{
    const struct depthwise depthwise = {.conv = conv};
    const struct ring ring = ring_of(&depthwise, NULL);
    return size_plus(padding_bytes(conv), size_times(ring.slots, ring.row_bytes));
}

static void fill_padding(const struct depthwise *depthwise, int8_t *target)
{
    const struct anynpu_conv *conv = depthwise->conv;
    const size_t size = padding_bytes(conv) - SLACK;
    if (conv->input_zeros == NULL)
        memset(target, conv->input_zero, size);
    else
        for (size_t i = 0; i < size; i += conv->cin)
            memcpy(target + i, depthwise->padding, conv->cin);
}

static int8_t *ring_row(const struct ring *ring, size_t row)
{
    return ring->rows + row / ring->step % ring->slots * ring->row_bytes;
}

/* One row: padding to the left, rows of the image (or padding above and below it), padding to the right. */
static void fill_row(const struct ring *ring, const int8_t *image, size_t row)
{
    const struct anynpu_conv *conv = ring->depthwise->conv;
    const size_t columns = padded_columns(conv), pixel = conv->cin;
    const size_t left = conv->left < columns ? conv->left : columns;
    const size_t middle = conv->w < columns - left ? conv->w : columns - left;
    const int8_t *sources[ROWS_TOGETHER], *padding[ROWS_TOGETHER];
    int8_t *target = ring_row(ring, row);
    for (size_t i = 0; i < ROWS_TOGETHER; i++) {
        const size_t source = row + i * conv->dh; /* still counted from the first row of padding */
        const int inside = source >= conv->top && source - conv->top < conv->h;
        sources[i] = inside ? image + (source - conv->top) * conv->w * pixel : ring->padding;
        padding[i] = ring->padding;
    }
    /* from left to right: each writes whole vectors, over the beginning of the next */
    interleave_rows(target, padding, left * pixel);
    interleave_rows(target + ROWS_TOGETHER * left * pixel, sources, middle * pixel);
    interleave_rows(target + ROWS_TOGETHER * (left + middle) * pixel, padding, (columns - left - middle) * pixel);
}

/* The epilogue of a strip but for its table; a local copy of what it needs, which no store to the output can change. */
struct sink {
    enum fixed_form form;
    int clamps;
    ints most;                /* of a sum, where that is clamped */
    struct finish finish;     /* rounding mode ``simulator`` */
    struct fixed_lanes fixed; /* FIXED_SINGLE */
    floats multiplier, residual_multiplier;
    ints residual_zero;
    const int8_t *residual;
    int8_t *y;
    size_t channels, count;
};

INLINE struct sink sink_of(const struct strip *strip)
{
    const struct anynpu_epilogue *e = strip->epilogue;
    struct sink sink = {.form = strip->form,
                        .clamps = strip->clamps,
                        .most = ints_set(0),
                        .residual_multiplier = floats_set(0.0f),
                        .residual_zero = ints_set(0),
                        .residual = strip->residual,
                        .y = strip->y,
                        .channels = strip->channels,
                        .count = strip->count};
    if (sink.form == FIXED_NONE) {
        sink.finish = finish_load(e, strip->channel);
        sink.multiplier = floats_load(e->multiplier + strip->channel);
    } else {
        sink.fixed = fixed_lanes_load(strip->fixed, strip->fixed_stride);
        sink.most = ints_round(floats_load(strip->fixed + FIXED_ARRAYS * strip->fixed_stride));
    }
    if (sink.residual != NULL) {
        const struct anynpu_fixed_point *fixed = e->fixed;
        sink.residual_multiplier =
            fixed == NULL ? floats_load(e->residual_multiplier + strip->channel)
                          : floats_set((float)fixed_factor(fixed->residual_multiplier, fixed->residual_shift));
        sink.residual_zero = ints_load(e->residual_zero + strip->channel);
    }
    return sink;
}

INLINE floats residual_differences(const struct sink *sink, size_t at)
{
    return floats_from_ints(ints_sub(ints_from_codes(sink->residual + at), sink->residual_zero));
}

INLINE void sink_store(const struct sink *sink, ints sum, size_t pixel)
{
    const size_t at = pixel * sink->channels;
    floats f = floats_mul(floats_from_ints(sum), sink->multiplier);
    if (sink->residual != NULL)
        f = floats_add(f, floats_mul(residual_differences(sink, at), sink->residual_multiplier));
    codes_store(sink->y + at, finish_codes(&sink->finish, f), sink->count);
}

INLINE void sink_store_fixed(const struct sink *sink, ints sum, size_t pixel)
{
    const size_t at = pixel * sink->channels;
    if (sink->clamps)
        sum = ints_min(ints_max(sum, ints_sub(ints_set(0), sink->most)), sink->most);
    floats t = fixed_stage(floats_from_ints(sum), sink->fixed.first);
    if (sink->residual != NULL)
        t = floats_add(t, fixed_stage(residual_differences(sink, at), sink->residual_multiplier));
    codes_store(sink->y + at, fixed_finish(&sink->fixed, t), sink->count);
}

/* FIXED_CURVE and FIXED_DOUBLE, for neighboring pixels. All places of a curve are known before the first is looked at: a number is not read
 * back while it is on its way to memory. The strip, not the sink: that stays in registers as long as nobody has its address. */
static __attribute__((noinline)) void store_apart(const struct strip *strip, const ints *sums, size_t pixels, size_t first)
{
    const size_t count = strip->count < LANES ? strip->count : LANES, step = strip->channels;
    const int is_curve = strip->form == FIXED_CURVE && strip->residual == NULL;
    const int8_t *entries = strip->tables->curves.entries;
    int8_t *y = strip->y + first * step;
    int32_t numbers[TILE][LANES];
    for (size_t i = 0; i < pixels; i++)
        ints_store(numbers[i], is_curve ? curve_places(strip->tables, strip->channel, sums[i]) : sums[i]);
    for (size_t i = 0; i < pixels; i++, y += step)
        if (is_curve)
            curve_look_up(entries, (const uint32_t *)numbers[i], count, y);
        else
            fixed_codes(strip->form, strip->epilogue, strip->tables, strip->channel, count, numbers[i],
                        strip->residual == NULL ? NULL : strip->residual + (first + i) * step, y);
}

/* Neighboring pixels; kw, stride and pixels are constants of the caller, so that the sums and a row of factors are registers. */
INLINE void tile(const struct strip *strip, const struct sink *sink, const int kw, const int stride, const int pixels,
                 size_t first)
{
    const size_t step = ROWS_TOGETHER * sink->channels;
    ints sums[TILE];
    UNROLLED
    for (int i = 0; i < pixels; i++)
        sums[i] = strip->bias;
    const stored_factor *factor = strip->factors;
    for (size_t r = 0; r < strip->height; r++, factor += kw * LANES) {
        const int8_t *column = strip->rows[r] + first * (size_t)stride * step;
        factors row[7];
        UNROLLED
        for (int t = 0; t < kw; t++)
            row[t] = factors_load(factor + t * LANES);
        UNROLLED
        for (int c = 0; c < (pixels - 1) * stride + kw; c++, column += step) {
            const factors x = factors_from_codes(column);
            UNROLLED
            for (int i = 0; i < pixels; i++)
                if (c >= i * stride && c < i * stride + kw)
                    sums[i] = ints_multiply_add(sums[i], x, row[c - i * stride]);
        }
    }
    if (sink->form == FIXED_SINGLE) {
        UNROLLED
        for (int i = 0; i < pixels; i++)
            sink_store_fixed(sink, sums[i], first + (size_t)i);
    } else if (sink->form == FIXED_NONE) {
        UNROLLED
        for (int i = 0; i < pixels; i++)
            sink_store(sink, sums[i], first + (size_t)i);
    } else {
        ints copies[TILE];
        UNROLLED
        for (int i = 0; i < pixels; i++)
            copies[i] = sums[i];
        store_apart(strip, copies, (size_t)pixels, first);
    }
}

/* Not inlined and not cloned: gcc then keeps the sums in registers. */
#if defined(__clang__)
#define ALONE __attribute__((noinline))
#else
#define ALONE __attribute__((noinline, noclone))
#endif

/* The last pixels of a row are a whole tile, too, which computes some pixels again; but not where a residual may lie in the same memory as
 * the output. */
#define DEFINE_STRIP(name, kw, stride)                                                                                         \
    ALONE static void name(const struct strip *strip, size_t first, size_t last)                                               \
    {                                                                                                                          \
        const struct sink sink = sink_of(strip);                                                                               \
        const size_t most = sink.residual == NULL ? last - first : 0; /* that an overlapping tile may have */                  \
        while (first < last) {                                                                                                 \
            const size_t rest = last - first;                                                                                  \
            if (rest >= TILE || (rest > TILE / 2 && most >= TILE)) {                                                           \
                first = rest >= TILE ? first : last - TILE;                                                                    \
                tile(strip, &sink, kw, stride, TILE, first);                                                                   \
                first += TILE;                                                                                                 \
            } else if (rest >= TILE / 2 || most >= TILE / 2) {                                                                 \
                first = rest >= TILE / 2 ? first : last - TILE / 2;                                                            \
                tile(strip, &sink, kw, stride, TILE / 2, first);                                                               \
                first += TILE / 2;                                                                                             \
            } else {                                                                                                           \
                tile(strip, &sink, kw, stride, 1, first);                                                                      \
                first++;                                                                                                       \
            }                                                                                                                  \
        }                                                                                                                      \
    }

DEFINE_STRIP(strip_3_1, 3, 1)
DEFINE_STRIP(strip_3_2, 3, 2)
DEFINE_STRIP(strip_5_1, 5, 1)
DEFINE_STRIP(strip_5_2, 5, 2)
DEFINE_STRIP(strip_7_1, 7, 1)

/* Any kernel, stride and dilation, pixel by pixel. */
ALONE static void strip_any(const struct strip *strip, size_t first, size_t last)
{
    const struct sink sink = sink_of(strip);
    const size_t pixel = ROWS_TOGETHER * sink.channels, step = strip->dilation * pixel;
    for (; first < last; first++) {
        const stored_factor *factor = strip->factors;
        ints even = strip->bias, odd = ints_set(0); /* two chains of sums: one would wait for itself */
        for (size_t r = 0; r < strip->height; r++) {
            const int8_t *column = strip->rows[r] + first * strip->stride * pixel;
            size_t t = 0;
            for (; t + 2 <= strip->kw; t += 2, factor += 2 * LANES) {
                even = ints_multiply_add(even, factors_from_codes(column + t * step), factors_load(factor));
                odd = ints_multiply_add(odd, factors_from_codes(column + (t + 1) * step), factors_load(factor + LANES));
            }
            for (; t < strip->kw; t++, factor += LANES)
                even = ints_multiply_add(even, factors_from_codes(column + t * step), factors_load(factor));
        }
        const ints sum = ints_add(even, odd);
        if (sink.form == FIXED_SINGLE)
            sink_store_fixed(&sink, sum, first);
        else if (sink.form == FIXED_NONE)
            sink_store(&sink, sum, first);
        else
            store_apart(strip, &sum, 1, first);
    }
}

static strip_function *strip_for(const struct anynpu_conv *conv)
{
    if (conv->dw != 1)
        return strip_any;
    if (conv->kw == 3 && conv->sw <= 2)
        return conv->sw == 1 ? strip_3_1 : strip_3_2;
    if (conv->kw == 5 && conv->sw <= 2)
        return conv->sw == 1 ? strip_5_1 : strip_5_2;
    return conv->kw == 7 && conv->sw == 1 ? strip_7_1 : strip_any;
}

static size_t pixels_at_once(const struct anynpu_conv *conv)
{
    const size_t pixels = BLOCK_BYTES / (conv->kh * conv->sw * conv->cin) / TILE * TILE;
    return pixels < TILE ? TILE : pixels;
}

static void output_row(const struct depthwise *depthwise, const int8_t *const *rows, const int8_t *residual, int8_t *y)
{
    const struct anynpu_conv *conv = depthwise->conv;
    strip_function *run = strip_for(conv);
    const size_t pixels = pixels_at_once(conv), height = ring_height(conv);
    struct strip strip = {.epilogue = &conv->epilogue, .form = depthwise->form, .clamps = depthwise->clamps, .tables = &depthwise->tables, .fixed_stride = padded_channels(conv),
                          .height = height, .kw = conv->kw, .stride = conv->sw, .dilation = conv->dw, .channels = conv->cout};
    for (size_t first = 0; first < conv->ow; first += pixels) {
        const size_t last = conv->ow - first < pixels ? conv->ow : first + pixels;
        for (size_t c = 0; c < conv->cout; c += LANES) {
            for (size_t r = 0; r < height; r++)
                strip.rows[r] = rows[r] + ROWS_TOGETHER * c;
            strip.factors = depthwise->factors + c * height * conv->kw;
            strip.bias = ints_load(depthwise->bias + c);
            strip.fixed = depthwise->fixed + c;
            strip.residual = residual == NULL ? NULL : residual + c;
            strip.y = y + c;
            strip.channel = c;
            strip.count = conv->cout - c;
            run(&strip, first, last);
        }
    }
    if (conv->epilogue.table != NULL)
        translate_channels(conv->epilogue.table, conv->epilogue.row, y, conv->cout, y, conv->cout, conv->cout, conv->ow);
}

static void depthwise_run(const struct anynpu_conv *conv, const void *packed, const int8_t *x, const int8_t *residual, int8_t *y,
                          void *scratch, size_t first_row, size_t last_row)
{
    const struct depthwise depthwise = depthwise_of(conv, packed);
    struct ring ring = ring_of(&depthwise, scratch);
    const size_t height = ring_height(conv), y_row = conv->ow * conv->cout;
    const int8_t *rows[MAX_KERNEL];
    if (!fixed_has_residual(&conv->epilogue))
        residual = NULL;
    fill_padding(&depthwise, scratch);
    for (size_t row = first_row; row < last_row; row++) {
        const size_t begin = row % conv->oh * conv->sh, last = begin + (height - 1) * ROWS_TOGETHER * conv->dh;
        const int8_t *image = x + row / conv->oh * conv->h * conv->w * conv->cin;
        if (row == first_row || row % conv->oh == 0 || ring.next < begin)
            ring.next = begin;
        for (; ring.next <= last; ring.next += ring.step)
            fill_row(&ring, image, ring.next);
        for (size_t r = 0; r < height; r++)
            rows[r] = ring_row(&ring, begin + r * ROWS_TOGETHER * conv->dh);
        output_row(&depthwise, rows, residual == NULL ? NULL : residual + row * y_row, y + row * y_row);
    }
}

#define DEPTHWISE_KERNEL(kernel_name)                                                                                          \
    {                                                                                                                          \
        .name = kernel_name, .fits = depthwise_fits, .packed_size = depthwise_packed_size, .pack = depthwise_pack,             \
        .scratch_size = depthwise_scratch_size, .run = depthwise_run                                                           \
    }

#endif
