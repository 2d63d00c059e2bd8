"""Networks with the shapes of well-known ones and random weights: what speed depends on, without the training."""

from __future__ import annotations

from typing import Any

import numpy as np

import anynpu
from anynpu._optional import onnx
from anynpu.program import Model

__all__ = ["NETWORKS", "mobilenet_v1", "resnet18", "tiny_model", "yolov5s"]


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
        if activation == "silu":
            return self.add("Mul", y, self.add("Sigmoid", y))
        return y

    def model(self, output: str) -> Any:
        """The finished model; one input ``images``, one output."""
        helper, proto = onnx().helper, onnx().TensorProto
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("images", proto.FLOAT, [1, 3, self.size, self.size])],
            [helper.make_tensor_value_info(output, proto.FLOAT, None)],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


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
    x = net.conv(net.conv("images", (3, 64), kernel=7, stride=2), (64, 64), stride=2)
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


NETWORKS = {"MobileNetV1 224": mobilenet_v1, "ResNet18 224": resnet18, "YOLOv5s backbone 640": yolov5s}


def tiny_model() -> Model:
    """One convolution of a picture of 16 x 20 pixels, compiled for RK3588: a job that costs the host next to nothing."""
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
