"""Matmul: every type and instruction set compared with sums unrolled in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu._native import ffi, lib
from anynpu.errors import AnynpuError, DeviceError, ShapeError, TensorTypeError
from anynpu.npu.engines.native_levels import available, level_names
from anynpu.npu.matmul import MAX_STEPS, StoredMatrix
from anynpu.program.convert import pack_int4
from anynpu.tensor import DType

Array = npt.NDArray[Any]

GUARD = 64
# rows: one, a tile and more, several packed blocks; steps: no multiple of 4, several blocks; columns: odd, panels and a bit
SHAPES = [
    (1, 1, 1),
    (1, 5, 3),
    (6, 4, 64),
    (7, 63, 65),
    (13, 129, 31),
    (5, 2051, 17),
    (8, 1029, 66),
    (14, 2060, 17),
    (1, 10240, 33),
    (197, 18, 130),
    (400, 3, 1),
]


@pytest.fixture(params=available())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def random_codes(rng: np.random.Generator, shape: tuple[int, int], low: int = -128) -> npt.NDArray[np.int8]:
    codes = rng.integers(low, -low, shape, np.int8)
    codes[rng.random(shape) < 0.2] = low
    return codes


def random_halves(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.float16]:
    """Of all sizes, subnormal ones too."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-24, 5, shape)).astype(np.float16)


def multiply(
    a: Array, b: Array, isa: str | None = None, *, a_type: DType | None = None, b_type: DType | None = None, **options: Any
) -> Array:
    """The product of *a* and *b*, which lies in rows; int4 is given one element a byte."""
    of_array = {np.dtype(np.int8): DType.INT8, np.dtype(np.float16): DType.FLOAT16}
    left, right = a_type or of_array[a.dtype], b_type or of_array[b.dtype]
    matrix = StoredMatrix(*b.shape, right, left, isa=isa)
    memory = np.ascontiguousarray(b)
    return matrix.multiply(a, pack_int4(memory.reshape(-1)) if right is DType.INT4 else memory, **options)


def exact(a: Array, b: Array) -> npt.NDArray[np.int64]:
    return a.astype(np.int64) @ b.astype(np.int64)


def in_order(a: Array, b: Array) -> npt.NDArray[np.float32]:
    """The definition: float32, a step of k after the other."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for step in range(a.shape[1]):
        sums += left[:, step, None] * right[step]
    return sums


def same_bytes(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_is_exact(isa: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * k * n)
    a, b = random_codes(rng, (m, k)), random_codes(rng, (k, n))
    assert same_bytes(multiply(a, b, isa), exact(a, b).astype(np.int32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float16_is_the_sum_in_order(isa: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * k * n)
    a, b = random_halves(rng, (m, k)), random_halves(rng, (k, n))
    product = multiply(a, b, isa)
    assert same_bytes(product, in_order(a, b))
    bound = k * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert (np.abs(product - a.astype(np.float64) @ b.astype(np.float64)) <= bound).all()


def test_random_shapes(isa: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(150):
        m, k, n = (int(extent) for extent in rng.integers(1, (30, 90, 140)))
        a, b = random_codes(rng, (m, k)), random_codes(rng, (k, n))
        assert same_bytes(multiply(a, b, isa), exact(a, b).astype(np.int32)), (m, k, n)
        c, d = random_halves(rng, (m, k)), random_halves(rng, (k, n))
        assert same_bytes(multiply(c, d, isa), in_order(c, d)), (m, k, n)


@pytest.mark.parametrize(("left", "right"), [(-128, -128), (-128, 127), (127, -128), (127, 127)])
@pytest.mark.parametrize("k", [10240, MAX_STEPS])
def test_the_largest_sums_fit(isa: str, left: int, right: int, k: int) -> None:
    a, b = np.full((2, k), left, np.int8), np.full((k, 3), right, np.int8)
    assert (multiply(a, b, isa) == left * right * k).all()


def test_int4_sums_are_exact(isa: str) -> None:
    rng = np.random.default_rng(3)
    a, b = random_codes(rng, (9, 4002), -8), random_codes(rng, (4002, 38), -8)
    a[:3], b[:, :2], b[:, 2] = -8, -8, 7
    sums = exact(a, b)
    assert sums.max() > 32767
    assert sums.min() < -32768
    product = multiply(a, b, isa, a_type=DType.INT4, b_type=DType.INT4)
    assert same_bytes(product, sums.astype(np.int32))


def test_int8_by_int4(isa: str) -> None:
    rng = np.random.default_rng(4)
    a, b = random_codes(rng, (7, 98)), random_codes(rng, (98, 22), -8)
    assert same_bytes(multiply(a, b, isa, b_type=DType.INT4), exact(a, b).astype(np.int32))


@pytest.mark.parametrize("b_type", [DType.INT8, DType.INT4])
def test_float16_by_codes(isa: str, b_type: DType) -> None:
    rng = np.random.default_rng(5)
    low = -8 if b_type is DType.INT4 else -128
    a, b = random_halves(rng, (7, 70)), random_codes(rng, (70, 20), low)
    zero = rng.integers(low, -low, 20).astype(np.int32)
    zero[0], b[0, 0] = low, -low - 1
    product = multiply(a, b, isa, b_type=b_type, zero_point=zero)
    assert same_bytes(product, in_order(a, b.astype(np.int64) - zero))
    assert same_bytes(multiply(a, b, isa, b_type=b_type), in_order(a, b))


def test_infinity_and_nan_stay_in_their_row_and_column(isa: str) -> None:
    a, b = np.ones((7, 9), np.float16), np.ones((9, 70), np.float16)
    a[1, 2], a[3, 4], b[5, 66] = np.inf, np.nan, -np.inf
    product = multiply(a, b, isa)
    expected = np.full((7, 70), 9, np.float32)
    expected[1], expected[:, 66], expected[1, 66], expected[3] = np.inf, -np.inf, np.nan, np.nan
    np.testing.assert_array_equal(product, expected)


def test_nothing_around_the_product_is_touched(isa: str) -> None:
    rng = np.random.default_rng(6)
    for m, k, n in SHAPES:
        for a, b in (
            (random_codes(rng, (m, k)), random_codes(rng, (k, n))),
            (random_halves(rng, (m, k)), random_halves(rng, (k, n))),
        ):
            expected = multiply(a, b, isa)
            memory = np.full(4 * m * n + 2 * GUARD, 0xA5, np.uint8)
            out = memory[GUARD:-GUARD].view(expected.dtype).reshape(m, n)
            before = a.copy()
            assert multiply(a, b, isa, out=out) is out
            assert same_bytes(out, expected)
            assert (memory[:GUARD] == 0xA5).all()
            assert (memory[-GUARD:] == 0xA5).all()
            assert same_bytes(a, before)


def test_any_strides_of_b_and_overlap(isa: str) -> None:
    rng = np.random.default_rng(7)
    wide_a, wide_b = random_codes(rng, (40, 60)), random_codes(rng, (50, 60))
    for a, b in ((wide_a[:, :30], wide_b.T[::2, ::-1]), (wide_a[:, :40], wide_b[:40, 7:]), (wide_a, wide_b.T)):
        assert np.array_equal(multiply(np.ascontiguousarray(a), b, isa), exact(a, b))
    memory = random_codes(rng, (6, 32))
    square = random_codes(rng, (32, 8))
    expected = multiply(memory.copy(), square, isa)
    assert same_bytes(multiply(memory, square, isa, out=memory.view(np.int32)), expected)


def test_no_rows_give_no_product(isa: str) -> None:
    assert multiply(np.empty((0, 5), np.int8), np.ones((5, 3), np.int8), isa).shape == (0, 3)


def test_each_instruction_set_has_its_kernel() -> None:
    matrices = [ffi.new("struct anynpu_matrix *", [lib.ANYNPU_I8, level_names().index(isa), 1, 1]) for isa in available()]
    kernels = [ffi.string(lib.anynpu_matrix_kernel_name(matrix)).decode() for matrix in matrices]
    assert kernels[-1] == "plain"
    assert len(set(kernels)) == len(kernels)


ONES = np.ones((4, 3), np.int8)


@pytest.mark.parametrize(
    ("size", "types", "options", "error"),
    [
        ((4, 3), (DType.UINT8, DType.INT8), {}, TensorTypeError),
        ((4, 3), (DType.INT8, DType.INT4), {}, TensorTypeError),
        ((4, 3), (DType.FLOAT16, DType.INT8), {}, TensorTypeError),
        ((0, 3), (DType.INT8, DType.INT8), {}, ShapeError),
        ((4, 0), (DType.INT8, DType.INT8), {}, ShapeError),
        ((MAX_STEPS + 1, 1), (DType.INT8, DType.INT8), {}, ShapeError),
        ((4, 3), (DType.INT8, DType.INT8), {"isa": "abacus"}, DeviceError),
    ],
)
def test_matrices_that_are_rejected(
    size: tuple[int, int], types: tuple[DType, DType], options: dict[str, Any], error: type[AnynpuError]
) -> None:
    with pytest.raises(error) as raised:
        StoredMatrix(*size, *types, **options)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("a", "out", "error"),
    [
        (np.ones((2, 4), np.uint8), None, ShapeError),
        (np.ones((2, 4), np.float16), None, ShapeError),
        (np.ones((2, 3), np.int8), None, ShapeError),
        (np.ones(4, np.int8), None, ShapeError),
        (np.ones((2, 4), np.int8), np.empty((2, 3), np.float32), TensorTypeError),
        (np.ones((2, 4), np.int8), np.empty((3, 2), np.int32), ShapeError),
        (np.ones((2, 4), np.int8), np.empty((3, 2), np.int32).T, ShapeError),
    ],
)
def test_factors_and_results_that_are_rejected(a: Any, out: Any, error: type[AnynpuError]) -> None:
    with pytest.raises(error) as raised:
        StoredMatrix(4, 3, DType.INT8, DType.INT8).multiply(a, ONES, out=out)
    assert raised.value.hint
