/* A librknnrt.so that does nothing, quickly, or fails where it is set to: NOTHING_FAILS="run:-3" lets rknn_run return -3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rknn_api.h"

static int result(const char *call)
{
    char name[64];
    int code = 0;
    const char *plan = getenv("NOTHING_FAILS");
    if (plan != NULL && sscanf(plan, "%63[^:]:%d", name, &code) == 2 && strcmp(name, call) == 0)
        return code;
    return 0;
}

int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend)
{
    (void)model;
    (void)size;
    (void)flag;
    (void)extend;
    *context = 1;
    return result("init");
}

int rknn_dup_context(rknn_context *from, rknn_context *to)
{
    *to = *from + 1;
    return result("dup_context");
}

int rknn_destroy(rknn_context context)
{
    (void)context;
    return 0;
}

int rknn_query(rknn_context context, rknn_query_cmd cmd, void *info, uint32_t size)
{
    (void)context;
    memset(info, 0, size);
    if (cmd == RKNN_QUERY_IN_OUT_NUM) {
        *(rknn_input_output_num *)info = (rknn_input_output_num){1, 1};
    } else if (cmd == RKNN_QUERY_INPUT_ATTR || cmd == RKNN_QUERY_OUTPUT_ATTR) {
        rknn_tensor_attr *attr = info;
        strcpy(attr->name, cmd == RKNN_QUERY_INPUT_ATTR ? "x" : "y");
        attr->n_dims = 2;
        attr->dims[0] = 1;
        attr->dims[1] = 16;
        attr->n_elems = 16;
        attr->size = 32;
        attr->fmt = RKNN_TENSOR_UNDEFINED;
        attr->type = RKNN_TENSOR_FLOAT16;
    } else {
        return RKNN_ERR_PARAM_INVALID;
    }
    return result("query");
}

int rknn_inputs_set(rknn_context context, uint32_t count, rknn_input inputs[])
{
    (void)context;
    (void)count;
    (void)inputs;
    return result("inputs_set");
}

int rknn_run(rknn_context context, rknn_run_extend *extend)
{
    (void)context;
    (void)extend;
    return result("run");
}

int rknn_outputs_get(rknn_context context, uint32_t count, rknn_output outputs[], rknn_output_extend *extend)
{
    (void)context;
    (void)count;
    (void)extend;
    if (outputs[0].size >= 4)
        memset(outputs[0].buf, 0, outputs[0].size);
    return result("outputs_get");
}

int rknn_outputs_release(rknn_context context, uint32_t count, rknn_output outputs[])
{
    (void)context;
    (void)count;
    (void)outputs;
    return result("outputs_release");
}

int rknn_set_core_mask(rknn_context context, rknn_core_mask mask)
{
    (void)context;
    (void)mask;
    return result("set_core_mask");
}

rknn_tensor_mem *rknn_create_mem_from_fd(rknn_context context, int32_t fd, void *address, uint32_t size, int32_t offset)
{
    (void)context;
    rknn_tensor_mem *memory = calloc(1, sizeof *memory);
    if (memory != NULL)
        *memory = (rknn_tensor_mem){.virt_addr = address, .fd = fd, .offset = offset, .size = size};
    return memory;
}

int rknn_set_io_mem(rknn_context context, rknn_tensor_mem *memory, rknn_tensor_attr *attr)
{
    (void)context;
    (void)memory;
    (void)attr;
    return result("set_io_mem");
}

int rknn_destroy_mem(rknn_context context, rknn_tensor_mem *memory)
{
    (void)context;
    free(memory);
    return 0;
}
