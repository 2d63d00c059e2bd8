"""From layers of a program to convolutions of the RK3588 NPU, where the chip computes the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CommandStreamError
from ...program import Conv, Curve, FixedPoint, Layer
from ...program.arithmetic.fixed_point import shift_right
from ...tensor import DType, Layout, TensorSpec
from .emitter import check
from .layouts import LANES, pack_bias, pack_channel_table, pack_weights
from .plan import Addition, Convolution

Bytes = npt.NDArray[np.uint8]

Lanes = tuple[int, ...]
"""The channel that each channel slot of a tensor's planes has; -1 for none."""

_ONE = 1 << 14
_NONE = np.zeros(0, np.int16)
_LEAST_PIXELS = 12
_CHANNELS_OF_TWO_PLANES = 32


FEATURES = ("lookups",)
"""What the streams use of the chip beyond what open drivers do, and can do without."""


class Unsupported(Exception):
    """A layer has no command stream that gives its bytes; the text is the reason."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A layer as a convolution of the chip, or those of its channels that one can compute.

    :ivar weights: packed
    :ivar bias: biases or channel table, packed
    :ivar table: what the CPU does with each output value, by its bits (int8[256]); None if nothing
    :ivar source: first plane of the input; *target*: of the output
    """

    convolution: Convolution
    weights: Bytes
    bias: Bytes
    table: npt.NDArray[np.int8] | None
    source: int = 0
    target: int = 0


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise Unsupported(reason)


def lower(
    layer: Layer,
    tensors: Mapping[str, TensorSpec],
    without: Collection[str] = (),
    lanes: Mapping[str, Lanes] = MappingProxyType({}),
) -> tuple[Lowered, ...]:
    """The convolutions of a layer, in the order of their output planes.

    :param without: features of the chip, of :data:`FEATURES`, that are not used
    :param lanes: the order of channels in memory, for tensors that have another than the usual one
    :raises Unsupported: the chip cannot give the bytes of this layer, or how is not known
    """
    op = layer.op
    _need(isinstance(op, Conv), "no convolution")
    assert isinstance(op, Conv)
    stage = op.epilogue
    _need(isinstance(stage, FixedPoint), "no chip arithmetic: compile with arithmetic='chip'")
    assert isinstance(stage, FixedPoint)
    source, target = tensors[layer.inputs[0]], tensors[layer.outputs[0]]
    added = tensors[layer.inputs[1]] if len(layer.inputs) > 1 else None
    for spec in (source, target, *([] if added is None else [added])):
        _need(spec.dtype is DType.INT8 and spec.layout is Layout.NHWC and len(spec.shape) == 4, "a tensor is no int8 image")
        _need(spec.shape[0] == 1 and spec.quantization is not None, "more than one image")
    _need(op.dilations == (1, 1), "dilation")
    _need(not stage.curves or "lookups" not in without, "an activation in lookup tables, which are not used")
    _need(not stage.curves or (stage.bounds is None and added is None), "an activation of a sum with a tensor, or with limits")
    _need(stage.slope is None, "a slope for negative values")
    channels, outputs = source.shape[1], target.shape[1]
    _need(op.groups == 1 or op.groups == channels == outputs, "groups of channels")
    if added is not None:
        assert added.quantization is not None
        _need(added.quantization.is_per_tensor and added.memory_shape == target.memory_shape, "an added tensor of another form")
        _need(lanes.get(layer.inputs[1]) == lanes.get(layer.outputs[0]), "an added tensor with another order of channels")
    inputs = lanes.get(layer.inputs[0], tuple(range(channels)))
    kinds = _kinds(op, stage, source)
    parts = _parts(lanes.get(layer.outputs[0], tuple(range(outputs))), kinds)
    return tuple(_lower_part(layer, tensors, inputs, first, part) for first, part in parts)


def _kinds(op: Conv, stage: FixedPoint, source: TensorSpec) -> list[Any]:
    """What a task has once, for each output channel."""
    outputs = len(op.weights)
    zeros = _zeros(source)
    _need(op.groups > 1 or not any(op.pads) or bool((zeros == zeros[0]).all()), "padding with several zero points")
    numbers = (stage.multiplier, stage.shift, stage.zero_point, *(() if stage.bounds is None else stage.bounds))
    columns: list[list[Any]] = [np.broadcast_to(values, outputs).tolist() for values in numbers]
    tables = () if stage.table is None else stage.table
    curves = [(replace(curve, negative=_NONE, positive=_NONE).__repr__(), _entries(curve)) for curve in stage.curves]
    for values, groups in (([row.tobytes() for row in tables], stage.table_groups), (curves, stage.curve_groups)):
        if values:
            columns.append([value for value, size in zip(values, groups or (outputs,), strict=True) for _ in range(size)])
    columns += [zeros.tolist()] if op.groups > 1 else []
    return list(zip(*columns, strict=True))


def _entries(curve: Curve) -> bytes:
    return curve.negative.tobytes() + curve.positive.tobytes()


def _zeros(spec: TensorSpec) -> npt.NDArray[np.int64]:
    assert spec.quantization is not None
    return spec.quantization.expand(spec.shape[1])[1].astype(np.int64)


def _parts(lanes: Lanes, kinds: list[Any]) -> Iterator[tuple[int, Lanes]]:
    """Runs of output channel slots of one kind, each with its first channel slot, which begins a plane."""
    first = 0
    for lane in range(1, len(lanes) + 1):
        if lane < len(lanes) and (lanes[lane] < 0 or kinds[lanes[lane]] == kinds[lanes[first]]):
            continue
        _need(first % LANES == 0, "several output scales in a plane")
        last = next(last for last in range(lane, first, -1) if lanes[last - 1] >= 0)
        yield first, lanes[first:last]
        first = lane


def _lower_part(layer: Layer, tensors: Mapping[str, TensorSpec], inputs: Lanes, first: int, part: Lanes) -> Lowered:
    """The convolution of the output channels *part*, whose channel slots begin with *first*."""
    op = layer.op
    assert isinstance(op, Conv)
    stage = op.epilogue
    assert isinstance(stage, FixedPoint)
    source, target = tensors[layer.inputs[0]], tensors[layer.outputs[0]]
    outputs, depthwise, one = len(op.weights), op.groups > 1, part[0]
    if depthwise and len(part) == 1:
        part = (*part, -1)  # one channel alone would be a dense convolution
    real = np.array(part) >= 0
    chosen = np.where(real, part, one)
    multiplier, shift, zero = (
        int(np.broadcast_to(values, outputs)[one]) for values in (stage.multiplier, stage.shift, stage.zero_point)
    )
    weight_zero = np.broadcast_to(op.weight_zero, outputs).astype(np.int64)[chosen]
    _need(bool((weight_zero >= -128).all() and (weight_zero <= 127).all()), "a weight zero point beyond 8 bits")
    factors = np.broadcast_to(stage.channel_multiplier if stage.channel_multiplier.size else np.array([_ONE]), outputs)[chosen]
    _need(bool((factors >= 0).all() and (factors < 1 << 15).all()), "a channel multiplier beyond 15 bits")
    offsets_differ = bool((weight_zero != weight_zero[0]).any())
    per_channel = offsets_differ or bool((factors != _ONE).any())
    zeros = _zeros(source)
    _need(bool((zeros >= -128).all() and (zeros <= 127).all()), "an input zero point beyond 8 bits")
    # channel slots without a channel have weights that add nothing
    weights = np.where(real.reshape(-1, 1, 1, 1), op.weights[chosen], weight_zero.reshape(-1, 1, 1, 1)).astype(np.int8)
    if depthwise:
        zeros = zeros[chosen].reshape(-1, 1, 1, 1)
    else:
        present = np.array(inputs) >= 0
        weights = np.where(present, weights[..., np.maximum(inputs, 0)], weight_zero.reshape(-1, 1, 1, 1)).astype(np.int8)
        zeros = zeros[np.maximum(inputs, 0)]
    conv = Convolution(
        height=source.memory_shape[1],
        width=source.memory_shape[2],
        in_channels=len(part) if depthwise else len(inputs),
        out_channels=len(part),
        kernel=(op.weights.shape[1], op.weights.shape[2]),
        strides=op.strides,
        pads=op.pads,
        depthwise=depthwise,
        padding=int(zeros.reshape(-1)[0]),
        weight_offset=0 if offsets_differ else -int(weight_zero[0]),
        output_zero=zero,
        multiplier=multiplier,
        shift=shift,
        per_channel=per_channel,
        channel_offsets=offsets_differ,
        addition=None if len(layer.inputs) < 2 else _addition(stage, tensors[layer.inputs[1]], len(part)),
        curve=stage.curves[_run_of(one, stage.curve_groups)] if stage.curves else None,
    )
    _need((conv.out_height, conv.out_width) == target.memory_shape[1:3], "the output is cut off")
    try:
        check(conv)
    except CommandStreamError as error:
        raise Unsupported(error.message) from None
    bias = np.where(real, np.broadcast_to(op.bias, outputs)[chosen], 0).astype(np.int64)
    bias -= ((weights - weight_zero.reshape(-1, 1, 1, 1)) * zeros).reshape(len(part), -1).sum(axis=1)
    _need(bool(np.abs(bias).max() < 1 << 31), "a bias beyond 32 bits")
    fill = weight_zero if offsets_differ else int(weight_zero[0])
    packed = pack_weights(weights, fill, depthwise=depthwise).view(np.uint8)
    offsets = -weight_zero if offsets_differ else 0
    narrow = bias.astype(np.int32)
    numbers = pack_channel_table(narrow, factors, offsets) if per_channel else pack_bias(narrow)
    plane = first // LANES
    return Lowered(conv, packed, numbers, _table(stage, one, outputs, multiplier, shift, zero), plane if depthwise else 0, plane)


def _run_of(channel: int, sizes: tuple[int, ...]) -> int:
    """The run of channels that has *channel*; 0 where there is one for all."""
    return int(np.searchsorted(np.cumsum(sizes), channel, side="right")) if sizes else 0


def _addition(stage: FixedPoint, added: TensorSpec, channels: int) -> Addition:
    assert added.quantization is not None
    factor = stage.residual_multiplier or 0
    _need(0 < factor < 1 << 15, "the factor of the added tensor is beyond 15 bits")
    pixels = added.memory_shape[1] * added.memory_shape[2]
    _need(
        pixels >= _LEAST_PIXELS or channels <= _CHANNELS_OF_TWO_PLANES,
        "an addition of fewer than 12 pixels with more than 32 channels",
    )
    return Addition(-added.quantization.zero_point, factor, stage.residual_shift)


def _table(stage: FixedPoint, channel: int, outputs: int, multiplier: int, shift: int, zero: int) -> npt.NDArray[np.int8] | None:
    """What is left of a channel after the chip: limits that the output's range does not have, and a table.

    A limit of the scaled sum is one of the output value, because the output never falls when the sum rises.
    """
    values = np.arange(256, dtype=np.uint8).view(np.int8)
    table = values
    if stage.bounds is not None:
        limits = np.array([np.broadcast_to(bound, outputs)[channel] for bound in stage.bounds], np.int64)
        _need(multiplier >= 0, "limits with a negative multiplier")
        ends = shift_right(limits * multiplier + (zero << shift), shift)
        table = np.clip(values, *np.clip(ends, -128, 127)).astype(np.int8)
    if stage.table is not None:
        _need(stage.table.itemsize == 1, "a table of 16 bits")
        table = stage.table[_run_of(channel, stage.table_groups)].view(np.int8)[table.view(np.uint8)]
    return None if (table == values).all() else table
