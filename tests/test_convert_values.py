from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_convert_levels import level as level

from anynpu.errors import ShapeError, TensorTypeError
from anynpu.program import arithmetic, convert
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Quantization

INTEGERS = [DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32]
pytestmark = pytest.mark.usefixtures("level")


def awkward_values(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Values around the codes, exact ties, the saturation, infinities, NaN and both zeros."""
    values = (rng.integers(-600, 600, shape) * 0.5 * scale).astype(np.float32)
    values += (rng.random(shape) < 0.5) * rng.normal(size=shape).astype(np.float32) * np.float32(scale * 40)
    special = np.array(
        [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, -(2.0**31), 1e-40, 65519.9, 2147483520.0], np.float32
    )
    where = rng.random(shape) < 0.1
    values[where] = rng.choice(special, int(where.sum()))
    return values


def per_channel(rng: np.random.Generator, dtype: DType, groups: tuple[int, ...]) -> Affine:
    first, last = dtype.limits
    low, high = max(first, -40000), min(last, 40000)
    zeros = tuple(int(zero) for zero in rng.integers(low, high, len(groups)))
    return Affine(tuple(float(s) for s in rng.uniform(0.01, 2, len(groups))), zeros, groups)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("source", [np.float32, np.float16])
def test_quantize_is_the_arithmetic_for_the_whole_tensor(dtype: DType, source: type) -> None:
    rng = np.random.default_rng(1)
    first, last = dtype.limits
    for zero in (first, last, 0, (first + last) // 2, 3):
        if not -(2**31) <= zero < 2**31:
            continue
        for scale in (0.5, 0.007843138, 1 / 3, 1e-9, 3e4):
            with np.errstate(all="ignore"):
                values = awkward_values(rng, (7, 93), scale).astype(source)
                expected = arithmetic.quantize(values, Affine.per_tensor(scale, zero), dtype)
            actual = convert.quantize_affine(values, Affine.per_tensor(scale, zero), dtype)
            assert actual.dtype == dtype.storage
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("groups", [(1, 1, 1), (2, 1), (1,) * 150, (700, 1, 3), (100, 44)])
def test_quantize_and_dequantize_by_channel(dtype: DType, groups: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    channels = sum(groups)
    quantization = per_channel(rng, dtype, groups)
    scales, zeros = quantization.expand(channels)
    with np.errstate(all="ignore"):
        values = awkward_values(rng, (2, 5, channels), 0.3)
        expected = arithmetic.quantize(values, quantization, dtype)
    codes = convert.quantize_affine(values, quantization, dtype)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(convert.dequantize_affine(codes, zeros, scales), arithmetic.dequantize(codes, quantization))
    # the channel as another axis
    moved = np.ascontiguousarray(np.moveaxis(values, -1, 1))
    codes = convert.quantize_affine(moved, quantization, dtype, axis=1)
    np.testing.assert_array_equal(codes, np.moveaxis(expected, -1, 1))
    back = convert.dequantize_affine(codes, zeros, scales, axis=1)
    np.testing.assert_array_equal(back, np.moveaxis(arithmetic.dequantize(expected, quantization), -1, 1))


def test_int32_saturates_instead_of_wrapping() -> None:
    values = np.array([3e9, -3e9, 2147483647.0, np.inf, -np.inf, np.nan], np.float32)
    codes = convert.quantize_affine(values, Affine.per_tensor(1.0, 0), DType.INT32)
    assert codes.tolist() == [2147483647, -2147483648, 2147483647, 2147483647, -2147483648, 0]
    codes = convert.quantize_affine(values, Affine.per_tensor(1.0, 7), DType.UINT32)
    assert codes.tolist() == [3000000007, 0, 2147483655, 4294967295, 0, 0]


def test_ties_go_to_the_even_code() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5], np.float32)
    assert convert.quantize_affine(values, Affine.per_tensor(1.0, 0)).tolist() == [0, 2, 2, 0, -2, 126, 127]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_dequantize_is_the_arithmetic(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    first, last = dtype.limits
    codes = rng.integers(first, last, (3, 1001), dtype.storage, endpoint=True)
    for zero in (max(first, -(2**31)), 0, 17, min(last, 2**31 - 1)):
        quantization = Affine.per_tensor(0.0123, zero)
        actual = convert.dequantize_affine(codes, zero, 0.0123)
        np.testing.assert_array_equal(actual, arithmetic.dequantize(codes, quantization))


@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.INT16])
def test_dynamic_fixed_point(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(size=513).astype(np.float32) * 100
    for bits in (-3, 0, 5, 14):
        codes = convert.quantize_dfp(values, bits, dtype)
        np.testing.assert_array_equal(codes, arithmetic.quantize(values, DynamicFixedPoint(bits), dtype))
        np.testing.assert_array_equal(convert.dequantize_dfp(codes, bits), codes.astype(np.float64) / 2.0**bits)


@pytest.mark.parametrize("dtype", [DType.INT4, DType.UINT4])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 64, 1001])
def test_four_bits(dtype: DType, count: int) -> None:
    rng = np.random.default_rng(5)
    first, last = dtype.limits
    quantization: Quantization = Affine.per_tensor(0.25, 3)
    values = rng.normal(size=count).astype(np.float32) * 2
    codes = np.clip(arithmetic.quantize(values, quantization, DType.INT16), first, last)
    packed = convert.quantize_affine(values, quantization, dtype)
    nibbles = [int(code) & 15 for code in codes] + [0] * (count % 2)
    assert packed.tolist() == [low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)]
    assert convert.unpack_int4(packed, count, signed=dtype is DType.INT4).tolist() == codes.tolist()


def test_every_float16_survives_and_every_rounding_is_numpys() -> None:
    halves = np.arange(65536, dtype=np.uint16)
    floats = convert.float16_to_float32(halves.view(np.float16))
    np.testing.assert_array_equal(floats, halves.view(np.float16).astype(np.float32))
    numbers = ~np.isnan(floats)
    back = convert.float32_to_float16(floats)
    np.testing.assert_array_equal(back.view(np.uint16)[numbers], halves[numbers])
    assert np.isnan(back[~numbers]).all()

    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, 300_007, np.uint32)
    # halfway between two float16, and one step beside it
    middle = (floats[numbers].view(np.uint32)[:, None] + np.array([0xFFF, 0x1000, 0x1001], np.uint32)).ravel()
    values = np.concatenate([bits, middle]).view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(convert.float32_to_float16(values).view(np.uint16), expected.view(np.uint16))


def test_bfloat16_rounds_half_to_even() -> None:
    rng = np.random.default_rng(7)
    bits = np.concatenate(
        [rng.integers(0, 2**32, 100_003, np.uint32), np.arange(0, 2**32, 0x8000, dtype=np.uint64).astype(np.uint32)]
    )
    values = bits.view(np.float32)
    actual = convert.float32_to_bfloat16(values)
    numbers = ~np.isnan(values)
    lower = bits.astype(np.uint64) & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & ((bits >> 16) & 1 == 1))
    expected = ((bits.astype(np.uint64) >> 16) + up).astype(np.uint16)
    np.testing.assert_array_equal(actual[numbers], expected[numbers])
    widened = convert.bfloat16_to_float32(actual)
    np.testing.assert_array_equal(widened.view(np.uint32), actual.astype(np.uint32) << 16)
    assert np.isnan(widened[~numbers]).all()


def test_a_nan_stays_a_nan_whatever_its_position_in_a_vector() -> None:
    values = np.full(37, np.nan, np.float32)
    assert np.isnan(convert.float32_to_float16(values)).all()
    assert np.isnan(convert.bfloat16_to_float32(convert.float32_to_bfloat16(values))).all()
    assert not convert.quantize_affine(values, Affine.per_tensor(0.1, 5)).any()


def test_out_is_filled_and_returned() -> None:
    values = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    out = np.empty((2, 5), np.int8)
    assert convert.quantize_affine(values, Affine.per_tensor(0.01, 0), out=out) is out
    assert out[0, 0] == -100
    back = np.empty((2, 5), np.float32)
    assert convert.dequantize_affine(out, 0, 0.01, out=back) is back
    np.testing.assert_allclose(back, values, atol=0.006)


def test_a_result_over_its_own_source() -> None:
    codes = np.arange(-64, 64, dtype=np.int32)
    expected = convert.dequantize_affine(codes.copy(), 3, 0.5)
    actual = convert.dequantize_affine(codes, 3, 0.5, out=codes.view(np.float32))
    np.testing.assert_array_equal(actual, expected)


def test_views_that_are_not_contiguous() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6).T[::2]
    expected = arithmetic.quantize(values, Affine.per_tensor(1.0, 0), DType.INT8)
    np.testing.assert_array_equal(convert.quantize_affine(values, Affine.per_tensor(1.0, 0)), expected)


VALUES = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: convert.quantize_affine(VALUES.astype(np.float64), Affine.per_tensor(1.0, 0)), TensorTypeError),
        (lambda: convert.quantize_affine([1.0], Affine.per_tensor(1.0, 0)), TensorTypeError),
        (lambda: convert.quantize_affine(VALUES, Affine.per_tensor(1.0, 0), DType.FLOAT16), TensorTypeError),
        (lambda: convert.quantize_affine(VALUES, Affine.per_tensor(1.0, 0), DType.INT64), TensorTypeError),
        (lambda: convert.quantize_affine(VALUES, Affine((1.0, 1.0), (0, 0), (1, 1))), ShapeError),
        (lambda: convert.quantize_affine(VALUES, Affine((1.0, 1.0), (0, 0), (1, 1)), axis=2), ShapeError),
        (lambda: convert.quantize_affine(VALUES, Affine.per_tensor(1.0, 0), out=np.empty((3, 2), np.int8)), ShapeError),
        (lambda: convert.quantize_affine(VALUES, Affine.per_tensor(1.0, 0), out=np.empty((2, 3), np.uint8)), TensorTypeError),
        (lambda: convert.quantize_affine(VALUES, Affine.per_tensor(1.0, 0), out=np.empty((2, 6), np.int8)[:, ::2]), ShapeError),
        (lambda: convert.dequantize_affine(VALUES, 0, 1.0), TensorTypeError),
        (lambda: convert.dequantize_affine(VALUES.astype(np.int8), [0, 0], 1.0), ShapeError),
        (lambda: convert.dequantize_affine(VALUES.astype(np.int8), [[0, 0, 0]], 1.0), ShapeError),
        (lambda: convert.quantize_dfp(VALUES, 1000), TensorTypeError),
        (lambda: convert.float32_to_float16(VALUES.astype(np.float64)), TensorTypeError),
        (lambda: convert.bfloat16_to_float32(VALUES), TensorTypeError),
        (lambda: convert.pack_int4(VALUES), TensorTypeError),
        (lambda: convert.unpack_int4(np.zeros(2, np.uint8), 5), ShapeError),
        (lambda: convert.unpack_int4(np.zeros(2, np.int8)), TensorTypeError),
    ],
)
def test_what_does_not_fit_is_a_typed_error_with_a_hint(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.hint  # type: ignore[attr-defined]
