"""An ONNX graph that grows from a TFLite one, tensor by tensor, with as few transposes as can be.

TFLite keeps images as NHWC, ONNX as NCHW. A tensor of four axes has up to two *forms*: ``PLAIN``, with the axes of the file, and
``NCHW``. Convolutions read and make NCHW; operators that do not care take the form that is there; a Transpose is made once, where a reader
needs the other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...._util.optional import onnx
from ...._util.types import Array
from ....errors import UnsupportedOperatorError
from .model import TfliteModel, TfliteOperator, TfliteTensor

PLAIN = "plain"
NCHW = "nchw"

_TO_NCHW = (0, 3, 1, 2)
_TO_PLAIN = (0, 2, 3, 1)
_AXES = {0: 0, 1: 2, 2: 3, 3: 1}
"""Where an axis of the file lies in NCHW."""

OPSET = 17


class Builder:
    """The nodes and constants made so far, and how each tensor of the file is called in them."""

    def __init__(self, model: TfliteModel) -> None:
        self.model = model
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.ranges: dict[str, tuple[float, int]] = {}
        self.weights: dict[str, Array] = {}
        """Scales of weights that were quantized values, by what their node makes."""
        self.flattened: dict[int, tuple[int, int, int]] = {}
        """Tensors that lie flat in NCHW order, with the channels, height and width they came from."""
        self.done: set[int] = set()
        """Identities of operators that an earlier one has taken in."""
        self.readers: dict[int, list[TfliteOperator]] = {}
        for operator in model.operators:
            for index in operator.inputs:
                self.readers.setdefault(index, []).append(operator)
        self._names: dict[tuple[int, str], str] = {}
        self._folded: dict[int, Array] = {}
        self._taken = {tensor.name for tensor in model.tensors}
        self._shared: dict[int, tuple[float, int]] = {}

    def tensor(self, index: int) -> TfliteTensor:
        return self.model.tensors[index]

    def shape(self, index: int) -> tuple[int, ...]:
        return self.model.tensors[index].shape

    def rank(self, index: int) -> int:
        return len(self.model.tensors[index].shape)

    # constants

    def fold(self, index: int, value: Array) -> None:
        """A result that is known now."""
        self._folded[index] = value

    def constant(self, index: int) -> Array | None:
        """The value of a constant: real numbers where the file has quantized values."""
        if index in self._folded:
            return self._folded[index]
        tensor = self.tensor(index)
        return tensor.value if tensor.is_constant else None

    def known(self, operator: TfliteOperator, position: int, what: str) -> Array:
        """The value of an input that has to be constant."""
        value = self.constant(operator.inputs[position]) if self.has(operator, position) else None
        if value is None:
            raise self.refusal(operator, f"its {what} is computed while the network runs")
        return value

    @staticmethod
    def has(operator: TfliteOperator, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(operator.inputs) and operator.inputs[position] >= 0

    def add(self, name: str, value: Array) -> str:
        """A constant of the ONNX graph under a name like *name*."""
        free = self.free(name)
        self.initializers.append(onnx().numpy_helper.from_array(np.ascontiguousarray(value), free))
        return free

    def free(self, name: str) -> str:
        """*name*, or with a number after it where it is taken."""
        made, count = name, 0
        while made in self._taken:
            count += 1
            made = f"{name}.{count}"
        self._taken.add(made)
        return made

    # tensors

    def form(self, index: int) -> str:
        """The form that a tensor has without a Transpose."""
        return NCHW if (index, NCHW) in self._names and (index, PLAIN) not in self._names else PLAIN

    def common_form(self, indices: Sequence[int]) -> str:
        """The form in which an operator that does not care reads its inputs: NCHW where one has only that, and all can have it."""
        computed = [index for index in indices if self.constant(index) is None]
        wants = any(self.form(index) == NCHW for index in computed)
        return NCHW if wants and all(self.rank(index) == 4 for index in computed) else PLAIN

    def read(self, index: int, form: str = PLAIN) -> str:
        """The ONNX name of a tensor in a form; a Transpose is added where it is missing."""
        key = (index, form)
        if key in self._names:
            return self._names[key]
        value, tensor = self.constant(index), self.tensor(index)
        if value is not None:
            self._names[key] = self.add(
                f"{tensor.name}/{form}" if form == NCHW else f"{tensor.name}/value", _as_form(value, form)
            )
            return self._names[key]
        other = NCHW if form == PLAIN else PLAIN
        if (index, other) not in self._names:
            raise UnsupportedOperatorError(
                f"tensor '{tensor.name}' is read before anything made it", hint="convert the model again"
            )
        name = tensor.name if form == PLAIN and self._is_output(index) else self.free(f"{tensor.name}/{form}")
        batch, height, width, channels = tensor.shape
        if height * width == 1 or channels == 1:  # nothing changes its place
            extents = tensor.shape if form == PLAIN else (batch, channels, height, width)
            self.node("Reshape", [self._names[index, other], self.extents(extents)], [name])
        else:
            self.node("Transpose", [self._names[index, other]], [name], perm=_TO_PLAIN if form == PLAIN else _TO_NCHW)
        self._remember(key, name)
        return name

    def result(self, index: int, form: str = PLAIN) -> str:
        """A name for the tensor that an operator makes now."""
        tensor = self.tensor(index)
        name = self.free(f"{tensor.name}/{NCHW}") if form == NCHW and self._is_output(index) else tensor.name
        self._remember((index, form), name)
        return name

    def alias(self, source: int, target: int) -> None:
        """*target* is *source* under another name: both have the range that one of them has."""
        value = self.constant(source)
        if value is not None:
            self.fold(target, value)
            return
        found = self.tensor(target).int8_range or self._range(source)
        if found is not None:
            self._shared.setdefault(target, found)
            self._shared.setdefault(source, found)
        for form in (PLAIN, NCHW):
            if (source, form) in self._names:
                self.call(self._names[source, form], target, form)

    def call(self, name: str, target: int, form: str) -> None:
        """What is called *name* in ONNX already is the tensor *target* in a form."""
        found = self._range(target)
        if found is not None:
            self.ranges.setdefault(name, found)
        if self._is_output(target):
            self.node("Identity", [name], [self.result(target, form)])
        else:
            self._names[target, form] = name

    def give_input(self, index: int, form: str) -> tuple[str, tuple[int, ...]]:
        """Make a tensor an input of the network; its name and shape."""
        tensor = self.tensor(index)
        self._remember((index, form), tensor.name)
        shape = tensor.shape
        return tensor.name, tuple(shape[axis] for axis in _TO_NCHW) if form == NCHW else shape

    # nodes

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; the name of its first result."""
        self.nodes.append(onnx().helper.make_node(op, list(inputs), list(outputs), name=outputs[0], **attributes))
        return outputs[0]

    def keep_scales(self, index: int, made: str) -> None:
        """Remember the scales of the quantized values that weights were, for the node that makes *made*."""
        tensor = self.tensor(index)
        if tensor.is_quantized and tensor.is_constant and not tensor.zeros.any():
            self.weights[made] = tensor.scales

    def step(self, op: str, inputs: Sequence[str], near: int, **attributes: Any) -> str:
        """Add a node whose result lies inside the operator that makes tensor *near*."""
        return self.node(op, inputs, [self.free(f"{self.tensor(near).name}/{op}")], **attributes)

    def extents(self, shape: Sequence[int]) -> str:
        """A constant list of integers."""
        return self.add("extents", np.asarray(shape, np.int64))

    def scalar(self, value: float) -> str:
        """A constant real number."""
        return self.add("number", np.asarray(value, np.float32))

    @staticmethod
    def axis(axis: int, form: str, rank: int = 4) -> int:
        """Where an axis of the file lies in a form."""
        axis = axis + rank if axis < 0 else axis
        return _AXES[axis] if form == NCHW else axis

    def refusal(self, operator: TfliteOperator, why: str) -> UnsupportedOperatorError:
        """The error for an operator that cannot be turned into ONNX."""
        return UnsupportedOperatorError(
            why,
            node=self.tensor(operator.outputs[0]).name,
            operator=operator.kind,
            hint="convert the model without it, or convert it to ONNX yourself: python -m tf2onnx.convert --tflite MODEL.tflite "
            "--output MODEL.onnx",
        )

    def _is_output(self, index: int) -> bool:
        return index in self.model.outputs

    def _range(self, index: int) -> tuple[float, int] | None:
        return self.tensor(index).int8_range or self._shared.get(index)

    def _remember(self, key: tuple[int, str], name: str) -> None:
        self._names[key] = name
        found = self._range(key[0])
        if found is not None:
            self.ranges[name] = found


def _as_form(value: Array, form: str) -> Array:
    if form == PLAIN or value.ndim == 0 or value.size == 1:
        return value
    placed: Array = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(_TO_NCHW)
    return placed


# Activations that are fused to TFLite's operators.


_ACTIVATIONS: dict[int, tuple[str, tuple[float, ...]]] = {
    1: ("Relu", ()),
    2: ("Clip", (-1.0, 1.0)),
    3: ("Clip", (0.0, 6.0)),
    4: ("Tanh", ()),
}


def emit(
    builder: Builder, operator: TfliteOperator, activation: int, form: str, op: str, inputs: Sequence[str], **attributes: Any
) -> str:
    """The node *op* that makes the result of *operator*, and the activation after it; what the node itself makes.

    :param activation: its number in the file; 0 for none
    """
    if activation and activation not in _ACTIVATIONS:
        raise builder.refusal(operator, f"activation number {activation} is fused to it")
    name = builder.result(operator.outputs[0], form)
    if not activation:
        return builder.node(op, inputs, [name], **attributes)
    linear = builder.node(op, inputs, [builder.free(f"{name}/linear")], **attributes)
    kind, bounds = _ACTIVATIONS[activation]
    if name in builder.ranges and kind in ("Relu", "Clip"):  # quantized values of the result cut off what the activation does
        builder.ranges[linear] = builder.ranges[name]
    builder.node(kind, [linear, *(builder.scalar(bound) for bound in bounds)], [name])
    return linear
