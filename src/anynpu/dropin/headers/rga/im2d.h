/* Images by RGA's calls (im2d), on the processor: what programs for Rockchip's boards scale and convert images with.
 *
 * The names, values and arguments are those of the interface; a program that is compiled with this header runs with the librga.so beside it.
 * Formats that are scaled and converted: RGB, BGR and RGBA in their orders, gray, NV12 and NV21. Others are named here, and answer with
 * IM_STATUS_NOT_SUPPORTED, as do blending, palettes and what else needs the hardware. */
#ifndef ANYNPU_IM2D_H
#define ANYNPU_IM2D_H

#include <stddef.h>
#include <stdint.h>

#define IM_API
#ifdef __cplusplus
#define IM_C_API extern "C"
#define IM_EXPORT_API extern "C"
#else
#define IM_C_API
#define IM_EXPORT_API
#endif

typedef uint32_t im_ctx_id_t;
typedef uint32_t im_job_handle_t;
typedef uint32_t im_api_version_t;
typedef uint32_t rga_buffer_handle_t;

typedef enum _Rga_SURF_FORMAT {
  RK_FORMAT_RGBA_8888 = 0x0 << 8,
  RK_FORMAT_RGBX_8888 = 0x1 << 8,
  RK_FORMAT_RGB_888 = 0x2 << 8,
  RK_FORMAT_BGRA_8888 = 0x3 << 8,
  RK_FORMAT_RGB_565 = 0x4 << 8,
  RK_FORMAT_RGBA_5551 = 0x5 << 8,
  RK_FORMAT_RGBA_4444 = 0x6 << 8,
  RK_FORMAT_BGR_888 = 0x7 << 8,
  RK_FORMAT_YCbCr_422_SP = 0x8 << 8,
  RK_FORMAT_YCbCr_422_P = 0x9 << 8,
  RK_FORMAT_YCbCr_420_SP = 0xa << 8,
  RK_FORMAT_YCbCr_420_P = 0xb << 8,
  RK_FORMAT_YCrCb_422_SP = 0xc << 8,
  RK_FORMAT_YCrCb_422_P = 0xd << 8,
  RK_FORMAT_YCrCb_420_SP = 0xe << 8,
  RK_FORMAT_YCrCb_420_P = 0xf << 8,
  RK_FORMAT_YCbCr_400 = 0x15 << 8,
  RK_FORMAT_BGRX_8888 = 0x16 << 8,
  RK_FORMAT_YVYU_422 = 0x18 << 8,
  RK_FORMAT_VYUY_422 = 0x1a << 8,
  RK_FORMAT_YUYV_422 = 0x1c << 8,
  RK_FORMAT_UYVY_422 = 0x1e << 8,
  RK_FORMAT_UNKNOWN = 0x100 << 8
} RgaSURF_FORMAT;

typedef enum {
  IM_HAL_TRANSFORM_ROT_90 = 1 << 0,
  IM_HAL_TRANSFORM_ROT_180 = 1 << 1,
  IM_HAL_TRANSFORM_ROT_270 = 1 << 2,
  IM_HAL_TRANSFORM_FLIP_H = 1 << 3,
  IM_HAL_TRANSFORM_FLIP_V = 1 << 4,
  IM_HAL_TRANSFORM_FLIP_H_V = 1 << 5,
  IM_HAL_TRANSFORM_MASK = 0x3f,
  IM_ALPHA_BLEND_SRC_OVER = 1 << 6,
  IM_ALPHA_BLEND_SRC = 1 << 7,
  IM_ALPHA_BLEND_DST = 1 << 8,
  IM_ALPHA_BLEND_MASK = 0x1ffc0,
  IM_ALPHA_COLORKEY_NORMAL = 1 << 17,
  IM_ALPHA_COLORKEY_INVERTED = 1 << 18,
  IM_ALPHA_COLORKEY_MASK = 0x60000,
  IM_SYNC = 1 << 19,
  IM_CROP = 1 << 20,
  IM_COLOR_FILL = 1 << 21,
  IM_COLOR_PALETTE = 1 << 22,
  IM_NN_QUANTIZE = 1 << 23,
  IM_ROP = 1 << 24,
  IM_ALPHA_BLEND_PRE_MUL = 1 << 25,
  IM_ASYNC = 1 << 26,
  IM_MOSAIC = 1 << 27,
  IM_OSD = 1 << 28,
  IM_PRE_INTR = 1 << 29
} IM_USAGE;

typedef enum {
  IM_YUV_TO_RGB_BT601_LIMIT = 1,
  IM_YUV_TO_RGB_BT601_FULL = 2,
  IM_YUV_TO_RGB_BT709_LIMIT = 3,
  IM_YUV_TO_RGB_MASK = 3,
  IM_RGB_TO_YUV_BT601_FULL = 1 << 2,
  IM_RGB_TO_YUV_BT601_LIMIT = 2 << 2,
  IM_RGB_TO_YUV_BT709_LIMIT = 3 << 2,
  IM_RGB_TO_YUV_MASK = 3 << 2,
  IM_COLOR_SPACE_DEFAULT = 0
} IM_COLOR_SPACE_MODE;

typedef enum { INTER_NEAREST, INTER_LINEAR, INTER_CUBIC } IM_SCALE_MODE;
#define IM_INTERP_DEFAULT 0

typedef enum {
  RGA_VENDOR = 0,
  RGA_VERSION,
  RGA_MAX_INPUT,
  RGA_MAX_OUTPUT,
  RGA_BYTE_STRIDE,
  RGA_SCALE_LIMIT,
  RGA_INPUT_FORMAT,
  RGA_OUTPUT_FORMAT,
  RGA_FEATURE,
  RGA_EXPECTED,
  RGA_ALL
} IM_INFORMATION;

typedef enum {
  IM_STATUS_NOERROR = 2,
  IM_STATUS_SUCCESS = 1,
  IM_STATUS_NOT_SUPPORTED = -1,
  IM_STATUS_OUT_OF_MEMORY = -2,
  IM_STATUS_INVALID_PARAM = -3,
  IM_STATUS_ILLEGAL_PARAM = -4,
  IM_STATUS_ERROR_VERSION = -5,
  IM_STATUS_NO_SESSION = -6,
  IM_STATUS_FAILED = 0
} IM_STATUS;

typedef enum {
  IM_SCHEDULER_RGA3_CORE0 = 1 << 0,
  IM_SCHEDULER_RGA3_CORE1 = 1 << 1,
  IM_SCHEDULER_RGA2_CORE0 = 1 << 2,
  IM_SCHEDULER_DEFAULT = 0
} IM_SCHEDULER_CORE;

typedef enum { IM_CONFIG_SCHEDULER_CORE, IM_CONFIG_PRIORITY, IM_CONFIG_CHECK } IM_CONFIG_NAME;

typedef enum { IM_BORDER_CONSTANT = 0, IM_BORDER_REFLECT = 2, IM_BORDER_WRAP = 3 } IM_BORDER_TYPE;

typedef struct {
  int x;
  int y;
  int width;
  int height;
} im_rect;

typedef struct {
  int max;
  int min;
} im_colorkey_range;

typedef struct im_nn {
  int scale_r;
  int scale_g;
  int scale_b;
  int offset_r;
  int offset_g;
  int offset_b;
} im_nn_t;

/* An image: its memory is *vir_addr*, *fd* or *handle*, the first of handle, address and descriptor that is given; strides in pixels. */
typedef struct {
  void *vir_addr;
  void *phy_addr;
  int fd;
  int width;
  int height;
  int wstride;
  int hstride;
  int format;
  int color_space_mode;
  int global_alpha;
  int rd_mode;
  int color;
  im_colorkey_range colorkey_range;
  im_nn_t nn;
  int rop_code;
  rga_buffer_handle_t handle;
} rga_buffer_t;

typedef struct im_opt {
  im_api_version_t version;
  int color;
  im_colorkey_range colorkey_range;
  im_nn_t nn;
  int rop_code;
  int priority;
  int core;
  char reserve[256];
} im_opt_t;

typedef struct im_handle_param {
  uint32_t width;
  uint32_t height;
  uint32_t format;
} im_handle_param_t;

#ifdef __cplusplus
extern "C" {
#endif

rga_buffer_t wrapbuffer_virtualaddr_t(void *vir_addr, int width, int height, int wstride, int hstride, int format);
rga_buffer_t wrapbuffer_physicaladdr_t(void *phy_addr, int width, int height, int wstride, int hstride, int format);
rga_buffer_t wrapbuffer_fd_t(int fd, int width, int height, int wstride, int hstride, int format);
rga_buffer_t wrapbuffer_handle_t(rga_buffer_handle_t handle, int width, int height, int wstride, int hstride, int format);

rga_buffer_handle_t importbuffer_fd(int fd, im_handle_param_t *param);
rga_buffer_handle_t importbuffer_virtualaddr(void *va, im_handle_param_t *param);
rga_buffer_handle_t importbuffer_physicaladdr(uint64_t pa, im_handle_param_t *param);
rga_buffer_handle_t anynpu_importbuffer(int fd, void *va, size_t size);
IM_STATUS releasebuffer_handle(rga_buffer_handle_t handle);

IM_STATUS imresize_t(const rga_buffer_t src, rga_buffer_t dst, double fx, double fy, int interpolation, int sync);
IM_STATUS imcrop_t(const rga_buffer_t src, rga_buffer_t dst, im_rect rect, int sync);
IM_STATUS imcopy_t(const rga_buffer_t src, rga_buffer_t dst, int sync);
IM_STATUS imcvtcolor_t(rga_buffer_t src, rga_buffer_t dst, int sfmt, int dfmt, int mode, int sync);
IM_STATUS imrotate_t(const rga_buffer_t src, rga_buffer_t dst, int rotation, int sync);
IM_STATUS imflip_t(const rga_buffer_t src, rga_buffer_t dst, int mode, int sync);
IM_STATUS imfill_t(rga_buffer_t dst, im_rect rect, int color, int sync);
IM_STATUS imtranslate_t(const rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync);
IM_STATUS imrectangle_t(rga_buffer_t dst, im_rect rect, uint32_t color, int thickness, int sync);
IM_STATUS immakeBorderAsync(rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left, int right, int border_type, int value,
                            int sync, int acquire_fence_fd, int *release_fence_fd);
IM_STATUS improcess_t(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect,
                      int acquire_fence_fd, int *release_fence_fd, im_opt_t *opt, int usage);
IM_STATUS imcheck_t(const rga_buffer_t src, const rga_buffer_t dst, const rga_buffer_t pat, const im_rect src_rect, const im_rect dst_rect,
                    const im_rect pat_rect, const int mode_usage);
IM_STATUS imsync(int fence_fd);
IM_STATUS imconfig(IM_CONFIG_NAME name, uint64_t value);
IM_STATUS imsetColorSpace(rga_buffer_t *buffer, IM_COLOR_SPACE_MODE mode);
const char *imStrError_t(IM_STATUS status);
const char *querystring(int name);
float get_bpp_from_format(int format);
int c_RkRgaInit(void);
void c_RkRgaDeInit(void);

#ifdef __cplusplus
} /* extern "C" */

static inline rga_buffer_handle_t importbuffer_fd(int fd, int size) { return anynpu_importbuffer(fd, NULL, (size_t)size); }
static inline rga_buffer_handle_t importbuffer_virtualaddr(void *va, int size) { return anynpu_importbuffer(-1, va, (size_t)size); }
static inline rga_buffer_handle_t importbuffer_fd(int fd, int width, int height, int format)
{
  im_handle_param_t param = {(uint32_t)width, (uint32_t)height, (uint32_t)format};
  return importbuffer_fd(fd, &param);
}
static inline rga_buffer_handle_t importbuffer_virtualaddr(void *va, int width, int height, int format)
{
  im_handle_param_t param = {(uint32_t)width, (uint32_t)height, (uint32_t)format};
  return importbuffer_virtualaddr(va, &param);
}
static inline rga_buffer_t wrapbuffer_virtualaddr(void *vir_addr, int width, int height, int format, int wstride = 0, int hstride = 0)
{
  return wrapbuffer_virtualaddr_t(vir_addr, width, height, wstride ? wstride : width, hstride ? hstride : height, format);
}
static inline rga_buffer_t wrapbuffer_physicaladdr(void *phy_addr, int width, int height, int format, int wstride = 0, int hstride = 0)
{
  return wrapbuffer_physicaladdr_t(phy_addr, width, height, wstride ? wstride : width, hstride ? hstride : height, format);
}
static inline rga_buffer_t wrapbuffer_fd(int fd, int width, int height, int format, int wstride = 0, int hstride = 0)
{
  return wrapbuffer_fd_t(fd, width, height, wstride ? wstride : width, hstride ? hstride : height, format);
}
static inline rga_buffer_t wrapbuffer_handle(rga_buffer_handle_t handle, int width, int height, int format, int wstride = 0,
                                             int hstride = 0)
{
  return wrapbuffer_handle_t(handle, width, height, wstride ? wstride : width, hstride ? hstride : height, format);
}
static inline IM_STATUS imresize(const rga_buffer_t src, rga_buffer_t dst, double fx = 0, double fy = 0, int interpolation = 0,
                                 int sync = 1, int * = NULL)
{
  return imresize_t(src, dst, fx, fy, interpolation, sync);
}
static inline IM_STATUS imcrop(const rga_buffer_t src, rga_buffer_t dst, im_rect rect, int sync = 1, int * = NULL)
{
  return imcrop_t(src, dst, rect, sync);
}
static inline IM_STATUS imcopy(const rga_buffer_t src, rga_buffer_t dst, int sync = 1, int * = NULL) { return imcopy_t(src, dst, sync); }
static inline IM_STATUS imcvtcolor(rga_buffer_t src, rga_buffer_t dst, int sfmt, int dfmt, int mode = 0, int sync = 1, int * = NULL)
{
  return imcvtcolor_t(src, dst, sfmt, dfmt, mode, sync);
}
static inline IM_STATUS imrotate(const rga_buffer_t src, rga_buffer_t dst, int rotation, int sync = 1, int * = NULL)
{
  return imrotate_t(src, dst, rotation, sync);
}
static inline IM_STATUS imflip(const rga_buffer_t src, rga_buffer_t dst, int mode, int sync = 1, int * = NULL)
{
  return imflip_t(src, dst, mode, sync);
}
static inline IM_STATUS imfill(rga_buffer_t dst, im_rect rect, int color, int sync = 1, int * = NULL)
{
  return imfill_t(dst, rect, color, sync);
}
static inline IM_STATUS imtranslate(const rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync = 1, int * = NULL)
{
  return imtranslate_t(src, dst, x, y, sync);
}
static inline IM_STATUS imrectangle(rga_buffer_t dst, im_rect rect, uint32_t color, int thickness, int sync = 1, int * = NULL)
{
  return imrectangle_t(dst, rect, color, thickness, sync);
}
static inline IM_STATUS immakeBorder(rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left, int right, int border_type,
                                     int value = 0, int sync = 1, int acquire_fence_fd = -1, int *release_fence_fd = NULL)
{
  return immakeBorderAsync(src, dst, top, bottom, left, right, border_type, value, sync, acquire_fence_fd, release_fence_fd);
}
static inline IM_STATUS improcess(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect, int usage)
{
  return improcess_t(src, dst, pat, srect, drect, prect, -1, NULL, NULL, usage);
}
static inline IM_STATUS improcess(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect,
                                  int acquire_fence_fd, int *release_fence_fd, im_opt_t *opt, int usage)
{
  return improcess_t(src, dst, pat, srect, drect, prect, acquire_fence_fd, release_fence_fd, opt, usage);
}
static inline IM_STATUS imcheck(const rga_buffer_t src, const rga_buffer_t dst, const im_rect src_rect, const im_rect dst_rect,
                                const int mode_usage = 0)
{
  return imcheck_t(src, dst, rga_buffer_t(), src_rect, dst_rect, im_rect(), mode_usage);
}
static inline const char *imStrError(IM_STATUS status) { return imStrError_t(status); }
static inline const char *imStrError(int status) { return imStrError_t((IM_STATUS)status); }

#else /* C: arguments at the end may be left out */

#define ANYNPU_PICK_10(a, b, c, d, e, f, g, h, i, j, name, ...) name
#define ANYNPU_PICK_7(a, b, c, d, e, f, g, name, ...) name
#define ANYNPU_PICK_6(a, b, c, d, e, f, name, ...) name

#define ANYNPU_WRAP_4(kind, m, w, h, fmt) wrapbuffer_##kind##_t(m, w, h, w, h, fmt)
#define ANYNPU_WRAP_6(kind, m, w, h, fmt, ws, hs) wrapbuffer_##kind##_t(m, w, h, ws, hs, fmt)
#define ANYNPU_WRAP(kind, ...) ANYNPU_PICK_6(__VA_ARGS__, ANYNPU_WRAP_6, , ANYNPU_WRAP_4, )(kind, __VA_ARGS__)
#define wrapbuffer_virtualaddr(...) ANYNPU_WRAP(virtualaddr, __VA_ARGS__)
#define wrapbuffer_physicaladdr(...) ANYNPU_WRAP(physicaladdr, __VA_ARGS__)
#define wrapbuffer_fd(...) ANYNPU_WRAP(fd, __VA_ARGS__)
#define wrapbuffer_handle(...) ANYNPU_WRAP(handle, __VA_ARGS__)

#define ANYNPU_RESIZE_2(s, d) imresize_t(s, d, 0, 0, 0, 1)
#define ANYNPU_RESIZE_4(s, d, fx, fy) imresize_t(s, d, fx, fy, 0, 1)
#define ANYNPU_RESIZE_5(s, d, fx, fy, i) imresize_t(s, d, fx, fy, i, 1)
#define ANYNPU_RESIZE_6(s, d, fx, fy, i, sync) imresize_t(s, d, fx, fy, i, sync)
#define imresize(...) \
  ANYNPU_PICK_6(__VA_ARGS__, ANYNPU_RESIZE_6, ANYNPU_RESIZE_5, ANYNPU_RESIZE_4, , ANYNPU_RESIZE_2, )(__VA_ARGS__)

#define ANYNPU_CROP_3(s, d, r) imcrop_t(s, d, r, 1)
#define imcrop(...) ANYNPU_PICK_6(__VA_ARGS__, , , imcrop_t, ANYNPU_CROP_3, , )(__VA_ARGS__)
#define ANYNPU_COPY_2(s, d) imcopy_t(s, d, 1)
#define imcopy(...) ANYNPU_PICK_6(__VA_ARGS__, , , , imcopy_t, ANYNPU_COPY_2, )(__VA_ARGS__)
#define ANYNPU_CVT_4(s, d, sf, df) imcvtcolor_t(s, d, sf, df, 0, 1)
#define ANYNPU_CVT_5(s, d, sf, df, m) imcvtcolor_t(s, d, sf, df, m, 1)
#define imcvtcolor(...) ANYNPU_PICK_6(__VA_ARGS__, imcvtcolor_t, ANYNPU_CVT_5, ANYNPU_CVT_4, )(__VA_ARGS__)
#define ANYNPU_ROTATE_3(s, d, r) imrotate_t(s, d, r, 1)
#define imrotate(...) ANYNPU_PICK_6(__VA_ARGS__, , , imrotate_t, ANYNPU_ROTATE_3, , )(__VA_ARGS__)
#define ANYNPU_FLIP_3(s, d, m) imflip_t(s, d, m, 1)
#define imflip(...) ANYNPU_PICK_6(__VA_ARGS__, , , imflip_t, ANYNPU_FLIP_3, , )(__VA_ARGS__)
#define ANYNPU_FILL_3(d, r, c) imfill_t(d, r, c, 1)
#define imfill(...) ANYNPU_PICK_6(__VA_ARGS__, , , imfill_t, ANYNPU_FILL_3, , )(__VA_ARGS__)
#define ANYNPU_TRANSLATE_4(s, d, x, y) imtranslate_t(s, d, x, y, 1)
#define imtranslate(...) ANYNPU_PICK_6(__VA_ARGS__, , imtranslate_t, ANYNPU_TRANSLATE_4, , )(__VA_ARGS__)
#define ANYNPU_RECTANGLE_4(d, r, c, t) imrectangle_t(d, r, c, t, 1)
#define imrectangle(...) ANYNPU_PICK_6(__VA_ARGS__, , imrectangle_t, ANYNPU_RECTANGLE_4, , )(__VA_ARGS__)
#define immakeBorder(s, d, t, b, l, r, type, value) immakeBorderAsync(s, d, t, b, l, r, type, value, 1, -1, NULL)
#define ANYNPU_PROCESS_7(s, d, p, sr, dr, pr, u) improcess_t(s, d, p, sr, dr, pr, -1, NULL, NULL, u)
#define improcess(...) ANYNPU_PICK_10(__VA_ARGS__, improcess_t, , , ANYNPU_PROCESS_7, )(__VA_ARGS__)
#define ANYNPU_CHECK_4(s, d, sr, dr) imcheck_t(s, d, (rga_buffer_t){0}, sr, dr, (im_rect){0, 0, 0, 0}, 0)
#define ANYNPU_CHECK_5(s, d, sr, dr, u) imcheck_t(s, d, (rga_buffer_t){0}, sr, dr, (im_rect){0, 0, 0, 0}, u)
#define imcheck(...) ANYNPU_PICK_7(__VA_ARGS__, imcheck_t, , ANYNPU_CHECK_5, ANYNPU_CHECK_4, )(__VA_ARGS__)
#define imStrError(status) imStrError_t((IM_STATUS)(status))

#endif

#endif
