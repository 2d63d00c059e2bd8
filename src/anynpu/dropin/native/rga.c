/* Images by RGA's calls, on the processor: correct before fast.
 *
 * An image is read pixel by pixel into four numbers (red, green, blue, alpha, or luma, blue difference, red difference, alpha), moved,
 * scaled and converted, and written. Scaling is linear between the centers of pixels, in 16-bit fractions. Colors by default are BT.601
 * with the limited range of video; gray is luma of full range. There is no state here; memory is in rga_memory.c. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rga_picture.h"

/* pixels */

static uint8_t clamped(int value)
{
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

static uint8_t *chroma(const struct picture *picture, int x, int y)
{
    return picture->bytes + (size_t)picture->wstride * (size_t)picture->hstride + (size_t)(y / 2) * (size_t)(2 * ((picture->wstride + 1) / 2)) +
           (size_t)(x / 2 * 2);
}

static void read_pixel(const struct picture *picture, int x, int y, int pixel[4])
{
    const struct layout *layout = picture->layout;
    const uint8_t *bytes = picture->bytes + ((size_t)y * (size_t)picture->wstride + (size_t)x) * (size_t)layout->bytes;
    pixel[3] = 255;
    if (layout->family == YUV_FAMILY) {
        const uint8_t *pair = chroma(picture, x, y);
        pixel[0] = bytes[0];
        pixel[1] = pair[layout->order[0]];
        pixel[2] = pair[layout->order[1]];
    } else if (layout->family == GREY_FAMILY) {
        pixel[0] = pixel[1] = pixel[2] = bytes[0];
    } else {
        for (int channel = 0; channel < 4; channel++)
            if (layout->order[channel] >= 0)
                pixel[channel] = bytes[layout->order[channel]];
    }
}

/* From one family of colors to another. *mode* is a color_space_mode of either side. */
static void convert(int pixel[4], enum family from, enum family to, int mode)
{
    if (from == to)
        return;
    int full = (mode & IM_YUV_TO_RGB_MASK) == IM_YUV_TO_RGB_BT601_FULL || (mode & IM_RGB_TO_YUV_MASK) == IM_RGB_TO_YUV_BT601_FULL;
    int wide = (mode & IM_YUV_TO_RGB_MASK) == IM_YUV_TO_RGB_BT709_LIMIT || (mode & IM_RGB_TO_YUV_MASK) == IM_RGB_TO_YUV_BT709_LIMIT;
    double kr = wide ? 0.2126 : 0.299, kb = wide ? 0.0722 : 0.114, kg = 1.0 - kr - kb;
    double luma = full ? 1.0 : 219.0 / 255.0, difference = full ? 1.0 : 224.0 / 255.0, offset = full ? 0.0 : 16.0;
    if (from == YUV_FAMILY) {
        double y = (pixel[0] - offset) / luma, cb = (pixel[1] - 128) / difference, cr = (pixel[2] - 128) / difference;
        if (to == GREY_FAMILY) {
            pixel[1] = pixel[2] = pixel[0]; /* the plane of luma as it is */
            return;
        }
        double r = y + 2 * (1 - kr) * cr, b = y + 2 * (1 - kb) * cb, g = (y - kr * r - kb * b) / kg;
        pixel[0] = clamped((int)(r + 0.5)), pixel[1] = clamped((int)(g + 0.5)), pixel[2] = clamped((int)(b + 0.5));
        return;
    }
    if (from == GREY_FAMILY) {
        if (to == YUV_FAMILY)
            pixel[1] = pixel[2] = 128;
        return;
    }
    double y = kr * pixel[0] + kg * pixel[1] + kb * pixel[2];
    if (to == GREY_FAMILY) {
        pixel[0] = pixel[1] = pixel[2] = clamped((int)(y + 0.5));
        return;
    }
    double cb = (pixel[2] - y) / (2 * (1 - kb)), cr = (pixel[0] - y) / (2 * (1 - kr));
    pixel[0] = clamped((int)(y * luma + offset + 0.5));
    pixel[1] = clamped((int)(cb * difference + 128.5));
    pixel[2] = clamped((int)(cr * difference + 128.5));
}

/* Where a pixel of the result comes from: two neighbors and the weight of the second. */
struct source {
    int first, second, weight;
};

static struct source source_of(int index, int into, int out)
{
    if (into == out)
        return (struct source){index, index, 0};
    int64_t position = ((2 * (int64_t)index + 1) * into * FRACTION / out - FRACTION) / 2;
    if (position < 0)
        position = 0;
    if (position > (int64_t)(into - 1) * FRACTION)
        position = (int64_t)(into - 1) * FRACTION;
    struct source found = {(int)(position / FRACTION), (int)(position / FRACTION), (int)(position % FRACTION)};
    if (found.first < into - 1)
        found.second = found.first + 1;
    return found;
}

static void sample(const struct picture *picture, struct source column, struct source row, int pixel[4])
{
    int corner[4][4];
    const im_rect *area = &picture->rect;
    read_pixel(picture, area->x + column.first, area->y + row.first, corner[0]);
    if (column.weight == 0 && row.weight == 0) {
        memcpy(pixel, corner[0], sizeof corner[0]);
        return;
    }
    read_pixel(picture, area->x + column.second, area->y + row.first, corner[1]);
    read_pixel(picture, area->x + column.first, area->y + row.second, corner[2]);
    read_pixel(picture, area->x + column.second, area->y + row.second, corner[3]);
    for (int channel = 0; channel < 4; channel++) {
        int64_t upper = (int64_t)corner[0][channel] * (FRACTION - column.weight) + (int64_t)corner[1][channel] * column.weight;
        int64_t lower = (int64_t)corner[2][channel] * (FRACTION - column.weight) + (int64_t)corner[3][channel] * column.weight;
        pixel[channel] = (int)((upper * (FRACTION - row.weight) + lower * row.weight + ((int64_t)1 << 31)) >> 32);
    }
}

/* Two differences for four pixels: their mean. *sums* has a place for each pair of a row. */
struct sums {
    int blue, red, count;
};

static void write_pixel(const struct picture *picture, int x, int y, const int pixel[4], struct sums *sums)
{
    const struct layout *layout = picture->layout;
    uint8_t *bytes = picture->bytes + ((size_t)y * (size_t)picture->wstride + (size_t)x) * (size_t)layout->bytes;
    if (layout->family == YUV_FAMILY) {
        bytes[0] = (uint8_t)pixel[0];
        struct sums *place = sums + x / 2;
        place->blue += pixel[1], place->red += pixel[2], place->count++;
    } else if (layout->family == GREY_FAMILY) {
        bytes[0] = (uint8_t)pixel[0];
    } else {
        if (layout->bytes == 4 && layout->order[3] < 0)
            bytes[3] = 255;
        for (int channel = 0; channel < 4; channel++)
            if (layout->order[channel] >= 0)
                bytes[layout->order[channel]] = (uint8_t)pixel[channel];
    }
}

static void write_chroma(const struct picture *picture, int y, struct sums *sums)
{
    const im_rect *area = &picture->rect;
    for (int pair = area->x / 2; pair <= (area->x + area->width - 1) / 2; pair++) {
        if (sums[pair].count > 0) {
            uint8_t *bytes = chroma(picture, 2 * pair, y);
            bytes[picture->layout->order[0]] = (uint8_t)((sums[pair].blue + sums[pair].count / 2) / sums[pair].count);
            bytes[picture->layout->order[1]] = (uint8_t)((sums[pair].red + sums[pair].count / 2) / sums[pair].count);
        }
        sums[pair] = (struct sums){0, 0, 0};
    }
}

/* Which pixel of the source's area, as it lies, stands at x, y of the turned and mirrored image of *out* pixels. */
static void turned(int usage, int width, int height, int *x, int *y)
{
    int from_x = *x, from_y = *y;
    if (usage & (IM_HAL_TRANSFORM_FLIP_H | IM_HAL_TRANSFORM_FLIP_H_V))
        from_x = width - 1 - from_x;
    if (usage & (IM_HAL_TRANSFORM_FLIP_V | IM_HAL_TRANSFORM_FLIP_H_V))
        from_y = height - 1 - from_y;
    if (usage & IM_HAL_TRANSFORM_ROT_90)
        *x = from_y, *y = width - 1 - from_x;
    else if (usage & IM_HAL_TRANSFORM_ROT_180)
        *x = width - 1 - from_x, *y = height - 1 - from_y;
    else if (usage & IM_HAL_TRANSFORM_ROT_270)
        *x = height - 1 - from_y, *y = from_x;
    else
        *x = from_x, *y = from_y;
}

static IM_STATUS transfer(const struct picture *from, const struct picture *to, int usage, int mode)
{
    int width = to->rect.width, height = to->rect.height, quarter = usage & (IM_HAL_TRANSFORM_ROT_90 | IM_HAL_TRANSFORM_ROT_270);
    int across = quarter ? height : width, down = quarter ? width : height; /* the result before it is turned */
    struct source *columns = malloc(sizeof *columns * (size_t)across), *rows = malloc(sizeof *rows * (size_t)down);
    struct sums *sums = calloc((size_t)to->wstride / 2 + 1, sizeof *sums);
    IM_STATUS status = columns == NULL || rows == NULL || sums == NULL ? anynpu_rga_refused(IM_STATUS_OUT_OF_MEMORY, "no memory") : IM_STATUS_SUCCESS;
    for (int index = 0; status == IM_STATUS_SUCCESS && index < across; index++)
        columns[index] = source_of(index, from->rect.width, across);
    for (int index = 0; status == IM_STATUS_SUCCESS && index < down; index++)
        rows[index] = source_of(index, from->rect.height, down);
    for (int y = 0; status == IM_STATUS_SUCCESS && y < height; y++) {
        for (int x = 0; x < width; x++) {
            int pixel[4], source_x = x, source_y = y;
            turned(usage, width, height, &source_x, &source_y);
            sample(from, columns[source_x], rows[source_y], pixel);
            convert(pixel, from->layout->family, to->layout->family, mode);
            write_pixel(to, to->rect.x + x, to->rect.y + y, pixel, sums);
        }
        int place = to->rect.y + y;
        if (to->layout->family == YUV_FAMILY && (place % 2 == 1 || y == height - 1))
            write_chroma(to, place, sums);
    }
    free(columns);
    free(rows);
    free(sums);
    return status;
}

static IM_STATUS run(const rga_buffer_t *src, const rga_buffer_t *dst, const im_rect *srect, const im_rect *drect, int usage)
{
    struct picture from, to;
    IM_STATUS status = anynpu_rga_attach(src, srect, "the source", &from);
    if (status != IM_STATUS_NOERROR)
        return status;
    status = anynpu_rga_attach(dst, drect, "the destination", &to);
    if (status == IM_STATUS_NOERROR)
        status = transfer(&from, &to, usage, src->color_space_mode | dst->color_space_mode);
    if (status == IM_STATUS_NOERROR)
        status = IM_STATUS_SUCCESS;
    if (to.mapped != NULL)
        anynpu_rga_detach(&to);
    anynpu_rga_detach(&from);
    return status;
}

/* calls */

EXPORT IM_STATUS imresize_t(const rga_buffer_t src, rga_buffer_t dst, double fx, double fy, int interpolation, int sync)
{
    (void)sync, (void)interpolation; /* what is not given and the nearest pixel are the same number there: always linear */
    if (fx > 0 && fy > 0 && dst.width <= 0 && dst.height <= 0) {
        dst.width = (int)(src.width * fx), dst.height = (int)(src.height * fy);
        dst.wstride = dst.wstride > 0 ? dst.wstride : dst.width, dst.hstride = dst.hstride > 0 ? dst.hstride : dst.height;
    }
    return run(&src, &dst, NULL, NULL, 0);
}

EXPORT IM_STATUS imcrop_t(const rga_buffer_t src, rga_buffer_t dst, im_rect rect, int sync)
{
    (void)sync;
    return run(&src, &dst, &rect, NULL, 0);
}

EXPORT IM_STATUS imcopy_t(const rga_buffer_t src, rga_buffer_t dst, int sync)
{
    (void)sync;
    if (src.width != dst.width || src.height != dst.height)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "a copy of %d x %d pixels has %d x %d", src.width, src.height, dst.width, dst.height);
    return run(&src, &dst, NULL, NULL, 0);
}

EXPORT IM_STATUS imcvtcolor_t(rga_buffer_t src, rga_buffer_t dst, int sfmt, int dfmt, int mode, int sync)
{
    (void)sync;
    src.format = sfmt;
    dst.format = dfmt;
    dst.color_space_mode |= mode;
    return run(&src, &dst, NULL, NULL, 0);
}

EXPORT IM_STATUS imrotate_t(const rga_buffer_t src, rga_buffer_t dst, int rotation, int sync)
{
    (void)sync;
    return run(&src, &dst, NULL, NULL, rotation & IM_HAL_TRANSFORM_MASK);
}

EXPORT IM_STATUS imflip_t(const rga_buffer_t src, rga_buffer_t dst, int mode, int sync)
{
    (void)sync;
    return run(&src, &dst, NULL, NULL, mode & IM_HAL_TRANSFORM_MASK);
}

EXPORT IM_STATUS imfill_t(rga_buffer_t dst, im_rect rect, int color, int sync)
{
    (void)sync;
    struct picture to;
    IM_STATUS status = anynpu_rga_attach(&dst, &rect, "the destination", &to);
    if (status != IM_STATUS_NOERROR)
        return status;
    int pixel[4] = {color & 0xff, color >> 8 & 0xff, color >> 16 & 0xff, color >> 24 & 0xff};
    convert(pixel, RGB_FAMILY, to.layout->family, dst.color_space_mode);
    struct sums *sums = calloc((size_t)to.wstride / 2 + 1, sizeof *sums);
    for (int y = 0; sums != NULL && y < to.rect.height; y++) {
        for (int x = 0; x < to.rect.width; x++)
            write_pixel(&to, to.rect.x + x, to.rect.y + y, pixel, sums);
        int place = to.rect.y + y;
        if (to.layout->family == YUV_FAMILY && (place % 2 == 1 || y == to.rect.height - 1))
            write_chroma(&to, place, sums);
    }
    status = sums == NULL ? anynpu_rga_refused(IM_STATUS_OUT_OF_MEMORY, "no memory") : IM_STATUS_SUCCESS;
    free(sums);
    anynpu_rga_detach(&to);
    return status;
}

/* Where a pixel of a border comes from, on an axis of *size* pixels; -1: it has the color of the border. */
static int mirrored(int index, int size, int type)
{
    if (index >= 0 && index < size)
        return index;
    if (type == IM_BORDER_CONSTANT)
        return -1;
    int period = type == IM_BORDER_REFLECT ? 2 * size : size;
    int place = (index % period + period) % period;
    return place < size ? place : period - 1 - place;
}

static IM_STATUS surround(const struct picture *from, const struct picture *to, int top, int left, int type, int value, int mode)
{
    int color[4] = {value & 0xff, value >> 8 & 0xff, value >> 16 & 0xff, value >> 24 & 0xff};
    convert(color, RGB_FAMILY, to->layout->family, mode);
    struct sums *sums = calloc((size_t)to->wstride / 2 + 1, sizeof *sums);
    if (sums == NULL)
        return anynpu_rga_refused(IM_STATUS_OUT_OF_MEMORY, "no memory");
    for (int y = 0; y < to->rect.height; y++) {
        int row = mirrored(y - top, from->rect.height, type);
        for (int x = 0; x < to->rect.width; x++) {
            int column = mirrored(x - left, from->rect.width, type), pixel[4];
            if (row < 0 || column < 0) {
                memcpy(pixel, color, sizeof color);
            } else {
                read_pixel(from, column, row, pixel);
                convert(pixel, from->layout->family, to->layout->family, mode);
            }
            write_pixel(to, x, y, pixel, sums);
        }
        if (to->layout->family == YUV_FAMILY && (y % 2 == 1 || y == to->rect.height - 1))
            write_chroma(to, y, sums);
    }
    free(sums);
    return IM_STATUS_SUCCESS;
}

EXPORT IM_STATUS immakeBorderAsync(rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left, int right, int type, int value,
                                   int sync, int acquire_fence_fd, int *release_fence_fd)
{
    (void)sync, (void)acquire_fence_fd;
    if (release_fence_fd != NULL)
        *release_fence_fd = -1;
    if (type != IM_BORDER_CONSTANT && type != IM_BORDER_REFLECT && type != IM_BORDER_WRAP)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "there is no border of type %d", type);
    if (top < 0 || bottom < 0 || left < 0 || right < 0 || top > MAX_SIDE || bottom > MAX_SIDE || left > MAX_SIDE || right > MAX_SIDE)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "a border of %d, %d, %d and %d pixels is not possible", top, bottom, left, right);
    struct picture from, to;
    IM_STATUS status = anynpu_rga_attach(&src, NULL, "the source", &from);
    if (status != IM_STATUS_NOERROR)
        return status;
    im_rect area = {0, 0, src.width + left + right, src.height + top + bottom};
    status = anynpu_rga_attach(&dst, &area, "the destination", &to);
    if (status == IM_STATUS_NOERROR)
        status = surround(&from, &to, top, left, type, value, src.color_space_mode | dst.color_space_mode);
    anynpu_rga_detach(&to);
    anynpu_rga_detach(&from);
    return status;
}

EXPORT IM_STATUS imtranslate_t(const rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync)
{
    (void)sync;
    if (src.width != dst.width || src.height != dst.height)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "%d x %d pixels are moved into %d x %d", src.width, src.height, dst.width, dst.height);
    if (x < 0 || y < 0 || x >= src.width || y >= src.height)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "%d,%d lies outside of the destination", x, y);
    im_rect from = {0, 0, src.width - x, src.height - y}, into = {x, y, src.width - x, src.height - y};
    return run(&src, &dst, &from, &into, 0);
}

EXPORT IM_STATUS imrectangle_t(rga_buffer_t dst, im_rect rect, uint32_t color, int thickness, int sync)
{
    if (thickness == 0)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "lines of 0 pixels cannot be drawn");
    if (thickness < 0 || thickness >= (rect.width + 1) / 2 || thickness >= (rect.height + 1) / 2)
        return imfill_t(dst, rect, (int)color, sync);
    struct picture picture;
    IM_STATUS status = anynpu_rga_look(&dst, &rect, "the destination", &picture);
    if (status != IM_STATUS_NOERROR)
        return status;
    im_rect lines[4] = {{rect.x, rect.y, rect.width, thickness},
                        {rect.x, rect.y + rect.height - thickness, rect.width, thickness},
                        {rect.x, rect.y, thickness, rect.height},
                        {rect.x + rect.width - thickness, rect.y, thickness, rect.height}};
    status = IM_STATUS_SUCCESS;
    for (int line = 0; line < 4 && status == IM_STATUS_SUCCESS; line++)
        status = imfill_t(dst, lines[line], (int)color, sync);
    return status;
}

static int is_supported(int usage)
{
    return (usage & ~(IM_HAL_TRANSFORM_MASK | IM_SYNC | IM_CROP | IM_ASYNC | IM_COLOR_FILL)) == 0;
}

EXPORT IM_STATUS improcess_t(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect,
                             int acquire_fence_fd, int *release_fence_fd, im_opt_t *opt, int usage)
{
    (void)pat, (void)prect, (void)acquire_fence_fd;
    if (release_fence_fd != NULL)
        *release_fence_fd = -1;
    if (!is_supported(usage))
        return anynpu_rga_refused(IM_STATUS_NOT_SUPPORTED, "blending, palettes and other work of usage %#x are not supported", usage);
    if (usage & IM_COLOR_FILL)
        return imfill_t(dst, drect, opt != NULL ? opt->color : dst.color, 1);
    return run(&src, &dst, &srect, &drect, usage & IM_HAL_TRANSFORM_MASK);
}

EXPORT IM_STATUS imcheck_t(const rga_buffer_t src, const rga_buffer_t dst, const rga_buffer_t pat, const im_rect src_rect,
                           const im_rect dst_rect, const im_rect pat_rect, const int mode_usage)
{
    (void)pat, (void)pat_rect;
    struct picture picture;
    if (!is_supported(mode_usage))
        return anynpu_rga_refused(IM_STATUS_NOT_SUPPORTED, "work of usage %#x is not supported", mode_usage);
    IM_STATUS status = mode_usage & IM_COLOR_FILL ? IM_STATUS_NOERROR : anynpu_rga_look(&src, &src_rect, "the source", &picture);
    return status != IM_STATUS_NOERROR ? status : anynpu_rga_look(&dst, mode_usage & IM_CROP ? NULL : &dst_rect, "the destination", &picture);
}

EXPORT IM_STATUS imsync(int fence_fd)
{
    (void)fence_fd; /* all work is done when a call returns */
    return IM_STATUS_SUCCESS;
}

EXPORT IM_STATUS imconfig(IM_CONFIG_NAME name, uint64_t value)
{
    (void)name, (void)value;
    return IM_STATUS_SUCCESS;
}

EXPORT IM_STATUS imsetColorSpace(rga_buffer_t *buffer, IM_COLOR_SPACE_MODE mode)
{
    if (buffer == NULL)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "the buffer is null");
    buffer->color_space_mode = (int)mode;
    return IM_STATUS_SUCCESS;
}

EXPORT const char *imStrError_t(IM_STATUS status)
{
    static __thread char text[512];
    const char *word = status == IM_STATUS_NOERROR         ? "No errors during operation"
                       : status == IM_STATUS_SUCCESS       ? "Run successfully"
                       : status == IM_STATUS_NOT_SUPPORTED ? "Unsupported function"
                       : status == IM_STATUS_OUT_OF_MEMORY ? "Memory overflow"
                       : status == IM_STATUS_INVALID_PARAM ? "Invalid parameters"
                       : status == IM_STATUS_ILLEGAL_PARAM ? "Illegal parameters"
                       : status == IM_STATUS_FAILED        ? "Fatal error"
                                                           : "Unknown status";
    if (status == IM_STATUS_NOERROR || status == IM_STATUS_SUCCESS)
        return word;
    snprintf(text, sizeof text, "%s: %s", word, anynpu_rga_reason());
    return text;
}

EXPORT const char *querystring(int name)
{
    static const char *const lines[] = {
        "RGA vendor            : anynpu, on the processor\n",
        "RGA_api version       : v 1.10.1_[0] (anynpu)\n",
        "Max input             : 8192x8192\n",
        "Max output            : 8192x8192\n",
        "Byte stride           : 1 byte\n",
        "Scale limit           : 1/8192 ~ 8192\n",
        "Input support format  : RGBA_8888 RGBX_8888 BGRA_8888 BGRX_8888 RGB_888 BGR_888 YUV420_sp_8bit YUV400\n",
        "Output support format : RGBA_8888 RGBX_8888 BGRA_8888 BGRX_8888 RGB_888 BGR_888 YUV420_sp_8bit YUV400\n",
        "RGA feature           : color_fill\n",
        "Expected performance  : that of the processor\n",
    };
    static __thread char all[2048];
    if (name >= 0 && name < RGA_ALL)
        return lines[name];
    if (name != RGA_ALL)
        return "there is no such information\n";
    all[0] = '\0';
    for (size_t index = 0; index < sizeof lines / sizeof *lines; index++)
        strncat(all, lines[index], sizeof all - strlen(all) - 1);
    return all;
}

EXPORT int c_RkRgaInit(void)
{
    return 0;
}

EXPORT void c_RkRgaDeInit(void)
{
}
