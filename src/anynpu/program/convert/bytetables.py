"""Conversions from one byte to another: a table by channel, or a straight line where that is the same."""

from __future__ import annotations

import numpy as np

from ..._native import lib
from ..._util.types import Array
from ...tensor import Affine, DType, TensorSpec
from .. import arithmetic
from .kernel import Geometry, KernelCall, type_code
from .values import meaning, parameters_of

_LINE_BITS = 16  # fraction bits of the kernel's slope and offset
_STEEPEST = 1 << 22  # 255 times this, and the offset, stay within int32


def is_byte(dtype: DType) -> bool:
    return dtype in (DType.INT4, DType.UINT4, DType.INT8, DType.UINT8)


def byte_job(
    source: TensorSpec,
    target: TensorSpec,
    geometry: Geometry,
    normalization: tuple[Array, Array] | None,
    fill: int,
    limits: tuple[int, int],
) -> KernelCall:
    """A table of 256 entries by channel, or what gives the same faster."""
    table = _table(source, target, geometry.c, normalization)
    types = type_code(source.dtype), type_code(target.dtype)
    bits = table.astype(np.uint8)
    difference = bits ^ np.arange(256, dtype=np.uint8)
    if (difference == difference[0, 0]).all():
        return KernelCall(geometry, *types, lib.ANYNPU_FLIP, fill=fill, flip=int(difference[0, 0]))
    signed = source.dtype in (DType.INT8, DType.INT4)
    rising = np.roll(table, 128, axis=1) if signed else table  # from the smallest code up
    lines = [_line(row, limits) for row in rising]
    if all(line is not None for line in lines):
        slope, offset = np.array(lines, np.int32).T
        flip = 0x80 if signed else 0
        return KernelCall(
            geometry, *types, lib.ANYNPU_LINE, fill=fill, flip=flip, limits=limits, arrays={"slope": slope, "offset": offset}
        )
    return KernelCall(geometry, *types, lib.ANYNPU_TABLE, fill=fill, table=bits)


def _table(source: TensorSpec, target: TensorSpec, channels: int, normalization: tuple[Array, Array] | None) -> Array:
    """Rows of the target's code for each byte of the source, as int64: one row, or one for each channel."""
    signed = source.dtype in (DType.INT8, DType.INT4)
    codes = np.arange(256, dtype=np.uint8).view(np.int8 if signed else np.uint8)
    first, last = target.dtype.limits
    from_quantization, to_quantization = meaning(source), meaning(target)
    if from_quantization is None and to_quantization is None and normalization is None:
        return np.clip(codes.astype(np.int64), first, last)[None]
    varies = any(
        (
            from_quantization is not None and not from_quantization.is_per_tensor,
            to_quantization is not None and not to_quantization.is_per_tensor,
            normalization is not None and max(map(len, normalization)) > 1,
        )
    )
    width = channels if varies else 1
    for quantization in (from_quantization, to_quantization):
        if quantization is not None:
            parameters_of(quantization, width)
    by_channel = np.repeat(codes[:, None], width, axis=1)
    values: Array = (
        by_channel.astype(np.float32) if from_quantization is None else arithmetic.dequantize(by_channel, from_quantization)
    )
    if normalization is not None:
        values = (values - normalization[0]) / normalization[1]
    # int16 first: all byte types fit, and the four-bit ones keep their sign
    wide = arithmetic.quantize(values, to_quantization or Affine.per_tensor(1.0, 0), DType.INT16)
    rows: Array = np.clip(wide.astype(np.int64), first, last).T
    return rows[:1] if (rows == rows[0]).all() else rows


def _line(row: Array, limits: tuple[int, int]) -> tuple[int, int] | None:
    """Slope and offset with row[x] = clamp((slope * x + offset) >> 16) for every x; None where no line does it.

    Every entry bounds slope * x + offset from both sides (a clamped one from one side). For a given slope that leaves an interval of
    offsets, whose width is a concave function of the slope: a ternary search finds the widest.
    """
    low, high = limits
    x = np.arange(256)
    far = 1 << 40
    least = np.where(row == low, -far, row << _LINE_BITS)
    most = np.where(row == high, far, (row << _LINE_BITS) + (1 << _LINE_BITS) - 1)

    def offsets(slope: int) -> tuple[int, int]:
        return int((least - slope * x).max()), int((most - slope * x).min())

    def width(slope: int) -> int:
        first, last = offsets(slope)
        return last - first

    left, right = -_STEEPEST, _STEEPEST
    while right - left > 2:
        a, b = left + (right - left) // 3, right - (right - left) // 3
        if width(a) < width(b):
            left = a
        else:
            right = b
    slope = max(range(left, right + 1), key=width)
    first, last = offsets(slope)
    if first > last:
        return None
    offset = min(max((first + last) // 2, -_STEEPEST << 8), _STEEPEST << 8)
    return (slope, offset) if first <= offset <= last else None
