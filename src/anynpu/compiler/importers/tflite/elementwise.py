"""TFLite's operators that work on one element at a time, or along an axis: they take pictures in the form that is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...._util.optional import onnx
from .builder import NCHW, PLAIN, Builder
from .fused import emit
from .model import TfliteOperator

__all__ = ["AGNOSTIC"]

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
    # ONNX cuts quotients of whole numbers off towards zero: where something is left that has the other sign, one less is meant
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
    """Codes mean the same numbers, within their range: where they begin in the middle of a network, what is beyond is cut off."""
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
"""Operators that do not mind how pictures lie."""
