"""Float operators that move elements or only see them in another shape, as layers for C."""

from __future__ import annotations

import math

from ..._native import ffi, lib
from ...tensor import row_major_strides
from .float_call import Call, broadcast_strides, move
from .float_plan import NoKernel, Value

__all__ = ["concat", "expand", "gather", "same_elements", "slice_", "split", "transpose"]


def same_elements(call: Call) -> list[Value]:
    """Another view of the same memory."""
    return [call.plan.view(call.given(0), call.shapes[0])]


def transpose(call: Call) -> list[Value]:
    """Axes in another order."""
    value = call.moved(0)
    order = call.attribute("perm") or tuple(reversed(range(len(value.shape))))
    strides = row_major_strides(value.shape)
    return [move(call, value, call.shapes[0], [strides[axis] for axis in order])]


def expand(call: Call) -> list[Value]:
    """Repeated along axes of size 1."""
    value = call.moved(0)
    return [move(call, value, call.shapes[0], broadcast_strides(value.shape, call.shapes[0]))]


def concat(call: Call) -> list[Value]:
    """Several tensors one after the other."""
    parts = [call.moved(number) for number in range(len(call.inputs))]
    first = parts[0]
    if any(part.dtype != first.dtype for part in parts):
        raise NoKernel("Concat of several types")
    axis = call.axis(len(first.shape))
    keeper = call.plan.keeper
    descriptor = keeper.struct("anynpu_concat")
    descriptor.outer, descriptor.inputs = math.prod(first.shape[:axis]), len(parts)
    descriptor.inner = keeper.keep(ffi.new("size_t[]", [math.prod(part.shape[axis:]) for part in parts]))
    descriptor.tables = keeper.keep(ffi.new("struct anynpu_table[]", len(parts)))
    descriptor.element_size = first.dtype.itemsize
    return [call.plan.layer(lib.ANYNPU_LAYER_CONCAT, descriptor, parts, call.shapes[0], first.dtype)]


def slice_(call: Call) -> list[Value]:
    """From start to end by step, along some axes."""
    value = call.moved(0)
    starts, ends = call.integers(1) or (), call.integers(2) or ()
    axes = call.integers(3) or tuple(range(len(starts)))
    steps = call.integers(4) or (1,) * len(starts)
    strides, first = row_major_strides(value.shape), 0
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        taken = range(value.shape[axis])[start:end:step]
        first += taken[0] * strides[axis]
        strides[axis] *= taken.step
    return [move(call, value, call.shapes[0], strides, first)]


def split(call: Call) -> list[Value]:
    """Several parts, one after the other."""
    value = call.moved(0)
    axis = call.axis(len(value.shape))
    strides, found, start = row_major_strides(value.shape), [], 0
    for shape in call.shapes:
        found.append(move(call, value, shape, strides, start * strides[axis]))
        start += shape[axis]
    return found


def gather(call: Call) -> list[Value]:
    """One place along an axis, which goes away."""
    value, places = call.moved(0), call.integers(1)
    axis = call.axis(len(value.shape))
    if places is None or call.given(1).shape != () or not -value.shape[axis] <= places[0] < value.shape[axis]:
        raise NoKernel("Gather of several places")
    strides = row_major_strides(value.shape)
    start = places[0] % value.shape[axis] * strides.pop(axis)
    return [move(call, value, call.shapes[0], strides, start)]
