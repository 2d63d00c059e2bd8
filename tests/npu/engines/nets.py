"""Small networks in the shapes of well-known families."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from compiler.onnx_builders import Net

__all__ = ["NETS"]


def _silu(net: Net, x: str, channels: int) -> str:
    result = net.op("Mul", x, net.op("Sigmoid", x))
    net.shapes[result] = (0, channels)
    return result


def yolo() -> onnx.ModelProto:
    """SiLU, split and concat, pooling pyramid, nearest upsampling, three heads."""
    net = Net(13, seed=1)
    x = net.input("images", (1, 3, 64, 48))
    stem = _silu(net, net.conv(x, 16, 6, strides=[2, 2], pads=[2, 2, 2, 2]), 16)
    down = _silu(net, net.conv(stem, 32, 3, strides=[2, 2], pads=[1, 1, 1, 1]), 32)
    first, second = net.ops("Split", down, net.constant([16, 16]), count=2, axis=1)
    net.shapes[second] = (0, 16)
    inner = _silu(net, net.conv(second, 16, 3, pads=[1, 1, 1, 1]), 16)
    joined = net.op("Concat", first, net.op("Add", second, inner), axis=1)
    net.shapes[joined] = (0, 32)
    deep = _silu(net, net.conv(joined, 48, 3, strides=[2, 2], pads=[1, 1, 1, 1]), 48)
    pools = [deep]
    for _ in range(3):
        pools.append(net.op("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2], strides=[1, 1]))
    pyramid = net.op("Concat", *pools, axis=1)
    net.shapes[pyramid] = (0, 192)
    neck = _silu(net, net.conv(pyramid, 32, 1), 32)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    large = net.op("Resize", neck, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")
    merged = net.op("Concat", large, joined, axis=1)
    net.shapes[merged] = (0, 64)
    fine = net.op("Sigmoid", net.conv(merged, 21, 1))
    net.output(fine, net.conv(neck, 21, 1))
    return net.proto()


def resnet() -> onnx.ModelProto:
    """Residual blocks, max pooling, global pooling, fully connected, softmax."""
    net = Net(13, seed=2)
    x = net.input("images", (1, 3, 48, 48))
    x = net.op("Relu", net.conv(x, 16, 7, strides=[2, 2], pads=[3, 3, 3, 3]))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.shapes[x] = (0, 16)
    for channels, stride in ((16, 1), (40, 2)):
        into = net.shapes[x][1]
        inner = net.op("Relu", net.conv(x, channels, 3, strides=[stride, stride], pads=[1, 1, 1, 1]))
        net.shapes[inner] = (0, channels)
        inner = net.conv(inner, channels, 3, pads=[1, 1, 1, 1])
        past = x if stride == 1 and into == channels else net.conv(x, channels, 1, strides=[stride, stride])
        x = net.op("Relu", net.op("Add", inner, past))
        net.shapes[x] = (0, channels)
    flat = net.op("Flatten", net.op("GlobalAveragePool", x))
    scores = net.op("Gemm", flat, net.weights(40, 10, scale=0.3), net.weights(10))
    net.output(net.op("Softmax", scores, axis=1))
    return net.proto()


def mobilenet() -> onnx.ModelProto:
    """Depthwise blocks with hard swish and squeeze-and-excitation, linear upsampling, a transposed convolution."""
    net = Net(13, seed=3)
    x = net.conv(net.input("images", (1, 3, 40, 56)), 16, 3, strides=[2, 2], pads=[1, 1, 1, 1])
    for kernel, stride in ((3, 1), (5, 2)):
        pads = [kernel // 2] * 4
        x = net.conv(x, 16, kernel, cin=16, group=16, strides=[stride, stride], pads=pads)
        x = net.op("Mul", x, net.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))
        net.shapes[x] = (0, 16)
        gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), 4, 1, cin=16))
        gate = net.op("HardSigmoid", net.conv(gate, 16, 1, cin=4), alpha=0.2, beta=0.5)
        x = net.op("Add", net.conv(net.op("Mul", x, gate), 16, 1, cin=16), x)
        net.shapes[x] = (0, 16)
    x = net.op("ConvTranspose", x, net.weights(16, 24, 2, 2, scale=0.2), net.weights(24), strides=[2, 2])
    net.shapes[x] = (0, 24)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    x = net.op("Resize", net.op("Relu", x), "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    net.shapes[x] = (0, 24)
    average = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.output(net.op("Sigmoid", net.conv(average, 1, 3, cin=24, pads=[1, 1, 1, 1])))
    return net.proto()


NETS: dict[str, Callable[[], onnx.ModelProto]] = {"yolo": yolo, "resnet": resnet, "mobilenet": mobilenet}
