/* librga: memory of images, by address, descriptor and handle.
 *
 * State and locks: the table of imported memory, under one lock. A handle is its place in the table and the number of times that it was
 * used, so that one that was released is rejected. Memory that is given by descriptor is mapped for the length of a call. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rga_picture.h"

static const struct layout layouts[] = {
    {RK_FORMAT_RGBA_8888, RGB_FAMILY, 4, {0, 1, 2, 3}},     {RK_FORMAT_RGBX_8888, RGB_FAMILY, 4, {0, 1, 2, -1}},
    {RK_FORMAT_BGRA_8888, RGB_FAMILY, 4, {2, 1, 0, 3}},     {RK_FORMAT_BGRX_8888, RGB_FAMILY, 4, {2, 1, 0, -1}},
    {RK_FORMAT_RGB_888, RGB_FAMILY, 3, {0, 1, 2, -1}},      {RK_FORMAT_BGR_888, RGB_FAMILY, 3, {2, 1, 0, -1}},
    {RK_FORMAT_YCbCr_420_SP, YUV_FAMILY, 1, {0, 1, -1, -1}}, {RK_FORMAT_YCrCb_420_SP, YUV_FAMILY, 1, {1, 0, -1, -1}},
    {RK_FORMAT_YCbCr_400, GREY_FAMILY, 1, {0, -1, -1, -1}},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int used;
    uint32_t times;
    int fd;
    void *address;
    size_t size;
} imported[MAX_HANDLES];

static __thread char reason[256];

IM_STATUS anynpu_rga_refused(IM_STATUS status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    return status;
}

const struct layout *anynpu_rga_layout(int format)
{
    for (size_t index = 0; index < sizeof layouts / sizeof *layouts; index++)
        if (layouts[index].format == format)
            return &layouts[index];
    return NULL;
}

EXPORT float get_bpp_from_format(int format)
{
    const struct layout *layout = anynpu_rga_layout(format);
    if (layout == NULL)
        return 0.0f;
    return layout->family == YUV_FAMILY ? 1.5f : (float)layout->bytes;
}

static size_t bytes_of(const struct layout *layout, size_t width, size_t height)
{
    return layout->family == YUV_FAMILY ? width * height + 2 * ((width + 1) / 2) * ((height + 1) / 2) : width * height * (size_t)layout->bytes;
}

const char *anynpu_rga_reason(void)
{
    return reason;
}

/* memory */

EXPORT rga_buffer_handle_t anynpu_importbuffer(int fd, void *va, size_t size)
{
    struct stat status;
    if ((va == NULL && (fd < 0 || fstat(fd, &status) != 0)) || size == 0) {
        anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "there is no memory at this address or descriptor");
        return 0;
    }
    rga_buffer_handle_t handle = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t place = 0; place < MAX_HANDLES && handle == 0; place++) {
        if (!imported[place].used) {
            imported[place].used = 1;
            imported[place].times = (imported[place].times + 1) & 0xffff;
            imported[place].fd = va == NULL ? dup(fd) : -1;
            imported[place].address = va;
            imported[place].size = size;
            handle = imported[place].times << 13 | (place + 1);
        }
    }
    pthread_mutex_unlock(&lock);
    if (handle == 0)
        anynpu_rga_refused(IM_STATUS_OUT_OF_MEMORY, "%d buffers are imported already", MAX_HANDLES);
    return handle;
}

static rga_buffer_handle_t import(int fd, void *va, const im_handle_param_t *param)
{
    const struct layout *layout = param == NULL ? NULL : anynpu_rga_layout((int)param->format);
    if (layout == NULL || param->width == 0 || param->height == 0 || param->width > MAX_SIDE || param->height > MAX_SIDE) {
        anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "the picture has no size, or a format that is not supported");
        return 0;
    }
    return anynpu_importbuffer(fd, va, bytes_of(layout, param->width, param->height));
}

EXPORT rga_buffer_handle_t importbuffer_fd(int fd, im_handle_param_t *param)
{
    return import(fd, NULL, param);
}

EXPORT rga_buffer_handle_t importbuffer_virtualaddr(void *va, im_handle_param_t *param)
{
    if (va == NULL) {
        anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "the address is null");
        return 0;
    }
    return import(-1, va, param);
}

EXPORT rga_buffer_handle_t importbuffer_physicaladdr(uint64_t pa, im_handle_param_t *param)
{
    (void)pa, (void)param;
    anynpu_rga_refused(IM_STATUS_NOT_SUPPORTED, "there are no physical addresses here");
    return 0;
}

static long place_of(rga_buffer_handle_t handle)
{
    uint32_t place = (handle & 0x1fff) - 1;
    return place < MAX_HANDLES && imported[place].used && imported[place].times == handle >> 13 ? (long)place : -1;
}

EXPORT IM_STATUS releasebuffer_handle(rga_buffer_handle_t handle)
{
    pthread_mutex_lock(&lock);
    long place = place_of(handle);
    if (place >= 0) {
        imported[place].used = 0;
        if (imported[place].fd >= 0)
            close(imported[place].fd);
    }
    pthread_mutex_unlock(&lock);
    return place >= 0 ? IM_STATUS_SUCCESS : anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "there is no buffer %#x", handle);
}

static rga_buffer_t wrapped(void *address, int fd, rga_buffer_handle_t handle, int width, int height, int wstride, int hstride, int format)
{
    rga_buffer_t buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.vir_addr = address;
    buffer.fd = fd;
    buffer.handle = handle;
    buffer.width = width;
    buffer.height = height;
    buffer.wstride = wstride;
    buffer.hstride = hstride;
    buffer.format = format;
    return buffer;
}

EXPORT rga_buffer_t wrapbuffer_virtualaddr_t(void *vir_addr, int width, int height, int wstride, int hstride, int format)
{
    return wrapped(vir_addr, -1, 0, width, height, wstride, hstride, format);
}

EXPORT rga_buffer_t wrapbuffer_physicaladdr_t(void *phy_addr, int width, int height, int wstride, int hstride, int format)
{
    rga_buffer_t buffer = wrapped(NULL, -1, 0, width, height, wstride, hstride, format);
    buffer.phy_addr = phy_addr;
    return buffer;
}

EXPORT rga_buffer_t wrapbuffer_fd_t(int fd, int width, int height, int wstride, int hstride, int format)
{
    return wrapped(NULL, fd, 0, width, height, wstride, hstride, format);
}

EXPORT rga_buffer_t wrapbuffer_handle_t(rga_buffer_handle_t handle, int width, int height, int wstride, int hstride, int format)
{
    return wrapped(NULL, -1, handle, width, height, wstride, hstride, format);
}

/* An image that can be read and written, or why not. */
IM_STATUS anynpu_rga_look(const rga_buffer_t *buffer, const im_rect *rect, const char *what, struct picture *picture)
{
    memset(picture, 0, sizeof *picture);
    picture->layout = anynpu_rga_layout(buffer->format);
    picture->wstride = buffer->wstride > 0 ? buffer->wstride : buffer->width;
    picture->hstride = buffer->hstride > 0 ? buffer->hstride : buffer->height;
    if (buffer->width <= 0 || buffer->height <= 0 || buffer->width > MAX_SIDE || buffer->height > MAX_SIDE)
        return anynpu_rga_refused(IM_STATUS_ILLEGAL_PARAM, "%s has %d x %d pixels", what, buffer->width, buffer->height);
    if (picture->wstride < buffer->width || picture->hstride < buffer->height || picture->wstride > 4 * MAX_SIDE || picture->hstride > 4 * MAX_SIDE)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "%s has strides of %d and %d pixels", what, picture->wstride, picture->hstride);
    if (picture->layout == NULL)
        return anynpu_rga_refused(IM_STATUS_NOT_SUPPORTED, "%s has the format %#x, which is not supported", what, buffer->format);
    picture->rect = rect == NULL || rect->width == 0 || rect->height == 0 ? (im_rect){0, 0, buffer->width, buffer->height} : *rect;
    const im_rect *area = &picture->rect;
    if (area->x < 0 || area->y < 0 || area->width <= 0 || area->height <= 0 || area->x > picture->wstride - area->width ||
        area->y > picture->hstride - area->height)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "the area %d,%d %dx%d lies outside of %s", area->x, area->y, area->width, area->height, what);
    if (buffer->handle == 0 && buffer->vir_addr == NULL && buffer->fd < 0)
        return anynpu_rga_refused(buffer->phy_addr != NULL ? IM_STATUS_NOT_SUPPORTED : IM_STATUS_INVALID_PARAM, "%s has no memory that can be used", what);
    return IM_STATUS_NOERROR;
}

static IM_STATUS map_fd(struct picture *picture, int fd, size_t size, const char *what)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && status.st_size > 0 && (size_t)status.st_size < size)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "%s takes %zu bytes, its descriptor has %zu", what, size, (size_t)status.st_size);
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "the descriptor of %s cannot be mapped: %m", what);
    picture->mapped = picture->bytes = mapped;
    picture->mapped_size = size;
    return IM_STATUS_NOERROR;
}

IM_STATUS anynpu_rga_attach(const rga_buffer_t *buffer, const im_rect *rect, const char *what, struct picture *picture)
{
    IM_STATUS status = anynpu_rga_look(buffer, rect, what, picture);
    if (status != IM_STATUS_NOERROR)
        return status;
    size_t size = bytes_of(picture->layout, (size_t)picture->wstride, (size_t)picture->hstride);
    if (buffer->handle == 0 && buffer->vir_addr != NULL) {
        picture->bytes = buffer->vir_addr;
        return IM_STATUS_NOERROR;
    }
    if (buffer->handle == 0)
        return map_fd(picture, buffer->fd, size, what);
    pthread_mutex_lock(&lock);
    long place = place_of(buffer->handle);
    if (place < 0)
        status = anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "%s has the handle %#x, which does not exist", what, buffer->handle);
    else if (imported[place].size < size)
        status = anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "%s takes %zu bytes, its buffer has %zu", what, size, imported[place].size);
    else if (imported[place].address != NULL)
        picture->bytes = imported[place].address;
    else
        status = map_fd(picture, imported[place].fd, size, what);
    pthread_mutex_unlock(&lock);
    return status;
}

void anynpu_rga_detach(struct picture *picture)
{
    if (picture->mapped != NULL)
        munmap(picture->mapped, picture->mapped_size);
}
