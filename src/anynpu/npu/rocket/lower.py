"""From layers of a program to convolutions of the RK3588 NPU, where the chip computes the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import CommandStreamError
from ...program import Conv, FixedPoint, Layer
from ...program.arithmetic.fixed_point import shift_right
from ...tensor import DType, Layout, TensorSpec
from .emitter import check
from .layouts import pack_bias, pack_channel_table, pack_weights
from .plan import Addition, Convolution

__all__ = ["FEATURES", "Lowered", "Unsupported", "lower"]

Bytes = npt.NDArray[np.uint8]

_ONE = 1 << 14
_LEAST_PIXELS = 12
_CHANNELS_OF_TWO_PLANES = 32


FEATURES = ("lookups",)
"""What the streams use of the chip beyond what open drivers do, and can do without."""


class Unsupported(Exception):
    """A layer has no command stream that gives its bytes; the text is the reason."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A layer as a convolution of the chip.

    :ivar weights: packed
    :ivar bias: biases or channel table, packed
    :ivar table: what the CPU does with each output value, by its bits (int8[256]); None if nothing
    """

    convolution: Convolution
    weights: Bytes
    bias: Bytes
    table: npt.NDArray[np.int8] | None


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise Unsupported(reason)


def lower(layer: Layer, tensors: Mapping[str, TensorSpec], without: Collection[str] = ()) -> Lowered:
    """The convolution of a layer.

    :param without: features of the chip, of :data:`FEATURES`, that are not used
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
        _need(spec.shape[0] == 1, "more than one image")
        _need(spec.quantization is not None and spec.quantization.is_per_tensor, "a tensor has scales by group of channels")
    _need(op.dilations == (1, 1), "dilation")
    _need(len(stage.curves) <= 1, "several activations")
    _need(not stage.curves or "lookups" not in without, "an activation in lookup tables, which are not used")
    curve = stage.curves[0] if stage.curves else None
    _need(curve is None or (stage.bounds is None and added is None), "an activation of a sum with a tensor, or with limits")
    _need(stage.slope is None, "a slope for negative values")
    numbers = [np.unique(values) for values in (stage.multiplier, stage.shift, stage.zero_point)]
    _need(all(values.size == 1 for values in numbers), "several output scales: compile without='groups'")
    multiplier, shift, zero = (int(values[0]) for values in numbers)
    _, height, width, channels = source.memory_shape
    outputs = target.shape[1]
    depthwise = op.groups > 1
    _need(not depthwise or op.groups == channels == outputs, "groups of channels")
    addition = None
    if added is not None:
        addition = _addition(stage, added, target)
    weight_zero = np.broadcast_to(op.weight_zero, outputs).astype(np.int64)
    _need(bool((weight_zero >= -128).all() and (weight_zero <= 127).all()), "a weight zero point beyond 8 bits")
    factors = np.broadcast_to(stage.channel_multiplier if stage.channel_multiplier.size else np.array([_ONE]), outputs)
    _need(bool((factors >= 0).all() and (factors < 1 << 15).all()), "a channel multiplier beyond 15 bits")
    offsets_differ = bool((weight_zero != weight_zero[0]).any())
    per_channel = offsets_differ or bool((factors != _ONE).any())
    assert source.quantization is not None
    padding = source.quantization.zero_point
    _need(-128 <= padding <= 127, "an input zero point beyond 8 bits")
    conv = Convolution(
        height=height,
        width=width,
        in_channels=channels,
        out_channels=outputs,
        kernel=(op.weights.shape[1], op.weights.shape[2]),
        strides=op.strides,
        pads=op.pads,
        depthwise=depthwise,
        padding=padding,
        weight_offset=0 if offsets_differ else -int(weight_zero[0]),
        output_zero=zero,
        multiplier=multiplier,
        shift=shift,
        per_channel=per_channel,
        channel_offsets=offsets_differ,
        addition=addition,
        curve=curve,
    )
    _need((conv.out_height, conv.out_width) == target.memory_shape[1:3], "the output is cut off")
    try:
        check(conv)
    except CommandStreamError as error:
        raise Unsupported(error.message) from None
    bias = _bias(op, weight_zero, padding, outputs)
    fill = weight_zero if offsets_differ else int(weight_zero[0])
    weights = pack_weights(op.weights, fill, depthwise=depthwise).view(np.uint8)
    table = pack_channel_table(bias, factors, -weight_zero if offsets_differ else 0) if per_channel else pack_bias(bias)
    return Lowered(conv, weights, table, _table(stage, multiplier, shift, zero))


def _addition(stage: FixedPoint, added: TensorSpec, target: TensorSpec) -> Addition:
    assert added.quantization is not None
    _need(added.memory_shape == target.memory_shape, "the added tensor is broadcast")
    factor = stage.residual_multiplier or 0
    _need(0 < factor < 1 << 15, "the factor of the added tensor is beyond 15 bits")
    pixels = target.memory_shape[1] * target.memory_shape[2]
    _need(
        pixels >= _LEAST_PIXELS or target.shape[1] <= _CHANNELS_OF_TWO_PLANES,
        "an addition of fewer than 12 pixels with more than 32 channels",
    )
    return Addition(-added.quantization.zero_point, factor, stage.residual_shift)


def _bias(op: Conv, weight_zero: Array, padding: int, outputs: int) -> npt.NDArray[np.int32]:
    """The biases with the input's zero point in them: the chip multiplies values as they are."""
    sums = (op.weights.astype(np.int64) - weight_zero.reshape(-1, 1, 1, 1)).reshape(outputs, -1).sum(axis=1)
    bias: npt.NDArray[np.int64] = np.broadcast_to(op.bias, outputs).astype(np.int64) - padding * sums
    _need(bool(np.abs(bias).max() < 1 << 31), "a bias beyond 32 bits")
    return bias.astype(np.int32)


def _table(stage: FixedPoint, multiplier: int, shift: int, zero: int) -> npt.NDArray[np.int8] | None:
    """What is left of the layer after the chip: limits that the output's range does not have, and a table.

    A limit of the scaled sum is one of the output value, because the output never falls when the sum rises.
    """
    values = np.arange(256, dtype=np.uint8).view(np.int8)
    table = values
    if stage.bounds is not None:
        low, high = (np.unique(bound) for bound in stage.bounds)
        _need(low.size == high.size == 1, "limits by channel")
        _need(multiplier >= 0, "limits with a negative multiplier")
        ends = shift_right(np.array([low[0], high[0]], np.int64) * multiplier + (zero << shift), shift)
        table = np.clip(values, *np.clip(ends, -128, 127)).astype(np.int8)
    if stage.table is not None:
        _need(len(stage.table) == 1 and stage.table.itemsize == 1, "tables by group of channels")
        table = stage.table[0].view(np.int8)[table.view(np.uint8)]
    return None if (table == values).all() else table
