"""A histogram of a stream of floats whose range is not known beforehand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib

__all__ = ["BINS", "GrowingHistogram", "minmax"]

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
