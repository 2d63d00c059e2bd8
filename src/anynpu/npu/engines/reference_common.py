"""What the operators of the reference engine share: zero points, exact number types, and working in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...tensor import TensorSpec

BLOCK_BYTES = 16 << 20
"""Temporary arrays of an operator together stay near this size, whatever the size of its tensors."""

EXACT_FLOAT32 = 1 << 24
EXACT_FLOAT64 = 1 << 53
"""Below these a float holds every integer; a sum of integers is then exact in any order, which is what BLAS needs."""


def no_check() -> None:
    """What an operator calls between pieces of its work where nothing can stop it."""


def zero_points(spec: TensorSpec) -> npt.NDArray[np.int32]:
    """The zero point of a tensor as an array that broadcasts over its channels: one entry, or one a channel."""
    quantization = spec.quantization
    if quantization is None:
        return np.zeros(1, np.int32)
    if quantization.is_per_tensor:
        return np.array([quantization.zero_point], np.int32)
    return quantization.expand(spec.channels)[1]


def largest_difference(dtype: np.dtype[Any], zero: Array) -> int:
    """The largest absolute value that code - zero can take.

    >>> largest_difference(np.dtype("int8"), np.array([-128]))
    255
    """
    info = np.iinfo(dtype)
    return max(int(info.max) - int(zero.min()), int(zero.max()) - int(info.min))


def sum_type(bound: int) -> np.dtype[Any]:
    """The narrowest type that holds every integer up to *bound*, and hence every partial sum that never exceeds it."""
    if bound < EXACT_FLOAT32:
        return np.dtype(np.float32)
    return np.dtype(np.float64) if bound < EXACT_FLOAT64 else np.dtype(np.int64)


def blocks(shape: tuple[int, ...], element_bytes: int) -> Iterator[tuple[slice, ...]]:
    """Slices of the leading axes that cover *shape*, of ``BLOCK_BYTES`` at most where that can be. The last axis stays whole."""
    if len(shape) < 2 or math.prod(shape) * element_bytes <= BLOCK_BYTES:
        yield ()
        return
    count = BLOCK_BYTES // (math.prod(shape[1:]) * element_bytes)
    if count:
        yield from ((part,) for part in spans(shape[0], count))
        return
    for index in range(shape[0]):
        yield from ((slice(index, index + 1), *rest) for rest in blocks(shape[1:], element_bytes))


def spans(extent: int, count: int) -> Iterator[slice]:
    """*extent* in pieces of at most *count* (at least one element each).

    >>> [(part.start, part.stop) for part in spans(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, count)
    return (slice(start, min(start + step, extent)) for start in range(0, extent, step))


def image(array: Array) -> Array:
    """A view with four axes: a tensor of rank 3 is an image of height 1."""
    return array[:, np.newaxis] if array.ndim == 3 else array


def overlap(first: int, last: int, stride: int, offset: int, begin: int, end: int) -> tuple[slice, slice]:
    """Where the positions o in [first, last) meet o * stride + offset in [begin, end), as slices of the two ranges.

    >>> overlap(0, 4, 2, -1, 0, 6)
    (slice(1, 4, None), slice(1, 6, 2))
    """
    low = max(first, -((offset - begin) // stride))
    high = max(low, min(last, (end - 1 - offset) // stride + 1))
    start = low * stride + offset - begin
    stop = start + (high - low - 1) * stride + 1 if high > low else start
    return slice(low - first, high - first), slice(start, stop, stride)
