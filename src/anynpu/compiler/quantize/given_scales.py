"""Scales that a quantized model brings along, kept through compilation: no calibration data is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CalibrationError
from ...program.arithmetic import WeightScales, code_values, function_table
from ...tensor import Affine, DType, Quantization
from ..graph import Graph, Node
from ..importers import known_scales
from ..importers.quantized_models import MOVES, Qdq, QdqWeights
from ..lower.forms import Form
from ..lower.functions import binary_function, scalar_operand, unary_function
from ..lower.steps import Activation, Step
from ..toolkit.quantizer import GivenRanges
from .tensor_scales import keeps_scale

# Models whose scales stand beside them (:mod:`anynpu.compiler.importers.quantized_models`), as a full-integer TFLite file
# brings them.
#
# Taken like a model with QuantizeLinear nodes, every tensor that has a scale is rounded to its quantized values, as the interpreter of
# such a file does.


def as_qdq(proto: Any) -> Qdq:
    """The model with the scales that it is annotated with, and the quantized values of its weights; without annotations just the model."""
    known = known_scales(proto)
    if not known.ranges:
        return Qdq(proto)
    makers = {name: node for node in proto.graph.node for name in node.output}
    read = {makers[name].input[1]: name for name in known.weights if name in makers and len(makers[name].input) > 1}
    stored = {entry.name: entry for entry in proto.graph.initializer if entry.name in read}
    weights = {}
    for name, entry in stored.items():
        node = makers[read[name]]
        made = _codes(onnx().numpy_helper.to_array(entry), known.weights[read[name]], _output_axis(node, len(entry.dims)))
        if made is not None:
            weights[name] = made

    def moves(name: str) -> bool:
        maker = makers.get(name)
        return maker is not None and maker.op_type in MOVES and known.ranges.get(maker.input[0]) == known.ranges[name]

    return Qdq(proto, known.ranges, weights, frozenset(name for name in known.ranges if not moves(name)))


def _output_axis(node: Any, rank: int) -> int:
    """The axis of a node's weights that counts the output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    turned = any(entry.name == "transB" and entry.i for entry in node.attribute)
    return 0 if turned else rank - 1


def _codes(values: Array, scales: Array, axis: int) -> QdqWeights | None:
    """The quantized values that weights were; None where they were none of eight bits with these scales."""
    if scales.size not in (1, values.shape[axis]):
        return None
    shape = [1] * values.ndim
    shape[axis] = -1
    codes = np.rint(values.astype(np.float64) / (scales.reshape(shape) if scales.size > 1 else scales.reshape(()))).astype(
        np.int64
    )
    if codes.size and (codes.min() < -128 or codes.max() > 127):
        return None
    made = QdqWeights(codes.astype(np.int8), scales.astype(np.float32), np.zeros(scales.size, np.int64), axis)
    return made if np.array_equal(made.values, values) else None


# Scales that a quantized model brings along, kept: no calibration data is needed, and nothing is fitted.


class KeptRanges:
    """Asked for a tensor whose scale the model does not state: there is no way to know it without data."""

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        raise CalibrationError(
            "the model has scales of its own, but not for this tensor",
            tensor=name,
            hint="pass calibration data (dataset=..., --dataset FOLDER): then all scales are computed again; or compile with dtype fp16",
        )


def kept_quantization(ranges: GivenRanges, graph: Graph, steps: list[Step]) -> dict[str, Quantization]:
    """The quantization of the tensors of *graph* that the model has scales for.

    Layers that only move quantized values have one scale on both sides: that of their input, or of their result where the input has none.
    """
    known = {*graph.inputs, *(name for node in graph.nodes for name in node.outputs)}
    result: dict[str, Quantization] = {
        name: Affine.per_tensor(scale, zero) for name, (scale, zero) in ranges.items() if name in known
    }
    moving = [step for step in steps if not step.is_float and keeps_scale(step)]
    for step in reversed(moving):
        if step.inputs[0] not in result and step.outputs[0] in result:
            result[step.inputs[0]] = result[step.outputs[0]]
    for step in moving:
        if step.inputs[0] in result:
            result.update(dict.fromkeys(step.outputs, result[step.inputs[0]]))
    return result


# Scales that a quantized model brings along (:mod:`anynpu.compiler.importers.quantized_models`), kept through compilation.
#
# Layers are computed in integers where all of their tensors have a scale; others are float, or get their scales from
# calibration data where there is some. Weights keep their quantized values: they are recognized by their values, since folding may have
# renamed or transposed them.


_WEIGHTED = {Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE}


@dataclass(frozen=True, eq=False)
class KeptScales:
    """Scale and zero point of weights per output channel, which give the quantized values that a quantized model had."""

    scales: Array
    zeros: Array


def kept_codes(weights: Array, kept: KeptScales) -> tuple[Array, Array, Array]:
    """Quantized values, scales and zero points of weights whose first axis is the output channel."""
    shape = (-1, *(1,) * (weights.ndim - 1))
    scales = np.broadcast_to(kept.scales, len(weights)).astype(np.float32)
    zeros = np.broadcast_to(kept.zeros, len(weights)).astype(np.int32)
    codes = np.rint(weights.astype(np.float64) / scales.reshape(shape).astype(np.float64)) + zeros.reshape(shape)
    return np.clip(codes, -128, 127).astype(np.int8), scales, zeros


def kept_weights(
    graph: Graph, steps: Iterable[Step], weights: Mapping[str, QdqWeights], sharing: WeightScales
) -> dict[str, KeptScales]:
    """The scales of all steps whose weights still are those of the quantized model, by the result of the step."""
    known = [entry for entry in weights.values() if entry.codes.dtype == np.int8 and entry.codes.ndim > 1]
    result: dict[str, KeptScales] = {}
    for step in steps:
        if step.is_float or step.form not in _WEIGHTED:
            continue
        stored = graph.constants[step.node.inputs[1]]
        channels = graph.shapes[step.outputs[0]][-1 if step.form is Form.DENSE else 1]
        for entry in known:
            if entry.codes.size != stored.size or entry.scales.size not in (1, channels):
                continue
            if entry.scales.size > 1 and not sharing.by_channel:
                continue
            if _same(entry.values, stored):
                result[step.outputs[0]] = KeptScales(entry.scales, entry.zeros)
                break
    return result


def _same(values: Array, stored: Array) -> bool:
    if values.shape == stored.shape:
        return bool(np.array_equal(values, stored))
    return values.ndim == stored.ndim == 2 and values.T.shape == stored.shape and bool(np.array_equal(values.T, stored))


def spread(graph: Graph, steps: Sequence[Step], given: dict[str, Quantization]) -> dict[str, Quantization]:
    """Give a scale to tensors that have none beside those that have one, where steps only move quantized values; in place, and returned.

    What is moved to several places gets a scale from there if all have the same: otherwise it would be rounded twice.
    """
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)

    def shared(name: str) -> Quantization | None:
        """The one scale that all steps that read a tensor move it to."""
        if name in graph.outputs or any(step.is_float or not keeps_scale(step) for step in readers[name]):
            return None
        scales = {given.get(result) for step in readers[name] for result in step.outputs}
        return scales.pop() if len(scales) == 1 else None

    for order in (steps, steps[::-1], steps):
        for step in order:
            if step.is_float or not keeps_scale(step):
                continue
            source = step.inputs[0]
            if source not in given:
                scale = shared(source)
                if scale is not None:
                    given[source] = scale
            if source in given:
                for result in step.outputs:
                    given.setdefault(result, given[source])
    return given


def only_known(graph: Graph, steps: Sequence[Step], given: Mapping[str, Quantization]) -> tuple[Graph, list[Step]]:
    """The graph and its steps with everything in float whose scales are not known."""

    def known(step: Step) -> bool:
        names = [*step.reads, *step.outputs]
        if step.rounds_before_activation:
            names.append(step.before_activation)
        return all(name in given for name in names)

    made = [step if step.is_float or known(step) else replace(step, is_float=True) for step in steps]
    return replace(graph, coded=frozenset(name for name in graph.coded if name in given)), made


# How onnxruntime's integer kernels round, for models that are quantized already: with the scales of such a model also come its
# quantized values.
#
# Where two numbers that both stand for one code would do, the one is taken here that onnxruntime takes:
#
# * A sum of products is multiplied with ``input * weights / result``, all three scales in float32, each operation rounded on its own.
# * A table has the value of each operator in float32.
# * QLinearAdd and QLinearMul add the zero point before they round, so that a value between two quantized values goes to the even
# code; all other kernels round first, and the value goes to the even step.


def product_multiplier(source: Array, scales: Array, result: Array) -> Array:
    """What leads from a sum of products to steps of the result, per output channel."""
    multiplier: Array = source.astype(np.float32) * scales.astype(np.float32) / result.astype(np.float32)
    return multiplier


def rounded_table(
    graph: Graph, activation: Activation, source: Quantization, target: Quantization, codes: Mapping[str, QdqWeights]
) -> Array:
    """One row that maps each int8 code of *source* to the code of the function's value in *target*.

    :param codes: constants that are quantized values in the model, by name
    """
    if len(activation.nodes) == 1:
        (node,) = activation.nodes
        constant = next((codes[name] for name in node.inputs if name in codes and codes[name].codes.size == 1), None)
        if constant is not None and constant.codes.dtype == np.int8 and node.op in ("Add", "Mul"):
            return _kernel_table(node.op, source, target, constant)
    return function_table(lambda values: _evaluated(graph, activation, values), source, target, DType.INT8, wide=False)


def _kernel_table(op: str, source: Quantization, target: Quantization, constant: QdqWeights) -> Array:
    """QLinearAdd or QLinearMul of all quantized values and one constant."""
    scale, other, result = (np.float32(number) for number in (source.scale, constant.scales.reshape(-1)[0], target.scale))
    shift = constant.shift  # the kernels see the quantized values of the model, and a sum in float32 depends on where they begin
    zero, other_zero, result_zero = (
        np.float32(int(number) + shift) for number in (source.zero_point, constant.zeros.reshape(-1)[0], target.zero_point)
    )
    codes = code_values(DType.INT8).astype(np.float32) + np.float32(shift)
    code = np.float32(int(constant.codes.reshape(-1)[0]) + shift)
    if op == "Mul":
        values = (codes - zero) * (code - other_zero) * (scale * other / result) + result_zero
    else:
        ratio, other_ratio = scale / result, other / result
        shared = result_zero - _fused(ratio, zero, other_ratio * other_zero)
        values = _fused(codes, ratio, _fused(code, other_ratio, shared))
    table: Array = np.clip(np.rint(values) - shift, *DType.INT8.limits).astype(np.int8)[None]
    return table


def _fused(one: Array | np.float32, other: np.float32, summand: np.float32) -> Any:
    """one * other + summand, rounded to float32 once, as processors with such an instruction do it."""
    return np.float32(np.asarray(one, np.float64) * np.float64(other) + np.float64(summand))


def _evaluated(graph: Graph, activation: Activation, values: Array) -> Array:
    """The nodes of a function one after the other, each result a float32."""
    known: dict[str, Array] = {}
    for node in activation.nodes:
        known[node.outputs[0]] = _result(graph, node, known, values).astype(np.float32)
    return known[activation.nodes[-1].outputs[0]]


def _result(graph: Graph, node: Node, known: Mapping[str, Array], values: Array) -> Array:
    """What one node makes of *values*, or of what nodes before it have made."""

    def of(name: str) -> Array:
        return known.get(name, values).astype(np.float64)

    function = unary_function(graph, node)
    if function is not None:
        return np.asarray(function(of(node.inputs[0])))
    operand = scalar_operand(graph, node)
    if operand is not None:
        data, function = operand
        return np.asarray(function(of(data)))
    combine = binary_function(node)
    if combine is None:  # nothing but another scale
        return of(node.inputs[0])
    return np.asarray(combine(of(node.inputs[0]), of(node.inputs[1])))
