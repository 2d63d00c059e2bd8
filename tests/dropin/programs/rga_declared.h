/* Types of im2d as its public documentation describes them, for programs that declare the functions themselves. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
typedef enum { SUCCESS = 1, NOT_SUPPORTED = -1, INVALID = -3 } IM_STATUS;
typedef struct im_osd {
    int mode;
} im_osd_t;
typedef uint32_t im_job_handle_t;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
            return 1; \
        } \
    } while (0)
