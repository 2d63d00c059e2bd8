/* Which kernel runs a layer, and the loop that runs them. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <time.h>

#include "levels.h"
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

static const struct anynpu_conv_kernel *conv_kernel(const struct anynpu_kernel_set *set, const struct anynpu_conv *conv)
{
    /* Kernels fill up with zero points as if they were codes. */
    int bytes = fits_a_byte(conv->weight_zero, conv->cout) &&
                (conv->input_zeros == NULL ? fits_a_byte(&conv->input_zero, 1) : fits_a_byte(conv->input_zeros, conv->cin));
    for (size_t list = 0; bytes && set->convolutions[list] != NULL; list++)
        for (const struct anynpu_conv_kernel *const *kernel = set->convolutions[list]; *kernel != NULL; kernel++)
            if ((*kernel)->fits(conv))
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
    layer->kernel = conv != NULL ? (const void *)conv_kernel(set, conv) : simple_kernel(set->simple, layer);
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
        return operators->products->matmul_scratch(layer->descriptor);
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
        plain->products->matmul[layer->codes](descriptor, x, tensors[layer->inputs[1]], y, scratch);
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

static uint64_t work_of(const struct anynpu_layer *layer)
{
    const struct anynpu_conv *conv = layer->kind == ANYNPU_LAYER_CONV_TRANSPOSE ? layer->descriptor : conv_of(layer);
    const struct anynpu_pool *pool = layer->descriptor;
    uint64_t plain = layer->kernel == NULL ? COST_PLAIN : 1;
    if (conv == NULL)
        return plain * COST_BY_CHANNEL * pool->n * pool->oh * pool->ow * pool->c * pool->kh * pool->kw;
    uint64_t products = (uint64_t)conv->n * conv->oh * conv->ow * conv->cout * conv->kh * conv->kw * (conv->cin / conv->groups);
    return plain * products * (conv->groups == conv->cin ? COST_BY_CHANNEL : 1);
}

struct shared_layer {
    const struct anynpu_layer *layer;
    void *const *tensors;
    uint8_t *scratch;
    size_t scratch_step;
};

static void run_shared_rows(const void *job, size_t thread, size_t first, size_t last)
{
    const struct shared_layer *shared = job;
    run_rows(shared->layer, shared->tensors, shared->scratch + thread * shared->scratch_step, first, last);
}

static void run_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layer, void *const *tensors, void *scratch)
{
    size_t rows = rows_of(layer);
    if (rows > 1 && work_of(layer) >= sharing->least_work) {
        const struct shared_layer job = {layer, tensors, scratch, sharing->scratch_step};
        anynpu_share_rows(sharing->workers, run_shared_rows, &job, rows);
    } else {
        run_layer(layer, tensors, scratch);
    }
}

/* ---- many layers ---- */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int anynpu_execute_shared(const struct anynpu_sharing *sharing, const struct anynpu_layer *layers, size_t count, void *const *tensors,
                          void *scratch, const int32_t *stop, int64_t deadline_ns, int64_t *clock_ns, size_t *reached)
{
    int alone = sharing == NULL || !anynpu_workers_usable(sharing->workers);
    int timed = clock_ns != NULL || deadline_ns >= 0;
    int64_t now = timed ? now_ns() : 0;
    for (*reached = 0; *reached < count; ++*reached) {
        if (__atomic_load_n(stop, __ATOMIC_RELAXED) != 0)
            return ANYNPU_STOPPED;
        if (deadline_ns >= 0 && now >= deadline_ns)
            return ANYNPU_EXPIRED;
        if (alone)
            run_layer(&layers[*reached], tensors, scratch);
        else
            run_shared(sharing, &layers[*reached], tensors, scratch);
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
