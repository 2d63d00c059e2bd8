"""Detectors in small: the ends of YOLOv8 and YOLOX with their score sums, grids and strides, on a backbone of a few convolutions."""

from __future__ import annotations

import numpy as np
import onnx

from .onnx_builders import Net

SIDE = 64
CLASSES = 4
_BINS = 4


def _backbone(net: Net, x: str, cin: int, *, downscale: int) -> str:
    for _ in range(downscale):
        x = net.op("Relu", net.conv(x, 8, cin=cin, strides=[2, 2], pads=[1, 1, 1, 1]))
        cin = 8
    return x


def yolov8() -> onnx.ModelProto:
    """Nine outputs as the model zoo exports them: distances, scores and their sum, at three strides."""
    net = Net()
    x = net.input("images", (1, 3, SIDE, SIDE))
    feature = _backbone(net, x, 3, downscale=3)
    for level in range(3):
        if level:
            feature = _backbone(net, feature, 8, downscale=1)
        boxes = net.conv(feature, 4 * _BINS, 1, cin=8)
        scores = net.op("Sigmoid", net.conv(feature, CLASSES, 1, cin=8))
        total = net.op("ReduceSum", scores, net.constant([1]), keepdims=1)
        net.output(boxes, scores, net.op("Clip", total, net.constant(0.0), net.constant(1.0)))
    return net.proto()


def yolox() -> onnx.ModelProto:
    """One output [1, anchors, 5 + classes] of decoded boxes: (xy + grid) * stride, exp(wh) * stride; the network begins with Slice."""
    net = Net()
    x = net.input("images", (1, 3, SIDE, SIDE))
    parts = []
    for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
        starts, ends = net.constant([row, column]), net.constant([2**31, 2**31])
        parts.append(net.op("Slice", x, starts, ends, net.constant([2, 3]), net.constant([2, 2])))
    focus = net.op("Concat", *parts, axis=1)
    feature = net.op("Relu", net.conv(focus, 8, 3, cin=12, pads=[1, 1, 1, 1]))
    feature = _backbone(net, feature, 8, downscale=2)
    levels, grids, strides = [], [], []
    for level in range(3):
        if level:
            feature = _backbone(net, feature, 8, downscale=1)
        stride = 8 << level
        side = SIDE // stride
        box = net.conv(feature, 4, 1, cin=8)
        score = net.op("Sigmoid", net.conv(feature, 1 + CLASSES, 1, cin=8))
        whole = net.op("Concat", box, score, axis=1)
        levels.append(net.op("Reshape", whole, net.constant([1, 5 + CLASSES, -1])))
        ys, xs = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
        grids.append(np.stack([xs, ys], -1).reshape(1, -1, 2))
        strides.append(np.full((1, side * side, 1), stride))
    grid, stride_of = (np.concatenate(entries, 1).astype(np.float32) for entries in (grids, strides))
    rows = net.op("Transpose", net.op("Concat", *levels, axis=2), perm=[0, 2, 1])

    def columns(first: int, last: int) -> str:
        return net.op("Slice", rows, net.constant([first]), net.constant([last]), net.constant([2]))

    centre = net.op("Mul", net.op("Add", columns(0, 2), net.constant(grid)), net.constant(stride_of))
    size = net.op("Mul", net.op("Exp", columns(2, 4)), net.constant(stride_of))
    net.output(net.op("Concat", centre, size, columns(4, 5 + CLASSES), axis=2))
    return net.proto()
