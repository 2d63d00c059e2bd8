"""Operators over the pixels of an image that have no weights, in the reference engine: Pool and Resize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import DeviceError
from ...program import RESIZE_BITS, FixedPoint, Pool, Resize, limits_of
from ...program.arithmetic import apply_epilogue, finish, resize_shift
from ...tensor import TensorSpec
from . import reference_common as common
from .reference_common import image, no_check, overlap, spans, zero_points


def pool(op: Pool, source: Array, spec: TensorSpec, output: Array, check: Callable[[], None] = no_check) -> None:
    """Max and average pooling, by image and by band of output rows. Elements outside the input take no part."""
    x, y = image(source), image(output)
    zero = zero_points(spec)
    row_bytes = x.shape[3] * (8 * x.shape[2] + 48 * y.shape[2])
    for index in range(y.shape[0]):
        for band in spans(y.shape[1], common.BLOCK_BYTES // row_bytes):
            if op.kind == "max":
                y[index, band] = _reduce(np.maximum, op, x[index], band, y.shape[2], limits_of(x.dtype)[0], x.dtype, check)
            else:
                y[index, band] = _average(op, x[index], zero, band, y.shape[2], y.dtype, check)


def _average(op: Pool, x: Array, zero: Array, band: slice, width: int, dtype: np.dtype[Any], check: Callable[[], None]) -> Array:
    if op.epilogue is None:
        raise DeviceError("an average pooling has no epilogue", hint="the program is damaged; compile the model again")
    inside = _counts(op, x.shape, band, width, padded=False)
    total = _reduce(np.add, op, x, band, width, 0, np.dtype(np.int64), check) - inside * zero
    count = _counts(op, x.shape, band, width, padded=True) if op.count_include_pad else inside
    if isinstance(op.epilogue, FixedPoint):
        assert op.divisors is not None
        multiplier, shift = op.divisors.astype(np.int64)[:, count]
        return apply_epilogue(total, replace(op.epilogue, multiplier=multiplier, shift=shift), dtype)
    multiplier = op.epilogue.multiplier.astype(np.float32) / np.maximum(count, 1).astype(np.float32)
    scaled: npt.NDArray[np.float32] = total.astype(np.float32) * multiplier
    return finish(scaled, op.epilogue, dtype)


def _reduce(
    ufunc: np.ufunc,
    op: Pool,
    x: Array,
    band: slice,
    width: int,
    initial: int,
    dtype: np.dtype[Any],
    check: Callable[[], None],
) -> Array:
    """Combine each window's elements: first down the columns, then along the rows."""
    first, last = int(band.start), int(band.stop)
    tall = np.full((last - first, *x.shape[1:]), initial, dtype)
    for a in _taps(op, 0, first, last, x.shape[0]):
        check()
        target, origin = overlap(first, last, op.strides[0], a * op.dilations[0] - op.pads[0], 0, x.shape[0])
        tall[target] = ufunc(tall[target], x[origin])
    result = np.full((last - first, width, x.shape[2]), initial, dtype)
    for b in _taps(op, 1, 0, width, x.shape[1]):
        check()
        target, origin = overlap(0, width, op.strides[1], b * op.dilations[1] - op.pads[1], 0, x.shape[1])
        result[:, target] = ufunc(result[:, target], tall[:, origin])
    return result


def _taps(op: Pool, axis: int, first: int, last: int, extent: int) -> range:
    """The kernel elements that can meet the input from output positions [first, last)."""
    stride, dilation, pad = op.strides[axis], op.dilations[axis], op.pads[axis]
    low = -(((last - 1) * stride - pad) // dilation)
    high = (extent - 1 - first * stride + pad) // dilation + 1
    return range(max(0, low), min(op.kernel[axis], high))


def _counts(op: Pool, extents: tuple[int, ...], band: slice, width: int, *, padded: bool) -> Array:
    """How many elements of each window are inside the input, or inside the padded input: int64[rows, columns, 1]."""
    along = []
    for axis, positions in enumerate((np.arange(band.start, band.stop), np.arange(width))):
        before, after = (op.pads[axis], op.pads[axis + 2]) if padded else (0, 0)
        start = positions * op.strides[axis] - op.pads[axis]
        low, high = (
            np.clip(-((start - end) // op.dilations[axis]), 0, op.kernel[axis]) for end in (-before, extents[axis] + after)
        )
        along.append(high - low)
    rows, columns = along
    counts: Array = (rows[:, None] * columns)[:, :, None].astype(np.int64)
    return counts


def resize(op: Resize, source: Array, output: Array) -> None:
    """Nearest and linear resize, by image and by band of output rows."""
    x, y = image(source), image(output)
    if op.kind == "nearest":
        for index in range(y.shape[0]):
            y[index] = x[index][op.rows[:, 0, None], op.columns[:, 0]]
        return
    one = 1 << RESIZE_BITS
    left, right, weight = op.columns[:, 0], op.columns[:, 1], op.columns[:, 2, None].astype(np.int64)
    for index in range(y.shape[0]):
        for band in spans(y.shape[1], common.BLOCK_BYTES // (x.shape[3] * (24 * x.shape[2] + 40 * y.shape[2]))):
            rows = op.rows[band]
            upper, lower = (x[index][rows[:, k]].astype(np.int64) for k in (0, 1))
            row_weight = rows[:, 2, None, None].astype(np.int64)
            tall = upper * (one - row_weight) + lower * row_weight
            total = tall[:, left] * (one - weight) + tall[:, right] * weight
            y[index, band] = resize_shift(total)
