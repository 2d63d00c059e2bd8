/* One inference through a library that was loaded at run time: its four calls in a row, so that a caller who has to give up a lock for
 * each call into C (Python's) gives it up once. */
#include "anynpu_native.h"

#include <time.h>

#if defined(__arm__)
typedef uint32_t context_t;
#else
typedef uint64_t context_t;
#endif

typedef int (*array_call)(context_t, uint32_t, void *);
typedef int (*run_call)(context_t, void *);
typedef int (*outputs_call)(context_t, uint32_t, void *, void *);

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int anynpu_infer(const struct anynpu_inference *one, struct anynpu_inference_times *times)
{
    const context_t context = (context_t)one->context;
    int code = ((array_call)one->inputs_set)(context, one->input_count, (void *)one->inputs);
    times->failed = 0;
    if (code)
        return code;
    times->written = now_ns();
    times->failed = 1;
    code = ((run_call)one->run)(context, (void *)one->extend);
    if (code)
        return code;
    times->ran = now_ns();
    times->failed = 2;
    code = ((outputs_call)one->outputs_get)(context, one->output_count, (void *)one->outputs, NULL);
    if (code)
        return code;
    ((array_call)one->outputs_release)(context, one->output_count, (void *)one->outputs);
    return 0;
}
