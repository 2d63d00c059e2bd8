"""Descriptors of the operators without weights for the native engine, and the table of who lowers what.

A lowering gives the native layers of a layer, or None where C has nothing for it (mixed types, unsigned quantized values that
are computed with): such a layer runs in the reference engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._native import ffi, lib
from ...program import (
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Dense,
    FixedPoint,
    Layer,
    MatMul,
    Pad,
    Pool,
    Resize,
    Slice,
    Table,
    Transpose,
)
from ...program.convert.tensors import plan_conversion
from ...tensor import DType, Layout, TensorSpec, row_major_strides
from .native_lowering import Lowering, NativeLayer, codes_of, image_shape
from .native_products import lower_conv, lower_dense, lower_matmul
from .reference_common import largest_difference, zero_points

__all__ = ["lower"]

_BINARY_AXES = 6
_MOVE_AXES = 8
_ELEMENT_SIZES = frozenset({1, 2, 4, 8})


def lower(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    """The native layers of a layer; None where it has to run in the reference engine."""
    if any(0 in lowering.tensors[name].memory_shape for name in (*layer.inputs, *layer.outputs)):
        return None
    rule = _RULES.get(type(layer.op))
    return None if rule is None else rule(lowering, layer)


def _binary(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Binary)
    specs = [lowering.tensors[name] for name in (*layer.inputs, *layer.outputs)]
    codes = codes_of([spec.dtype.storage for spec in specs])
    out = specs[2].memory_shape
    axes = _merged_broadcast(out, specs[0].memory_shape, specs[1].memory_shape)
    if codes is None or len(axes) > _BINARY_AXES:
        return None
    keeper, channels = lowering.keeper, out[-1]
    binary = keeper.struct("anynpu_binary")
    binary.kind = {
        "add": lib.ANYNPU_ADD,
        "sub": lib.ANYNPU_SUB,
        "mul": lib.ANYNPU_MUL,
        "max": lib.ANYNPU_MAX,
        "min": lib.ANYNPU_MIN,
    }[op.kind]
    axes = [(1, 0, 0)] * (_BINARY_AXES - len(axes)) + axes
    binary.shape = [extent for extent, _, _ in axes]
    binary.a_strides = [a for _, a, _ in axes]
    binary.b_strides = [b for _, _, b in axes]
    binary.a_zero, binary.b_zero = (keeper.by_channel(zero_points(spec), channels, np.int32) for spec in specs[:2])
    if isinstance(op.epilogue, FixedPoint):
        binary.a_shift, binary.b_shift = op.shifts
        if op.kind != "mul":
            binary.a_factor, binary.b_factor = int(op.a_multiplier[0]), int(op.b_multiplier[0])
    else:
        binary.a_multiplier = keeper.by_channel(op.a_multiplier, channels, np.float32)
        binary.b_multiplier = keeper.by_channel(op.b_multiplier if op.b_multiplier.size else np.zeros(1), channels, np.float32)
    keeper.fill_epilogue(binary.epilogue, op.epilogue, channels, specs[2].dtype.storage)
    return [lowering.layer(lib.ANYNPU_LAYER_BINARY, codes, binary, layer.inputs, layer.outputs[0])]


def _merged_broadcast(out: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Size and strides of both inputs by axis, outer axes that lie side by side in both merged; the last stays the channel."""
    axes: list[tuple[int, int, int]] = []
    for extent, a_stride, b_stride in zip(out, _broadcast_strides(a, out), _broadcast_strides(b, out), strict=True):
        axes.append((extent, a_stride, b_stride))
    channel, outer = axes[-1], [axis for axis in axes[:-1] if axis[0] > 1]
    merged: list[tuple[int, int, int]] = []
    for extent, a_stride, b_stride in outer:
        if merged and merged[-1][1:] == (extent * a_stride, extent * b_stride):
            merged[-1] = (merged[-1][0] * extent, a_stride, b_stride)
        else:
            merged.append((extent, a_stride, b_stride))
    return [*merged, channel]


def _broadcast_strides(shape: tuple[int, ...], out: tuple[int, ...]) -> list[int]:
    missing = len(out) - len(shape)
    return [0] * missing + [0 if extent == 1 else stride for extent, stride in zip(shape, row_major_strides(shape), strict=True)]


def _fill_table(lowering: Lowering, target: Any, table: Table, spec: TensorSpec, count: int) -> None:
    target.count, target.channels = count, spec.memory_shape[-1] if spec.memory_shape else 1
    lowering.keeper.fill_table(target, table.table.view(f"i{table.table.itemsize}"), table.table_groups, target.channels)


def _table_codes(source: TensorSpec, target: TensorSpec) -> int | None:
    """A table works on bits: unsigned quantized values are as good as signed ones, but both sides have one size."""
    kinds = {1: lib.ANYNPU_CODES_I8, 2: lib.ANYNPU_CODES_I16}
    sizes = {source.dtype.storage.itemsize, target.dtype.storage.itemsize}
    return kinds.get(sizes.pop()) if len(sizes) == 1 else None


def _table(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Table)
    source = lowering.tensors[layer.inputs[0]]
    codes = _table_codes(source, lowering.tensors[layer.outputs[0]])
    if codes is None:
        return None
    table = lowering.keeper.struct("anynpu_table")
    _fill_table(lowering, table, op, source, math.prod(source.memory_shape))
    return [lowering.layer(lib.ANYNPU_LAYER_TABLE, codes, table, layer.inputs, layer.outputs[0])]


def _concat(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Concat)
    sources = [lowering.tensors[name] for name in layer.inputs]
    target = lowering.tensors[layer.outputs[0]]
    tables = op.tables or (None,) * len(sources)
    codes = lib.ANYNPU_CODES_I8 if target.dtype.storage.itemsize == 1 else lib.ANYNPU_CODES_I16
    if any(tables) and any(_table_codes(source, target) is None for source in sources):
        return None
    axis = op.axis % len(target.memory_shape)
    concat = lowering.keeper.struct("anynpu_concat")
    inner = [math.prod(source.memory_shape[axis:]) for source in sources]
    held = lowering.keeper.keep(ffi.new("struct anynpu_table[]", len(sources)))
    for place, table, source, count in zip(held, tables, sources, inner, strict=True):
        if table is not None:
            _fill_table(lowering, place, table, source, count)
    concat.outer = math.prod(target.memory_shape[:axis])
    concat.inputs = len(sources)
    concat.inner = lowering.keeper.pointer(np.array(inner, np.uintp))
    concat.tables = held
    concat.element_size = target.dtype.storage.itemsize
    return [lowering.layer(lib.ANYNPU_LAYER_CONCAT, codes, concat, layer.inputs, layer.outputs[0])]


def _move(
    lowering: Lowering, layer: Layer, output: str, shape: Sequence[int], strides: Sequence[int], start: int
) -> NativeLayer | None:
    """Any move of elements; axes that lie side by side are merged."""
    size = lowering.tensors[output].dtype.storage.itemsize
    axes: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if axes and axes[-1][1] == extent * stride:
            axes[-1] = (axes[-1][0] * extent, stride)
        else:
            axes.append((extent, stride))
    axes = axes or [(1, 1)]
    if len(axes) > _MOVE_AXES or size not in _ELEMENT_SIZES:
        return None
    move = lowering.keeper.struct("anynpu_move")
    move.axes, move.start, move.element_size = len(axes), start, size
    for axis, (extent, stride) in enumerate(axes):
        move.shape[axis], move.strides[axis] = extent, stride
    return lowering.layer(lib.ANYNPU_LAYER_MOVE, lib.ANYNPU_CODES_I8, move, layer.inputs, output)


def _slice(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Slice)
    extents = lowering.tensors[layer.inputs[0]].memory_shape
    strides = row_major_strides(extents)
    moves = []
    for output, starts, steps in zip(layer.outputs, op.starts, op.steps, strict=True):
        firsts = [start + extent if start < 0 else start for start, extent in zip(starts, extents, strict=True)]
        begin = sum(first * stride for first, stride in zip(firsts, strides, strict=True))
        moved = [step * stride for step, stride in zip(steps, strides, strict=True)]
        moves.append(_move(lowering, layer, output, lowering.tensors[output].memory_shape, moved, begin))
    return _all(moves)


def _transpose(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Transpose)
    strides = row_major_strides(op.view)
    shape = [op.view[axis] for axis in op.perm]
    return _all([_move(lowering, layer, layer.outputs[0], shape, [strides[axis] for axis in op.perm], 0)])


def _all(layers: Sequence[NativeLayer | None]) -> list[NativeLayer] | None:
    found = [layer for layer in layers if layer is not None]
    return found if len(found) == len(layers) else None


def _pad(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Pad)
    source = lowering.tensors[layer.inputs[0]]
    shape, storage = source.memory_shape, source.dtype.storage
    padded = [axis for axis in range(len(shape)) if op.before[axis] or op.after[axis]]
    axes = max(padded, default=0) + 1
    if axes > _MOVE_AXES or not shape or storage.itemsize not in _ELEMENT_SIZES:
        return None
    pad = lowering.keeper.struct("anynpu_pad")
    pad.mode = {"constant": lib.ANYNPU_PAD_CONSTANT, "reflect": lib.ANYNPU_PAD_REFLECT, "edge": lib.ANYNPU_PAD_EDGE}[op.mode]
    pad.axes, pad.run, pad.element_size = axes, math.prod(shape[axes:]), storage.itemsize
    for axis in range(axes):
        pad.shape[axis], pad.before[axis], pad.after[axis] = shape[axis], op.before[axis], op.after[axis]
    pad.value = int.from_bytes(np.array(op.value).astype(storage).tobytes(), "little")
    return [lowering.layer(lib.ANYNPU_LAYER_PAD, lib.ANYNPU_CODES_I8, pad, layer.inputs, layer.outputs[0])]


def _pool(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Pool)
    source, target = lowering.tensors[layer.inputs[0]], lowering.tensors[layer.outputs[0]]
    x, y = image_shape(source.memory_shape), image_shape(target.memory_shape)
    codes = codes_of([source.dtype.storage, target.dtype.storage])
    if x is None or y is None or codes is None or (op.kind == "average" and op.epilogue is None):
        return None
    zero = zero_points(source)
    window = math.prod(op.kernel)
    if codes == lib.ANYNPU_CODES_I8 and window * largest_difference(source.dtype.storage, zero) >= 1 << 31:
        codes = lib.ANYNPU_CODES_I8_WIDE
    pool = lowering.keeper.struct("anynpu_pool")
    pool.average = op.kind == "average"
    pool.n, pool.h, pool.w, pool.c = x
    pool.oh, pool.ow = y[1:3]
    pool.kh, pool.kw = op.kernel
    pool.sh, pool.sw = op.strides
    pool.top, pool.left, pool.bottom, pool.right = op.pads
    pool.dh, pool.dw = op.dilations
    pool.count_include_pad = op.count_include_pad
    pool.input_zero = lowering.keeper.by_channel(zero, x[3], np.int32)
    if op.kind == "average" and op.epilogue is not None:
        lowering.keeper.fill_epilogue(pool.epilogue, op.epilogue, x[3], target.dtype.storage)
    if op.divisors is not None:
        pool.divisor_multiplier, pool.divisor_shift = (lowering.keeper.pointer(row) for row in op.divisors)
    return [lowering.layer(lib.ANYNPU_LAYER_POOL, codes, pool, layer.inputs, layer.outputs[0])]


def _resize(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    op = layer.op
    assert isinstance(op, Resize)
    source, target = lowering.tensors[layer.inputs[0]], lowering.tensors[layer.outputs[0]]
    x, y = image_shape(source.memory_shape), image_shape(target.memory_shape)
    codes = codes_of([source.dtype.storage, target.dtype.storage])
    if x is None or y is None or codes is None:
        return None
    resize = lowering.keeper.struct("anynpu_resize")
    resize.linear = op.kind == "linear"
    resize.n, resize.h, resize.w, resize.c = x
    resize.oh, resize.ow = y[1:3]
    resize.rows, resize.columns = (lowering.keeper.pointer(table.astype(np.int32)) for table in (op.rows, op.columns))
    return [lowering.layer(lib.ANYNPU_LAYER_RESIZE, codes, resize, layer.inputs, layer.outputs[0])]


def _convert(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    source, target = lowering.tensors[layer.inputs[0]], lowering.tensors[layer.outputs[0]]
    if not _is_convertible(source, target):
        return None
    plan = plan_conversion(source, target, None)
    if plan.middle is not None:
        return None
    descriptor = lowering.keeper.keep(plan.call).descriptor
    return [lowering.layer(lib.ANYNPU_LAYER_CONVERT, lib.ANYNPU_CODES_I8, descriptor, layer.inputs, layer.outputs[0])]


def _is_convertible(source: TensorSpec, target: TensorSpec) -> bool:
    """Whether the conversion kernel does what a program means: it clamps and rounds, where a plain cast drops the fraction."""
    for spec in (source, target):
        if spec.dtype in (DType.INT4, DType.UINT4) or spec.layout is Layout.NC1HWC2:
            return False
    if math.prod(target.memory_shape) != target.elements:
        return False  # the kernel fills the padding, which a program leaves alone
    return target.dtype.is_float or target.quantization is not None


_RULES: dict[type[Any], Callable[[Lowering, Layer], list[NativeLayer] | None]] = {
    Conv: lower_conv,
    ConvTranspose: lower_conv,
    Dense: lower_dense,
    MatMul: lower_matmul,
    Binary: _binary,
    Table: _table,
    Concat: _concat,
    Slice: _slice,
    Pad: _pad,
    Pool: _pool,
    Resize: _resize,
    Transpose: _transpose,
    Convert: _convert,
}
