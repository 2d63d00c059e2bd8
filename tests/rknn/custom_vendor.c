/* As much of a vendor's library as custom operators need: one context, one layer, whose tensors lie behind an offset.
   rknn_run calls the functions of the operator that was registered, and passes on the code of the one that fails. */
#include <string.h>

#include "abi.h"

#define EXPORTED __attribute__((visibility("default")))
#define COUNT 4
#define OFFSET 64

const char version_text[] = "librknnrt version: 2.3.2 (test)";

static rknn_custom_op op;
static rknn_custom_op_context context;
static rknn_custom_op_tensor input, output;
static char memory[2 * OFFSET + 2 * COUNT * sizeof(float)];
static float gain = 2.5f;

static void place(rknn_custom_op_tensor *tensor, const char *name, char *base) {
  memset(tensor, 0, sizeof *tensor);
  strcpy(tensor->attr.name, name);
  tensor->attr.n_dims = 2;
  tensor->attr.dims[0] = 1;
  tensor->attr.dims[1] = tensor->attr.n_elems = COUNT;
  tensor->attr.size = tensor->mem.size = COUNT * sizeof(float);
  tensor->attr.fmt = RKNN_TENSOR_UNDEFINED;
  tensor->attr.type = RKNN_TENSOR_FLOAT32;
  tensor->mem.virt_addr = base;
  tensor->mem.offset = OFFSET;
}

EXPORTED int rknn_register_custom_ops(rknn_context handle, rknn_custom_op *given, uint32_t count) {
  if (handle != 77 || count != 1) return RKNN_ERR_CTX_INVALID;
  op = *given;
  memset(&context, 0, sizeof context);
  context.target = op.target;
  place(&input, "x", memory);
  place(&output, "y", memory + OFFSET + COUNT * sizeof(float));
  return op.init ? op.init(&context, &input, 1, &output, 1) : 0;
}

EXPORTED void rknn_custom_op_get_op_attr(rknn_custom_op_context *given, const char *name, rknn_custom_op_attr *attr) {
  memset(attr, 0, sizeof *attr);
  if (given == &context && strcmp(name, "gain") == 0) {
    attr->dtype = RKNN_TENSOR_FLOAT32;
    attr->n_elems = 1;
    attr->data = &gain;
  }
}

EXPORTED int rknn_run(rknn_context handle, rknn_run_extend *extend) {
  (void)handle, (void)extend;
  for (int i = 0; i < COUNT; i++) ((float *)(memory + OFFSET))[i] = (float)i;
  int result = op.prepare ? op.prepare(&context, &input, 1, &output, 1) : 0;
  return result ? result : op.compute(&context, &input, 1, &output, 1);
}

EXPORTED float *vendor_output(void) { return (float *)((char *)output.mem.virt_addr + output.mem.offset); }

EXPORTED int rknn_destroy(rknn_context handle) {
  (void)handle;
  int result = op.destroy ? op.destroy(&context) : 0;
  return context.priv_data ? -1 : result;
}
