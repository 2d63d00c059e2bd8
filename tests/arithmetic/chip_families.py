"""Random small networks by operator family: an ONNX model, the scale of every tensor, input quantized values, and what the
oracle makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import chip_oracle as chip
from .chip_oracle import Array, Codes, F, Product

Rng = np.random.Generator


@dataclass
class Net:
    """A network that grows node by node, with the quantized values that the oracle computes for each tensor.

    :ivar tensors: by ONNX name, without the batch
    :ivar free: tensors whose scale the compiler must find on its own
    :ivar curves: how activations after products end: a method of :class:`Product`
    """

    rng: Rng
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    tensors: dict[str, Codes] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    free: set[str] = field(default_factory=set)
    curves: str = "curve"

    def input(self, shape: Sequence[int], scale: float | None = None, zero: int | None = None) -> str:
        """A new input with random quantized values."""
        name = f"input{len(self.inputs)}"
        values = self.rng.integers(-128, 128, shape).astype(object)
        scale = float(F(self.rng.uniform(0.01, 0.1))) if scale is None else scale
        self.tensors[name] = Codes(values, scale, int(self.rng.integers(-128, 128)) if zero is None else zero)
        self.inputs.append(name)
        return name

    def constant(self, value: Array) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op: str, inputs: Sequence[str], result: Codes, **attributes: Any) -> str:
        """A node, and the quantized values of its result."""
        name = self.plain(op, inputs, **attributes)
        self.tensors[name] = result
        return name

    def plain(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node whose result no scale is known of."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def scale(self, low: float, high: float) -> tuple[float, int]:
        """A scale and a zero point for numbers between two limits, now and then too narrow."""
        span = max(high, 0.0) - min(low, 0.0)
        # not next to nothing: a factor of more than 15 bits has no place in a program of the chip
        scale = float(F(max(span, 1e-3) / 255 * self.rng.uniform(0.7, 1.1)))
        return scale, chip.clip8(round(-128 - min(low, 0.0) / scale))

    def spread(self, x: str, taps: int, weights: Array) -> tuple[float, int]:
        """A scale for a sum of products of *x* with weights."""
        codes = self.tensors[x]
        size = math.sqrt(float(np.mean((codes.values.astype(float) - codes.zero) ** 2)))
        reach = 2 * size * codes.scale * math.sqrt(taps) * float(np.abs(weights).mean())
        middle = codes.scale * float(np.mean(codes.values.astype(float) - codes.zero)) * float(weights.mean()) * taps
        return self.scale(middle - reach, middle + reach)

    def model(self, output: str) -> onnx.ModelProto:
        def info(name: str, rank_of: Codes) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, *rank_of.shape])

        graph = helper.make_graph(
            self.nodes,
            "family",
            [info(name, self.tensors[name]) for name in self.inputs],
            [info(output, self.tensors[output])],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    @property
    def ranges(self) -> dict[str, tuple[float, int]]:
        return {name: (codes.scale, codes.zero) for name, codes in self.tensors.items() if name not in self.free}


@dataclass
class Geometry:
    """A convolution's shape."""

    channels: int
    outs: int
    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]

    def fit(self, extents: Sequence[int]) -> None:
        """A kernel that reaches beyond the padded image becomes one of a single row or column."""
        padded = [extent + self.pads[axis] + self.pads[axis + 2] for axis, extent in enumerate(extents)]
        reach = [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]
        rows, columns = (1 if far > extent else size for size, far, extent in zip(self.kernel, reach, padded, strict=True))
        self.kernel = (rows, columns)

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides),
            "pads": list(self.pads),
            "dilations": list(self.dilations),
            "group": self.groups,
        }


def geometry(rng: Rng, kind: str) -> Geometry:
    pair = lambda low, high: tuple(int(v) for v in rng.integers(low, high, 2))  # noqa: E731
    kernel, strides, dilations = pair(1, 4), pair(1, 3), pair(1, 3) if kind == "dilated" else (1, 1)
    pads = (*pair(0, 2), *pair(0, 2))
    if kind == "depthwise":
        channels = int(rng.integers(2, 20))
        return Geometry(channels, channels, channels, kernel, strides, pads, dilations)  # type: ignore[arg-type]
    groups = int(rng.integers(2, 4)) if kind == "grouped" else 1
    channels, outs = groups * int(rng.integers(1, 9)), groups * int(rng.integers(1, 7))
    if kind == "grouped" and channels == groups == outs:
        channels *= 2
    return Geometry(channels, outs, groups, kernel, strides, pads, dilations)  # type: ignore[arg-type]


def random_weights(rng: Rng, shape: Sequence[int]) -> Array:
    """Rows of different size, some of one sign only."""
    rows = rng.uniform(0.02, 0.4, (shape[0], *(1,) * (len(shape) - 1)))
    values = rng.uniform(-1, 1, tuple(shape)) * rows
    one_sign = rng.random(shape[0]) < 0.2
    values[one_sign] = np.abs(values[one_sign]) * rng.choice([-1, 1])
    return np.asarray(values, F)


def convolution(net: Net, x: str, kind: str, activation: str = "") -> str:
    rng = net.rng
    shape = geometry(rng, kind)
    channels = net.tensors[x].shape[0]
    if kind == "depthwise":
        shape.channels = shape.outs = shape.groups = channels
    elif kind == "grouped":
        shape.groups = next(g for g in (2, 3, 5, 7, 1) if channels % g == 0)
        shape.outs = shape.groups * int(rng.integers(2, 5))
        shape.channels = channels
    else:
        shape.channels = channels
    shape.fit(net.tensors[x].shape[1:])
    weights = random_weights(rng, (shape.outs, shape.channels // shape.groups, *shape.kernel))
    scale, zero = net.spread(x, math.prod(weights.shape[1:]), weights)
    bias = None if rng.random() < 0.2 else rng.uniform(-40 * scale, 40 * scale, shape.outs).astype(F)
    options = {"strides": shape.strides, "pads": shape.pads, "dilations": shape.dilations, "groups": shape.groups}
    inputs = [x, net.constant(weights)] + ([net.constant(bias)] if bias is not None else [])

    def made(scale: float, zero: int, ending: Callable[[Product], chip.Ending] = Product.plain) -> Codes:
        return chip.conv(net.tensors[x], weights, bias, scale, zero, ending, **options)  # type: ignore[arg-type]

    if not activation:
        return net.node("Conv", inputs, made(scale, zero), **shape.attributes)
    before = net.plain("Conv", inputs, **shape.attributes)
    reach = 127 * scale
    return activated(net, before, activation, made, reach, shape.outs)


def activated(net: Net, before: str, activation: str, made: Callable[..., Codes], reach: float, outs: int) -> str:
    rng = net.rng
    if activation == "Relu":
        scale, zero = net.scale(0.0, reach)
        return net.node("Relu", [before], made(scale, zero, lambda p: p.plain(0.0)))
    if activation == "Clip":
        low, high = -float(rng.uniform(0, reach)), float(rng.uniform(0, reach))
        bounds = [net.constant(np.array(value, F)) for value in (low, high)]
        low, high = float(F(low)), float(F(high))
        return net.node("Clip", [before, *bounds], made(*net.scale(low, high), lambda p: p.plain(low, high)))
    if activation == "LeakyRelu":
        alpha = float(F(rng.uniform(0.01, 0.5)))
        result = made(*net.scale(-reach * alpha, reach), lambda p: p.leaky([alpha]))
        return net.node("LeakyRelu", [before], result, alpha=alpha)
    if activation == "PRelu":
        slopes = rng.uniform(0.01, 0.9, outs).astype(F)
        result = made(*net.scale(-reach / 2, reach), lambda p: p.leaky(slopes))
        return net.node("PRelu", [before, net.constant(slopes.reshape(-1, 1, 1))], result)
    function = chip.FUNCTIONS[activation]
    values = [function(x) for x in np.linspace(-min(reach, 30.0), min(reach, 30.0), 101)]
    result = made(*net.scale(min(values), max(values)), lambda p: getattr(p, net.curves)(activation))
    return curve_nodes(net, before, activation, result)


def curve_nodes(net: Net, before: str, name: str, result: Codes) -> str:
    if name == "Swish":
        return net.node("Mul", [before, net.plain("Sigmoid", [before])], result)
    if name == "HardSigmoid":
        return net.node("HardSigmoid", [before], result, alpha=0.2, beta=0.5)
    return net.node(name, [before], result)


def image(net: Net, channels: int = 0) -> str:
    rng = net.rng
    return net.input((channels or int(rng.integers(2, 7)), int(rng.integers(4, 8)), int(rng.integers(4, 8))))


def conv_family(kind: str, activations: Sequence[str]) -> Callable[[Net], str]:
    def build(net: Net) -> str:
        return convolution(net, image(net), kind, str(net.rng.choice(list(activations))))

    return build


def _same_size(net: Net, x: str, outs: int, groups: int = 1, kernel: int = 3) -> tuple[list[str], Array, Array, dict[str, Any]]:
    """The constants and attributes of a convolution that keeps the image's size."""
    rng, channels = net.rng, net.tensors[x].shape[0]
    weights = random_weights(rng, (outs, channels // groups, kernel, kernel))
    bias = rng.uniform(-1, 1, outs).astype(F)
    attributes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": groups}
    return [x, net.constant(weights), net.constant(bias)], weights, bias, attributes


def sums(net: Net) -> str:
    """A tensor that is added in a convolution: one rounding, with Relu too; an activation with a table takes the rounded sum."""
    x = image(net)
    inputs, weights, bias, attributes = _same_size(net, x, net.tensors[x].shape[0])
    scale, zero = net.spread(x, weights[0].size, weights)
    before = net.plain("Conv", inputs, **attributes)
    activation = str(net.rng.choice(["", "Relu", "Swish", "Tanh"]))
    options = {"pads": [1] * 4, "added": net.tensors[x]}
    if activation == "Relu":
        scale, zero = net.scale(0.0, 127 * scale)
        made = chip.conv(net.tensors[x], weights, bias, scale, zero, limits=(0.0, math.inf), **options)
        return net.node("Relu", [net.plain("Add", [before, x])], made)
    made = chip.conv(net.tensors[x], weights, bias, scale, zero, **options)
    total = net.node("Add", [before, x] if net.rng.random() < 0.5 else [x, before], made)
    if not activation:
        return total
    values = [chip.FUNCTIONS[activation](code * scale) for code in (-128 - zero, -zero, 127 - zero)]
    return function_of(net, total, activation, *net.scale(min(values), max(values)))


def depthwise_roundings(net: Net) -> str:
    """After a depthwise convolution LeakyRelu takes its quantized values, as tables do, but Elu the sum."""
    x = image(net)
    channels = net.tensors[x].shape[0]
    inputs, weights, bias, attributes = _same_size(net, x, channels, channels)
    scale, zero = net.spread(x, 9, weights)
    options = {"pads": [1] * 4, "groups": channels}
    activation = str(net.rng.choice(["LeakyRelu", "Elu", "Sigmoid"]))
    if activation == "Elu":
        result = net.scale(-1.0, 127 * scale)
        made = chip.conv(net.tensors[x], weights, bias, *result, lambda p: p.curve("Elu"), **options)
        return net.node("Elu", [net.plain("Conv", inputs, **attributes)], made)
    before = net.node("Conv", inputs, chip.conv(net.tensors[x], weights, bias, scale, zero, **options), **attributes)
    if activation == "Sigmoid":
        return function_of(net, before, activation, float(F(1 / 255)), -128)
    alpha = float(F(net.rng.uniform(0.01, 0.5)))
    result = chip.leak(net.tensors[before], alpha, *net.scale(-127 * scale * alpha, 127 * scale))
    return net.node("LeakyRelu", [before], result, alpha=alpha)


def split_concats(net: Net) -> str:
    """Parts of a Concat that are no multiples of 8: the second convolution has quantized values of its own, the others take the
    sum so far."""
    rng = net.rng
    parts = [image(net, int(rng.integers(1, 8)))]
    parts += [net.input((int(rng.integers(1, 9)), *net.tensors[parts[0]].shape[1:])) for _ in range(int(rng.integers(1, 3)))]
    joined = net.plain("Concat", parts, axis=1)
    sizes = [net.tensors[name].shape[0] for name in parts]
    weights = random_weights(rng, (4, sum(sizes), 3, 3))
    bias = rng.uniform(-1, 1, 4).astype(F)
    inputs = [joined, net.constant(weights), net.constant(bias)]
    output = net.plain("Conv", inputs, kernel_shape=[3, 3], pads=[1] * 4)
    columns = np.split(weights, np.cumsum(sizes)[:-1], axis=1)
    names = [f"{name}_conv" for name in parts]  # as the toolkit calls them

    def part(number: int, scale: float, zero: int, added: chip.Codes | None = None) -> chip.Codes:
        own = bias if number == len(parts) - 1 else None
        return chip.conv(net.tensors[parts[number]], columns[number], own, scale, zero, pads=[1] * 4, added=added)

    spreads = [net.spread(name, own[0].size, own) for name, own in zip(parts, columns, strict=True)]
    net.tensors[names[1]] = part(1, *spreads[1])
    total, stem, reach = names[1], names[0], 100 * spreads[1][0]
    for number in (0, *range(2, len(parts))):
        last = number == len(parts) - 1 or len(parts) == 2
        stem = output if last else f"{stem}_add"
        reach += 100 * spreads[number][0]
        net.tensors[stem] = part(number, *net.scale(-reach, reach), net.tensors[total])
        total = stem
    return output


def merged_sums(net: Net) -> str:
    """Two convolutions of one input that are added: one with the sum of the weights."""
    x = image(net)
    kernel = int(net.rng.choice([1, 3]))
    inputs, weights, bias, attributes = _same_size(net, x, 4)
    others, extra, more, plain = _same_size(net, x, 4, kernel=kernel)
    whole = weights.copy()
    edge = (3 - kernel) // 2
    whole[:, :, edge : edge + kernel, edge : edge + kernel] += extra
    made = chip.conv(net.tensors[x], whole, bias + more, *net.spread(x, whole[0].size, whole), pads=[1] * 4)
    return net.node("Add", [net.plain("Conv", inputs, **attributes), net.plain("Conv", others, **plain)], made)


def transposed(net: Net) -> str:
    rng = net.rng
    groups = int(rng.integers(1, 3))
    x = image(net, groups * int(rng.integers(1, 4)))
    channels = net.tensors[x].shape[0]
    kernel, stride = [int(v) for v in rng.integers(2, 5, 2)], [int(v) for v in rng.integers(1, 3, 2)]
    pads = [int(v) for v in rng.integers(0, 2, 4)]
    weights = random_weights(rng, (channels, int(rng.integers(1, 4)), *kernel))
    bias = rng.uniform(-1, 1, weights.shape[1] * groups).astype(F)
    scale, zero = net.spread(x, channels // groups * 4, weights)
    result = chip.transposed(net.tensors[x], weights, bias, scale, zero, strides=stride, pads=pads, groups=groups)
    attributes = {"kernel_shape": kernel, "strides": stride, "pads": pads, "group": groups}
    return net.node("ConvTranspose", [x, net.constant(weights), net.constant(bias)], result, **attributes)


def dense(net: Net) -> str:
    rng = net.rng
    features, outs = int(rng.integers(2, 40)), int(rng.integers(1, 12))
    weights = random_weights(rng, (outs, features)).T.copy()
    bias = rng.uniform(-1, 1, outs).astype(F)
    activation = str(rng.choice(["", "Relu", "Sigmoid", "Mish"]))
    if rng.random() < 0.5:
        x = net.input((int(rng.integers(1, 5)), features))
        inputs, op, attributes, offset = [x, net.constant(weights)], "MatMul", {}, None
    else:
        x = net.input((features,))
        inputs = [x, net.constant(np.ascontiguousarray(weights.T)), net.constant(bias)]
        op, attributes, offset = "Gemm", {"transB": 1}, bias
    scale, zero = net.spread(x, features, weights)

    def made(scale: float, zero: int, ending: Callable[[Product], chip.Ending] = Product.plain) -> Codes:
        return chip.dense(net.tensors[x], weights, offset, scale, zero, ending)

    if not activation:
        return net.node(op, inputs, made(scale, zero), **attributes)
    return activated(net, net.plain(op, inputs, **attributes), activation, made, 127 * scale, outs)


def binary(op: str) -> Callable[[Net], str]:
    def build(net: Net) -> str:
        a = image(net)
        codes = net.tensors[a]
        ratio = float(net.rng.choice([1.0, net.rng.uniform(0.05, 20.0)]))
        b = net.input(codes.shape, float(F(codes.scale * ratio)))
        tops = [[(edge - net.tensors[name].zero) * net.tensors[name].scale for edge in (-128, 127)] for name in (a, b)]
        combine = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}[op]
        values = combine.outer(*(np.array(top) for top in tops)).ravel()
        return net.node(op, [a, b], chip.binary(op, codes, net.tensors[b], *net.scale(values.min(), values.max())))

    return build


def quotient(net: Net) -> str:
    """Of two results of layers: the board divides on its CPU. The divisor is never zero."""
    x, y = image(net), ""
    parts = []
    for low in (-5.0, -1.5):
        channels = net.tensors[x].shape[0]
        weights = np.eye(channels, dtype=F).reshape(channels, channels, 1, 1) * F(3.0 / (127 * net.tensors[x].scale))
        bias = np.full(channels, low + 3.0 if low < -2 else 2.0, F)
        inputs = [x, net.constant(weights), net.constant(bias)]
        y = net.plain("Conv", inputs, kernel_shape=[1, 1])
        made = chip.conv(net.tensors[x], weights, bias, float(F(1 / 255)), -128, lambda p: p.curve("Sigmoid"))
        parts.append(net.node("Sigmoid", [y], made))
    return net.node("Div", parts, chip.quotient(*(net.tensors[name] for name in parts), *net.scale(0.0, 2.0)))


def function_of(net: Net, x: str, name: str, scale: float, zero: int) -> str:
    return curve_nodes(net, x, name, chip.function(net.tensors[x], name, scale, zero))


def functions(net: Net) -> str:
    """An activation of quantized values, and one after a depthwise convolution, which is one too."""
    name = str(net.rng.choice(list(chip.FUNCTIONS)))
    x = image(net)
    codes = net.tensors[x]
    values = [chip.FUNCTIONS[name](code * codes.scale) for code in (-128 - codes.zero, -codes.zero, 127 - codes.zero)]
    return function_of(net, x, name, *net.scale(min(values), max(values)))


def averages(net: Net) -> str:
    rng = net.rng
    x = image(net)
    kernel, strides = [int(v) for v in rng.integers(1, 4, 2)], [int(v) for v in rng.integers(1, 3, 2)]
    pads = [int(min(v, size - 1)) for v, size in zip(rng.integers(0, 2, 4), kernel * 2, strict=True)]
    include = bool(rng.integers(0, 2))
    result = chip.average(net.tensors[x], kernel, strides, pads, include)
    return net.node("AveragePool", [x], result, kernel_shape=kernel, strides=strides, pads=pads, count_include_pad=int(include))


def maxima(net: Net) -> str:
    x = image(net)
    kernel, stride = int(net.rng.integers(2, 4)), int(net.rng.integers(1, 3))
    result = chip.maximum(net.tensors[x], kernel, stride)
    return net.node("MaxPool", [x], result, kernel_shape=[kernel] * 2, strides=[stride] * 2)


def resizes(net: Net) -> str:
    """Nearest, to a result with another scale."""
    rng = net.rng
    x = image(net)
    codes = net.tensors[x]
    scale = codes.scale if rng.random() < 0.3 else float(F(codes.scale * rng.uniform(0.5, 2.0)))
    made = chip.requantised(codes, scale, codes.zero if scale == codes.scale else int(rng.integers(-128, 128)))
    factor = int(rng.integers(2, 4))
    result = Codes(made.values.repeat(factor, 1).repeat(factor, 2), made.scale, made.zero)
    scales = net.constant(np.array([1, 1, factor, factor], np.float32))
    modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net.node("Resize", [x, "", scales], result, **modes)


def joins(net: Net) -> str:
    """Concat and a Transpose: quantized values are copied."""
    x = image(net)
    codes = net.tensors[x]
    y = net.input((int(net.rng.integers(1, 5)), *codes.shape[1:]), codes.scale, codes.zero)
    joined = Codes(np.concatenate([codes.values, net.tensors[y].values]), codes.scale, codes.zero)
    both = net.node("Concat", [x, y], joined, axis=1)
    turned = Codes(joined.values.transpose(0, 2, 1), codes.scale, codes.zero)
    return net.node("Transpose", [both], turned, perm=[0, 1, 3, 2])


def matrices(net: Net) -> str:
    rows, inner, columns = (int(v) for v in net.rng.integers(1, 9, 3))
    a, b = net.input((rows, inner)), net.input((inner, columns))
    one, two = net.tensors[a], net.tensors[b]
    reach = 90 * one.scale * 90 * two.scale * math.sqrt(inner)
    return net.node("MatMul", [a, b], chip.product_of_two(one, two, *net.scale(-reach, reach)))


def chains(net: Net) -> str:
    """Several layers one after the other, with a branch."""
    x = convolution(net, net.input((3, 24, 20)), "dense", "Relu")
    y = convolution(net, x, str(net.rng.choice(["depthwise", "grouped"])), "Clip")
    return convolution(net, convolution(net, y, "dense", "Swish"), "dense")


FAMILIES: dict[str, Callable[[Net], str]] = {
    "conv": conv_family("dense", [""]),
    "conv, limits": conv_family("dense", ["Relu", "Clip"]),
    "conv, slopes": conv_family("dense", ["LeakyRelu", "PRelu"]),
    "conv, curves": conv_family("dense", list(chip.FUNCTIONS)),
    "conv, dilated": conv_family("dilated", ["", "Relu"]),
    "conv, grouped": conv_family("grouped", ["", "Relu", "Mish", "Tanh"]),
    "conv, depthwise": conv_family("depthwise", ["", "Relu", "Clip", "PRelu"]),
    "conv, transposed": transposed,
    "conv, sums": sums,
    "conv, split": split_concats,
    "conv, merged": merged_sums,
    "depthwise, activations": depthwise_roundings,
    "dense": dense,
    "add": binary("Add"),
    "sub": binary("Sub"),
    "mul": binary("Mul"),
    "max": binary("Max"),
    "min": binary("Min"),
    "div": quotient,
    "functions": functions,
    "average pools": averages,
    "max pools": maxima,
    "resizes": resizes,
    "joins": joins,
    "matrix products": matrices,
    "chains": chains,
}


def network(family: str, seed: int) -> tuple[Net, str]:
    """A random network of a family, and the name of its output."""
    net = Net(np.random.default_rng((sorted(FAMILIES).index(family), seed)))
    return net, FAMILIES[family](net)
