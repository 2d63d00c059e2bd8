"""TFLite's operators with windows: convolutions, pooling and changes of size. All of them read and make NCHW."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from .builder import NCHW, Builder
from .fused import emit
from .model import TfliteOperator

__all__ = ["SPATIAL", "convolution"]

_SAME = 0
_SAME_OF_STRUCTS = 1
"""The same in options that are the bytes of a structure."""
_NONE = (1, 1)


def _strides(builder: Builder, operator: TfliteOperator) -> tuple[int, int]:
    """Down and across; the file has them the other way round."""
    strides = operator.integer(2, default=1), operator.integer(1, default=1)
    _positive(builder, operator, strides)
    return strides


def _positive(builder: Builder, operator: TfliteOperator, numbers: Sequence[int]) -> None:
    if min(numbers) < 1:
        raise builder.refusal(operator, f"a stride or size of it is {min(numbers)}")


def _pads(
    builder: Builder,
    operator: TfliteOperator,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int] = _NONE,
) -> list[int]:
    """Top, left, bottom, right. Where the padding that SAME needs is odd, the larger half comes behind."""
    if operator.integer(0, "b") != _SAME:
        return [0, 0, 0, 0]
    before, after = [], []
    source, result = builder.shape(operator.inputs[0])[1:3], builder.shape(operator.outputs[0])[1:3]
    for out, stride, size, dilation, extent in zip(result, strides, kernel, dilations, source, strict=True):
        total = max((out - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        before.append(total // 2)
        after.append(total - total // 2)
    return [*before, *after]


def _weights(builder: Builder, index: int, order: tuple[int, ...]) -> str:
    value = builder.constant(index)
    if value is not None:
        return builder.add(f"{builder.tensor(index).name}/weights", value.transpose(order))
    return builder.step("Transpose", [builder.read(index)], index, perm=order)


def convolution(
    builder: Builder,
    operator: TfliteOperator,
    source: int | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    target: TfliteOperator | None = None,
) -> None:
    """A convolution. The other arguments replace its own where it stands between operators that cut the picture into a batch."""
    depthwise = operator.kind == "DEPTHWISE_CONV_2D"
    source = operator.inputs[0] if source is None else source
    weights = operator.inputs[1]
    if any(builder.rank(index) != 4 for index in (source, weights, operator.outputs[0])):
        raise builder.refusal(operator, "it has other than four axes")
    strides = _strides(builder, operator)
    width = 5 if depthwise else 4
    own = operator.integer(width + 1, default=1), operator.integer(width, default=1)
    dilations = own if dilations is None else dilations
    _positive(builder, operator, dilations)
    shape, channels = builder.shape(weights), builder.shape(source)[3]
    kernel = shape[1:3]
    if not depthwise and (shape[3] == 0 or channels % shape[3]):
        raise builder.refusal(operator, f"its weights are for {shape[3]} channels, and its input has {channels}")
    inputs = [builder.read(source, NCHW), _weights(builder, weights, (3, 0, 1, 2) if depthwise else (0, 3, 1, 2))]
    if builder.has(operator, 2):
        inputs.append(builder.read(operator.inputs[2]))
    made = emit(
        builder,
        target or operator,
        operator.integer(width - 1, "b"),
        NCHW,
        "Conv",
        inputs,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=_pads(builder, operator, kernel, strides, dilations) if pads is None else pads,
        group=channels if depthwise else channels // shape[3],
    )
    builder.keep_scales(weights, made)


def _transposed(builder: Builder, operator: TfliteOperator) -> None:
    _, weights, source = operator.inputs[:3]
    bias = operator.inputs[3] if builder.has(operator, 3) else None
    same, strides = operator.integer(0, "b") == _SAME, _strides(builder, operator)
    _turned_convolution(builder, operator, source, weights, bias, strides, same=same, activation=operator.integer(3, "b"))


def _transposed_with_bias(builder: Builder, operator: TfliteOperator) -> None:
    """An operator of MediaPipe; its options are three numbers."""
    if len(operator.custom) < 12 or len(operator.inputs) < 3:
        raise builder.refusal(operator, "its options are missing")
    padding, across, down = struct.unpack_from("<iii", operator.custom)
    _positive(builder, operator, (down, across))
    source, weights, bias = operator.inputs[:3]
    _turned_convolution(builder, operator, source, weights, bias, (down, across), same=padding == _SAME_OF_STRUCTS, activation=0)


def _turned_convolution(
    builder: Builder,
    operator: TfliteOperator,
    source: int,
    weights: int,
    bias: int | None,
    strides: tuple[int, int],
    *,
    same: bool,
    activation: int,
) -> None:
    kernel = builder.shape(weights)[1:3]
    inputs = [builder.read(source, NCHW), _weights(builder, weights, (3, 0, 1, 2))]
    if bias is not None:
        inputs.append(builder.read(bias))
    before, after, beyond = [], [], []
    result = builder.shape(operator.outputs[0])[1:3]
    for extent, stride, size, out in zip(builder.shape(source)[1:3], strides, kernel, result, strict=True):
        total = (extent - 1) * stride + size - out
        before.append(max(total, 0) // 2 if same else 0)
        after.append(max(total, 0) - before[-1])
        beyond.append(max(-total, 0))
    more: dict[str, Any] = {"output_padding": beyond} if any(beyond) else {}
    pads = [*before, *after]
    made = emit(
        builder, operator, activation, NCHW, "ConvTranspose", inputs, kernel_shape=kernel, strides=strides, pads=pads, **more
    )
    builder.keep_scales(weights, made)


def _pool(op: str) -> Callable[[Builder, TfliteOperator], None]:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        strides = _strides(builder, operator)
        kernel = operator.integer(4, default=1), operator.integer(3, default=1)
        _positive(builder, operator, kernel)
        inputs, activation = [builder.read(operator.inputs[0], NCHW)], operator.integer(5, "b")
        pads = _pads(builder, operator, kernel, strides)
        emit(builder, operator, activation, NCHW, op, inputs, kernel_shape=kernel, strides=strides, pads=pads)

    return convert


def _resize(mode: str) -> Callable[[Builder, TfliteOperator], None]:
    first = 2 if mode == "linear" else 0

    def convert(builder: Builder, operator: TfliteOperator) -> None:
        corners, centers = operator.truth(first), operator.truth(first + 1)
        coordinates = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
        batch, height, width, channels = builder.shape(operator.outputs[0])
        inputs = [builder.read(operator.inputs[0], NCHW), "", "", builder.extents((batch, channels, height, width))]
        rounding = {} if mode == "linear" else {"nearest_mode": "round_prefer_ceil" if corners or centers else "floor"}
        name = builder.result(operator.outputs[0], NCHW)
        builder.node("Resize", inputs, [name], mode=mode, coordinate_transformation_mode=coordinates, **rounding)

    return convert


def _blocks(op: str) -> Callable[[Builder, TfliteOperator], None]:
    def convert(builder: Builder, operator: TfliteOperator) -> None:
        size = operator.integer(0, default=1)
        _positive(builder, operator, [size])
        source = builder.read(operator.inputs[0], NCHW)
        builder.node(op, [source], [builder.result(operator.outputs[0], NCHW)], blocksize=size)

    return convert


def _local_response(builder: Builder, operator: TfliteOperator) -> None:
    size = 2 * operator.integer(0) + 1
    source = builder.read(operator.inputs[0], NCHW)
    alpha, beta, bias = operator.real(2) * size, operator.real(3), operator.real(1)  # ONNX divides alpha by the size
    builder.node("LRN", [source], [builder.result(operator.outputs[0], NCHW)], size=size, alpha=alpha, beta=beta, bias=bias)


def _space_to_batch(builder: Builder, operator: TfliteOperator) -> None:
    """The first of three operators that old converters write for one convolution with gaps (dilation)."""
    inner = builder.readers.get(operator.outputs[0], [])
    last = builder.readers.get(inner[0].outputs[0], []) if len(inner) == 1 else []
    kinds = [inner[0].kind, last[0].kind] if len(inner) == len(last) == 1 else []
    if not kinds or kinds[0] not in ("CONV_2D", "DEPTHWISE_CONV_2D") or kinds[1] != "BATCH_TO_SPACE_ND":
        raise builder.refusal(operator, "it is not part of a convolution with gaps")
    block = [int(size) for size in builder.known(operator, 1, "block")]
    padding = builder.known(operator, 2, "padding").tolist()
    crops = builder.known(last[0], 2, "crop").tolist()
    pads = [padding[0][0], padding[1][0], padding[0][1] - crops[0][1], padding[1][1] - crops[1][1]]
    plain = inner[0].integer(0, "b") != _SAME or tuple(builder.shape(inner[0].inputs[1])[1:3]) == (1, 1)
    if len(block) != 2 or not plain or min(pads) < 0 or crops[0][0] or crops[1][0]:
        raise builder.refusal(operator, "its padding is not that of a convolution with gaps")
    convolution(builder, inner[0], operator.inputs[0], block, pads, last[0])
    builder.done.update(id(entry) for entry in (inner[0], last[0]))


SPATIAL: dict[str, Callable[[Builder, TfliteOperator], None]] = {
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": convolution,
    "TRANSPOSE_CONV": _transposed,
    "Convolution2DTransposeBias": _transposed_with_bias,
    "AVERAGE_POOL_2D": _pool("AveragePool"),
    "MAX_POOL_2D": _pool("MaxPool"),
    "RESIZE_BILINEAR": _resize("linear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
    "DEPTH_TO_SPACE": _blocks("DepthToSpace"),
    "SPACE_TO_DEPTH": _blocks("SpaceToDepth"),
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "SPACE_TO_BATCH_ND": _space_to_batch,
}
"""Operators that need pictures as NCHW."""
