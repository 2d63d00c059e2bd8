"""One float operator with its inputs: what the functions that turn operators into layers for C have in hand.

Operators were checked when they were read (:mod:`anynpu.modelfile.float_rules`): shapes fit, attributes are of their types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import lib
from ...program import FloatOp
from ...tensor import row_major_strides
from .float_plan import FLOATS, FloatPlan, NoKernel, Value

__all__ = ["Call", "binary", "broadcast_strides", "move"]

Shape = tuple[int, ...]

_MAX_BINARY_AXES = 6
_MAX_MOVED_AXES = 8


@dataclass(frozen=True)
class Call:
    """An operator, the plan that it is added to, its inputs, and the shapes of its results."""

    plan: FloatPlan
    op: FloatOp
    inputs: Sequence[Value | None]
    shapes: Sequence[Shape]

    def has(self, number: int) -> bool:
        """Whether an input is given."""
        return number < len(self.inputs) and self.inputs[number] is not None

    def given(self, number: int) -> Value:
        """An input of any type."""
        value = self.inputs[number]
        assert value is not None
        return value

    def moved(self, number: int) -> Value:
        """An input whose elements are only moved."""
        value = self.given(number)
        if value.dtype not in FLOATS:
            raise NoKernel(f"{self.op.name} of {value.dtype}")
        return value

    def floats(self, number: int) -> Value:
        """An input in float32."""
        value = self.given(number)
        if value.dtype != np.float32:
            raise NoKernel(f"{self.op.name} of {value.dtype}")
        return value

    def integers(self, number: int) -> tuple[int, ...] | None:
        """A constant input that holds sizes, axes or places; None where it is left out."""
        if not self.has(number):
            return None
        value = self.given(number)
        if value.constant is None or value.dtype.kind != "i":
            raise NoKernel(f"{self.op.name}: input {number} is not a constant of integers")
        return tuple(int(number) for number in value.constant.reshape(-1))

    def scalar(self, number: int, default: float) -> float:
        """A constant input of one number."""
        if not self.has(number):
            return default
        value = self.floats(number)
        if value.constant is None or value.size != 1:
            raise NoKernel(f"{self.op.name}: input {number} is not a constant number")
        return float(value.constant.reshape(-1)[0])

    def attribute(self, name: str) -> Any:
        """An attribute, or its default."""
        return self.op.attribute(name)

    def axis(self, rank: int) -> int:
        """The attribute ``axis``, counted from the gateway."""
        return int(self.op.attribute("axis")) % rank


def broadcast_strides(shape: Shape, to: Shape) -> list[int]:
    """Strides of a tensor that is repeated along the axes where it has the size 1."""
    padded = (1,) * (len(to) - len(shape)) + shape
    return [0 if extent == 1 else stride for extent, stride in zip(padded, row_major_strides(padded), strict=True)]


def move(call: Call, value: Value, shape: Shape, strides: list[int], start: int = 0) -> Value:
    """The elements of *value* at ``start + sum(index * stride)``."""
    if len(shape) > _MAX_MOVED_AXES:
        raise NoKernel(f"{call.op.name} of {len(shape)} axes")
    descriptor = call.plan.keeper.struct("anynpu_move")
    descriptor.axes = max(1, len(shape))
    descriptor.shape[0] = 1
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        descriptor.shape[axis], descriptor.strides[axis] = extent, stride
    descriptor.start, descriptor.element_size = start, value.dtype.itemsize
    return call.plan.layer(lib.ANYNPU_LAYER_MOVE, descriptor, [value], shape, value.dtype)


def binary(call: Call, kind: int, a: Value, b: Value) -> Value:
    """Two tensors element by element."""
    shape = tuple(int(extent) for extent in np.broadcast_shapes(a.shape, b.shape))
    merged: list[tuple[int, int, int]] = []
    for extent, left, right in zip(shape, broadcast_strides(a.shape, shape), broadcast_strides(b.shape, shape), strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == left * extent and merged[-1][2] == right * extent:
            merged[-1] = (merged[-1][0] * extent, left, right)
        else:
            merged.append((extent, left, right))
    if len(merged) > _MAX_BINARY_AXES:
        raise NoKernel(f"{call.op.name} of {len(merged)} axes")
    descriptor = call.plan.keeper.struct("anynpu_float_binary")
    descriptor.kind = kind
    for axis, entry in enumerate([(1, 0, 0)] * (_MAX_BINARY_AXES - len(merged)) + merged):
        descriptor.shape[axis], descriptor.a_strides[axis], descriptor.b_strides[axis] = entry
    return call.plan.layer(lib.ANYNPU_LAYER_FLOAT_BINARY, descriptor, [a, b], shape)
