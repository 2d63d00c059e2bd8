/* A plugin with one custom operator, Scale: y = x * gain. It notes every call of its functions, and fails where it is set to. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define EXPORTED __attribute__((visibility("default")))

typedef void (*attr_getter)(rknn_custom_op_context *, const char *, rknn_custom_op_attr *);

struct layer_state {
  int number;
  int runs;
  float gain;
};

static char notes[4096];
static char failing[32];
static int failure;
static int layers;
static attr_getter get_attr;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* contexts run in parallel */

EXPORTED void plugin_reset(attr_getter getter) {
  notes[0] = failing[0] = 0;
  failure = layers = 0;
  get_attr = getter;
}

EXPORTED void plugin_fail(const char *callback, int code) {
  snprintf(failing, sizeof failing, "%s", callback);
  failure = code;
}

EXPORTED const char *plugin_notes(void) { return notes; }

static int note(const char *callback, rknn_custom_op_context *op) {
  const struct layer_state *state = op->priv_data;
  pthread_mutex_lock(&lock);
  size_t used = strlen(notes);
  snprintf(notes + used, sizeof notes - used, "%s%s %d", used ? ", " : "", callback, state ? state->number : 0);
  pthread_mutex_unlock(&lock);
  return strcmp(callback, failing) == 0 ? failure : 0;
}

static float *data_of(rknn_custom_op_tensor *tensor) { return (float *)((char *)tensor->mem.virt_addr + tensor->mem.offset); }

static int scale_init(rknn_custom_op_context *op, rknn_custom_op_tensor *in, uint32_t n_in, rknn_custom_op_tensor *out, uint32_t n_out) {
  struct layer_state *state = calloc(1, sizeof *state);
  rknn_custom_op_attr attr;
  if (!state || op->priv_data || n_in != 1 || n_out != 1 || in->attr.n_elems != out->attr.n_elems) {
    free(state);
    return -5;
  }
  state->number = ++layers;
  state->gain = 1.0f;
  if (get_attr) {
    get_attr(op, "gain", &attr);
    if (attr.n_elems == 1 && attr.dtype == RKNN_TENSOR_FLOAT32) state->gain = ((float *)attr.data)[0];
  }
  op->priv_data = state;
  int result = note("init", op);
  if (result) free(state);
  return result;
}

static int scale_prepare(rknn_custom_op_context *op, rknn_custom_op_tensor *in, uint32_t n_in, rknn_custom_op_tensor *out, uint32_t n_out) {
  (void)in, (void)n_in, (void)out, (void)n_out;
  return note("prepare", op);
}

static int scale_compute(rknn_custom_op_context *op, rknn_custom_op_tensor *in, uint32_t n_in, rknn_custom_op_tensor *out, uint32_t n_out) {
  struct layer_state *state = op->priv_data;
  (void)n_in, (void)n_out;
  state->runs++;
  for (uint32_t i = 0; i < in->attr.n_elems; i++) data_of(out)[i] = data_of(in)[i] * state->gain;
  return note("compute", op);
}

static int scale_destroy(rknn_custom_op_context *op) {
  int result = note("destroy", op);
  free(op->priv_data);
  op->priv_data = NULL;
  return result;
}

EXPORTED rknn_custom_op *get_rknn_custom_op(void) {
  static rknn_custom_op op;
  op.version = 1;
  op.target = RKNN_TARGET_TYPE_CPU;
  strcpy(op.op_type, "Scale");
  op.init = scale_init;
  op.prepare = scale_prepare;
  op.compute = scale_compute;
  op.destroy = scale_destroy;
  return &op;
}
