/* A graph of ONNX Runtime as the bytes of an ONNX model. */
#ifndef ANYNPU_ORT_ONNX_WRITER_H
#define ANYNPU_ORT_ONNX_WRITER_H

#include "buffer.h"
#include "provider.h"

OrtStatus *write_onnx(const OrtGraph *graph, const OrtNode *const *nodes, size_t count, Buffer *model);

#endif
