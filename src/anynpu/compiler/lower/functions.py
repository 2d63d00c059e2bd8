"""Element-wise operators as functions of one number: what becomes a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..graph import Graph, Node

Values = npt.NDArray[np.float64]
Function = Callable[[Values], Values]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Values) -> Values:
    return 0.5 * (1.0 + np.tanh(0.5 * x))  # the form that cannot overflow


def _softplus(x: Values) -> Values:
    return np.logaddexp(0.0, x)


def _selu(node: Node) -> Function:
    alpha = node.attribute("alpha", 1.6732632423543772)
    gamma = node.attribute("gamma", 1.0507009873554805)
    return lambda x: gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _gelu(node: Node) -> Function:
    if node.attribute("approximate", "none") == "tanh":
        return lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def _elu(alpha: float) -> Function:
    return lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def _celu(alpha: float) -> Function:
    return lambda x: np.maximum(x, 0.0) + np.minimum(0.0, alpha * np.expm1(np.minimum(x, 0.0) / alpha))


_UNARY: dict[str, Callable[[Node], Function]] = {
    "Abs": lambda node: np.abs,
    "Atan": lambda node: np.arctan,
    "Ceil": lambda node: np.ceil,
    "Celu": lambda node: _celu(node.attribute("alpha", 1.0)),
    "Cos": lambda node: np.cos,
    "Elu": lambda node: _elu(node.attribute("alpha", 1.0)),
    "Erf": lambda node: _erf,
    "Exp": lambda node: np.exp,
    "Floor": lambda node: np.floor,
    "Gelu": _gelu,
    "HardSigmoid": lambda node: _hard_sigmoid(node.attribute("alpha", 0.2), node.attribute("beta", 0.5)),
    "HardSwish": lambda node: lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "LeakyRelu": lambda node: _leaky(node.attribute("alpha", 0.01)),
    "Log": lambda node: np.log,
    "Mish": lambda node: lambda x: x * np.tanh(_softplus(x)),
    "Neg": lambda node: np.negative,
    "Reciprocal": lambda node: np.reciprocal,
    "Relu": lambda node: lambda x: np.maximum(x, 0.0),
    "Round": lambda node: np.rint,
    "Selu": _selu,
    "Sigmoid": lambda node: _sigmoid,
    "Sign": lambda node: np.sign,
    "Sin": lambda node: np.sin,
    "Softplus": lambda node: _softplus,
    "Softsign": lambda node: lambda x: x / (1.0 + np.abs(x)),
    "Sqrt": lambda node: np.sqrt,
    "Swish": lambda node: _swish(node.attribute("alpha", 1.0)),
    "Tanh": lambda node: np.tanh,
    "ThresholdedRelu": lambda node: _thresholded(node.attribute("alpha", 1.0)),
}

_BINARY: dict[str, Callable[[Values, Values], Values]] = {
    "Add": np.add,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
}


def _hard_sigmoid(alpha: float, beta: float) -> Function:
    return lambda x: np.clip(alpha * x + beta, 0.0, 1.0)


def _leaky(alpha: float) -> Function:
    return lambda x: np.where(x < 0, alpha * x, x)


def _swish(alpha: float) -> Function:
    return lambda x: x * _sigmoid(alpha * x)


def _thresholded(alpha: float) -> Function:
    return lambda x: np.where(x > alpha, x, 0.0)


def unary_function(graph: Graph, node: Node) -> Function | None:
    """The function of a node with one data input, or None."""
    if node.op == "Clip":
        bounds = clip_bounds(graph, node)
        if bounds is None:
            return None
        low, high = bounds
        return lambda x: np.minimum(np.maximum(x, low), high)
    if node.op == "Identity" and node.outputs[0] in graph.rounded:
        return lambda x: x
    make = _UNARY.get(node.op)
    return make(node) if make else None


def binary_function(node: Node) -> Callable[[Values, Values], Values] | None:
    """The function of a node with two inputs, or None."""
    return _BINARY.get(node.op)


def clip_bounds(graph: Graph, node: Node) -> tuple[float, float] | None:
    """Bounds of Clip or Relu, or None where they are computed at run time."""
    if node.op == "Relu":
        return 0.0, math.inf
    if node.op != "Clip":
        return None
    bounds = [float(node.attribute("min", -math.inf)), float(node.attribute("max", math.inf))]
    for index, name in enumerate(node.inputs[1:3]):
        if name:
            value = graph.constant(name)
            if value is None or value.size != 1:
                return None
            bounds[index] = float(value.reshape(-1)[0])
    return bounds[0], bounds[1]


def scalar_operand(graph: Graph, node: Node) -> tuple[str, Function] | None:
    """The data input and function of a two-input node whose other input is one constant number, or None."""
    function: Any = binary_function(node)
    if function is None or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    for data, other, swapped in ((left, right, False), (right, left, True)):
        value = graph.constant(other)
        if (
            value is not None
            and value.size == 1
            and data not in graph.constants
            and graph.shapes[data] == graph.shapes[node.outputs[0]]
        ):
            number = float(value.reshape(-1)[0])
            if swapped:
                return data, lambda x, n=number: function(np.float64(n), x)
            return data, lambda x, n=number: function(x, np.float64(n))
    return None
