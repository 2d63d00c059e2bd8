"""Models that are quantised already, as the float models that they stand for: the compiler quantises them anew.

Beside every quantised tensor stands the real one. Nodes on codes (MatMulInteger, a MaxPool of codes) get a float node that makes the real
tensor from real ones, and what nobody reads any more is dropped. Those of the format QOperator were written between pairs of QuantizeLinear
and DequantizeLinear before (:mod:`anynpu.compiler.importers.quantized_operators`). A node that is not understood keeps reading codes, so
that a model is at worst computed as it is. Where codes cannot be negative a clip stays: quantisers leave Relu out there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..._util.types import Array
from ...errors import CompileError
from ..graph import Graph, Node

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
        """What the codes of a node stand for; a constant's are taken here, since old operator sets have no scale for each channel."""
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
