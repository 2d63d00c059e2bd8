"""Operators of float islands that move elements or only see them in another shape."""

from __future__ import annotations

import math

from ..._native import ffi, lib
from .island_call import Call, broadcast_shape, broadcast_strides, move, strides_of
from .island_plan import UnsupportedIsland, Value

__all__ = ["concat", "expand", "flatten", "gather", "reshape", "slice_", "split", "squeeze", "transpose", "unsqueeze"]


def reshape(call: Call) -> list[Value]:
    """0 keeps an extent (unless ``allowzero``), -1 is what remains."""
    value, wanted = call.given(0), list(call.integers(1))
    if call.integer("allowzero", 0) == 0:
        if any(extent == 0 and axis >= len(value.shape) for axis, extent in enumerate(wanted)):
            raise call.misfit(f"keeps an axis that {list(value.shape)} does not have")
        wanted = [value.shape[axis] if extent == 0 else extent for axis, extent in enumerate(wanted)]
    if wanted.count(-1) == 1:
        known = -math.prod(wanted)
        wanted[wanted.index(-1)] = value.size // known if known > 0 else 0
    return [call.plan.view(value, tuple(wanted))]


def flatten(call: Call) -> list[Value]:
    """To two axes."""
    value, axis = call.given(0), call.integer("axis", 1)
    rank = len(value.shape)
    axis = rank if axis == rank else call.axis(axis, rank)
    return [call.plan.view(value, (math.prod(value.shape[:axis]), math.prod(value.shape[axis:])))]


def squeeze(call: Call) -> list[Value]:
    """Without axes of extent 1."""
    value, listed = call.given(0), call.listed_or_input("axes", 1)
    if listed is None:
        return [call.plan.view(value, tuple(extent for extent in value.shape if extent != 1))]
    axes = call.axes(listed, len(value.shape))
    if any(value.shape[axis] != 1 for axis in axes):
        raise call.misfit(f"drops the axes {list(axes)} of {list(value.shape)}")
    return [call.plan.view(value, tuple(extent for axis, extent in enumerate(value.shape) if axis not in axes))]


def unsqueeze(call: Call) -> list[Value]:
    """With more axes of extent 1."""
    value, listed = call.given(0), call.listed_or_input("axes", 1)
    if listed is None:
        raise call.misfit("does not say which axes")
    shape = list(value.shape)
    for axis in call.axes(listed, len(shape) + len(listed)):
        shape.insert(axis, 1)
    return [call.plan.view(value, tuple(shape))]


def transpose(call: Call) -> list[Value]:
    """Axes in another order."""
    value = call.moved(0)
    rank = len(value.shape)
    listed = call.listed("perm")
    order = tuple(reversed(range(rank))) if listed is None else listed
    if sorted(order) != list(range(rank)):
        raise call.misfit(f"has the order {list(order)} for {rank} axes")
    strides = strides_of(value.shape)
    return [move(call, value, tuple(value.shape[axis] for axis in order), [strides[axis] for axis in order])]


def expand(call: Call) -> list[Value]:
    """Repeated along axes of extent 1."""
    value = call.moved(0)
    wanted = call.integers(1)
    if any(extent < 1 for extent in wanted):
        raise UnsupportedIsland(f"Expand to {list(wanted)}")
    shape = broadcast_shape(call, value.shape, wanted)
    return [move(call, value, shape, broadcast_strides(value.shape, shape))]


def concat(call: Call) -> list[Value]:
    """Several tensors one after the other."""
    parts = [call.moved(number) for number in range(len(call.node.inputs))]
    if not parts:
        raise call.misfit("has no inputs")
    first = parts[0]
    axis = call.axis(call.integer("axis", 1), len(first.shape))
    for part in parts:
        if part.dtype != first.dtype or _without(part.shape, axis) != _without(first.shape, axis):
            raise call.misfit(f"joins {list(first.shape)} and {list(part.shape)} along axis {axis}")
    keeper = call.plan.keeper
    descriptor = keeper.struct("anynpu_concat")
    descriptor.outer, descriptor.inputs = math.prod(first.shape[:axis]), len(parts)
    descriptor.inner = keeper.keep(ffi.new("size_t[]", [math.prod(part.shape[axis:]) for part in parts]))
    descriptor.tables = keeper.keep(ffi.new("struct anynpu_table[]", len(parts)))
    descriptor.element_size = first.dtype.itemsize
    shape = (*first.shape[:axis], sum(part.shape[axis] for part in parts), *first.shape[axis + 1 :])
    return [call.plan.layer(lib.ANYNPU_LAYER_CONCAT, descriptor, parts, shape, first.dtype)]


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], -1, *shape[axis + 1 :]) if axis < len(shape) else ()


def slice_(call: Call) -> list[Value]:
    """From start to end by step, along some axes."""
    value = call.moved(0)
    starts, ends = call.listed_or_input("starts", 1), call.listed_or_input("ends", 2)
    if starts is None or ends is None or len(starts) != len(ends):
        raise call.misfit("does not say from where to where")
    listed = call.listed_or_input("axes", 3)
    named = tuple(range(len(starts))) if listed is None else listed
    steps = call.integers(4) if call.has(4) else (1,) * len(starts)
    axes = [call.axis(axis, len(value.shape)) for axis in named]
    if not len(set(axes)) == len(axes) == len(starts) == len(steps) or 0 in steps:
        raise call.misfit(f"has the axes {list(named)} and steps {list(steps)} for {len(starts)} places")
    shape, strides, first = list(value.shape), strides_of(value.shape), 0
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        taken = range(value.shape[axis])[start:end:step]
        if not taken:
            raise UnsupportedIsland("a slice is empty")
        shape[axis] = len(taken)
        first += taken[0] * strides[axis]
        strides[axis] *= taken.step
    return [move(call, value, tuple(shape), strides, first)]


def split(call: Call) -> list[Value]:
    """Several parts, one after the other."""
    value = call.moved(0)
    axis = call.axis(call.integer("axis", 0), len(value.shape))
    extent, count = value.shape[axis], len(call.node.outputs)
    parts = call.listed_or_input("split", 1)
    if parts is None:
        even = -(-extent // max(1, count))
        parts = (*(even,) * (count - 1), extent - even * (count - 1))
    if len(parts) != count or sum(parts) != extent or any(part < 1 for part in parts):
        raise call.misfit(f"makes {count} parts of the extents {list(parts)} of {extent}")
    strides, found, start = strides_of(value.shape), [], 0
    for part in parts:
        shape = (*value.shape[:axis], part, *value.shape[axis + 1 :])
        found.append(move(call, value, shape, strides, start * strides[axis]))
        start += part
    return found


def gather(call: Call) -> list[Value]:
    """One place along an axis, which goes away."""
    value, places = call.moved(0), call.integers(1)
    axis = call.axis(call.integer("axis", 0), len(value.shape))
    if call.given(1).shape != ():
        raise UnsupportedIsland("Gather of several places")
    place = call.axis(places[0], value.shape[axis])
    strides = strides_of(value.shape)
    start = place * strides.pop(axis)
    return [move(call, value, (*value.shape[:axis], *value.shape[axis + 1 :]), strides, start)]
