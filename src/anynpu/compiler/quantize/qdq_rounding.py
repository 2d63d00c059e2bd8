"""How onnxruntime's integer kernels round, for models that are quantised already: with the scales of such a model also come its codes.

Where two numbers that both stand for one code would do, the one is taken here that onnxruntime takes:

* A sum of products is multiplied with ``input * weights / result``, all three scales in float32, each operation rounded by itself.
* A table has the value of each operator in float32.
* QLinearAdd and QLinearMul add the zero point before they round, so that a value between two codes goes to the even code; all other
  kernels round first, and the value goes to the even step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._util.types import Array
from ...program.arithmetic import code_values, function_table
from ...tensor import DType, Quantization
from ..graph import Graph, Node
from ..importers.qdq import QdqWeights
from ..lower.functions import binary_function, scalar_operand, unary_function
from ..lower.steps import Activation

__all__ = ["product_multiplier", "rounded_table"]


def product_multiplier(source: Array, scales: Array, result: Array) -> Array:
    """What leads from a sum of products to steps of the result, by output channel."""
    multiplier: Array = source.astype(np.float32) * scales.astype(np.float32) / result.astype(np.float32)
    return multiplier


def rounded_table(
    graph: Graph, activation: Activation, source: Quantization, target: Quantization, codes: Mapping[str, QdqWeights]
) -> Array:
    """One row that maps each int8 code of *source* to the code of the function's value in *target*.

    :param codes: constants that are codes in the model, by name
    """
    if len(activation.nodes) == 1:
        (node,) = activation.nodes
        constant = next((codes[name] for name in node.inputs if name in codes and codes[name].codes.size == 1), None)
        if constant is not None and constant.codes.dtype == np.int8 and node.op in ("Add", "Mul"):
            return _kernel_table(node.op, source, target, constant)
    return function_table(lambda values: _evaluated(graph, activation, values), source, target, DType.INT8, wide=False)


def _kernel_table(op: str, source: Quantization, target: Quantization, constant: QdqWeights) -> Array:
    """QLinearAdd or QLinearMul of all codes and one constant."""
    scale, other, result = (np.float32(number) for number in (source.scale, constant.scales.reshape(-1)[0], target.scale))
    shift = constant.shift  # the kernels see the codes of the model, and a sum in float32 depends on where they begin
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
