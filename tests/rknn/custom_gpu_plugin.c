/* A plugin with one custom operator on the GPU, Scale: y = x * gain, by the OpenCL objects that its context brings.
   The few functions of OpenCL are declared here: the machine that builds this need not have the headers. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define EXPORTED __attribute__((visibility("default")))

typedef void (*attr_getter)(rknn_custom_op_context *, const char *, rknn_custom_op_attr *);
typedef void *(*create_buffer)(void *context, uint64_t flags, size_t size, void *host, int32_t *error);
typedef int32_t (*set_argument)(void *kernel, uint32_t index, size_t size, const void *value);
typedef int32_t (*enqueue_kernel)(void *queue, void *kernel, uint32_t dims, const size_t *offset, const size_t *global, const size_t *local,
                                  uint32_t n_events, const void *events, void *event);
typedef int32_t (*enqueue_read)(void *queue, void *buffer, uint32_t blocking, size_t offset, size_t size, void *target, uint32_t n_events,
                                const void *events, void *event);
typedef int32_t (*release_buffer)(void *buffer);

enum { READ_WRITE = 1, READ_ONLY = 4, COPY_HOST_PTR = 32 };

static create_buffer create;
static set_argument argument;
static enqueue_kernel enqueue;
static enqueue_read read_back;
static release_buffer release;
static attr_getter get_attr;

EXPORTED int plugin_opencl(const char *path, attr_getter getter) {
  void *library = dlopen(path, RTLD_NOW);
  if (!library) return -1;
  create = (create_buffer)dlsym(library, "clCreateBuffer");
  argument = (set_argument)dlsym(library, "clSetKernelArg");
  enqueue = (enqueue_kernel)dlsym(library, "clEnqueueNDRangeKernel");
  read_back = (enqueue_read)dlsym(library, "clEnqueueReadBuffer");
  release = (release_buffer)dlsym(library, "clReleaseMemObject");
  get_attr = getter;
  return create && argument && enqueue && read_back && release ? 0 : -2;
}

static void *data_of(rknn_custom_op_tensor *tensor) { return (char *)tensor->mem.virt_addr + tensor->mem.offset; }

static int scale_compute(rknn_custom_op_context *op, rknn_custom_op_tensor *in, uint32_t n_in, rknn_custom_op_tensor *out, uint32_t n_out) {
  (void)n_in, (void)n_out;
  void *queue = op->gpu_ctx.cl_command_queue, *kernel = op->gpu_ctx.cl_kernel;
  int32_t error = 0;
  void *source = create(op->gpu_ctx.cl_context, READ_ONLY | COPY_HOST_PTR, in->attr.size, data_of(in), &error);
  if (error) return error;
  void *target = create(op->gpu_ctx.cl_context, READ_WRITE, out->attr.size, NULL, &error);
  if (error) return error;
  rknn_custom_op_attr attr;
  float gain = 1.0f;
  get_attr(op, "gain", &attr);
  if (attr.n_elems == 1 && attr.dtype == RKNN_TENSOR_FLOAT32) gain = ((float *)attr.data)[0];
  size_t count = in->attr.n_elems;
  error = argument(kernel, 0, sizeof source, &source);
  if (!error) error = argument(kernel, 1, sizeof target, &target);
  if (!error) error = argument(kernel, 2, sizeof gain, &gain);
  if (!error) error = enqueue(queue, kernel, 1, NULL, &count, NULL, 0, NULL, NULL);
  if (!error) error = read_back(queue, target, 1, 0, out->attr.size, data_of(out), 0, NULL, NULL);
  release(source);
  release(target);
  return error;
}

EXPORTED rknn_custom_op *get_rknn_custom_op(void) {
  static char source[] = "__kernel void scale(__global const float *x, __global float *y, const float gain) {"
                         "  size_t i = get_global_id(0); y[i] = x[i] * gain * FACTOR; }";
  static rknn_custom_op op;
  op.version = 1;
  op.target = RKNN_TARGET_TYPE_GPU;
  strcpy(op.op_type, "Scale");
  strcpy(op.cl_kernel_name, "scale");
  op.cl_kernel_source = source;
  op.cl_source_size = strlen(source);
  strcpy(op.cl_build_options, "-DFACTOR=3.0f");
  op.compute = scale_compute;
  return &op;
}
