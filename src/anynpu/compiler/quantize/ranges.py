"""The range of values that each tensor's quantized values must cover, from statistics over calibration samples.

:class:`RangeObserver` collects in one pass what all algorithms need. Which algorithm suits which tensor is the compiler's decision; what
lies between the last convolution and an output should always be "minmax", as rare large values carry the result there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.types import Floats
from ...errors import CalibrationError, CompileError
from ...program.arithmetic import affine_from_range
from ...tensor import DType, Quantization

# A histogram of a stream of floats whose range is not known beforehand.


BINS = 4096

_SMALLEST_EXPONENT = -126  # below it the inverse of the step is not a float32


class GrowingHistogram:
    """Counts in at most 4096 bins of equal width; the width doubles, and bins are folded in pairs, when a value lies outside.

    Bin k covers [k * step, (k + 1) * step), and the step is a power of two. So zero is always an edge, and folding is exact.
    ``counts[0]`` belongs to bin ``start``.
    """

    def __init__(self, low: float, high: float) -> None:
        self.counts: npt.NDArray[np.uint64] = np.zeros(BINS, np.uint64)
        self._exponent = max(_SMALLEST_EXPONENT, math.frexp((high - low) / BINS)[1] - 1)
        while self._bin(high) - self._bin(low) >= BINS:
            self._exponent += 1
        self.start = self._bin(low)

    @property
    def step(self) -> float:
        """The width of a bin."""
        return math.ldexp(1.0, self._exponent)

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The edges of the bins, one more than there are counts."""
        edges: npt.NDArray[np.float64] = np.ldexp(self.start + np.arange(BINS + 1, dtype=np.float64), self._exponent)
        return edges

    @property
    def at_zero(self) -> int:
        """The count of the bin that begins with zero."""
        return int(self.counts[-self.start]) if 0 <= -self.start < BINS else 0

    def _bin(self, value: float) -> int:
        return math.floor(math.ldexp(value, -self._exponent))

    def cover(self, low: float, high: float) -> None:
        """Widen the range so that it holds [low, high] beside all that was counted."""
        if self._bin(low) >= self.start and self._bin(high) < self.start + BINS:
            return
        used = np.flatnonzero(self.counts)
        if len(used):
            low = min(low, math.ldexp(self.start + int(used[0]), self._exponent))
            high = max(high, math.ldexp(self.start + int(used[-1]), self._exponent))
        while self._bin(high) - self._bin(low) >= BINS:
            self._fold()
        self._move(self._bin(low))

    def _fold(self) -> None:
        """Double the step: bins 2k and 2k + 1 become bin k."""
        start = self.start // 2
        bins = (self.start + np.arange(BINS)) // 2 - start
        folded = np.zeros(BINS, np.uint64)
        np.add.at(folded, bins, self.counts)
        self.counts, self.start = folded, start
        self._exponent += 1

    def _move(self, start: int) -> None:
        """Let the counts begin with bin *start*; all that were counted stay inside."""
        moved = np.zeros(BINS, np.uint64)
        used = np.flatnonzero(self.counts)
        moved[used + (self.start - start)] = self.counts[used]
        self.counts, self.start = moved, start

    def add(self, values: npt.NDArray[np.float32]) -> int:
        """Count contiguous *values* inside the covered range; returns how many there were without NaN."""
        before = int(self.counts.sum())
        low, inverse_step = math.ldexp(self.start, self._exponent), math.ldexp(1.0, -self._exponent)
        counts = ffi.from_buffer("uint64_t[]", self.counts)
        lib.anynpu_histogram_f32(ffi.from_buffer("float[]", values), values.size, low, inverse_step, BINS, counts)
        return int(self.counts.sum()) - before

    def add_repeated(self, value: float, times: int) -> None:
        """Count one value inside the covered range many times."""
        self.counts[self._bin(value) - self.start] += np.uint64(times)


def minmax(values: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Smallest and largest of contiguous *values*, NaN left aside; (inf, -inf) where there is none."""
    found = ffi.new("float[2]")
    lib.anynpu_minmax_f32(ffi.from_buffer("float[]", values), values.size, found)
    return found[0], found[1]


ALGORITHMS = ("minmax", "percentile", "kl", "mse")
"""The names that ``RangeObserver.range`` takes."""

Range = tuple[float, float]

_CODES = 256
_CANDIDATES = 64  # ends of the range to try, as fractions of the largest value
_WORTHWHILE = 0.99  # a clipped range must lower the error by this factor; less is within what bins can report
_NEARLY_ALL = 0.99  # so large a share of zeros makes a tensor sparse
_KL_KEEPS = (
    99.9  # percent of the values; the divergence alone would give up rare values far out, which may be what the model is for
)
_ENOUGH = 64 * _CODES  # fewer values than this state nothing about a distribution over the quantized values
_GRID = 4096
_RIGHT = 0.6  # output steps between a value and its code; rounding alone makes it half a step


@dataclass
class _Statistics:
    low: float = math.inf
    high: float = -math.inf
    samples: list[Range] = field(default_factory=list)
    histogram: GrowingHistogram | None = None
    constant: int = 0  # values seen while all were equal and there was no histogram yet
    zeros: int = 0  # exact zeros, counted only in arrays that are nearly all zero


class RangeObserver:
    """Statistics of named tensors: smallest and largest value, by sample and in all, and a histogram.

    >>> observer = RangeObserver()
    >>> observer.observe("x", np.array([-1.0, 0.0, 2.0], np.float32))
    >>> observer.observe("x", np.array([0.5, 3.0], np.float32))
    >>> observer.range("x", "minmax")
    (-1.0, 3.0)
    """

    def __init__(self) -> None:
        self._statistics: dict[str, _Statistics] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that were observed."""
        return tuple(self._statistics)

    def observe(self, name: str, array: npt.NDArray[Any], ends: Range | None = None) -> None:
        """Add what tensor *name* holds for one sample.

        :param ends: its smallest and largest value, NaN left aside, where they are known
        :raises CalibrationError: the array holds NaN or infinity
        """
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(array, np.float32).reshape(-1)
        if not values.size:
            return
        low, high = ends or minmax(values)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise _not_finite(name)
        statistics = self._statistics.get(name) or _Statistics()
        lowest, highest = min(low, statistics.low), max(high, statistics.high)
        if lowest == highest:
            if np.isnan(values).any():
                raise _not_finite(name)
            statistics.constant += values.size
        else:
            self._count(name, statistics, values, lowest, highest)
        statistics.low, statistics.high = lowest, highest
        statistics.samples.append((low, high))
        self._statistics[name] = statistics

    @staticmethod
    def _count(name: str, statistics: _Statistics, values: npt.NDArray[np.float32], lowest: float, highest: float) -> None:
        histogram = statistics.histogram
        if histogram is None:
            histogram = statistics.histogram = GrowingHistogram(lowest, highest)
            if statistics.constant:
                histogram.add_repeated(statistics.low, statistics.constant)
        else:
            histogram.cover(lowest, highest)
        at_zero = histogram.at_zero
        if histogram.add(values) != values.size:
            raise _not_finite(name)
        if histogram.at_zero - at_zero > _NEARLY_ALL * values.size:
            statistics.zeros += values.size - int(np.count_nonzero(values))

    def _of(self, name: str) -> _Statistics:
        try:
            return self._statistics[name]
        except KeyError:
            raise CalibrationError(
                "the tensor was never observed", tensor=name, hint="calibrate with at least one sample that computes it"
            ) from None

    def sample_ranges(self, name: str) -> Floats:
        """Smallest and largest value of each sample, [samples, 2]."""
        return np.array(self._of(name).samples, np.float64)

    def histogram(self, name: str) -> tuple[npt.NDArray[np.uint64], Floats]:
        """Counts and edges of the bins, as numpy.histogram gives them; one bin of no width for a constant tensor."""
        statistics = self._of(name)
        if statistics.histogram is None:
            return np.array([statistics.constant], np.uint64), np.array([statistics.low, statistics.high])
        return statistics.histogram.counts.copy(), statistics.histogram.edges

    def range(self, name: str, algorithm: str, *, percentile: float = 99.99) -> Range:
        """The range that the quantized values of tensor *name* must cover; it lies within the values seen.

        * ``minmax``: all values;
        * ``percentile``: the given share of them, half of the rest cut off at each end. Zeros of a tensor that is nearly all zero are
          not counted;
        * ``kl``: the range whose 256 quantized values describe the distribution best (least Kullback-Leibler divergence); it
          keeps at least 99.9 % of the values, and all where there are too few of them to know the distribution;
        * ``mse``: the range of the least mean squared error in int8.

        :raises CompileError: no such algorithm
        :raises CalibrationError: the tensor was never observed
        """
        if algorithm not in ALGORITHMS:
            raise CompileError(f"unknown calibration algorithm {algorithm!r}", hint=f"choose one of {', '.join(ALGORITHMS)}")
        if not 50 < percentile <= 100:
            raise CompileError(f"percentile {percentile} is not above 50 and at most 100", hint="usual values are 99.9 to 99.999")
        statistics = self._of(name)
        if statistics.histogram is None or algorithm == "minmax":
            return statistics.low, statistics.high
        bins = _bins(statistics, statistics.histogram)
        if algorithm == "percentile":
            return _percentile(bins, percentile)
        if algorithm == "mse":
            return _least(bins, _squared_error(bins), within=(0.0, 0.0))
        if bins.counts[bins.left != 0.0].sum() < _ENOUGH:
            return statistics.low, statistics.high
        return _least(bins, _divergence(bins), within=_percentile(bins, _KL_KEEPS))


def _not_finite(name: str) -> CalibrationError:
    return CalibrationError(
        "the float model computes NaN or infinity in this tensor",
        tensor=name,
        hint="check the model with the same data in onnxruntime; mean and std that do not fit the model are a common cause",
    )


@dataclass(frozen=True)
class _Bins:
    """The bins from the smallest to the largest value."""

    low: float
    high: float
    left: Floats
    step: float
    counts: Floats
    zeros: int


def _bins(statistics: _Statistics, histogram: GrowingHistogram) -> _Bins:
    used = np.flatnonzero(histogram.counts)
    span = slice(int(used[0]), int(used[-1]) + 1)
    counts = histogram.counts[span].astype(np.float64)
    return _Bins(statistics.low, statistics.high, histogram.edges[:-1][span], histogram.step, counts, statistics.zeros)


def _percentile(bins: _Bins, percentile: float) -> Range:
    counts = np.where(bins.left == 0.0, bins.counts - bins.zeros, bins.counts)
    below = np.concatenate(([0.0], np.cumsum(counts)))
    tail = below[-1] * (100.0 - percentile) / 200.0

    def value_at(rank: float) -> float:
        index = min(int(np.searchsorted(below, rank, side="right")) - 1, len(counts) - 1)
        within = (rank - below[index]) / counts[index] if counts[index] else 0.0
        return float(np.clip(bins.left[index] + within * bins.step, bins.low, bins.high))

    low, high = value_at(tail), value_at(below[-1] - tail)
    return (min(low, 0.0), max(high, 0.0)) if bins.zeros else (low, max(low, high))


Cost = Callable[[list[Range]], Floats]


def _least(bins: _Bins, cost: Cost, *, within: Range) -> Range:
    """The range of the least *cost* that holds the range *within*.

    Both ends are drawn in together first, then each on its own, then each on its own in fine steps.
    """
    # The ends are fractions of the outermost values. An end on the other side of zero is none: zero is in every range.
    free = (bins.low < 0.0, bins.high > 0.0)
    # With fewer bins than quantized values the histogram cannot report one range from another.
    smallest_width = _CODES * bins.step

    def to_range(ends: Range) -> Range:
        return float(bins.low * ends[0]) if free[0] else bins.low, float(bins.high * ends[1]) if free[1] else bins.high

    def improve(best: Range, best_cost: float, tried: list[Range]) -> tuple[Range, float]:
        ranges = [(min(low, 0.0), max(high, 0.0)) for low, high in map(to_range, tried)]
        ranges, tried = _allowed(ranges, tried, smallest_width, within)
        if not ranges:
            return best, best_cost
        costs = cost(ranges)
        index = int(np.argmin(costs))
        return (tried[index], float(costs[index])) if costs[index] < best_cost else (best, best_cost)

    whole = (1.0, 1.0)
    whole_cost = float(cost([(min(bins.low, 0.0), max(bins.high, 0.0))])[0])
    best, best_cost = whole, whole_cost
    coarse = np.arange(1, _CANDIDATES) / _CANDIDATES
    fine = np.arange(-8, 9) / (8.0 * _CANDIDATES)
    if all(free):
        best, best_cost = improve(best, best_cost, [(f, f) for f in coarse])
    for fractions in (coarse, coarse, fine):
        if free[1]:
            centre = best[1] if fractions is fine else 0.0
            best, best_cost = improve(best, best_cost, [(best[0], min(centre + f, 1.0)) for f in fractions])
        if free[0]:
            centre = best[0] if fractions is fine else 0.0
            best, best_cost = improve(best, best_cost, [(min(centre + f, 1.0), best[1]) for f in fractions])
    return to_range(best if best_cost < _WORTHWHILE * whole_cost else whole)


def _allowed(ranges: list[Range], tried: list[Range], smallest_width: float, within: Range) -> tuple[list[Range], list[Range]]:
    kept = [
        index
        for index, (low, high) in enumerate(ranges)
        if high - low >= smallest_width and low <= min(within[0], 0.0) and high >= max(within[1], 0.0)
    ]
    return [ranges[index] for index in kept], [tried[index] for index in kept]


def _squared_error(bins: _Bins) -> Cost:
    """The cost of a range as the sum of the squared errors in int8."""
    used = bins.counts > 0
    left, counts = bins.left[used], bins.counts[used]
    # Zeros fall into the bin that begins with zero, and have no error.
    values = np.where((left == 0.0) & (bins.low <= 0.0), 0.0, left + bins.step / 2)
    first, last = DType.INT8.limits

    def cost(ranges: list[Range]) -> Floats:
        affines = [affine_from_range(low, high) for low, high in ranges]
        scale = np.array([[affine.scale] for affine in affines])
        zero = np.array([[float(affine.zero_point)] for affine in affines])
        errors = values / scale
        np.rint(errors, out=errors)
        np.clip(errors, first - zero, last - zero, out=errors)
        errors *= scale
        errors -= values
        np.square(errors, out=errors)
        result: Floats = errors @ counts
        return result

    return cost


def _divergence(bins: _Bins) -> Cost:
    """The cost of a range as the Kullback-Leibler divergence of what the quantized values can report from what the bins show.

    A code reports that its values are spread evenly over the bins that it stands for; the outermost quantized values stand for
    all that is cut off. The bin of the zeros is left aside: zero has a quantized value of its own, and its peak would draw in any range.
    """
    kept = bins.left != 0.0
    values = bins.left[kept] + bins.step / 2
    total = float(bins.counts[kept].sum())
    shares = bins.counts[kept] / total
    entropy = float((shares[shares > 0] * np.log(shares[shares > 0])).sum())
    first, last = DType.INT8.limits

    def divergence(low: float, high: float) -> float:
        affine = affine_from_range(low, high)
        codes = np.clip(np.rint(values / affine.scale) + affine.zero_point, first, last).astype(np.intp) - first
        mass = np.bincount(codes, shares, _CODES)
        spread = np.bincount(codes, minlength=_CODES)
        told = mass > 0
        # Chance makes bins uneven, which favors many narrow quantized values: the second term is what it contributes on average.
        return entropy - float((mass[told] * np.log(mass[told] / spread[told])).sum()) + float(told.sum()) / (2.0 * total)

    return lambda ranges: np.array([divergence(low, high) for low, high in ranges])


def clip_to_table(function: Callable[[Floats], Floats], low: float, high: float, target: Quantization, dtype: DType) -> Range:
    """The part of [low, high], the range before a table, that the table's output can distinguish.

    An end is drawn in, at most to zero, over the part where the *function* is flat: where the output's code for the new end is right for
    all that is cut off. The quantized values before the table lie closer then, and the output loses nothing. Values that the
    output clips count as what they are clipped to.

    >>> swish = lambda x: x / (1.0 + np.exp(-x))
    >>> low, high = clip_to_table(swish, -128.0, 26.0, affine_from_range(-0.28, 26.0), DType.INT8)
    >>> round(low, 1), high
    (-4.6, 26.0)

    :param target: quantization of the table's output, for the whole tensor
    :param dtype: type of the output's quantized values
    """
    first, last = dtype.limits

    def steps(values: Floats) -> Floats:
        """The function in output steps, as a table holds it before rounding."""
        with np.errstate(all="ignore"):
            results = np.asarray(function(values), np.float64) / target.scale
        return np.clip(
            np.nan_to_num(results, nan=0.0, posinf=1e30, neginf=-1e30), first - target.zero_point, last - target.zero_point
        )

    def flat_until(end: float) -> float:
        grid = np.linspace(end, 0.0, _GRID + 1)
        outputs = steps(grid)
        codes = np.rint(outputs)
        farthest = np.maximum(np.maximum.accumulate(outputs) - codes, codes - np.minimum.accumulate(outputs))
        wrong = farthest > _RIGHT
        return float(grid[int(np.argmax(wrong)) - 1 if wrong.any() else -1])

    new_low = flat_until(low) if low < 0.0 else low
    new_high = flat_until(high) if high > 0.0 else high
    if min(new_low, 0.0) == max(new_high, 0.0):
        return low, high  # the output is constant: there is nothing to gain, and a range of no width does not help
    # The outermost code may stand for a value half a step further in, which must be flat too: so one step is left.
    step = (max(new_high, 0.0) - min(new_low, 0.0)) / (last - first)
    new_low, new_high = min(new_low - step, high), max(new_high + step, low)
    # An end that moves by a code or two is not flat but within rounding: nothing to gain.
    least = 2.0 * (max(high, 0.0) - min(low, 0.0)) / (last - first)
    return new_low if new_low - low > least else low, new_high if high - new_high > least else high
