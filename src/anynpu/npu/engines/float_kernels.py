"""Float operators as layers for C.

Each function takes a :class:`Call` and gives the operator's results. What it cannot do raises NoKernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..._native import lib
from . import float_movement as movement
from . import float_products as products
from .float_call import Call, binary
from .float_plan import FLOATS, NoKernel, Value

__all__ = ["KERNELS"]

_ELEMENT_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 10: np.dtype(np.float16)}


def _identity(call: Call) -> list[Value]:
    return [call.given(0)]


def _cast(call: Call) -> list[Value]:
    value = call.given(0)
    wanted = _ELEMENT_TYPES.get(call.attribute("to"))
    if wanted is None or value.dtype not in FLOATS:
        raise NoKernel(f"Cast of {value.dtype} to type {call.attribute('to')}")
    return [call.plan.cast(value, wanted)]


# ---- element by element ----


def _apply(call: Call, kind: int, value: Value, alpha: float = 0.0, beta: float = 0.0) -> Value:
    descriptor = call.plan.keeper.struct("anynpu_float_unary")
    descriptor.kind, descriptor.count, descriptor.alpha, descriptor.beta = kind, value.size, alpha, beta
    return call.plan.layer(lib.ANYNPU_LAYER_FLOAT_UNARY, descriptor, [value], value.shape)


def _unary(kind: int, call: Call) -> list[Value]:
    return [_apply(call, kind, call.floats(0))]


def _constant(call: Call, number: float) -> Value:
    return call.plan.constant(np.array(number, np.float32))


def _relu(call: Call) -> list[Value]:
    return [_apply(call, lib.ANYNPU_FLOAT_CLIP, call.floats(0), 0.0, math.inf)]


def _clip(call: Call) -> list[Value]:
    low, high = call.scalar(1, -math.inf), call.scalar(2, math.inf)
    if not low <= high:
        raise NoKernel(f"Clip to [{low}, {high}]")
    return [_apply(call, lib.ANYNPU_FLOAT_CLIP, call.floats(0), low, high)]


def _leaky_relu(call: Call) -> list[Value]:
    return [_apply(call, lib.ANYNPU_FLOAT_LEAKY_RELU, call.floats(0), call.attribute("alpha"))]


def _hard_sigmoid(call: Call) -> list[Value]:
    return [_apply(call, lib.ANYNPU_FLOAT_HARD_SIGMOID, call.floats(0), call.attribute("alpha"), call.attribute("beta"))]


def _hard_swish(call: Call) -> list[Value]:
    value = call.floats(0)
    return [binary(call, lib.ANYNPU_FLOAT_MUL, value, _apply(call, lib.ANYNPU_FLOAT_HARD_SIGMOID, value, 1 / 6, 0.5))]


def _gelu(call: Call) -> list[Value]:
    """``x * (1 + erf(x / sqrt(2))) / 2``."""
    if call.attribute("approximate") != "none":
        raise NoKernel("Gelu by tanh")
    return [_apply(call, lib.ANYNPU_FLOAT_GELU, call.floats(0))]


def _binary(kind: int, call: Call) -> list[Value]:
    return [binary(call, kind, call.floats(0), call.floats(1))]


def _power(call: Call) -> list[Value]:
    exponent = call.given(1)
    if exponent.constant is not None and exponent.dtype.kind == "i":
        exponent = call.plan.constant(exponent.constant.reshape(exponent.shape).astype(np.float32))
    if exponent.dtype != np.float32:
        raise NoKernel(f"Pow by {exponent.dtype}")
    return [binary(call, lib.ANYNPU_FLOAT_POW, call.floats(0), exponent)]


def _several(kind: int, call: Call) -> list[Value]:
    result = call.floats(0)
    for number in range(1, len(call.inputs)):
        result = binary(call, kind, result, call.floats(number))
    return [result]


# ---- along axes ----


def _reduce(kind: int, call: Call) -> list[Value]:
    value = call.floats(0)
    rank = len(value.shape)
    listed = call.integers(1)
    if not listed and call.attribute("noop_with_empty_axes"):
        return [value]
    axes = tuple(sorted(axis % rank for axis in listed)) if listed else tuple(range(rank))
    result = value
    for axis in reversed(_runs(axes)):
        result = _reduce_run(call, kind, result, axis[0], axis[-1] + 1)
    return [call.plan.view(result, call.shapes[0])]


def _runs(axes: tuple[int, ...]) -> list[list[int]]:
    """Neighboring axes together."""
    runs: list[list[int]] = []
    for axis in axes:
        if runs and runs[-1][-1] == axis - 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _reduce_run(call: Call, kind: int, value: Value, first: int, last: int) -> Value:
    descriptor = call.plan.keeper.struct("anynpu_float_reduce")
    descriptor.kind, descriptor.outer = kind, math.prod(value.shape[:first])
    descriptor.extent, descriptor.inner = math.prod(value.shape[first:last]), math.prod(value.shape[last:])
    shape = (*value.shape[:first], *[1] * (last - first), *value.shape[last:])
    return call.plan.layer(lib.ANYNPU_LAYER_FLOAT_REDUCE, descriptor, [value], shape)


def _global_average(call: Call) -> list[Value]:
    value = call.floats(0)
    return [_reduce_run(call, lib.ANYNPU_FLOAT_MEAN, value, 2, len(value.shape))]


def _softmax(call: Call) -> list[Value]:
    value = call.floats(0)
    axis = call.axis(len(value.shape))
    descriptor = call.plan.keeper.struct("anynpu_float_softmax")
    descriptor.outer, descriptor.extent = math.prod(value.shape[:axis]), value.shape[axis]
    descriptor.inner = math.prod(value.shape[axis + 1 :])
    return [call.plan.layer(lib.ANYNPU_LAYER_FLOAT_SOFTMAX, descriptor, [value], value.shape)]


def _layer_normalization(call: Call) -> list[Value]:
    value, scale = call.floats(0), call.floats(1)
    bias = call.floats(2) if call.has(2) else None
    axis = call.axis(len(value.shape))
    row = math.prod(value.shape[axis:])
    if scale.size != row or (bias is not None and bias.size != row):
        raise NoKernel("LayerNormalization with a scale that is repeated")
    descriptor = call.plan.keeper.struct("anynpu_float_normalize")
    descriptor.rows, descriptor.extent = math.prod(value.shape[:axis]), row
    descriptor.epsilon = call.attribute("epsilon")
    return [call.plan.layer(lib.ANYNPU_LAYER_FLOAT_NORMALIZE, descriptor, [value, scale, bias], value.shape)]


KERNELS: dict[str, Callable[[Call], list[Value]]] = {
    "Abs": partial(_unary, lib.ANYNPU_FLOAT_ABS),
    "Add": partial(_binary, lib.ANYNPU_FLOAT_ADD),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": movement.concat,
    "Conv": products.convolution,
    "Div": partial(_binary, lib.ANYNPU_FLOAT_DIV),
    "Erf": partial(_unary, lib.ANYNPU_FLOAT_ERF),
    "Exp": partial(_unary, lib.ANYNPU_FLOAT_EXP),
    "Expand": movement.expand,
    "Flatten": movement.same_elements,
    "Gather": movement.gather,
    "Gelu": _gelu,
    "Gemm": products.gemm,
    "GlobalAveragePool": _global_average,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _identity,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": _leaky_relu,
    "Log": partial(_unary, lib.ANYNPU_FLOAT_LOG),
    "MatMul": products.matmul,
    "Max": partial(_several, lib.ANYNPU_FLOAT_MAX),
    "Min": partial(_several, lib.ANYNPU_FLOAT_MIN),
    "Mul": partial(_binary, lib.ANYNPU_FLOAT_MUL),
    "Neg": partial(_unary, lib.ANYNPU_FLOAT_NEG),
    "Pow": _power,
    "Reciprocal": partial(_unary, lib.ANYNPU_FLOAT_RECIPROCAL),
    "ReduceMax": partial(_reduce, lib.ANYNPU_FLOAT_LARGEST),
    "ReduceMean": partial(_reduce, lib.ANYNPU_FLOAT_MEAN),
    "ReduceMin": partial(_reduce, lib.ANYNPU_FLOAT_SMALLEST),
    "ReduceSum": partial(_reduce, lib.ANYNPU_FLOAT_SUM),
    "Relu": _relu,
    "Reshape": movement.same_elements,
    "Sigmoid": partial(_unary, lib.ANYNPU_FLOAT_SIGMOID),
    "Slice": movement.slice_,
    "Softmax": _softmax,
    "Split": movement.split,
    "Sqrt": partial(_unary, lib.ANYNPU_FLOAT_SQRT),
    "Squeeze": movement.same_elements,
    "Sub": partial(_binary, lib.ANYNPU_FLOAT_SUB),
    "Sum": partial(_several, lib.ANYNPU_FLOAT_ADD),
    "Tanh": partial(_unary, lib.ANYNPU_FLOAT_TANH),
    "Transpose": movement.transpose,
    "Unsqueeze": movement.same_elements,
}
"""By name: all that runs without onnxruntime."""
