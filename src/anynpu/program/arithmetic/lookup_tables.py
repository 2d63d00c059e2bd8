"""Activations as Rockchip's NPUs compute them: two tables of 513 entries with linear interpolation.

The chip's tables see the accumulator after its first stage, not a rounded code, so an activation after a convolution loses nothing to a
rounding in between::

    v = RNE((t + offset) * multiplier, shift)            the range of the function becomes -16384 ... 16384
    a = v + 16384 if v < 0 else v                        place in the first or the second table, clamped
    u = T[i] + ((T[i + 1] - T[i]) * r >> 5)              i = a >> 5, r = a & 31; the product is floored
    u = T[512] + ((v - 16384) * slope >> slope_shift)    beyond the end of the second table, where the function goes on rising

``u`` then takes the second stage of :mod:`anynpu.program.arithmetic.fixed_point`. Entry k of a table is f(k * R / 512 - R, or + 0, -
center) times the table's scale, rounded half to even.

Sources: the tables and registers that the vendor's compiler wrote for RV1103 and the bytes that a board made of them (6,144, none wrong).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from .. import Curve
from .fixed_point import Ints, multiplier_and_shift, saturate, shift_right

Function = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

ENTRIES = 513
HALF = 16384
STEP_BITS = 5
_MAX_ENTRY = 32767.0


@dataclass(frozen=True)
class Shape:
    """A function and how the vendor's compiler tabulates it: from center - half to center + half.

    :ivar index_half: the half range that its index multipliers stand for. Where it differs from *half* it was fitted to the registers that
        were recorded (it explains each of them); the formula behind it is not known
    :ivar amplitude: the value that becomes 32767: the largest magnitude in the range, or the limit that the function approaches
    :ivar end_slope: of the straight line beyond the range; 0 where the last entry stays
    """

    function: Function
    half: float
    centre: float = 0.0
    index_half: float = 0.0
    amplitude: float = 0.0
    end_slope: float = 0.0

    @property
    def table_scale(self) -> float:
        """Units of a table's entry per unit of the function's value."""
        return _MAX_ENTRY / (self.amplitude or float(np.abs(self.function(self._places())).max()))

    @property
    def index_scale(self) -> float:
        """Units in which the chip knows the place in a table, per unit of the function's argument."""
        return HALF / (self.index_half or self.half)

    def tables(self) -> tuple[Array, Array]:
        """The entries below and above the center, int16[513] each."""
        entries = np.rint(self.function(self._places()) * self.table_scale).astype(np.int16)
        return entries[:ENTRIES], entries[ENTRIES:]

    def _places(self) -> npt.NDArray[np.float64]:
        steps = np.arange(ENTRIES) * (self.half / (ENTRIES - 1))
        return np.concatenate([steps - self.half, steps]) + self.centre


def _logistic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return result


def _gelu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    result: npt.NDArray[np.float64] = 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))
    return result


CURVES = {
    "Sigmoid": Shape(_logistic, 6.31, index_half=6.310027, amplitude=1.0),
    "Tanh": Shape(np.tanh, 3.02, amplitude=1.0),
    "HardSwish": Shape(lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0), 3.0, end_slope=1.0),
    "Softplus": Shape(lambda x: np.log1p(np.exp(x)), 4.0, end_slope=float(_logistic(np.float64(4.0)))),
    "Swish": Shape(lambda x: x * _logistic(x), 5.8, index_half=5.8001, end_slope=1.0),
    "Elu": Shape(lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))), 5.0, -5.0, amplitude=1.0, end_slope=1.0),
    "Mish": Shape(lambda x: x * np.tanh(np.log1p(np.exp(x))), 5.0, -1.0, end_slope=1.0),
    "Gelu": Shape(_gelu, 4.0, end_slope=1.0),
}
"""The functions that the vendor's compiler tabulates, with its ranges; that of Gelu is assumed. HardSigmoid depends on its attributes:
:func:`hard_sigmoid`."""


def hard_sigmoid(alpha: float, beta: float) -> Shape:
    """clip(alpha * x + beta, 0, 1), tabulated from where it leaves 0 to where it reaches 1."""
    half = 0.5 / alpha
    return Shape(
        lambda x: np.clip(alpha * x + beta, 0.0, 1.0), half, (0.5 - beta) / alpha, index_half=half * 1.00003, amplitude=1.0
    )


def curve_of(shape: Shape, scale: float) -> Curve:
    """The curve for a layer whose ``t`` has the unit *scale* (largest weight scale times input scale)."""
    negative, positive = shape.tables()
    multiplier, shift = multiplier_and_shift(scale * shape.index_scale)
    slope, slope_shift = 0, 0
    if shape.end_slope:
        # the line is drawn in units of 32768, the tables in units of 32767
        rise = shape.end_slope * shape.table_scale * ((_MAX_ENTRY + 1) / _MAX_ENTRY) * shape.half / HALF
        slope, slope_shift = multiplier_and_shift(rise)
    return Curve(int(np.rint(-shape.centre / scale)), multiplier, shift, negative, positive, slope, slope_shift)


def evaluate(curve: Curve, scaled: Array) -> Ints:
    """The value of *curve* for ``t``, in units of its tables."""
    index = saturate(shift_right((scaled.astype(np.int64) + curve.offset) * curve.multiplier, curve.shift))
    place = np.where(index < 0, np.maximum(index, -HALF) + HALF, np.minimum(index, HALF))
    entry = np.minimum(place >> STEP_BITS, ENTRIES - 2)
    rest = place - (entry << STEP_BITS)
    negative, positive = curve.negative.astype(np.int64), curve.positive.astype(np.int64)
    below = np.where(index < 0, negative[entry], positive[entry])
    above = np.where(index < 0, negative[entry + 1], positive[entry + 1])
    value = below + (((above - below) * rest) >> STEP_BITS)
    beyond = positive[-1] + (((index - HALF) * curve.slope) >> curve.slope_shift)
    return saturate(np.where((index > HALF) & (curve.slope != 0), beyond, value))
