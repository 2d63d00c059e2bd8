"""Rounding of integers by shifting, and their limits of 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["saturate", "shift_right"]


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
