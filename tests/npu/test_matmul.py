"""Products of matrices: every type and instruction set beside sums written out in numpy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.errors import AnynpuError, DeviceError, ShapeError, TensorTypeError
from anynpu.npu.engines.native_levels import available
from anynpu.npu.matmul import MAX_STEPS, PackedMatrix, multiply
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
    assert same_bytes(multiply(a, PackedMatrix(b, isa=isa)), exact(a, b).astype(np.int32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float16_is_the_sum_in_order(isa: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * k * n)
    a, b = random_halves(rng, (m, k)), random_halves(rng, (k, n))
    product = multiply(a, PackedMatrix(b, isa=isa))
    assert same_bytes(product, in_order(a, b))
    bound = k * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert (np.abs(product - a.astype(np.float64) @ b.astype(np.float64)) <= bound).all()


def test_random_shapes(isa: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(150):
        m, k, n = (int(extent) for extent in rng.integers(1, (30, 90, 140)))
        a, b = random_codes(rng, (m, k)), random_codes(rng, (k, n))
        assert same_bytes(multiply(a, PackedMatrix(b, isa=isa)), exact(a, b).astype(np.int32)), (m, k, n)
        c, d = random_halves(rng, (m, k)), random_halves(rng, (k, n))
        assert same_bytes(multiply(c, PackedMatrix(d, isa=isa)), in_order(c, d)), (m, k, n)


@pytest.mark.parametrize(("left", "right"), [(-128, -128), (-128, 127), (127, -128), (127, 127)])
@pytest.mark.parametrize("k", [10240, MAX_STEPS])
def test_the_largest_sums_fit(isa: str, left: int, right: int, k: int) -> None:
    a, b = np.full((2, k), left, np.int8), np.full((k, 3), right, np.int8)
    assert (multiply(a, PackedMatrix(b, isa=isa)) == left * right * k).all()


def test_int4_saturates(isa: str) -> None:
    rng = np.random.default_rng(3)
    a, b = random_codes(rng, (9, 4001), -8), random_codes(rng, (4001, 37), -8)
    a[:3], b[:, :2], b[:, 2] = -8, -8, 7
    sums = exact(a, b)
    assert sums.max() > 32767
    assert sums.min() < -32768
    packed = PackedMatrix(b, a_type=DType.INT4, b_type=DType.INT4, isa=isa)
    assert packed.result_type is DType.INT16
    assert same_bytes(multiply(a, packed), np.clip(sums, -32768, 32767).astype(np.int16))


def test_int8_by_int4(isa: str) -> None:
    rng = np.random.default_rng(4)
    a, b = random_codes(rng, (7, 99)), random_codes(rng, (99, 21), -8)
    assert same_bytes(multiply(a, PackedMatrix(b, b_type=DType.INT4, isa=isa)), exact(a, b).astype(np.int32))


@pytest.mark.parametrize("b_type", [DType.INT8, DType.INT4])
def test_float16_by_codes(isa: str, b_type: DType) -> None:
    rng = np.random.default_rng(5)
    low = -8 if b_type is DType.INT4 else -128
    a, b = random_halves(rng, (7, 70)), random_codes(rng, (70, 19), low)
    scale = rng.uniform(0.001, 0.1, 19).astype(np.float32)
    zero = rng.integers(low, -low, 19)
    zero[0], b[0, 0] = low, -low - 1
    packed = PackedMatrix(b, b_type=b_type, scale=scale, zero_point=zero, isa=isa)
    assert (packed.a_type, packed.result_type) == (DType.FLOAT16, DType.FLOAT32)
    sums = in_order(a, b.astype(np.int64) - zero)
    assert same_bytes(multiply(a, packed), sums * scale)
    plain = PackedMatrix(b, b_type=b_type, a_type=DType.FLOAT16, isa=isa)
    assert same_bytes(multiply(a, plain), in_order(a, b))
    assert same_bytes(multiply(a, PackedMatrix(b, b_type=b_type, scale=0.5, isa=isa)), in_order(a, b) * np.float32(0.5))


def test_infinity_and_nan_stay_in_their_row_and_column(isa: str) -> None:
    a, b = np.ones((7, 9), np.float16), np.ones((9, 70), np.float16)
    a[1, 2], a[3, 4], b[5, 66] = np.inf, np.nan, -np.inf
    product = multiply(a, PackedMatrix(b, isa=isa))
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
            packed = PackedMatrix(b, isa=isa)
            memory = np.full(4 * m * n + 2 * GUARD, 0xA5, np.uint8)
            out = memory[GUARD:-GUARD].view(packed.result_type.value).reshape(m, n)
            before = a.copy()
            assert multiply(a, packed, out=out) is out
            assert same_bytes(out, multiply(a, packed))
            assert (memory[:GUARD] == 0xA5).all()
            assert (memory[-GUARD:] == 0xA5).all()
            assert same_bytes(a, before)


def test_any_strides_and_overlap(isa: str) -> None:
    rng = np.random.default_rng(7)
    wide_a, wide_b = random_codes(rng, (40, 60)), random_codes(rng, (50, 60))
    for a, b in ((wide_a[::2, ::2], wide_b.T[::2, ::-1]), (wide_a[:, :50].T[:40, :], wide_b[:40, 7:]), (wide_a, wide_b.T)):
        assert np.array_equal(multiply(a, PackedMatrix(b, isa=isa)), exact(a, b))
    memory = random_codes(rng, (6, 32))
    square = PackedMatrix(random_codes(rng, (32, 8)), isa=isa)
    expected = multiply(memory.copy(), square)
    assert same_bytes(multiply(memory, square, out=memory.view(np.int32)), expected)


def test_no_rows_give_no_product(isa: str) -> None:
    assert multiply(np.empty((0, 5), np.int8), PackedMatrix(np.ones((5, 3), np.int8), isa=isa)).shape == (0, 3)


def test_threads_share_a_packed_matrix() -> None:
    rng = np.random.default_rng(9)
    b = random_codes(rng, (300, 200))
    packed = PackedMatrix(b)
    factors = [random_codes(rng, (50, 300)) for _ in range(4)]
    products: list[Array | None] = [None] * 4

    def work(number: int) -> None:
        for _ in range(20):
            products[number] = multiply(factors[number], packed)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for factor, product in zip(factors, products, strict=True):
        assert product is not None
        assert np.array_equal(product, exact(factor, b))


def test_each_instruction_set_has_its_kernel() -> None:
    kernels = [PackedMatrix(np.ones((1, 1), np.int8), isa=isa).kernel for isa in available()]
    assert kernels[-1] == "plain"
    assert len(set(kernels)) == len(kernels)


ONES = np.ones((4, 3), np.int8)
HALVES = np.ones((4, 3), np.float16)


@pytest.mark.parametrize(
    ("b", "options", "error"),
    [
        (ONES.astype(np.float32), {}, TensorTypeError),
        (ONES.tolist(), {}, TensorTypeError),
        (ONES, {"b_type": DType.UINT8}, TensorTypeError),
        (ONES, {"b_type": DType.FLOAT16}, TensorTypeError),
        (ONES, {"a_type": DType.INT4}, TensorTypeError),
        (HALVES, {"a_type": DType.INT8}, TensorTypeError),
        (HALVES, {"scale": 1.0}, TensorTypeError),
        (ONES, {"a_type": DType.INT8, "scale": 1.0}, TensorTypeError),
        (ONES * 8, {"b_type": DType.INT4}, TensorTypeError),
        (ONES, {"scale": [1.0, 2.0]}, ShapeError),
        (ONES, {"scale": 1.0, "zero_point": 128}, TensorTypeError),
        (ONES, {"scale": 1.0, "zero_point": 0.5}, TensorTypeError),
        (ONES, {"scale": 1.0, "zero_point": [1, 2]}, ShapeError),
        (ONES[0], {}, ShapeError),
        (ONES[:0], {}, ShapeError),
        (ONES[:, :0], {}, ShapeError),
        (np.ones((MAX_STEPS + 1, 1), np.int8), {}, ShapeError),
        (ONES, {"isa": "abacus"}, DeviceError),
    ],
)
def test_what_cannot_be_packed(b: Any, options: dict[str, Any], error: type[AnynpuError]) -> None:
    with pytest.raises(error) as raised:
        PackedMatrix(b, **options)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("a", "out", "error"),
    [
        (np.ones((2, 4), np.uint8), None, TensorTypeError),
        (np.ones((2, 4), np.float16), None, TensorTypeError),
        ([[1, 2, 3, 4]], None, TensorTypeError),
        (np.ones((2, 3), np.int8), None, ShapeError),
        (np.ones(4, np.int8), None, ShapeError),
        (np.ones((2, 4), np.int8), np.empty((2, 3), np.float32), TensorTypeError),
        (np.ones((2, 4), np.int8), np.empty((3, 2), np.int32), ShapeError),
        (np.ones((2, 4), np.int8), np.empty((3, 2), np.int32).T, ShapeError),
    ],
)
def test_what_cannot_be_multiplied(a: Any, out: Any, error: type[AnynpuError]) -> None:
    with pytest.raises(error) as raised:
        multiply(a, PackedMatrix(ONES), out=out)
    assert raised.value.hint


def test_int4_on_the_left_has_four_bits() -> None:
    packed = PackedMatrix(ONES, a_type=DType.INT4, b_type=DType.INT4)
    with pytest.raises(TensorTypeError):
        multiply(np.full((1, 4), -9, np.int8), packed)
