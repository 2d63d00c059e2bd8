"""Networks with the shapes of well-known ones and random weights: what speed depends on, without the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import anynpu
from anynpu._util.optional import onnx
from anynpu.program import Model

__all__ = [
    "bert_base",
    "efficientnet_lite0",
    "mobilenet_v1",
    "mobilenet_v2",
    "resnet18",
    "tiny_model",
    "vit_b",
    "whisper_encoder",
    "with_random_weights",
    "yolov5s",
    "yolov8n",
    "yolox_nano",
]


class _Builder:
    """Adds layers one after the other; tensors are known by name."""

    def __init__(self, size: int) -> None:
        self._rng = np.random.default_rng(size)
        self.nodes: list[Any] = []
        self._weights: list[Any] = []
        self.size = size

    def _name(self) -> str:
        return f"t{len(self.nodes)}"

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = self._name()
        self.nodes.append(onnx().helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        """A constant of the network."""
        name = f"w{len(self._weights)}"
        self._weights.append(onnx().numpy_helper.from_array(np.asarray(value), name))
        return name

    def random(self, *shape: int, spread: float = 0.02) -> str:
        """Random weights."""
        return self.constant(self._rng.standard_normal(shape, np.float32) * np.float32(spread))

    def several(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        names = [f"{self._name()}.{index}" for index in range(count)]
        self.nodes.append(onnx().helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int = 3, stride: int = 1, group: int = 1, activation: str = "relu"
    ) -> str:
        """A convolution that keeps the spread of its values, and its activation."""
        source, target = channels
        fan = source // group * kernel * kernel
        weights = self._rng.standard_normal((target, source // group, kernel, kernel), np.float32) * np.sqrt(1.8 / fan)
        name = f"w{len(self._weights)}"
        self._weights.append(onnx().numpy_helper.from_array(weights.astype(np.float32), name))
        bias = f"b{len(self._weights)}"
        self._weights.append(onnx().numpy_helper.from_array(self._rng.standard_normal(target).astype(np.float32) * 0.1, bias))
        y = self.add("Conv", x, name, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, group=group)
        if activation == "relu":
            return self.add("Relu", y)
        if activation == "relu6":
            return self.add("Clip", y, self.constant(np.float32(0)), self.constant(np.float32(6)))
        if activation == "silu":
            return self.add("Mul", y, self.add("Sigmoid", y))
        return y

    def gelu(self, x: str) -> str:
        """The exact GELU, as exporters write it."""
        one, half, root = (self.constant(np.float32(value)) for value in (1.0, 0.5, 2**0.5))
        return self.add("Mul", self.add("Mul", x, self.add("Add", self.add("Erf", self.add("Div", x, root)), one)), half)

    def encoder(self, x: str, tokens: int, width: int, layers: int) -> str:
        """Layers of a transformer over [1, tokens, width], with heads of 64."""

        def linear(x: str, source: int, target: int) -> str:
            return self.add("Add", self.add("MatMul", x, self.random(source, target)), self.random(target))

        def normal(x: str) -> str:
            scale, offset = self.constant(np.ones(width, np.float32)), self.constant(np.zeros(width, np.float32))
            return self.add("LayerNormalization", x, scale, offset, axis=-1, epsilon=1e-6)

        heads = self.constant(np.array([1, tokens, width // 64, 64], np.int64))
        flat = self.constant(np.array([1, tokens, width], np.int64))
        scale = self.constant(np.float32(0.125))
        for _ in range(layers):
            y = normal(x)
            query, key, value = (self.add("Reshape", linear(y, width, width), heads) for _ in range(3))
            query, value = (self.add("Transpose", name, perm=[0, 2, 1, 3]) for name in (query, value))
            scores = self.add("Mul", self.add("MatMul", query, self.add("Transpose", key, perm=[0, 2, 3, 1])), scale)
            y = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
            x = self.add("Add", x, linear(self.add("Reshape", y, flat), width, width))
            y = self.gelu(linear(normal(x), width, 4 * width))
            x = self.add("Add", x, linear(y, 4 * width, width))
        return normal(x)

    def model(self, output: str, shape: tuple[int, ...] | None = None) -> Any:
        """The finished model; one input ``images``, one output."""
        helper, proto = onnx().helper, onnx().TensorProto
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("images", proto.FLOAT, shape or [1, 3, self.size, self.size])],
            [helper.make_tensor_value_info(output, proto.FLOAT, None)],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mobilenet_v1(size: int = 224) -> Any:
    """Depthwise and 1x1 convolutions in turn."""
    net = _Builder(size)
    x = net.conv("images", (3, 32), stride=2)
    blocks = [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
    for source, target, stride in blocks:
        x = net.conv(x, (source, source), stride=stride, group=source)
        x = net.conv(x, (source, target), kernel=1)
    return net.model(net.conv(net.add("GlobalAveragePool", x), (1024, 1000), kernel=1, activation=""))


def resnet18(size: int = 224) -> Any:
    """3x3 convolutions with residual additions."""
    net = _Builder(size)
    x = net.conv("images", (3, 64), kernel=7, stride=2)
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for target in (64, 128, 256, 512):
        for index in range(2):
            stride = 2 if index == 0 and target != 64 else 1
            y = net.conv(net.conv(x, (channels, target), stride=stride), (target, target), activation="")
            shortcut = net.conv(x, (channels, target), kernel=1, stride=stride, activation="") if channels != target else x
            x = net.add("Relu", net.add("Add", y, shortcut))
            channels = target
    return net.model(net.conv(net.add("GlobalAveragePool", x), (512, 1000), kernel=1, activation=""))


def yolov5s(size: int = 640) -> Any:
    """The backbone: SiLU everywhere, branches that are concatenated."""
    net = _Builder(size)
    x = net.conv("images", (3, 32), kernel=6 + 1, stride=2, activation="silu")
    for source, target, depth in ((32, 64, 1), (64, 128, 2), (128, 256, 3), (256, 512, 1)):
        x = net.conv(x, (source, target), stride=2, activation="silu")
        half = target // 2
        left = net.conv(x, (target, half), kernel=1, activation="silu")
        right = net.conv(x, (target, half), kernel=1, activation="silu")
        for _ in range(depth):
            inner = net.conv(net.conv(left, (half, half), kernel=1, activation="silu"), (half, half), activation="silu")
            left = net.add("Add", left, inner)
        x = net.conv(net.add("Concat", left, right, axis=1), (target, target), kernel=1, activation="silu")
    return net.model(net.conv(x, (512, 255), kernel=1, activation=""))


def mobilenet_v2(size: int = 224) -> Any:
    """Inverted residual blocks with ReLU6, and a classifier."""
    net = _Builder(size)
    x, channels = net.conv("images", (3, 32), stride=2, activation="relu6"), 32
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for wider, target, repeats, first_stride in blocks:
        for index in range(repeats):
            stride, inner = first_stride if index == 0 else 1, channels * wider
            y = x if wider == 1 else net.conv(x, (channels, inner), kernel=1, activation="relu6")
            y = net.conv(y, (inner, inner), stride=stride, group=inner, activation="relu6")
            y = net.conv(y, (inner, target), kernel=1, activation="")
            x = net.add("Add", x, y) if stride == 1 and channels == target else y
            channels = target
    x = net.add("Flatten", net.add("GlobalAveragePool", net.conv(x, (channels, 1280), kernel=1, activation="relu6")))
    return net.model(net.add("Gemm", x, net.random(1280, 1000, spread=0.03), net.random(1000)))


def yolov8n(size: int = 640) -> Any:
    """Backbone, both ways of the neck, and heads for three sizes with the distribution of box edges."""
    net = _Builder(size)

    def conv(x: str, source: int, target: int, kernel: int = 1, stride: int = 1) -> str:
        return net.conv(x, (source, target), kernel, stride, activation="silu")

    def block(x: str, source: int, target: int, repeats: int, *, residual: bool) -> str:
        half = target // 2
        parts = net.several("Split", 2, conv(x, source, target), net.constant(np.array([half, half], np.int64)), axis=1)
        for _ in range(repeats):
            inner = conv(conv(parts[-1], half, half, 3), half, half, 3)
            parts.append(net.add("Add", parts[-1], inner) if residual else inner)
        return conv(net.add("Concat", *parts, axis=1), half * len(parts), target)

    def larger(x: str) -> str:
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return net.add("Resize", x, "", scales, **mode)

    x = block(conv(conv("images", 3, 16, 3, 2), 16, 32, 3, 2), 32, 32, 1, residual=True)
    fine = block(conv(x, 32, 64, 3, 2), 64, 64, 2, residual=True)
    middle = block(conv(fine, 64, 128, 3, 2), 128, 128, 2, residual=True)
    pooled = [conv(block(conv(middle, 128, 256, 3, 2), 256, 256, 1, residual=True), 256, 128)]
    for _ in range(3):
        pooled.append(net.add("MaxPool", pooled[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    coarse = conv(net.add("Concat", *pooled, axis=1), 512, 256)
    up = block(net.add("Concat", larger(coarse), middle, axis=1), 384, 128, 1, residual=False)
    first = block(net.add("Concat", larger(up), fine, axis=1), 192, 64, 1, residual=False)
    second = block(net.add("Concat", conv(first, 64, 64, 3, 2), up, axis=1), 192, 128, 1, residual=False)
    third = block(net.add("Concat", conv(second, 128, 128, 3, 2), coarse, axis=1), 384, 256, 1, residual=False)
    rows = net.constant(np.array([1, 144, -1], np.int64))
    heads = []
    for source, channels in ((first, 64), (second, 128), (third, 256)):
        boxes, classes = (
            net.conv(conv(conv(source, channels, width, 3), width, width, 3), (width, width), 1, activation="")
            for width in (64, 80)
        )
        heads.append(net.add("Reshape", net.add("Concat", boxes, classes, axis=1), rows))
    split = net.constant(np.array([64, 80], np.int64))
    edges, classes = net.several("Split", 2, net.add("Concat", *heads, axis=2), split, axis=1)
    places = 21 * (size // 32) ** 2
    edges = net.add("Reshape", edges, net.constant(np.array([1, 4, 16, places], np.int64)))
    shares = net.add("Softmax", net.add("Transpose", edges, perm=[0, 2, 1, 3]), axis=1)
    distance = net.add("Conv", shares, net.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)))
    distance = net.add("Reshape", distance, net.constant(np.array([1, 4, places], np.int64)))
    return net.model(net.add("Concat", distance, net.add("Sigmoid", classes), axis=1))


def vit_b(size: int = 224, layers: int = 12, width: int = 768) -> Any:
    """A vision transformer: 346 MB of weights."""
    net = _Builder(size)
    tokens = (size // 16) ** 2 + 1
    x = net.add("Conv", "images", net.random(width, 3, 16, 16), net.random(width), kernel_shape=[16, 16], strides=[16, 16])
    x = net.add("Reshape", x, net.constant(np.array([1, width, tokens - 1], np.int64)))
    x = net.add("Concat", net.random(1, 1, width), net.add("Transpose", x, perm=[0, 2, 1]), axis=1)
    x = net.encoder(net.add("Add", x, net.random(1, tokens, width)), tokens, width, layers)
    first = net.add("Gather", x, net.constant(np.int64(0)), axis=1)
    return net.model(net.add("Gemm", first, net.random(width, 1000), net.random(1000)))


def bert_base(tokens: int = 128, layers: int = 12, width: int = 768) -> Any:
    """A text encoder of the size of BERT base, after its embedding: 340 MB of weights."""
    net = _Builder(tokens)
    return net.model(net.encoder("images", tokens, width, layers), (1, tokens, width))


def whisper_encoder(frames: int = 3000, layers: int = 4, width: int = 384) -> Any:
    """The encoder of Whisper tiny: two convolutions over spectra of 30 seconds, and a transformer of 1500 tokens."""
    net = _Builder(frames)
    x = net.gelu(net.add("Conv", "images", net.random(width, 80, 3), net.random(width), kernel_shape=[3], pads=[1, 1]))
    x = net.add("Conv", x, net.random(width, width, 3), net.random(width), kernel_shape=[3], strides=[2], pads=[1, 1])
    x = net.add("Add", net.add("Transpose", net.gelu(x), perm=[0, 2, 1]), net.random(1, frames // 2, width))
    return net.model(net.encoder(x, frames // 2, width, layers), (1, 80, frames))


def efficientnet_lite0(size: int = 224) -> Any:
    """Inverted residual blocks with ReLU6 and kernels of 3 and 5, and a classifier."""
    net = _Builder(size)
    x, channels = net.conv("images", (3, 32), stride=2, activation="relu6"), 32
    blocks = ((3, 1, 1, 16, 1), (3, 6, 2, 24, 2), (5, 6, 2, 40, 2), (3, 6, 2, 80, 3))
    blocks += ((5, 6, 1, 112, 3), (5, 6, 2, 192, 4), (3, 6, 1, 320, 1))
    for kernel, wider, first_stride, target, repeats in blocks:
        for index in range(repeats):
            stride, inner = first_stride if index == 0 else 1, channels * wider
            y = x if wider == 1 else net.conv(x, (channels, inner), kernel=1, activation="relu6")
            y = net.conv(y, (inner, inner), kernel, stride, inner, activation="relu6")
            y = net.conv(y, (inner, target), kernel=1, activation="")
            x = net.add("Add", x, y) if stride == 1 and channels == target else y
            channels = target
    x = net.add("Flatten", net.add("GlobalAveragePool", net.conv(x, (channels, 1280), kernel=1, activation="relu6")))
    return net.model(net.add("Gemm", x, net.random(1280, 1000, spread=0.03), net.random(1000)))


def yolox_nano(size: int = 416) -> Any:
    """Depthwise CSPDarknet, both ways of the neck, and decoupled heads for three sizes; SiLU everywhere."""
    net = _Builder(size)

    def conv(x: str, source: int, target: int, kernel: int = 1, stride: int = 1) -> str:
        return net.conv(x, (source, target), kernel, stride, activation="silu")

    def separable(x: str, source: int, target: int, stride: int = 1) -> str:
        return conv(net.conv(x, (source, source), 3, stride, source, activation="silu"), source, target)

    def block(x: str, source: int, target: int, repeats: int, *, residual: bool) -> str:
        half = target // 2
        left, right = conv(x, source, half), conv(x, source, half)
        for _ in range(repeats):
            inner = separable(conv(left, half, half), half, half)
            left = net.add("Add", inner, left) if residual else inner
        return conv(net.add("Concat", left, right, axis=1), target, target)

    def larger(x: str) -> str:
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return net.add("Resize", x, "", scales, **mode)

    def quarter(row: int, column: int) -> str:
        starts, ends = net.constant(np.array([row, column], np.int64)), net.constant(np.array([size, size], np.int64))
        axes, steps = net.constant(np.array([2, 3], np.int64)), net.constant(np.array([2, 2], np.int64))
        return net.add("Slice", "images", starts, ends, axes, steps)

    x = net.add("Concat", quarter(0, 0), quarter(1, 0), quarter(0, 1), quarter(1, 1), axis=1)
    x = block(separable(conv(x, 12, 16, 3), 16, 32, 2), 32, 32, 1, residual=True)
    fine = block(separable(x, 32, 64, 2), 64, 64, 3, residual=True)
    middle = block(separable(fine, 64, 128, 2), 128, 128, 3, residual=True)
    pooled = [conv(separable(middle, 128, 256, 2), 256, 128)]
    for kernel in (5, 9, 13):
        pooled.append(net.add("MaxPool", pooled[0], kernel_shape=[kernel] * 2, strides=[1, 1], pads=[kernel // 2] * 4))
    coarse = block(conv(net.add("Concat", *pooled, axis=1), 512, 256), 256, 256, 1, residual=False)
    first_way = conv(coarse, 256, 128)
    up = block(net.add("Concat", larger(first_way), middle, axis=1), 256, 128, 1, residual=False)
    second_way = conv(up, 128, 64)
    first = block(net.add("Concat", larger(second_way), fine, axis=1), 128, 64, 1, residual=False)
    second = block(net.add("Concat", separable(first, 64, 64, 2), second_way, axis=1), 128, 128, 1, residual=False)
    third = block(net.add("Concat", separable(second, 128, 128, 2), first_way, axis=1), 256, 256, 1, residual=False)
    rows = net.constant(np.array([1, 85, -1], np.int64))
    heads = []
    for source, channels in ((first, 64), (second, 128), (third, 256)):
        stem = conv(source, channels, 64)
        classes, boxes = (separable(separable(stem, 64, 64), 64, 64) for _ in range(2))
        ends = [net.conv(boxes, (64, 4), 1, activation="")]
        for feature, count in ((boxes, 1), (classes, 80)):
            ends.append(net.add("Sigmoid", net.conv(feature, (64, count), 1, activation="")))
        heads.append(net.add("Reshape", net.add("Concat", *ends, axis=1), rows))
    return net.model(net.add("Concat", *heads, axis=2))


def with_random_weights(path: Path) -> Any:
    """A graph whose weights were stripped, with random ones that keep the spread of values."""
    model = onnx().load(path, load_external_data=False)
    rng = np.random.default_rng(0)
    kernels = {node.input[1] for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")}
    for tensor in model.graph.initializer:
        shape = tuple(tensor.dims)
        if tensor.data_type != onnx().TensorProto.FLOAT or (not shape and tensor.name not in kernels):
            continue
        if tensor.name in kernels and len(shape) > 1:
            fan = int(np.prod(shape[1:])) if len(shape) > 2 else max(shape)
            values = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(1.8 / fan))
        elif len(shape) == 1 and not tensor.raw_data:
            values = rng.uniform(0.5, 1.0, shape).astype(np.float32)
        else:
            continue
        tensor.CopyFrom(onnx().numpy_helper.from_array(values, tensor.name))
    return model


def tiny_model() -> Model:
    """One convolution of an image of 16 x 20 pixels, compiled for RK3588: a job that costs the host next to nothing."""
    helper, numpy_helper, kinds = onnx().helper, onnx().numpy_helper, onnx().TensorProto
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((6, 3, 3, 3)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [1, 3, 16, 20])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [1, 6, 16, 20])],
        [weights],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    samples = [{"x": rng.integers(0, 256, (1, 3, 16, 20)).astype(np.float32)} for _ in range(2)]
    return anynpu.compile(proto, target="rk3588", dataset=samples, std=(255, 255, 255))
