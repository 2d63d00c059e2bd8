"""How two tensors differ, in numbers that are gathered sample by sample.

Everything is a sum, an extreme or a count, so a comparison holds no more than one sample's tensors at a time. ``a`` is what is right,
``b`` is what is evaluated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..._util.types import Array, Floats
from ...tensor import Layout, TensorSpec

BINS = 96
"""Bars of a histogram."""

_VERDICTS = ((0.99, "good"), (0.95, "fair, try --accuracy best"))

_MAX_SNR = 200.0
"""Decibels that stand for no error at all."""


@dataclass(frozen=True)
class Figures:
    """How far a tensor is from what it should be.

    :ivar cosine: of the angle between the two, over all samples; 1 where they point the same way, whatever their lengths
    :ivar worst_cosine: that of the worst sample
    :ivar snr: signal to noise in decibels, 20 * log10(|a| / |a - b|), 200 where they are equal
    :ivar error: largest difference of two elements
    :ivar scale: slope of the straight line that leads from a to b, without what is clipped; 1.02 where b is 2 % too large, 1 where a
        does not vary
    :ivar scale_uncertainty: standard error of the scale: large where there are few elements, or few quantized values
    :ivar differing: share of elements that are not equal
    """

    cosine: float
    worst_cosine: float
    snr: float
    error: float
    scale: float
    scale_uncertainty: float = 0.0
    differing: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every element is equal."""
        return self.error == 0.0


def verdict_of(cosine: float) -> str:
    """What a cosine to the float model's output means for an int8 model, in a few words.

    >>> verdict_of(0.997), verdict_of(0.97)
    ('good', 'fair, try --accuracy best')
    """
    return next((words for least, words in _VERDICTS if cosine >= least), "poor, see 'anynpu lint'")


@dataclass
class Difference:
    """Gathers :class:`Figures`.

    >>> difference = Difference()
    >>> difference.add(np.array([1.0, 2.0, 3.0]), np.array([1.02, 2.04, 3.06]))
    >>> figures = difference.figures()
    >>> round(figures.cosine, 6), round(figures.scale, 6), round(figures.snr, 1), round(figures.error, 6)
    (1.0, 1.02, 34.0, 0.06)
    """

    _products: Floats = field(default_factory=lambda: np.zeros(3))  # aa, bb, ab
    _line: Floats = field(default_factory=lambda: np.zeros(6))  # elements that the slope is of, their a, b, aa, bb, ab
    _count: int = 0
    _noise: float = 0.0
    _error: float = 0.0
    _worst: float = 1.0
    _differing: int = 0

    def add(self, a: Array, b: Array, clipped: Array | None = None) -> None:
        """Another sample of both.

        :param clipped: elements of *a* that *b* cannot hold
        """
        x, y = (np.asarray(value, np.float64).reshape(-1) for value in (a, b))
        if not x.size:
            return
        finite = np.isfinite(x) & np.isfinite(y)
        agree = True
        if not finite.all():  # infinities that agree are no error; anything else that is not finite is an infinite one
            odd_x, odd_y = x[~finite], y[~finite]
            agree = bool(((odd_x == odd_y) | (np.isnan(odd_x) & np.isnan(odd_y))).all())
            x, y = np.where(finite, x, 0.0), np.where(finite, y, 0.0)
        apart = x - y
        self._differing += int(np.count_nonzero(apart))
        products = np.array([_dot(x, x), _dot(y, y), _dot(x, y)])
        self._count += x.size
        self._products += products
        if clipped is not None and clipped.any():
            u, v = x[~clipped.reshape(-1)], y[~clipped.reshape(-1)]
            self._line += (u.size, u.sum(), v.sum(), _dot(u, u), _dot(v, v), _dot(u, v))
        else:
            self._line += (x.size, x.sum(), y.sum(), *products)
        self._noise += _dot(apart, apart) if agree else math.inf
        self._error = max(self._error, float(np.abs(apart).max()) if agree else math.inf)
        self._worst = min(self._worst, _cosine(products) if agree else -1.0)

    @property
    def empty(self) -> bool:
        """Whether there was no sample."""
        return not self._count

    def figures(self) -> Figures:
        """The numbers of all samples together."""
        scale, uncertainty = self._slope()
        broken = math.isinf(self._noise)
        return Figures(
            cosine=-1.0 if broken else _cosine(self._products),
            worst_cosine=self._worst,
            snr=_decibels(float(self._products[0]), self._noise),
            error=self._error,
            scale=scale,
            scale_uncertainty=uncertainty,
            differing=self._differing / max(self._count, 1),
        )

    def _slope(self) -> tuple[float, float]:
        """Slope of the regression of b on a, and its standard error."""
        count = float(self._line[0])
        if count < 3:
            return 1.0, 0.0
        mean_a, mean_b, aa, bb, ab = (self._line[1:] / count).tolist()
        variance, other, together = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
        if variance <= 1e-12 * aa:
            return 1.0, 0.0
        slope = together / variance
        rest = max(other - slope * together, 0.0)
        return slope, math.sqrt(rest / variance / (count - 2))


def _dot(x: Floats, y: Floats) -> float:
    return float(np.einsum("i,i->", x, y))  # a BLAS would start threads, which wait for each other on a busy machine


def _cosine(products: Floats) -> float:
    aa, bb, ab = (float(value) for value in products)
    if not aa or not bb:
        return 1.0 if aa == bb else 0.0
    return max(-1.0, min(1.0, ab / math.sqrt(aa) / math.sqrt(bb)))


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return _MAX_SNR
    if not signal or math.isinf(noise):
        return -_MAX_SNR
    return max(-_MAX_SNR, min(_MAX_SNR, 10.0 * math.log10(signal / noise)))


@dataclass(frozen=True)
class CodesUsed:
    """What a quantized tensor makes of its quantized values.

    :ivar used: different quantized values that occur
    :ivar available: quantized values that there are
    :ivar rails: share of the elements at the smallest or largest code. A limit that stands for zero, as below a ReLU, does not count
    :ivar clipped: share of the elements whose right value is beyond what the quantized values can stand for
    """

    used: int
    available: int
    rails: float
    clipped: float


class CodeCount:
    """Gathers :class:`CodesUsed` of one quantized tensor, all its groups of channels together."""

    def __init__(self, spec: TensorSpec) -> None:
        assert spec.quantization is not None
        self._first, self._last = spec.dtype.limits
        self._counts = np.zeros(self._last - self._first + 1, np.int64)
        self._clipped = 0
        scales, zeros = spec.quantization.expand(spec.channels)
        self._rails = [code for code in (self._first, self._last) if not bool((zeros == code).any())]
        last = spec.layout is Layout.PLAIN or len(spec.shape) < 2
        along = (-1,) if last else (1, -1, *(1,) * (len(spec.shape) - 2))
        # half a step beyond the last code is still rounded to it
        self._low, self._high = (
            ((code + half - zeros) * scales).reshape(along) for code, half in ((self._first, -0.5), (self._last, 0.5))
        )
        self._shape = spec.shape

    def beyond(self, values: Array) -> Array:
        """Which elements of a tensor, in the order of the ONNX model, the quantized values cannot stand for."""
        shaped = values.reshape(self._shape)
        return ((shaped < self._low) | (shaped > self._high)).reshape(values.shape)

    def add(self, codes: Array, clipped: Array) -> None:
        """Another sample: the quantized values, and which elements are clipped."""
        shifted = codes.reshape(-1).astype(np.int64) - self._first
        self._counts += np.bincount(shifted, minlength=len(self._counts))
        self._clipped += int(np.count_nonzero(clipped))

    def codes_used(self) -> CodesUsed:
        """The counts of all samples together."""
        total = max(int(self._counts.sum()), 1)
        rails = sum(int(self._counts[code - self._first]) for code in self._rails)
        return CodesUsed(int(np.count_nonzero(self._counts)), len(self._counts), rails / total, self._clipped / total)


class Histograms:
    """How often values of either side lie where.

    :ivar low: where the first bin begins
    :ivar high: where the last bin ends
    :ivar counts: [2, bins], a and b
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.counts = np.zeros((2, BINS), np.int64)

    def add(self, a: Array, b: Array) -> None:
        """Another sample of both. What is not finite does not count."""
        sides = [np.asarray(value, np.float64).reshape(-1) for value in (a, b)]
        sides = [value if np.isfinite(value).all() else value[np.isfinite(value)] for value in sides]
        filled = [value for value in sides if value.size]
        if not filled:
            return
        self._widen(min(float(value.min()) for value in filled), max(float(value.max()) for value in filled))
        for row, value in enumerate(sides):
            self.counts[row] += self._count(value)

    def _widen(self, low: float, high: float) -> None:
        """Make space for values from *low* to *high*; what was counted moves to the bin that its own bin's center is in."""
        if self.low <= low and high <= self.high:
            return
        centres = self.low + (np.arange(BINS) + 0.5) * ((self.high - self.low) / BINS) if self.counts.any() else None
        self.low, self.high = min(self.low, low), max(self.high, high)
        if not self.high > self.low:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        if centres is not None:
            moved = self._bins(centres)
            self.counts = np.stack([np.bincount(moved, row, BINS).astype(np.int64) for row in self.counts])

    def _count(self, values: Floats) -> npt.NDArray[np.int64]:
        return np.bincount(self._bins(values), minlength=BINS)

    def _bins(self, values: Array) -> npt.NDArray[np.int64]:
        bins = ((values - self.low) * (BINS / (self.high - self.low))).astype(np.int64)
        return np.minimum(bins, BINS - 1)


class ChannelRanges:
    """Smallest and largest value of each channel, of either side.

    :ivar limits: [2 sides, 2 ends, channels]
    """

    def __init__(self, channels: int) -> None:
        self.limits = np.empty((2, 2, channels))
        self.limits[:, 0], self.limits[:, 1] = np.inf, -np.inf

    def add(self, a: Array, b: Array) -> None:
        """Another sample of both; channels are axis 1, or the last axis of a matrix or vector."""
        for side, value in enumerate((a, b)):
            rows = by_channel(np.asarray(value, np.float64))
            self.limits[side, 0] = np.minimum(self.limits[side, 0], rows.min(axis=1))
            self.limits[side, 1] = np.maximum(self.limits[side, 1], rows.max(axis=1))


def by_channel(values: Array) -> Array:
    """An array as [channels, everything else]."""
    if values.ndim < 2:
        return values.reshape(-1, 1) if values.ndim else values.reshape(1, 1)
    axis = 1 if values.ndim > 2 else -1
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
