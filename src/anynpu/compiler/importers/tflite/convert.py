"""TFLite to ONNX, in memory: each operator's rule, with float values throughout and the scales of the file as annotations."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...._util.optional import onnx
from ....errors import AnynpuError, CompileError, ModelFormatError
from ..quantized_models import KnownScales, annotate
from .builder import NCHW, OPSET, PLAIN, Builder, emit
from .model import TfliteModel, TfliteOperator, read_tflite

# TFLite's operators that work on one element at a time, or along an axis: they take images in the form that is there.


Rule = Callable[[Builder, TfliteOperator], None]


def _unary(op: str, **attributes: float) -> Rule:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        form = builder.form(operator.inputs[0])
        builder.node(op, [builder.read(operator.inputs[0], form)], [builder.result(operator.outputs[0], form)], **attributes)

    return convert


def _binary(op: str, *, fused: bool = False) -> Rule:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        form = builder.common_form(operator.inputs)
        inputs = [builder.read(index, form) for index in operator.inputs]
        emit(builder, operator, operator.integer(0, "b") if fused else 0, form, op, inputs)

    return convert


def _not_equal(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.common_form(operator.inputs)
    same = builder.step("Equal", [builder.read(index, form) for index in operator.inputs], operator.outputs[0])
    builder.node("Not", [same], [builder.result(operator.outputs[0], form)])


def _squared_difference(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.common_form(operator.inputs)
    difference = builder.step("Sub", [builder.read(index, form) for index in operator.inputs], operator.outputs[0])
    builder.node("Mul", [difference, difference], [builder.result(operator.outputs[0], form)])


def _floor_quotient(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.common_form(operator.inputs)
    inputs = [builder.read(index, form) for index in operator.inputs]
    result = operator.outputs[0]
    quotient = builder.step("Div", inputs, result)
    dtype = builder.tensor(result).dtype
    if dtype.kind == "f":
        builder.node("Floor", [quotient], [builder.result(result, form)])
        return
    # ONNX cuts quotients of integers off towards zero: where something is left that has the other sign, one less is meant
    left = builder.step("Sub", [inputs[0], builder.step("Mul", [quotient, inputs[1]], result)], result)
    none = builder.add("zero", np.zeros((), dtype))
    signs = [builder.step("Less", [name, none], result) for name in (left, inputs[1])]
    whole = builder.step("Not", [builder.step("Equal", [left, none], result)], result)
    beyond = builder.step("And", [builder.step("Xor", signs, result), whole], result)
    one = builder.step("Cast", [beyond], result, to=int(onnx().helper.np_dtype_to_tensor_dtype(dtype)))
    builder.node("Sub", [quotient, one], [builder.result(result, form)])


def _clip(low: float, high: float) -> Rule:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        form = builder.form(operator.inputs[0])
        inputs = [builder.read(operator.inputs[0], form), builder.scalar(low), builder.scalar(high)]
        builder.node("Clip", inputs, [builder.result(operator.outputs[0], form)])

    return convert


def _square(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.form(operator.inputs[0])
    source = builder.read(operator.inputs[0], form)
    builder.node("Mul", [source, source], [builder.result(operator.outputs[0], form)])


def _reciprocal_root(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.form(operator.inputs[0])
    root = builder.step("Sqrt", [builder.read(operator.inputs[0], form)], operator.outputs[0])
    builder.node("Reciprocal", [root], [builder.result(operator.outputs[0], form)])


def _leaky(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.form(operator.inputs[0])
    source, name = builder.read(operator.inputs[0], form), builder.result(operator.outputs[0], form)
    builder.node("LeakyRelu", [source], [name], alpha=operator.real(0))


def _gelu(builder: Builder, operator: TfliteOperator) -> None:
    form, target = builder.form(operator.inputs[0]), operator.outputs[0]
    source = builder.read(operator.inputs[0], form)
    if operator.truth(0):  # the approximation with tanh
        cube = builder.step("Mul", [source, builder.step("Mul", [source, source], target)], target)
        part = builder.step("Mul", [cube, builder.scalar(0.044715)], target)
        inner = builder.step("Mul", [builder.step("Add", [source, part], target), builder.scalar(np.sqrt(2.0 / np.pi))], target)
        bell = builder.step("Tanh", [inner], target)
    else:
        bell = builder.step("Erf", [builder.step("Div", [source, builder.scalar(np.sqrt(2.0))], target)], target)
    product = builder.step("Mul", [source, builder.step("Add", [bell, builder.scalar(1.0)], target)], target)
    builder.node("Mul", [product, builder.scalar(0.5)], [builder.result(target, form)])


def _sum_of_all(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.common_form(operator.inputs)
    inputs = [builder.read(index, form) for index in operator.inputs]
    builder.node("Sum", inputs, [builder.result(operator.outputs[0], form)])


def _select(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.common_form(operator.inputs)
    inputs = [builder.read(index, form) for index in operator.inputs]
    builder.node("Where", inputs, [builder.result(operator.outputs[0], form)])


def _cast(builder: Builder, operator: TfliteOperator) -> None:
    from ...._util.optional import onnx

    form = builder.form(operator.inputs[0])
    kind = onnx().helper.np_dtype_to_tensor_dtype(builder.tensor(operator.outputs[0]).dtype)
    builder.node("Cast", [builder.read(operator.inputs[0], form)], [builder.result(operator.outputs[0], form)], to=kind)


def _same(builder: Builder, operator: TfliteOperator) -> None:
    builder.alias(operator.inputs[0], operator.outputs[0])


def _quantize(builder: Builder, operator: TfliteOperator) -> None:
    """Quantized values mean the same numbers, within their range: where they begin in the middle of a network, what is beyond is
    cut off."""
    source, target = operator.inputs[0], operator.outputs[0]
    limits = builder.tensor(target).limits
    begins = builder.constant(source) is None and source not in builder.model.inputs and not builder.tensor(source).is_quantized
    if limits is None or not begins:
        builder.alias(source, target)
        return
    _clip(*limits)(builder, operator)


def _softmax(op: str) -> Rule:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        source, target = operator.inputs[0], operator.outputs[0]
        form = builder.form(source)
        beta = operator.real(0, 1.0) if op == "Softmax" else 1.0
        name = builder.read(source, form)
        if beta not in (0.0, 1.0):  # 0 is what a file without the option has
            name = builder.step("Mul", [name, builder.scalar(beta)], target)
        builder.node(op, [name], [builder.result(target, form)], axis=builder.axis(-1, form, builder.rank(source)))

    return convert


def _l2_normalization(builder: Builder, operator: TfliteOperator) -> None:
    source, target = operator.inputs[0], operator.outputs[0]
    form = builder.form(source)
    name = builder.read(source, form)
    axis = builder.axis(-1, form, builder.rank(source))
    length = builder.step("ReduceL2", [name], target, axes=[axis], keepdims=1)
    bounded = builder.step("Max", [length, builder.scalar(1e-6)], target)
    builder.node("Div", [name, bounded], [builder.result(target, form)])


def _concatenation(builder: Builder, operator: TfliteOperator) -> None:
    form = builder.common_form(operator.inputs)
    rank = builder.rank(operator.outputs[0])
    inputs = [builder.read(index, form) for index in operator.inputs if 0 not in builder.shape(index)]
    axis = builder.axis(operator.integer(0), form, rank)
    emit(builder, operator, operator.integer(1, "b"), form, "Concat", inputs, axis=axis)


def _pad(builder: Builder, operator: TfliteOperator) -> None:
    source = operator.inputs[0]
    form, rank = builder.form(source), builder.rank(source)
    pads = np.asarray(builder.known(operator, 1, "padding"), np.int64)
    placed = np.zeros((2, rank), np.int64)
    for axis in range(rank):
        placed[:, builder.axis(axis, form, rank)] = pads[axis]
    inputs = [builder.read(source, form), builder.extents(placed.reshape(-1).tolist())]
    mode = "constant"
    if operator.kind == "MIRROR_PAD":
        mode = "reflect"
        if operator.integer(0, "b") != 0:
            raise builder.refusal(operator, "it mirrors with the outermost row twice")
    elif builder.has(operator, 2):
        inputs.append(builder.scalar(float(builder.known(operator, 2, "value").reshape(-1)[0])))
    builder.node("Pad", inputs, [builder.result(operator.outputs[0], form)], mode=mode)


def _slice(builder: Builder, operator: TfliteOperator) -> None:
    source = operator.inputs[0]
    form, rank = builder.form(source), builder.rank(source)
    begin = np.asarray(builder.known(operator, 1, "begin"), np.int64)
    shape = builder.shape(operator.outputs[0])
    axes = [builder.axis(axis, form, rank) for axis in range(rank)]
    inputs = [builder.read(source, form), builder.extents(begin.tolist())]
    inputs += [builder.extents([int(at) + extent for at, extent in zip(begin, shape, strict=True)]), builder.extents(axes)]
    builder.node("Slice", inputs, [builder.result(operator.outputs[0], form)])


def _split(builder: Builder, operator: TfliteOperator) -> None:
    first = operator.kind == "SPLIT"
    source = operator.inputs[1 if first else 0]
    form, rank = builder.form(source), builder.rank(source)
    given = int(builder.known(operator, 0 if first else 2, "axis").reshape(-1)[0])
    axis = given + rank if given < 0 else given
    sizes = builder.extents([builder.shape(index)[axis] for index in operator.outputs])
    name = builder.read(source, form)
    names = [builder.result(index, form) for index in operator.outputs]
    builder.node("Split", [name, sizes], names, axis=builder.axis(axis, form, rank))


def _reduce(op: str) -> Rule:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        source, target = operator.inputs[0], operator.outputs[0]
        rank, form = builder.rank(source), builder.form(source)
        axes = sorted({int(axis) % max(rank, 1) for axis in builder.known(operator, 1, "axes").reshape(-1)})
        keep = operator.truth(0)
        if op == "ReduceMean" and rank == 4 and axes == [1, 2] and form == NCHW:
            if keep:
                builder.node("GlobalAveragePool", [builder.read(source, NCHW)], [builder.result(target, NCHW)])
                return
            pooled = builder.step("GlobalAveragePool", [builder.read(source, NCHW)], target)
            builder.node("Reshape", [pooled, builder.extents(builder.shape(target))], [builder.result(target)])
            return
        if form == NCHW and not keep and axes not in ([1, 2], [1, 2, 3], [3]):
            form = PLAIN  # what is left would come in another order
        placed = sorted(builder.axis(axis, form, rank) for axis in axes)
        result = form if keep else PLAIN
        inputs = [builder.read(source, form)]
        more: dict[str, list[int]] = {} if op == "ReduceSum" else {"axes": placed}
        if op == "ReduceSum":
            inputs.append(builder.extents(placed))
        builder.node(op, inputs, [builder.result(target, result)], keepdims=int(keep), **more)

    return convert


def _arg(op: str) -> Rule:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        from ...._util.optional import onnx

        source, target = operator.inputs[0], operator.outputs[0]
        rank, form = builder.rank(source), builder.form(source)
        axis = int(builder.known(operator, 1, "axis").reshape(-1)[0]) % max(rank, 1)
        if form == NCHW and axis != 3:
            form = PLAIN
        found = builder.step(op, [builder.read(source, form)], target, axis=builder.axis(axis, form, rank), keepdims=0)
        kind = onnx().helper.np_dtype_to_tensor_dtype(builder.tensor(target).dtype)
        builder.node("Cast", [found], [builder.result(target)], to=kind)

    return convert


AGNOSTIC: dict[str, Rule] = {
    **{name: _binary(op, fused=True) for name, op in {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}.items()},
    **{name: _binary(op) for name, op in {"MAXIMUM": "Max", "MINIMUM": "Min", "POW": "Pow", "PRELU": "PRelu"}.items()},
    **{name: _binary(op) for name, op in {"LESS": "Less", "GREATER": "Greater", "EQUAL": "Equal"}.items()},
    **{name: _binary(op) for name, op in {"LESS_EQUAL": "LessOrEqual", "GREATER_EQUAL": "GreaterOrEqual"}.items()},
    **{name: _binary(op) for name, op in {"LOGICAL_AND": "And", "LOGICAL_OR": "Or"}.items()},
    **{
        name: _unary(op)
        for name, op in {"RELU": "Relu", "TANH": "Tanh", "LOGISTIC": "Sigmoid", "HARD_SWISH": "HardSwish"}.items()
    },
    **{name: _unary(op) for name, op in {"EXP": "Exp", "LOG": "Log", "SQRT": "Sqrt", "ABS": "Abs", "NEG": "Neg"}.items()},
    **{name: _unary(op) for name, op in {"SIN": "Sin", "COS": "Cos", "FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round"}.items()},
    **{name: _unary(op) for name, op in {"LOGICAL_NOT": "Not", "SIGN": "Sign", "ELU": "Elu"}.items()},
    "NOT_EQUAL": _not_equal,
    "SQUARED_DIFFERENCE": _squared_difference,
    "FLOOR_DIV": _floor_quotient,
    "RELU6": _clip(0.0, 6.0),
    "RELU_N1_TO_1": _clip(-1.0, 1.0),
    "RELU_0_TO_1": _clip(0.0, 1.0),
    "SQUARE": _square,
    "RSQRT": _reciprocal_root,
    "LEAKY_RELU": _leaky,
    "GELU": _gelu,
    "ADD_N": _sum_of_all,
    "SELECT": _select,
    "SELECT_V2": _select,
    "CAST": _cast,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _same,
    "DENSIFY": _same,
    "SOFTMAX": _softmax("Softmax"),
    "LOG_SOFTMAX": _softmax("LogSoftmax"),
    "L2_NORMALIZATION": _l2_normalization,
    "CONCATENATION": _concatenation,
    "PAD": _pad,
    "PADV2": _pad,
    "MIRROR_PAD": _pad,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split,
    "MEAN": _reduce("ReduceMean"),
    "SUM": _reduce("ReduceSum"),
    "REDUCE_MAX": _reduce("ReduceMax"),
    "REDUCE_MIN": _reduce("ReduceMin"),
    "REDUCE_PROD": _reduce("ReduceProd"),
    "ARG_MAX": _arg("ArgMax"),
    "ARG_MIN": _arg("ArgMin"),
}
"""Operators that do not mind how images lie."""


# TFLite's operators that depend on the order of the axes of the file: changes of shape, and products of matrices.


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
    """Whether an image is flattened for layers that are fully connected: then their weights change places, not the image."""
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
        raise builder.refusal(operator, "it has peepholes, a projection, normalization or coupled gates")
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


# TFLite's operators with windows: convolutions, pooling and changes of size. All of them read and make NCHW.


_SAME = 0
_SAME_OF_STRUCTS = 1
"""The same in options that are the bytes of a structure."""
_NONE = (1, 1)


def _strides(builder: Builder, operator: TfliteOperator) -> tuple[int, int]:
    """Down and across; the file has them the other way round."""
    strides = operator.integer(2, default=1), operator.integer(1, default=1)
    _positive(builder, operator, strides)
    return strides


def _positive(builder: Builder, operator: TfliteOperator, numbers: Sequence[int]) -> None:
    if min(numbers) < 1:
        raise builder.refusal(operator, f"a stride or size of it is {min(numbers)}")


def _pads(
    builder: Builder,
    operator: TfliteOperator,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] = _NONE,
) -> list[int]:
    """Top, left, bottom, right. Where the padding that SAME needs is odd, the larger half comes behind."""
    if operator.integer(0, "b") != _SAME:
        return [0, 0, 0, 0]
    before, after = [], []
    source, result = builder.shape(operator.inputs[0])[1:3], builder.shape(operator.outputs[0])[1:3]
    for out, stride, size, dilation, extent in zip(result, strides, kernel, dilations, source, strict=True):
        total = max((out - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return [*before, *after]


def _weights(builder: Builder, index: int, order: tuple[int, ...]) -> str:
    value = builder.constant(index)
    if value is not None:
        return builder.add(f"{builder.tensor(index).name}/weights", value.transpose(order))
    return builder.step("Transpose", [builder.read(index)], index, perm=order)


def convolution(
    builder: Builder,
    operator: TfliteOperator,
    source: int | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    target: TfliteOperator | None = None,
) -> None:
    """A convolution. The other arguments replace its own where it stands between operators that cut the image into a batch."""
    depthwise = operator.kind == "DEPTHWISE_CONV_2D"
    source = operator.inputs[0] if source is None else source
    weights = operator.inputs[1]
    if any(builder.rank(index) != 4 for index in (source, weights, operator.outputs[0])):
        raise builder.refusal(operator, "it has other than four axes")
    strides = _strides(builder, operator)
    width = 5 if depthwise else 4
    own = operator.integer(width + 1, default=1), operator.integer(width, default=1)
    dilations = own if dilations is None else dilations
    _positive(builder, operator, dilations)
    shape, channels = builder.shape(weights), builder.shape(source)[3]
    kernel = shape[1:3]
    if not depthwise and (shape[3] == 0 or channels % shape[3]):
        raise builder.refusal(operator, f"its weights are for {shape[3]} channels, and its input has {channels}")
    inputs = [builder.read(source, NCHW), _weights(builder, weights, (3, 0, 1, 2) if depthwise else (0, 3, 1, 2))]
    if builder.has(operator, 2):
        inputs.append(builder.read(operator.inputs[2]))
    made = emit(
        builder,
        target or operator,
        operator.integer(width - 1, "b"),
        NCHW,
        "Conv",
        inputs,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=_pads(builder, operator, kernel, strides, dilations) if pads is None else pads,
        group=channels if depthwise else channels // shape[3],
    )
    builder.keep_scales(weights, made)


def _transposed(builder: Builder, operator: TfliteOperator) -> None:
    _, weights, source = operator.inputs[:3]
    bias = operator.inputs[3] if builder.has(operator, 3) else None
    same, strides = operator.integer(0, "b") == _SAME, _strides(builder, operator)
    _turned_convolution(builder, operator, source, weights, bias, strides, same=same, activation=operator.integer(3, "b"))


def _transposed_with_bias(builder: Builder, operator: TfliteOperator) -> None:
    """An operator of MediaPipe; its options are three numbers."""
    if len(operator.custom) < 12 or len(operator.inputs) < 3:
        raise builder.refusal(operator, "its options are missing")
    padding, across, down = struct.unpack_from("<iii", operator.custom)
    _positive(builder, operator, (down, across))
    source, weights, bias = operator.inputs[:3]
    _turned_convolution(builder, operator, source, weights, bias, (down, across), same=padding == _SAME_OF_STRUCTS, activation=0)


def _turned_convolution(
    builder: Builder,
    operator: TfliteOperator,
    source: int,
    weights: int,
    bias: int | None,
    strides: tuple[int, int],
    *,
    same: bool,
    activation: int,
) -> None:
    kernel = builder.shape(weights)[1:3]
    inputs = [builder.read(source, NCHW), _weights(builder, weights, (3, 0, 1, 2))]
    if bias is not None:
        inputs.append(builder.read(bias))
    before, after, beyond = [], [], []
    result = builder.shape(operator.outputs[0])[1:3]
    for extent, stride, size, out in zip(builder.shape(source)[1:3], strides, kernel, result, strict=True):
        total = (extent - 1) * stride + size - out
        before.append(max(total, 0) // 2 if same else 0)
        after.append(max(total, 0) - before[-1])
        beyond.append(max(-total, 0))
    more: dict[str, Any] = {"output_padding": beyond} if any(beyond) else {}
    pads = [*before, *after]
    made = emit(
        builder, operator, activation, NCHW, "ConvTranspose", inputs, kernel_shape=kernel, strides=strides, pads=pads, **more
    )
    builder.keep_scales(weights, made)


def _pool(op: str) -> Callable[[Builder, TfliteOperator], None]:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        strides = _strides(builder, operator)
        kernel = operator.integer(4, default=1), operator.integer(3, default=1)
        _positive(builder, operator, kernel)
        inputs, activation = [builder.read(operator.inputs[0], NCHW)], operator.integer(5, "b")
        pads = _pads(builder, operator, kernel, strides)
        emit(builder, operator, activation, NCHW, op, inputs, kernel_shape=kernel, strides=strides, pads=pads)

    return convert


def _resize(mode: str) -> Callable[[Builder, TfliteOperator], None]:
    first = 2 if mode == "linear" else 0

    def convert(builder: Builder, operator: TfliteOperator) -> None:
        corners, centers = operator.truth(first), operator.truth(first + 1)
        coordinates = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
        batch, height, width, channels = builder.shape(operator.outputs[0])
        inputs = [builder.read(operator.inputs[0], NCHW), "", "", builder.extents((batch, channels, height, width))]
        rounding = {} if mode == "linear" else {"nearest_mode": "round_prefer_ceil" if corners or centers else "floor"}
        name = builder.result(operator.outputs[0], NCHW)
        builder.node("Resize", inputs, [name], mode=mode, coordinate_transformation_mode=coordinates, **rounding)

    return convert


def _blocks(op: str) -> Callable[[Builder, TfliteOperator], None]:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        size = operator.integer(0, default=1)
        _positive(builder, operator, [size])
        source = builder.read(operator.inputs[0], NCHW)
        builder.node(op, [source], [builder.result(operator.outputs[0], NCHW)], blocksize=size)

    return convert


def _local_response(builder: Builder, operator: TfliteOperator) -> None:
    size = 2 * operator.integer(0) + 1
    source = builder.read(operator.inputs[0], NCHW)
    alpha, beta, bias = operator.real(2) * size, operator.real(3), operator.real(1)  # ONNX divides alpha by the size
    builder.node("LRN", [source], [builder.result(operator.outputs[0], NCHW)], size=size, alpha=alpha, beta=beta, bias=bias)


def _space_to_batch(builder: Builder, operator: TfliteOperator) -> None:
    """The first of three operators that old converters write for one convolution with gaps (dilation)."""
    inner = builder.readers.get(operator.outputs[0], [])
    last = builder.readers.get(inner[0].outputs[0], []) if len(inner) == 1 else []
    kinds = [inner[0].kind, last[0].kind] if len(inner) == len(last) == 1 else []
    if not kinds or kinds[0] not in ("CONV_2D", "DEPTHWISE_CONV_2D") or kinds[1] != "BATCH_TO_SPACE_ND":
        raise builder.refusal(operator, "it is not part of a convolution with gaps")
    block = [int(size) for size in builder.known(operator, 1, "block")]
    padding = builder.known(operator, 2, "padding").tolist()
    crops = builder.known(last[0], 2, "crop").tolist()
    pads = [padding[0][0], padding[1][0], padding[0][1] - crops[0][1], padding[1][1] - crops[1][1]]
    plain = inner[0].integer(0, "b") != _SAME or tuple(builder.shape(inner[0].inputs[1])[1:3]) == (1, 1)
    if len(block) != 2 or not plain or min(pads) < 0 or crops[0][0] or crops[1][0]:
        raise builder.refusal(operator, "its padding is not that of a convolution with gaps")
    convolution(builder, inner[0], operator.inputs[0], block, pads, last[0])
    builder.done.update(id(entry) for entry in (inner[0], last[0]))


SPATIAL: dict[str, Callable[[Builder, TfliteOperator], None]] = {
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": convolution,
    "TRANSPOSE_CONV": _transposed,
    "Convolution2DTransposeBias": _transposed_with_bias,
    "AVERAGE_POOL_2D": _pool("AveragePool"),
    "MAX_POOL_2D": _pool("MaxPool"),
    "RESIZE_BILINEAR": _resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "DEPTH_TO_SPACE": _blocks("DepthToSpace"),
    "SPACE_TO_DEPTH": _blocks("SpaceToDepth"),
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "SPACE_TO_BATCH_ND": _space_to_batch,
}
"""Operators that need images as NCHW."""


_log = logging.getLogger("anynpu.compiler")

_TAILS = {"TFLite_Detection_PostProcess"}
"""Operators at the end of a detector that no NPU can run; what they read becomes the result."""

_RULES = {**SPATIAL, **AGNOSTIC, **PLAIN_RULES}
_IR_VERSION = 8

_TWO = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", "ADD", "SUB", "MUL", "DIV", "PRELU", "GATHER", "SPLIT"),
    *("MAXIMUM", "MINIMUM", "POW", "LESS", "GREATER", "EQUAL", "NOT_EQUAL", "LESS_EQUAL", "GREATER_EQUAL", "LOGICAL_AND"),
    *("LOGICAL_OR", "SQUARED_DIFFERENCE", "FLOOR_DIV", "EMBEDDING_LOOKUP"),
)
_INPUTS = {**dict.fromkeys(_TWO, 2), "TRANSPOSE_CONV": 3, "SELECT": 3, "SELECT_V2": 3}
"""How many inputs an operator has at least."""


def tflite_to_onnx(data: bytes, name: str = "") -> Any:
    """The ONNX model of a TFLite file. Inputs that are images are NCHW; outputs have the axes of the file."""
    try:
        return _converted(_without_tail(read_tflite(data)), name)
    except AnynpuError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:  # shapes and options that contradict each other
        raise ModelFormatError(
            f"the TFLite file is damaged: its operators do not fit their tensors ({str(error)[:200]})",
            hint="convert the model again",
        ) from error


def _converted(model: TfliteModel, name: str) -> Any:
    builder = Builder(model)
    helper = onnx().helper
    inputs = []
    for index in dict.fromkeys(model.inputs):
        if model.tensors[index].is_constant:
            continue
        entry, shape = builder.give_input(index, NCHW if _is_picture(builder, index) else PLAIN)
        inputs.append(helper.make_tensor_value_info(entry, _kind(model, index), shape))
    for operator in model.operators:
        if id(operator) not in builder.done:
            _convert(builder, operator)
    outputs = []
    for index in dict.fromkeys(model.outputs):
        made, target = builder.read(index), model.tensors[index].name
        if made != target:
            builder.node("Identity", [made], [target])
            if made in builder.ranges:
                builder.ranges.setdefault(target, builder.ranges[made])
        outputs.append(helper.make_tensor_value_info(target, _kind(model, index), model.tensors[index].shape))
    graph = helper.make_graph(builder.nodes, name or "tflite", inputs, outputs, builder.initializers)
    annotate(graph, KnownScales(builder.ranges, builder.weights))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
    proto.producer_name = "TFLite"
    proto.doc_string = model.description
    return proto


def _convert(builder: Builder, operator: TfliteOperator) -> None:
    rule = _RULES.get(operator.kind)
    if rule is None:
        raise builder.refusal(operator, f"TFLite's operator {operator.kind} is not understood")
    least = _INPUTS.get(operator.kind, 1)
    if len(operator.inputs) < least or any(index < 0 for index in operator.inputs[:least]):
        raise builder.refusal(operator, f"it has {len(operator.inputs)} inputs")
    rule(builder, operator)


def _kind(model: TfliteModel, index: int) -> int:
    return int(onnx().helper.np_dtype_to_tensor_dtype(np.dtype(model.tensors[index].dtype)))


def _is_picture(builder: Builder, index: int) -> bool:
    """Whether an input of four axes comes to an operator with windows before its axes matter."""
    waiting, seen = [index], set()
    while waiting:
        current = waiting.pop()
        if current in seen or builder.rank(current) != 4:
            continue
        seen.add(current)
        for reader in builder.readers.get(current, []):
            if reader.kind in SPATIAL:
                return True
            if reader.kind in AGNOSTIC:
                waiting += reader.outputs
    return False


def _without_tail(model: TfliteModel) -> TfliteModel:
    """The network before an operator that finishes detections: its inputs become results."""
    last = model.operators[-1] if model.operators else None
    if last is None or last.kind not in _TAILS:
        if not model.operators:
            raise CompileError("the TFLite model has no operators", hint="convert the model again")
        return model
    outputs = tuple(index for index in last.inputs if index >= 0 and not model.tensors[index].is_constant)
    names = ", ".join(f"'{model.tensors[index].name}'" for index in outputs)
    _log.warning(
        "%s runs on no NPU: the model ends before it, with the outputs %s; do the rest in your program", last.kind, names
    )
    return TfliteModel(model.description, model.tensors, model.operators[:-1], model.inputs, outputs)
