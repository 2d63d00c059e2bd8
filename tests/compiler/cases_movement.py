"""Pooling, resizing, slicing, joining, padding, reordering."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases import Build, Cases
from .onnx_builders import Net

MOVEMENT = Cases()

_IMAGE = (1, 6, 9, 11)


def _one(op: str, *constants: Any, shape: tuple[int, ...] = _IMAGE, count: int = 1, **attributes: Any) -> Build:
    """A node on the input; an input of None is absent, an empty list an empty float tensor."""

    def build(net: Net) -> None:
        extra = [
            "" if value is None else net.constant(np.asarray(value, np.float32) if value == [] else value) for value in constants
        ]
        net.output(*net.ops(op, net.input("x", shape), *extra, count=count, **attributes))

    return build


for _name, _build in {
    "plain": _one("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "padded": _one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "asymmetric pads": _one("MaxPool", kernel_shape=[3, 2], pads=[0, 1, 2, 0]),
    "ceil_mode": _one("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "ceil_mode and pads": _one("MaxPool", kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1),
    "dilated": _one("MaxPool", kernel_shape=[3, 3], dilations=[2, 3]),
    "rank 3": _one("MaxPool", kernel_shape=[3], strides=[2], pads=[1, 1], shape=(2, 6, 11)),
    "SAME_UPPER": _one("MaxPool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    "SAME_LOWER": _one("MaxPool", kernel_shape=[4, 4], strides=[3, 3], auto_pad="SAME_LOWER"),
    "VALID": _one("MaxPool", kernel_shape=[4, 4], strides=[3, 3], auto_pad="VALID"),
}.items():
    MOVEMENT.add(f"MaxPool {_name}", _build, kinds=("MaxPool",))
MOVEMENT.add("MaxPool opset 7", _one("MaxPool", kernel_shape=[2, 2], strides=[2, 2]), opset=7, kinds=("MaxPool",))


def _max_pool_with_indices(used: bool) -> Build:
    def build(net: Net) -> None:
        values, indices = net.ops("MaxPool", net.input("x", _IMAGE), count=2, kernel_shape=[2, 2])
        net.output(*((values, indices) if used else (values,)))

    return build


MOVEMENT.add("MaxPool with indices", _max_pool_with_indices(used=True), integer=False)
MOVEMENT.add("MaxPool with indices that nobody reads", _max_pool_with_indices(used=False), kinds=("MaxPool",))

for _name, _build in {
    "plain": _one("AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "padded": _one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "count_include_pad": _one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    "ceil_mode": _one("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    "ceil_mode and pads": _one("AveragePool", kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1),
    "rank 3": _one("AveragePool", kernel_shape=[3], strides=[2], pads=[1, 1], shape=(2, 6, 11)),
    "SAME_UPPER": _one("AveragePool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    "SAME_LOWER": _one("AveragePool", kernel_shape=[4, 4], strides=[3, 3], auto_pad="SAME_LOWER"),
    "the whole image": _one("AveragePool", kernel_shape=[9, 11]),
}.items():
    MOVEMENT.add(f"AveragePool {_name}", _build, steps=2.1, kinds=("AveragePool",))
MOVEMENT.add(
    "AveragePool ceil_mode and count_include_pad",
    _one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1, count_include_pad=1),
    opset=19,
    integer=False,
    steps=0.3,
)
MOVEMENT.add(
    "AveragePool dilated", _one("AveragePool", kernel_shape=[2, 2], dilations=[2, 2]), opset=19, integer=False, steps=0.3
)
MOVEMENT.add("MaxPool 3d", _one("MaxPool", kernel_shape=[2, 2, 2], shape=(1, 2, 4, 4, 4)), integer=False, steps=0.3)
MOVEMENT.add("LpPool", _one("LpPool", kernel_shape=[2, 2]), integer=False, steps=0.3)
MOVEMENT.add("GlobalAveragePool", _one("GlobalAveragePool"), steps=2.1, kinds=("GlobalAveragePool",))
MOVEMENT.add("GlobalAveragePool rank 3", _one("GlobalAveragePool", shape=(2, 6, 11)), steps=2.1, kinds=("GlobalAveragePool",))
MOVEMENT.add("GlobalMaxPool", _one("GlobalMaxPool"), kinds=("GlobalMaxPool",))
MOVEMENT.add("ReduceMean of an image", _one("ReduceMean", axes=[2, 3]), steps=2.1, kinds=("GlobalAveragePool",))
MOVEMENT.add("ReduceMean of an image, negative axes", _one("ReduceMean", axes=[-1, -2]), steps=2.1, kinds=("GlobalAveragePool",))
MOVEMENT.add("ReduceMean of an image, opset 18", _one("ReduceMean", [2, 3]), opset=18, steps=2.1, kinds=("GlobalAveragePool",))
MOVEMENT.add("ReduceMean without keepdims", _one("ReduceMean", axes=[2, 3], keepdims=0), steps=1.5)
MOVEMENT.add("ReduceMean of rows", _one("ReduceMean", axes=[3]), steps=1.5)

_TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
for _mode in ("nearest", "linear"):
    for _transformation in _TRANSFORMATIONS:
        for _name, _arguments in {
            "scales 2": ([], [1.0, 1.0, 2.0, 2.0]),
            "scales 1.5 and 3": ([], [1.0, 1.0, 1.5, 3.0]),
            "scales down": ([], [1.0, 1.0, 0.6, 0.5]),
            "sizes": ([], [], [1, 6, 20, 7]),
        }.items():
            _nearest: dict[str, Any] = {"nearest_mode": "floor"} if _mode == "nearest" and _transformation == "asymmetric" else {}
            MOVEMENT.add(
                f"Resize {_mode} {_transformation} {_name}",
                _one("Resize", *_arguments, mode=_mode, coordinate_transformation_mode=_transformation, **_nearest),
                steps=1.6,
                kinds=("Resize",),
            )
for _nearest_mode in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
    MOVEMENT.add(
        f"Resize nearest_mode {_nearest_mode}",
        _one("Resize", [], [1.0, 1.0, 2.5, 0.7], mode="nearest", nearest_mode=_nearest_mode),
        kinds=("Resize",),
    )
for _mode in ("nearest", "linear"):
    for _name, _scales in {"up": [1.0, 1.0, 2.0, 3.0], "down": [1.0, 1.0, 0.6, 0.5], "by 1.5": [1.0, 1.0, 1.5, 1.3]}.items():
        MOVEMENT.add(
            f"Resize opset 10 {_mode} {_name}", _one("Resize", _scales, mode=_mode), opset=10, steps=1.6, kinds=("Resize",)
        )
        if _name != "down":
            MOVEMENT.add(
                f"Upsample opset 9 {_mode} {_name}",
                _one("Upsample", _scales, mode=_mode),
                opset=9,
                steps=1.6,
                kinds=("Upsample",),
            )
MOVEMENT.add("Upsample opset 7", _one("Upsample", scales=[1.0, 1.0, 2.0, 2.0]), opset=7, kinds=("Upsample",))
MOVEMENT.add("Resize opset 11", _one("Resize", [], [1.0, 1.0, 2.0, 2.0], mode="linear"), opset=11, steps=1.6, kinds=("Resize",))
MOVEMENT.add("Resize without roi", _one("Resize", None, [1.0, 1.0, 2.0, 2.0]), kinds=("Resize",))
MOVEMENT.add("Resize rank 3", _one("Resize", None, [1.0, 1.0, 2.0], shape=(1, 6, 9)), kinds=("Resize",))
MOVEMENT.add(
    "Resize opset 18 axes", _one("Resize", None, [1.3, 1.3], mode="linear", axes=[2, 3]), opset=18, steps=1.6, kinds=("Resize",)
)
MOVEMENT.add(
    "Resize opset 18 axes sizes",
    _one("Resize", None, None, [12, 15], mode="linear", axes=[2, 3]),
    opset=18,
    steps=1.6,
    kinds=("Resize",),
)
MOVEMENT.add(
    "Resize opset 18 policy",
    _one("Resize", None, None, [12, 30], mode="linear", axes=[2, 3], keep_aspect_ratio_policy="not_larger"),
    opset=18,
    integer=False,
    steps=0.3,
)
MOVEMENT.add(
    "Resize half_pixel_symmetric",
    _one("Resize", None, [1.0, 1.0, 1.3, 1.7], mode="linear", coordinate_transformation_mode="half_pixel_symmetric"),
    opset=19,
    steps=1.6,
    kinds=("Resize",),
)
MOVEMENT.add("Resize cubic", _one("Resize", None, [1.0, 1.0, 2.0, 2.0], mode="cubic"), integer=False, steps=0.3)
MOVEMENT.add(
    "Resize antialias", _one("Resize", None, [1.0, 1.0, 0.5, 0.5], mode="linear", antialias=1), opset=18, integer=False, steps=0.3
)
MOVEMENT.add("Resize of channels", _one("Resize", None, [1.0, 2.0, 1.0, 1.0]), integer=False, steps=0.3)


def _join(axis: int, *, op: str = "Relu", rank: int = 4) -> Build:
    """Three tensors, one of them twice, with unlike ranges and layouts."""

    def build(net: Net) -> None:
        shape = (1, 4, 5, 6)[:rank]
        a = net.conv(net.input("a", shape), 4, (1,) * (rank - 2))
        b = net.op("Mul", net.op(op, net.input("b", shape)), net.constant(3.0))
        net.output(net.op("Concat", a, b, a, axis=axis))

    return build


for _axis in (0, 1, 2, 3, -1, -3):
    MOVEMENT.add(f"Concat axis {_axis}", _join(_axis), steps=4.0)
for _axis in (1, 2):
    MOVEMENT.add(f"Concat axis {_axis} rank 3", _join(_axis, rank=3), steps=4.0)


def _concat_with_constant(net: Net) -> None:
    net.output(net.op("Concat", net.input("x", (1, 4, 5, 5)), net.weights(1, 2, 5, 5), axis=1))


def _concat_inputs(net: Net) -> None:
    net.output(
        net.op("Concat", net.input("a", (1, 4, 5, 5)), net.op("Mul", net.input("b", (1, 4, 5, 5)), net.constant(0.01)), axis=1)
    )


MOVEMENT.add("Concat with a constant", _concat_with_constant, integer=False, steps=0.3)
MOVEMENT.add("Concat of inputs", _concat_inputs)

for _name, _opset, _build in (
    ("attributes", 9, _one("Slice", starts=[1, 2], ends=[9, 7], axes=[1, 3])),
    ("attributes without axes", 9, _one("Slice", starts=[0, 1], ends=[1, 4])),
    ("negative attributes", 9, _one("Slice", starts=[-4], ends=[-1], axes=[2])),
    ("inputs", 13, _one("Slice", [1, 2], [6, 7], [1, 3])),
    ("inputs opset 10", 10, _one("Slice", [1, 2], [6, 7], [1, 3])),
    ("without axes", 13, _one("Slice", [0, 2, 3], [1, 5, 8])),
    ("negative", 13, _one("Slice", [-5, -3], [-1, 1000], [-1, -2])),
    ("steps", 13, _one("Slice", [1, 0], [9, 11], [2, 3], [2, 3])),
    ("steps of channels", 13, _one("Slice", [0], [6], [1], [2])),
    ("to the end", 13, _one("Slice", [2], [2**63 - 1], [2], [1])),
    ("from before the start", 13, _one("Slice", [-1000], [4], [3])),
):
    MOVEMENT.add(f"Slice {_name}", _build, opset=_opset, kinds=("Slice",))


def _slice_of_concat(starts: list[int], ends: list[int], axes: list[int], *, attributes: bool = False) -> Build:
    """A slice of two tensors with unlike ranges, joined along the channels: 4 and 3 of them."""

    def build(net: Net) -> None:
        a = net.op("Relu", net.input("a", (1, 4, 5, 6)))
        b = net.op("Mul", net.op("Sigmoid", net.input("b", (1, 3, 5, 6))), net.constant(50.0))
        joined = net.op("Concat", a, b, axis=1)
        if attributes:
            net.output(net.op("Slice", joined, starts=starts, ends=ends, axes=axes))
        else:
            net.output(net.op("Slice", joined, *(net.constant(values) for values in (starts, ends, axes))))

    return build


for _name, _build in (
    ("its first input", _slice_of_concat([0], [4], [1])),
    ("its last input", _slice_of_concat([4], [1000], [1])),
    ("a part of an input", _slice_of_concat([5, 1], [7, 4], [1, 2])),
    ("both inputs", _slice_of_concat([3], [5], [1])),
):
    MOVEMENT.add(f"Slice of a Concat: {_name}", _build, steps=1.6)
MOVEMENT.add("Slice of a Concat: attributes", _slice_of_concat([1], [3], [1], attributes=True), opset=9, steps=1.6)
MOVEMENT.add("Slice rank 2", _one("Slice", [1], [3], [1], shape=(4, 6)), kinds=("Slice",))
MOVEMENT.add("Slice backwards", _one("Slice", [8], [-1000], [2], [-1]), integer=False, steps=0.6)
for _name, _opset, _build in (
    ("attribute", 11, _one("Split", count=3, axis=1, split=[1, 3, 2])),
    ("input", 13, _one("Split", [1, 3, 2], count=3, axis=1)),
    ("equal parts", 13, _one("Split", count=2, axis=1)),
    ("of rows", 13, _one("Split", [4, 5], count=2, axis=2)),
    ("negative axis", 13, _one("Split", [4, 7], count=2, axis=-1)),
    ("num_outputs", 18, _one("Split", count=4, axis=3, num_outputs=4)),
):
    MOVEMENT.add(f"Split {_name}", _build, opset=_opset, kinds=("Split",))


def _split_partly_used(net: Net) -> None:
    _, middle, _ = net.ops("Split", net.input("x", _IMAGE), net.constant([1, 3, 2]), count=3, axis=1)
    net.output(net.op("Relu", middle))


MOVEMENT.add("Split of which one part is read", _split_partly_used, steps=1.6)

_PADS = [0, 1, 2, 0, 0, 0, 1, 3]
for _mode in ("constant", "reflect", "edge"):
    MOVEMENT.add(f"Pad {_mode} attribute", _one("Pad", mode=_mode, pads=_PADS), opset=7, kinds=("Pad",))
    MOVEMENT.add(f"Pad {_mode} input", _one("Pad", _PADS, mode=_mode), kinds=("Pad",))
    MOVEMENT.add(f"Pad {_mode} rank 3", _one("Pad", [0, 1, 2, 0, 1, 0], mode=_mode, shape=(1, 5, 6)), kinds=("Pad",))
MOVEMENT.add("Pad value attribute", _one("Pad", pads=_PADS, value=0.5), opset=7, integer=False)
MOVEMENT.add("Pad value input", _one("Pad", _PADS, -0.5), integer=False)
MOVEMENT.add("Pad value outside of the range", _one("Pad", _PADS, 7.0), integer=False)
MOVEMENT.add("Pad axes", _one("Pad", [1, 2, 3, 0], None, [-1, 2]), opset=18, kinds=("Pad",))
MOVEMENT.add("Pad negative", _one("Pad", [0, 0, -1, 2, 0, 0, 0, 0]), integer=False, steps=0.6)
MOVEMENT.add("Pad wrap", _one("Pad", _PADS, mode="wrap"), opset=19, integer=False, steps=0.6)


def _padded_pool(value: float, pads: list[int], **attributes: Any) -> Build:
    """What exporters write for a max pooling with padding: the padding is below every value."""

    def build(net: Net) -> None:
        x = net.conv(net.input("x", _IMAGE), 6)
        net.output(
            net.op("MaxPool", net.op("Pad", x, net.constant(pads), net.constant(value)), kernel_shape=[3, 3], **attributes)
        )

    return build


_FRAME = [0, 0, 1, 1, 0, 0, 1, 1]
MOVEMENT.add("Pad with the lowest value before MaxPool", _padded_pool(-3.4e38, _FRAME), steps=4.0, kinds=("Conv", "MaxPool"))
MOVEMENT.add("Pad with a low value before MaxPool", _padded_pool(-100.0, _FRAME), integer=False, steps=4.0)
MOVEMENT.add(
    "Pad with the lowest value, MaxPool ceil_mode",
    _padded_pool(-3.4e38, _FRAME, ceil_mode=1, strides=[2, 2]),
    integer=False,
    steps=4.0,
)
MOVEMENT.add("Pad with zero before MaxPool", _padded_pool(0.0, _FRAME), steps=4.0, kinds=("Conv", "Pad", "MaxPool"))

for _perm in ([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2], [3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 2, 3]):
    MOVEMENT.add(f"Transpose {_perm}", _one("Transpose", perm=_perm))
for _perm in ([1, 0, 2], [0, 2, 1], [2, 1, 0]):
    MOVEMENT.add(f"Transpose {_perm}", _one("Transpose", perm=_perm, shape=(2, 5, 6)))
MOVEMENT.add("Transpose rank 2", _one("Transpose", shape=(4, 6)))
MOVEMENT.add("Transpose rank 5", _one("Transpose", perm=[0, 3, 1, 4, 2], shape=(1, 2, 3, 4, 5)))
for _mode in ("DCR", "CRD"):
    MOVEMENT.add(
        f"DepthToSpace {_mode}", _one("DepthToSpace", shape=(2, 12, 3, 4), blocksize=2, mode=_mode), kinds=("DepthToSpace",)
    )
MOVEMENT.add("DepthToSpace by default", _one("DepthToSpace", shape=(2, 12, 3, 4), blocksize=2), kinds=("DepthToSpace",))
MOVEMENT.add("DepthToSpace blocks of 3", _one("DepthToSpace", shape=(1, 18, 3, 4), blocksize=3), kinds=("DepthToSpace",))
MOVEMENT.add("SpaceToDepth", _one("SpaceToDepth", shape=(2, 3, 4, 6), blocksize=2), kinds=("SpaceToDepth",))
MOVEMENT.add("Gather of channels", _one("Gather", [2, 0, 1, 1], axis=1), integer=False, steps=0.6)


def _reshape(op: str, *constants: Any, shape: tuple[int, ...] = _IMAGE, before: bool = False, **attributes: Any) -> Build:
    """A reshape between two integer layers, from row-major memory or from a convolution's."""

    def build(net: Net) -> None:
        x = net.input("x", shape)
        y = net.conv(x, shape[1], (1,) * (len(shape) - 2)) if before else net.op("Tanh", x)
        net.output(net.op("Sigmoid", net.op(op, y, *map(net.constant, constants), **attributes)))

    return build


for _before, _where in ((False, "after Tanh"), (True, "after Conv")):
    for _name, _build in {
        "Reshape to rank 2": _reshape("Reshape", [1, -1], before=_before),
        "Reshape to rank 3": _reshape("Reshape", [0, 6, -1], before=_before),
        "Reshape to rank 5": _reshape("Reshape", [1, 2, 3, 9, 11], before=_before),
        "Reshape to another image": _reshape("Reshape", [1, 11, 9, 6], before=_before),
        "Reshape of rank 3": _reshape("Reshape", [1, 3, 2, -1], shape=(1, 6, 9), before=_before),
        "Flatten": _reshape("Flatten", before=_before),
        "Flatten axis 2": _reshape("Flatten", axis=2, before=_before),
        "Flatten axis -1": _reshape("Flatten", axis=-1, before=_before),
        "Squeeze": _reshape("Squeeze", [2], shape=(1, 6, 1, 9), before=_before),
        "Squeeze all": _reshape("Squeeze", shape=(1, 6, 1, 9), before=_before),
        "Unsqueeze": _reshape("Unsqueeze", [1], before=_before),
        "Unsqueeze of rank 3": _reshape("Unsqueeze", [-2], shape=(1, 6, 9), before=_before),
    }.items():
        MOVEMENT.add(f"{_name} {_where}", _build, steps=4.0)
MOVEMENT.add("Squeeze opset 11", _reshape("Squeeze", axes=[2], shape=(1, 6, 1, 9)), opset=11, steps=2.1)
MOVEMENT.add("Unsqueeze opset 11", _reshape("Unsqueeze", axes=[0, 5]), opset=11, steps=2.1)


def _channel_shuffle(net: Net) -> None:
    y = net.conv(net.input("x", (1, 6, 5, 7)), 12, 1, group=3)
    y = net.op("Transpose", net.op("Reshape", y, net.constant([1, 3, 4, 5, 7])), perm=[0, 2, 1, 3, 4])
    y = net.op("Reshape", y, net.constant([1, 12, 5, 7]))
    net.output(net.conv(y, 12, 3, cin=12, group=12))


def _pixel_shuffle(net: Net) -> None:
    y = net.conv(net.input("x", (1, 6, 5, 7)), 12, 1)
    y = net.op("Transpose", net.op("Reshape", y, net.constant([1, 3, 2, 2, 5, 7])), perm=[0, 1, 4, 2, 5, 3])
    net.output(net.conv(net.op("Reshape", y, net.constant([1, 3, 10, 14])), 4, cin=3))


def _focus(net: Net) -> None:
    """Four strided slices, joined: what some detectors begin with."""
    x = net.input("x", (1, 3, 8, 8))
    parts = [
        net.op(
            "Slice", net.op("Slice", x, *map(net.constant, ([row], [8], [2], [2]))), *map(net.constant, ([column], [8], [3], [2]))
        )
        for row in (0, 1)
        for column in (0, 1)
    ]
    net.output(net.op("Relu", net.conv(net.op("Concat", *parts, axis=1), 8, cin=12)))


MOVEMENT.add("channel shuffle", _channel_shuffle, steps=5.0, kinds=("Conv", "Gather", "Conv"))
MOVEMENT.add("pixel shuffle", _pixel_shuffle, steps=5.0)
MOVEMENT.add("focus", _focus, steps=5.0)
