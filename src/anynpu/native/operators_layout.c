/* Moving elements: side by side, in another order, with a border. Plain C, compiled once for each level. */
#include <string.h>

#include "levels.h"

extern const struct anynpu_transpose_kernels LEVELLED(transpose);
extern const struct anynpu_elementwise_operators LEVELLED(elementwise);

/* ---- concat ---- */

static void concat(const struct anynpu_concat *concat, int codes, void *const *tensors, const int32_t *inputs, void *y)
{
    unsigned char *target = y;
    for (size_t block = 0; block < concat->outer; block++)
        for (size_t i = 0; i < concat->inputs; i++) {
            size_t bytes = concat->inner[i] * concat->element_size;
            const unsigned char *source = (const unsigned char *)tensors[inputs[i]] + block * bytes;
            if (concat->tables[i].table == NULL)
                memcpy(target, source, bytes);
            else
                LEVELLED(elementwise).table[codes](&concat->tables[i], source, target);
            target += bytes;
        }
}

/* ---- slice and transpose ---- */

static anynpu_transpose *transpose_of(size_t element_size)
{
    return LEVELLED(transpose).by_size[element_size == 8 ? 3 : element_size / 2];
}

#define GATHER(type)                                                                                                           \
    {                                                                                                                          \
        const type *source = x;                                                                                                \
        type *target = y;                                                                                                      \
        for (size_t i = 0; i < count; i++)                                                                                     \
            target[i] = source[(ptrdiff_t)i * stride];                                                                         \
        break;                                                                                                                 \
    }

/* count elements that lie stride apart, side by side */
static void gather(const void *x, ptrdiff_t stride, size_t count, void *y, size_t element_size)
{
    switch (element_size) {
    case 1:
        GATHER(uint8_t)
    case 2:
        GATHER(uint16_t)
    case 4:
        GATHER(uint32_t)
    default:
        GATHER(uint64_t)
    }
}

#define COPY_RUNS(bytes)                                                                                                       \
    case bytes:                                                                                                                \
        for (size_t i = 0; i < count; i++)                                                                                     \
            memcpy(y + i * bytes, x + (ptrdiff_t)i * step, bytes);                                                             \
        break;

/* count runs of a few bytes that lie step bytes apart, side by side: the pixels of an image, of which a slice takes every second. With a
 * length that the compiler knows a copy is one or two instructions. */
static void copy_runs(const unsigned char *x, ptrdiff_t step, size_t run, size_t count, unsigned char *y)
{
    switch (run) {
        COPY_RUNS(1)
        COPY_RUNS(2)
        COPY_RUNS(3)
        COPY_RUNS(4)
        COPY_RUNS(6)
        COPY_RUNS(8)
        COPY_RUNS(12)
        COPY_RUNS(16)
    default:
        for (size_t i = 0; i < count; i++)
            memcpy(y + i * run, x + (ptrdiff_t)i * step, run);
    }
}

struct mover {
    const struct anynpu_move *move;
    size_t last;             /* the innermost axis */
    size_t swapped;          /* an axis whose elements lie side by side in the input; equal to last: there is none, or it is the last */
    size_t out_strides[8];   /* bytes */
};

static void move_axis(const struct mover *mover, size_t axis, const unsigned char *x, unsigned char *y)
{
    const struct anynpu_move *move = mover->move;
    size_t size = move->element_size, extent = move->shape[axis];
    ptrdiff_t stride = move->strides[axis];
    if (axis == mover->swapped && axis < mover->last) {
        move_axis(mover, axis + 1, x, y); /* goes together with the last axis */
        return;
    }
    if (axis + 1 == mover->last && mover->swapped == mover->last && move->strides[mover->last] == 1) {
        copy_runs(x, stride * (ptrdiff_t)size, mover->out_strides[axis], extent, y);
        return;
    }
    if (axis < mover->last) {
        for (size_t i = 0; i < extent; i++)
            move_axis(mover, axis + 1, x + (ptrdiff_t)i * stride * (ptrdiff_t)size, y + i * mover->out_strides[axis]);
        return;
    }
    if (mover->swapped < mover->last)
        transpose_of(size)(x, (size_t)stride, y, mover->out_strides[mover->swapped] / size, extent, move->shape[mover->swapped]);
    else if (stride == 1)
        memcpy(y, x, extent * size);
    else
        gather(x, stride, extent, y, size);
}

static void move_elements(const struct anynpu_move *move, const void *x, void *y)
{
    struct mover mover = {.move = move, .last = move->axes - 1, .swapped = move->axes - 1};
    size_t bytes = move->element_size;
    for (size_t axis = move->axes; axis-- > 0;) {
        mover.out_strides[axis] = bytes;
        bytes *= move->shape[axis];
        if (move->strides[axis] == 1 && move->strides[mover.last] > 1 && axis < mover.last)
            mover.swapped = axis;
    }
    move_axis(&mover, 0, (const unsigned char *)x + move->start * (ptrdiff_t)move->element_size, y);
}

/* ---- pad ---- */

static void fill(unsigned char *y, size_t count, uint64_t value, size_t element_size)
{
    if (element_size == 1)
        memset(y, (int)(value & 255), count);
    else
        for (size_t i = 0; i < count; i++)
            memcpy(y + i * element_size, &value, element_size); /* the low bytes come first: every target is little-endian */
}

/* The input's run that the output's run at place shows, where the axis has size runs. */
static size_t mirrored(ptrdiff_t place, size_t extent, int32_t mode)
{
    ptrdiff_t last = (ptrdiff_t)extent - 1;
    if (place < 0)
        return mode == ANYNPU_PAD_EDGE ? 0 : (size_t)-place;
    if (place > last)
        return (size_t)(mode == ANYNPU_PAD_EDGE ? last : 2 * last - place);
    return (size_t)place;
}

static void pad_axis(const struct anynpu_pad *pad, size_t axis, const unsigned char *x, unsigned char *y)
{
    size_t in = pad->run, out = pad->run; /* elements below this axis */
    for (size_t inner = axis + 1; inner < pad->axes; inner++) {
        in *= pad->shape[inner];
        out *= pad->before[inner] + pad->shape[inner] + pad->after[inner];
    }
    size_t size = pad->element_size, extent = pad->shape[axis], before = pad->before[axis], whole = before + extent + pad->after[axis];
    int last = axis + 1 == pad->axes;
    for (size_t i = 0; i < whole;) {
        int inside = i >= before && i < before + extent;
        if (!inside && pad->mode == ANYNPU_PAD_CONSTANT) {
            fill(y + i * out * size, out, pad->value, size);
            i++;
        } else if (last && inside) {
            memcpy(y + i * out * size, x, extent * in * size);
            i += extent;
        } else {
            const unsigned char *source = x + mirrored((ptrdiff_t)i - (ptrdiff_t)before, extent, pad->mode) * in * size;
            if (last)
                memcpy(y + i * out * size, source, out * size);
            else
                pad_axis(pad, axis + 1, source, y + i * out * size);
            i++;
        }
    }
}

static void pad_elements(const struct anynpu_pad *pad, const void *x, void *y)
{
    pad_axis(pad, 0, x, y);
}

extern const struct anynpu_layout_operators LEVELLED(layout);
const struct anynpu_layout_operators LEVELLED(layout) = {
    .concat = concat,
    .move = move_elements,
    .pad = pad_elements,
};
