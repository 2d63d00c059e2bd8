/* librga: the names that C++ programs ask for which were compiled with the vendor's header.
 *
 * There the calls with arguments that may be left out are C++ functions, so their symbols carry their types. Structs are passed as in C. */
#include "rga_picture.h"

#define CPP(result, name, symbol, ...) \
    EXPORT result name(__VA_ARGS__) __asm__(symbol); \
    result name(__VA_ARGS__)

static rga_buffer_handle_t by_size(int fd, void *va, int size)
{
    return size > 0 ? anynpu_importbuffer(fd, va, (size_t)size) : 0;
}

CPP(rga_buffer_handle_t, cpp_import_fd, "_Z15importbuffer_fdii", int fd, int size) { return by_size(fd, NULL, size); }
CPP(rga_buffer_handle_t, cpp_import_va, "_Z24importbuffer_virtualaddrPvi", void *va, int size) { return by_size(-1, va, size); }

CPP(rga_buffer_handle_t, cpp_import_picture_fd, "_Z15importbuffer_fdiiii", int fd, int width, int height, int format)
{
    im_handle_param_t param = {(uint32_t)width, (uint32_t)height, (uint32_t)format};
    return importbuffer_fd(fd, &param);
}

CPP(rga_buffer_handle_t, cpp_import_picture_va, "_Z24importbuffer_virtualaddrPviii", void *va, int width, int height, int format)
{
    im_handle_param_t param = {(uint32_t)width, (uint32_t)height, (uint32_t)format};
    return importbuffer_virtualaddr(va, &param);
}

CPP(rga_buffer_t, cpp_wrap, "_Z17wrapbuffer_handlejiii", rga_buffer_handle_t handle, int width, int height, int format)
{
    return wrapbuffer_handle_t(handle, width, height, width, height, format);
}

CPP(rga_buffer_t, cpp_wrap_strides, "_Z17wrapbuffer_handlejiiiii", rga_buffer_handle_t handle, int width, int height, int format,
    int wstride, int hstride)
{
    return wrapbuffer_handle_t(handle, width, height, wstride, hstride, format);
}

/* Everything is finished when a call returns, so there is no fence: -1 is one that has been passed. */
static int told(int *fence)
{
    if (fence != NULL)
        *fence = -1;
    return 1;
}

CPP(IM_STATUS, cpp_copy, "_Z6imcopy12rga_buffer_tS_iPi", rga_buffer_t src, rga_buffer_t dst, int sync, int *fence)
{
    (void)sync;
    return imcopy_t(src, dst, told(fence));
}

CPP(IM_STATUS, cpp_resize, "_Z8imresize12rga_buffer_tS_ddiiPi", rga_buffer_t src, rga_buffer_t dst, double fx, double fy, int way, int sync,
    int *fence)
{
    (void)sync;
    return imresize_t(src, dst, fx, fy, way, told(fence));
}

CPP(IM_STATUS, cpp_crop, "_Z6imcrop12rga_buffer_tS_7im_rectiPi", rga_buffer_t src, rga_buffer_t dst, im_rect rect, int sync, int *fence)
{
    (void)sync;
    return imcrop_t(src, dst, rect, told(fence));
}

CPP(IM_STATUS, cpp_convert, "_Z10imcvtcolor12rga_buffer_tS_iiiiPi", rga_buffer_t src, rga_buffer_t dst, int from, int into, int mode,
    int sync, int *fence)
{
    (void)sync;
    return imcvtcolor_t(src, dst, from, into, mode, told(fence));
}

CPP(IM_STATUS, cpp_rotate, "_Z8imrotate12rga_buffer_tS_iiPi", rga_buffer_t src, rga_buffer_t dst, int rotation, int sync, int *fence)
{
    (void)sync;
    return imrotate_t(src, dst, rotation, told(fence));
}

CPP(IM_STATUS, cpp_flip, "_Z6imflip12rga_buffer_tS_iiPi", rga_buffer_t src, rga_buffer_t dst, int mode, int sync, int *fence)
{
    (void)sync;
    return imflip_t(src, dst, mode, told(fence));
}

CPP(IM_STATUS, cpp_fill, "_Z6imfill12rga_buffer_t7im_rectiiPi", rga_buffer_t dst, im_rect rect, int color, int sync, int *fence)
{
    (void)sync;
    return imfill_t(dst, rect, color, told(fence));
}

CPP(IM_STATUS, cpp_process, "_Z9improcess12rga_buffer_tS_S_7im_rectS0_S0_i", rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat,
    im_rect srect, im_rect drect, im_rect prect, int usage)
{
    return improcess_t(src, dst, pat, srect, drect, prect, -1, NULL, NULL, usage);
}

CPP(IM_STATUS, cpp_process_options, "_Z9improcess12rga_buffer_tS_S_7im_rectS0_S0_iPiP6im_opti", rga_buffer_t src, rga_buffer_t dst,
    rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect, int acquire, int *release, im_opt_t *opt, int usage)
{
    return improcess_t(src, dst, pat, srect, drect, prect, acquire, release, opt, usage);
}
