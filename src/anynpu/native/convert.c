/* From one type, layout and quantization to another in one pass.
 *
 * Every layout is a blocked one: NCHW has blocks of one channel, NHWC has one block of all. Where the two sides differ the pass goes
 * tile by tile through a buffer that stays in the first-level cache, and values are converted on the side where the elements of a
 * channel lie next to each other. */
#include <string.h>

#include "levels.h"

#define TILE_BYTES 16384
#define TILE_CHANNELS 64
#define TILE_PIXELS 512
#define CHUNK 512    /* floats on the way from type to type */
#define REPEATED 384 /* parameters of a few channels, repeated so that a run is worth a call */
#define VECTOR 32    /* elements of the widest step: runs that are a multiple of it have no rest */

#define FOR_EACH_PARAMETER(use)                                                                                                \
    use(int32_t, source_zero) use(float, source_scale) use(float, mean) use(float, std) use(int32_t, target_zero)              \
        use(float, target_scale) use(int32_t, slope) use(int32_t, offset)

struct pass {
    const struct anynpu_conversion *job;
    const struct anynpu_element_kernels *elements;
    anynpu_transpose *transpose;
    size_t source_size, target_size;                 /* bytes an element */
    size_t c, d, h, w;                               /* sizes, rows merged where they follow each other */
    size_t source_row, source_slab, source_block;    /* strides in elements */
    size_t target_row, target_slab, target_block;
    size_t source_pixel, target_pixel;
    /* the parameters of the block at hand */
    size_t period;
    size_t repeated; /* entries in the arrays below; 0: take the job's */
#define DECLARE(type, name) type name[REPEATED];
    FOR_EACH_PARAMETER(DECLARE)
#undef DECLARE
};

static size_t size_of(int32_t type)
{
    switch (type) {
    case ANYNPU_I8:
    case ANYNPU_U8:
    case ANYNPU_BOOL:
        return 1;
    case ANYNPU_F16:
    case ANYNPU_BF16:
    case ANYNPU_I16:
    case ANYNPU_U16:
        return 2;
    case ANYNPU_I64:
    case ANYNPU_U64:
        return 8;
    default:
        return 4;
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- integers to integers ---- */

#define READ_INTEGERS(type)                                                                                                    \
    for (size_t i = 0; i < count; i++)                                                                                         \
        target[i] = (int64_t)((const type *)source)[i];                                                                        \
    break;

static void read_integers(int32_t type, const void *restrict source, int64_t *restrict target, size_t count)
{
    switch (type) {
    case ANYNPU_I8:
        READ_INTEGERS(int8_t)
    case ANYNPU_U8:
        READ_INTEGERS(uint8_t)
    case ANYNPU_I16:
        READ_INTEGERS(int16_t)
    case ANYNPU_U16:
        READ_INTEGERS(uint16_t)
    case ANYNPU_I32:
        READ_INTEGERS(int32_t)
    case ANYNPU_U32:
        READ_INTEGERS(uint32_t)
    case ANYNPU_I64:
        READ_INTEGERS(int64_t)
    case ANYNPU_U64: /* what int64 cannot hold is beyond every type that is not uint64 itself */
        for (size_t i = 0; i < count; i++) {
            uint64_t value = ((const uint64_t *)source)[i];
            target[i] = value > INT64_MAX ? INT64_MAX : (int64_t)value;
        }
        break;
    default:
        for (size_t i = 0; i < count; i++)
            target[i] = ((const uint8_t *)source)[i] != 0;
    }
}

#define WRITE_INTEGERS(type)                                                                                                   \
    for (size_t i = 0; i < count; i++)                                                                                         \
        ((type *)target)[i] = (type)(source[i] < low ? low : source[i] > high ? high : source[i]);                             \
    break;

static void write_integers(int32_t type, const int64_t *restrict source, void *restrict target, size_t count, int64_t low,
                           int64_t high)
{
    switch (type) {
    case ANYNPU_I8:
    case ANYNPU_U8:
        WRITE_INTEGERS(uint8_t)
    case ANYNPU_I16:
    case ANYNPU_U16:
        WRITE_INTEGERS(uint16_t)
    case ANYNPU_I32:
    case ANYNPU_U32:
        WRITE_INTEGERS(uint32_t)
    case ANYNPU_I64:
    case ANYNPU_U64:
        WRITE_INTEGERS(uint64_t)
    default:
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)target)[i] = source[i] != 0;
    }
}

/* ---- runs: elements that follow each other on both sides ---- */

/* All elements of one channel. */
static void convert_channel(const struct pass *pass, const void *source, void *target, size_t count, size_t channel)
{
    const struct anynpu_conversion *job = pass->job;
    const struct anynpu_element_kernels *elements = pass->elements;
    size_t k = job->by_channel ? channel : 0;
    switch (job->step) {
    case ANYNPU_MOVE:
        memcpy(target, source, count * pass->source_size);
        return;
    case ANYNPU_FLIP:
        elements->flip(source, target, count, (uint8_t)job->flip);
        return;
    case ANYNPU_LINE:
        elements->line(source, target, count, job->slope[k], job->offset[k], (uint8_t)job->flip, (int32_t)job->low,
                       (int32_t)job->high);
        return;
    case ANYNPU_TABLE: {
        const uint8_t *table = job->table + 256 * k, *bytes = source;
        uint8_t *codes = target;
        for (size_t i = 0; i < count; i++)
            codes[i] = table[bytes[i]];
        return;
    }
    case ANYNPU_INTEGERS: {
        int64_t integers[CHUNK];
        for (size_t i = 0; i < count; i += CHUNK) {
            size_t length = smaller(CHUNK, count - i);
            read_integers(job->source.type, (const uint8_t *)source + i * pass->source_size, integers, length);
            write_integers(job->target.type, integers, (uint8_t *)target + i * pass->target_size, length, job->low, job->high);
        }
        return;
    }
    default:
        break;
    }
    float loaded[CHUNK], normal[CHUNK];
    const struct anynpu_type_kernels *from = &elements->types[job->source.type], *to = &elements->types[job->target.type];
    int is_float = job->target.type == ANYNPU_F32;
    if (is_float && job->mean == NULL) {
        from->load(source, target, count, job->source_zero[k], job->source_scale[k]);
        return;
    }
    for (size_t i = 0; i < count; i += CHUNK) {
        size_t length = smaller(CHUNK, count - i);
        const float *values = loaded;
        uint8_t *codes = (uint8_t *)target + i * pass->target_size;
        if (job->source.type == ANYNPU_F32)
            values = (const float *)source + i;
        else
            from->load((const uint8_t *)source + i * pass->source_size, loaded, length, job->source_zero[k], job->source_scale[k]);
        if (job->mean != NULL) {
            float *result = is_float ? (float *)codes : normal;
            elements->normalize(values, result, length, job->mean[k], job->std[k]);
            values = result;
        }
        if (!is_float)
            to->store(values, codes, length, job->target_zero[k], job->target_scale[k], job->low, job->high);
    }
}

/* Element i with the i-th entry of each array; count is at most CHUNK. */
static void convert_each(const struct pass *pass, const void *source, void *target, size_t count, size_t first)
{
    const struct anynpu_conversion *job = pass->job;
    const struct anynpu_element_kernels *elements = pass->elements;
#define POINT(type, name) const type *name = pass->repeated ? pass->name : job->name == NULL ? NULL : job->name + first;
    FOR_EACH_PARAMETER(POINT)
#undef POINT
    if (job->step == ANYNPU_LINE) {
        elements->line_each(source, target, count, slope, offset, (uint8_t)job->flip, (int32_t)job->low, (int32_t)job->high);
        return;
    }
    float loaded[CHUNK], normal[CHUNK];
    const struct anynpu_type_kernels *from = &elements->types[job->source.type], *to = &elements->types[job->target.type];
    int is_float = job->target.type == ANYNPU_F32;
    const float *values = loaded;
    if (job->source.type == ANYNPU_F32)
        values = source;
    else
        from->load_each(source, is_float && job->mean == NULL ? target : loaded, count, source_zero, source_scale);
    if (job->mean != NULL) {
        float *result = is_float ? target : normal;
        elements->normalize_each(values, result, count, mean, std);
        values = result;
    }
    if (!is_float)
        to->store_each(values, target, count, target_zero, target_scale, job->low, job->high);
}

static void look_up(const uint8_t *restrict source, uint8_t *restrict target, size_t pixels, size_t channels,
                    const uint8_t *restrict table)
{
    if (channels == 3) {
        for (size_t i = 0; i < pixels; i++, source += 3, target += 3) {
            target[0] = table[source[0]];
            target[1] = table[256 + source[1]];
            target[2] = table[512 + source[2]];
        }
        return;
    }
    for (size_t i = 0; i < pixels; i++, source += channels, target += channels)
        for (size_t k = 0; k < channels; k++)
            target[k] = table[256 * k + source[k]];
}

/* The arrays of the block of *channels* that begins at *first*, repeated where that makes a run long enough. */
static void prepare_block(struct pass *pass, size_t first, size_t channels)
{
    const struct anynpu_conversion *job = pass->job;
    pass->repeated = 0;
    if (!job->by_channel || channels == 1 || channels > REPEATED / 2)
        return;
    if (job->step != ANYNPU_LINE && job->step != ANYNPU_VALUES)
        return;
    size_t unit = channels * VECTOR <= REPEATED ? channels * VECTOR : channels;
    pass->repeated = REPEATED / unit * unit;
#define REPEAT(type, name)                                                                                                     \
    if (job->name != NULL)                                                                                                     \
        for (size_t i = 0; i < pass->repeated; i++)                                                                            \
            pass->name[i] = job->name[first + i % channels];
    FOR_EACH_PARAMETER(REPEAT)
#undef REPEAT
}

/* Whole pixels of a block of *channels* that begins at channel *first*. */
static void convert_pixels(const struct pass *pass, const uint8_t *source, uint8_t *target, size_t pixels, size_t channels,
                           size_t first)
{
    const struct anynpu_conversion *job = pass->job;
    int differs = job->step == ANYNPU_LINE || job->step == ANYNPU_TABLE || job->step == ANYNPU_VALUES;
    if (!job->by_channel || channels == 1 || !differs) {
        convert_channel(pass, source, target, pixels * channels, first);
    } else if (job->step == ANYNPU_TABLE) {
        look_up(source, target, pixels, channels, job->table + 256 * first);
    } else if (pass->repeated) {
        size_t count = pixels * channels;
        for (size_t i = 0; i < count; i += pass->repeated)
            convert_each(pass, source + i * pass->source_size, target + i * pass->target_size, smaller(pass->repeated, count - i),
                         first);
    } else {
        for (size_t pixel = 0; pixel < pixels; pixel++)
            for (size_t k = 0; k < channels; k += CHUNK) {
                size_t i = pixel * channels + k;
                convert_each(pass, source + i * pass->source_size, target + i * pass->target_size, smaller(CHUNK, channels - k),
                             first + k);
            }
    }
}

/* ---- moving ---- */

/* Some bytes of each pixel, from one distance of pixels to another. Two moves of a fixed size that overlap serve all lengths between. */
#define COPY_FIXED(size)                                                                                                       \
    for (size_t i = 0; i < pixels; i++, source += source_stride, target += target_stride) {                                    \
        memcpy(target, source, size);                                                                                          \
        memcpy(target + bytes - size, source + bytes - size, size);                                                            \
    }

static void copy_pixels(const uint8_t *restrict source, size_t source_stride, uint8_t *restrict target, size_t target_stride,
                        size_t bytes, size_t pixels)
{
    if (bytes == source_stride && bytes == target_stride) {
        memcpy(target, source, bytes * pixels);
    } else if (bytes == 16) {
        for (size_t i = 0; i < pixels; i++, source += source_stride, target += target_stride)
            memcpy(target, source, 16);
    } else if (bytes > 64) {
        for (size_t i = 0; i < pixels; i++, source += source_stride, target += target_stride)
            memcpy(target, source, bytes);
    } else if (bytes >= 32) {
        COPY_FIXED(32)
    } else if (bytes >= 16) {
        COPY_FIXED(16)
    } else if (bytes >= 8) {
        COPY_FIXED(8)
    } else if (bytes >= 4) {
        COPY_FIXED(4)
    } else if (bytes >= 2) {
        COPY_FIXED(2)
    } else {
        for (size_t i = 0; i < pixels; i++, source += source_stride, target += target_stride)
            *target = *source;
    }
}

static void fill_elements(uint8_t *target, size_t count, uint64_t fill, size_t size)
{
    uint8_t pattern[8];
    int same = 1;
    for (size_t i = 0; i < 8; i++) {
        pattern[i] = (uint8_t)(fill >> 8 * (i % size));
        same &= pattern[i] == pattern[0];
    }
    size_t bytes = count * size;
    if (same) {
        memset(target, pattern[0], bytes);
        return;
    }
    for (size_t i = 0; i + 8 <= bytes; i += 8)
        memcpy(target + i, pattern, 8);
    memcpy(target + bytes - bytes % 8, pattern, bytes % 8);
}

#define FILL_ENDS(size)                                                                                                        \
    for (size_t i = 0; i < pixels; i++, target += stride) {                                                                    \
        memcpy(target, pattern, size);                                                                                         \
        memcpy(target + bytes - size, pattern + bytes - size, size);                                                           \
    }

/* The last *count* of the *pixel* elements of each pixel. */
static void fill_channels(uint8_t *target, size_t pixels, size_t pixel, size_t count, uint64_t fill, size_t size)
{
    size_t bytes = count * size, stride = pixel * size;
    target += stride - bytes;
    uint8_t pattern[64];
    if (bytes > sizeof pattern) {
        for (size_t i = 0; i < pixels; i++, target += stride)
            fill_elements(target, count, fill, size);
        return;
    }
    fill_elements(pattern, count, fill, size);
    if (bytes >= 32) {
        FILL_ENDS(32)
    } else if (bytes >= 16) {
        FILL_ENDS(16)
    } else if (bytes >= 8) {
        FILL_ENDS(8)
    } else if (bytes >= 4) {
        FILL_ENDS(4)
    } else if (bytes >= 2) {
        FILL_ENDS(2)
    } else {
        for (size_t i = 0; i < pixels; i++, target += stride)
            *target = pattern[0];
    }
}

/* ---- one row of pixels ---- */

/* Both sides have the same blocks. */
static void row_same(struct pass *pass, const uint8_t *source, uint8_t *target, size_t first, size_t channels)
{
    size_t pixel = pass->target_pixel;
    if (channels < pixel && pass->job->step == ANYNPU_MOVE)
        copy_pixels(source, pixel * pass->source_size, target, pixel * pass->target_size, channels * pass->target_size, pass->w);
    else
        convert_pixels(pass, source, target, pass->w, pixel, first);
    if (channels < pixel)
        fill_channels(target, pass->w, pixel, pixel - channels, pass->job->fill, pass->target_size);
}

/* From channels apart to channels together. */
static void row_pack(struct pass *pass, const uint8_t *source, uint8_t *target, size_t first, size_t channels)
{
    size_t pixel = pass->target_pixel, size = pass->target_size;
    uint8_t tile[TILE_BYTES] __attribute__((aligned(64)));
    for (size_t k = 0; k < channels; k += TILE_CHANNELS) {
        size_t together = smaller(TILE_CHANNELS, channels - k);
        size_t most = smaller(TILE_PIXELS, TILE_BYTES / size / together);
        for (size_t x = 0; x < pass->w; x += most) {
            size_t pixels = smaller(most, pass->w - x);
            const uint8_t *from = source + (k * pass->source_block + x) * pass->source_size;
            uint8_t *to = target + (x * pixel + k) * size;
            if (pass->job->step == ANYNPU_MOVE) {
                pass->transpose(from, pass->source_block, to, pixel, together, pixels);
                continue;
            }
            for (size_t i = 0; i < together; i++)
                convert_channel(pass, from + i * pass->source_block * pass->source_size, tile + i * pixels * size, pixels,
                                first + k + i);
            pass->transpose(tile, pixels, to, pixel, together, pixels);
        }
    }
    if (channels < pixel)
        fill_channels(target, pass->w, pixel, pixel - channels, pass->job->fill, size);
}

/* From channels together to channels apart. */
static void row_unpack(struct pass *pass, const uint8_t *source, uint8_t *target, size_t first, size_t channels)
{
    size_t pixel = pass->source_pixel, size = pass->source_size;
    uint8_t tile[TILE_BYTES] __attribute__((aligned(64)));
    for (size_t k = 0; k < channels; k += TILE_CHANNELS) {
        size_t together = smaller(TILE_CHANNELS, channels - k);
        size_t most = smaller(TILE_PIXELS, TILE_BYTES / size / together);
        for (size_t x = 0; x < pass->w; x += most) {
            size_t pixels = smaller(most, pass->w - x);
            const uint8_t *from = source + (x * pixel + k) * size;
            uint8_t *to = target + (k * pass->target_block + x) * pass->target_size;
            if (pass->job->step == ANYNPU_MOVE) {
                pass->transpose(from, pixel, to, pass->target_block, pixels, together);
                continue;
            }
            pass->transpose(from, pixel, tile, pixels, pixels, together);
            for (size_t i = 0; i < together; i++)
                convert_channel(pass, tile + i * pixels * size, to + i * pass->target_block * pass->target_size, pixels,
                                first + k + i);
        }
    }
}

/* The channels [from, to), which lie together in one block of the source, into the blocks of the target. */
static void scatter(const struct pass *pass, const uint8_t *source, size_t source_pixel, uint8_t *target, size_t from, size_t to,
                    size_t pixels)
{
    size_t pixel = pass->target_pixel, size = pass->target_size;
    for (size_t channel = from; channel < to;) {
        size_t block = channel / pixel, inside = channel % pixel;
        size_t together = smaller(pixel - inside, to - channel);
        copy_pixels(source + (channel - from) * size, source_pixel * size, target + (block * pass->target_block + inside) * size,
                    pixel * size, together * size, pixels);
        channel += together;
    }
}

/* From blocks of one size to blocks of another. *target* is the row in the first block. */
static void row_reblock(struct pass *pass, const uint8_t *source, uint8_t *target, size_t first, size_t channels)
{
    size_t pixel = pass->source_pixel, size = pass->target_size;
    if (pass->job->step == ANYNPU_MOVE) {
        /* some pixels at a time, so that the next block finds them in the cache */
        size_t most = TILE_BYTES / (pixel * size) + 1;
        for (size_t x = 0; x < pass->w; x += most)
            scatter(pass, source + x * pixel * size, pixel, target + x * pass->target_pixel * size, first, first + channels,
                    smaller(most, pass->w - x));
        return;
    }
    uint8_t tile[TILE_BYTES] __attribute__((aligned(64)));
    size_t room = TILE_BYTES / size;
    if (pixel > room) {
        for (size_t x = 0; x < pass->w; x++)
            for (size_t k = 0; k < channels; k += room) {
                size_t together = smaller(room, channels - k);
                convert_pixels(pass, source + (x * pixel + k) * pass->source_size, tile, 1, together, first + k);
                scatter(pass, tile, together, target + x * pass->target_pixel * size, first + k, first + k + together, 1);
            }
        return;
    }
    size_t most = room / pixel;
    for (size_t x = 0; x < pass->w; x += most) {
        size_t pixels = smaller(most, pass->w - x);
        convert_pixels(pass, source + x * pixel * pass->source_size, tile, pixels, pixel, first);
        scatter(pass, tile, pixel, target + x * pass->target_pixel * size, first, first + channels, pixels);
    }
}

/* ---- the whole tensor ---- */

/* Padding of the target: columns and rows beyond the size, blocks beyond the channels. */
static void fill_padding(const struct pass *pass, uint8_t *target)
{
    const struct anynpu_conversion *job = pass->job;
    const struct anynpu_place *place = &job->target;
    size_t size = pass->target_size, used = (pass->c + place->c2 - 1) / place->c2;
    for (size_t n = 0; n < job->n; n++) {
        uint8_t *image = target + n * place->c1 * pass->target_block * size;
        for (size_t block = 0; block < used; block++)
            for (size_t slab = 0; slab < pass->d; slab++) {
                uint8_t *rows = image + (block * pass->target_block + slab * pass->target_slab) * size;
                size_t row_used = pass->w * place->c2;
                if (row_used < pass->target_row)
                    for (size_t y = 0; y < pass->h; y++)
                        fill_elements(rows + (y * pass->target_row + row_used) * size, pass->target_row - row_used, job->fill, size);
                size_t slab_used = pass->h * pass->target_row;
                if (slab_used < pass->target_slab)
                    fill_elements(rows + slab_used * size, pass->target_slab - slab_used, job->fill, size);
            }
        if (used < place->c1)
            fill_elements(image + used * pass->target_block * size, (place->c1 - used) * pass->target_block, job->fill, size);
    }
}

/* Rows that follow each other without padding on both sides are one long row. */
static void merge_rows(struct pass *pass)
{
    const struct anynpu_place *source = &pass->job->source, *target = &pass->job->target;
    pass->source_row = source->w_stride * source->c2;
    pass->target_row = target->w_stride * target->c2;
    pass->source_slab = source->h_stride * pass->source_row;
    pass->target_slab = target->h_stride * pass->target_row;
    pass->source_block = pass->d * pass->source_slab;
    pass->target_block = pass->d * pass->target_slab;
    if (pass->h == 1 || (pass->source_row == pass->w * source->c2 && pass->target_row == pass->w * target->c2)) {
        pass->w *= pass->h;
        pass->h = pass->d;
        pass->d = 1;
        pass->source_row = pass->source_slab;
        pass->target_row = pass->target_slab;
        pass->source_slab = pass->source_block;
        pass->target_slab = pass->target_block;
        if (pass->h == 1 || (pass->source_row == pass->w * source->c2 && pass->target_row == pass->w * target->c2)) {
            pass->w *= pass->h;
            pass->h = 1;
            pass->source_row = pass->source_slab;
            pass->target_row = pass->target_slab;
        }
    }
}

void anynpu_convert(const struct anynpu_conversion *job, const void *source, void *target)
{
    const struct anynpu_kernel_set *kernels = anynpu_kernels();
    struct pass pass;
    pass.job = job;
    pass.elements = kernels->elements;
    pass.source_size = size_of(job->source.type);
    pass.target_size = size_of(job->target.type);
    pass.c = job->c;
    pass.d = job->d;
    pass.h = job->h;
    pass.w = job->w;
    pass.source_pixel = job->source.c2;
    pass.target_pixel = job->target.c2;
    pass.repeated = 0;
    merge_rows(&pass);

    void (*row)(struct pass *, const uint8_t *, uint8_t *, size_t, size_t);
    size_t moved; /* size of what is transposed */
    size_t step;  /* channels of a block that is handled at once */
    if (pass.source_pixel == pass.target_pixel) {
        row = row_same, step = pass.source_pixel, moved = pass.source_size;
    } else if (pass.source_pixel == 1) {
        row = row_pack, step = pass.target_pixel, moved = pass.target_size;
    } else if (pass.target_pixel == 1) {
        row = row_unpack, step = pass.source_pixel, moved = pass.source_size;
    } else {
        row = row_reblock, step = pass.source_pixel, moved = pass.target_size;
    }
    pass.transpose = kernels->transpose->by_size[moved == 1 ? 0 : moved == 2 ? 1 : moved == 4 ? 2 : 3];

    for (size_t n = 0; n < job->n; n++) {
        const uint8_t *from = (const uint8_t *)source + n * job->source.c1 * pass.source_block * pass.source_size;
        uint8_t *to = (uint8_t *)target + n * job->target.c1 * pass.target_block * pass.target_size;
        for (size_t first = 0; first < pass.c; first += step) {
            size_t channels = smaller(step, pass.c - first);
            const uint8_t *source_block = from + first / pass.source_pixel * pass.source_block * pass.source_size;
            uint8_t *target_block = row == row_reblock ? to : to + first / pass.target_pixel * pass.target_block * pass.target_size;
            prepare_block(&pass, first, pass.source_pixel);
            for (size_t slab = 0; slab < pass.d; slab++)
                for (size_t y = 0; y < pass.h; y++)
                    row(&pass, source_block + (slab * pass.source_slab + y * pass.source_row) * pass.source_size,
                        target_block + (slab * pass.target_slab + y * pass.target_row) * pass.target_size, first, channels);
        }
        if (row == row_reblock && pass.c % pass.target_pixel != 0) {
            size_t unused = pass.target_pixel - pass.c % pass.target_pixel;
            uint8_t *block = to + pass.c / pass.target_pixel * pass.target_block * pass.target_size;
            for (size_t slab = 0; slab < pass.d; slab++)
                for (size_t y = 0; y < pass.h; y++)
                    fill_channels(block + (slab * pass.target_slab + y * pass.target_row) * pass.target_size, pass.w,
                                  pass.target_pixel, unused, job->fill, pass.target_size);
        }
    }
    fill_padding(&pass, target);
}

void anynpu_unpack_int4(const uint8_t *source, uint8_t *target, size_t count, int is_signed)
{
    anynpu_kernels()->elements->unpack_int4(source, target, count, is_signed);
}

void anynpu_pack_int4(const uint8_t *source, uint8_t *target, size_t count)
{
    anynpu_kernels()->elements->pack_int4(source, target, count);
}
