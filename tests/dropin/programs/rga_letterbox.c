/* A C program after the pattern of the model zoo: it declares im2d's C functions itself and letterboxes an image with improcess. */
#include "rga_declared.h"

rga_buffer_t wrapbuffer_virtualaddr_t(void *vir_addr, int width, int height, int wstride, int hstride, int format);
IM_STATUS improcess(rga_buffer_t src, rga_buffer_t dst, rga_buffer_t pat, im_rect srect, im_rect drect, im_rect prect, int usage);
IM_STATUS immakeBorder(rga_buffer_t src, rga_buffer_t dst, int top, int bottom, int left, int right, int type, int value);
IM_STATUS imtranslate_t(const rga_buffer_t src, rga_buffer_t dst, int x, int y, int sync);
IM_STATUS imfill_t(rga_buffer_t dst, im_rect rect, int color, int sync);
IM_STATUS imblend_t(const rga_buffer_t srcA, const rga_buffer_t srcB, rga_buffer_t dst, int mode, int sync);
IM_STATUS immosaic(const rga_buffer_t image, im_rect rect, int mosaic_mode, int sync);

enum { WIDTH = 16, HEIGHT = 8, SIDE = 16, RGB = 0x200, SYNC = 1 << 19 };

int main(int count, char **arguments)
{
    static uint8_t source[HEIGHT * WIDTH * 3], box[SIDE * SIDE * 3], bordered[SIDE * SIDE * 3];
    CHECK(count == 2);
    for (int index = 0; index < (int)sizeof source; index++)
        source[index] = (uint8_t)(index * 7);
    rga_buffer_t src = wrapbuffer_virtualaddr_t(source, WIDTH, HEIGHT, WIDTH, HEIGHT, RGB), pat;
    rga_buffer_t dst = wrapbuffer_virtualaddr_t(box, SIDE, SIDE, SIDE, SIDE, RGB);
    rga_buffer_t other = wrapbuffer_virtualaddr_t(bordered, SIDE, SIDE, SIDE, SIDE, RGB);
    im_rect srect = {0, 0, WIDTH, HEIGHT}, drect = {0, 4, WIDTH, HEIGHT}, prect, all = {0, 0, SIDE, SIDE};
    memset(&pat, 0, sizeof pat);
    memset(&prect, 0, sizeof prect);
    CHECK(imfill_t(dst, all, 0x727272, 1) == SUCCESS);
    CHECK(improcess(src, dst, pat, srect, drect, prect, SYNC) == SUCCESS);
    CHECK(immakeBorder(src, other, 4, 4, 0, 0, 0, 0x727272) == SUCCESS);
    CHECK(memcmp(box, bordered, sizeof box) == 0);
    CHECK(imtranslate_t(dst, other, 0, 0, 1) == SUCCESS);
    CHECK(imblend_t(src, pat, dst, 0, 1) == NOT_SUPPORTED);
    CHECK(immosaic(dst, all, 0, 1) == NOT_SUPPORTED);
    FILE *file = fopen(arguments[1], "wb");
    CHECK(file != NULL && fwrite(box, 1, sizeof box, file) == sizeof box && fclose(file) == 0);
    puts("done");
    return 0;
}
