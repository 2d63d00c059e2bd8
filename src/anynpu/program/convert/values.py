"""Element by element: quantize, dequantize, float types, four bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import ShapeError, TensorTypeError
from ...tensor import Affine, DType, DynamicFixedPoint, Quantization, TensorSpec
from .. import arithmetic
from .kernel import Geometry, KernelCall, check_out, ffi, lib, type_code

QUANTIZED_TYPES = frozenset(
    {
        *(DType.INT4, DType.UINT4, DType.INT8, DType.UINT8),
        *(DType.INT16, DType.UINT16, DType.INT32, DType.UINT32),
    }
)
_CODE_TYPES: dict[np.dtype[Any], DType] = {np.dtype(dtype.value): dtype for dtype in QUANTIZED_TYPES if dtype.bits > 4}
_FLOAT_TYPES: dict[np.dtype[Any], DType] = {np.dtype(np.float32): DType.FLOAT32, np.dtype(np.float16): DType.FLOAT16}


def quantize_affine(
    values: npt.NDArray[np.floating[Any]],
    quantization: Quantization,
    dtype: DType = DType.INT8,
    *,
    axis: int = -1,
    out: Array | None = None,
) -> Array:
    """Quantized values of float32 or float16 *values*: clamp(round_half_even(value / scale) + zero point); NaN gives 0.

    *axis* is the channel where the quantization differs per channel. The result has the shape of *values*; four-bit quantized
    values come packed, as a flat array of bytes.

    >>> quantize_affine(np.array([-1.0, 0.25, 9.0], np.float32), Affine.per_tensor(0.5, -128)).tolist()
    [-128, -128, -110]
    """
    if dtype not in QUANTIZED_TYPES:
        raise TensorTypeError(f"{dtype.value} cannot hold quantized values", hint="use an integer type of at most 32 bits")
    source_type = _look_up(values, _FLOAT_TYPES, "values")
    scale, zero = parameters_of(quantization, _channels(values, quantization, axis))
    packed = dtype.bits == 4
    storage = np.dtype(np.int8 if dtype is DType.INT4 else dtype.storage)
    codes, source = check_out(None if packed else out, values.shape, storage, np.ascontiguousarray(values))
    _elementwise(source, codes, axis, source_type, dtype, target_scale=scale, target_zero=zero)
    return pack_int4(codes, out=out) if packed else codes


def dequantize_affine(
    codes: Array,
    zero_point: int | Sequence[int] | npt.NDArray[np.integer[Any]],
    scale: float | Sequence[float] | npt.NDArray[np.floating[Any]],
    *,
    axis: int = -1,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """float32 values of integer *codes*: (code - zero point) * scale.

    Zero point and scale are single numbers, or sequences with one entry for each channel, which is *axis*.

    >>> dequantize_affine(np.array([-128, 0, 127], np.int8), -128, 0.5).tolist()
    [0.0, 64.0, 127.5]
    """
    dtype = _look_up(codes, _CODE_TYPES, "codes")
    zeros, scales = np.atleast_1d(np.asarray(zero_point, np.int32)), np.atleast_1d(np.asarray(scale, np.float32))
    counts = {len(zeros), len(scales)} - {1}
    if zeros.ndim != 1 or scales.ndim != 1 or (counts and counts != {_extent(codes, axis)}):
        raise ShapeError(
            f"{len(zeros)} zero points and {len(scales)} scales for an array of shape {list(codes.shape)}, axis {axis}",
            hint="pass one of each, or one for each channel and the channels' axis",
        )
    values, source = check_out(out, codes.shape, np.dtype(np.float32), np.ascontiguousarray(codes))
    _elementwise(source, values, axis, dtype, DType.FLOAT32, source_zero=zeros, source_scale=scales)
    return values


def quantize_dfp(
    values: npt.NDArray[np.floating[Any]], fraction_bits: int, dtype: DType = DType.INT16, *, out: Array | None = None
) -> Array:
    """Quantized values of *values* in dynamic fixed point: clamp(round_half_even(value * 2**fraction_bits)).

    >>> quantize_dfp(np.array([0.5, -1.25], np.float32), 2, DType.INT8).tolist()
    [2, -5]
    """
    return quantize_affine(values, _fixed_point(fraction_bits), dtype, out=out)


def dequantize_dfp(codes: Array, fraction_bits: int, *, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """float32 values of *codes* in dynamic fixed point: code / 2**fraction_bits.

    >>> dequantize_dfp(np.array([2, -5], np.int8), 2).tolist()
    [0.5, -1.25]
    """
    return dequantize_affine(codes, 0, _fixed_point(fraction_bits).scale, out=out)


def float32_to_float16(values: npt.NDArray[np.float32], *, out: npt.NDArray[np.float16] | None = None) -> npt.NDArray[np.float16]:
    """To the nearest float16, ties to even; what is too large becomes infinite."""
    return _cast(values, DType.FLOAT32, DType.FLOAT16, out)


def float16_to_float32(values: npt.NDArray[np.float16], *, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """The same values as float32."""
    return _cast(values, DType.FLOAT16, DType.FLOAT32, out)


def float32_to_bfloat16(values: npt.NDArray[np.float32], *, out: npt.NDArray[np.uint16] | None = None) -> npt.NDArray[np.uint16]:
    """To the nearest bfloat16, ties to even, held as its 16 bits.

    >>> hex(float32_to_bfloat16(np.array([1.0], np.float32))[0])
    '0x3f80'
    """
    return _cast(values, DType.FLOAT32, DType.BFLOAT16, out)


def bfloat16_to_float32(values: npt.NDArray[np.uint16], *, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """The same values as float32."""
    return _cast(values, DType.BFLOAT16, DType.FLOAT32, out)


def pack_int4(codes: Array, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
    """int8 or uint8 *codes* of four bits as a flat array of bytes, two a byte, the first in the low half.

    >>> pack_int4(np.array([1, -1, 7], np.int8)).tolist()
    [241, 7]
    """
    _look_up(codes, {np.dtype(np.int8): None, np.dtype(np.uint8): None}, "codes")
    packed, source = check_out(out, ((codes.size + 1) // 2,), np.dtype(np.uint8), np.ascontiguousarray(codes))
    lib.anynpu_pack_int4(ffi.from_buffer("uint8_t[]", source), ffi.from_buffer("uint8_t[]", packed), codes.size)
    return packed


def unpack_int4(
    packed: npt.NDArray[np.uint8], count: int | None = None, *, signed: bool = True, out: Array | None = None
) -> Array:
    """The first *count* four-bit elements (all, where it is None) as a flat array of int8, or uint8 where not *signed*.

    >>> unpack_int4(np.array([241, 7], np.uint8), 3).tolist()
    [1, -1, 7]
    """
    _look_up(packed, {np.dtype(np.uint8): None}, "packed")
    elements = 2 * packed.size if count is None else count
    if not 0 <= elements <= 2 * packed.size:
        raise ShapeError(f"{packed.size} bytes do not hold {elements} elements of four bits", hint="two elements take a byte")
    codes, source = check_out(out, (elements,), np.dtype(np.int8 if signed else np.uint8), np.ascontiguousarray(packed))
    lib.anynpu_unpack_int4(ffi.from_buffer("uint8_t[]", source), ffi.from_buffer("uint8_t[]", codes), elements, signed)
    return codes


def parameters_of(quantization: Quantization, channels: int) -> tuple[Array, Array]:
    """Scales (float32) and zero points (int32): one of each, or one for each of *channels*."""
    if quantization.is_per_tensor:
        return np.array([quantization.scale], np.float32), np.array([quantization.zero_point], np.int32)
    sizes = quantization.group_sizes if isinstance(quantization, Affine) else ()
    if sum(sizes) != channels:
        raise ShapeError(
            f"the quantization is for {sum(sizes)} channels, the tensor has {channels}", hint="check the axis of the channels"
        )
    return quantization.expand(channels)


def _fixed_point(fraction_bits: int) -> DynamicFixedPoint:
    if not -100 <= fraction_bits <= 100:
        raise TensorTypeError(f"{fraction_bits} fraction bits are not a float32 scale", hint="between -100 and 100 there is one")
    return DynamicFixedPoint(fraction_bits)


def _look_up(array: Any, types: dict[np.dtype[Any], Any], what: str) -> Any:
    """The entry of *types* for the array's type."""
    if not isinstance(array, np.ndarray):
        raise TensorTypeError(f"{what} is a {type(array).__name__}, not an array", hint="wrap it in np.asarray")
    if array.dtype not in types:
        raise TensorTypeError(f"{what} is {array.dtype}", hint=f"it can be {', '.join(str(kind) for kind in types)}")
    return types[array.dtype]


def _extent(array: Array, axis: int) -> int:
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError(f"axis {axis} of an array of rank {array.ndim}", hint="the axis is where the channels are")
    return int(array.shape[axis])


def _channels(array: Array, quantization: Quantization, axis: int) -> int:
    return 1 if quantization.is_per_tensor else _extent(array, axis)


def _elementwise(source: Array, target: Array, axis: int, from_type: DType, to_type: DType, **arrays: Array) -> None:
    """Values through float32, with the same shape on both sides."""
    if any(len(values) > 1 for values in arrays.values()):
        geometry = Geometry.along(source.shape, axis % source.ndim)
    else:
        geometry = Geometry.flat(source.size)
    one, nought = np.ones(1, np.float32), np.zeros(1, np.int32)
    parameters = {"source_scale": one, "source_zero": nought, "target_scale": one, "target_zero": nought, **arrays}
    limits = (0, 0) if to_type.is_float else to_type.limits
    call = KernelCall(geometry, type_code(from_type), type_code(to_type), lib.ANYNPU_VALUES, limits=limits, arrays=parameters)
    call.run(source, target)


def _cast(values: Array, from_type: DType, to_type: DType, out: Array | None) -> Array:
    _look_up(values, {from_type.storage: None}, "values")
    result, source = check_out(out, values.shape, to_type.storage, np.ascontiguousarray(values))
    _elementwise(source, result, 0, from_type, to_type)
    return result


def meaning(spec: TensorSpec) -> Quantization | None:
    """The quantization that changes what a code stands for."""
    return spec.quantization if spec.dtype in QUANTIZED_TYPES else None


# Conversions from one byte to another: a table per channel, or a straight line where that is the same.


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
    """A table of 256 entries per channel, or what gives the same faster."""
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
