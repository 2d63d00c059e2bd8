/* librga: the symbols of programs that were compiled with the vendor's header.
 *
 * In C++ the calls with arguments that may be left out are C++ functions, so their symbols carry their types. Structs are passed as in C. In C
 * a few calls have a name that is a macro in our header. */
#include "rga_picture.h"

#define SYMBOL(result, name, symbol, ...) \
    EXPORT result name(__VA_ARGS__) __asm__(symbol); \
    result name(__VA_ARGS__)

static rga_buffer_handle_t by_size(int fd, void *va, int size)
{
    return size > 0 ? anynpu_importbuffer(fd, va, (size_t)size) : 0;
}

SYMBOL(rga_buffer_handle_t, cpp_import_fd, "_Z15importbuffer_fdii", int fd, int size) { return by_size(fd, NULL, size); }
SYMBOL(rga_buffer_handle_t, cpp_import_va, "_Z24importbuffer_virtualaddrPvi", void *va, int size) { return by_size(-1, va, size); }

SYMBOL(rga_buffer_handle_t, cpp_import_picture_fd, "_Z15importbuffer_fdiiii", int fd, int width, int height, int format)
{
    im_handle_param_t param = {(uint32_t)width, (uint32_t)height, (uint32_t)format};
    return importbuffer_fd(fd, &param);
}

SYMBOL(rga_buffer_handle_t, cpp_import_picture_va, "_Z24importbuffer_virtualaddrPviii", void *va, int width, int height, int format)
{
    im_handle_param_t param = {(uint32_t)width, (uint32_t)height, (uint32_t)format};
    return importbuffer_virtualaddr(va, &param);
}

SYMBOL(rga_buffer_t, cpp_wrap, "_Z17wrapbuffer_handlejiii", rga_buffer_handle_t handle, int width, int height, int format)
{
    return wrapbuffer_handle_t(handle, width, height, width, height, format);
}

SYMBOL(rga_buffer_t, cpp_wrap_strides, "_Z17wrapbuffer_handlejiiiii", rga_buffer_handle_t handle, int width, int height, int format,
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

SYMBOL(IM_STATUS, cpp_copy, "_Z6imcopy12rga_buffer_tS_iPi", rga_buffer_t src, rga_buffer_t dst, int sync, int *fence)
{
    (void)sync;
    return imcopy_t(src, dst, told(fence));
}

SYMBOL(IM_STATUS, cpp_resize, "_Z8imresize12rga_buffer_tS_ddiiPi", rga_buffer_t src, rga_buffer_t dst, double fx, double fy, int way, int sync,
    int *fence)
{
    (void)sync;
    return imresize_t(src, dst, fx, fy, way, told(fence));
}

SYMBOL(IM_STATUS, cpp_crop, "_Z6imcrop12rga_buffer_tS_7im_rectiPi", rga_buffer_t src, rga_buffer_t dst, im_rect rect, int sync, int *fence)
{
    (void)sync;
    return imcrop_t(src, dst, rect, told(fence));
}

SYMBOL(IM_STATUS, cpp_convert, "_Z10imcvtcolor12rga_buffer_tS_iiiiPi", rga_buffer_t src, rga_buffer_t dst, int from, int into, int mode,
    int sync, int *fence)
{
    (void)sync;
    return imcvtcolor_t(src, dst, from, into, mode, told(fence));
}

SYMBOL(IM_STATUS, cpp_rotate, "_Z8imrotate12rga_buffer_tS_iiPi", rga_buffer_t src, rga_buffer_t dst, int rotation, int sync, int *fence)
{
    (void)sync;
    return imrotate_t(src, dst, rotation, told(fence));
}

SYMBOL(IM_STATUS, cpp_flip, "_Z6imflip12rga_buffer_tS_iiPi", rga_buffer_t src, rga_buffer_t dst, int mode, int sync, int *fence)
{
    (void)sync;
    return imflip_t(src, dst, mode, told(fence));
}

SYMBOL(IM_STATUS, cpp_fill, "_Z6imfill12rga_buffer_t7im_rectiiPi", rga_buffer_t dst, im_rect rect, int color, int sync, int *fence)
{
    (void)sync;
    return imfill_t(dst, rect, color, told(fence));
}

SYMBOL(IM_STATUS, cpp_process, "_Z9improcess12rga_buffer_tS_S_7im_rectS0_S0_i", rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat,
    im_rect srect, im_rect drect, im_rect prect, int usage)
{
    return improcess_t(src, dst, pat, srect, drect, prect, -1, NULL, NULL, usage);
}

SYMBOL(IM_STATUS, cpp_process_options, "_Z9improcess12rga_buffer_tS_S_7im_rectS0_S0_iPiP6im_opti", rga_buffer_t src, rga_buffer_t dst,
    rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect, int acquire, int *release, im_opt_t *opt, int usage)
{
    return improcess_t(src, dst, pat, srect, drect, prect, acquire, release, opt, usage);
}

SYMBOL(IM_STATUS, c_process, "improcess", rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect,
       int usage)
{
    return improcess_t(src, dst, pat, srect, drect, prect, -1, NULL, NULL, usage);
}

SYMBOL(IM_STATUS, c_process_options, "improcessOpt", rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect,
       im_rect prect, int acquire, int *release, im_opt_t *opt, int usage)
{
    return improcess_t(src, dst, pat, srect, drect, prect, acquire, release, opt, usage);
}

SYMBOL(IM_STATUS, cpp_border, "_Z12immakeBorder12rga_buffer_tS_iiiiiiiiPi", rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left,
       int right, int type, int value, int sync, int acquire, int *fence)
{
    return immakeBorderAsync(src, dst, top, bottom, left, right, type, value, sync, acquire, fence);
}

SYMBOL(IM_STATUS, c_border, "immakeBorder", rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left, int right, int type, int value)
{
    return immakeBorderAsync(src, dst, top, bottom, left, right, type, value, 1, -1, NULL);
}

SYMBOL(IM_STATUS, cpp_translate, "_Z11imtranslate12rga_buffer_tS_iiiPi", rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync, int *fence)
{
    (void)sync;
    return imtranslate_t(src, dst, x, y, told(fence));
}

SYMBOL(IM_STATUS, c_translate, "imtranslate", rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync)
{
    return imtranslate_t(src, dst, x, y, sync);
}

SYMBOL(IM_STATUS, cpp_rectangle, "_Z11imrectangle12rga_buffer_t7im_rectjiiPi", rga_buffer_t dst, im_rect rect, uint32_t color, int thickness, int sync,
       int *fence)
{
    (void)sync;
    return imrectangle_t(dst, rect, color, thickness, told(fence));
}

SYMBOL(IM_STATUS, c_rectangle, "imrectangle", rga_buffer_t dst, im_rect rect, uint32_t color, int thickness, int sync)
{
    return imrectangle_t(dst, rect, color, thickness, sync);
}

SYMBOL(IM_STATUS, cpp_rectangles, "_Z16imrectangleArray12rga_buffer_tP7im_rectijiiPi", rga_buffer_t dst, im_rect *rects, int count, uint32_t color,
       int thickness, int sync, int *fence)
{
    (void)sync;
    if (rects == NULL || count <= 0)
        return anynpu_rga_refused(IM_STATUS_INVALID_PARAM, "there are no rectangles");
    IM_STATUS status = IM_STATUS_SUCCESS;
    for (int index = 0; index < count && status == IM_STATUS_SUCCESS; index++)
        status = imrectangle_t(dst, rects[index], color, thickness, told(fence));
    return status;
}

/* Any header of the interface fits: the structs are the same in all of its versions. */
SYMBOL(IM_STATUS, cpp_header, "_Z13imcheckHeaderj", im_api_version_t version)
{
    (void)version;
    return IM_STATUS_SUCCESS;
}

SYMBOL(IM_STATUS, c_header, "imcheckHeader", im_api_version_t version)
{
    return cpp_header(version);
}

/* What needs the hardware. The arguments are not read, so these functions declare none: the caller passes and removes them. */
#define ABSENT_SYMBOL(name, id, symbol) \
    EXPORT IM_STATUS id(void) __asm__(symbol); \
    IM_STATUS id(void) \
    { \
        return anynpu_rga_refused(IM_STATUS_NOT_SUPPORTED, #name " needs the RGA hardware"); \
    }
#define ABSENT(name, symbol) ABSENT_SYMBOL(name, absent_cpp_##name, symbol) ABSENT_SYMBOL(name, absent_##name, #name)

ABSENT(imblend, "_Z7imblend12rga_buffer_tS_iiPi")
ABSENT(imcomposite, "_Z11imcomposite12rga_buffer_tS_S_iiPi")
ABSENT(imcolorkey, "_Z10imcolorkey12rga_buffer_tS_17im_colorkey_rangeiiPi")
ABSENT(imosd, "_Z5imosd12rga_buffer_tS_7im_rectP6im_osdiPi")
ABSENT(imquantize, "_Z10imquantize12rga_buffer_tS_5im_nniPi")
ABSENT(imrop, "_Z5imrop12rga_buffer_tS_iiPi")
ABSENT(imfillArray, "_Z11imfillArray12rga_buffer_tP7im_rectijiPi")
ABSENT(immosaic, "_Z8immosaic12rga_buffer_t7im_rectiiPi")
ABSENT(immosaicArray, "_Z13immosaicArray12rga_buffer_tP7im_rectiiiPi")
ABSENT(imgaussianBlur, "_Z14imgaussianBlur12rga_buffer_tS_iiiiiPi")
ABSENT(impalette, "_Z9impalette12rga_buffer_tS_S_iPi")
ABSENT(imendJob, "_Z8imendJobjiiPi")
ABSENT(imcancelJob, "_Z11imcancelJobj")
ABSENT(imcopyTask, "_Z10imcopyTaskj12rga_buffer_tS_")
ABSENT(imresizeTask, "_Z12imresizeTaskj12rga_buffer_tS_ddi")
ABSENT(imcropTask, "_Z10imcropTaskj12rga_buffer_tS_7im_rect")
ABSENT(imtranslateTask, "_Z15imtranslateTaskj12rga_buffer_tS_ii")
ABSENT(imcvtcolorTask, "_Z14imcvtcolorTaskj12rga_buffer_tS_iii")
ABSENT(imflipTask, "_Z10imflipTaskj12rga_buffer_tS_i")
ABSENT(imrotateTask, "_Z12imrotateTaskj12rga_buffer_tS_i")
ABSENT(imblendTask, "_Z11imblendTaskj12rga_buffer_tS_i")
ABSENT(imcompositeTask, "_Z15imcompositeTaskj12rga_buffer_tS_S_i")
ABSENT(imosdTask, "_Z9imosdTaskj12rga_buffer_tS_7im_rectP6im_osd")
ABSENT(imcolorkeyTask, "_Z14imcolorkeyTaskj12rga_buffer_tS_17im_colorkey_rangei")
ABSENT(imropTask, "_Z9imropTaskj12rga_buffer_tS_i")
ABSENT(imquantizeTask, "_Z14imquantizeTaskj12rga_buffer_tS_5im_nn")
ABSENT(imfillTask, "_Z10imfillTaskj12rga_buffer_t7im_rectj")
ABSENT(imfillTaskArray, "_Z15imfillTaskArrayj12rga_buffer_tP7im_rectij")
ABSENT(imrectangleTask, "_Z15imrectangleTaskj12rga_buffer_t7im_rectji")
ABSENT(imrectangleTaskArray, "_Z20imrectangleTaskArrayj12rga_buffer_tP7im_rectiji")
ABSENT(immosaicTask, "_Z12immosaicTaskj12rga_buffer_t7im_recti")
ABSENT(immosaicTaskArray, "_Z17immosaicTaskArrayj12rga_buffer_tP7im_rectii")
ABSENT(impaletteTask, "_Z13impaletteTaskj12rga_buffer_tS_S_")
ABSENT(improcessTask, "_Z13improcessTaskj12rga_buffer_tS_S_7im_rectS0_S0_P6im_opti")
ABSENT_SYMBOL(imblend, absent_imblend_t, "imblend_t")
ABSENT_SYMBOL(imcolorkey, absent_imcolorkey_t, "imcolorkey_t")
ABSENT_SYMBOL(imquantize, absent_imquantize_t, "imquantize_t")
ABSENT_SYMBOL(imrop, absent_imrop_t, "imrop_t")
ABSENT_SYMBOL(impalette, absent_impalette_t, "impalette_t")
ABSENT_SYMBOL(imgaussianBlur, absent_imgaussianBlur_t, "imgaussianBlur_t")
ABSENT_SYMBOL(c_RkRgaBlit, absent_blit, "c_RkRgaBlit")
ABSENT_SYMBOL(c_RkRgaColorFill, absent_color_fill, "c_RkRgaColorFill")

/* 0 is no job. */
SYMBOL(im_job_handle_t, cpp_begin, "_Z10imbeginJobm", uint64_t flags)
{
    (void)flags;
    anynpu_rga_refused(IM_STATUS_NOT_SUPPORTED, "imbeginJob needs the RGA hardware");
    return 0;
}

SYMBOL(im_job_handle_t, c_begin, "imbeginJob", uint64_t flags)
{
    return cpp_begin(flags);
}
