/* A program that was compiled with the vendor's own header: structs and prototypes as its public documentation describes them, C++ names. */
#include <cstdint>
#include <cstdio>
#include <cstring>

typedef uint32_t rga_buffer_handle_t;
typedef struct {
    int max, min;
} im_colorkey_range;
typedef struct im_nn {
    int scale[3], offset[3];
} im_nn_t;
typedef struct {
    void *vir_addr, *phy_addr;
    int fd, width, height, wstride, hstride, format;
    int color_space_mode, global_alpha, rd_mode;
    int color;
    im_colorkey_range colorkey_range;
    im_nn_t nn;
    int rop_code;
    rga_buffer_handle_t handle;
} rga_buffer_t;
typedef struct {
    int x, y, width, height;
} im_rect;
typedef struct im_opt {
    char bytes[512];
} im_opt_t;
typedef struct im_handle_param {
    uint32_t width, height, format;
} im_handle_param_t;
typedef enum { SUCCESS = 1 } IM_STATUS;

rga_buffer_handle_t importbuffer_fd(int fd, int size);
rga_buffer_handle_t importbuffer_fd(int fd, int width, int height, int format);
rga_buffer_handle_t importbuffer_virtualaddr(void *va, int size);
rga_buffer_handle_t importbuffer_virtualaddr(void *va, int width, int height, int format);
rga_buffer_t wrapbuffer_handle(rga_buffer_handle_t handle, int width, int height, int format);
rga_buffer_t wrapbuffer_handle(rga_buffer_handle_t handle, int width, int height, int format, int wstride, int hstride);
IM_STATUS imcopy(const rga_buffer_t src, rga_buffer_t dst, int sync, int *release_fence_fd);
IM_STATUS imresize(const rga_buffer_t src, rga_buffer_t dst, double fx, double fy, int interpolation, int sync, int *release_fence_fd);
IM_STATUS imcrop(const rga_buffer_t src, rga_buffer_t dst, im_rect rect, int sync, int *release_fence_fd);
IM_STATUS imcvtcolor(rga_buffer_t src, rga_buffer_t dst, int sfmt, int dfmt, int mode, int sync, int *release_fence_fd);
IM_STATUS imrotate(const rga_buffer_t src, rga_buffer_t dst, int rotation, int sync, int *release_fence_fd);
IM_STATUS imflip(const rga_buffer_t src, rga_buffer_t dst, int mode, int sync, int *release_fence_fd);
IM_STATUS imfill(rga_buffer_t dst, im_rect rect, int color, int sync, int *release_fence_fd);
IM_STATUS improcess(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect,
                    int acquire_fence_fd, int *release_fence_fd, im_opt_t *opt, int usage);
IM_STATUS improcess(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect, int usage);
extern "C" {
rga_buffer_handle_t importbuffer_virtualaddr(void *va, im_handle_param_t *param);
IM_STATUS releasebuffer_handle(rga_buffer_handle_t handle);
rga_buffer_t wrapbuffer_virtualaddr_t(void *vir_addr, int width, int height, int wstride, int hstride, int format);
const char *imStrError_t(IM_STATUS status);
}

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

int main()
{
    enum { W = 8, H = 4, RGB = 0x200, BGR = 0x700, ROT_180 = 2, FLIP_H = 8 };
    static_assert(sizeof(rga_buffer_t) == 96, "as documented");
    unsigned char picture[W * H * 3], other[W * H * 3], small[W * H * 3 / 4];
    for (int index = 0; index < W * H * 3; index++)
        picture[index] = (unsigned char)(index * 7);
    rga_buffer_t source = wrapbuffer_virtualaddr_t(picture, W, H, W, H, RGB);
    CHECK(source.vir_addr == picture && source.width == W && source.hstride == H && source.format == RGB);
    im_handle_param_t param = {W, H, RGB};
    rga_buffer_handle_t handles[] = {importbuffer_virtualaddr(other, W * H * 3), importbuffer_virtualaddr(other, W, H, RGB),
                                     importbuffer_virtualaddr(other, &param)};
    CHECK(handles[0] && handles[1] && handles[2]);
    CHECK(importbuffer_fd(-1, 16) == 0 && importbuffer_fd(-1, W, H, RGB) == 0);
    rga_buffer_t target = wrapbuffer_handle(handles[0], W, H, RGB);
    CHECK(target.handle == handles[0] && target.wstride == W);
    CHECK(wrapbuffer_handle(handles[1], W, H, RGB, W, H).hstride == H);
    CHECK(imcopy(source, target, 1, nullptr) == SUCCESS && !memcmp(picture, other, sizeof picture));
    CHECK(imcvtcolor(source, wrapbuffer_handle(handles[1], W, H, BGR), RGB, BGR, 0, 1, nullptr) == SUCCESS && other[0] == picture[2]);
    CHECK(imrotate(source, target, ROT_180, 1, nullptr) == SUCCESS && other[0] == picture[(W * H - 1) * 3]);
    CHECK(imflip(source, target, FLIP_H, 1, nullptr) == SUCCESS && other[0] == picture[(W - 1) * 3]);
    rga_buffer_t half = wrapbuffer_virtualaddr_t(small, W / 2, H / 2, W / 2, H / 2, RGB);
    CHECK(imresize(source, half, 0, 0, 1, 1, nullptr) == SUCCESS);
    CHECK(imcrop(source, half, im_rect{2, 1, W / 2, H / 2}, 1, nullptr) == SUCCESS && small[0] == picture[(W + 2) * 3]);
    CHECK(imfill(half, im_rect{0, 0, 2, 2}, 0x00030201, 1, nullptr) == SUCCESS && small[0] == 1 && small[1] == 2 && small[2] == 3);
    rga_buffer_t none = rga_buffer_t();
    im_rect whole = im_rect();
    CHECK(improcess(source, target, none, whole, whole, whole, 0) == SUCCESS && !memcmp(picture, other, sizeof picture));
    im_opt_t options = im_opt_t();
    memset(other, 0, sizeof other);
    CHECK(improcess(source, target, none, whole, whole, whole, -1, nullptr, &options, 0) == SUCCESS);
    CHECK(!memcmp(picture, other, sizeof picture) && imStrError_t(SUCCESS) != nullptr);
    for (rga_buffer_handle_t handle : handles)
        CHECK(releasebuffer_handle(handle) == SUCCESS);
    puts("done");
    return 0;
}
