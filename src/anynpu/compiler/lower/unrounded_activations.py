"""Which activations work on the unrounded result of a layer: on a chip through its tables, in the vendor's simulator in float.

The vendor's compiler does so after dense and grouped convolutions and after fully connected layers, and with Elu after a depthwise one;
otherwise an int8 code stands in between, and so it does where something was added to the convolution. Bytes of a board show the first
for Sigmoid, HardSigmoid, HardSwish, Swish, Softplus and Elu. The simulator has a code before a HardSigmoid.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ..._util.types import Array
from ...program.arithmetic.lookup_tables import CURVES, Shape, hard_sigmoid
from ..graph import Graph
from ..quantize.channel_groups import is_depthwise_layer
from .forms import Form
from .functions import Function
from .steps import Activation, Step

__all__ = ["assign_curves", "leave_unrounded", "shape_of", "simulated_function"]

_PROBE = np.linspace(-7.0, 7.0, 57)
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6


def assign_curves(graph: Graph, steps: list[Step]) -> None:
    """Give each step that computes its activation by a curve the shape of that curve."""
    for step in steps:
        shape = _shape_after(graph, step)
        if shape is not None:
            step.curve = shape


def leave_unrounded(graph: Graph, steps: list[Step]) -> None:
    """Mark each step whose activation the vendor's simulator takes on the unrounded result."""
    for step in steps:
        step.unrounded = _shape_after(graph, step) in _OF_THE_SIMULATOR


_OF_THE_SIMULATOR = tuple(CURVES.values())


def _shape_after(graph: Graph, step: Step) -> Shape | None:
    """The tabulated function that follows the step's unrounded result; None where there is none, or a code in between."""
    activation = step.activation
    if (
        step.is_float
        or step.residual
        or activation is None
        or not activation.is_table
        or step.form not in (Form.DENSE, Form.CONV)
    ):
        return None
    shape = shape_of(activation)
    is_curve = step.form is Form.DENSE or not is_depthwise_layer(graph, step) or shape is CURVES["Elu"]
    return shape if is_curve else None


def simulated_function(activation: Activation) -> Function:
    """An activation with the operations of the vendor's simulator in their order: in float32 every one of them rounds."""
    return _SIMULATED.get(id(shape_of(activation)), activation.function)


_SIMULATED: dict[int, Function] = {
    id(CURVES["HardSwish"]): lambda x: x * np.clip(x * (1.0 / 6.0) + 0.5, 0.0, 1.0),
    id(CURVES["Swish"]): lambda x: x * (1.0 / (1.0 + np.exp(-x))),
}


def shape_of(activation: Activation) -> Shape | None:
    """The tabulated function that an activation is; None if it is none of them."""
    with np.errstate(all="ignore"):
        values = activation.function(_PROBE)
        for shape, (known, tolerance) in zip(CURVES.values(), _known_values(), strict=True):
            if np.all(np.abs(values - known) <= tolerance):
                return shape
        through = _hard_sigmoid_through(activation)
        if through is not None and np.allclose(values, through.function(_PROBE), rtol=_RELATIVE, atol=_ABSOLUTE):
            return through
    return None


@cache
def _known_values() -> tuple[tuple[Array, Array], ...]:
    """The values of each tabulated function, and how far another one may be from them."""
    found = [shape.function(_PROBE) for shape in CURVES.values()]
    return tuple((values, _ABSOLUTE + _RELATIVE * np.abs(values)) for values in found)


def _hard_sigmoid_through(activation: Activation) -> Shape | None:
    """The hard sigmoid with the activation's value and slope at zero."""
    first, second = activation.function(np.array([0.0, 0.125]))
    slope = (second - first) / 0.125
    return hard_sigmoid(float(slope), float(first)) if 1e-3 < slope < 1e3 and 0.0 < first < 1.0 else None
