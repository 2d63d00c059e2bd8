/* A runtime whose jobs do nothing but take time, for measuring what is above it: SESSION_JOB_US microseconds, SESSION_SLOW times as
 * long on core 0. Three cores, one job at a time on each; a job without a mask takes the first that is idle. One float32 input and output
 * of four elements. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi.h"

static uint32_t contexts;
static uint32_t masks[1024];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;
static uint32_t busy;

static uint32_t take_core(uint32_t mask)
{
    uint32_t core = 0;
    pthread_mutex_lock(&lock);
    while (!(core = (mask ? mask : 7) & ~busy))
        pthread_cond_wait(&freed, &lock);
    core &= ~core + 1;
    busy |= core;
    pthread_mutex_unlock(&lock);
    return core;
}

static void give_core(uint32_t core)
{
    pthread_mutex_lock(&lock);
    busy &= ~core;
    pthread_cond_broadcast(&freed);
    pthread_mutex_unlock(&lock);
}

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int tensor(rknn_tensor_attr *attr, const char *name)
{
    const uint32_t index = attr->index;
    memset(attr, 0, sizeof *attr);
    attr->index = index;
    strcpy(attr->name, name);
    attr->n_dims = 2;
    attr->dims[0] = 1;
    attr->dims[1] = attr->n_elems = 4;
    attr->size = attr->size_with_stride = 16;
    attr->fmt = RKNN_TENSOR_UNDEFINED;
    attr->type = RKNN_TENSOR_FLOAT32;
    return 0;
}

int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend)
{
    (void)model, (void)size, (void)flag, (void)extend;
    *context = __sync_add_and_fetch(&contexts, 1);
    return 0;
}

int rknn_dup_context(rknn_context *in, rknn_context *out)
{
    (void)in;
    *out = __sync_add_and_fetch(&contexts, 1);
    return 0;
}

int rknn_destroy(rknn_context context)
{
    (void)context;
    return 0;
}

int rknn_query(rknn_context context, rknn_query_cmd cmd, void *info, uint32_t size)
{
    (void)context;
    switch (cmd) {
    case RKNN_QUERY_IN_OUT_NUM:
        ((rknn_input_output_num *)info)->n_input = ((rknn_input_output_num *)info)->n_output = 1;
        return 0;
    case RKNN_QUERY_INPUT_ATTR:
    case RKNN_QUERY_NATIVE_INPUT_ATTR:
        return tensor(info, "x");
    case RKNN_QUERY_OUTPUT_ATTR:
    case RKNN_QUERY_NATIVE_OUTPUT_ATTR:
        return tensor(info, "y");
    case RKNN_QUERY_SDK_VERSION:
        memset(info, 0, size);
        strcpy(((rknn_sdk_version *)info)->api_version, "2.4.1");
        strcpy(((rknn_sdk_version *)info)->drv_version, "0.9.8");
        return 0;
    default:
        return RKNN_ERR_PARAM_INVALID;
    }
}

int rknn_set_core_mask(rknn_context context, rknn_core_mask mask)
{
    masks[context % 1024] = (uint32_t)mask;
    return 0;
}

int rknn_inputs_set(rknn_context context, uint32_t count, rknn_input *inputs)
{
    (void)context, (void)count, (void)inputs;
    return 0;
}

int rknn_run(rknn_context context, rknn_run_extend *extend)
{
    (void)extend;
    const uint32_t core = take_core(masks[context % 1024]);
    const long job_us = setting("SESSION_JOB_US", 1000) * (core == 1 ? setting("SESSION_SLOW", 1) : 1);
    const struct timespec pause = {job_us / 1000000, job_us % 1000000 * 1000};
    if (job_us)
        nanosleep(&pause, NULL);
    give_core(core);
    return 0;
}

int rknn_outputs_get(rknn_context context, uint32_t count, rknn_output *outputs, rknn_output_extend *extend)
{
    (void)context, (void)extend;
    for (uint32_t index = 0; index < count; index++)
        memset(outputs[index].buf, 0, 16);
    return 0;
}

int rknn_outputs_release(rknn_context context, uint32_t count, rknn_output *outputs)
{
    (void)context, (void)count, (void)outputs;
    return 0;
}
