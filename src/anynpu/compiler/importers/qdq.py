"""Models that are quantised already, in ONNX's form: QuantizeLinear and DequantizeLinear around what is computed in integers.

Quantisation-aware training, onnxruntime, NNCF and torch.ao write such models. Here they are taken apart: a float model without these nodes,
the scale and zero point of every tensor, and the codes of the weights, which the compiler keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError
from .quantized_operators import between_pairs

__all__ = ["MOVES", "Qdq", "QdqWeights", "split_qdq", "taken_apart"]

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
MOVES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Pad", "MaxPool"}
"""Operators that move codes: their results are not rounded again."""

_SHIFTS = {np.dtype(np.int8): 0, np.dtype(np.uint8): 128}
_NARROW = {"int4", "uint4", "int2", "uint2"}
"""Types of weights that fit into int8 as they are."""


@dataclass(frozen=True, eq=False)
class QdqWeights:
    """A constant as codes.

    :ivar codes: int8; for biases int32
    :ivar scales: one, or one for each entry of *axis*
    :ivar zeros: zero points, as many
    :ivar shift: what was taken from the codes and zero points of the model to make them int8
    """

    codes: Array
    scales: Array
    zeros: Array
    axis: int
    shift: int = 0

    @property
    def values(self) -> Array:
        """The numbers that the codes stand for."""
        shape = [1] * self.codes.ndim
        if self.scales.size > 1:
            shape[self.axis] = -1
        scales, zeros = (entry.reshape(shape) if self.codes.ndim else entry.reshape(()) for entry in (self.scales, self.zeros))
        result: Array = ((self.codes.astype(np.int64) - zeros) * scales.astype(np.float64)).astype(np.float32)
        return result


@dataclass(frozen=True, eq=False)
class Qdq:
    """A quantised model, taken apart.

    :ivar model: the model in float
    :ivar ranges: scale and int8 zero point of tensors by name
    :ivar weights: codes of constants, by the name of the constant in *model*
    :ivar rounded: tensors of *ranges* that are rounded there: those that only move codes are not
    :ivar refusal: why a model with DequantizeLinear nodes was not taken apart
    """

    model: Any
    ranges: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    weights: Mapping[str, QdqWeights] = field(default_factory=dict)
    rounded: frozenset[str] = frozenset()
    refusal: CompileError | None = None


def taken_apart(proto: Any) -> Qdq:
    """A model, taken apart where it is quantised in a way that has a meaning here, else as it is."""
    if not any(node.op_type.startswith((_DEQUANTIZE, "QLinear")) for node in proto.graph.node):
        return Qdq(proto)
    try:
        return split_qdq(proto)
    except CompileError as error:
        return Qdq(proto, refusal=error)


def split_qdq(proto: Any) -> Qdq:
    """Take a model apart; the one that is given stays as it is.

    :raises CompileError: the model is quantised in a way that has no meaning here
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
                raise self._unfit(node, "an output of the model is codes")
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
        """Scale and zero point of a node, to tell whether another one has the same."""
        return tuple(
            f"{self._constants[name].dtype}{self._constants[name].tobytes()!r}" if name in self._constants else name
            for name in node.input[1:3]
        )

    def _rounded(self) -> frozenset[str]:
        """Tensors whose codes differ from those of the tensor that they are made of."""

        def moves(name: str) -> bool:
            maker = self._made.get(name)
            source = self._copied.get(name)
            if source is None and maker is not None and maker.op_type in MOVES:
                source = self._renamed.get(maker.input[0], maker.input[0])
            return source is not None and self._ranges.get(source) == self._ranges[name]

        return frozenset(name for name in self._ranges if not moves(name))

    def _dequantized(self, node: Any) -> list[Any]:
        """What stands in place of a node that dequantises."""
        source, result = node.input[0], node.output[0]
        if source in self._constants:
            self._weights[result] = self._constant(node, self._constants[source])
            return []
        maker = self._made.get(source)
        if maker is None or maker.op_type != _QUANTIZE:
            raise self._unfit(node, "codes come from somewhere else than QuantizeLinear")
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
            raise self._unfit(node, "codes are read with another scale or zero point than they were written with")
        pair = float(scales.reshape(())), int(zeros.reshape(())) - shift
        if len(self._pairs[maker.input[0]]) > 1:
            return [self._made_again(origin, node, pair)]
        if self._ranges.setdefault(origin, pair) != pair or result in self._outputs:  # its codes are rounded once more, or copied
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
        """A constant that is quantised when the model runs."""
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
            f"this quantised model cannot be compiled with its own scales: {why}",
            node=node.name or node.output[0],
            operator=node.op_type,
            hint="quantise with int8 or uint8 activations of one scale each and float inputs and outputs, or compile with calibration data "
            "(dataset=..., --dataset FOLDER), which finds new scales",
        )


def _type_without_zero(node: Any) -> np.dtype[Any]:
    """The type of the codes of a node that names no zero point, whose type it would be."""
    wanted = next((entry.i for entry in node.attribute if entry.name == "output_dtype"), 0)
    return np.dtype(onnx().helper.tensor_dtype_to_np_dtype(wanted)) if wanted else np.dtype(np.uint8)
