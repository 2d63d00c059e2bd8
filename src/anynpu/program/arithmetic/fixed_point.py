"""What Rockchip's NPUs compute: integers only, with two roundings, both half to even.

An accumulator becomes a code in two stages::

    t = RNE(acc * channel_multiplier, 14)                       one multiplier per output channel, in units of 2**-14
    y = clip8(RNE(t * multiplier + zero_point * 2**shift, shift))   one multiplier of 15 bits and one shift per tensor

Sums and ``t`` are held in 32 bits and stay at those limits. ``RNE(p, s)`` is p / 2**s rounded to the nearest integer, ties to even
(:func:`~anynpu.program.arithmetic.fixed_point.shift_right`). What is fused to a layer works on ``t``, before the second rounding: ReLU and
Clip as limits, LeakyRelu as a factor, other activations as a curve (:mod:`anynpu.program.arithmetic.lookup_tables`). Padding of a
convolution has the zero point of its input.

Sources: bytes that an RV1103 produced (github.com/dnhkng/open-rknpu, MIT), recomputed in tests/arithmetic; :data:`EVIDENCE` states for each
chip which part is proven. One rounding instead of two, half up, or truncation in the first stage do not reproduce those bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array

# Rounding of integers by shifting, and their limits of 32 bits.


def shift_right(value: npt.NDArray[Any], bits: npt.NDArray[Any] | int) -> npt.NDArray[np.int64]:
    """value / 2**bits, rounded to the nearest integer, ties to even. *bits* may differ by element.

    >>> shift_right(np.array([5, 6, 7, -6]), 2).tolist()
    [1, 2, 2, -2]
    """
    wide = np.asarray(value, np.int64)
    shift = np.asarray(bits, np.int64)
    half = np.left_shift(np.int64(1), np.maximum(shift - 1, 0))
    rounded = (wide + half - 1 + ((wide >> shift) & 1)) >> shift
    result: npt.NDArray[np.int64] = np.where(shift == 0, wide, rounded)
    return result


def saturate(value: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """*value* limited to 32 bits, as the chip's registers are."""
    result: npt.NDArray[np.int64] = np.clip(np.asarray(value, np.int64), -(1 << 31), (1 << 31) - 1)
    return result


Ints = npt.NDArray[np.int64]

CHANNEL_BITS = 14
"""Fraction bits of the multipliers per channel, and of the operands of an Add."""

MAX_MULTIPLIER = 32767
_MAX_SHIFT = 31

EVIDENCE = {
    "rv1103": "board: every output byte of 28 vendor networks and 11 programs",
    "rv1106": "board: the same NPU as RV1103",
    "rk3588": "partly: one depthwise convolution (4,096 bytes), both stages and ties swept on a board; order of the zero point open",
    "rk3576": "partly: both stages swept on a board; multipliers, biases and tables as the vendor's compiler writes them",
    "rk3568": "partly: multipliers in units of 2**-14 as the vendor's compiler writes them",
    "rk3566": "partly: the same NPU as RK3568",
    "rk3562": "assumed: the same stages",
}
"""How well the rule is proven, by chip. A chip that is not named here computes in rounding mode ``simulator``."""


def multiplier_and_shift(factor: float) -> tuple[int, int]:
    """The multiplier of at most 15 bits and the shift that stand for *factor*; the largest there is where it is too large.

    >>> multiplier_and_shift(0.5), multiplier_and_shift(1e6)
    ((16384, 15), (32767, 0))
    """
    if factor <= 0 or not math.isfinite(factor):
        return 0, 0
    shift = max(0, min(_MAX_SHIFT, math.floor(math.log2(MAX_MULTIPLIER / factor))))
    return min(round(factor * 2.0**shift), MAX_MULTIPLIER), shift


def channel_multipliers(weight_scales: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """The scale of each output channel's weights relative to the largest, in units of 2**-14.

    >>> channel_multipliers(np.array([0.5, 1.0], np.float32)).tolist()
    [8192, 16384]
    """
    scales = weight_scales.astype(np.float32)
    result: npt.NDArray[np.int32] = np.rint(scales / scales.max() * np.float32(1 << CHANNEL_BITS)).astype(np.int32)
    return result


def scaled_accumulator(accumulator: Array, channel_multiplier: Array) -> Ints:
    """The first stage: ``t``, in units of the largest weight scale times the input's scale. Channels are the last axis."""
    return saturate(shift_right(saturate(accumulator) * channel_multiplier.astype(np.int64), CHANNEL_BITS))


def output(
    scaled: Array, multiplier: Array | int, shift: Array | int, zero_point: Array | int, limits: tuple[int, int] = (-128, 127)
) -> Ints:
    """The second stage: from ``t``, or from the value of a curve, to a code. The zero point is added before the rounding."""
    shifts = np.asarray(shift, np.int64)
    product = scaled.astype(np.int64) * np.asarray(multiplier, np.int64) + (np.asarray(zero_point, np.int64) << shifts)
    return np.clip(shift_right(product, shifts), *limits)


def leaky_output(
    accumulator: Array,
    channel_multiplier: Array,
    slope: Array,
    multiplier: Array | int,
    shift: Array | int,
    zero_point: Array | int,
    limits: tuple[int, int] = (-128, 127),
) -> Ints:
    """LeakyRelu and PRelu after a convolution: positive sums keep all their bits, negative ones are rounded once and scaled by *slope*.

    :param slope: in units of 2**-14, per channel
    """
    product = saturate(accumulator) * channel_multiplier.astype(np.int64)
    bent = np.where(product < 0, saturate(shift_right(product, CHANNEL_BITS)) * slope.astype(np.int64), product)
    return output(bent, multiplier, np.asarray(shift, np.int64) + CHANNEL_BITS, zero_point, limits)


def operand_multiplier(scale: float, largest: float) -> tuple[int, int]:
    """Multiplier and shift of one operand of an Add, so that both meet in units of the larger scale times 2**-14.

    The operand with the larger scale has 2**14 and no shift; the other has 15 bits and a shift of its own.

    >>> operand_multiplier(0.5, 0.5), operand_multiplier(0.25, 0.5)
    ((16384, 0), (16384, 1))
    """
    ratio = scale / largest
    if ratio >= 1.0:
        return 1 << CHANNEL_BITS, 0
    shift = min(15, math.floor(math.log2(MAX_MULTIPLIER / (ratio * (1 << CHANNEL_BITS)))))
    return int(np.rint(ratio * 2.0 ** (CHANNEL_BITS + shift))), shift
