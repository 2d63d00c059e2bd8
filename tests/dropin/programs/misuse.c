/* A caller that does everything wrong that can be done wrong: misuse FOLDER STEPS SEED. Three threads draw calls at random on contexts and
 * memory that they share, alive, destroyed or never made. Every answer must be a documented code; nothing may hang or end the process. What
 * the library has to read or write (arrays, structs, buffers) is real memory: there the interface leaves no way to reject. */
#include <pthread.h>
#include <unistd.h>

#include "rknn_custom_op.h"
#include "rknn_matmul_api.h"
#include "support.h"

enum { THREADS = 3, CONTEXTS = 12, MEMORIES = 24, BUFFER = 1 << 16 };

static char models[4][4096];
static rknn_context contexts[CONTEXTS];
static rknn_tensor_mem *memories[MEMORIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long succeeded, refused;

struct walker {
    uint64_t state;
    long steps;
    uint8_t *buffer;
};

static uint32_t draw(struct walker *self, uint32_t limit)
{
    self->state = self->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(self->state >> 33) % limit;
}

static void answered(int code)
{
    CHECK(code <= 0 && code >= RKNN_ERR_TARGET_PLATFORM_UNMATCH);
    __atomic_add_fetch(code == 0 ? &succeeded : &refused, 1, __ATOMIC_RELAXED);
}

static rknn_context some_context(struct walker *self)
{
    pthread_mutex_lock(&lock);
    rknn_context context = contexts[draw(self, CONTEXTS)];
    pthread_mutex_unlock(&lock);
    switch (draw(self, 20)) {
    case 0:
        return draw(self, 1000);
    case 1:
        return context | 0xabcd00000000ull; /* the upper half does not count */
    default:
        return context;
    }
}

static rknn_tensor_mem *some_memory(struct walker *self)
{
    pthread_mutex_lock(&lock);
    rknn_tensor_mem *memory = memories[draw(self, MEMORIES)];
    pthread_mutex_unlock(&lock);
    return draw(self, 30) == 0 ? (rknn_tensor_mem *)(uintptr_t)draw(self, 1u << 30) : memory;
}

/* The context that had the place stays known to nobody, or is destroyed. */
static void keep_context(struct walker *self, rknn_context made)
{
    pthread_mutex_lock(&lock);
    uint32_t place = draw(self, CONTEXTS);
    rknn_context before = contexts[place];
    contexts[place] = made;
    pthread_mutex_unlock(&lock);
    rknn_destroy(before);
    rknn_matmul_destroy(before);
}

static void keep_memory(struct walker *self, rknn_tensor_mem *made)
{
    answered(made == NULL ? RKNN_ERR_FAIL : 0);
    if (made == NULL)
        return;
    pthread_mutex_lock(&lock);
    uint32_t place = draw(self, MEMORIES);
    rknn_tensor_mem *before = memories[place];
    memories[place] = made;
    rknn_context context = contexts[draw(self, CONTEXTS)];
    pthread_mutex_unlock(&lock);
    rknn_destroy_mem(context, before);
}

static void make_context(struct walker *self)
{
    static const uint32_t flags[] = {0, 0, 0, RKNN_FLAG_MEM_ALLOC_OUTSIDE, RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE, RKNN_FLAG_SHARE_WEIGHT_MEM,
                                     RKNN_FLAG_COLLECT_PERF_MASK, RKNN_FLAG_COLLECT_MODEL_INFO_ONLY, RKNN_FLAG_ENABLE_SRAM, 0x80000000};
    rknn_init_extend extend;
    rknn_context made = 0;
    memset(&extend, 0, sizeof extend);
    extend.ctx = some_context(self);
    uint32_t flag = flags[draw(self, sizeof flags / sizeof *flags)];
    int code;
    if (draw(self, 8) == 0) {
        fill_bytes(self->buffer, 256, draw(self, 1u << 20));
        memcpy(self->buffer, "RKNN", 4);
        code = rknn_init(&made, self->buffer, 1 + draw(self, 256), flag, NULL);
    } else
        code = rknn_init(draw(self, 20) == 0 ? NULL : &made, models[draw(self, 4)], 0, flag, draw(self, 2) == 0 ? NULL : &extend);
    answered(code);
    if (code == 0)
        keep_context(self, made);
}

static rknn_tensor_attr some_attributes(struct walker *self, rknn_context context)
{
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.index = draw(self, 8) == 0 ? draw(self, 5) : 0;
    rknn_query(context, (rknn_query_cmd)(8 + draw(self, 4)), &attr, sizeof attr);
    if (draw(self, 6) == 0)
        fill_bytes((uint8_t *)&attr + draw(self, 300), 16, draw(self, 1u << 20));
    return attr;
}

static void run(struct walker *self)
{
    rknn_context context = some_context(self);
    rknn_input input;
    rknn_output output;
    rknn_run_extend extend;
    memset(&input, 0, sizeof input);
    memset(&output, 0, sizeof output);
    memset(&extend, 0, sizeof extend);
    input.buf = draw(self, 20) == 0 ? NULL : self->buffer;
    input.size = draw(self, 8) == 0 ? draw(self, BUFFER) : 32 * 32 * 3;
    input.type = (rknn_tensor_type)(draw(self, 8) == 0 ? draw(self, 14) : RKNN_TENSOR_UINT8);
    input.fmt = (rknn_tensor_format)(draw(self, 8) == 0 ? draw(self, 6) : RKNN_TENSOR_NHWC);
    input.pass_through = draw(self, 10) == 0;
    answered(rknn_inputs_set(context, draw(self, 20) == 0 ? 0 : 1, &input));
    extend.non_block = draw(self, 4) == 0;
    extend.timeout_ms = draw(self, 4) == 0 ? 1 : 0;
    answered(rknn_run(context, draw(self, 3) == 0 ? &extend : NULL));
    if (draw(self, 4) == 0) {
        extend.timeout_ms = 20;
        answered(rknn_wait(context, &extend));
    }
    output.want_float = (uint8_t)draw(self, 2);
    output.is_prealloc = (uint8_t)draw(self, 2);
    output.buf = output.is_prealloc ? self->buffer : (void *)(uintptr_t)draw(self, 1000); /* not read unless preallocated */
    output.size = draw(self, 4) == 0 ? draw(self, BUFFER) : BUFFER;
    answered(rknn_outputs_get(context, draw(self, 20) == 0 ? 2 : 1, &output, NULL));
    if (draw(self, 10) != 0)
        answered(rknn_outputs_release(context, 1, &output));
}

static void query(struct walker *self)
{
    uint32_t size = draw(self, 6) == 0 ? draw(self, 40000) : (uint32_t)sizeof(rknn_tensor_attr);
    memset(self->buffer, 0, 64);
    answered(rknn_query(some_context(self), (rknn_query_cmd)draw(self, 20), self->buffer, size));
}

static void use_memory(struct walker *self)
{
    rknn_context context = some_context(self);
    rknn_tensor_attr attr;
    switch (draw(self, 9)) {
    case 0:
        keep_memory(self, rknn_create_mem(context, draw(self, 10) == 0 ? 0 : 1 + draw(self, BUFFER)));
        break;
    case 1:
        keep_memory(self, rknn_create_mem2(context, draw(self, 10) == 0 ? 1ull << 40 : 1 + draw(self, BUFFER), draw(self, 9)));
        break;
    case 2: /* memory of the program, which stays until the end */
        keep_memory(self, rknn_create_mem_from_fd(context, -1, self->buffer, 1 + draw(self, BUFFER), 0));
        break;
    case 3:
        keep_memory(self, rknn_create_mem_from_phys(context, draw(self, 1u << 30), draw(self, 2) == 0 ? NULL : self->buffer, BUFFER));
        break;
    case 4:
        answered(rknn_destroy_mem(context, some_memory(self)));
        break;
    case 5:
        answered(rknn_mem_sync(context, some_memory(self), (rknn_mem_sync_mode)draw(self, 6)));
        break;
    case 6:
        answered(draw(self, 2) == 0 ? rknn_set_internal_mem(context, some_memory(self)) : rknn_set_weight_mem(context, some_memory(self)));
        break;
    default:
        attr = some_attributes(self, context);
        answered(rknn_set_io_mem(context, some_memory(self), &attr));
    }
}

static int compute(rknn_custom_op_context *context, rknn_custom_op_tensor *inputs, uint32_t n_inputs, rknn_custom_op_tensor *outputs,
                   uint32_t n_outputs)
{
    (void)context, (void)inputs, (void)n_inputs, (void)outputs, (void)n_outputs;
    return 0;
}

static void change(struct walker *self)
{
    rknn_context context = some_context(self), copy = 0;
    rknn_tensor_attr attr;
    rknn_custom_op operators[2];
    int code;
    switch (draw(self, 7)) {
    case 0:
        answered(rknn_set_core_mask(context, (rknn_core_mask)draw(self, 9)));
        break;
    case 1:
        answered(rknn_set_batch_core_num(context, (int)draw(self, 6) - 1));
        break;
    case 2:
        answered(code = rknn_dup_context(&context, &copy));
        if (code == 0)
            keep_context(self, copy);
        break;
    case 3:
        memset(&attr, 0, sizeof attr);
        attr.n_dims = 4;
        attr.fmt = RKNN_TENSOR_NHWC;
        attr.dims[0] = 1;
        attr.dims[1] = attr.dims[2] = draw(self, 2) == 0 ? 16 : 24;
        attr.dims[3] = 3;
        answered(draw(self, 2) == 0 ? rknn_set_input_shapes(context, 1, &attr) : rknn_set_input_shape(context, &attr));
        break;
    case 4:
        memset(operators, 0, sizeof operators);
        operators[0].version = 1;
        operators[0].target = (rknn_target_type)draw(self, 4);
        strcpy(operators[0].op_type, draw(self, 4) == 0 ? "" : "Gain");
        operators[0].compute = draw(self, 4) == 0 ? NULL : compute;
        answered(rknn_register_custom_ops(context, operators, draw(self, 3)));
        break;
    case 5:
        answered(rknn_destroy(context));
        break;
    default:
        answered(rknn_matmul_destroy(context));
    }
}

static void multiply(struct walker *self)
{
    rknn_matmul_ctx context = some_context(self);
    rknn_matmul_info info;
    rknn_matmul_io_attr attr;
    rknn_matmul_shape shape = {(int)draw(self, 5), 32, 32};
    memset(&info, 0, sizeof info);
    memset(&attr, 0, sizeof attr);
    info.M = (int)draw(self, 6);
    info.K = draw(self, 6) == 0 ? (int)draw(self, 1u << 30) : 64;
    info.N = 64;
    info.type = (rknn_matmul_type)(draw(self, 4) == 0 ? draw(self, 17) : RKNN_INT8_MM_INT8_TO_INT32);
    info.B_layout = (int16_t)draw(self, 4);
    int code;
    switch (draw(self, 5)) {
    case 0:
        answered(code = rknn_matmul_create(&context, &info, &attr));
        if (code == 0) {
            keep_context(self, context);
            rknn_tensor_mem *memory = rknn_create_mem(context, attr.A.size);
            answered(rknn_matmul_set_io_mem(context, memory, &attr.A));
            keep_memory(self, memory);
        }
        break;
    case 1:
        memcpy(attr.B.name, "B", 2);
        answered(rknn_matmul_set_io_mem(context, some_memory(self), &attr.B));
        break;
    case 2:
        answered(rknn_matmul_set_core_mask(context, (rknn_core_mask)draw(self, 9)));
        break;
    case 3:
        answered(rknn_matmul_set_dynamic_shape(context, &shape));
        break;
    default:
        answered(rknn_matmul_run(context));
    }
}

static void *walk(void *argument)
{
    struct walker *self = (struct walker *)argument;
    for (long step = 0; step < self->steps; step++) {
        uint32_t what = draw(self, 1000);
        if (what < 12)
            make_context(self);
        else if (what < 300)
            query(self);
        else if (what < 620)
            use_memory(self);
        else if (what < 740)
            run(self);
        else if (what < 860)
            change(self);
        else
            multiply(self);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"small.rknn", "dynamic.rknn", "custom.rknn", "absent.rknn"};
    CHECK(argc == 4);
    for (int index = 0; index < 4; index++)
        snprintf(models[index], sizeof models[index], "%s/%s", argv[1], names[index]);
    struct walker walkers[THREADS];
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++) {
        walkers[index].state = (uint64_t)atol(argv[3]) * 1000003u + (uint64_t)index;
        walkers[index].steps = atol(argv[2]) / THREADS + 1;
        walkers[index].buffer = (uint8_t *)calloc(1, BUFFER);
        CHECK(pthread_create(&threads[index], NULL, walk, &walkers[index]) == 0);
    }
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    printf("%ld %ld\n", succeeded, refused);
    return 0; /* with everything that is left */
}
