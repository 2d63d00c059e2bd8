"""What a caller's array means."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import ShapeError, TensorTypeError
from anynpu.npu.context import interpret
from anynpu.program import Preprocess
from anynpu.tensor import Affine, DType, Layout, TensorSpec

IMAGE = TensorSpec("images", (1, 3, 4, 6), DType.INT8, Layout.NHWC, Affine.per_tensor(1.0, -128))
PREPROCESS = Preprocess((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_values_go_through_the_preprocessing(dtype: str) -> None:
    array, source, preprocess = interpret(np.ones((1, 3, 4, 6), dtype), IMAGE, preprocess=PREPROCESS)
    assert source.quantization is None
    assert source.dtype.storage == array.dtype
    assert array.dtype == ("float32" if dtype == "float64" else dtype)
    assert preprocess is PREPROCESS


def test_codes_do_not() -> None:
    for raw in (False, True):
        _, source, preprocess = interpret(np.ones((1, 3, 4, 6), np.int8), IMAGE, preprocess=PREPROCESS, raw=raw)
        assert (source.dtype, source.quantization, preprocess) == (DType.INT8, IMAGE.quantization, None)


def test_bytes_are_values_even_where_the_codes_are_bytes() -> None:
    spec = TensorSpec("images", (1, 3, 4, 6), DType.UINT8, Layout.NHWC, Affine.per_tensor(0.5, 3))
    array = np.ones((1, 3, 4, 6), np.uint8)
    assert interpret(array, spec)[1].quantization is None
    assert interpret(array, spec, raw=True)[1].quantization == spec.quantization


def test_the_order_of_the_axes() -> None:
    assert interpret(np.ones((1, 3, 4, 6), np.uint8), IMAGE)[1].layout is Layout.NCHW
    assert interpret(np.ones((1, 4, 6, 3), np.uint8), IMAGE, layout="nhwc")[1].layout is Layout.NHWC
    plain = TensorSpec("x", (2, 5), DType.FLOAT32)
    assert interpret(np.ones((2, 5), np.float32), plain, layout="nhwc")[1].layout is Layout.PLAIN


@pytest.mark.parametrize(
    ("shape", "layout", "hint"),
    [
        ((1, 4, 6, 3), None, "this looks like NHWC; pass layout='nhwc' or transpose it"),
        ((1, 3, 4, 6), "nhwc", "this looks like NCHW; leave the layout out, or transpose it"),
        ((3, 4, 6), None, "the batch axis is missing; pass array[None]"),
        ((4, 6, 3), None, "the batch axis is missing; pass array[None], and layout='nhwc'"),
        ((4, 6, 3), "nhwc", "the batch axis is missing; pass array[None]"),
        ((1, 3, 8, 8), None, "resize or pad it to the model's input, or compile the model for this shape"),
        ((72,), None, "the model wants 4 axes"),
    ],
)
def test_wrong_shapes_say_what_to_do(shape: tuple[int, ...], layout: str | None, hint: str) -> None:
    with pytest.raises(ShapeError) as caught:
        interpret(np.zeros(shape, np.uint8), IMAGE, layout=layout)
    expected = [1, 4, 6, 3] if layout else [1, 3, 4, 6]
    assert str(caught.value) == f"input 'images' takes {expected}, got {list(shape)}\n  hint: {hint}"


@pytest.mark.parametrize("layout", ["nc1hwc2", "hwc"])
def test_impossible_layouts(layout: str) -> None:
    with pytest.raises(ShapeError, match="is no layout"):
        interpret(np.zeros((1, 3, 4, 6), np.uint8), IMAGE, layout=layout)


@pytest.mark.parametrize("dtype", ["int16", "int64", "bool", "complex64", "U3"])
def test_wrong_types_say_what_to_do(dtype: str) -> None:
    with pytest.raises(TensorTypeError, match="input 'images' is int8") as caught:
        interpret(np.zeros((1, 3, 4, 6), dtype), IMAGE)
    assert "astype" in caught.value.hint
    with pytest.raises(TensorTypeError):
        interpret(np.zeros((1, 3, 4, 6), dtype), IMAGE, raw=True)


def test_integer_tensors_take_integers_that_fit() -> None:
    spec = TensorSpec("ids", (3,), DType.INT32)
    array, source, _ = interpret([1, 2, 3], spec)
    assert array.dtype == np.int32
    assert source.dtype is DType.INT32
    for wrong in ([1, 2, 1 << 31], [1.0, 2.0, 3.0], [True, False, True]):
        with pytest.raises(TensorTypeError):
            interpret(wrong, spec)
    flags = TensorSpec("flags", (2,), DType.BOOL)
    assert interpret([True, False], flags)[0].tolist() == [True, False]
    with pytest.raises(TensorTypeError):
        interpret([1, 0], flags)


def test_float_tensors_take_values_of_every_sensible_type() -> None:
    spec = TensorSpec("x", (2,), DType.FLOAT32)
    for dtype in ("float64", "float32", "float16", "uint8", "int8"):
        array, _, _ = interpret(np.array([1, 100], dtype), spec)
        assert array.tolist() == [1, 100]
    with pytest.raises(TensorTypeError):
        interpret([1, 2], spec)
