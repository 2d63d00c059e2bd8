"""Placement: what exceeds a limit of a chip runs on its CPU, and the reason states which number exceeds which limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import anynpu
from anynpu import Report, chips
from anynpu.chips.timing import predict
from anynpu.compiler.pipeline import ModelCheck
from anynpu.program import Placement

from .onnx_builders import Net

Build = Callable[[Net], None]


def placed(build: Build, chip: str, *, opset: int = 13, dtype: str = "w8a8") -> Report:
    net = Net(opset)
    build(net)
    return anynpu.check(net.proto(), chip, dtype=dtype)


def reasons(build: Build, chip: str, *, opset: int = 13) -> list[str]:
    """The reasons of the layers that are on the CPU."""
    return [layer.reason for layer in placed(build, chip, opset=opset).layers if layer.placement == Placement.CPU.value]


def conv(kernel: int | list[int], extent: int = 40, channels: int = 4, **attributes: Any) -> Build:
    return lambda net: net.output(net.conv(net.input("x", (1, 4, extent, extent)), channels, kernel, **attributes))


def pool(op: str, kernel: int, extent: int = 40, **attributes: Any) -> Build:
    return lambda net: net.output(net.op(op, net.input("x", (1, 4, extent, extent)), kernel_shape=[kernel, kernel], **attributes))


def transposed(stride: int = 1, kernel: int = 3, group: int = 1, axes: int = 2) -> Build:
    def build(net: Net) -> None:
        weights = net.weights(4, 4 // group, *[kernel] * axes)
        net.output(net.op("ConvTranspose", net.input("x", (1, 4, *[6] * axes)), weights, strides=[stride] * axes, group=group))

    return build


def resize(scale: float, mode: str = "nearest") -> Build:
    return lambda net: net.output(
        net.op("Resize", net.input("x", (1, 4, 8, 8)), "", net.constant([1.0, 1.0, scale, scale]), mode=mode)
    )


def softmax(axis: int, shape: tuple[int, ...] = (1, 4, 6, 6)) -> Build:
    return lambda net: net.output(net.op("Softmax", net.input("x", shape), axis=axis))


def matmul(inner: int) -> Build:
    return lambda net: net.output(net.op("MatMul", net.input("x", (1, 3, inner)), net.weights(inner, 4)))


def transpose(height: int, width: int) -> Build:
    return lambda net: net.output(net.op("Transpose", net.input("x", (1, 4, height, width)), perm=[0, 1, 3, 2]))


def unary(op: str, shape: tuple[int, ...] = (1, 4, 6, 6), *constants: Any, **attributes: Any) -> Build:
    return lambda net: net.output(net.op(op, net.input("x", shape), *map(net.constant, constants), **attributes))


def lstm(size: int, hidden: int) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", (1, 1, size))
        weights = net.constant([1, 4 * hidden, size]), net.constant([1, 4 * hidden, hidden])
        value = net.op("ConstantOfShape", weights[0]), net.op("ConstantOfShape", weights[1])
        net.output(net.ops("LSTM", x, *value, count=3, hidden_size=hidden)[0])

    return build


ON_CPU: dict[str, tuple[Build, str, tuple[str, ...]]] = {
    "kernel": (conv(33), "rk3588", ("kernel 33", "1-31")),
    "stride": (conv(3, strides=[8, 8]), "rk3588", ("stride 8", "1-7")),
    "pad": (conv([33, 3], pads=[16, 0, 16, 0]), "t527", ("kernel 33", "1-31")),
    "pad alone": (conv([31, 3], pads=[16, 0, 16, 0]), "rk3588", ("pad 16", "0-15")),
    "dilation": (conv(2, dilations=[32, 1]), "rk3588", ("dilation 32", "1-31")),
    "depthwise kernel": (conv(9, group=4), "rk3588", ("depthwise kernel 9", "1-8")),
    "depthwise dilation": (conv(2, extent=50, group=4, dilations=[33, 33]), "rv1106", ("depthwise dilation 33", "1-32")),
    "max pool kernel": (pool("MaxPool", 13), "rk3588", ("kernel 13", "1-7")),
    "average pool kernel": (pool("AveragePool", 8), "rk3566", ("kernel 8", "1-7")),
    "pool stride": (pool("MaxPool", 3, strides=[9, 9]), "rk3588", ("stride 9", "1-8")),
    "pool ceil_mode": (pool("MaxPool", 3, strides=[2, 2], ceil_mode=1), "rk3588", ("ceil_mode",)),
    "pool channels": (
        lambda net: net.output(net.op("MaxPool", net.input("x", (1, 8193, 2, 2)), kernel_shape=[2, 2])),
        "rk3588",
        ("channels 8193", "8192"),
    ),
    "resize by 1.5": (resize(1.5), "rk3588", ("1.5", "2-8")),
    "resize by 16": (resize(16.0), "rk3576", ("16", "2-8")),
    "resize cubic": (resize(2.0, "cubic"), "rk3588", ("cubic", "nearest, linear")),
    "softmax over rows": (softmax(2), "rk3588", ("axis 2", "1, 3")),
    "softmax anywhere": (softmax(1), "rk3566", ("Softmax", "rk356")),
    "matmul inner axis": (matmul(8193), "rk3588", ("8193", "8192")),
    "transpose": (transpose(91, 91), "rk3588", ("91*91", "8192")),
    "transposed convolution stride 3": (transposed(3), "rk3588", ("stride 3", "1, 2, 4, 8")),
    "transposed convolution stride 9": (transposed(9), "rk3562", ("stride 9", "1, 2, 3, 4, 5, 6, 7, 8")),
    "transposed convolution kernel": (transposed(kernel=32), "rk3588", ("kernel 32", "1-31")),
    "transposed line stride 3": (transposed(3, axes=1), "rk3588", ("stride 3", "1, 2, 4, 8")),
    "transposed line kernel": (transposed(kernel=32, axes=1), "rk3588", ("kernel 32", "1-31")),
    "transposed convolution groups": (transposed(group=2), "rk3588", ("group 2",)),
    "LSTM size": (lstm(8193, 2), "rk3588", ("8193", "8192")),
    "LSTM where there is none": (lstm(4, 2), "rv1103b", ("rv1103b",)),
    "float on a chip without it": (unary("ReduceProd", (1, 4, 6, 6)), "rv1106", ("rv1106", "float16")),
    "unknown to the NPU": (unary("CumSum", (1, 4, 6, 6), 1), "rk3588", ("CumSum", "rk3588")),
    "three dimensions": (
        lambda net: net.output(net.conv(net.input("x", (1, 2, 5, 5, 5)), 2, [3, 3, 3])),
        "rk3588",
        ("two-dimensional",),
    ),
}


@pytest.mark.parametrize("name", ON_CPU)
def test_beyond_a_limit_it_runs_on_the_cpu(name: str) -> None:
    build, chip, words = ON_CPU[name]
    (reason,) = reasons(build, chip)
    for word in words:
        assert word in reason, reason


ON_NPU: dict[str, tuple[Build, str]] = {
    "kernel at the limit": (conv(31), "rk3588"),
    "stride at the limit": (conv(3, strides=[7, 7]), "rk3588"),
    "pad at the limit": (conv([31, 3], pads=[15, 0, 15, 0]), "rk3588"),
    "dilation at the limit": (conv(2, dilations=[31, 1]), "rk3588"),
    "depthwise kernel at the limit": (conv(8, group=4), "rk3588"),
    "one channel is not depthwise": (
        lambda net: net.output(net.conv(net.input("x", (1, 1, 20, 20)), 1, 9)),
        "rk3588",
    ),
    "pool at the limits": (pool("MaxPool", 7, strides=[8, 8]), "rk3588"),
    "pool with a ceil_mode that changes nothing": (pool("MaxPool", 2, strides=[2, 2], ceil_mode=1), "rk3588"),
    "average over the whole image": (pool("AveragePool", 40), "rk3588"),
    "global average of a large image": (unary("GlobalAveragePool", (1, 4, 40, 40)), "rk3588"),
    "resize by 2": (resize(2.0), "rk3588"),
    "resize by 8, linear": (resize(8.0, "linear"), "rk3588"),
    "softmax over channels": (softmax(1), "rk3588"),
    "softmax over the last axis": (softmax(-1), "rk3576"),
    "softmax of rank 3": (softmax(2, (1, 5, 6)), "rk3588"),
    "softmax of rank 2": (softmax(1, (2, 6)), "rk3588"),
    "softmax over rows on a VIP": (softmax(2), "t527"),
    "matmul at the limit": (matmul(8192), "rk3588"),
    "a large transpose where there is no limit": (transpose(91, 91), "rk3576"),
    "a transpose at the limit": (transpose(64, 128), "rk3588"),
    "transposed convolution stride 4": (transposed(4), "rk3588"),
    "transposed line": (transposed(4, axes=1), "rk3588"),
    "depthwise transposed line": (transposed(2, group=4, axes=1), "rk3588"),
    "transposed convolution stride 3 elsewhere": (transposed(3), "rk3562"),
    "depthwise transposed convolution": (transposed(2, group=4), "rk3588"),
    "LSTM": (lstm(16, 8), "rk3588"),
    "a chain of functions that the NPU lacks one by one": (
        lambda net: net.output(net.op("Sin", net.op("Atan", net.input("x", (1, 4, 6, 6))))),
        "rv1106",
    ),
}


@pytest.mark.parametrize("name", ON_NPU)
def test_within_the_limits_it_runs_on_the_npu(name: str) -> None:
    build, chip = ON_NPU[name]
    assert reasons(build, chip) == []


@pytest.mark.parametrize("chip", chips.names())
def test_every_chip_places_every_layer_with_a_reason(chip: str) -> None:
    def build(net: Net) -> None:
        y = net.op("Relu", net.conv(net.input("x", (1, 3, 40, 40)), 8, 33, pads=[16] * 4))
        y = net.op("Softmax", net.conv(y, 8, 3, cin=8), axis=1)
        net.output(net.op("MaxPool", net.conv(y, 4, 1, cin=8), kernel_shape=[13, 13]))

    report = placed(build, chip)
    for layer in report.layers:
        assert bool(layer.reason) == (layer.placement == Placement.CPU.value), layer
    on_cpu = {layer.kind for layer in report.layers if layer.placement == Placement.CPU.value}
    assert {"ConvRelu", "MaxPool"} <= on_cpu
    assert "Conv" not in on_cpu
    assert ("Softmax" in on_cpu) is (not chips.get(chip).float16 or not chips.get(chip).limits.softmax_axes)


def test_a_transposed_line_is_placed_and_timed_as_an_image_of_one_row() -> None:
    """The upsampling of a speech decoder: with its activation one layer of float16 on the NPU."""
    times = []
    for row in ((), (1,)):
        net = Net()
        x = net.input("x", (1, 32, *row, 500))
        before = [0] * len(row)
        attributes = {"strides": [*row, 8], "pads": [*before, 4, *before, 4]}
        spread = net.op("ConvTranspose", x, net.weights(32, 16, *row, 16), net.weights(16), **attributes)
        net.output(net.op("LeakyRelu", spread, alpha=0.1))
        program = ModelCheck(net.proto()).program("rk3588", dtype="fp16")
        assert [(layer.kind, layer.placement) for layer in program.layers] == [("ConvTransposeLeakyRelu", Placement.NPU)]
        times.append(predict(program, chips.get("rk3588")).latency_us)
    assert times[0] == times[1]
