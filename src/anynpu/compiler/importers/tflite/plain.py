"""TFLite's operators that depend on the order of the axes of the file: changes of shape, and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .builder import NCHW, PLAIN, Builder
from .fused import emit
from .model import TfliteOperator

__all__ = ["PLAIN_RULES"]

Rule = Callable[[Builder, TfliteOperator], None]


def _reshape(builder: Builder, operator: TfliteOperator) -> None:
    source, target = operator.inputs[0], operator.outputs[0]
    value, shape = builder.constant(source), builder.shape(target)
    if value is not None:
        builder.fold(target, value.reshape(shape))
        return
    if _lies_flat(builder, source, target):
        _, height, width, channels = builder.shape(source)
        builder.flattened[target] = channels, height, width
        name = builder.read(source, NCHW)
    else:
        name = builder.read(source)
    builder.node("Reshape", [name, builder.extents(shape)], [builder.result(target)])


def _lies_flat(builder: Builder, source: int, target: int) -> bool:
    """Whether a picture is flattened for layers that are fully connected: then their weights change places, not the picture."""
    shape, flat = builder.shape(source), builder.shape(target)
    if builder.form(source) != NCHW or len(flat) != 2 or flat != (shape[0], math.prod(shape[1:])):
        return False
    if target in builder.model.outputs:
        return False
    readers = builder.readers.get(target, [])
    return all(
        reader.kind == "FULLY_CONNECTED" and reader.inputs[0] == target and builder.constant(reader.inputs[1]) is not None
        for reader in readers
    )


def _transpose(builder: Builder, operator: TfliteOperator) -> None:
    source, target = operator.inputs[0], operator.outputs[0]
    order = [int(axis) for axis in builder.known(operator, 1, "order")]
    value = builder.constant(source)
    if value is not None:
        builder.fold(target, value.transpose(order))
        return
    form = builder.form(source)
    placed = [builder.axis(axis, form, builder.rank(source)) for axis in order]
    if form == NCHW and placed == [0, 1, 2, 3]:  # the file goes to NCHW itself
        builder.call(builder.read(source, NCHW), target, PLAIN)
        return
    if form == PLAIN and order == [0, 2, 3, 1] and builder.rank(source) == 4:
        # back to NHWC: what comes next wants NCHW, which the source is
        builder.call(builder.read(source), target, NCHW)
        return
    builder.node("Transpose", [builder.read(source, form)], [builder.result(target)], perm=placed)


def _fully_connected(builder: Builder, operator: TfliteOperator) -> None:
    source, weights = operator.inputs[:2]
    target = operator.outputs[0]
    if operator.integer(1, "b") != 0:
        raise builder.refusal(operator, "its weights are shuffled")
    if builder.rank(weights) != 2:
        raise builder.refusal(operator, "its weights have other than two axes")
    units, extent = builder.shape(weights)
    activation = operator.integer(0, "b")
    value = builder.constant(weights)
    name = builder.read(source)
    bias = builder.read(operator.inputs[2]) if builder.has(operator, 2) else ""
    if builder.rank(source) > 2 and len(builder.shape(target)) > 2 and value is not None:
        product = [name, builder.add(f"{builder.tensor(weights).name}/weights", value.T)]
        if not bias:
            builder.keep_scales(weights, emit(builder, operator, activation, PLAIN, "MatMul", product))
            return
        made = builder.step("MatMul", product, target)
        builder.keep_scales(weights, made)
        emit(builder, operator, activation, PLAIN, "Add", [made, bias])
        return
    if builder.rank(source) != 2 or builder.shape(source)[1] != extent:
        name = builder.step("Reshape", [name, builder.extents((-1, extent))], target)
    if source in builder.flattened and value is not None:
        channels, height, width = builder.flattened[source]
        value = value.reshape(units, height, width, channels).transpose(0, 3, 1, 2).reshape(units, extent)
    stored = builder.add(f"{builder.tensor(weights).name}/weights", value) if value is not None else builder.read(weights)
    inputs = [name, stored, *([bias] if bias else [])]
    rows = math.prod(builder.shape(target)) // max(units, 1)
    if builder.shape(target) != (rows, units):
        raise builder.refusal(operator, f"its result has the shape {list(builder.shape(target))}")
    builder.keep_scales(weights, emit(builder, operator, activation, PLAIN, "Gemm", inputs, transB=1))


def _matmul(builder: Builder, operator: TfliteOperator) -> None:
    names = []
    for index, turned in zip(operator.inputs[:2], (operator.truth(0), operator.truth(1)), strict=True):
        name, rank = builder.read(index), builder.rank(index)
        if turned:
            order = [*range(rank - 2), rank - 1, rank - 2]
            name = builder.step("Transpose", [name], operator.outputs[0], perm=order)
        names.append(name)
    builder.node("MatMul", names, [builder.result(operator.outputs[0])])


def _strided_slice(builder: Builder, operator: TfliteOperator) -> None:
    source, target = operator.inputs[0], operator.outputs[0]
    if operator.integer(2) or operator.integer(3):
        raise builder.refusal(operator, "it adds axes or leaves some out (ellipsis)")
    if builder.tensor(source).is_constant or builder.constant(source) is not None:
        form = PLAIN
    else:
        form = builder.form(source)
    shape, rank = builder.shape(source), builder.rank(source)
    begin, end, strides = (np.asarray(builder.known(operator, at, "bounds"), np.int64).tolist() for at in (1, 2, 3))
    masks, shrunk = (operator.integer(0), operator.integer(1)), operator.integer(4)
    if operator.truth(5):
        end = [first + last for first, last in zip(begin, end, strict=True)]
    limits = np.iinfo(np.int64)
    first, last, steps, axes = [], [], [], []
    for axis, (low, high, stride) in enumerate(zip(begin, end, strides, strict=True)):
        if shrunk >> axis & 1:
            low = low + shape[axis] if low < 0 else low
            low, high, stride = low, low + 1, 1
        else:
            low = (0 if stride > 0 else shape[axis] - 1) if masks[0] >> axis & 1 else low
            high = (limits.max if stride > 0 else limits.min) if masks[1] >> axis & 1 else high
        first.append(low)
        last.append(high)
        steps.append(stride)
        axes.append(builder.axis(axis, form, rank))
    inputs = [builder.read(source, form), *(builder.extents(part) for part in (first, last, axes, steps))]
    if not shrunk:
        builder.node("Slice", inputs, [builder.result(target, form)])
        return
    gone = sorted(axes[axis] for axis in range(len(axes)) if shrunk >> axis & 1)
    if form == NCHW and [axis for axis in range(rank) if builder.axis(axis, NCHW) not in gone] not in (
        [0, 3],
        [3],
        [0],
        [0, 1, 2],
    ):
        form = PLAIN
        axes = list(range(len(axes)))
        gone = [axis for axis in axes if shrunk >> axis & 1]
        inputs = [builder.read(source, form), *(builder.extents(part) for part in (first, last, axes, steps))]
    part = builder.step("Slice", inputs, target)
    builder.node("Squeeze", [part, builder.extents(gone)], [builder.result(target)])


def _pack(builder: Builder, operator: TfliteOperator) -> None:
    target = operator.outputs[0]
    rank = builder.rank(target)
    axis = operator.integer(1) % max(rank, 1)
    shape = list(builder.shape(target))
    shape[axis] = 1
    extents = builder.extents(shape)
    parts = [builder.step("Reshape", [builder.read(index), extents], target) for index in operator.inputs]
    builder.node("Concat", parts, [builder.result(target)], axis=axis)


def _unpack(builder: Builder, operator: TfliteOperator) -> None:
    source = operator.inputs[0]
    axis = operator.integer(1) % max(builder.rank(source), 1)
    count = len(operator.outputs)
    near = operator.outputs[0]
    parts = [builder.free(f"{builder.tensor(index).name}/part") for index in operator.outputs]
    builder.node("Split", [builder.read(source), builder.extents([1] * count)], parts, axis=axis)
    extents = builder.extents(builder.shape(near))
    for part, index in zip(parts, operator.outputs, strict=True):
        builder.node("Reshape", [part, extents], [builder.result(index)])


def _gather(builder: Builder, operator: TfliteOperator) -> None:
    if operator.integer(1):
        raise builder.refusal(operator, "it gathers within batches")
    axis = operator.integer(0) % max(builder.rank(operator.inputs[0]), 1)
    inputs = [builder.read(index) for index in operator.inputs[:2]]
    builder.node("Gather", inputs, [builder.result(operator.outputs[0])], axis=axis)


def _lookup(builder: Builder, operator: TfliteOperator) -> None:
    indices, table = operator.inputs[:2]
    builder.node("Gather", [builder.read(table), builder.read(indices)], [builder.result(operator.outputs[0])], axis=0)


def _tile(builder: Builder, operator: TfliteOperator) -> None:
    repeats = builder.extents(np.asarray(builder.known(operator, 1, "repeats"), np.int64).tolist())
    builder.node("Tile", [builder.read(operator.inputs[0]), repeats], [builder.result(operator.outputs[0])])


def _broadcast(builder: Builder, operator: TfliteOperator) -> None:
    target = operator.outputs[0]
    builder.node("Expand", [builder.read(operator.inputs[0]), builder.extents(builder.shape(target))], [builder.result(target)])


def _shape(builder: Builder, operator: TfliteOperator) -> None:
    target = operator.outputs[0]
    builder.fold(target, np.asarray(builder.shape(operator.inputs[0]), builder.tensor(target).dtype))


def _fill(builder: Builder, operator: TfliteOperator) -> None:
    target = operator.outputs[0]
    value = 0 if operator.kind == "ZEROS_LIKE" else builder.known(operator, 1, "value").reshape(-1)[0]
    builder.fold(target, np.full(builder.shape(target), value, builder.tensor(target).dtype))


def _sequence_lstm(builder: Builder, operator: TfliteOperator) -> None:
    """A layer of LSTM cells over a sequence. TFLite's gates are input, forget, cell, output; ONNX's input, output, forget, cell."""
    if any(builder.has(operator, at) for at in (9, 10, 11, 16, 17, 20, 21, 22, 23)) or not builder.has(operator, 1):
        raise builder.refusal(operator, "it has peepholes, a projection, normalisation or coupled gates")
    if operator.integer(0, "b") != 4 or operator.real(1) or operator.real(2):
        raise builder.refusal(operator, "its cells use another activation than tanh, or clip")
    source, target = operator.inputs[0], operator.outputs[0]
    order = (0, 3, 1, 2)
    weights, state, bias = (
        np.concatenate([builder.known(operator, first + gate, "weights") for gate in order]) for first in (1, 5, 12)
    )
    cells = len(bias) // 4
    name = builder.read(source)
    major = operator.truth(3)
    if not major:
        name = builder.step("Transpose", [name], target, perm=(1, 0, 2))
    inputs = [
        name,
        builder.add("lstm/W", weights[None]),
        builder.add("lstm/R", state[None]),
        builder.add("lstm/B", np.concatenate([bias, np.zeros_like(bias)])[None]),
    ]
    made = builder.step("LSTM", inputs, target, hidden_size=cells)
    batch, steps = builder.shape(target)[1 if major else 0], builder.shape(target)[0 if major else 1]
    flat = builder.step("Reshape", [made, builder.extents((steps, batch, cells))], target) if not major else made
    if major:
        builder.node("Reshape", [flat, builder.extents((steps, batch, cells))], [builder.result(target)])
    else:
        builder.node("Transpose", [flat], [builder.result(target)], perm=(1, 0, 2))


PLAIN_RULES: dict[str, Rule] = {
    "RESHAPE": _reshape,
    "SQUEEZE": _reshape,
    "EXPAND_DIMS": _reshape,
    "TRANSPOSE": _transpose,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _matmul,
    "STRIDED_SLICE": _strided_slice,
    "PACK": _pack,
    "UNPACK": _unpack,
    "GATHER": _gather,
    "EMBEDDING_LOOKUP": _lookup,
    "TILE": _tile,
    "BROADCAST_TO": _broadcast,
    "SHAPE": _shape,
    "FILL": _fill,
    "ZEROS_LIKE": _fill,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm,
}
"""Operators that read tensors with the axes of the file."""
