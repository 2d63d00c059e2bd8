"""Models that are quantised already, as the float models that they stand for: the compiler quantises them anew.

Beside every quantised tensor stands the real one. Nodes on codes (QLinearConv, MatMulInteger, a MaxPool of codes) get a float node that
makes the real tensor from real ones, and what nobody reads any more is dropped. A node that is not understood keeps reading codes, so that
a model is at worst computed as it is. Where codes cannot be negative a clip stays: quantisers leave Relu out there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..errors import CompileError
from ..types import Array
from .graph import Graph, Node

__all__ = ["dequantize"]

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
_UNARY = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearAveragePool": "AveragePool",
    "QLinearSoftmax": "Softmax",
}
_BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}


def dequantize(graph: Graph) -> bool:
    """Let a graph compute in float what it computes in codes, in place; False where nothing is quantised."""
    marks = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear", "DynamicQuantize", "ConvInteger", "MatMulInteger")
    if not any(node.op.startswith(marks) for node in graph.nodes):
        return False
    try:
        _Dequantizing(graph).run()
    except (IndexError, TypeError, ValueError) as error:  # scales that fit nothing, operators without their inputs
        raise CompileError(f"the quantised model makes no sense: {error}", hint="quantise the model again") from error
    graph.remove_unused()
    return True


class _Dequantizing:
    """One walk through the graph in the order of execution.

    ``_real`` has the real tensor of each quantised one. ``_sums`` are results of integer products as (real tensor, scale): the real tensor
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
        """A constant of codes as real numbers; with an empty *scale*, in units of it."""
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
        """The real tensor of an input: one that is known, a constant, or an input of the model that is codes."""
        if codes in self._real:
            return self._real[codes]
        if self._constant(codes) is not None:
            return self._weights(codes, scale, zero, 0)
        if codes in self._graph.inputs and self._constant(scale) is not None:
            self._real[codes] = self._node("DequantizeLinear", [codes, scale, *([zero] if zero else [])], codes)
            return self._real[codes]
        return None

    def _settle(self, codes: str, real: str, scale: str, zero: str) -> None:
        """Note what codes mean; they cannot mean negative numbers where the zero point is the smallest code."""
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
            "QLinearConv": self._convolution,
            "QLinearMatMul": self._product,
            "ConvInteger": self._integers,
            "MatMulInteger": self._integers,
            "QGemm": self._gemm,
            "QLinearConcat": self._concat,
        }.get(node.op)
        if visit is not None and node.domain in ("", _MICROSOFT):
            visit(node)
            return None
        if node.op == "DequantizeLinear":
            return self._real.get(node.inputs[0])
        if node.domain == _MICROSOFT:
            return self._microsoft(node)
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

    def _dynamic_quantize(self, node: Node) -> None:
        self._real[node.outputs[0]] = node.inputs[0]
        self._dynamic[node.outputs[0]] = (node.outputs[1], node.outputs[2])
        self._factors[node.outputs[1]] = (node.outputs[1], "")

    def _convolution(self, node: Node) -> None:
        x, scale, zero, weights, weight_scale, weight_zero, result_scale, result_zero = node.inputs[:8]
        data, real = self._operand(x, scale, zero), self._weights(weights, weight_scale, weight_zero, 0)
        if data is None or real is None:
            return
        inputs = [data, real]
        if len(node.inputs) > 8 and node.inputs[8]:
            bias, one, two = (self._constant(name) for name in (node.inputs[8], scale, weight_scale))
            if bias is None or one is None or two is None:
                return
            values = bias.astype(np.float64) * one.astype(np.float64).reshape(-1) * two.astype(np.float64).reshape(-1)
            inputs.append(self._graph.add_constant(self._name(node.inputs[8]), values.astype(np.float32)))
        made = self._node("Conv", inputs, node.outputs[0], **node.attributes)
        self._settle(node.outputs[0], made, result_scale, result_zero)

    def _product(self, node: Node) -> None:
        left, right = self._operand(*node.inputs[:3]), self._factor(*node.inputs[3:6])
        if left is not None and right is not None:
            self._settle(node.outputs[0], self._node("MatMul", [left, right], node.outputs[0]), *node.inputs[6:8])

    def _factor(self, codes: str, scale: str, zero: str) -> str | None:
        """The right operand of a product, whose constant may have a scale for each column."""
        return self._weights(codes, scale, zero, -1) if self._constant(codes) is not None else self._operand(codes, scale, zero)

    def _integers(self, node: Node) -> None:
        """A product of codes that DynamicQuantizeLinear made with constants: what it means, in units of the scale."""
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

    def _microsoft(self, node: Node) -> str | None:
        if node.op in _UNARY:
            data = self._operand(*node.inputs[:3])
            if data is not None and not node.attribute("channels_last", 0):
                kept = {key: value for key, value in node.attributes.items() if key not in ("channels_last", "opset")}
                made = self._node(_UNARY[node.op], [data], node.outputs[0], **kept)
                self._settle(node.outputs[0], made, *(*node.inputs[3:5], "")[:2])
        elif node.op in _BINARY:
            left, right = self._operand(*node.inputs[:3]), self._operand(*node.inputs[3:6])
            if left is not None and right is not None:
                made = self._node(_BINARY[node.op], [left, right], node.outputs[0])
                self._settle(node.outputs[0], made, *(*node.inputs[6:8], "")[:2])
        elif node.op in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
            return self._to_float(node)
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

    def _gemm(self, node: Node) -> None:
        x, scale, zero, weights, weight_scale, weight_zero, bias, *rest = [*node.inputs, *[""] * 9][:9]
        columns = -2 if node.attribute("transB", 0) else -1
        data, real = self._operand(x, scale, zero), self._weights(weights, weight_scale, weight_zero, columns)
        if data is None or real is None or not rest[0] or float(node.attribute("alpha", 1.0)) != 1.0:
            return
        inputs = [data, real]
        if bias:
            value, one, two = (self._constant(name) for name in (bias, scale, weight_scale))
            if value is None or one is None or two is None:
                return
            values = value.astype(np.float64) * one.astype(np.float64).reshape(-1) * two.astype(np.float64).reshape(-1)
            inputs.append(self._graph.add_constant(self._name(bias), values.astype(np.float32)))
        self._settle(node.outputs[0], self._node("Gemm", inputs, node.outputs[0], **node.attributes), *rest)

    def _concat(self, node: Node) -> None:
        groups = [node.inputs[place : place + 3] for place in range(2, len(node.inputs), 3)]
        parts = [self._operand(*(*group, "")[:3]) for group in groups]
        if all(part is not None for part in parts):
            made = self._node("Concat", [part for part in parts if part], node.outputs[0], axis=node.attribute("axis", 0))
            self._settle(node.outputs[0], made, *node.inputs[:2])

    def _move(self, node: Node) -> None:
        made = self._node(node.op, [self._real[node.inputs[0]], *node.inputs[1:]], node.outputs[0], **node.attributes)
        self._real[node.outputs[0]] = made
        for table in (self._codes, self._dynamic):
            if node.inputs[0] in table:
                table[node.outputs[0]] = table[node.inputs[0]]
