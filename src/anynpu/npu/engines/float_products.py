"""Float operators that multiply matrices, as layers for C."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..._native import lib
from ...tensor import row_major_strides
from .float_call import Call, binary, broadcast_strides, move
from .float_plan import NoKernel, Value

__all__ = ["convolution", "gemm", "matmul"]


def _product(
    call: Call,
    a: Value,
    b: Value,
    extents: tuple[int, int, int],
    offsets: tuple[npt.NDArray[np.uintp], npt.NDArray[np.uintp]],
    shape: tuple[int, ...],
) -> Value:
    descriptor = call.plan.keeper.struct("anynpu_float_matmul")
    descriptor.m, descriptor.k, descriptor.n = extents
    descriptor.batch = offsets[0].size
    descriptor.a_offsets, descriptor.b_offsets = (call.plan.keeper.pointer(offset) for offset in offsets)
    return call.plan.layer(lib.ANYNPU_LAYER_FLOAT_MATMUL, descriptor, [a, b], shape)


def _matrices(leading: tuple[int, ...], batch: tuple[int, ...], size: int) -> npt.NDArray[np.uintp]:
    """Where the matrix of each batch begins."""
    offsets = np.zeros(batch, np.uintp)
    for axis, stride in enumerate(broadcast_strides(leading, batch)):
        places = np.arange(batch[axis], dtype=np.uintp) * np.uintp(stride * size)
        offsets += places.reshape(-1, *[1] * (len(batch) - axis - 1))
    return offsets.reshape(-1)


def matmul(call: Call) -> list[Value]:
    """Matrices, with leading axes that are repeated as numpy does it."""
    a, b = call.floats(0), call.floats(1)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise NoKernel("MatMul of a vector")
    (m, k), n = a.shape[-2:], b.shape[-1]
    batch = call.shapes[0][:-2]
    if math.prod(b.shape[:-2]) == 1 and a.size == math.prod(batch) * m * k:
        one = np.zeros(1, np.uintp)
        return [_product(call, a, b, (math.prod(batch) * m, k, n), (one, one), (*batch, m, n))]
    if math.prod(batch) * m * n > 1 << 28:
        raise NoKernel("MatMul is too large")
    offsets = _matrices(a.shape[:-2], batch, m * k), _matrices(b.shape[:-2], batch, k * n)
    return [_product(call, a, b, (m, k, n), offsets, (*batch, m, n))]


def gemm(call: Call) -> list[Value]:
    """``alpha * a @ b + beta * c``, where a and b may be turned."""
    a, b = call.floats(0), call.floats(1)
    a = _turned(call, a) if call.attribute("transA") else a
    b = _turned(call, b) if call.attribute("transB") else b
    one = np.zeros(1, np.uintp)
    result = _product(call, a, b, (a.shape[0], a.shape[1], b.shape[1]), (one, one), (a.shape[0], b.shape[1]))
    result = _scaled(call, result, call.attribute("alpha"))
    if call.has(2):
        result = binary(call, lib.ANYNPU_FLOAT_ADD, result, _scaled(call, call.floats(2), call.attribute("beta")))
    return [result]


def _turned(call: Call, matrix: Value) -> Value:
    return move(call, matrix, matrix.shape[::-1], row_major_strides(matrix.shape)[::-1])


def _scaled(call: Call, value: Value, factor: float) -> Value:
    if factor == 1.0:
        return value
    return binary(call, lib.ANYNPU_FLOAT_MUL, value, call.plan.constant(np.array(factor, np.float32)))


def convolution(call: Call) -> list[Value]:
    """With a kernel of one element: a product for each image."""
    x, weights = call.floats(0), call.floats(1)
    rank = len(x.shape)
    one_by_one = all(extent == 1 for extent in weights.shape[2:])
    dense = call.attribute("group") == 1 and all(step == 1 for step in call.attribute("strides") or ())
    if not one_by_one or not dense or any(call.attribute("pads") or ()):
        raise NoKernel("Conv with a window")
    images, cin, cout, pixels = x.shape[0], x.shape[1], weights.shape[0], math.prod(x.shape[2:])
    offsets = np.zeros(images, np.uintp), np.arange(images, dtype=np.uintp) * np.uintp(cin * pixels)
    result = _product(call, weights, x, (cout, cin, pixels), offsets, (images, cout, *x.shape[2:]))
    if call.has(2):
        bias = call.plan.view(call.floats(2), (cout, *[1] * (rank - 2)))
        result = binary(call, lib.ANYNPU_FLOAT_ADD, result, bias)
    return [result]
