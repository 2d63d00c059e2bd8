"""Scales, zero points and codes: from ranges to quantisation, from numbers to codes and back.

Rounding is half to even; scales are float32. The compiler builds constants with these functions, and the reference engine executes with
them; the C kernels follow them to the byte.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...tensor import Affine, DType, DynamicFixedPoint, Quantization

__all__ = [
    "WeightScales",
    "affine_from_range",
    "code_values",
    "dequantize",
    "fixed_point_from_range",
    "quantize",
    "quantize_bias",
    "quantize_weights",
]

Floats = npt.NDArray[np.floating[Any]]

_SMALLEST_SCALE = 1e-9  # a tensor that is constant zero still needs a scale
_SMALLEST_OF_VALUES = 1e-18  # times the scale of weights it is still a normal float32
_STEPS = 1 << 14
_WEIGHTS_AT_ONCE = 1 << 16  # as float64 they stay in a core's cache


class WeightScales(str, enum.Enum):
    """How the weights of a layer share scales and zero points. A channel is an output channel."""

    CHANNEL = "channel"  # by channel; 8 bits with a zero point, 16 bits without
    CHANNEL_STEPS = (
        "channel steps"  # as CHANNEL, each scale a multiple of the largest one's 2**-14: what a chip's multipliers can say
    )
    CHANNEL_SYMMETRIC = "channel symmetric"  # by channel, without a zero point
    TENSOR = "tensor"  # one for all; 8 bits with a zero point, 16 bits without
    FIXED_POINT = "fixed point"  # one for all, a power of two, without a zero point

    @property
    def by_channel(self) -> bool:
        return self in (WeightScales.CHANNEL, WeightScales.CHANNEL_STEPS, WeightScales.CHANNEL_SYMMETRIC)


def affine_from_range(low: float, high: float, dtype: DType = DType.INT8) -> Affine:
    """Scale and zero point that cover [low, high] and hold zero exactly.

    >>> affine_from_range(0.0, 2.55)
    Affine(scales=(0.009999999776482582,), zero_points=(-128,), group_sizes=())
    """
    first, last = dtype.limits
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32(max((high - low) / (last - first), _SMALLEST_OF_VALUES) if high > low else _SMALLEST_SCALE)
    zero = int(np.clip(np.rint(first - low / float(scale)), first, last))
    return Affine.per_tensor(float(scale), zero)


def fixed_point_from_range(low: float, high: float, dtype: DType = DType.INT16) -> DynamicFixedPoint:
    """The finest power-of-two scale that covers [low, high].

    >>> fixed_point_from_range(-3.0, 1.0)
    DynamicFixedPoint(fraction_bits=13)
    """
    largest = max(abs(low), abs(high), _SMALLEST_SCALE)
    _, last = dtype.limits
    bits = int(np.floor(np.log2(last / largest)))
    return DynamicFixedPoint(max(-64, min(bits, 64)))


def quantize(values: Floats, quantization: Quantization, dtype: DType) -> Array:
    """Codes of float *values* whose last axis is the channel: round(value / scale) + zero point, in float32."""
    first, last = dtype.limits
    scale, zero = quantization.expand(values.shape[-1]) if not quantization.is_per_tensor else _single(quantization)
    scaled = np.rint(values.astype(np.float32) / scale)
    # clamped in float64: float32 has no 2**31 - 1, and a value beyond int32 must not wrap
    codes = np.clip(scaled.astype(np.float64) + zero, first, last)
    return np.nan_to_num(codes, nan=0.0).astype(dtype.storage)


def dequantize(codes: Array, quantization: Quantization) -> npt.NDArray[np.float32]:
    """Values of *codes* whose last axis is the channel: (code - zero point) * scale, in float32."""
    scale, zero = quantization.expand(codes.shape[-1]) if not quantization.is_per_tensor else _single(quantization)
    return (codes.astype(np.float32) - zero.astype(np.float32)) * scale


def _single(quantization: Quantization) -> tuple[Array, Array]:
    return np.array([quantization.scale], np.float32), np.array([quantization.zero_point], np.int32)


def quantize_weights(
    weights: Floats,
    dtype: DType = DType.INT8,
    smallest_scale: Floats | float = _SMALLEST_SCALE,
    scales: WeightScales = WeightScales.CHANNEL,
) -> tuple[Array, Array, Array]:
    """Codes, scales and zero points of weights by their first axis; these are all equal where *scales* says one for all.

    With a zero point scale = (max - min) / 255 with zero inside the range, without one it is the largest magnitude / 127 (or 32767); for
    fixed point the next power of two above that. It is at least *smallest_scale*: a channel of tiny weights and a large bias needs a scale
    in which the bias fits its integer.

    >>> codes, scale, zero = quantize_weights(np.array([[0.0, 2.55]]))
    >>> codes.tolist(), zero.tolist()
    ([[-128, 127]], [-128])
    >>> codes, scale, zero = quantize_weights(np.array([[0.0, 0.4], [3.0, -1.0]]), scales=WeightScales.FIXED_POINT)
    >>> codes.tolist(), scale.tolist()
    ([[0, 13], [96, -32]], [0.03125, 0.03125])
    """
    rows = weights.reshape(weights.shape[0], -1)
    first, last = dtype.limits
    low = np.minimum(rows.min(axis=1), 0.0).astype(np.float64)
    high = np.maximum(rows.max(axis=1), 0.0).astype(np.float64)
    smallest = np.broadcast_to(np.asarray(smallest_scale, np.float64), low.shape)
    if not scales.by_channel:
        low, high, smallest = (np.full_like(low, value) for value in (low.min(), high.max(), smallest.max()))
    zero = np.zeros(len(rows), np.int32)
    if dtype is DType.INT8 and scales in (WeightScales.CHANNEL, WeightScales.CHANNEL_STEPS, WeightScales.TENSOR):
        scale = np.maximum((high - low) / (last - first), smallest).astype(np.float32)
        if scales is WeightScales.CHANNEL_STEPS:
            scale = _in_steps(scale)
        zero = np.clip(np.rint(first - low / scale), first, last).astype(np.int32)
    else:
        scale = np.maximum(np.maximum(-low, high) / last, smallest).astype(np.float32)
        if scales is WeightScales.FIXED_POINT:
            mantissa, exponent = np.frexp(scale)
            scale = np.ldexp(np.float32(1.0), np.where(mantissa == 0.5, exponent - 1, exponent))
    codes = np.empty(rows.shape, dtype.storage)
    # A hundred million weights are usual: float64 is needed for exact codes, but only for a few rows at a time.
    at_once = max(1, _WEIGHTS_AT_ONCE // max(1, rows.shape[1]))
    for begin in range(0, len(rows), at_once):
        block = slice(begin, begin + at_once)
        scaled = rows[block].astype(np.float64)
        scaled /= scale[block, None]
        np.rint(scaled, out=scaled)
        scaled += zero[block, None]
        codes[block] = np.clip(scaled, first, last, out=scaled)
    return codes.reshape(weights.shape), scale, zero


def _in_steps(scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scales, each made larger to the next multiple of the largest one's 2**-14: the multiplier of its channel is then exact."""
    largest = scale.max(initial=np.float32(0)).astype(np.float64)
    # the last bits of a float32 must not make a step of their own
    steps = np.maximum(np.ceil(scale / largest * _STEPS - 1e-3), 1.0) if largest else np.ones(len(scale))
    result: npt.NDArray[np.float32] = (largest * (steps / _STEPS)).astype(np.float32)
    return result


def quantize_bias(bias: Floats, input_scale: Floats | float, weight_scale: Floats, *, wide: bool = False) -> Array:
    """Bias in units of the accumulator; int32, or int64 where *wide*. Saturates. The scales may differ by output channel."""
    limits = np.iinfo(np.int64 if wide else np.int32)
    codes = np.rint(bias.astype(np.float64) / (np.asarray(input_scale, np.float64) * weight_scale.astype(np.float64)))
    # 2**63 - 1 is not a float64: keep clear of it
    codes = np.clip(codes, -(2.0**62) if wide else limits.min, 2.0**62 if wide else limits.max)
    return codes.astype(limits.dtype)


def code_values(dtype: DType) -> Array:
    """All codes of a type in the order of a table's index: 0, 1 ... 127, -128 ... -1 for int8."""
    count = 1 << dtype.bits
    unsigned = np.arange(count, dtype=np.uint8 if dtype.bits == 8 else np.uint16)
    return unsigned.view(dtype.storage)
