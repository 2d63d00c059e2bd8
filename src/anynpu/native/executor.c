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
    /* Kernels fill up with zero points as if they were codes. */
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

/* Rows of all products of a layer, one after the other: [first, last) of batch * m. */
static void run_matmul_rows(const struct anynpu_layer *layer, void *const *tensors, void *scratch, size_t first, size_t last)
{
    const struct anynpu_matmul *all = layer->descriptor;
    size_t element = layer->codes == ANYNPU_CODES_I16 ? sizeof(int16_t) : sizeof(int8_t);
    for (size_t rows; first < last; first += rows) {
        size_t batch = first / all->m, row = first % all->m;
        size_t a = all->a_offsets[batch] + row * all->k, b = all->b_offsets[batch];
        struct anynpu_matmul part = *all;
        rows = last - first < all->m - row ? last - first : all->m - row;
        part.batch = 1, part.m = rows, part.a_offsets = &a, part.b_offsets = &b;
        run_matmul(layer, &part, tensors, (uint8_t *)tensors[layer->output] + first * all->n * element, scratch);
    }
}

static void run_float_matmul_rows(const struct anynpu_layer *layer, void *const *tensors, size_t first, size_t last)
{
    const struct anynpu_float_matmul *all = layer->descriptor;
    const struct anynpu_float_operators *floats = ((const struct anynpu_operators *)layer->operators)->floats;
    for (size_t rows; first < last; first += rows) {
        size_t batch = first / all->m, row = first % all->m;
        size_t a = all->a_offsets[batch] + row * all->k, b = all->b_offsets[batch];
        struct anynpu_float_matmul part = *all;
        rows = last - first < all->m - row ? last - first : all->m - row;
        part.batch = 1, part.m = rows, part.a_offsets = &a, part.b_offsets = &b;
        floats->matmul(&part, tensors[layer->inputs[0]], tensors[layer->inputs[1]], (float *)tensors[layer->output] + first * all->n);
    }
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

/* ---- one layer on several threads ---- */

/* How much more a product costs than in a fast convolution of many channels, roughly. */
enum { COST_BY_CHANNEL = 6, COST_PLAIN = 8 };

/* Of a layer that has rows. A file may claim what leaves 64 bits: so it is no integer. */
static double work_of(const struct anynpu_layer *layer)
{
    const struct anynpu_conv *conv = layer->kind == ANYNPU_LAYER_CONV_TRANSPOSE ? layer->descriptor : conv_of(layer);
    const struct anynpu_pool *pool = layer->descriptor;
    const double plain = layer->kernel == NULL ? COST_PLAIN : 1;
    if (conv == NULL)
        return plain * COST_BY_CHANNEL * (double)pool->n * (double)pool->oh * (double)pool->ow * (double)pool->c * (double)pool->kh *
               (double)pool->kw;
    double products = (double)conv->n * (double)conv->oh * (double)conv->ow * (double)conv->cout * (double)conv->kh * (double)conv->kw *
                      (double)(conv->cin / conv->groups);
    return plain * products * (conv->groups == conv->cin ? COST_BY_CHANNEL : 1);
}

struct shared_layer {
    const struct anynpu_layer *layer;
    void *const *tensors;
    uint8_t *scratch;
    size_t scratch_step;
    size_t first_row;
};

static void run_shared_rows(const void *job, size_t thread, size_t first, size_t last)
{
    const struct shared_layer *shared = job;
    run_rows(shared->layer, shared->tensors, shared->scratch + thread * shared->scratch_step, shared->first_row + first,
             shared->first_row + last);
}

static void share_rows(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, void *const *tensors, void *scratch,
                       size_t first, size_t last)
{
    const struct shared_layer job = {layer, tensors, scratch, sharing->scratch_step, first};
    anynpu_share_rows(sharing->workers, run_shared_rows, &job, last - first);
}

static void run_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, void *const *tensors, void *scratch)
{
    size_t rows = rows_of(layer);
    if (rows > 1 && work_of(layer) >= (double)sharing->least_work)
        share_rows(sharing, layer, tensors, scratch, 0, rows);
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

/* A layer that takes long is cut into pieces of rows, so that a run can be stopped within it: some tenths of a second each. Other layers
 * cost no more than a few operations for each byte that they write. */
#define WORK_OF_A_PIECE 4e9

struct cut {
    size_t rows, step;
};

static struct cut cut_of(const struct anynpu_layer *layer)
{
    struct cut cut = {0};
    double work = 0;
    if (layer->kind == ANYNPU_LAYER_MATMUL) {
        const struct anynpu_matmul *matmul = layer->descriptor;
        cut.rows = matmul->batch * matmul->m;
        work = COST_PLAIN * (double)cut.rows * (double)matmul->k * (double)matmul->n;
    } else if (layer->kind == ANYNPU_LAYER_FLOAT_MATMUL) {
        const struct anynpu_float_matmul *matmul = layer->descriptor;
        cut.rows = matmul->batch * matmul->m;
        work = COST_PLAIN * (double)cut.rows * (double)matmul->k * (double)matmul->n;
    } else if ((cut.rows = rows_of(layer)) > 0) {
        work = work_of(layer);
    }
    cut.step = cut.rows;
    if (work > WORK_OF_A_PIECE) {
        double step = (double)cut.rows * (WORK_OF_A_PIECE / work);
        cut.step = step < 1 ? 1 : (size_t)step;
    }
    return cut;
}

static int run_pieces(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, struct cut cut, void *const *tensors,
                      void *scratch, const int32_t *stop, int64_t deadline_ns)
{
    for (size_t first = 0; first < cut.rows; first += cut.step) {
        size_t last = cut.rows - first < cut.step ? cut.rows : first + cut.step;
        int end = end_of(stop, deadline_ns, deadline_ns >= 0 ? now_ns() : 0);
        if (end != ANYNPU_FINISHED)
            return end;
        if (layer->kind == ANYNPU_LAYER_MATMUL)
            run_matmul_rows(layer, tensors, scratch, first, last);
        else if (layer->kind == ANYNPU_LAYER_FLOAT_MATMUL)
            run_float_matmul_rows(layer, tensors, first, last);
        else if (sharing != NULL && last - first > 1)
            share_rows(sharing, layer, tensors, scratch, first, last);
        else
            run_rows(layer, tensors, scratch, first, last);
    }
    return ANYNPU_FINISHED;
}

int anynpu_execute_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layers, size_t count, void *const *tensors,
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
        if (cut.step < cut.rows) {
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

int anynpu_execute(const struct anynpu_layer *layers, size_t count, void *const *tensors, void *scratch, const int32_t *stop,
                   int64_t deadline_ns, int64_t *clock_ns, size_t *reached)
{
    return anynpu_execute_shared(NULL, layers, count, tensors, scratch, stop, deadline_ns, clock_ns, reached);
}
