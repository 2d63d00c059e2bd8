"""Operators that compute on codes (QLinearConv, QLinearMatMul, QGemm and their like), written as what they mean.

onnxruntime's quantiser writes such models as its format QOperator. Each operator becomes the float one between DequantizeLinear and
QuantizeLinear with the same scales, so that there is one form of quantised models to understand. Operators that only move codes do the same
to real numbers; one that is not known keeps reading codes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError

__all__ = ["between_pairs"]

_MICROSOFT = "com.microsoft"
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
"""Attributes that only the operators on codes have."""
_LONGEST = 8
"""Operators in a row that move a constant of codes: each DequantizeLinear behind them gets copies of its own."""


def between_pairs(proto: Any) -> None:
    """Write every operator on codes as a float one between pairs of QuantizeLinear and DequantizeLinear; in place.

    :raises CompileError: an operator lacks inputs
    """
    marks = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLSTM")
    if not any(node.op_type.startswith(marks) for node in proto.graph.node):
        return
    try:
        _Writing(proto).run()
    except (IndexError, ValueError) as error:
        raise CompileError(f"the quantised model makes no sense: {error}", hint="quantise the model again") from error


class _Writing:
    """One walk over the nodes; ``_scales`` has scale and zero point of each tensor that is known to be codes."""

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
        """The real numbers of codes."""
        key = codes, scale, zero, axis
        if key not in self._reals:
            self._reals[key] = result = self._name(f"{codes}.real")
            if self._taken_before(codes, scale, zero, result):
                return result
            chosen = {} if axis is None else {"axis": axis}
            self._node("DequantizeLinear", [codes, scale, *([zero] if zero else [])], [result], result, **chosen)
        return self._reals[key]

    def _rounded(self, real: str, codes: str, scale: str, zero: str = "") -> None:
        """The codes of real numbers."""
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
        """An LSTM whose weights are codes, with the axes of each matrix the other way round; what it reads is rounded as it runs."""
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
        """An operator that moves codes moves what they mean."""
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
        """What a code beside the picture stands for; without one it is 0."""
        if not value:
            point = self._constant(zero) if zero else None
            value = self._add_constant("padding", np.zeros((), np.uint8 if point is None else point.dtype))
        return self._real(value, scale, zero)

    def _taken_before(self, codes: str, scale: str, zero: str, result: str) -> bool:
        """A part of a constant of codes is the part of a real constant: a table of words, out of which Gather takes some."""
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
