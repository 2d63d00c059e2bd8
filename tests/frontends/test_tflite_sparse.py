"""TFLite files with sparse constants, and operators of MediaPipe: as its networks for faces, hands and poses have them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tflite_files import Byte, Tflite

from anynpu.compiler.importers.tflite import tflite_to_onnx
from anynpu.errors import ModelFormatError, UnsupportedOperatorError

Array = np.ndarray[Any, Any]


def run(data: bytes, *values: Array) -> Array:
    session = onnxruntime.InferenceSession(tflite_to_onnx(data).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {entry.name: value for entry, value in zip(session.get_inputs(), values, strict=True)}
    return np.asarray(session.run(None, feeds)[0])


def dense_level(extent: int) -> dict[int, Any]:
    return {0: Byte(0), 1: extent}


def listed_level(starts: Array, places: Array, number: int = 1) -> dict[int, Any]:
    kind = {1: "<i4", 2: "<u2", 3: "u1"}[number]
    lists = [{0: np.asarray(entry, kind)} for entry in (starts, places)]
    return {0: Byte(1), 2: Byte(number), 3: lists[0], 4: Byte(number), 5: lists[1]}


def rows_with_lists(matrix: Array, number: int = 1) -> tuple[Array, dict[int, Any]]:
    """The numbers of a matrix that are not zero, and where they are: for each row the columns."""
    kept = [np.nonzero(row)[0] for row in matrix]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in kept])])
    values = np.concatenate([row[columns] for row, columns in zip(matrix, kept, strict=True)])
    levels = [dense_level(len(matrix)), listed_level(starts, np.concatenate(kept), number)]
    return values, {0: np.array([0, 1], "<i4"), 2: levels}


def network(values: Array, sparsity: dict[int, Any], shape: tuple[int, ...], *, half: bool = False) -> bytes:
    """A product with a sparse matrix of [outputs, inputs], which DENSIFY fills up."""
    file = Tflite()
    x, y = file.tensor("x", (2, shape[1])), file.tensor("y", (2, shape[0]))
    kind = "float16" if half else "float32"
    packed = file.tensor("packed", shape, kind, values.astype(kind))
    file.tensors[packed][6] = sparsity
    filled = file.tensor("filled", shape, kind)
    file.operator("DENSIFY", [packed], [filled])
    if half:
        wide = file.tensor("wide", shape)
        file.operator("DEQUANTIZE", [filled], [wide])
        filled = wide
    file.operator("FULLY_CONNECTED", [x, filled, -1], [y], {0: Byte(0)})
    return file.file([x], [y])


def sparse_matrix(rows: int, columns: int) -> Array:
    random = np.random.default_rng(8)
    return (random.integers(1, 9, (rows, columns)) * (random.random((rows, columns)) < 0.3)).astype(np.float32)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("half", [False, True])
def test_rows_of_a_sparse_matrix(number: int, half: bool) -> None:
    matrix = sparse_matrix(5, 7)
    values, sparsity = rows_with_lists(matrix, number)
    x = np.random.default_rng(1).standard_normal((2, 7)).astype(np.float32)
    np.testing.assert_allclose(run(network(values, sparsity, matrix.shape, half=half), x), x @ matrix.T, rtol=1e-5)


def test_blocks_of_a_sparse_matrix() -> None:
    """Blocks of 1 x 4 columns: the second axis is split, and only blocks that hold something are listed."""
    matrix = np.kron(sparse_matrix(4, 3), np.array([[1.0, 2.0, 3.0, 4.0]])).astype(np.float32)
    blocks = matrix.reshape(4, 3, 4)
    kept = [np.nonzero(row.any(axis=1))[0] for row in blocks]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in kept])])
    values = np.concatenate([row[columns].reshape(-1) for row, columns in zip(blocks, kept, strict=True)])
    levels = [dense_level(4), listed_level(starts, np.concatenate(kept)), dense_level(4)]
    sparsity = {0: np.array([0, 1, 2], "<i4"), 1: np.array([1], "<i4"), 2: levels}
    x = np.random.default_rng(1).standard_normal((2, 12)).astype(np.float32)
    np.testing.assert_allclose(run(network(values, sparsity, matrix.shape), x), x @ matrix.T, rtol=1e-5)


def damaged(sparsity: dict[int, Any], what: str) -> dict[int, Any]:
    levels = [dict(entry) for entry in sparsity[2]]
    starts, places = (levels[1][field][0].copy() for field in (3, 5))
    if what == "axes":
        return {**sparsity, 0: np.array([0, 2], "<i4")}
    if what == "places":
        places[0] = 99
    elif what == "negative places":
        places[0] = -1
    elif what == "lists":
        starts[1] = starts[-1] + 4
    elif what == "rows":
        levels[0] = dense_level(1 << 30)
    elif what == "no list":
        del levels[1][3]
        return {**sparsity, 2: levels}
    levels[1] = listed_level(starts, places)
    return {**sparsity, 2: levels}


@pytest.mark.parametrize("what", ["axes", "places", "negative places", "lists", "rows", "no list"])
def test_a_damaged_sparse_constant_is_one_error(what: str) -> None:
    matrix = sparse_matrix(5, 7)
    values, sparsity = rows_with_lists(matrix)
    with pytest.raises(ModelFormatError, match="sparse constant"):
        tflite_to_onnx(network(values, damaged(sparsity, what), matrix.shape))


def test_too_few_numbers_are_one_error() -> None:
    matrix = sparse_matrix(5, 7)
    values, sparsity = rows_with_lists(matrix)
    with pytest.raises(ModelFormatError, match="fewer numbers"):
        tflite_to_onnx(network(values[:-1], sparsity, matrix.shape))


def test_a_small_file_does_not_become_a_large_matrix() -> None:
    values, sparsity = rows_with_lists(sparse_matrix(5, 7))
    with pytest.raises(ModelFormatError, match="far more than it holds"):
        tflite_to_onnx(network(values, sparsity, (5, 1 << 26)))


def transposed(options: bytes, out: tuple[int, ...]) -> tuple[bytes, Array, Array]:
    random = np.random.default_rng(3)
    file = Tflite()
    weights, bias = random.standard_normal((2, 2, 2, 3)).astype(np.float32), random.standard_normal(2).astype(np.float32)
    x, y = file.tensor("x", (1, 4, 5, 3)), file.tensor("y", out)
    file.operator("Convolution2DTransposeBias", [x, file.constant("w", weights), file.constant("b", bias)], [y])
    file.operators[-1][5] = np.frombuffer(options, np.uint8)
    value = random.standard_normal((1, 4, 5, 3)).astype(np.float32)
    expected = np.einsum("nhwi,oabi->nhawbo", value, weights).reshape(1, 8, 10, 2) + bias
    return file.file([x], [y]), value, expected


@pytest.mark.parametrize("padding", [1, 2])
def test_mediapipes_transposed_convolution(padding: int) -> None:
    """Windows of 2 x 2 with strides of 2 touch nobody else's pixels."""
    data, value, expected = transposed(struct.pack("<iii", padding, 2, 2), (1, 8, 10, 2))
    given = run(data, np.ascontiguousarray(value.transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [b"", struct.pack("<iii", 1, 0, 2)])
def test_options_that_make_no_sense_are_refused(options: bytes) -> None:
    with pytest.raises(UnsupportedOperatorError):
        tflite_to_onnx(transposed(options, (1, 8, 10, 2))[0])


def test_whole_numbers_are_divided_downwards() -> None:
    """ONNX cuts off towards zero."""
    file = Tflite()
    x, y = file.tensor("x", (8,), "int32"), file.tensor("y", (8,), "int32")
    divisors = np.array([2, 2, -2, -2, 3, 3, -3, 5], np.int32)
    file.operator("FLOOR_DIV", [x, file.constant("d", divisors)], [y])
    values = np.array([7, -7, 7, -7, 6, -6, 6, 0], np.int32)
    np.testing.assert_array_equal(run(file.file([x], [y]), values), values // divisors)
