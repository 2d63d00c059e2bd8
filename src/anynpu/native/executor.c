/* Which kernel runs a layer, and the loop that runs them. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <time.h>

#include "levels.h"
#include "sizes.h"
#include "subpixel.h"
#include "workers.h"

/* ---- choice ---- */

static int fits_a_byte(const int32_t *zeros, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (zeros[i] < INT8_MIN || zeros[i] > INT8_MAX)
            return 0;
    return 1;
}

/* Whether what the kernel needs for a layer stays within bounds: pads and dilations make its scratch larger than all tensors. */
static int sizes_fit(const struct anynpu_conv_kernel *kernel, const struct anynpu_layer *layer, const struct anynpu_conv *conv)
{
    size_t scratch = layer->kind == ANYNPU_LAYER_SUBPIXEL ? anynpu_subpixel_scratch(layer->descriptor, kernel) : kernel->scratch_size(conv);
    size_t weights = kernel->packed_weights_size == NULL ? 0 : kernel->packed_weights_size(conv);
    return scratch <= ANYNPU_MAX_SCRATCH && weights < SIZE_MAX && kernel->packed_size(conv) < SIZE_MAX;
}

static const struct anynpu_conv_kernel *conv_kernel(const struct anynpu_kernel_set *set, const struct anynpu_layer *layer,
                                                    const struct anynpu_conv *conv)
{
    /* Kernels fill up with zero points as if they were quantized values. */
    int bytes = fits_a_byte(conv->weight_zero, conv->cout) &&
                (conv->input_zeros == NULL ? fits_a_byte(&conv->input_zero, 1) : fits_a_byte(conv->input_zeros, conv->cin));
    for (size_t list = 0; bytes && set->convolutions[list] != NULL; list++)
        for (const struct anynpu_conv_kernel *const *kernel = set->convolutions[list]; *kernel != NULL; kernel++)
            if ((*kernel)->fits(conv) && sizes_fit(*kernel, layer, conv))
                return *kernel;
    return NULL;
}

static const void *simple_kernel(const struct anynpu_simple_kernels *simple, const struct anynpu_layer *layer)
{
    const void *found = NULL;
    if (simple == NULL)
        return NULL;
    switch (layer->kind) {
    case ANYNPU_LAYER_BINARY:
        found = simple->binary != NULL && simple->binary_fits(layer->descriptor) ? simple : NULL;
        break;
    case ANYNPU_LAYER_TABLE:
        found = simple->table != NULL ? simple : NULL;
        break;
    case ANYNPU_LAYER_CONCAT:
        found = simple->concat != NULL ? simple : NULL;
        break;
    case ANYNPU_LAYER_POOL:
        found = simple->pool != NULL && simple->pool_fits(layer->descriptor) ? simple : NULL;
        break;
    case ANYNPU_LAYER_RESIZE:
        found = simple->resize != NULL ? simple : NULL;
        break;
    case ANYNPU_LAYER_MATMUL:
        found = simple->matmul != NULL && simple->matmul_fits(layer->descriptor) ? simple : NULL;
        break;
    default:
        break;
    }
    return found;
}

/* The convolution that a fast kernel runs for a layer; NULL for other operators. */
static const struct anynpu_conv *conv_of(const struct anynpu_layer *layer)
{
    if (layer->kind == ANYNPU_LAYER_SUBPIXEL)
        return &((const struct anynpu_subpixel *)layer->descriptor)->conv;
    return layer->kind == ANYNPU_LAYER_CONV ? layer->descriptor : NULL;
}

int anynpu_choose(struct anynpu_layer *layer, int level)
{
    const struct anynpu_kernel_set *set = anynpu_kernels_at(level);
    if (set == NULL)
        return 0;
    layer->operators = &set->operators;
    layer->kernel = NULL;
    layer->packed = NULL;
    if (layer->codes != ANYNPU_CODES_I8)
        return 1;
    const struct anynpu_conv *conv = conv_of(layer);
    layer->kernel = conv != NULL ? (const void *)conv_kernel(set, layer, conv) : simple_kernel(set->simple, layer);
    return 1;
}

const char *anynpu_kernel_name(const struct anynpu_layer *layer)
{
    if (layer->kernel == NULL)
        return "plain";
    return conv_of(layer) != NULL ? ((const struct anynpu_conv_kernel *)layer->kernel)->name : "simple";
}

size_t anynpu_packed_weights_size(const struct anynpu_layer *layer)
{
    const struct anynpu_conv_kernel *kernel = layer->kernel;
    if (conv_of(layer) == NULL || kernel == NULL || kernel->packed_weights_size == NULL)
        return 0;
    return kernel->packed_weights_size(conv_of(layer));
}

void anynpu_pack_weights(const struct anynpu_layer *layer, void *weights)
{
    const struct anynpu_conv_kernel *kernel = layer->kernel;
    kernel->pack_weights(conv_of(layer), weights);
}

size_t anynpu_packed_size(const struct anynpu_layer *layer)
{
    const struct anynpu_conv_kernel *kernel = layer->kernel;
    return conv_of(layer) != NULL && kernel != NULL ? kernel->packed_size(conv_of(layer)) : 0;
}

void anynpu_pack(const struct anynpu_layer *layer, const void *weights, void *packed)
{
    const struct anynpu_conv_kernel *kernel = layer->kernel;
    kernel->pack(conv_of(layer), weights, packed);
}

size_t anynpu_scratch_size(const struct anynpu_layer *layer)
{
    const struct anynpu_operators *operators = layer->operators;
    const struct anynpu_conv_kernel *kernel = layer->kernel;
    switch (layer->kind) {
    case ANYNPU_LAYER_CONV:
        return kernel != NULL ? kernel->scratch_size(layer->descriptor) : operators->products->conv_scratch(layer->descriptor);
    case ANYNPU_LAYER_CONV_TRANSPOSE:
        return operators->products->conv_scratch(layer->descriptor);
    case ANYNPU_LAYER_SUBPIXEL:
        return kernel != NULL ? anynpu_subpixel_scratch(layer->descriptor, kernel) : 0;
    case ANYNPU_LAYER_MATMUL:
        return kernel != NULL ? ((const struct anynpu_simple_kernels *)layer->kernel)->matmul_scratch(layer->descriptor)
                              : operators->products->matmul_scratch(layer->descriptor);
    case ANYNPU_LAYER_POOL:
        return kernel != NULL ? 0 : operators->windows->pool_scratch(layer->descriptor);
    default:
        return 0;
    }
}

/* ---- one layer ---- */

/* Output rows over all images that can be computed apart from each other (of a SUBPIXEL those of its ordinary convolution); 0: the layer
 * runs as a whole. */
static size_t rows_of(const struct anynpu_layer *layer)
{
    const struct anynpu_conv *conv = layer->kind == ANYNPU_LAYER_CONV_TRANSPOSE ? layer->descriptor : conv_of(layer);
    const struct anynpu_pool *pool = layer->descriptor;
    return conv != NULL ? conv->n * conv->oh : layer->kind == ANYNPU_LAYER_POOL ? pool->n * pool->oh : 0;
}

static void run_conv_rows(const struct anynpu_layer *layer, void *const *tensors, void *scratch, size_t first, size_t last)
{
    const struct anynpu_conv *conv = layer->descriptor;
    const struct anynpu_product_operators *plain = ((const struct anynpu_operators *)layer->operators)->products;
    const struct anynpu_conv_kernel *kernel = layer->kernel;
    const void *x = tensors[layer->inputs[0]], *residual = layer->inputs[1] < 0 ? NULL : tensors[layer->inputs[1]];
    void *y = tensors[layer->output];
    if (kernel != NULL)
        kernel->run(conv, layer->packed, x, residual, y, scratch, first, last);
    else
        (layer->kind == ANYNPU_LAYER_CONV ? plain->conv : plain->conv_transpose)[layer->codes](conv, x, residual, y, scratch, first, last);
}

static void run_rows(const struct anynpu_layer *layer, void *const *tensors, void *scratch, size_t first, size_t last)
{
    const struct anynpu_simple_kernels *simple = layer->kernel;
    const void *x = tensors[layer->inputs[0]];
    void *y = tensors[layer->output];
    if (layer->kind == ANYNPU_LAYER_SUBPIXEL)
        anynpu_run_subpixel(layer->descriptor, layer->kernel, layer->packed, x, y, scratch, first, last);
    else if (layer->kind != ANYNPU_LAYER_POOL)
        run_conv_rows(layer, tensors, scratch, first, last);
    else if (simple != NULL)
        simple->pool(layer->descriptor, x, y, first, last);
    else
        ((const struct anynpu_operators *)layer->operators)->windows->pool[layer->codes](layer->descriptor, x, y, scratch, first, last);
}

static void run_concat(const struct anynpu_layer *layer, void *const *tensors)
{
    const struct anynpu_concat *concat = layer->descriptor;
    const struct anynpu_simple_kernels *simple = layer->kernel;
    void *y = tensors[layer->output];
    enum { FEW = 16 };
    if (simple != NULL && concat->inputs <= FEW) {
        const int8_t *inputs[FEW];
        for (size_t i = 0; i < concat->inputs; i++)
            inputs[i] = tensors[layer->inputs[i]];
        simple->concat(concat, inputs, y);
    } else {
        ((const struct anynpu_operators *)layer->operators)->layout->concat(concat, layer->codes, tensors, layer->inputs, y);
    }
}

static void run_float(const struct anynpu_layer *layer, void *const *tensors)
{
    const struct anynpu_float_operators *floats = ((const struct anynpu_operators *)layer->operators)->floats;
    const void *descriptor = layer->descriptor, *x = tensors[layer->inputs[0]];
    const int32_t *inputs = layer->inputs;
    void *y = tensors[layer->output];
    switch (layer->kind) {
    case ANYNPU_LAYER_FLOAT_BINARY:
        floats->binary(descriptor, x, tensors[inputs[1]], y);
        break;
    case ANYNPU_LAYER_FLOAT_UNARY:
        floats->unary(descriptor, x, y);
        break;
    case ANYNPU_LAYER_FLOAT_REDUCE:
        floats->reduce(descriptor, x, y);
        break;
    case ANYNPU_LAYER_FLOAT_SOFTMAX:
        floats->softmax(descriptor, x, y);
        break;
    case ANYNPU_LAYER_FLOAT_NORMALIZE:
        floats->normalize(descriptor, x, tensors[inputs[1]], inputs[2] < 0 ? NULL : tensors[inputs[2]], y);
        break;
    case ANYNPU_LAYER_FLOAT_MATMUL:
        floats->matmul(descriptor, x, tensors[inputs[1]], y);
        break;
    default:
        floats->cast(descriptor, x, y);
    }
}

static void run_matmul(const struct anynpu_layer *layer, const struct anynpu_matmul *matmul, void *const *tensors, void *y, void *scratch)
{
    const struct anynpu_product_operators *plain = ((const struct anynpu_operators *)layer->operators)->products;
    const struct anynpu_simple_kernels *simple = layer->kernel;
    const void *a = tensors[layer->inputs[0]], *b = tensors[layer->inputs[1]];
    if (simple != NULL)
        simple->matmul(matmul, a, b, y, scratch);
    else
        plain->matmul[layer->codes](matmul, a, b, y, scratch);
}

static void run_layer(const struct anynpu_layer *layer, void *const *tensors, void *scratch)
{
    const struct anynpu_operators *plain = layer->operators;
    const struct anynpu_simple_kernels *simple = layer->kernel;
    const void *descriptor = layer->descriptor, *x = tensors[layer->inputs[0]];
    void *y = tensors[layer->output];
    switch ((enum anynpu_layer_kind)layer->kind) {
    case ANYNPU_LAYER_CONV:
    case ANYNPU_LAYER_CONV_TRANSPOSE:
    case ANYNPU_LAYER_SUBPIXEL:
    case ANYNPU_LAYER_POOL:
        run_rows(layer, tensors, scratch, 0, rows_of(layer));
        break;
    case ANYNPU_LAYER_MATMUL:
        run_matmul(layer, descriptor, tensors, y, scratch);
        break;
    case ANYNPU_LAYER_BINARY:
        if (simple != NULL)
            simple->binary(descriptor, x, tensors[layer->inputs[1]], y);
        else
            plain->elementwise->binary[layer->codes](descriptor, x, tensors[layer->inputs[1]], y);
        break;
    case ANYNPU_LAYER_TABLE:
        if (simple != NULL)
            simple->table(descriptor, x, y);
        else
            plain->elementwise->table[layer->codes](descriptor, x, y);
        break;
    case ANYNPU_LAYER_CONCAT:
        run_concat(layer, tensors);
        break;
    case ANYNPU_LAYER_MOVE:
        plain->layout->move(descriptor, x, y);
        break;
    case ANYNPU_LAYER_PAD:
        plain->layout->pad(descriptor, x, y);
        break;
    case ANYNPU_LAYER_RESIZE:
        if (simple != NULL)
            simple->resize(descriptor, x, y);
        else
            plain->windows->resize[layer->codes](descriptor, x, y);
        break;
    case ANYNPU_LAYER_CONVERT:
        anynpu_convert(descriptor, x, y);
        break;
    case ANYNPU_LAYER_FLOAT_BINARY:
    case ANYNPU_LAYER_FLOAT_UNARY:
    case ANYNPU_LAYER_FLOAT_REDUCE:
    case ANYNPU_LAYER_FLOAT_SOFTMAX:
    case ANYNPU_LAYER_FLOAT_NORMALIZE:
    case ANYNPU_LAYER_FLOAT_MATMUL:
    case ANYNPU_LAYER_FLOAT_CAST:
        run_float(layer, tensors);
        break;
    }
}

/* ---- parts of a layer ---- */

enum {
    PART_INPUTS = 16,
    BLOCK = 64 /* elements that stay together where any number of them could be computed apart */
};

/* A layer of its own that computes some units of another. */
struct part {
    struct anynpu_layer layer;
    int32_t inputs[PART_INPUTS];
    void *tensors[PART_INPUTS + 1]; /* the inputs, and the output */
    size_t a_offset, b_offset;
    union {
        struct anynpu_table table;
        struct anynpu_binary binary;
        struct anynpu_concat concat;
        struct anynpu_move move;
        struct anynpu_resize resize;
        struct anynpu_matmul matmul;
        struct anynpu_float_binary float_binary;
        struct anynpu_float_unary unary;
        struct anynpu_float_reduce reduce;
        struct anynpu_float_softmax softmax;
        struct anynpu_float_normalize normalize;
        struct anynpu_float_matmul float_matmul;
        struct anynpu_float_cast cast;
    } is;
};

static size_t blocks_of(size_t count)
{
    return count / BLOCK + (count % BLOCK != 0);
}

/* The first axis that has several places; so many axes: there is none. */
static size_t long_axis(const size_t *shape, size_t axes)
{
    size_t axis = 0;
    while (axis < axes && shape[axis] <= 1)
        axis++;
    return axis;
}

static size_t places(const size_t *shape, size_t axes)
{
    size_t axis = long_axis(shape, axes);
    return axis < axes ? shape[axis] : 0;
}

static size_t product(const size_t *shape, size_t first, size_t last)
{
    size_t all = 1;
    for (; first < last; first++)
        all *= shape[first];
    return all;
}

/* The units of a layer's output that can be computed apart: rows, blocks, or places along an axis; 0: it runs as a whole. */
static size_t units_of(const struct anynpu_layer *layer)
{
    const void *descriptor = layer->descriptor;
    const struct anynpu_table *table = descriptor;
    const struct anynpu_concat *concat = descriptor;
    const struct anynpu_resize *resize = descriptor;
    const struct anynpu_matmul *matmul = descriptor;
    const struct anynpu_float_matmul *float_matmul = descriptor;
    switch ((enum anynpu_layer_kind)layer->kind) {
    case ANYNPU_LAYER_TABLE:
        return table->row == NULL ? blocks_of(table->count) : table->channels == 0 ? 0 : table->count / table->channels;
    case ANYNPU_LAYER_BINARY:
        return places(((const struct anynpu_binary *)descriptor)->shape, 5);
    case ANYNPU_LAYER_CONCAT:
        return concat->inputs <= PART_INPUTS ? concat->outer : 0;
    case ANYNPU_LAYER_MOVE:
        return places(((const struct anynpu_move *)descriptor)->shape, ((const struct anynpu_move *)descriptor)->axes);
    case ANYNPU_LAYER_RESIZE:
        return resize->n * resize->oh;
    case ANYNPU_LAYER_MATMUL:
        return matmul->batch * matmul->m;
    case ANYNPU_LAYER_FLOAT_MATMUL:
        return float_matmul->batch * float_matmul->m;
    case ANYNPU_LAYER_FLOAT_BINARY:
        return places(((const struct anynpu_float_binary *)descriptor)->shape, 6);
    case ANYNPU_LAYER_FLOAT_UNARY:
        return blocks_of(((const struct anynpu_float_unary *)descriptor)->count);
    case ANYNPU_LAYER_FLOAT_CAST:
        return blocks_of(((const struct anynpu_float_cast *)descriptor)->count);
    case ANYNPU_LAYER_FLOAT_REDUCE:
        return ((const struct anynpu_float_reduce *)descriptor)->outer;
    case ANYNPU_LAYER_FLOAT_SOFTMAX:
        return ((const struct anynpu_float_softmax *)descriptor)->outer;
    case ANYNPU_LAYER_FLOAT_NORMALIZE:
        return ((const struct anynpu_float_normalize *)descriptor)->rows;
    case ANYNPU_LAYER_PAD:
    case ANYNPU_LAYER_CONVERT:
        return 0;
    default:
        return rows_of(layer);
    }
}

/* An input or the output of a part begins so many bytes after that of the layer. */
static void skip(struct part *part, size_t tensor, size_t bytes)
{
    part->tensors[tensor] = (uint8_t *)part->tensors[tensor] + bytes;
}

static size_t blocks_from(size_t count, size_t block, size_t first, size_t last)
{
    const size_t end = last * block;
    return (end < count ? end : count) - first * block;
}

/* What computes the units from first on, of one image or matrix at most; returns how many it is. */
static size_t make_part(const struct anynpu_layer *layer, void *const *tensors, size_t first, size_t last, struct part *part)
{
    const void *descriptor = layer->descriptor;
    const size_t element = layer->codes == ANYNPU_CODES_I16 ? sizeof(int16_t) : sizeof(int8_t);
    size_t units = last - first, inputs = 1, total, axis, block;
    part->layer = *layer;
    part->layer.inputs = part->inputs;
    part->layer.output = PART_INPUTS;
    part->layer.descriptor = &part->is;
    part->tensors[PART_INPUTS] = tensors[layer->output];
    if (layer->kind == ANYNPU_LAYER_CONCAT)
        inputs = ((const struct anynpu_concat *)descriptor)->inputs;
    else if (layer->kind == ANYNPU_LAYER_FLOAT_NORMALIZE)
        inputs = 3;
    else if (layer->kind == ANYNPU_LAYER_BINARY || layer->kind == ANYNPU_LAYER_FLOAT_BINARY || layer->kind == ANYNPU_LAYER_MATMUL ||
             layer->kind == ANYNPU_LAYER_FLOAT_MATMUL)
        inputs = 2;
    for (size_t i = 0; i < inputs; i++) {
        part->inputs[i] = layer->inputs[i] < 0 ? -1 : (int32_t)i;
        part->tensors[i] = layer->inputs[i] < 0 ? NULL : tensors[layer->inputs[i]];
    }
    switch ((enum anynpu_layer_kind)layer->kind) {
    case ANYNPU_LAYER_TABLE:
        part->is.table = *(const struct anynpu_table *)descriptor;
        block = part->is.table.row == NULL ? BLOCK : part->is.table.channels;
        part->is.table.count = blocks_from(part->is.table.count, block, first, last);
        skip(part, 0, first * block * element);
        skip(part, PART_INPUTS, first * block * element);
        break;
    case ANYNPU_LAYER_BINARY:
        part->is.binary = *(const struct anynpu_binary *)descriptor;
        axis = long_axis(part->is.binary.shape, 5);
        part->is.binary.shape[axis] = units;
        skip(part, 0, first * part->is.binary.a_strides[axis] * element);
        skip(part, 1, first * part->is.binary.b_strides[axis] * element);
        skip(part, PART_INPUTS, first * product(part->is.binary.shape, axis + 1, 6) * element);
        break;
    case ANYNPU_LAYER_CONCAT:
        part->is.concat = *(const struct anynpu_concat *)descriptor;
        part->is.concat.outer = units;
        total = 0;
        for (size_t i = 0; i < inputs; i++) {
            skip(part, i, first * part->is.concat.inner[i] * part->is.concat.element_size);
            total += part->is.concat.inner[i] * part->is.concat.element_size;
        }
        skip(part, PART_INPUTS, first * total);
        break;
    case ANYNPU_LAYER_MOVE:
        part->is.move = *(const struct anynpu_move *)descriptor;
        axis = long_axis(part->is.move.shape, part->is.move.axes);
        part->is.move.shape[axis] = units;
        part->is.move.start += (ptrdiff_t)first * part->is.move.strides[axis];
        skip(part, PART_INPUTS, first * product(part->is.move.shape, axis + 1, part->is.move.axes) * part->is.move.element_size);
        break;
    case ANYNPU_LAYER_RESIZE: {
        struct anynpu_resize *resize = &part->is.resize;
        *resize = *(const struct anynpu_resize *)descriptor;
        const size_t image = first / resize->oh, row = first % resize->oh;
        units = units < resize->oh - row ? units : resize->oh - row;
        resize->n = 1, resize->oh = units, resize->rows += 3 * row;
        skip(part, 0, image * resize->h * resize->w * resize->c * element);
        skip(part, PART_INPUTS, first * resize->ow * resize->c * element);
        break;
    }
    case ANYNPU_LAYER_MATMUL: {
        struct anynpu_matmul *matmul = &part->is.matmul;
        *matmul = *(const struct anynpu_matmul *)descriptor;
        const size_t batch = first / matmul->m, row = first % matmul->m;
        units = units < matmul->m - row ? units : matmul->m - row;
        part->a_offset = matmul->a_offsets[batch] + row * matmul->k, part->b_offset = matmul->b_offsets[batch];
        matmul->batch = 1, matmul->m = units, matmul->a_offsets = &part->a_offset, matmul->b_offsets = &part->b_offset;
        skip(part, PART_INPUTS, first * matmul->n * element);
        break;
    }
    case ANYNPU_LAYER_FLOAT_MATMUL: {
        struct anynpu_float_matmul *matmul = &part->is.float_matmul;
        *matmul = *(const struct anynpu_float_matmul *)descriptor;
        const size_t batch = first / matmul->m, row = first % matmul->m;
        units = units < matmul->m - row ? units : matmul->m - row;
        part->a_offset = matmul->a_offsets[batch] + row * matmul->k, part->b_offset = matmul->b_offsets[batch];
        matmul->batch = 1, matmul->m = units, matmul->a_offsets = &part->a_offset, matmul->b_offsets = &part->b_offset;
        skip(part, PART_INPUTS, first * matmul->n * sizeof(float));
        break;
    }
    case ANYNPU_LAYER_FLOAT_BINARY:
        part->is.float_binary = *(const struct anynpu_float_binary *)descriptor;
        axis = long_axis(part->is.float_binary.shape, 6);
        part->is.float_binary.shape[axis] = units;
        skip(part, 0, first * part->is.float_binary.a_strides[axis] * sizeof(float));
        skip(part, 1, first * part->is.float_binary.b_strides[axis] * sizeof(float));
        skip(part, PART_INPUTS, first * product(part->is.float_binary.shape, axis + 1, 6) * sizeof(float));
        break;
    case ANYNPU_LAYER_FLOAT_UNARY:
        part->is.unary = *(const struct anynpu_float_unary *)descriptor;
        part->is.unary.count = blocks_from(part->is.unary.count, BLOCK, first, last);
        skip(part, 0, first * BLOCK * sizeof(float));
        skip(part, PART_INPUTS, first * BLOCK * sizeof(float));
        break;
    case ANYNPU_LAYER_FLOAT_CAST:
        part->is.cast = *(const struct anynpu_float_cast *)descriptor;
        part->is.cast.count = blocks_from(part->is.cast.count, BLOCK, first, last);
        skip(part, 0, first * BLOCK * (part->is.cast.to_half ? sizeof(float) : sizeof(uint16_t)));
        skip(part, PART_INPUTS, first * BLOCK * (part->is.cast.to_half ? sizeof(uint16_t) : sizeof(float)));
        break;
    case ANYNPU_LAYER_FLOAT_REDUCE:
        part->is.reduce = *(const struct anynpu_float_reduce *)descriptor;
        part->is.reduce.outer = units;
        skip(part, 0, first * part->is.reduce.extent * part->is.reduce.inner * sizeof(float));
        skip(part, PART_INPUTS, first * part->is.reduce.inner * sizeof(float));
        break;
    case ANYNPU_LAYER_FLOAT_SOFTMAX:
        part->is.softmax = *(const struct anynpu_float_softmax *)descriptor;
        part->is.softmax.outer = units;
        total = first * part->is.softmax.extent * part->is.softmax.inner * sizeof(float);
        skip(part, 0, total);
        skip(part, PART_INPUTS, total);
        break;
    default:
        part->is.normalize = *(const struct anynpu_float_normalize *)descriptor;
        part->is.normalize.rows = units;
        skip(part, 0, first * part->is.normalize.extent * sizeof(float));
        skip(part, PART_INPUTS, first * part->is.normalize.extent * sizeof(float));
    }
    return units;
}

static void run_units(const struct anynpu_layer *layer, void *const *tensors, void *scratch, size_t first, size_t last)
{
    if (rows_of(layer) > 0) {
        run_rows(layer, tensors, scratch, first, last);
        return;
    }
    while (first < last) {
        struct part part;
        first += make_part(layer, tensors, first, last, &part);
        run_layer(&part.layer, part.tensors, scratch);
    }
}

/* ---- one layer on several threads ---- */

/* How much more a product costs than in a fast convolution of many channels, and what an element of other operators costs, roughly. */
enum {
    COST_BY_CHANNEL = 6,
    COST_PLAIN = 8,
    COST_MATMUL = 2,
    COST_MOVED = 20,
    COST_COMBINED = 40,
    COST_GATHERED = 60,
    COST_FUNCTION = 200
};

static double elements_of(const size_t *shape, size_t axes)
{
    double all = 1;
    for (size_t axis = 0; axis < axes; axis++)
        all *= (double)shape[axis];
    return all;
}

/* Of a layer that has units. A file may claim what leaves 64 bits: so it is no integer. */
static double work_of(const struct anynpu_layer *layer)
{
    const void *descriptor = layer->descriptor;
    const struct anynpu_conv *conv = layer->kind == ANYNPU_LAYER_CONV_TRANSPOSE ? descriptor : conv_of(layer);
    const double plain = layer->kernel == NULL ? COST_PLAIN : 1;
    double work = 0;
    switch ((enum anynpu_layer_kind)layer->kind) {
    case ANYNPU_LAYER_POOL: {
        const struct anynpu_pool *pool = descriptor;
        return plain * COST_BY_CHANNEL * (double)pool->n * (double)pool->oh * (double)pool->ow * (double)pool->c * (double)pool->kh *
               (double)pool->kw;
    }
    case ANYNPU_LAYER_MATMUL: {
        const struct anynpu_matmul *matmul = descriptor;
        return (layer->kernel == NULL ? COST_PLAIN : COST_MATMUL) * (double)matmul->batch * (double)matmul->m * (double)matmul->k *
               (double)matmul->n;
    }
    case ANYNPU_LAYER_FLOAT_MATMUL: {
        const struct anynpu_float_matmul *matmul = descriptor;
        return COST_PLAIN * (double)matmul->batch * (double)matmul->m * (double)matmul->k * (double)matmul->n;
    }
    case ANYNPU_LAYER_TABLE:
        return COST_MOVED * (double)((const struct anynpu_table *)descriptor)->count;
    case ANYNPU_LAYER_BINARY:
        return plain * COST_COMBINED * elements_of(((const struct anynpu_binary *)descriptor)->shape, 6);
    case ANYNPU_LAYER_CONCAT:
        for (size_t i = 0; i < ((const struct anynpu_concat *)descriptor)->inputs; i++)
            work += COST_MOVED * (double)((const struct anynpu_concat *)descriptor)->inner[i];
        return work * (double)((const struct anynpu_concat *)descriptor)->outer;
    case ANYNPU_LAYER_MOVE:
        return COST_GATHERED * elements_of(((const struct anynpu_move *)descriptor)->shape, ((const struct anynpu_move *)descriptor)->axes);
    case ANYNPU_LAYER_RESIZE: {
        const struct anynpu_resize *resize = descriptor;
        return plain * COST_COMBINED * (double)resize->n * (double)resize->oh * (double)resize->ow * (double)resize->c;
    }
    case ANYNPU_LAYER_FLOAT_BINARY:
        return COST_GATHERED * elements_of(((const struct anynpu_float_binary *)descriptor)->shape, 6);
    case ANYNPU_LAYER_FLOAT_CAST:
        return COST_GATHERED * (double)((const struct anynpu_float_cast *)descriptor)->count;
    case ANYNPU_LAYER_FLOAT_UNARY:
        return COST_FUNCTION * (double)((const struct anynpu_float_unary *)descriptor)->count;
    case ANYNPU_LAYER_FLOAT_REDUCE: {
        const struct anynpu_float_reduce *reduce = descriptor;
        return COST_GATHERED * (double)reduce->outer * (double)reduce->extent * (double)reduce->inner;
    }
    case ANYNPU_LAYER_FLOAT_SOFTMAX: {
        const struct anynpu_float_softmax *softmax = descriptor;
        return COST_FUNCTION * (double)softmax->outer * (double)softmax->extent * (double)softmax->inner;
    }
    case ANYNPU_LAYER_FLOAT_NORMALIZE: {
        const struct anynpu_float_normalize *normalize = descriptor;
        return COST_FUNCTION * (double)normalize->rows * (double)normalize->extent;
    }
    default:
        break;
    }
    if (conv == NULL)
        return 0;
    double products = (double)conv->n * (double)conv->oh * (double)conv->ow * (double)conv->cout * (double)conv->kh * (double)conv->kw *
                      (double)(conv->cin / conv->groups);
    return plain * products * (conv->groups == conv->cin ? COST_BY_CHANNEL : 1);
}

int anynpu_worth_sharing(const struct anynpu_layer *layers, size_t count, double least)
{
    double all = 0;
    for (size_t i = 0; i < count; i++)
        all += units_of(&layers[i]) > 1 ? work_of(&layers[i]) : 0;
    return all >= least;
}

struct shared_layer {
    const struct anynpu_layer *layer;
    void *const *tensors;
    uint8_t *scratch;
    size_t scratch_step;
    size_t first;
};

static void run_shared_units(const void *job, size_t thread, size_t first, size_t last)
{
    const struct shared_layer *shared = job;
    run_units(shared->layer, shared->tensors, shared->scratch + thread * shared->scratch_step, shared->first + first,
              shared->first + last);
}

static void share_units(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, void *const *tensors, void *scratch,
                        size_t first, size_t last)
{
    const struct shared_layer job = {layer, tensors, scratch, sharing->scratch_step, first};
    const size_t threads = last - first > 1 ? anynpu_threads_now(sharing->workers, sharing->threads) : 1;
    if (threads > 1)
        anynpu_share_rows(sharing->workers, threads, run_shared_units, &job, last - first);
    else
        run_units(layer, tensors, scratch, first, last);
}

static void run_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, void *const *tensors, void *scratch)
{
    size_t units = units_of(layer);
    if (units > 1 && work_of(layer) >= (double)sharing->least_work)
        share_units(sharing, layer, tensors, scratch, 0, units);
    else
        run_layer(layer, tensors, scratch);
}

/* ---- many layers ---- */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Why a run has to end; ANYNPU_FINISHED: it does not. */
static int end_of(const int32_t *stop, int64_t deadline_ns, int64_t now)
{
    if (__atomic_load_n(stop, __ATOMIC_RELAXED) != 0)
        return ANYNPU_STOPPED;
    return deadline_ns >= 0 && now >= deadline_ns ? ANYNPU_EXPIRED : ANYNPU_FINISHED;
}

/* A layer that takes long is cut into pieces of its units, so that a run can be stopped within it: some tenths of a second each. Other layers
 * cost no more than a few operations for each byte that they write. */
#define WORK_OF_A_PIECE 4e9

struct cut {
    size_t units, step;
};

static struct cut cut_of(const struct anynpu_layer *layer)
{
    struct cut cut = {.units = units_of(layer)};
    cut.step = cut.units;
    double work = cut.units > 0 ? work_of(layer) : 0;
    if (work > WORK_OF_A_PIECE) {
        double step = (double)cut.units * (WORK_OF_A_PIECE / work);
        cut.step = step < 1 ? 1 : (size_t)step;
    }
    return cut;
}

static int run_pieces(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, struct cut cut, void *const *tensors,
                      void *scratch, const int32_t *stop, int64_t deadline_ns)
{
    for (size_t first = 0; first < cut.units; first += cut.step) {
        size_t last = cut.units - first < cut.step ? cut.units : first + cut.step;
        int end = end_of(stop, deadline_ns, deadline_ns >= 0 ? now_ns() : 0);
        if (end != ANYNPU_FINISHED)
            return end;
        if (sharing != NULL)
            share_units(sharing, layer, tensors, scratch, first, last);
        else
            run_units(layer, tensors, scratch, first, last);
    }
    return ANYNPU_FINISHED;
}

static int run_layers(const struct anynpu_sharing *sharing, const struct anynpu_layer *layers, size_t count, void *const *tensors,
                      void *scratch, const int32_t *stop, int64_t deadline_ns, int64_t *clock_ns, size_t *reached)
{
    int alone = sharing == NULL || !anynpu_workers_usable(sharing->workers);
    int timed = clock_ns != NULL || deadline_ns >= 0;
    int64_t now = timed ? now_ns() : 0;
    for (*reached = 0; *reached < count; ++*reached) {
        const struct anynpu_layer *layer = &layers[*reached];
        int end = end_of(stop, deadline_ns, now);
        if (end != ANYNPU_FINISHED)
            return end;
        struct cut cut = cut_of(layer);
        if (cut.step < cut.units) {
            end = run_pieces(alone ? NULL : sharing, layer, cut, tensors, scratch, stop, deadline_ns);
            if (end != ANYNPU_FINISHED)
                return end;
        } else if (alone) {
            run_layer(layer, tensors, scratch);
        } else {
            run_shared(sharing, layer, tensors, scratch);
        }
        if (timed) {
            int64_t begin = now;
            now = now_ns();
            if (clock_ns != NULL)
                clock_ns[*reached] = now - begin;
        }
    }
    return ANYNPU_FINISHED;
}

int anynpu_execute_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layers, size_t count, void *const *tensors,
                          void *scratch, const int32_t *stop, int64_t deadline_ns, int64_t *clock_ns, size_t *reached)
{
    anynpu_count_runs(1);
    int end = run_layers(sharing, layers, count, tensors, scratch, stop, deadline_ns, clock_ns, reached);
    anynpu_count_runs(-1);
    return end;
}

int anynpu_execute(const struct anynpu_layer *layers, size_t count, void *const *tensors, void *scratch, const int32_t *stop,
                   int64_t deadline_ns, int64_t *clock_ns, size_t *reached)
{
    return anynpu_execute_shared(NULL, layers, count, tensors, scratch, stop, deadline_ns, clock_ns, reached);
}
