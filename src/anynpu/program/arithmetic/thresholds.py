"""Activations on unrounded sums in rounding mode ``simulator``: the code of every number, written as the numbers where it changes.

The vendors' simulators take an activation after a convolution in float32, from the sum itself, and round once. A function of one number
that gives quantized values is a threshold table, so a layer stores the edges of its steps. Engines only compare numbers then:
none needs an exponential, and all give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from .. import Staircase, limits_of

Function = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

_SAMPLES = 1 << 13
"""Intervals in which the function is taken to rise or fall only."""


def climb(staircases: tuple[Staircase, ...], groups: tuple[int, ...], values: Array) -> Array:
    """The quantized values of float32 *values*, whose last axis is the channel."""
    codes = np.empty(values.shape, staircases[0].codes.dtype)
    first = 0
    for staircase, count in zip(staircases, groups or (values.shape[-1],), strict=True):
        group = slice(first, first + count)
        codes[..., group] = staircase.codes[np.searchsorted(staircase.edges, values[..., group], side="right")]
        first += count
    return codes


def staircase_of(
    function: Function, scale: float, zero_point: int, reach: float, dtype: np.dtype[Any], *, wide: bool = True
) -> Staircase:
    """The quantized values of function(x), rounded half to even in units of *scale*, for all x. Beyond -reach and reach the code stays.

    :param wide: function values and quotients are float64; else float32, as in the vendors' simulators

    >>> import numpy as np
    >>> stairs = staircase_of(lambda x: x, 1.0, 0, 300.0, np.dtype(np.int8))
    >>> len(stairs.edges), climb((stairs,), (), np.array([-1.4, 0.5, 126.6], np.float32)).tolist()
    (255, [-1, 0, 127])
    """
    first, last = limits_of(dtype)
    number = np.float64 if wide else np.float32

    def code(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        with np.errstate(all="ignore"):
            steps = (np.asarray(function(_floats(places).astype(number)), number) / number(scale)).astype(np.float64)
        steps = np.nan_to_num(steps, nan=0.0, posinf=1e30, neginf=-1e30)
        codes: npt.NDArray[np.int64] = np.clip(np.rint(steps) + zero_point, first, last).astype(np.int64)
        return codes

    ends = np.unique(_places(np.linspace(-reach, reach, _SAMPLES + 1).astype(np.float32)))
    at_ends = code(ends)
    low, high, below, above = ends[:-1], ends[1:], at_ends[:-1], at_ends[1:]
    edges, after = [], []
    while True:
        parts = below != above
        low, high, below, above = low[parts], high[parts], below[parts], above[parts]
        narrow = high - low == 1
        edges.append(high[narrow])
        after.append(above[narrow])
        low, high, below, above = low[~narrow], high[~narrow], below[~narrow], above[~narrow]
        if not low.size:
            break
        middle = (low + high) >> 1
        between = code(middle)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        below, above = np.concatenate([below, between]), np.concatenate([between, above])
    found, codes = np.concatenate(edges), np.concatenate(after)
    order = np.argsort(found)
    if not found.size:  # one code for all
        found, codes, order = ends[:1], at_ends[:1], np.array([0])
    stored = np.concatenate([at_ends[:1], codes[order]]).astype(dtype)
    return Staircase(_floats(found[order]), stored)


def _places(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Float32 numbers as integers in the same order, neighbors side by side."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _floats(places: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    bits = np.where(places < 0, -places | 0x80000000, places)
    return bits.astype(np.uint32).view(np.float32)
