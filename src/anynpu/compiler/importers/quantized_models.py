"""Models that are quantized already: QuantizeLinear and DequantizeLinear, integer operators (QLinearConv), annotated scales."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError
from ..graph import Graph, Node

# Models that are quantized already, as the float models that they stand for: the compiler quantizes them again.
#
# Beside every quantized tensor stands the real one. Nodes on quantized values (MatMulInteger, a MaxPool of quantized values) get
# a float node that makes the real tensor from real ones, and what has no reader any more is dropped. Those of the format
# QOperator were written between pairs of QuantizeLinear and DequantizeLinear before
# (:mod:`anynpu.compiler.importers.quantized_models`). A node that is not understood keeps reading quantized values, so that a
# model is at worst computed as it is. Where quantized values cannot be negative a clip stays: quantizers leave Relu out there.


_SAME_VALUES = (
    "Flatten",
    "Gather",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
_SIGNED = ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Sub", "Sum")
_MICROSOFT = "com.microsoft"


def dequantize(graph: Graph) -> bool:
    """Let a graph compute in float what it computes in quantized values, in place; False where nothing is quantized."""
    marks = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "ConvInteger", "MatMulInteger")
    if not any(node.op.startswith(marks) for node in graph.nodes):
        return False
    try:
        _Dequantizing(graph).run()
    except (IndexError, TypeError, ValueError) as error:  # scales that fit nothing, operators without their inputs
        raise CompileError(f"the quantized model makes no sense: {error}", hint="quantize the model again") from error
    graph.remove_unused()
    return True


class _Dequantizing:
    """One walk through the graph in the order of execution.

    ``_real`` has the real tensor of each quantized one. ``_sums`` are results of integer products as (real tensor, scale): the real tensor
    is what the integers mean, once they are multiplied by the scale that DynamicQuantizeLinear found; ``_factors`` are such scales times a
    constant.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[Node] = []
        self._real: dict[str, str] = {}
        self._codes: dict[str, tuple[str, str]] = {}
        self._sums: dict[str, tuple[str, str]] = {}
        self._factors: dict[str, tuple[str, str]] = {}
        self._dynamic: dict[str, tuple[str, str]] = {}
        self._alias: dict[str, str] = {}
        self._makers: dict[str, Node] = {}
        self._numbers = itertools.count()

    def run(self) -> None:
        outputs = set(self._graph.outputs)
        for node in self._graph.nodes:
            node.inputs = [self._alias.get(name, name) for name in node.inputs]
            before = len(self._nodes)
            replaced = self._visit(node)
            if replaced is not None:
                result = node.outputs[0]
                if result in outputs:
                    self._nodes.append(Node("Identity", [replaced], [result]))
                else:
                    self._alias[result] = replaced
                    continue
            elif node.outputs[0] in outputs and node.outputs[0] in self._codes and len(self._nodes) > before:
                self._nodes.append(
                    Node("QuantizeLinear", [self._real[node.outputs[0]], *self._codes[node.outputs[0]]], node.outputs)
                )
            else:
                self._nodes.append(node)
            self._makers.update(dict.fromkeys(node.outputs, self._nodes[-1]))
        self._graph.nodes = self._nodes

    # pieces

    def _name(self, stem: str) -> str:
        return self._graph.free_name(f"{stem}.real{next(self._numbers)}")

    def _node(self, op: str, inputs: Sequence[str], stem: str, **attributes: object) -> str:
        result = self._name(stem)
        made = Node(op, list(inputs), [result], dict(attributes), f"{stem}.{op}")
        self._nodes.append(made)
        self._makers[result] = made
        return result

    def _constant(self, name: str) -> Array | None:
        return self._graph.constants.get(name) if name else None

    def _weights(self, codes: str, scale: str, zero: str, axis: int) -> str | None:
        """A constant of quantized values as real numbers; with an empty *scale*, in units of it."""
        value, scales, zeros = self._constant(codes), self._constant(scale), self._constant(zero)
        if value is None or (scale and scales is None) or (zero and zeros is None):
            return None
        shape = [1] * value.ndim

        def spread(numbers: Array) -> Array:
            if numbers.size > 1:
                shape[axis % value.ndim] = numbers.size
            result: Array = numbers.astype(np.float64).reshape(shape if numbers.size > 1 else [1] * value.ndim)
            return result

        real = value.astype(np.float64)
        if zeros is not None:
            real = real - spread(zeros.reshape(-1))
        if scales is not None:
            real = real * spread(scales.reshape(-1))
        return self._graph.add_constant(self._name(codes), real.astype(np.float32))

    def _operand(self, codes: str, scale: str, zero: str) -> str | None:
        """The real tensor of an input: one that is known, a constant, or an input of the model that is quantized values."""
        if codes in self._real:
            return self._real[codes]
        if self._constant(codes) is not None:
            return self._weights(codes, scale, zero, 0)
        if codes in self._graph.inputs and self._constant(scale) is not None:
            self._real[codes] = self._node("DequantizeLinear", [codes, scale, *([zero] if zero else [])], codes)
            return self._real[codes]
        return None

    def _settle(self, codes: str, real: str, scale: str, zero: str) -> None:
        """Note what quantized values mean; they cannot mean negative numbers where the zero point is the smallest code."""
        scales, zeros = self._constant(scale), self._constant(zero)
        maker = self._makers.get(real)
        whole = zeros is not None and zeros.dtype.kind in "iu"
        if whole and zeros is not None and scales is not None and zeros.size == 1 == scales.size and maker is not None:
            limits = np.iinfo(zeros.dtype)
            if int(zeros.reshape(-1)[0]) == limits.min and maker.op in _SIGNED:
                high = np.float32((limits.max - limits.min) * float(scales.reshape(-1)[0]))
                if self._graph.opset < 11:
                    real = self._node("Clip", [real], codes, min=0.0, max=float(high))
                else:
                    limits_of_clip = (("low", np.float32(0)), ("high", high))
                    ends = [self._graph.add_constant(f"{codes}.{end}", np.array(value)) for end, value in limits_of_clip]
                    real = self._node("Clip", [real, *ends], codes)
        self._real[codes] = real
        if scale:
            self._codes[codes] = (scale, zero)

    # nodes

    def _visit(self, node: Node) -> str | None:
        """Make the real tensors of a node's results; a tensor that takes the place of the node's own result, if there is one."""
        visit = {
            "QuantizeLinear": self._quantize,
            "DynamicQuantizeLinear": self._dynamic_quantize,
            "ConvInteger": self._integers,
            "MatMulInteger": self._integers,
        }.get(node.op)
        if visit is not None and node.domain in ("", _MICROSOFT):
            visit(node)
            return None
        if node.op == "DequantizeLinear":
            return self._known(node)
        if node.domain == _MICROSOFT:
            return self._to_float(node) if node.op in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat") else None
        if node.domain:
            return None
        if node.op == "Cast" and node.inputs[0] in self._sums:
            self._sums[node.outputs[0]] = self._sums[node.inputs[0]]
        elif node.op == "Mul" and len(node.inputs) == 2:
            return self._scaled(node)
        elif node.op in _SAME_VALUES and node.inputs and node.inputs[0] in self._real and not any(node.outputs[1:]):
            self._move(node)
        return None

    def _quantize(self, node: Node) -> None:
        scales = self._constant(node.inputs[1])
        if scales is not None and scales.size == 1 and self._constant(node.inputs[0]) is None:
            self._settle(node.outputs[0], node.inputs[0], node.inputs[1], (*node.inputs, "")[2])

    def _known(self, node: Node) -> str | None:
        """What the quantized values of a node stand for; a constant's are taken here, since old operator sets have no scale for
        each channel."""
        codes, scale, zero = (*node.inputs, "", "")[:3]
        value, scales = self._constant(codes), self._constant(scale)
        if value is None or scales is None or node.attribute("block_size", 0) or scales.ndim > 1:
            return self._real.get(codes)
        if value.dtype not in (np.int8, np.uint8, np.int32) or scales.dtype != np.float32:
            return None
        return self._weights(codes, scale, zero, int(node.attribute("axis", 1)))

    def _dynamic_quantize(self, node: Node) -> None:
        self._real[node.outputs[0]] = node.inputs[0]
        self._dynamic[node.outputs[0]] = (node.outputs[1], node.outputs[2])
        self._factors[node.outputs[1]] = (node.outputs[1], "")

    def _integers(self, node: Node) -> None:
        """A product of quantized values that DynamicQuantizeLinear made with constants: what it means, in units of the scale."""
        codes, weights = node.inputs[:2]
        zero, weight_zero = (*node.inputs[2:], "", "")[:2]
        found = self._dynamic.get(codes)
        real = self._weights(weights, "", weight_zero, 0 if node.op == "ConvInteger" else -1)
        if found is None or zero not in ("", found[1]) or real is None:
            return
        made = self._node(node.op.removesuffix("Integer"), [self._real[codes], real], node.outputs[0], **node.attributes)
        self._sums[node.outputs[0]] = (made, found[0])

    def _scaled(self, node: Node) -> str | None:
        """A product of scales, or of integers with their scale."""
        for one, other in (node.inputs, node.inputs[::-1]):
            if one in self._factors and self._constant(other) is not None and not self._factors[one][1]:
                self._factors[node.outputs[0]] = (self._factors[one][0], other)
                return None
            if one in self._sums and other in self._factors and self._sums[one][1] == self._factors[other][0]:
                real, constant = self._sums[one][0], self._factors[other][1]
                return self._node("Mul", [real, constant], node.outputs[0]) if constant else real
        return None

    def _to_float(self, node: Node) -> str | None:
        inputs = [*node.inputs, *[""] * 7]
        if node.op == "DynamicQuantizeMatMul":
            data, weights, bias = inputs[0], self._weights(inputs[1], inputs[2], inputs[3], -1), inputs[4]
        else:
            known = self._operand(inputs[0], inputs[2], inputs[4])
            if known is None:
                return None
            data, weights, bias = known, self._weights(inputs[1], inputs[3], inputs[5], -1), inputs[6]
        if weights is None:
            return None
        made = self._node("MatMul", [data, weights], node.outputs[0])
        return self._node("Add", [made, bias], node.outputs[0]) if bias else made

    def _move(self, node: Node) -> None:
        made = self._node(node.op, [self._real[node.inputs[0]], *node.inputs[1:]], node.outputs[0], **node.attributes)
        self._real[node.outputs[0]] = made
        for table in (self._codes, self._dynamic):
            if node.inputs[0] in table:
                table[node.outputs[0]] = table[node.inputs[0]]


# Operators that compute on quantized values (QLinearConv, QLinearMatMul, QGemm and their like), written as what they mean.
#
# onnxruntime's quantizer writes such models as its format QOperator. Each operator becomes the float one between
# DequantizeLinear and QuantizeLinear with the same scales, so that there is one form of quantized models to understand.
# Operators that only move quantized values do the same to real numbers; one that is not known keeps reading quantized values.


_UNARY = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearAveragePool": "AveragePool",
    "QLinearSoftmax": "Softmax",
}
_BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_MOVES = {
    *("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GlobalMaxPool", "Identity", "MaxPool", "Pad", "Reshape"),
    *("Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_LEFT_OUT = {"channels_last", "opset"}
"""Attributes that only the operators on quantized values have."""
_LONGEST = 8
"""Operators in a row that move a constant of quantized values: each DequantizeLinear behind them gets copies of its own."""


def between_pairs(proto: Any) -> None:
    """Write every operator on quantized values as a float one between pairs of QuantizeLinear and DequantizeLinear; in place.

    :raises CompileError: an operator lacks inputs
    """
    marks = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLSTM")
    if not any(node.op_type.startswith(marks) for node in proto.graph.node):
        return
    try:
        _Writing(proto).run()
    except (IndexError, ValueError) as error:
        raise CompileError(f"the quantized model makes no sense: {error}", hint="quantize the model again") from error


class _Writing:
    """One walk over the nodes; ``_scales`` has scale and zero point of each tensor that is known to be quantized values."""

    def __init__(self, proto: Any) -> None:
        package, graph = onnx(), proto.graph
        self._graph = graph
        self._stored = {entry.name: entry for entry in graph.initializer}
        self._stored |= {
            node.output[0]: node.attribute[0].t
            for node in graph.node
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
        }
        self._package = package
        self._nodes: list[Any] = []
        self._scales: dict[str, tuple[str, str]] = {}
        self._moved: dict[str, Any] = {}
        self._reals: dict[tuple[Any, ...], str] = {}
        self._numbers = itertools.count(1)
        self._names = {name for node in graph.node for name in (*node.input, *node.output)} | set(self._stored)

    def run(self) -> None:
        for node in list(self._graph.node):
            if not self._written(node):
                self._nodes.append(node)
        copies = [type(node).FromString(node.SerializeToString()) for node in self._nodes]
        del self._graph.node[:]
        self._graph.node.extend(copies)

    # pieces

    def _name(self, stem: str) -> str:
        name = stem
        while name in self._names:
            name = f"{stem}.{next(self._numbers)}"
        self._names.add(name)
        return name

    def _constant(self, name: str) -> Array | None:
        if name not in self._stored:
            return None
        result: Array = np.asarray(self._package.numpy_helper.to_array(self._stored[name]))
        return result

    def _add_constant(self, stem: str, value: Array) -> str:
        name = self._name(stem)
        self._graph.initializer.append(self._package.numpy_helper.from_array(value, name))
        self._stored[name] = self._graph.initializer[-1]
        return name

    def _node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, like: Any = None, **attributes: Any
    ) -> None:
        """Add a node; with the attributes of the one that it is *like*."""
        made = self._package.helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)
        if like is not None:
            made.attribute.extend(entry for entry in like.attribute if entry.name not in _LEFT_OUT)
        self._nodes.append(made)

    def _real(self, codes: str, scale: str, zero: str = "", *, axis: int | None = None) -> str:
        """The real numbers of quantized values."""
        key = codes, scale, zero, axis
        if key not in self._reals:
            self._reals[key] = result = self._name(f"{codes}.real")
            if self._taken_before(codes, scale, zero, result):
                return result
            chosen = {} if axis is None else {"axis": axis}
            self._node("DequantizeLinear", [codes, scale, *([zero] if zero else [])], [result], result, **chosen)
        return self._reals[key]

    def _rounded(self, real: str, codes: str, scale: str, zero: str = "") -> None:
        """The quantized values of real numbers."""
        self._node("QuantizeLinear", [real, scale, *([zero] if zero else [])], [codes], f"{codes}.codes")
        self._scales[codes] = (scale, zero)

    def _bias(self, codes: str, scale: str, weight_scale: str) -> str:
        """A bias is in units of the sum of products."""
        one, other = self._constant(scale), self._constant(weight_scale)
        if one is None or other is None:
            product = self._name(f"{codes}.scale")
            self._node("Mul", [scale, weight_scale], [product], product)
            return self._real(codes, product, axis=0)
        product = self._add_constant(f"{codes}.scale", (one.reshape(-1) * other.reshape(-1)).reshape(other.shape))
        return self._real(codes, product, axis=0 if other.size > 1 else None)

    def _wide(self, codes: str, scale: str, zero: str, axis: int) -> str:
        """Weights, whose scales may be one for each entry of an axis."""
        scales, rank = self._constant(scale), len(self._stored[codes].dims) if codes in self._stored else 0
        several = scales is not None and scales.size > 1
        return self._real(codes, scale, zero, axis=axis % rank if several and rank else None)

    # nodes

    def _written(self, node: Any) -> bool:
        """Write a node in another way; False where it stays as it is."""
        if node.op_type == "QuantizeLinear":
            self._scales[node.output[0]] = (node.input[1], (*node.input, "")[2])
            return False
        if node.op_type == "DequantizeLinear":
            codes, scale, zero = [*_exactly(node, 2), *node.input[2:], ""][:3]
            return self._taken_before(codes, scale, zero, node.output[0])
        if node.domain in ("", "ai.onnx"):
            if node.op_type == "QLinearConv":
                return self._convolution(node)
            if node.op_type == "QLinearMatMul":
                return self._product(node)
            if node.op_type in _MOVES and node.input:
                return self._moved_real(node)
            return node.op_type == "ArgMax" and self._largest(node)
        return node.domain == _MICROSOFT and self._microsoft(node)

    def _result(self, node: Any, op: str, inputs: Sequence[str], scale: str, zero: str) -> bool:
        real = self._name(f"{node.output[0]}.real")
        self._node(op, inputs, [real], node.name, node)
        self._rounded(real, node.output[0], scale, zero)
        return True

    def _convolution(self, node: Any) -> bool:
        x, scale, zero, weights, weight_scale, weight_zero, result_scale, result_zero = _exactly(node, 8)
        inputs = [self._real(x, scale, zero), self._wide(weights, weight_scale, weight_zero, 0)]
        if len(node.input) > 8 and node.input[8]:
            inputs.append(self._bias(node.input[8], scale, weight_scale))
        return self._result(node, "Conv", inputs, result_scale, result_zero)

    def _product(self, node: Any) -> bool:
        x, scale, zero, weights, weight_scale, weight_zero, *ends = _exactly(node, 8)
        inputs = [self._real(x, scale, zero), self._wide(weights, weight_scale, weight_zero, -1)]
        return self._result(node, "MatMul", inputs, ends[0], ends[1])

    def _microsoft(self, node: Any) -> bool:
        if _attribute(node, "channels_last", 0):
            return False
        if node.op_type in _UNARY:
            ends = [*_exactly(node, 4), *node.input[4:], ""]
            return self._result(node, _UNARY[node.op_type], [self._real(*ends[:3])], *ends[3:5])
        if node.op_type in _BINARY:
            ends = [*_exactly(node, 7), *node.input[7:], ""]
            return self._result(node, _BINARY[node.op_type], [self._real(*ends[:3]), self._real(*ends[3:6])], *ends[6:8])
        if node.op_type == "QLinearWhere":
            ends = _exactly(node, 9)
            return self._result(node, "Where", [ends[0], self._real(*ends[1:4]), self._real(*ends[4:7])], *ends[7:])
        if node.op_type == "QLinearConcat":
            scale, zero, *rest = node.input
            if not rest or len(rest) % 3:
                raise ValueError(f"{node.name or node.op_type} has {len(node.input)} inputs")
            parts = [self._real(*names) for names in zip(rest[::3], rest[1::3], rest[2::3], strict=True)]
            return self._result(node, "Concat", parts, scale, zero)
        if node.op_type == "DynamicQuantizeLSTM":
            return self._lstm(node)
        return node.op_type == "QGemm" and self._gemm(node)

    def _gemm(self, node: Any) -> bool:
        x, scale, zero, weights, weight_scale, weight_zero = _exactly(node, 6)
        bias, result_scale, result_zero = [*node.input[6:], "", "", ""][:3]
        if _attribute(node, "alpha", 1.0) != 1.0:
            return False
        columns = 0 if _attribute(node, "transB", 0) else 1
        inputs = [self._real(x, scale, zero), self._wide(weights, weight_scale, weight_zero, columns)]
        if bias:
            inputs.append(self._bias(bias, scale, weight_scale))
        if not result_scale:
            self._node("Gemm", inputs, node.output, node.name, node)
            return True
        return self._result(node, "Gemm", inputs, result_scale, result_zero)

    def _lstm(self, node: Any) -> bool:
        """An LSTM whose weights are quantized values, with the axes of each matrix the other way round; what it reads is rounded
        as it runs."""
        inputs = _exactly(node, 12)
        for place, (scale, zero) in ((1, inputs[8:10]), (2, inputs[10:12])):
            codes, scales, zeros = (self._constant(name) for name in (inputs[place], scale, zero))
            if codes is None or scales is None or zeros is None:
                return False
            ends = [entry.reshape(len(codes) if entry.size > 1 else 1, 1, -1) for entry in (scales, zeros)]
            real = (codes.astype(np.float64) - ends[1]) * ends[0]
            inputs[place] = self._add_constant(f"{inputs[place]}.real", real.transpose(0, 2, 1).astype(np.float32))
        self._node("LSTM", inputs[:8], node.output, node.name, node)
        return True

    def _largest(self, node: Any) -> bool:
        """The largest code is that of the largest number."""
        if node.input[0] not in self._scales:
            return False
        self._node("ArgMax", [self._real(node.input[0], *self._scales[node.input[0]])], node.output, node.name, node)
        return True

    def _moved_real(self, node: Any) -> bool:
        """An operator that moves quantized values moves what they mean."""
        codes = node.input[0]
        if (codes in self._stored or codes in self._moved) and node.op_type not in ("Pad", "Resize"):
            self._moved[node.output[0]] = node
        if codes not in self._scales or (node.op_type == "MaxPool" and len(node.output) > 1):
            return False
        ends = self._scales[codes]
        others = list(node.input[1:])
        if node.op_type == "Pad" and _attribute(node, "mode", b"constant") == b"constant":
            if len(node.input) < 2 or (len(others) > 1 and others[1] not in self._stored):
                return False
            others[1:2] = [self._padding(others[1] if len(others) > 1 else "", *ends)]
        results = [self._name(f"{name}.real") for name in node.output]
        self._node(node.op_type, [self._real(codes, *ends), *others], results, node.name, node)
        for real, name in zip(results, node.output, strict=True):
            self._rounded(real, name, *ends)
        return True

    def _padding(self, value: str, scale: str, zero: str) -> str:
        """What a code beside the image stands for; without one it is 0."""
        if not value:
            point = self._constant(zero) if zero else None
            value = self._add_constant("padding", np.zeros((), np.uint8 if point is None else point.dtype))
        return self._real(value, scale, zero)

    def _taken_before(self, codes: str, scale: str, zero: str, result: str) -> bool:
        """A part of a constant of quantized values is the part of a real constant: a table of words, out of which Gather takes some."""
        path: list[Any] = []
        name = codes
        while name in self._moved and len(path) < _LONGEST:
            path.append(self._moved[name])
            name = path[-1].input[0]
        scales = self._constant(scale)
        if not path or name in self._moved or scales is None or scales.size != 1 or any(len(entry.output) > 1 for entry in path):
            return False
        real = self._real(name, scale, zero)
        for entry in reversed(path):
            made = result if entry is path[0] else self._name(f"{entry.output[0]}.real")
            self._node(entry.op_type, [real, *entry.input[1:]], [made], entry.name, entry)
            real = made
        return True


def _attribute(node: Any, name: str, default: Any) -> Any:
    value = onnx().helper.get_attribute_value
    return next((value(entry) for entry in node.attribute if entry.name == name), default)


def _exactly(node: Any, count: int) -> list[str]:
    """The first inputs of a node, all of which it needs."""
    if len(node.input) < count:
        raise ValueError(f"{node.name or node.op_type} has {len(node.input)} inputs, and needs {count}")
    return list(node.input[:count])


# Models that are quantized already, in ONNX's form: QuantizeLinear and DequantizeLinear around what is computed in integers.
#
# Quantization-aware training, onnxruntime, NNCF and torch.ao write such models. Here they are taken apart: a float model
# without these nodes, the scale and zero point of every tensor, and the quantized values of the weights, which the compiler keeps.


_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
MOVES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Pad", "MaxPool"}
"""Operators that move quantized values: their results are not rounded again."""

_SHIFTS = {np.dtype(np.int8): 0, np.dtype(np.uint8): 128}
_NARROW = {"int4", "uint4", "int2", "uint2"}
"""Types of weights that fit into int8 as they are."""


@dataclass(frozen=True, eq=False)
class QdqWeights:
    """A constant as quantized values.

    :ivar codes: int8; for biases int32
    :ivar scales: one, or one for each entry of *axis*
    :ivar zeros: zero points, as many
    :ivar shift: what was taken from the quantized values and zero points of the model to make them int8
    """

    codes: Array
    scales: Array
    zeros: Array
    axis: int
    shift: int = 0

    @property
    def values(self) -> Array:
        """The numbers that the quantized values stand for."""
        shape = [1] * self.codes.ndim
        if self.scales.size > 1:
            shape[self.axis] = -1
        scales, zeros = (entry.reshape(shape) if self.codes.ndim else entry.reshape(()) for entry in (self.scales, self.zeros))
        result: Array = ((self.codes.astype(np.int64) - zeros) * scales.astype(np.float64)).astype(np.float32)
        return result


@dataclass(frozen=True, eq=False)
class Qdq:
    """A quantized model, taken apart.

    :ivar model: the model in float
    :ivar ranges: scale and int8 zero point of tensors by name
    :ivar weights: quantized values of constants, by the name of the constant in *model*
    :ivar rounded: tensors of *ranges* that are rounded there: those that only move quantized values are not
    :ivar refusal: why a model with DequantizeLinear nodes was not taken apart
    """

    model: Any
    ranges: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    weights: Mapping[str, QdqWeights] = field(default_factory=dict)
    rounded: frozenset[str] = frozenset()
    refusal: CompileError | None = None


def taken_apart(proto: Any) -> Qdq:
    """A model, taken apart where it is quantized in a way that has a meaning here, else as it is."""
    if not any(node.op_type.startswith((_DEQUANTIZE, "QLinear")) for node in proto.graph.node):
        return Qdq(proto)
    try:
        return split_qdq(proto)
    except CompileError as error:
        return Qdq(proto, refusal=error)


def split_qdq(proto: Any) -> Qdq:
    """Take a model apart; the one that is given stays as it is.

    :raises CompileError: the model is quantized in a way that has no meaning here
    """
    return _Splitter(proto).run()


class _Splitter:
    def __init__(self, proto: Any) -> None:
        package = onnx()
        self._proto = type(proto)()
        self._proto.CopyFrom(proto)
        between_pairs(self._proto)
        graph = self._proto.graph
        to_array = package.numpy_helper.to_array
        self._constants: dict[str, Array] = {entry.name: to_array(entry) for entry in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self._constants[node.output[0]] = to_array(node.attribute[0].t)
        self._made = {name: node for node in graph.node for name in node.output}
        self._inputs = {entry.name for entry in graph.input} - set(self._constants)
        self._outputs = {entry.name for entry in graph.output}
        self._ranges: dict[str, tuple[float, int]] = {}
        self._weights: dict[str, QdqWeights] = {}
        self._renamed: dict[str, str] = {}
        self._copied: dict[str, str] = {}
        self._pairs: dict[str, set[tuple[str, ...]]] = {}
        for node in graph.node:
            if node.op_type == _QUANTIZE:
                self._pairs.setdefault(node.input[0], set()).add(self._text(node))

    def run(self) -> Qdq:
        package, graph = onnx(), self._proto.graph
        kept = []
        for node in graph.node:
            if node.op_type == _QUANTIZE and node.output[0] not in self._outputs:
                continue
            if node.op_type == _DEQUANTIZE:
                kept += self._dequantized(node)
            elif node.op_type == _QUANTIZE:
                raise self._unfit(node, "an output of the model is quantized values")
            else:
                kept.append(node)
        for node in kept:
            for index, name in enumerate(node.input):
                node.input[index] = self._renamed.get(name, name)
        used = {name for node in kept for name in node.input} | self._outputs
        initializers = [entry for entry in graph.initializer if entry.name in used and entry.name not in self._weights]
        initializers += [package.numpy_helper.from_array(entry.values, name) for name, entry in self._weights.items()]
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in initializers]
        nodes = [type(node).FromString(node.SerializeToString()) for node in kept]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.initializer.extend(copies)
        return Qdq(self._proto, self._ranges, self._weights, self._rounded())

    def _text(self, node: Any) -> tuple[str, ...]:
        """Scale and zero point of a node, to report whether another one has the same."""
        return tuple(
            f"{self._constants[name].dtype}{self._constants[name].tobytes()!r}" if name in self._constants else name
            for name in node.input[1:3]
        )

    def _rounded(self) -> frozenset[str]:
        """Tensors whose quantized values differ from those of the tensor that they are made of."""

        def moves(name: str) -> bool:
            maker = self._made.get(name)
            source = self._copied.get(name)
            if source is None and maker is not None and maker.op_type in MOVES:
                source = self._renamed.get(maker.input[0], maker.input[0])
            return source is not None and self._ranges.get(source) == self._ranges[name]

        return frozenset(name for name in self._ranges if not moves(name))

    def _dequantized(self, node: Any) -> list[Any]:
        """What stands in place of a node that dequantizes."""
        source, result = node.input[0], node.output[0]
        if source in self._constants:
            self._weights[result] = self._constant(node, self._constants[source])
            return []
        maker = self._made.get(source)
        if maker is None or maker.op_type != _QUANTIZE:
            raise self._unfit(node, "quantized values come from somewhere else than QuantizeLinear")
        origin = maker.input[0]
        if origin in self._constants:
            self._weights[result] = self._made_codes(maker, self._constants[origin])
            return []
        origin = self._renamed.get(origin, origin)
        scales, zeros, _ = self._parameters(maker)
        if scales.size != 1:
            raise self._unfit(maker, "an activation has a scale for each channel")
        shift = _SHIFTS.get(zeros.dtype)
        if shift is None:
            raise self._unfit(maker, f"an activation is {zeros.dtype.name}")
        read_scales, read_zeros, _ = self._parameters(node)
        if not (np.array_equal(read_scales.ravel(), scales.ravel()) and np.array_equal(read_zeros.ravel(), zeros.ravel())):
            raise self._unfit(node, "quantized values are read with another scale or zero point than they were written with")
        pair = float(scales.reshape(())), int(zeros.reshape(())) - shift
        if len(self._pairs[maker.input[0]]) > 1:
            return [self._made_again(origin, node, pair)]
        if (
            self._ranges.setdefault(origin, pair) != pair or result in self._outputs
        ):  # its values are rounded once more, or copied
            self._ranges[result], self._copied[result] = pair, origin
            return [onnx().helper.make_node("Identity", [origin], [result], name=node.name)]
        self._renamed[result] = origin
        return []

    def _made_again(self, origin: str, node: Any, pair: tuple[float, int]) -> Any:
        """What makes a tensor that is rounded in several ways, once more, for one of them."""
        result = node.output[0]
        self._ranges[result] = pair
        maker = self._made.get(origin)
        if maker is None or len(maker.output) > 1 or maker.op_type in (_QUANTIZE, _DEQUANTIZE):
            return onnx().helper.make_node("Identity", [origin], [result], name=node.name)
        copy = type(maker)()
        copy.CopyFrom(maker)
        copy.output[0], copy.name = result, f"{maker.name}@{node.name}" if maker.name else ""
        return copy

    def _parameters(self, node: Any, shape: tuple[int, ...] | None = None) -> tuple[Array, Array, int]:
        """Scales, zero points and axis of a node.

        :param shape: of the constant that they are for; None for an activation
        """
        names = [*node.input, ""]
        try:
            scales = np.asarray(self._constants[names[1]], np.float32)
            zeros = self._constants[names[2]] if names[2] else np.zeros(scales.shape, _type_without_zero(node))
        except KeyError:
            raise self._unfit(node, "its scale is computed") from None
        axis = next((entry.i for entry in node.attribute if entry.name == "axis"), 1)
        if any(entry.name == "block_size" and entry.i for entry in node.attribute) or scales.ndim > 1:
            raise self._unfit(node, "it has a scale for each block")
        if not scales.size or zeros.size not in (1, scales.size):
            raise self._unfit(node, f"it has {scales.size} scales and {zeros.size} zero points")
        if shape is not None and scales.size > 1 and not (-len(shape) <= axis < len(shape) and shape[axis] == scales.size):
            raise self._unfit(node, f"it has {scales.size} scales along axis {axis} of {list(shape)}")
        return scales, zeros, int(axis)

    def _constant(self, node: Any, codes: Array) -> QdqWeights:
        scales, zeros, axis = self._parameters(node, codes.shape)
        if len(node.input) < 3 or not node.input[2]:
            zeros = np.zeros(scales.shape, codes.dtype)
        shift = _SHIFTS.get(codes.dtype, 0)
        kind = np.int8 if codes.dtype in _SHIFTS or codes.dtype.name in _NARROW else codes.dtype
        return QdqWeights(
            (codes.astype(np.int64) - shift).astype(kind), scales.ravel(), zeros.astype(np.int64).ravel() - shift, axis, shift
        )

    def _made_codes(self, node: Any, values: Array) -> QdqWeights:
        """A constant that is quantized when the model runs."""
        scales, zeros, axis = self._parameters(node, values.shape)
        shift = _SHIFTS.get(zeros.dtype)
        if shift is None:
            raise self._unfit(node, f"a constant is {zeros.dtype.name}")
        shape = [1] * values.ndim
        if scales.size > 1:
            shape[axis] = -1
        points = zeros.astype(np.int64).reshape(-1) - shift
        wide = scales.reshape(shape) if values.ndim else scales.reshape(())
        codes = np.rint(values.astype(np.float32) / wide) + (points.reshape(shape) if values.ndim else points.reshape(()))
        return QdqWeights(np.clip(codes, -128, 127).astype(np.int8), scales.ravel(), points, axis, shift)

    @staticmethod
    def _unfit(node: Any, why: str) -> CompileError:
        return CompileError(
            f"this quantized model cannot be compiled with its own scales: {why}",
            node=node.name or node.output[0],
            operator=node.op_type,
            hint="quantize with int8 or uint8 activations of one scale each and float inputs and outputs, or compile with calibration data "
            "(dataset=..., --dataset FOLDER), which finds new scales",
        )


def _type_without_zero(node: Any) -> np.dtype[Any]:
    """The type of the quantized values of a node that names no zero point, whose type it would be."""
    wanted = next((entry.i for entry in node.attribute if entry.name == "output_dtype"), 0)
    return np.dtype(onnx().helper.tensor_dtype_to_np_dtype(wanted)) if wanted else np.dtype(np.uint8)


# Scales that a model brings along, in ONNX's own place for them: the quantization annotations of a graph.


_SCALE, _ZERO, _WEIGHTS = "SCALE_TENSOR", "ZERO_POINT_TENSOR", "WEIGHT_SCALE_TENSOR"


@dataclass(frozen=True, eq=False)
class KnownScales:
    """What is known of a quantized network.

    :ivar ranges: scale and int8 zero point of tensors
    :ivar weights: scales of the weights, one or per output channel, by the tensor that their node makes
    """

    ranges: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)


def annotate(graph: Any, scales: KnownScales) -> None:
    """Write scales into an ONNX graph; they become constants of it."""
    entries: dict[str, dict[str, Any]] = {}
    for name, (scale, zero) in scales.ranges.items():
        entries.setdefault(name, {}).update({_SCALE: np.float32(scale), _ZERO: np.int8(zero)})
    for name, values in scales.weights.items():
        entries.setdefault(name, {})[_WEIGHTS] = np.asarray(values, np.float32)
    helper = onnx().numpy_helper
    for index, (name, entry) in enumerate(entries.items()):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        for key, value in entry.items():
            constant = f"anynpu.{key.lower()}.{index}"
            graph.initializer.append(helper.from_array(np.asarray(value), constant))
            annotation.quant_parameter_tensor_names.add(key=key, value=constant)


def known_scales(proto: Any) -> KnownScales:
    """The scales with which an ONNX model is annotated: those of tensors that have just one, and those of weights."""
    annotations = proto.graph.quantization_annotation
    if not annotations:
        return KnownScales()
    wanted = {entry.value for annotation in annotations for entry in annotation.quant_parameter_tensor_names}
    helper = onnx().numpy_helper
    values = {tensor.name: helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name in wanted}
    ranges: dict[str, tuple[float, int]] = {}
    weights: dict[str, Array] = {}
    for annotation in annotations:
        names = {entry.key: entry.value for entry in annotation.quant_parameter_tensor_names}
        scale, zero, by_channel = (values.get(names.get(key, "")) for key in (_SCALE, _ZERO, _WEIGHTS))
        if by_channel is not None and _sound(by_channel):
            weights[annotation.tensor_name] = by_channel.reshape(-1)
        if scale is None or scale.size != 1 or not _sound(scale) or (zero is not None and zero.size != 1):
            continue
        code = 0 if zero is None else int(zero.reshape(-1)[0]) - (128 if zero.dtype == np.uint8 else 0)
        if -128 <= code <= 127:
            ranges[annotation.tensor_name] = float(scale.reshape(-1)[0]), code
    return KnownScales(ranges, weights)


def _sound(scales: Array) -> bool:
    return scales.dtype.kind == "f" and bool(np.all(np.isfinite(scales) & (scales > 0)))
