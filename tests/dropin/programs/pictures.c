/* An image through librga, by address, descriptor and handle, as the vendor's programs do it: in C and in C++. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rga/im2d.h"
#include "RgaUtils.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, imStrError(IM_STATUS_FAILED)); \
            exit(1); \
        } \
    } while (0)

enum { W = 8, H = 6, OUT = 4 };

int main(void)
{
    unsigned char rgb[W * H * 3], bgr[W * H * 3], small[OUT * OUT * 3], again[OUT * OUT * 3];
    for (int index = 0; index < W * H * 3; index++)
        rgb[index] = (unsigned char)(index * 7);
    rga_buffer_t src = wrapbuffer_virtualaddr((void *)rgb, W, H, RK_FORMAT_RGB_888);
    rga_buffer_t dst = wrapbuffer_virtualaddr((void *)bgr, W, H, RK_FORMAT_BGR_888, W, H);
    CHECK(imcvtcolor(src, dst, RK_FORMAT_RGB_888, RK_FORMAT_BGR_888) == IM_STATUS_SUCCESS);
    for (int pixel = 0; pixel < W * H; pixel++)
        CHECK(bgr[3 * pixel] == rgb[3 * pixel + 2] && bgr[3 * pixel + 1] == rgb[3 * pixel + 1]);

    im_rect area;
    memset(&area, 0, sizeof area);
    rga_buffer_t out = wrapbuffer_virtualaddr((void *)small, OUT, OUT, RK_FORMAT_RGB_888);
    CHECK(imcheck(src, out, area, area) == IM_STATUS_NOERROR);
    CHECK(imresize(src, out) == IM_STATUS_SUCCESS);

    int fd = memfd_create("picture", 0);
    CHECK(fd >= 0 && write(fd, rgb, sizeof rgb) == (ssize_t)sizeof rgb);
    im_handle_param_t param = {W, H, RK_FORMAT_RGB_888};
    rga_buffer_handle_t handle = importbuffer_fd(fd, &param);
    CHECK(handle != 0);
    rga_buffer_t held = wrapbuffer_handle(handle, W, H, RK_FORMAT_RGB_888), pattern;
    rga_buffer_t second = wrapbuffer_virtualaddr((void *)again, OUT, OUT, RK_FORMAT_RGB_888);
    memset(&pattern, 0, sizeof pattern);
    im_rect whole = {0, 0, W, H}, result = {0, 0, OUT, OUT}, none = {0, 0, 0, 0};
    CHECK(improcess(held, second, pattern, whole, result, none, 0, NULL, NULL, IM_SYNC) == IM_STATUS_SUCCESS);
    CHECK(memcmp(small, again, sizeof small) == 0);
    CHECK(improcess(wrapbuffer_fd(fd, W, H, RK_FORMAT_RGB_888), second, pattern, whole, result, none, IM_SYNC) == IM_STATUS_SUCCESS);
    CHECK(memcmp(small, again, sizeof small) == 0);
    CHECK(releasebuffer_handle(handle) == IM_STATUS_SUCCESS);
    CHECK(releasebuffer_handle(handle) != IM_STATUS_SUCCESS);
    CHECK(improcess(held, second, pattern, whole, result, none, IM_SYNC) == IM_STATUS_INVALID_PARAM);

    IM_STATUS status = imcvtcolor(src, dst, RK_FORMAT_RGB_888, RK_FORMAT_RGB_565);
    CHECK(status == IM_STATUS_NOT_SUPPORTED && strstr(imStrError(status), "0x400") != NULL);
    CHECK(get_bpp_from_format(RK_FORMAT_YCbCr_420_SP) == 1.5f && strstr(querystring(RGA_ALL), "RGA_api version") != NULL);
    close(fd);
    printf("done\n");
    return 0;
}
