"""One node of a float island with its inputs: what the functions that turn operators into layers have in hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import lib
from ...errors import ModelFormatError
from .island_plan import FLOATS, IslandPlan, UnsupportedIsland, Value
from .onnx_reader import OnnxNode

__all__ = ["Call", "binary", "move"]

_MAX_ELEMENTS = 1 << 28
_MAX_BINARY_AXES = 6
_MAX_MOVED_AXES = 8
_KINDS = {"a whole number": int, "a number": float, "a text": str, "a list of whole numbers": tuple}


@dataclass(frozen=True)
class Call:
    """A node, the plan that it is added to, and the tensors that exist so far."""

    plan: IslandPlan
    node: OnnxNode
    values: Mapping[str, Value]

    def misfit(self, what: str) -> ModelFormatError:
        """The error for a node that contradicts itself."""
        return self.plan.misfit(f"{self.node.op} '{self.node.name}' {what}")

    def has(self, number: int) -> bool:
        """Whether an input is given."""
        return number < len(self.node.inputs) and self.node.inputs[number] != ""

    def given(self, number: int) -> Value:
        """An input of any type."""
        if not self.has(number):
            raise self.misfit(f"lacks input {number}")
        name = self.node.inputs[number]
        if name not in self.values:
            raise self.misfit(f"reads the tensor '{name}', which nothing makes")
        return self.values[name]

    def moved(self, number: int) -> Value:
        """An input whose elements are only moved."""
        value = self.given(number)
        if value.dtype not in FLOATS:
            raise UnsupportedIsland(f"{self.node.op} of {value.dtype}")
        return value

    def floats(self, number: int) -> Value:
        """An input in float32."""
        value = self.given(number)
        if value.dtype != np.float32:
            raise UnsupportedIsland(f"{self.node.op} of {value.dtype}")
        return value

    def integers(self, number: int) -> tuple[int, ...]:
        """A constant input that holds extents, axes or places."""
        value = self.given(number)
        if value.constant is None or value.dtype.kind != "i":
            raise UnsupportedIsland(f"{self.node.op}: input {number} is not a constant of whole numbers")
        return tuple(int(number) for number in value.constant.reshape(-1))

    def scalar(self, number: int) -> float:
        """A constant input of one number."""
        value = self.floats(number)
        if value.constant is None or value.size != 1:
            raise UnsupportedIsland(f"{self.node.op}: input {number} is not a constant number")
        return float(value.constant.reshape(-1)[0])

    def _attribute(self, name: str, default: Any, kind: str) -> Any:
        if name not in self.node.attributes:
            return default
        found = self.node.attributes[name]
        if not isinstance(found, _KINDS[kind]):
            raise self.misfit(f"has an attribute '{name}' that is not {kind}")
        return found

    def integer(self, name: str, default: int) -> int:
        """An attribute."""
        return int(self._attribute(name, default, "a whole number"))

    def real(self, name: str, default: float) -> float:
        """An attribute."""
        return float(self._attribute(name, default, "a number"))

    def text(self, name: str, default: str) -> str:
        """An attribute."""
        return str(self._attribute(name, default, "a text"))

    def listed(self, name: str) -> tuple[int, ...] | None:
        """An attribute of whole numbers; None where the node does not have it."""
        found = self._attribute(name, None, "a list of whole numbers")
        if found is not None and not all(isinstance(number, int) for number in found):
            raise self.misfit(f"has an attribute '{name}' that is not a list of whole numbers")
        return None if found is None else tuple(found)

    def listed_or_input(self, name: str, number: int) -> tuple[int, ...] | None:
        """Whole numbers that older operator sets have as an attribute and newer ones as an input."""
        return self.integers(number) if self.has(number) else self.listed(name)

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.misfit(f"names axis {axis} of {rank}")
        return axis % rank

    def axes(self, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Different axes counted from the front, in order."""
        found = sorted({self.axis(axis, rank) for axis in axes})
        if len(found) != len(axes):
            raise self.misfit(f"names an axis twice: {list(axes)}")
        return tuple(found)


def strides_of(shape: tuple[int, ...]) -> list[int]:
    """How far apart neighbours along each axis lie, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def broadcast_strides(shape: tuple[int, ...], to: tuple[int, ...]) -> list[int]:
    """Strides of a tensor that is repeated along the axes where it has the extent 1."""
    padded = (1,) * (len(to) - len(shape)) + shape
    return [0 if extent == 1 else stride for extent, stride in zip(padded, strides_of(padded), strict=True)]


def broadcast_shape(call: Call, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a result of tensors that are repeated as numpy does it."""
    try:
        joined = tuple(int(extent) for extent in np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise call.misfit(f"joins tensors of the shapes {[list(shape) for shape in shapes]}") from error
    if math.prod(joined) > _MAX_ELEMENTS:
        raise UnsupportedIsland(f"{call.node.op} gives the shape {list(joined)}")
    return joined


def move(call: Call, value: Value, shape: tuple[int, ...], strides: list[int], start: int = 0) -> Value:
    """The elements of *value* at ``start + sum(index * stride)``."""
    if len(shape) > _MAX_MOVED_AXES:
        raise UnsupportedIsland(f"{call.node.op} of {len(shape)} axes")
    descriptor = call.plan.keeper.struct("anynpu_move")
    descriptor.axes = max(1, len(shape))
    descriptor.shape[0] = 1
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        descriptor.shape[axis], descriptor.strides[axis] = extent, stride
    descriptor.start, descriptor.element_size = start, value.dtype.itemsize
    return call.plan.layer(lib.ANYNPU_LAYER_MOVE, descriptor, [value], shape, value.dtype)


def binary(call: Call, kind: int, a: Value, b: Value) -> Value:
    """Two tensors element by element."""
    shape = broadcast_shape(call, a.shape, b.shape)
    merged: list[tuple[int, int, int]] = []
    for extent, left, right in zip(shape, broadcast_strides(a.shape, shape), broadcast_strides(b.shape, shape), strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == left * extent and merged[-1][2] == right * extent:
            merged[-1] = (merged[-1][0] * extent, left, right)
        else:
            merged.append((extent, left, right))
    if len(merged) > _MAX_BINARY_AXES:
        raise UnsupportedIsland(f"{call.node.op} of {len(merged)} axes")
    descriptor = call.plan.keeper.struct("anynpu_float_binary")
    descriptor.kind = kind
    for axis, entry in enumerate([(1, 0, 0)] * (_MAX_BINARY_AXES - len(merged)) + merged):
        descriptor.shape[axis], descriptor.a_strides[axis], descriptor.b_strides[axis] = entry
    return call.plan.layer(lib.ANYNPU_LAYER_FLOAT_BINARY, descriptor, [a, b], shape)
