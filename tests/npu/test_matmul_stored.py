"""Products whose right factor is read from memory each time, in every order, compared with numpy."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.errors import ShapeError, TensorTypeError
from anynpu.npu.engines.native_levels import available
from anynpu.npu.matmul import Blocks, StoredMatrix
from anynpu.program.convert import pack_int4
from anynpu.tensor import DType

ORDERS = {
    "rows": lambda k: "rows",
    "columns": lambda k: "columns",
    "blocks of 16 x 32": lambda k: Blocks(16, 32, k),
    "blocks of 32 x 32": lambda k: Blocks(32, 32, k),
    "blocks of 64 x 32, segments": lambda k: Blocks(64, 32, 64),
    "blocks of 8 x 16": lambda k: Blocks(8, 16, k),
}
SHAPES = [(1, 64, 64), (2, 96, 128), (3, 160, 192), (4, 32, 64), (7, 128, 64), (17, 96, 128), (200, 64, 64), (1, 640, 64)]
SHAPES += [(16, 288, 64), (5, 96, 320)]  # more than is read of b at a time
SHAPES += [(4, 160, 256), (6, 160, 64), (11, 64, 128), (12, 32, 64)]  # the rows of every kernel for a few


def in_order(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """The definition: float32, a step of k after the other."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for step in range(a.shape[1]):
        sums += left[:, step, None] * right[step]
    return sums


def stored(b: npt.NDArray[np.generic], order: str | Blocks, dtype: DType) -> npt.NDArray[np.generic]:
    """The memory of *b*, written as plainly as can be."""
    k, n = b.shape
    if order == "rows":
        flat = b.reshape(-1)
    elif order == "columns":
        flat = b.T.reshape(-1)
    else:
        assert isinstance(order, Blocks)
        flat = np.array(
            [
                b[first + k1 * order.rows + k2, n1 * order.columns + n2]
                for first in range(0, k, order.segment)
                for n1 in range(n // order.columns)
                for k1 in range(min(order.segment, k - first) // order.rows)
                for n2 in range(order.columns)
                for k2 in range(order.rows)
            ],
            b.dtype,
        )
    return pack_int4(flat) if dtype is DType.INT4 else np.ascontiguousarray(flat)


@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("order", ORDERS)
def test_integers_are_exact(isa: str, order: str) -> None:
    rng = np.random.default_rng(3)
    for m, k, n in SHAPES:
        for dtype, low, high in ((DType.INT8, -128, 128), (DType.INT4, -8, 8)):
            a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(low, high, (k, n), np.int8)
            matrix = StoredMatrix(k, n, dtype, DType.INT8, order=ORDERS[order](k), isa=isa)
            memory = stored(b, ORDERS[order](k), dtype)
            assert memory.nbytes == matrix.size
            product = matrix.multiply(a, memory)
            assert product.dtype == np.int32
            assert np.array_equal(product, a.astype(np.int64) @ b), (m, k, n, dtype)


@pytest.mark.parametrize("isa", available())
def test_extents_of_any_kind(isa: str) -> None:
    """A few rows whose sums wait for more steps of b, and columns that do not fill a register."""
    rng = np.random.default_rng(4)
    for m, k, n in ((5, 65, 1), (8, 130, 63), (9, 257, 65), (16, 200, 200), (13, 66, 129)):
        a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
        guarded = np.full((m + 1, n), 77, np.int32)
        for threads in (1, 3):
            matrix = StoredMatrix(k, n, DType.INT8, DType.INT8, threads=threads, isa=isa)
            matrix.multiply(a, b, out=guarded[:m])
            assert np.array_equal(guarded[:m], a.astype(np.int64) @ b), (m, k, n)
            assert (guarded[m] == 77).all()
            matrix.close()


@pytest.mark.parametrize("isa", available())
def test_every_number_of_a_few_rows(isa: str) -> None:
    """With b as it lies in rows: more steps and columns than are taken at a time, and columns that do not fill a line of a cache."""
    rng = np.random.default_rng(8)
    a_all, b_all = rng.integers(-128, 128, (66, 196), np.int8), rng.integers(-128, 128, (196, 4300), np.int8)
    a_all[0], b_all[:, 0] = -128, -128
    for k, n in ((196, 4300), (68, 131), (64, 64), (4, 1), (66, 130)):
        b = np.ascontiguousarray(b_all[:k, :n])
        wanted = (a_all[:, :k].astype(np.float64) @ b).astype(np.int32)  # sums below 2^53 are exact
        matrix = StoredMatrix(k, n, DType.INT8, DType.INT8, threads=2 if n > 4096 else 1, isa=isa)
        for m in (*range(1, 19), 23, 41, 64, 65):
            guarded = np.full((m + 2, n), 77, np.int32)
            matrix.multiply(np.ascontiguousarray(a_all[:m, :k]), b, out=guarded[1:-1])
            assert np.array_equal(guarded[1:-1], wanted[:m]), (m, k, n)
            assert (guarded[[0, -1]] == 77).all()
        matrix.close()


@pytest.mark.parametrize("isa", available())
def test_many_rows_of_a_transposed_matrix(isa: str) -> None:
    """Steps that do not fill a line of a cache, and columns that do not fill a panel."""
    rng = np.random.default_rng(10)
    for m, k, n in ((20, 4, 64), (33, 100, 130), (20, 2148, 64), (194, 68, 192), (17, 67, 65)):
        a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
        matrix = StoredMatrix(k, n, DType.INT8, DType.INT8, order="columns", isa=isa)
        assert np.array_equal(matrix.multiply(a, np.ascontiguousarray(b.T)), a.astype(np.int64) @ b), (m, k, n)


def test_a_prepared_product_sees_what_the_memory_holds() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(-128, 128, (3, 96), np.int8), rng.integers(-128, 128, (96, 64), np.int8)
    matrix = StoredMatrix(96, 64, DType.INT8, DType.INT8)
    out = matrix.multiply(a, b)
    again = matrix.prepared(a, b, out)
    matrix.multiply(rng.integers(-128, 128, (40, 96), np.int8), b, steps=(32, 32))  # other numbers, and more working memory
    a[:], b[5] = a[::-1].copy(), 9
    again()
    assert np.array_equal(out, a.astype(np.int64) @ b)


@pytest.mark.parametrize("isa", available())
def test_the_largest_values_do_not_saturate(isa: str) -> None:
    for m in (1, 4, 8):
        a, b = np.full((m, 10240), -128, np.int8), np.full((10240, 16), -128, np.int8)
        for order in ("rows", "columns", Blocks(16, 32, 8192)):
            matrix = StoredMatrix(10240, 16, DType.INT8, DType.INT8, order=order, isa=isa)
            assert (matrix.multiply(a, b) == 10240 * 128 * 128).all()


@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("order", ORDERS)
def test_floats_are_the_sum_in_order_to_the_byte(isa: str, order: str) -> None:
    rng = np.random.default_rng(5)
    for m, k, n in SHAPES:
        a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
        matrix = StoredMatrix(k, n, DType.FLOAT16, DType.FLOAT16, order=ORDERS[order](k), isa=isa)
        product = matrix.multiply(a, stored(b, ORDERS[order](k), DType.FLOAT16))
        assert product.tobytes() == in_order(a, b).tobytes()


@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("order", ORDERS)
def test_codes_times_floats_are_the_sum_in_order(isa: str, order: str) -> None:
    rng = np.random.default_rng(7)
    for dtype, low, high in ((DType.INT8, -128, 128), (DType.INT4, -8, 8)):
        a, b = rng.standard_normal((5, 128)).astype(np.float16), rng.integers(low, high, (128, 192), np.int8)
        zeros = rng.integers(low, high, 192).astype(np.int32)
        matrix = StoredMatrix(128, 192, dtype, DType.FLOAT16, order=ORDERS[order](128), isa=isa)
        memory = stored(b, ORDERS[order](128), dtype)
        shifted = b.astype(np.int32) - zeros
        assert matrix.multiply(a, memory, zero_point=zeros).tobytes() == in_order(a, shifted).tobytes()
        assert matrix.multiply(a, memory).tobytes() == in_order(a, b).tobytes()


@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("order", ORDERS)
def test_some_rows_of_b(isa: str, order: str) -> None:
    rng = np.random.default_rng(9)
    for m in (1, 3, 20):
        for dtype, low, high in ((DType.INT8, -128, 128), (DType.INT4, -8, 8)):
            a, b = rng.integers(-128, 128, (m, 256), np.int8), rng.integers(low, high, (256, 64), np.int8)
            matrix = StoredMatrix(256, 64, dtype, DType.INT8, order=ORDERS[order](256), isa=isa)
            memory = stored(b, ORDERS[order](256), dtype)
            for first, count in ((0, 32), (32, 64), (64, 192), (224, 32), (16, 100)):
                part = slice(first, first + count)
                product = matrix.multiply(a, memory, steps=(first, count))
                assert np.array_equal(product, a[:, part].astype(np.int64) @ b[part])


@pytest.mark.parametrize("m", [1, 6, 40, 250])
def test_threads_give_the_same_bytes(m: int) -> None:
    rng = np.random.default_rng(11)
    a, b = rng.integers(-128, 128, (m, 512), np.int8), rng.integers(-128, 128, (512, 480), np.int8)
    for order in ("rows", "columns", Blocks(32, 32, 256)):
        memory = stored(b, order, DType.INT8)
        matrix = StoredMatrix(512, 480, DType.INT8, DType.INT8, order=order, threads=3)
        before = set(threading.enumerate())
        assert np.array_equal(matrix.multiply(a, memory), a.astype(np.int64) @ b)
        assert set(threading.enumerate()) <= before  # its threads are not Python's
        matrix.close()
        assert np.array_equal(matrix.multiply(a, memory), a.astype(np.int64) @ b)
        matrix.close()


def test_a_change_of_b_is_seen() -> None:
    a, b = np.ones((1, 64), np.int8), np.zeros((64, 64), np.int8)
    matrix = StoredMatrix(64, 64, DType.INT8, DType.INT8)
    assert not matrix.multiply(a, b).any()
    b[63, 63] = 5
    assert matrix.multiply(a, b)[0].tolist() == [0] * 63 + [5]


def test_out_may_be_given_and_overlap_a() -> None:
    rng = np.random.default_rng(13)
    memory = np.zeros(64 * 64, np.int32)
    a = memory.view(np.int8)[: 64 * 64].reshape(64, 64)
    a[:] = rng.integers(-128, 128, (64, 64))
    b = rng.integers(-128, 128, (64, 64), np.int8)
    wanted = a.astype(np.int64) @ b
    out = memory.reshape(64, 64)
    matrix = StoredMatrix(64, 64, DType.INT8, DType.INT8)
    assert matrix.multiply(a, b, out=out) is out
    assert np.array_equal(out, wanted)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TensorTypeError, match="no product of int4 and int8"):
        StoredMatrix(32, 32, DType.INT8, DType.INT4)
    with pytest.raises(ShapeError, match="cannot lie in"):
        StoredMatrix(48, 32, DType.INT8, DType.INT8, order=Blocks(32, 32, 32))
    with pytest.raises(ShapeError, match="no order 'diagonal'"):
        StoredMatrix(32, 32, DType.INT8, DType.INT8, order="diagonal")
    with pytest.raises(ShapeError, match="whole bytes"):
        StoredMatrix(31, 32, DType.INT4, DType.INT8)
    with pytest.raises(ShapeError, match=r"\[0, 4\]"):
        StoredMatrix(0, 4, DType.INT8, DType.INT8)
    matrix = StoredMatrix(32, 32, DType.INT8, DType.INT8)
    a, b = np.zeros((2, 32), np.int8), np.zeros((32, 32), np.int8)
    with pytest.raises(ShapeError, match="a is"):
        matrix.multiply(a[:, :16], b)
    with pytest.raises(ShapeError, match="a is"):
        matrix.multiply(a.astype(np.float16), b)
    with pytest.raises(ShapeError, match="1023 bytes"):
        matrix.multiply(a, b.reshape(-1)[:-1])
    with pytest.raises(ShapeError, match="rows 16 to 48"):
        matrix.multiply(a, b, steps=(16, 32))
    with pytest.raises(ShapeError, match="3 rows from 2 on"):
        StoredMatrix(32, 32, DType.INT8, DType.INT8, order="columns").multiply(a, b, steps=(2, 3))
    with pytest.raises(ShapeError, match="zero_point"):
        matrix.multiply(a, b, zero_point=np.zeros(31, np.int32))
