/* What the two parts of librga share: images that can be read and written, and why one cannot. */
#ifndef ANYNPU_RGA_PICTURE_H
#define ANYNPU_RGA_PICTURE_H

#include "im2d.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_SIDE = 8192, MAX_HANDLES = 4096, FRACTION = 1 << 16 };
enum family { RGB_FAMILY, YUV_FAMILY, GREY_FAMILY };

struct layout {
    int format;
    enum family family;
    int bytes;    /* of a pixel; of the first plane where there are two */
    int order[4]; /* where red, green, blue and alpha lie; -1: nowhere. For two planes: Cb and Cr */
};

struct picture {
    const struct layout *layout;
    uint8_t *bytes;
    int wstride, hstride;
    im_rect rect;
    void *mapped;
    size_t mapped_size;
};

const struct layout *anynpu_rga_layout(int format);

/* Keep the reason for imStrError, and return *status*. */
IM_STATUS anynpu_rga_refused(IM_STATUS status, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *anynpu_rga_reason(void);

/* Whether an image makes sense, without its memory; and with it, until it is detached. */
IM_STATUS anynpu_rga_look(const rga_buffer_t *buffer, const im_rect *rect, const char *what, struct picture *picture);
IM_STATUS anynpu_rga_attach(const rga_buffer_t *buffer, const im_rect *rect, const char *what, struct picture *picture);
void anynpu_rga_detach(struct picture *picture);

#endif
