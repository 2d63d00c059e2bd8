from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_convert_levels import level as level

from anynpu.errors import ShapeError, TensorTypeError
from anynpu.program import convert

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.usefixtures("level")
TYPES = [np.int8, np.uint8, np.bool_, np.float16, np.uint16, np.float32, np.int32, np.int64, np.float64]


def stored(image: Array, layout: str, c1: int, c2: int, rows: int, columns: int, fill: Any) -> Array:
    """An NCHW *image* in a layout, one element after the other."""
    n, c, h, w = image.shape
    shapes = {"nchw": (n, c, rows, columns), "nhwc": (n, rows, columns, c), "nc1hwc2": (n, c1, rows, columns, c2)}
    result = np.full(shapes[layout], fill, image.dtype)
    for channel in range(c):
        if layout == "nchw":
            result[:, channel, :h, :w] = image[:, channel]
        elif layout == "nhwc":
            result[:, :h, :w, channel] = image[:, channel]
        else:
            result[:, channel // c2, :h, :w, channel % c2] = image[:, channel]
    return result


def some(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    return (
        rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(np.uint8).reshape(-1).view(dtype).reshape(shape)
    )


def images(rng: np.random.Generator, count: int) -> list[tuple[int, int, int, int]]:
    fixed = [
        (1, 1, 1, 1),
        (1, 3, 5, 7),
        (2, 16, 4, 4),
        (1, 255, 6, 5),
        (1, 80, 3, 40),
        (1, 3, 40, 33),
        (2, 4, 9, 31),
        (1, 70, 1, 1),
    ]
    drawn = [
        (int(rng.integers(1, 3)), int(rng.integers(1, 140)), int(rng.integers(1, 12)), int(rng.integers(1, 90)))
        for _ in range(count)
    ]
    return fixed + drawn


@pytest.mark.parametrize("dtype", TYPES)
def test_all_pairs_with_padding_of_every_kind(dtype: Any) -> None:
    rng = np.random.default_rng(np.dtype(dtype).num)
    for shape in images(rng, 12):
        image = some(rng, shape, np.uint8 if dtype is np.bool_ else dtype)
        image = (image & 1).astype(np.bool_) if dtype is np.bool_ else image
        image = np.nan_to_num(image) if image.dtype.kind == "f" else image
        _, c, h, w = shape
        for c2, extra in ((int(rng.choice([2, 4, 8, 16, 32])), int(rng.integers(0, 3))), (int(rng.integers(1, 40)), 0)):
            c1 = -(-c // c2) + extra
            pads = [int(pad) for pad in rng.integers(0, 5, 4)] if rng.random() < 0.6 else [0, 0, 0, 0]
            in_rows, in_columns, rows, columns = h + pads[0], w + pads[1], h + pads[2], w + pads[3]
            options = {"height": h, "width": w, "h_stride": rows, "w_stride": columns, "fill": 1}
            # what the source holds in its padding must not show
            sources = {name: stored(image, name, c1, c2, in_rows, in_columns, 0) for name in ("nchw", "nhwc", "nc1hwc2")}
            targets = {name: stored(image, name, c1, c2, rows, columns, 1) for name in ("nchw", "nhwc", "nc1hwc2")}
            for name, actual in (
                ("nhwc", convert.nchw_to_nhwc(sources["nchw"], **options)),
                ("nchw", convert.nhwc_to_nchw(sources["nhwc"], **options)),
                ("nc1hwc2", convert.nchw_to_nc1hwc2(sources["nchw"], c2, c1=c1, **options)),
                ("nc1hwc2", convert.nhwc_to_nc1hwc2(sources["nhwc"], c2, c1=c1, **options)),
                ("nchw", convert.nc1hwc2_to_nchw(sources["nc1hwc2"], c, **options)),
                ("nhwc", convert.nc1hwc2_to_nhwc(sources["nc1hwc2"], c, **options)),
            ):
                np.testing.assert_array_equal(actual, targets[name], err_msg=f"{shape} {c2=} {c1=} {pads=} to {name}")


def test_blocks_default_to_what_the_channels_need() -> None:
    image = np.arange(2 * 13 * 6, dtype=np.int8).reshape(2, 13, 2, 3)
    packed = convert.nchw_to_nc1hwc2(image, 8, fill=-7)
    assert packed.shape == (2, 2, 2, 3, 8)
    assert (packed[:, 1, :, :, 5:] == -7).all()
    np.testing.assert_array_equal(convert.nc1hwc2_to_nchw(packed, 13), image)


def test_float_fill() -> None:
    packed = convert.nchw_to_nc1hwc2(np.zeros((1, 1, 1, 1), np.float16), 4, fill=0.5)
    assert packed.ravel().tolist() == [0.0, 0.5, 0.5, 0.5]


def test_flat_output_of_a_device_buffer() -> None:
    rng = np.random.default_rng(8)
    c1, h, w, c2, channels = 6, 5, 4, 16, 80
    raw = rng.integers(-128, 128, c1 * h * w * c2 + 100, np.int8)
    expected = [raw[((c // c2 * h + y) * w + x) * c2 + c % c2] for c in range(channels) for y in range(h) for x in range(w)]
    for given in (raw, raw.tobytes(), memoryview(raw)):
        flat = convert.nc1hwc2_to_flat(given, c1, h, w, c2, channels)
        assert flat.dtype == np.int8
        assert flat.shape == (channels * h * w,)
        assert flat.tolist() == expected
    values = convert.dequantize_affine(flat, -58, 0.117659)
    assert values[81] == np.float32(np.float32(int(flat[81]) + 58) * np.float32(0.117659))


def test_empty_batch() -> None:
    assert convert.nchw_to_nhwc(np.zeros((0, 3, 4, 4), np.int8)).shape == (0, 4, 4, 3)


def test_out_and_overlap() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(1, 3, 4, 4)
    expected = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    memory = image.copy()
    result = convert.nchw_to_nhwc(memory, out=memory.reshape(1, 4, 4, 3))
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(memory.ravel(), expected.ravel())


IMAGE = np.zeros((1, 3, 4, 4), np.int8)
BLOCKS = np.zeros((1, 2, 4, 4, 8), np.int8)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: convert.nchw_to_nhwc([1, 2]), TensorTypeError),
        (lambda: convert.nchw_to_nhwc(np.zeros((1, 1, 1, 1), np.complex128)), TensorTypeError),
        (lambda: convert.nchw_to_nhwc(IMAGE[0]), ShapeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, width=5), ShapeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, height=-1), ShapeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, w_stride=3), ShapeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, h_stride=-4), ShapeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, fill=300), TensorTypeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, out=np.empty((1, 3, 4, 4), np.int8)), ShapeError),
        (lambda: convert.nchw_to_nhwc(IMAGE, out=np.empty((1, 4, 4, 3), np.uint8)), TensorTypeError),
        (lambda: convert.nchw_to_nc1hwc2(IMAGE, 0), ShapeError),
        (lambda: convert.nchw_to_nc1hwc2(IMAGE, 2, c1=1), ShapeError),
        (lambda: convert.nc1hwc2_to_nchw(BLOCKS, 17), ShapeError),
        (lambda: convert.nc1hwc2_to_nchw(BLOCKS, -1), ShapeError),
        (lambda: convert.nc1hwc2_to_nchw(IMAGE, 3), ShapeError),
        (lambda: convert.nc1hwc2_to_flat(np.zeros(10, np.int8), 1, 1, 1, 16, 3), ShapeError),
        (lambda: convert.nc1hwc2_to_flat(np.zeros(10, np.int8), 1, 1, 0, 16, 3), ShapeError),
    ],
)
def test_what_does_not_fit_is_a_typed_error_with_a_hint(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.hint  # type: ignore[attr-defined]
