/* A program that handles every code of the RKNN API, for `anynpu exec --faults rknn.json -- handle_codes MODEL`.
 *
 * It runs a model again and again. What may pass is tried again, what is gone is opened again, and the rest is reported and counted: a real
 * program would end there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rknn_api.h"
#include "rknn_custom_op.h"

enum action { DONE, TRY_AGAIN, OPEN_AGAIN, GIVE_UP };

static const struct {
    int code;
    const char *name;
    enum action action;
    const char *why;
} table[] = {
    {RKNN_SUCC, "RKNN_SUCC", DONE, "done"},
    {RKNN_ERR_FAIL, "RKNN_ERR_FAIL", TRY_AGAIN, "no reason given: try once more"},
    {RKNN_ERR_TIMEOUT, "RKNN_ERR_TIMEOUT", TRY_AGAIN, "the core was reset: try again"},
    {RKNN_ERR_DEVICE_UNAVAILABLE, "RKNN_ERR_DEVICE_UNAVAILABLE", OPEN_AGAIN, "the NPU is gone: wait and open again"},
    {RKNN_ERR_MALLOC_FAIL, "RKNN_ERR_MALLOC_FAIL", TRY_AGAIN, "no memory: free what can be freed, try again"},
    {RKNN_ERR_PARAM_INVALID, "RKNN_ERR_PARAM_INVALID", GIVE_UP, "a fault of this program"},
    {RKNN_ERR_MODEL_INVALID, "RKNN_ERR_MODEL_INVALID", GIVE_UP, "the model file is damaged"},
    {RKNN_ERR_CTX_INVALID, "RKNN_ERR_CTX_INVALID", OPEN_AGAIN, "the context is gone: open again"},
    {RKNN_ERR_INPUT_INVALID, "RKNN_ERR_INPUT_INVALID", GIVE_UP, "a fault of this program"},
    {RKNN_ERR_OUTPUT_INVALID, "RKNN_ERR_OUTPUT_INVALID", GIVE_UP, "a fault of this program"},
    {RKNN_ERR_DEVICE_UNMATCH, "RKNN_ERR_DEVICE_UNMATCH", GIVE_UP, "update library and driver"},
    {RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL, "RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL", GIVE_UP, "convert the model again"},
    {RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION, "RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION", GIVE_UP, "convert it again"},
    {RKNN_ERR_TARGET_PLATFORM_UNMATCH, "RKNN_ERR_TARGET_PLATFORM_UNMATCH", GIVE_UP, "convert it for this chip"},
    {RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE, "RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE", TRY_AGAIN, "a custom operator computed nothing"},
};

static rknn_context open_model(const char *path)
{
    rknn_context context = 0;
    for (int attempt = 0; attempt < 5; attempt++)
        if (rknn_init(&context, (void *)path, 0, 0, NULL) == RKNN_SUCC)
            return context;
    fprintf(stderr, "%s cannot be opened\n", path);
    exit(1);
}

static void set_input(rknn_context context)
{
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    if (rknn_query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr) != RKNN_SUCC)
        exit(1);
    unsigned char *zeros = calloc(attr.n_elems, 1);
    rknn_input input;
    memset(&input, 0, sizeof input);
    input.buf = zeros;
    input.size = attr.n_elems;
    input.type = RKNN_TENSOR_UINT8;
    input.fmt = RKNN_TENSOR_NHWC;
    if (rknn_inputs_set(context, 1, &input) != RKNN_SUCC)
        exit(1);
    free(zeros);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    const int kinds = sizeof table / sizeof *table;
    rknn_context context = open_model(arguments[1]);
    set_input(context);
    int done = 0;
    for (int run = 0; run < 3 * kinds && done < kinds; run++) {
        int code = rknn_run(context, NULL), kind = 0;
        while (kind < kinds && table[kind].code != code)
            kind++;
        if (kind == kinds) {
            printf("%d: a code that nobody knows\n", code);
            return 1;
        }
        if (table[kind].action == DONE) {
            done++;
            continue;
        }
        printf("%s: %s\n", table[kind].name, table[kind].why);
        if (table[kind].action == OPEN_AGAIN) {
            rknn_destroy(context);
            context = open_model(arguments[1]);
            set_input(context);
        }
    }
    rknn_destroy(context);
    printf("%d runs done\n", done);
    return 0;
}
