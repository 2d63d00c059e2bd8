/* The rest of im2d: a C++ program that declares every call links, and each call reports that it is not supported. */
#include "rga_declared.h"

IM_STATUS imblend(const rga_buffer_t, rga_buffer_t, int, int, int *);
IM_STATUS imcomposite(const rga_buffer_t, const rga_buffer_t, rga_buffer_t, int, int, int *);
IM_STATUS imcolorkey(const rga_buffer_t, rga_buffer_t, im_colorkey_range, int, int, int *);
IM_STATUS imosd(const rga_buffer_t, const rga_buffer_t, const im_rect, im_osd_t *, int, int *);
IM_STATUS imquantize(const rga_buffer_t, rga_buffer_t, im_nn_t, int, int *);
IM_STATUS imrop(const rga_buffer_t, rga_buffer_t, int, int, int *);
IM_STATUS imfillArray(rga_buffer_t, im_rect *, int, uint32_t, int, int *);
IM_STATUS immosaic(const rga_buffer_t, im_rect, int, int, int *);
IM_STATUS immosaicArray(const rga_buffer_t, im_rect *, int, int, int, int *);
IM_STATUS imgaussianBlur(rga_buffer_t, rga_buffer_t, int, int, int, int, int, int *);
IM_STATUS impalette(rga_buffer_t, rga_buffer_t, rga_buffer_t, int, int *);
IM_STATUS imendJob(im_job_handle_t, int, int, int *);
IM_STATUS imcancelJob(im_job_handle_t);
IM_STATUS imcopyTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t);
IM_STATUS imresizeTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, double, double, int);
IM_STATUS imcropTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, im_rect);
IM_STATUS imtranslateTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, int, int);
IM_STATUS imcvtcolorTask(im_job_handle_t, rga_buffer_t, rga_buffer_t, int, int, int);
IM_STATUS imflipTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, int);
IM_STATUS imrotateTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, int);
IM_STATUS imblendTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, int);
IM_STATUS imcompositeTask(im_job_handle_t, const rga_buffer_t, const rga_buffer_t, rga_buffer_t, int);
IM_STATUS imosdTask(im_job_handle_t, const rga_buffer_t, const rga_buffer_t, const im_rect, im_osd_t *);
IM_STATUS imcolorkeyTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, im_colorkey_range, int);
IM_STATUS imropTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, int);
IM_STATUS imquantizeTask(im_job_handle_t, const rga_buffer_t, rga_buffer_t, im_nn_t);
IM_STATUS imfillTask(im_job_handle_t, rga_buffer_t, im_rect, uint32_t);
IM_STATUS imfillTaskArray(im_job_handle_t, rga_buffer_t, im_rect *, int, uint32_t);
IM_STATUS imrectangleTask(im_job_handle_t, rga_buffer_t, im_rect, uint32_t, int);
IM_STATUS imrectangleTaskArray(im_job_handle_t, rga_buffer_t, im_rect *, int, uint32_t, int);
IM_STATUS immosaicTask(im_job_handle_t, const rga_buffer_t, im_rect, int);
IM_STATUS immosaicTaskArray(im_job_handle_t, const rga_buffer_t, im_rect *, int, int);
IM_STATUS impaletteTask(im_job_handle_t, rga_buffer_t, rga_buffer_t, rga_buffer_t);
IM_STATUS improcessTask(im_job_handle_t, rga_buffer_t, rga_buffer_t, rga_buffer_t, im_rect, im_rect, im_rect, im_opt_t *, int);
IM_STATUS imcheckHeader(uint32_t version);
im_job_handle_t imbeginJob(uint64_t flags);
IM_STATUS immakeBorder(rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left, int right, int type, int value, int sync,
                       int acquire_fence_fd, int *release_fence_fd);
IM_STATUS imtranslate(const rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync, int *release_fence_fd);
IM_STATUS imrectangle(rga_buffer_t dst, im_rect rect, uint32_t color, int thickness, int sync, int *release_fence_fd);
IM_STATUS imrectangleArray(rga_buffer_t dst, im_rect *rects, int count, uint32_t color, int thickness, int sync, int *release_fence_fd);
extern "C" {
int c_RkRgaBlit(void *src, void *dst, void *src1);
int c_RkRgaColorFill(void *dst);
rga_buffer_t wrapbuffer_virtualaddr_t(void *vir_addr, int width, int height, int wstride, int hstride, int format);
const char *imStrError_t(IM_STATUS status);
}

#define ABSENT(name, arguments) \
    CHECK((int)name arguments == NOT_SUPPORTED); \
    CHECK(strstr(imStrError_t(NOT_SUPPORTED), #name) != NULL)

int main()
{
    uint8_t bytes[4 * 4 * 3] = {}, other[6 * 6 * 3] = {};
    rga_buffer_t image = wrapbuffer_virtualaddr_t(bytes, 4, 4, 4, 4, 0x200), larger = wrapbuffer_virtualaddr_t(other, 6, 6, 6, 6, 0x200);
    im_rect area = {0, 0, 4, 4};
    im_colorkey_range range = {0, 0};
    im_nn_t nn = {};
    ABSENT(imblend, (image, image, 0, 0, NULL));
    ABSENT(imcomposite, (image, image, image, 0, 0, NULL));
    ABSENT(imcolorkey, (image, image, range, 0, 0, NULL));
    ABSENT(imosd, (image, image, area, NULL, 0, NULL));
    ABSENT(imquantize, (image, image, nn, 0, NULL));
    ABSENT(imrop, (image, image, 0, 0, NULL));
    ABSENT(imfillArray, (image, NULL, 0, 0, 0, NULL));
    ABSENT(immosaic, (image, area, 0, 0, NULL));
    ABSENT(immosaicArray, (image, NULL, 0, 0, 0, NULL));
    ABSENT(imgaussianBlur, (image, image, 0, 0, 0, 0, 0, NULL));
    ABSENT(impalette, (image, image, image, 0, NULL));
    ABSENT(imendJob, (0, 0, 0, NULL));
    ABSENT(imcancelJob, (0));
    ABSENT(imcopyTask, (0, image, image));
    ABSENT(imresizeTask, (0, image, image, 0, 0, 0));
    ABSENT(imcropTask, (0, image, image, area));
    ABSENT(imtranslateTask, (0, image, image, 0, 0));
    ABSENT(imcvtcolorTask, (0, image, image, 0, 0, 0));
    ABSENT(imflipTask, (0, image, image, 0));
    ABSENT(imrotateTask, (0, image, image, 0));
    ABSENT(imblendTask, (0, image, image, 0));
    ABSENT(imcompositeTask, (0, image, image, image, 0));
    ABSENT(imosdTask, (0, image, image, area, NULL));
    ABSENT(imcolorkeyTask, (0, image, image, range, 0));
    ABSENT(imropTask, (0, image, image, 0));
    ABSENT(imquantizeTask, (0, image, image, nn));
    ABSENT(imfillTask, (0, image, area, 0));
    ABSENT(imfillTaskArray, (0, image, NULL, 0, 0));
    ABSENT(imrectangleTask, (0, image, area, 0, 0));
    ABSENT(imrectangleTaskArray, (0, image, NULL, 0, 0, 0));
    ABSENT(immosaicTask, (0, image, area, 0));
    ABSENT(immosaicTaskArray, (0, image, NULL, 0, 0));
    ABSENT(impaletteTask, (0, image, image, image));
    ABSENT(improcessTask, (0, image, image, image, area, area, area, NULL, 0));
    ABSENT(c_RkRgaBlit, (NULL, NULL, NULL));
    ABSENT(c_RkRgaColorFill, (NULL));
    CHECK(imbeginJob(0) == 0);
    CHECK(strstr(imStrError_t(NOT_SUPPORTED), "imbeginJob") != NULL);
    CHECK(imcheckHeader(0x010a0000) == SUCCESS);
    int fence = 5;
    CHECK(immakeBorder(image, larger, 1, 1, 1, 1, 0, 0x727272, 1, -1, &fence) == SUCCESS && fence == -1);
    CHECK(other[0] == 0x72 && other[(6 + 1) * 3] == 0);
    CHECK(imtranslate(image, image, 0, 0, 1, NULL) == SUCCESS);
    CHECK(imrectangle(image, area, 0x0000ff, 1, 1, NULL) == SUCCESS && bytes[0] == 0xff && bytes[(4 + 1) * 3] == 0);
    CHECK(imrectangleArray(image, &area, 1, 0x0000ff, -1, 1, NULL) == SUCCESS && bytes[(4 + 1) * 3] == 0xff);
    puts("done");
    return 0;
}
