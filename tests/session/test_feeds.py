"""What a session accepts as input, and what it states about the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anynpu.errors import AnynpuError, FeedError, FeedNameError, FeedShapeError, FeedTypeError
from anynpu.session.feeds import FeedReader
from anynpu.tensor import DType, Layout, TensorSpec

from .fake import IMAGE, FakeDevice, X, feed

INTEGERS = TensorSpec("n", (1, 2), DType.INT64)
MASK = TensorSpec("m", (1, 2), DType.BOOL)


def read(spec: TensorSpec, array: Any, layout: str = "nchw", copy: bool = False) -> Any:
    return FeedReader([spec], (), layout).read([array], copy)


def test_the_three_forms_of_a_feed() -> None:
    reader = FeedReader([X, INTEGERS], (), "nchw")
    first, second = feed(), np.zeros((1, 2), np.int64)
    for given in ({"x": first, "n": second}, {"n": second, "x": first}, [first, second], (first, second)):
        assert [array is expected for array, expected in zip(reader.read(given, False).arrays, (first, second), strict=True)] == [
            True,
            True,
        ]
    assert FeedReader([X], (), "nchw").read(first, False).arrays[0] is first


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (feed(), "2 inputs, got one array"),
        ([feed()], "2 inputs, got a list of 1"),
        ({"x": feed()}, "no array for input 'n'"),
        ({"x": feed(), "n": feed(), "z": feed()}, "there is no input 'z'"),
        ({"x": feed(), "z": feed()}, "no array for input 'n'; there is no input 'z'"),
        (None, "not NoneType"),
        (7, "not int"),
        ("x", "not str"),
    ],
)
def test_feeds_of_the_wrong_form(given: Any, text: str) -> None:
    with pytest.raises(FeedError, match=text) as caught:
        FeedReader([X, INTEGERS], (), "nchw").read(given, False)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, AnynpuError)
    assert caught.value.hint


def test_errors_are_also_the_builtins_that_fit() -> None:
    with pytest.raises(ValueError):
        read(X, np.zeros((1, 5), np.float32))
    with pytest.raises(TypeError):
        read(X, np.zeros((1, 4), np.complex64))
    with pytest.raises(KeyError):
        FeedReader([X], (), "nchw").read({"y": feed()}, False)
    for kind in (FeedShapeError, FeedTypeError, FeedNameError):
        assert issubclass(kind, RuntimeError)


@pytest.mark.parametrize("kind", ["float32", "float16", "uint8"])
def test_values_go_as_they_are(kind: str) -> None:
    array = np.ones((1, 4), kind)
    assert read(X, array).arrays[0] is array


@pytest.mark.parametrize("kind", ["float64", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", ">f8", ">i4"])
def test_other_numbers_become_float32_values(kind: str) -> None:
    array = np.array([[0, 1, 1, 0]], kind)
    (result,) = read(X, array).arrays
    assert result.dtype == np.float32
    assert result.tolist() == [[0, 1, 1, 0]]


def test_byte_order_strides_and_read_only_arrays_do_not_matter() -> None:
    values = np.arange(8, dtype=np.float32).reshape(1, 8)
    for array in (values[:, ::2], values.astype(">f4")[:, ::2], np.asfortranarray(values[:, ::2])):
        (result,) = read(X, array).arrays
        assert result.flags.c_contiguous
        assert result.dtype == np.float32
        assert result.dtype.isnative
        assert result.tolist() == [[0, 2, 4, 6]]
    frozen = np.frombuffer(values[:, :4].tobytes(), np.float32).reshape(1, 4)
    assert not frozen.flags.writeable
    assert read(X, frozen).arrays[0] is frozen
    assert read(X, [[1, 2, 3, 4]]).arrays[0].dtype == np.float32


def test_codes_of_a_quantised_input_go_as_they_are() -> None:
    codes = np.ones(IMAGE.shape, np.int8)
    assert read(IMAGE, codes).arrays[0] is codes


def test_integer_inputs_take_integers_that_fit() -> None:
    for kind in ("int8", "uint8", "int32", "uint32", "int64", ">i8"):
        (result,) = read(INTEGERS, np.array([[1, 2]], kind)).arrays
        assert result.dtype == np.int64
        assert result.dtype.isnative
    assert read(INTEGERS, np.array([[1, 2**40]], np.uint64)).arrays[0].tolist() == [[1, 2**40]]
    with pytest.raises(FeedTypeError, match="outside"):
        read(INTEGERS, np.array([[1, 2**63]], np.uint64))
    with pytest.raises(FeedTypeError, match="does not take float32"):
        read(INTEGERS, np.zeros((1, 2), np.float32))
    assert read(MASK, np.array([[True, False]])).arrays[0].dtype == np.bool_
    with pytest.raises(FeedTypeError, match="does not take uint8"):
        read(MASK, np.zeros((1, 2), np.uint8))


def test_what_is_no_array_of_numbers_is_refused() -> None:
    for wrong in (np.zeros((1, 4), "U3"), np.zeros((1, 4), object), np.zeros((1, 4), np.complex128)):
        with pytest.raises(FeedTypeError):
            read(X, wrong)
    with pytest.raises(FeedTypeError, match="no array"):
        read(X, [[1, 2], [3]])


def test_copies_are_made_when_asked_and_when_they_matter() -> None:
    array = feed()
    assert read(X, array, copy=False).arrays[0] is array
    copied = read(X, array, copy=True).arrays[0]
    array[:] = 9
    assert copied.tolist() == [[1, 1, 1, 1]]
    frozen = np.frombuffer(bytes(16), np.float32).reshape(1, 4)
    assert read(X, frozen, copy=True).arrays[0] is frozen
    view = array.view()
    view.flags.writeable = False
    assert read(X, view, copy=True).arrays[0] is not view


@pytest.mark.parametrize(("layout", "last"), [("nchw", False), ("nchw_software", False), ("nhwc", True), ("any", True)])
def test_layouts_decide_the_shape(layout: str, last: bool) -> None:
    shape = (1, 4, 5, 3) if last else (1, 3, 4, 5)
    result = read(IMAGE, np.zeros(shape, np.uint8), layout)
    assert list(result.nhwc) == [last]


def test_any_takes_both_orders() -> None:
    assert list(read(IMAGE, np.zeros((1, 3, 4, 5), np.uint8), "any").nhwc) == [False]
    with pytest.raises(FeedShapeError):
        read(IMAGE, np.zeros((1, 3, 5, 4), np.uint8), "any")


def test_a_transposed_picture_is_taken_as_the_picture_that_it_is() -> None:
    picture = np.arange(60, dtype=np.uint8).reshape(1, 4, 5, 3)
    result = read(IMAGE, picture.transpose(0, 3, 1, 2))
    assert list(result.nhwc) == [True]
    assert np.shares_memory(result.arrays[0], picture)
    assert result.arrays[0].flags.c_contiguous
    copied = read(IMAGE, picture.transpose(0, 3, 1, 2), copy=True)
    assert not np.shares_memory(copied.arrays[0], picture)
    assert copied.arrays[0].tolist() == (picture if copied.nhwc[0] else picture.transpose(0, 3, 1, 2)).tolist()


@pytest.mark.parametrize(
    ("shape", "layout", "hint"),
    [
        ((1, 4, 5, 3), "nchw", "looks like NHWC"),
        ((1, 3, 4, 5), "nhwc", "looks like NCHW"),
        ((3, 4, 5), "nchw", "batch axis is missing"),
        ((3, 4), "nchw", "wants 4 axes"),
        ((2, 3, 4, 5), "nchw", "ztu_modelrt_dispatch_batch"),
        ((1, 3, 8, 8), "nchw", "resize"),
    ],
)
def test_a_wrong_shape_says_what_to_do(shape: tuple[int, ...], layout: str, hint: str) -> None:
    with pytest.raises(FeedShapeError, match=r"^Input ('image' shape mismatch|rank mismatch for 'image'): it takes") as caught:
        read(IMAGE, np.zeros(shape, np.uint8), layout)
    assert hint in caught.value.hint
    assert str(list(shape)) in caught.value.message


def test_the_shape_set_follows_from_the_inputs() -> None:
    wide, tall = ((1, 3, 4, 8), (1, 2)), ((1, 3, 8, 4), (1, 5))
    specs = [TensorSpec("image", wide[0], DType.INT8, Layout.NHWC), TensorSpec("n", wide[1], DType.INT64)]
    reader = FeedReader(specs, (wide, tall), "nchw")
    for number, shapes in enumerate((wide, tall)):
        arrays = [np.zeros(shapes[0], np.int8), np.zeros(shapes[1], np.int64)]
        assert reader.read(arrays, False).shape_set == number
    with pytest.raises(FeedShapeError, match="no shape set has"):
        reader.read([np.zeros(wide[0], np.int8), np.zeros(tall[1], np.int64)], False)
    with pytest.raises(FeedShapeError, match=r"\[1, 3, 4, 8\] or \[1, 3, 8, 4\]"):
        reader.read([np.zeros((1, 3, 4, 4), np.int8), np.zeros(tall[1], np.int64)], False)


def test_asynchronous_requests_may_change_their_inputs_unless_told_otherwise() -> None:
    for copied in (True, False):
        device = FakeDevice(1, gated=True)
        assert device.gate is not None
        with device.open(copy_inputs=copied) as session:
            array = feed(1)
            job = session.submit(None, array)
            device.wait_entered()
            array[:] = 5
            device.gate.set()
            assert job.result(120)[0].tolist() == [[2 if copied else 10] * 4]
