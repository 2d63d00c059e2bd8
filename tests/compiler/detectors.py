"""Detectors in small: the ends of YOLOv8 and YOLOX with their score sums, grids and strides, on a backbone of a few convolutions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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


def plain(kind: str) -> onnx.ModelProto:
    """One output of boxes in pixels next to scores, as ``yolo export format=onnx`` writes it: yolov5, yolov8 or yolo11."""
    net = Net(seed=5)
    feature = _backbone(net, net.input("images", (1, 3, SIDE, SIDE)), 3, downscale=3)
    levels, anchors, strides = [], [], []
    for level in range(3):
        if level:
            feature = _backbone(net, feature, 8, downscale=1)
        stride = 8 << level
        side = SIDE // stride
        ys, xs = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
        grid = np.stack([xs, ys], -1).astype(np.float32)
        if kind == "yolov5":
            levels.append(_yolov5_level(net, feature, side, stride, grid))
            continue
        boxes = net.conv(feature, 4 * _BINS, 1, cin=8)
        hidden = feature
        if kind == "yolo11":
            hidden = net.op("Relu", net.conv(feature, 8, 3, cin=8, group=8, pads=[1, 1, 1, 1]))
            net.shapes[hidden] = (0, 8)
        whole = net.op("Concat", boxes, _rare(net, hidden, CLASSES), axis=1)
        levels.append(net.op("Reshape", whole, net.constant([1, 4 * _BINS + CLASSES, -1])))
        anchors.append(grid.reshape(-1, 2).T[None] + np.float32(0.5))
        strides.append(np.full((1, 1, side * side), stride, np.float32))
    if kind == "yolov5":
        net.output(net.op("Concat", *levels, axis=1))
        return net.proto()
    boxes, scores = net.ops("Split", net.op("Concat", *levels, axis=2), net.constant([4 * _BINS, CLASSES]), count=2, axis=1)
    bins = net.op("Transpose", net.op("Reshape", boxes, net.constant([1, 4, _BINS, -1])), perm=[0, 2, 1, 3])
    weights = net.constant(np.arange(_BINS, dtype=np.float32).reshape(1, _BINS, 1, 1))
    sides = net.op("Reshape", net.op("Conv", net.op("Softmax", bins, axis=1), weights), net.constant([1, 4, -1]))
    low, high = net.ops("Split", sides, net.constant([2, 2]), count=2, axis=1)
    grid = net.constant(np.concatenate(anchors, 2))
    low, high = net.op("Sub", grid, low), net.op("Add", grid, high)
    centre = net.op("Div", net.op("Add", low, high), net.constant(2.0))
    pixels = net.op("Mul", net.op("Concat", centre, net.op("Sub", high, low), axis=1), net.constant(np.concatenate(strides, 2)))
    net.output(net.op("Concat", pixels, net.op("Sigmoid", scores), axis=1))
    return net.proto()


def _rare(net: Net, feature: str, channels: int) -> str:
    """Logits that are far below zero nearly everywhere."""
    weights = net.weights(channels, 8, 1, 1, scale=6.0)
    return net.op("Conv", feature, weights, net.constant(np.full(channels, -6.0, np.float32)))


def _yolov5_level(net: Net, feature: str, side: int, stride: int, grid: npt.NDArray[np.float32]) -> str:
    boxes = net.op("Reshape", net.conv(feature, 4, 1, cin=8), net.constant([1, 1, 4, side, side]))
    sure = net.conv(feature, 1, 1, cin=8)
    scores = net.op("Concat", sure, _rare(net, feature, CLASSES), axis=1)
    scores = net.op("Reshape", scores, net.constant([1, 1, 1 + CLASSES, side, side]))
    rows = net.op("Transpose", net.op("Concat", boxes, scores, axis=2), perm=[0, 1, 3, 4, 2])
    xy, wh, rest = net.ops("Split", net.op("Sigmoid", rows), net.constant([2, 2, 1 + CLASSES]), count=3, axis=4)
    xy = net.op("Add", net.op("Mul", xy, net.constant(2.0)), net.constant(grid[None, None] - np.float32(0.5)))
    wh = net.op("Mul", wh, net.constant(2.0))
    parts = [
        net.op("Mul", xy, net.constant(float(stride))),
        net.op("Mul", net.op("Mul", wh, wh), net.constant(np.full((1, 1, 1, 1, 2), 2.0 * stride, np.float32))),
        rest,
    ]
    return net.op("Reshape", net.op("Concat", *parts, axis=4), net.constant([1, -1, 5 + CLASSES]))
