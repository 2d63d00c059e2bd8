/* What the fast convolutions share: how a convolution is cut into lines, how weights are packed, how the input is padded on
 * the way.
 *
 * With channels last, the input under one kernel row is one run of kw * cin neighboring elements; a convolution is a few
 * runs for each output pixel, and no matrix of patches is ever built. (Dilation and groups break a row into kw runs of a
 * pixel's channels each.) Where there is padding, input rows pass through a ring of padded rows that stays in the cache; a
 * border is then like any other place.
 *
 * An instruction set describes itself in a struct conv_target; conv_run() below calls its compute() for one line of output
 * pixels and one tile of output channels at a time. */
#ifndef ANYNPU_CONV_COMMON_H
#define ANYNPU_CONV_COMMON_H

#include <stdlib.h>
#include <string.h>

#include "channel_tables.h"
#include "conv_fits.h"
#include "kernels.h"
#include "sizes.h"
#include "unroll.h"

#define CONV_ALIGNMENT 64
#define CONV_SMALLEST_TILE 8       /* channels; every tile is a multiple of it */
#define CONV_OVERREAD 64           /* bytes that compute() and sum_runs() may read after a row */
#define CONV_CACHED_WEIGHTS 262144 /* weights larger than this are used for a band of rows before the next tile's displace them */
#define CONV_CACHED_BAND 131072    /* bytes of padded rows in such a band */

/* Constants per output channel, those of a tile's first channel first. Padded channels are all 0. */
struct conv_channels {
    const int32_t *bias;        /* with the input's zero point in it */
    const int32_t *weight_zero; /* of the weights as they are packed */
    const int32_t *zero_point;
    const int32_t *residual_zero;
    const float *multiplier;
    const float *high; /* clamp before the zero point is added; the chip's rule: of a sum, fixed_exact_sum */
    const float *slope;
    const float *residual_multiplier;
    const float *factor; /* the chip's rule: of the second stage; multiplier is that of the first */
    const float *offset; /* the chip's rule: FIXED_MAGIC with the zero point */
    const int8_t *low_codes; /* clamp after the zero point is added */
    const int8_t *high_codes;
};

#define CONV_CHANNEL_BYTES 42 /* of all arrays, for one channel */
#define CONV_HEADER_BYTES 64  /* of packed memory, before them: struct conv_header */

/* One line of output pixels for one tile of output channels. */
struct conv_line {
    const void *const *runs; /* of the first pixel */
    size_t run_count;
    size_t steps; /* of a run: its elements in units of the target's granule, rounded up */
    ptrdiff_t pixel_stride; /* bytes from a pixel's run to the next one's */
    size_t pixels;
    const int32_t *sums; /* of the elements under each pixel, where the target wants them */
    int is_scaled; /* the sums are multiplied by the zero point of the weights, which is that of all channels */
    const void *weights; /* [run][step] of the tile */
    struct conv_channels channels;
    size_t valid;         /* channels of the tile that exist */
    ptrdiff_t out_stride; /* from an output pixel to the next */
    int has_slope;
    int clamps; /* FIXED_SINGLE: sums may be beyond channels.high */
    enum fixed_form form;
    const struct anynpu_epilogue *epilogue;
    struct fixed_tables tables; /* FIXED_DOUBLE */
    size_t channel; /* of the output, the tile's first */
    const int8_t *residual; /* NULL: none */
    int8_t *y;
};

/* Computes several tiles of a fixed number of pixels, one after the other. */
typedef void conv_row_function(const struct conv_line *line, size_t first, size_t tiles);

/* Runs under a line of pixels of one input row, for sums of their elements. */
struct conv_runs {
    const int8_t *first;
    size_t taps, tap_stride; /* runs under a pixel, and bytes between them */
    size_t length;
    size_t pixel_stride, pixels;
};

enum conv_weight_form {
    CONV_WEIGHTS_UNSIGNED, /* uint8: code + 128 */
    CONV_WEIGHTS_SIGNED,   /* int8: code */
    CONV_WEIGHTS_CENTRED   /* int16: code - zero point; needs no sums of the input */
};

struct conv_target {
    enum conv_weight_form form;
    size_t element_size; /* of an activation in the ring, and of a packed weight */
    size_t granule;      /* elements of a run in one step */
    size_t interleave;   /* neighboring elements of a channel in a packed step: [granule / interleave][tile][interleave] */
    size_t line_pixels;  /* of a pointwise convolution at a time: what it reads and writes stays in the cache */
    /* of the next tile where so many channels (a multiple of 8) are left, in lines of so many pixels */
    size_t (*tile_width)(size_t channels, size_t pixels);
    void (*copy)(void *to, const int8_t *from, size_t count);
    void (*sum_runs)(const struct conv_runs *runs, int32_t *sums); /* NULL: sums are not needed */
    void (*compute)(const struct conv_line *line, size_t width);
    /* in place: count bytes of every stride */
    translate_in_place *look_up;
};

struct conv_plan {
    int pointwise; /* output pixel i sees input pixel i alone: no ring, no rows */
    size_t group_cin, group_cout, group_padded;
    size_t taps, run_count, run_length, steps;
    size_t pixel_bytes; /* of the input as compute() sees it */
    size_t padded_width; /* pixels of a padded row that have an output */
    size_t row_bytes, ring_rows;
    size_t band; /* output rows for which a tile's weights are used in one go */
    size_t line_pixels;
    size_t sum_stride;
    size_t tile_weight_bytes; /* for each channel of a tile */
    /* offsets in the scratch; the runs are at 0 */
    size_t ring, row_sums, sums, scratch_size;
};

static inline size_t conv_smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Cuts a line into tiles of nearly the same number of pixels: a small rest would use each weight too few times. rows: by
 * pixels - 1. */
static inline void conv_cut_line(const struct conv_line *line, conv_row_function *const *rows, size_t most_pixels)
{
    size_t tiles = (line->pixels + most_pixels - 1) / most_pixels;
    size_t pixels = line->pixels / tiles, larger = line->pixels % tiles;
    if (larger)
        rows[pixels](line, 0, larger);
    rows[pixels - 1](line, larger * (pixels + 1), tiles - larger);
}

static inline int conv_is_pointwise(const struct anynpu_conv *conv)
{
    int one_tap = conv->kh == 1 && conv->kw == 1 && conv->sh == 1 && conv->sw == 1;
    return one_tap && conv->top == 0 && conv->left == 0 && conv->oh == conv->h && conv->ow == conv->w;
}

static inline size_t conv_weight_bytes(const struct anynpu_conv *conv, const struct conv_plan *plan)
{
    return size_times(plan->tile_weight_bytes, size_times(plan->group_padded, conv->groups));
}

static inline struct conv_plan conv_plan(const struct anynpu_conv *conv, const struct conv_target *target)
{
    struct conv_plan plan = {0};
    plan.pointwise = conv_is_pointwise(conv);
    plan.group_cin = conv->cin / conv->groups;
    plan.group_cout = conv->cout / conv->groups;
    plan.group_padded = size_whole(plan.group_cout, CONV_SMALLEST_TILE);
    plan.taps = conv->dw == 1 && conv->groups == 1 ? 1 : conv->kw;
    plan.run_count = size_times(conv->kh, plan.taps);
    plan.run_length = plan.taps == 1 && conv->groups == 1 ? size_times(conv->kw, plan.group_cin) : plan.group_cin;
    plan.steps = size_whole(plan.run_length, target->granule) / target->granule;
    plan.pixel_bytes = size_times(conv->cin, target->element_size);
    plan.tile_weight_bytes = size_times(plan.run_count, size_times(plan.steps, target->granule * target->element_size));

    if (plan.pointwise) {
        plan.band = 1;
        plan.line_pixels = target->line_pixels;
        plan.row_bytes =
            target->element_size == 1 ? 0 : size_plus(size_times(target->line_pixels, plan.pixel_bytes), CONV_OVERREAD);
        plan.ring_rows = 1;
    } else {
        size_t window = size_reach(1, 1, conv->kh, conv->dh);
        plan.padded_width = size_reach(conv->ow, conv->sw, conv->kw, conv->dw);
        plan.row_bytes = size_whole(size_plus(size_times(plan.padded_width, plan.pixel_bytes), CONV_OVERREAD), CONV_ALIGNMENT);
        plan.band = 1;
        size_t weight_bytes = conv_weight_bytes(conv, &plan);
        size_t cached_rows = CONV_CACHED_BAND / plan.row_bytes;
        if (weight_bytes > CONV_CACHED_WEIGHTS && cached_rows > window)
            plan.band = conv_smaller(conv->oh, (cached_rows - window) / conv->sh + 1);
        plan.ring_rows = size_plus(size_times(plan.band - 1, conv->sh), window);
        plan.line_pixels = conv->ow;
    }
    plan.sum_stride = target->sum_runs ? size_whole(plan.line_pixels, CONV_ALIGNMENT / sizeof(int32_t)) : 0;
    size_t row_sums_size = size_times(size_times(conv->groups, plan.sum_stride), sizeof(int32_t));
    plan.ring = size_whole(size_times(plan.run_count, sizeof(void *)), CONV_ALIGNMENT);
    plan.row_sums = size_plus(plan.ring, size_whole(size_times(plan.ring_rows, plan.row_bytes), CONV_ALIGNMENT));
    plan.sums = size_plus(plan.row_sums, plan.pointwise ? 0 : size_times(plan.ring_rows, row_sums_size));
    plan.scratch_size = size_plus(plan.sums, size_times(plan.band, row_sums_size));
    return plan;
}

/* Packed: a header, the arrays of conv_channels one after the other, each for all channels of all groups padded to tiles, then
 * what FIXED_DOUBLE needs. The weights lie apart: layers that have the same ones share them. */
struct conv_header {
    int32_t form; /* enum fixed_form */
    int32_t clamps; /* sums may be beyond what the form holds */
    int32_t scale; /* the zero point of all packed weights; 0 where they differ, or no sums are wanted */
    const void *weights;
};
_Static_assert(sizeof(struct conv_header) <= CONV_HEADER_BYTES, "the header has its place");

static inline size_t conv_channel_count(const struct anynpu_conv *conv, const struct conv_plan *plan)
{
    /* A kernel may load whole vectors of constants for the narrow tile at the end. */
    return size_plus(size_whole(size_times(plan->group_padded, conv->groups), CONV_ALIGNMENT), CONV_ALIGNMENT);
}

/* The count is a multiple of the alignment: so are the weights' addresses. */
static inline size_t conv_constants_size(const struct anynpu_conv *conv, const struct conv_plan *plan)
{
    return size_plus(CONV_HEADER_BYTES, size_times(CONV_CHANNEL_BYTES, conv_channel_count(conv, plan)));
}

/* Where the numbers and tables of FIXED_DOUBLE begin: after the constants. */
static inline size_t conv_tables_at(const struct anynpu_conv *conv, const struct conv_plan *plan)
{
    return size_whole(conv_constants_size(conv, plan), CONV_ALIGNMENT);
}

static inline size_t conv_packed_weights_size(const struct anynpu_conv *conv, const struct conv_target *target)
{
    struct conv_plan plan = conv_plan(conv, target);
    return conv_weight_bytes(conv, &plan);
}

static inline size_t conv_packed_size(const struct anynpu_conv *conv, const struct conv_target *target)
{
    struct conv_plan plan = conv_plan(conv, target);
    return size_plus(conv_tables_at(conv, &plan), fixed_tables_size(&conv->epilogue, conv->cout));
}

static inline struct conv_channels conv_channels_at(const void *packed, size_t count, size_t channel)
{
    const uint8_t *arrays = (const uint8_t *)packed + CONV_HEADER_BYTES;
    const int32_t *integers = (const int32_t *)(const void *)arrays + channel;
    const float *floats = (const float *)(const void *)arrays + channel;
    return (struct conv_channels){
        .bias = integers,
        .weight_zero = integers + count,
        .zero_point = integers + 2 * count,
        .residual_zero = integers + 3 * count,
        .multiplier = floats + 4 * count,
        .high = floats + 5 * count,
        .slope = floats + 6 * count,
        .residual_multiplier = floats + 7 * count,
        .factor = floats + 8 * count,
        .offset = floats + 9 * count,
        .low_codes = (const int8_t *)arrays + 40 * count + channel,
        .high_codes = (const int8_t *)arrays + 41 * count + channel,
    };
}

/* bias - sum(input_zero * (w - weight_zero)), so that the kernels multiply quantized values as they are. Modulo 2^32, like the
 * accumulators. */
static inline int32_t conv_packed_bias(const struct anynpu_conv *conv, size_t oc, size_t group_cin, size_t first_input)
{
    const int8_t *weights = (const int8_t *)conv->weights + oc * conv->kh * conv->kw * group_cin;
    uint32_t bias = (uint32_t)((const int32_t *)conv->bias)[oc];
    for (size_t tap = 0; tap < conv->kh * conv->kw; tap++)
        for (size_t c = 0; c < group_cin; c++)
            bias -= (uint32_t)(conv_input_zero(conv, first_input + c) * (weights[tap * group_cin + c] - conv->weight_zero[oc]));
    return (int32_t)bias;
}

/* What rounding mode ``simulator`` and the chip's have each for themselves. */
static inline void conv_pack_rule(const struct anynpu_epilogue *epilogue, size_t oc, float *floats, size_t count)
{
    const struct anynpu_fixed_point *fixed = epilogue->fixed;
    if (fixed != NULL) {
        floats[4 * count] = (float)fixed_channel_factor(fixed, oc);
        floats[5 * count] = (float)fixed_exact_sum(epilogue, oc);
        floats[7 * count] = (float)fixed_factor(fixed->residual_multiplier, fixed->residual_shift);
        floats[8 * count] = (float)fixed_output_factor(fixed, oc);
        floats[9 * count] = FIXED_MAGIC + (float)epilogue->zero_point[oc];
        return;
    }
    floats[4 * count] = epilogue->multiplier[oc];
    floats[5 * count] = (float)(epilogue->high[oc] - epilogue->zero_point[oc]);
    floats[6 * count] = epilogue->slope ? epilogue->slope[oc] : 1.0f;
    floats[7 * count] = epilogue->residual_multiplier ? epilogue->residual_multiplier[oc] : 0.0f;
}

static inline void conv_pack_channels(const struct anynpu_conv *conv, const struct conv_target *target,
                                      const struct conv_plan *plan, void *packed)
{
    const struct anynpu_epilogue *epilogue = &conv->epilogue;
    int32_t shift = target->form == CONV_WEIGHTS_UNSIGNED ? 128 : 0;
    size_t count = conv_channel_count(conv, plan);
    uint8_t *arrays = (uint8_t *)packed + CONV_HEADER_BYTES;
    memset(packed, 0, conv_constants_size(conv, plan));
    for (size_t oc = 0; oc < conv->cout; oc++) {
        size_t group = oc / plan->group_cout, at = group * plan->group_padded + oc % plan->group_cout;
        int32_t *integers = (int32_t *)(void *)arrays + at;
        integers[0] = conv_packed_bias(conv, oc, plan->group_cin, group * plan->group_cin);
        integers[count] = conv->weight_zero[oc] + shift;
        integers[2 * count] = epilogue->zero_point[oc];
        integers[3 * count] = fixed_has_residual(epilogue) ? epilogue->residual_zero[oc] : 0;
        conv_pack_rule(epilogue, oc, (float *)(void *)arrays + at, count);
        arrays[40 * count + at] = (uint8_t)fixed_low_code(epilogue, oc);
        arrays[41 * count + at] = (uint8_t)fixed_high_code(epilogue, oc);
    }
}

/* Elements past the end of a run, and channels past the last, have the weight 0 in the packed form: what is read there does
 * not count. */
static inline void conv_put_weight(const struct anynpu_conv *conv, enum conv_weight_form form, void *to, size_t index, size_t oc,
                                   int8_t weight)
{
    switch (form) {
    case CONV_WEIGHTS_UNSIGNED:
        ((uint8_t *)to)[index] = (uint8_t)(weight + 128);
        break;
    case CONV_WEIGHTS_SIGNED:
        ((int8_t *)to)[index] = weight;
        break;
    case CONV_WEIGHTS_CENTRED:
        ((int16_t *)to)[index] = (int16_t)(weight - conv->weight_zero[oc]);
        break;
    }
}

/* One tile: [run][step][granule / interleave][width][interleave]. */
static inline void conv_pack_tile(const struct anynpu_conv *conv, const struct conv_target *target, const struct conv_plan *plan,
                                  size_t first_oc, size_t valid, size_t width, void *to)
{
    size_t length = plan->run_length, channel_size = plan->run_count * length;
    for (size_t run = 0; run < plan->run_count; run++)
        for (size_t j = 0; j < valid; j++) {
            const int8_t *from = (const int8_t *)conv->weights + (first_oc + j) * channel_size + run * length;
            for (size_t k = 0; k < length; k++) {
                size_t block = run * plan->steps * (target->granule / target->interleave) + k / target->interleave;
                size_t index = (block * width + j) * target->interleave + k % target->interleave;
                conv_put_weight(conv, target->form, to, index, first_oc + j, from[k]);
            }
        }
}

static inline int32_t conv_common_zero(const struct anynpu_conv *conv, const struct conv_target *target)
{
    for (size_t oc = 1; oc < conv->cout; oc++)
        if (conv->weight_zero[oc] != conv->weight_zero[0])
            return 0;
    return target->form == CONV_WEIGHTS_UNSIGNED ? conv->weight_zero[0] + 128 : 0;
}

static inline void conv_pack(const struct anynpu_conv *conv, const struct conv_target *target, const void *weights, void *packed)
{
    struct conv_plan plan = conv_plan(conv, target);
    size_t constants = conv_constants_size(conv, &plan);
    struct conv_header *header = packed;
    conv_pack_channels(conv, target, &plan, packed);
    int clamps;
    header->form = (int32_t)conv_form(conv, &clamps);
    header->clamps = clamps;
    header->scale = conv_common_zero(conv, target);
    header->weights = weights;
    memset((uint8_t *)packed + constants, 0, conv_packed_size(conv, target) - constants);
    fixed_tables_pack(&conv->epilogue, conv->cout, (uint8_t *)packed + conv_tables_at(conv, &plan));
}

/* Depends on the weights, their zero points and the form of the kernel, and on nothing else of a layer. */
static inline void conv_pack_weights(const struct anynpu_conv *conv, const struct conv_target *target, void *weights)
{
    struct conv_plan plan = conv_plan(conv, target);
    uint8_t *to = weights;
    memset(to, 0, conv_packed_weights_size(conv, target));
    for (size_t group = 0; group < conv->groups; group++)
        for (size_t oc = 0, width; oc < plan.group_padded; oc += width) {
            width = target->tile_width(plan.group_padded - oc, plan.line_pixels);
            size_t valid = conv_smaller(width, plan.group_cout - oc);
            conv_pack_tile(conv, target, &plan, group * plan.group_cout + oc, valid, width, to);
            to += width * plan.tile_weight_bytes;
        }
}

/* Everything that stays the same during a run. */
struct conv_job {
    const struct anynpu_conv *conv;
    const struct conv_target *target;
    struct conv_plan plan;
    const void *packed;
    const int8_t *residual;
    int8_t *y;
    const void **runs;
    uint8_t *ring;
    int32_t *row_sums; /* [ring row][group][pixel] */
    int32_t *sums;     /* [row of the band][group][pixel] */
};

static inline struct conv_job conv_job(const struct anynpu_conv *conv, const struct conv_target *target, const void *packed,
                                       const int8_t *residual, int8_t *y, void *scratch)
{
    struct conv_job job = {.conv = conv, .target = target, .packed = packed, .residual = residual, .y = y};
    job.plan = conv_plan(conv, target);
    job.runs = scratch;
    job.ring = (uint8_t *)scratch + job.plan.ring;
    job.row_sums = (int32_t *)(void *)((uint8_t *)scratch + job.plan.row_sums);
    job.sums = (int32_t *)(void *)((uint8_t *)scratch + job.plan.sums);
    return job;
}

/* Tables of 256 by run of channels that share a row. */
static inline void conv_look_up(const struct conv_job *job, size_t first_pixel, size_t pixels)
{
    const struct anynpu_epilogue *epilogue = &job->conv->epilogue;
    const int8_t *table = epilogue->table;
    size_t channels = job->conv->cout;
    int8_t *y = job->y + first_pixel * channels;
    if (!table)
        return;
    if (!epilogue->row) {
        job->target->look_up(y, 1, 0, pixels * channels, table);
        return;
    }
    if (translate_by_channel(table, epilogue->row, y, y, channels, pixels, job->target->look_up))
        return;
    for (size_t first = 0, last; first < channels; first = last) {
        for (last = first + 1; last < channels && epilogue->row[last] == epilogue->row[first];)
            last++;
        job->target->look_up(y + first, pixels, channels, last - first, table + 256 * (ptrdiff_t)epilogue->row[first]);
    }
}

static inline struct conv_runs conv_runs_of(const struct conv_job *job, const void *row, size_t group, size_t pixels)
{
    const struct anynpu_conv *conv = job->conv;
    const struct conv_plan *plan = &job->plan;
    return (struct conv_runs){
        .first = (const int8_t *)row + group * plan->group_cin,
        .taps = plan->taps,
        .tap_stride = conv->dw * plan->pixel_bytes,
        .length = plan->run_length,
        .pixel_stride = conv->sw * plan->pixel_bytes,
        .pixels = pixels,
    };
}

/* What the tiles of a group have in common for a line of pixels that starts at the given output pixel. */
static inline struct conv_line conv_line(const struct conv_job *job, size_t pixel, size_t pixels)
{
    const struct conv_header *header = job->packed;
    size_t at = pixel * job->conv->cout;
    return (struct conv_line){
        .runs = job->runs,
        .run_count = job->plan.run_count,
        .steps = job->plan.steps,
        .pixel_stride = (ptrdiff_t)(job->conv->sw * job->plan.pixel_bytes),
        .pixels = pixels,
        .out_stride = (ptrdiff_t)job->conv->cout,
        .has_slope = job->conv->epilogue.slope != NULL,
        .is_scaled = header->scale != 0,
        .clamps = header->clamps,
        .form = (enum fixed_form)header->form,
        .epilogue = &job->conv->epilogue,
        .tables = fixed_tables_at((const uint8_t *)job->packed + conv_tables_at(job->conv, &job->plan), job->conv->cout),
        .residual = job->residual && fixed_has_residual(&job->conv->epilogue) ? job->residual + at : NULL,
        .y = job->y + at,
    };
}

/* Walks over the tiles of all groups. */
struct conv_tile {
    size_t group, oc, width; /* oc: in the group */
    const uint8_t *weights;
};

static inline struct conv_tile conv_first_tile(const struct conv_job *job)
{
    return (struct conv_tile){
        .width = job->target->tile_width(job->plan.group_padded, job->plan.line_pixels),
        .weights = ((const struct conv_header *)job->packed)->weights,
    };
}

static inline int conv_next_tile(const struct conv_job *job, struct conv_tile *tile)
{
    tile->weights += tile->width * job->plan.tile_weight_bytes;
    tile->oc += tile->width;
    if (tile->oc == job->plan.group_padded) {
        tile->oc = 0;
        tile->group++;
    }
    tile->width = job->target->tile_width(job->plan.group_padded - tile->oc, job->plan.line_pixels);
    return tile->group < job->conv->groups;
}

static inline void conv_compute(const struct conv_job *job, const struct conv_tile *tile, struct conv_line line,
                                const int32_t *sums)
{
    const struct conv_plan *plan = &job->plan;
    size_t oc = tile->group * plan->group_cout + tile->oc;
    size_t padded_oc = tile->group * plan->group_padded + tile->oc;
    line.sums = job->target->sum_runs ? sums + tile->group * plan->sum_stride : NULL;
    line.weights = tile->weights;
    line.channels = conv_channels_at(job->packed, conv_channel_count(job->conv, plan), padded_oc);
    line.channel = oc;
    line.valid = conv_smaller(tile->width, plan->group_cout - tile->oc);
    line.residual = line.residual ? line.residual + oc : NULL;
    line.y += oc;
    job->target->compute(&line, tile->width);
}

static inline void conv_scale_sums(const struct conv_job *job, int32_t *sums)
{
    const int32_t scale = ((const struct conv_header *)job->packed)->scale;
    for (size_t i = 0; scale != 0 && i < job->conv->groups * job->plan.sum_stride; i++)
        sums[i] = (int32_t)((uint32_t)sums[i] * (uint32_t)scale);
}

/* Pixels in one long line over rows and images, straight from the input unless the target widens it. */
static inline void conv_run_pointwise(const struct conv_job *job, const int8_t *x, size_t first, size_t last)
{
    const struct conv_target *target = job->target;
    for (size_t pixel = first, pixels; pixel < last; pixel += pixels) {
        pixels = conv_smaller(last - pixel, job->plan.line_pixels);
        const void *input = x + pixel * job->conv->cin;
        if (target->element_size != 1) {
            target->copy(job->ring, input, pixels * job->conv->cin);
            input = job->ring;
        }
        for (size_t group = 0; target->sum_runs && group < job->conv->groups; group++) {
            struct conv_runs runs = conv_runs_of(job, input, group, pixels);
            target->sum_runs(&runs, job->sums + group * job->plan.sum_stride);
        }
        conv_scale_sums(job, job->sums);
        struct conv_line line = conv_line(job, pixel, pixels);
        struct conv_tile tile = conv_first_tile(job);
        do {
            job->runs[0] = (const uint8_t *)input + tile.group * job->plan.group_cin * target->element_size;
            conv_compute(job, &tile, line, job->sums);
        } while (conv_next_tile(job, &tile));
        conv_look_up(job, pixel, pixels);
    }
}

static inline void conv_fill_padding(const struct conv_job *job, void *to, size_t pixels)
{
    const struct anynpu_conv *conv = job->conv;
    if (job->target->element_size == 1 && !conv->input_zeros) {
        memset(to, conv->input_zero, pixels * conv->cin);
        return;
    }
    for (size_t pixel = 0; pixel < pixels; pixel++)
        for (size_t c = 0; c < conv->cin; c++) {
            int32_t zero = conv_input_zero(conv, c);
            if (job->target->element_size == 1)
                ((int8_t *)to)[pixel * conv->cin + c] = (int8_t)zero;
            else
                ((int16_t *)to)[pixel * conv->cin + c] = (int16_t)zero;
        }
}

/* Brings padded row number `row` (row 0 is the first of the top padding) of an image into its place in the ring. */
static inline void conv_fill_row(const struct conv_job *job, const int8_t *image, size_t row)
{
    const struct anynpu_conv *conv = job->conv;
    const struct conv_plan *plan = &job->plan;
    size_t slot = row % plan->ring_rows;
    uint8_t *to = job->ring + slot * plan->row_bytes;
    if (row < conv->top || row - conv->top >= conv->h) {
        conv_fill_padding(job, to, plan->padded_width);
    } else {
        size_t left = conv_smaller(conv->left, plan->padded_width);
        size_t inside = conv_smaller(conv->w, plan->padded_width - left);
        conv_fill_padding(job, to, left);
        job->target->copy(to + left * plan->pixel_bytes, image + (row - conv->top) * conv->w * conv->cin, inside * conv->cin);
        conv_fill_padding(job, to + (left + inside) * plan->pixel_bytes, plan->padded_width - left - inside);
    }
    for (size_t group = 0; job->target->sum_runs && group < conv->groups; group++) {
        struct conv_runs runs = conv_runs_of(job, to, group, conv->ow);
        job->target->sum_runs(&runs, job->row_sums + (slot * conv->groups + group) * plan->sum_stride);
    }
}

/* Sums over the whole window from those of its rows. */
static inline void conv_sum_rows(const struct conv_job *job, size_t first_row, int32_t *sums)
{
    const struct conv_plan *plan = &job->plan;
    size_t count = job->conv->groups * plan->sum_stride;
    for (size_t ky = 0; ky < job->conv->kh; ky++) {
        const int32_t *row = job->row_sums + (first_row + ky * job->conv->dh) % plan->ring_rows * count;
        for (size_t i = 0; i < count; i++)
            sums[i] = ky ? (int32_t)((uint32_t)sums[i] + (uint32_t)row[i]) : row[i];
    }
    conv_scale_sums(job, sums);
}

static inline void conv_point_runs(const struct conv_job *job, size_t first_row, size_t group)
{
    const struct conv_plan *plan = &job->plan;
    size_t channel_bytes = group * plan->group_cin * job->target->element_size;
    for (size_t run = 0; run < plan->run_count; run++) {
        size_t row = (first_row + run / plan->taps * job->conv->dh) % plan->ring_rows;
        size_t pixel = run % plan->taps * job->conv->dw;
        job->runs[run] = job->ring + row * plan->row_bytes + pixel * plan->pixel_bytes + channel_bytes;
    }
}

/* A band of output rows whose input is in the ring. */
static inline void conv_run_band(const struct conv_job *job, size_t first_row, size_t oy, size_t rows)
{
    const struct anynpu_conv *conv = job->conv;
    size_t sums_size = conv->groups * job->plan.sum_stride;
    for (size_t row = 0; job->target->sum_runs && row < rows; row++)
        conv_sum_rows(job, (oy + row) * conv->sh, job->sums + row * sums_size);
    struct conv_tile tile = conv_first_tile(job);
    do {
        for (size_t row = 0; row < rows; row++) {
            conv_point_runs(job, (oy + row) * conv->sh, tile.group);
            conv_compute(job, &tile, conv_line(job, (first_row + row) * conv->ow, conv->ow), job->sums + row * sums_size);
        }
    } while (conv_next_tile(job, &tile));
    conv_look_up(job, first_row * conv->ow, rows * conv->ow);
}

static inline void conv_run_rows(const struct conv_job *job, const int8_t *x, size_t first_row, size_t last_row)
{
    const struct anynpu_conv *conv = job->conv;
    size_t filled = 0; /* the ring holds padded rows up to here */
    for (size_t row = first_row, rows; row < last_row; row += rows) {
        size_t oy = row % conv->oh, first = oy * conv->sh;
        const int8_t *image = x + row / conv->oh * conv->h * conv->w * conv->cin;
        rows = conv_smaller(conv_smaller(job->plan.band, conv->oh - oy), last_row - row);
        if (oy == 0 || filled < first)
            filled = first;
        for (; filled < first + (rows - 1) * conv->sh + (conv->kh - 1) * conv->dh + 1; filled++)
            conv_fill_row(job, image, filled);
        conv_run_band(job, row, oy, rows);
    }
}

static inline void conv_run(const struct anynpu_conv *conv, const struct conv_target *target, const void *packed, const int8_t *x,
                            const int8_t *residual, int8_t *y, void *scratch, size_t first_row, size_t last_row)
{
    struct conv_job job = conv_job(conv, target, packed, residual, y, scratch);
    if (job.plan.pointwise)
        conv_run_pointwise(&job, x, first_row * conv->ow, last_row * conv->ow);
    else
        conv_run_rows(&job, x, first_row, last_row);
}

#endif
