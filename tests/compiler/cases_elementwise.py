"""Element-wise operators: two tensors, a tensor and a constant, activations, chains that become one table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .cases import Build, Cases
from .onnx_builders import Net

ELEMENTWISE = Cases()

_IMAGE = (2, 6, 5, 7)
_BROADCASTS = {
    "same shape": (_IMAGE, _IMAGE),
    "by channel": (_IMAGE, (1, 6, 1, 1)),
    "per channel on the left": ((1, 6, 1, 1), _IMAGE),
    "by pixel": (_IMAGE, (2, 1, 5, 7)),
    "by row": (_IMAGE, (2, 6, 5, 1)),
    "one number": (_IMAGE, (1, 1, 1, 1)),
    "both ways": ((2, 6, 1, 7), (2, 1, 5, 1)),
    "rank 3 on 4": (_IMAGE, (6, 1, 7)),
    "rank 2 on 4": ((5, 7), _IMAGE),
    "rank 1 on 4": (_IMAGE, (7,)),
    "rank 0 on 4": (_IMAGE, ()),
    "rank 3": ((2, 5, 6), (1, 5, 6)),
    "rank 2 on 3": ((2, 5, 6), (5, 1)),
    "rank 2": ((4, 6), (4, 6)),
    "rank 1 on 2": ((4, 6), (6,)),
    "rank 5": ((1, 2, 3, 4, 5), (1, 2, 1, 4, 5)),
}


def _two(op: str, left: tuple[int, ...], right: tuple[int, ...]) -> Build:
    return lambda net: net.output(net.op(op, net.input("a", left), net.input("b", right)))


for _op in ("Add", "Sub", "Mul", "Max", "Min"):
    for _name, (_left, _right) in _BROADCASTS.items():
        # an operand whose channels do not come last is brought into the order of the other first
        _kinds = ("Transpose", _op) if _name == "rank 3 on 4" else (_op,)
        ELEMENTWISE.add(f"{_op} {_name}", _two(_op, _left, _right), steps=2.1, kinds=_kinds)
ELEMENTWISE.add("Add opset 7", _two("Add", _IMAGE, (1, 6, 1, 1)), opset=7, steps=2.1, kinds=("Add",))
ELEMENTWISE.add(
    "Div of two",
    lambda net: net.output(net.op("Div", net.input("a", _IMAGE), net.op("Exp", net.input("b", _IMAGE)))),
    integer=False,
    steps=2.1,
)


def _two_layouts(shape: tuple[int, ...], perm: list[int]) -> Build:
    """One operand lies channels-last, the other row-major."""

    def build(net: Net) -> None:
        a = net.conv(net.input("a", (1, 6, 5, 7)), 6, 1)
        b = net.op("Transpose", net.op("Relu", net.input("b", shape)), perm=perm)
        net.output(net.op("Sub", a, b))

    return build


ELEMENTWISE.add("Sub of unlike layouts", _two_layouts((1, 5, 7, 6), [0, 3, 1, 2]), steps=4.0)
ELEMENTWISE.add("Sub of unlike layouts, transposed rows", _two_layouts((1, 6, 7, 5), [0, 1, 3, 2]), steps=4.0)


def _lower_rank_from_conv(net: Net) -> None:
    """An operand of lower rank that itself lies channels-last in memory."""
    a = net.conv(net.input("a", (1, 6, 5, 7)), 6, 1)
    b = net.conv(net.input("b", (6, 5, 7)), 5, (1,))
    net.output(net.op("Add", a, b))


ELEMENTWISE.add("Add of an image and a row of rank 3", _lower_rank_from_conv, steps=4.0)


def _with_constant(op: str, value: Any, *, left: bool = False, shape: tuple[int, ...] = _IMAGE) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", shape)
        constant = net.constant(value) if isinstance(value, float) else net.weights(*value, shift=1.5, scale=0.2)
        net.output(net.op(op, constant, x) if left else net.op(op, x, constant))

    return build


for _op, _value, _is_left in (
    ("Add", 0.7, False),
    ("Add", 0.7, True),
    ("Sub", 0.7, False),
    ("Sub", 0.7, True),
    ("Mul", -1.3, False),
    ("Mul", -1.3, True),
    ("Div", 3.0, False),
    ("Max", 0.1, False),
    ("Max", 0.1, True),
    ("Min", 0.1, True),
    ("Pow", 2.0, False),
    ("Pow", 2.0, True),
):
    for _shape in (_IMAGE, (3, 9)):
        _side = "number and tensor" if _is_left else "tensor and number"
        ELEMENTWISE.add(
            f"{_op} {_side} rank {len(_shape)}", _with_constant(_op, _value, left=_is_left, shape=_shape), steps=2.6, kinds=(_op,)
        )
ELEMENTWISE.add("Div number by tensor", _with_constant("Div", 1.0, left=True), steps=4.0, low=0.5, high=1.0, kinds=("Div",))
for _op in ("Add", "Sub", "Mul", "Div"):
    for _vector in ((1, 6, 1, 1), (6, 1, 1)):
        ELEMENTWISE.add(f"{_op} constant per channel {_vector}", _with_constant(_op, _vector), steps=2.1, kinds=("Conv",))
ELEMENTWISE.add("Sub tensor from constant per channel", _with_constant("Sub", (6, 1, 1), left=True), steps=2.1, kinds=("Conv",))
ELEMENTWISE.add("Add constant per channel rank 3", _with_constant("Add", (1, 5, 1), shape=(2, 5, 6)), steps=2.1, kinds=("Conv",))
ELEMENTWISE.add("Mul constant of the whole shape", _with_constant("Mul", _IMAGE), steps=1.5)
ELEMENTWISE.add(
    "Add constant that widens the shape", _with_constant("Add", (2, 6, 1, 1), shape=(1, 6, 5, 7)), integer=False, steps=0.3
)
ELEMENTWISE.add("Max constant per channel", _with_constant("Max", (6, 1, 1)), steps=3.0)


def _several(op: str, count: int) -> Build:
    return lambda net: net.output(net.op(op, *(net.input(f"x{index}", _IMAGE) for index in range(count))))


for _op in ("Sum", "Max", "Min"):
    ELEMENTWISE.add(f"{_op} of three", _several(_op, 3), steps=3.1)
ELEMENTWISE.add("Sum of two", _several("Sum", 2), steps=2.1, kinds=("Add",))
ELEMENTWISE.add("Sum of one", lambda net: net.output(net.op("Relu", net.op("Sum", net.input("x", _IMAGE)))))


def _activation(op: str, **attributes: Any) -> Build:
    return lambda net: net.output(net.op(op, net.input("x", _IMAGE), **attributes))


_ACTIVATIONS: dict[str, dict[str, Any]] = {
    **{op: {} for op in ("Abs", "Atan", "Celu", "Cos", "Elu", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Neg", "Relu", "Selu")},
    **{op: {} for op in ("Sigmoid", "Sin", "Softplus", "Softsign", "Tanh", "ThresholdedRelu")},
}
for _op in _ACTIVATIONS:
    ELEMENTWISE.add(f"{_op} alone", _activation(_op), steps=3.0, kinds=(_op,), low=-2.0, high=2.0)
ELEMENTWISE["ThresholdedRelu alone"] = type(ELEMENTWISE["ThresholdedRelu alone"])(
    _activation("ThresholdedRelu", alpha=0.0), steps=2.1, kinds=("ThresholdedRelu",), low=-3.0, high=3.0
)
for _op, _given in {
    "Celu": {"alpha": 0.6},
    "Elu": {"alpha": 0.6},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "LeakyRelu": {"alpha": 0.3},
    "Selu": {"alpha": 1.2, "gamma": 0.8},
}.items():
    ELEMENTWISE.add(f"{_op} with attributes", _activation(_op, **_given), steps=2.1, kinds=(_op,), low=-3.0, high=3.0)
ELEMENTWISE.add("HardSwish opset 14", _activation("HardSwish"), opset=14, steps=2.1, kinds=("HardSwish",), low=-4.0, high=4.0)
ELEMENTWISE.add("Mish opset 18", _activation("Mish"), opset=18, steps=2.1, kinds=("Mish",), low=-4.0, high=4.0)
ELEMENTWISE.add("Gelu opset 20", _activation("Gelu"), opset=20, steps=2.1, kinds=("Gelu",), low=-4.0, high=4.0)
ELEMENTWISE.add("Gelu by tanh", _activation("Gelu", approximate="tanh"), opset=20, steps=2.1, kinds=("Gelu",), low=-4.0, high=4.0)
for _op in ("Log", "Sqrt", "Reciprocal"):
    ELEMENTWISE.add(f"{_op} alone", _activation(_op), steps=4.0, kinds=(_op,), low=0.5, high=2.0)


def _staircase(op: str) -> Build:
    """Ceil, Floor, Round and Sign jump: inputs are moved away from the jumps first."""

    def build(net: Net) -> None:
        x = net.op("Add", net.op("Mul", net.op("Relu", net.input("x", _IMAGE)), net.constant(0.5)), net.constant(1.2))
        net.output(net.op(op, x))

    return build


for _op in ("Ceil", "Floor"):
    ELEMENTWISE.add(f"{_op} after a chain", _staircase(_op), kinds=("Lut",), high=0.5)
ELEMENTWISE.add("Sign after a chain", _staircase("Sign"), kinds=("Lut",))


def _clip(form: str, low: float | None, high: float | None, before: bool = False) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", _IMAGE)
        if before:
            x = net.conv(x, 6, 1)
        if form == "attributes":
            given: dict[str, Any] = {key: value for key, value in (("min", low), ("max", high)) if value is not None}
            net.output(net.op("Clip", x, **given))
        else:
            bounds = ["" if value is None else net.constant(value) for value in (low, high)]
            net.output(net.op("Clip", x, *(bounds if high is not None else bounds[:1])))

    return build


for _opset in (7, 10):
    ELEMENTWISE.add(f"Clip attributes opset {_opset}", _clip("attributes", -0.3, 0.6), opset=_opset, steps=2.2, kinds=("Clip",))
ELEMENTWISE.add("Clip attribute max only", _clip("attributes", None, 0.6), opset=7, steps=2.2, kinds=("Clip",))
ELEMENTWISE.add("Clip attribute min only", _clip("attributes", -0.3, None), opset=7, steps=2.2, kinds=("Clip",))
for _opset in (11, 13):
    ELEMENTWISE.add(f"Clip inputs opset {_opset}", _clip("inputs", 0.0, 0.6), opset=_opset, steps=2.2, kinds=("Clip",))
ELEMENTWISE.add("Clip input max only", _clip("inputs", None, 0.6), steps=2.2, kinds=("Clip",))
ELEMENTWISE.add("Clip input min only", _clip("inputs", -0.3, None), steps=2.2, kinds=("Clip",))
ELEMENTWISE.add("Clip after Conv", _clip("inputs", 0.0, 0.6, before=True), steps=6.0, kinds=("ConvClip",))


def _clip_by_input(net: Net) -> None:
    net.output(net.op("Clip", net.input("x", _IMAGE), net.constant(-0.5), net.input("high", ())))


ELEMENTWISE.add("Clip with a computed bound", _clip_by_input, integer=False, steps=0.3)


def _prelu(slope: tuple[int, ...], *, before: str = "Conv", shape: tuple[int, ...] = _IMAGE) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", shape)
        y = net.conv(x, 6, (3,) * (len(shape) - 2)) if before == "Conv" else net.op(before, x) if before else x
        net.output(net.op("PRelu", y, net.weights(*slope, scale=0.3)))

    return build


ELEMENTWISE.add("PRelu per channel after Conv", _prelu((6, 1, 1)), steps=4.0, kinds=("ConvPRelu",))
ELEMENTWISE.add("PRelu of one slope after Conv", _prelu((1,)), steps=4.0, kinds=("ConvPRelu",))
ELEMENTWISE.add("PRelu after Conv 1d", _prelu((6, 1), shape=(2, 6, 9)), steps=4.0, kinds=("ConvPRelu",))
ELEMENTWISE.add("PRelu alone", _prelu((6, 1, 1), before=""), steps=2.1, kinds=("ConvPRelu",))
ELEMENTWISE.add("PRelu after Tanh", _prelu((6, 1, 1), before="Tanh"), steps=2.1, kinds=("Tanh", "ConvPRelu"))
ELEMENTWISE.add("PRelu by column", _prelu((7,), before=""), integer=False, steps=2.1)
ELEMENTWISE.add("PRelu rank 3 alone", _prelu((6, 1), before="", shape=(2, 6, 9)), steps=3.0)


def _steep(op: str, *slopes: float, shape: tuple[int, ...] = _IMAGE) -> Build:
    """A slope beyond 4, the largest of one layer, after a convolution."""

    def build(net: Net) -> None:
        y = net.conv(net.input("x", shape), 6, (3,) * (len(shape) - 2))
        if op == "PRelu":
            net.output(net.op(op, y, net.constant(np.float32(slopes).reshape(-1, *[1] * (len(shape) - 2)))))
        else:
            net.output(net.op(op, y, alpha=slopes[0]))

    return build


_STEEP = (5.3, 0.25, -6.0, 1.0, 20.0, 4.0)
ELEMENTWISE.add("PRelu beyond 4 after Conv", _steep("PRelu", *_STEEP), steps=6.0, kinds=("ConvPRelu",) * 3)
ELEMENTWISE.add("PRelu beyond 4 after Conv 1d", _steep("PRelu", 5.3, shape=(2, 6, 9)), steps=6.0, kinds=("ConvPRelu",) * 2)
ELEMENTWISE.add("LeakyRelu beyond 4 after Conv", _steep("LeakyRelu", 5.3), steps=6.0, kinds=("ConvLut",))


def _prelu_of_shared(shape: tuple[int, ...]) -> Build:
    """The convolution is read by the PRelu and by another node: its result must stay."""

    def build(net: Net) -> None:
        y = net.conv(net.input("x", shape), 6, (3,) * (len(shape) - 2))
        net.output(net.op("Concat", y, net.op("PRelu", y, net.weights(6, *[1] * (len(shape) - 2), scale=0.3)), axis=1))

    return build


ELEMENTWISE.add("PRelu of a tensor with two readers", _prelu_of_shared(_IMAGE), steps=4.0)
ELEMENTWISE.add("PRelu of a tensor of rank 3 with two readers", _prelu_of_shared((2, 6, 9)), steps=4.0)


def hard_swish(net: Net, x: str) -> str:
    y = net.op("Clip", net.op("Add", x, net.constant(3.0)), net.constant(0.0), net.constant(6.0))
    return net.op("Div", net.op("Mul", x, y), net.constant(6.0))


def hard_swish_by_sigmoid(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5))


def swish(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", x))


def mish(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("Tanh", net.op("Softplus", x)))


def gelu(net: Net, x: str) -> str:
    y = net.op("Add", net.op("Erf", net.op("Div", x, net.constant(math.sqrt(2.0)))), net.constant(1.0))
    return net.op("Mul", net.op("Mul", x, y), net.constant(0.5))


def hard_sigmoid(net: Net, x: str) -> str:
    y = net.op("Clip", net.op("Add", x, net.constant(3.0)), net.constant(0.0), net.constant(6.0))
    return net.op("Div", y, net.constant(6.0))


CHAINS = {
    "HardSwish": hard_swish,
    "HardSwish by HardSigmoid": hard_swish_by_sigmoid,
    "Swish": swish,
    "Mish": mish,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
}


def _chain(label: str, place: str) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", _IMAGE)
        if place == "Conv":
            x = net.conv(x, 6, 3)
        elif place == "Add":
            x = net.op("Add", x, net.input("other", _IMAGE))
        elif place == "AveragePool":
            x = net.op("AveragePool", x, kernel_shape=[2, 2])
        net.output(CHAINS[label](net, x))

    return build


for _name in CHAINS:
    for _place, _steps in (("", 2.1), ("Conv", 6.0), ("Add", 4.0), ("AveragePool", 3.0)):
        # the first Add of this chain goes into the bias of the convolution, and what remains has no name
        _label = "Lut" if (_name, _place) == ("HardSigmoid", "Conv") else _name.split()[0]
        ELEMENTWISE.add(
            f"{_name} chain after {_place or 'the input'}",
            _chain(_name, _place),
            steps=_steps,
            kinds=(f"{_place}{_label}",),
            low=-4.0,
            high=4.0,
        )


def _chain_with_two_readers(net: Net) -> None:
    """The middle of a chain is read by a convolution too, so it has to exist."""
    x = net.op("Tanh", net.input("x", (1, 4, 6, 6)))
    middle = net.op("Mul", x, net.constant(2.0))
    net.output(net.op("Add", net.conv(middle, 4, 1, cin=4), net.op("Sigmoid", middle)))


def _two_functions_of_one(net: Net) -> None:
    """Both operands are functions of one tensor: the whole is one table."""
    x = net.input("x", _IMAGE)
    net.output(net.op("Sub", net.op("Sigmoid", x), net.op("Max", net.op("Mul", x, x), net.constant(0.2))))


def _doublings(net: Net) -> None:
    """Thirty doublings: a table whose evaluation must not take 2**30 steps."""
    y = net.input("x", _IMAGE)
    for _ in range(30):
        y = net.op("Tanh", net.op("Add", y, y))
    net.output(y)


def _long_chain(net: Net) -> None:
    """More nodes in a row than Python can nest calls."""
    y = net.input("x", (1, 2, 3, 3))
    for index in range(600):
        y = net.op("Neg", y) if index % 2 else net.op("Abs", y)
    net.output(y)


def _clips_in_a_row(net: Net) -> None:
    y = net.op("Relu", net.conv(net.input("x", (1, 4, 6, 6)), 4))
    net.output(net.op("Clip", y, net.constant(-1.0), net.constant(0.5)))


def _contradicting_clips(net: Net) -> None:
    y = net.op("Clip", net.conv(net.input("x", (1, 4, 6, 6)), 4), net.constant(0.5), net.constant(1.0))
    net.output(net.op("Clip", y, net.constant(-1.0), net.constant(0.2)))


ELEMENTWISE.add("chain with two readers", _chain_with_two_readers, steps=6.0)
ELEMENTWISE.add("two functions of one tensor", _two_functions_of_one, steps=3.0, kinds=("Lut",))
ELEMENTWISE.add("thirty doublings", _doublings, steps=1.1, kinds=("Lut",), low=0.3)
ELEMENTWISE.add("a chain of 600 nodes", _long_chain, steps=2.1)
ELEMENTWISE.add("two clips in a row", _clips_in_a_row, steps=4.0, kinds=("ConvClip",))
ELEMENTWISE.add("clips without a common range", _contradicting_clips, steps=2.1)
