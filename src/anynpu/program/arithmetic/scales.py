"""Scales, zero points and quantized values: from ranges to quantization, from numbers to quantized values and back.

Rounding is half to even; scales are float32. The compiler builds constants with these functions, and the reference engine executes with
them; the C kernels follow them to the byte.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...tensor import Affine, DType, DynamicFixedPoint, Quantization
from .. import RESIZE_BITS, Epilogue, Finish, FixedPoint, limits_of
from .fixed_point import CHANNEL_BITS, leaky_output, output, saturate, scaled_accumulator, shift_right
from .lookup_tables import evaluate
from .thresholds import climb

Floats = npt.NDArray[np.floating[Any]]

_SMALLEST_SCALE = 1e-9  # a tensor that is constant zero still needs a scale
_SMALLEST_OF_VALUES = 1e-18  # times the scale of weights it is still a normal float32
_STEPS = 1 << 14
_WEIGHTS_AT_ONCE = 1 << 16  # as float64 they stay in a core's cache


class WeightScales(str, enum.Enum):
    """How the weights of a layer share scales and zero points. A channel is an output channel."""

    CHANNEL = "channel"  # per channel; 8 bits with a zero point, 16 bits without
    CHANNEL_STEPS = (
        "channel steps"  # as CHANNEL, each scale a multiple of the largest one's 2**-14: what a chip's multipliers can state
    )
    CHANNEL_SYMMETRIC = "channel symmetric"  # per channel, without a zero point
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
    """Quantized values of float *values* whose last axis is the channel: round(value / scale) + zero point, in float32."""
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
    """Quantized values, scales and zero points of weights by their first axis; these are all equal where *scales* states one for all.

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
    # A hundred million weights are usual: float64 is needed for exact quantized values, but only for a few rows at a time.
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
    """Bias in units of the accumulator; int32, or int64 where *wide*. Saturates. The scales may differ per output channel."""
    limits = np.iinfo(np.int64 if wide else np.int32)
    codes = np.rint(bias.astype(np.float64) / (np.asarray(input_scale, np.float64) * weight_scale.astype(np.float64)))
    # 2**63 - 1 is not a float64: keep clear of it
    codes = np.clip(codes, -(2.0**62) if wide else limits.min, 2.0**62 if wide else limits.max)
    return codes.astype(limits.dtype)


def code_values(dtype: DType) -> Array:
    """All quantized values of a type in the order of a table's index: 0, 1 ... 127, -128 ... -1 for int8."""
    count = 1 << dtype.bits
    unsigned = np.arange(count, dtype=np.uint8 if dtype.bits == 8 else np.uint16)
    return unsigned.view(dtype.storage)


# Rounding mode ``simulator``: one float32 multiplication per output, then one rounding half to even.
#
# This is what the vendors' simulators compute, and what stands for chips whose own arithmetic is not published. Every step is a
# float32 operation, rounded on its own; accumulators are exact integers. :mod:`anynpu.program.arithmetic.fixed_point` is what Rockchip's
# chips do.


def function_table(
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    source: Quantization,
    target: Quantization,
    dtype: DType,
    *,
    wide: bool = True,
) -> Array:
    """One row [1, 256] (or 65536) that maps each code of *source* to the code of function(value) in *target*.

    :param wide: values and quotients are float64; else float32, as in the vendors' simulators, where a value between two
      quantized values goes to the one that this rounding leads to
    """
    number = np.float64 if wide else np.float32
    values = (code_values(dtype).astype(np.int64) - source.zero_point).astype(number) * number(np.float32(source.scale))
    first, last = dtype.limits
    with np.errstate(all="ignore"):
        results = np.asarray(function(values), number) / number(np.float32(target.scale))
    results = results.astype(np.float64)
    results = np.nan_to_num(results, nan=0.0, posinf=1e30, neginf=-1e30)
    table: Array = np.clip(np.rint(results) + target.zero_point, first, last).astype(dtype.storage)[None]
    return table


def requantize_table(source: Quantization, target: Quantization, dtype: DType) -> Array:
    """One row that only changes scale and zero point."""
    return function_table(lambda values: values, source, target, dtype)


def finish(scaled: Floats, epilogue: Epilogue, dtype: np.dtype[Any]) -> Array:
    """The second half of an epilogue: slope, rounding, zero point, clamp, table; or the threshold table instead of all of them.

    Channels are the last axis of *scaled* (float32).
    """
    if epilogue.staircases:
        return climb(epilogue.staircases, epilogue.staircase_groups, scaled)
    if epilogue.slope is not None:
        scaled = np.where(scaled < 0, scaled * epilogue.slope.astype(np.float32), scaled)
    first, last = limits_of(dtype)
    low, high = (first, last) if epilogue.clamp is None else (epilogue.clamp[0], epilogue.clamp[1])
    # Rounding and clamping happen in float64 so that no zero point of 16 bits is lost; both steps are exact there.
    codes = np.clip(np.rint(scaled).astype(np.float64) + epilogue.zero_point, low, high).astype(dtype)
    if epilogue.table is None:
        return codes
    return apply_table(codes, epilogue.table, epilogue.table_groups)


def apply_float_rule(
    accumulator: Array, epilogue: Epilogue, dtype: np.dtype[Any], residual: Array | None = None, residual_zero: Array | int = 0
) -> Array:
    """Quantized values from an exact integer *accumulator* whose last axis is the channel; see :class:`anynpu.program.Epilogue`."""
    scaled = accumulator.astype(np.float32) * epilogue.multiplier.astype(np.float32)
    if residual is not None and epilogue.residual_multiplier is not None:
        difference = (residual.astype(np.int32) - residual_zero).astype(np.float32)
        scaled = scaled + difference * epilogue.residual_multiplier.astype(np.float32)
    return finish(scaled, epilogue, dtype)


def apply_table(codes: Array, table: Array, groups: tuple[int, ...] = ()) -> Array:
    """table[code], with a row by group of channels where *groups* reports it; channels are the last axis."""
    index = codes.view(np.uint8 if codes.dtype.itemsize == 1 else np.uint16)
    if not groups:
        return np.take(table[0], index)
    rows = np.repeat(np.arange(len(groups)), groups)
    result: Array = table[rows, index]
    return result


def resize_shift(accumulator: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """accumulator / 2**22, rounded half to even: the last step of a linear resize."""
    return shift_right(accumulator, 2 * RESIZE_BITS)


# The end of a layer, by whichever rule it was compiled for: from an exact accumulator to stored quantized values.


_ONE = np.array([1 << CHANNEL_BITS])


def apply_epilogue(
    accumulator: Array, epilogue: Finish, dtype: np.dtype[Any], residual: Array | None = None, residual_zero: Array | int = 0
) -> Array:
    """Quantized values from an exact integer *accumulator* whose last axis is the channel."""
    rule = apply_float_rule if isinstance(epilogue, Epilogue) else apply_fixed_point
    return rule(accumulator, epilogue, dtype, residual, residual_zero)  # type: ignore[arg-type]


def apply_fixed_point(
    accumulator: Array, stage: FixedPoint, dtype: np.dtype[Any], residual: Array | None = None, residual_zero: Array | int = 0
) -> Array:
    """Quantized values by the chip's rule; see :class:`anynpu.program.FixedPoint`."""
    limits = limits_of(dtype)
    factors = stage.channel_multiplier if stage.channel_multiplier.size else _ONE
    scaled = scaled_accumulator(accumulator, factors)
    has_residual = residual is not None and stage.residual_multiplier is not None
    if residual is not None and stage.residual_multiplier is not None:
        difference = residual.astype(np.int64) - residual_zero
        scaled = saturate(scaled + shift_right(difference * stage.residual_multiplier, stage.residual_shift))
    end = stage.multiplier, stage.shift, stage.zero_point, limits
    if stage.slope is not None:
        sums, factors = (scaled, _ONE) if has_residual else (accumulator, factors)
        codes = leaky_output(sums, factors, stage.slope, *end)
    else:
        if stage.bounds is not None:
            scaled = np.clip(scaled, stage.bounds[0], stage.bounds[1])
        codes = output(_through_curves(scaled, stage) if stage.curves else scaled, *end)
    stored = codes.astype(dtype)
    return stored if stage.table is None else apply_table(stored, stage.table, stage.table_groups)


def _through_curves(scaled: Array, stage: FixedPoint) -> Array:
    if not stage.curve_groups:
        return evaluate(stage.curves[0], scaled)
    values = np.empty(scaled.shape, np.int64)
    first = 0
    for curve, count in zip(stage.curves, stage.curve_groups, strict=True):
        group = slice(first, first + count)
        values[..., group] = evaluate(curve, scaled[..., group])
        first += count
    return values
