from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest
from test_convert_levels import level as level

from anynpu.errors import InputError, ShapeError, TensorTypeError
from anynpu.program import Preprocess, arithmetic
from anynpu.program.convert import convert, image_to_codes, pack_int4, unpack_int4
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec

Array = np.ndarray[Any, Any]
BYTES = (DType.INT4, DType.UINT4, DType.INT8, DType.UINT8)
QUANTIZED = (*BYTES, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32)


# ---- the slow and obvious way: an array of Python-visible codes in the order of the shape, one step after the other ----


def codes_of(memory: Array, spec: TensorSpec) -> Array:
    """The codes in the order of the shape, without padding; four bits unpacked."""
    if spec.dtype.bits == 4:
        memory = unpack_int4(memory, math.prod(spec.memory_shape), signed=spec.dtype is DType.INT4)
    memory = memory.reshape(spec.memory_shape)
    if spec.layout is Layout.NHWC:
        memory = np.moveaxis(memory, -1, 1)
    elif spec.layout is Layout.NC1HWC2:
        memory = np.moveaxis(memory, -1, 2)
        memory = memory.reshape(memory.shape[0], -1, *memory.shape[3:])
    return np.atleast_1d(memory[tuple(slice(0, extent) for extent in spec.shape)])


def memory_of(codes: Array, spec: TensorSpec) -> Array:
    """What memory holds for *codes*, padding at the zero point."""
    fill = 0
    if spec.quantization is not None and not spec.dtype.is_float:
        fill = spec.quantization.zero_points[0] if isinstance(spec.quantization, Affine) else 0
        fill = min(max(fill, spec.dtype.limits[0]), spec.dtype.limits[1])
    codes = codes.reshape(spec.shape)
    memory = np.full(spec.memory_shape, fill, codes.dtype)
    inside = tuple(slice(0, extent) for extent in spec.shape[2:])
    if spec.layout is Layout.NHWC:
        memory[(slice(None), *inside)] = np.moveaxis(codes, 1, -1)
    elif spec.layout is Layout.NC1HWC2:
        for channel in range(spec.shape[1]):
            memory[(slice(None), channel // spec.c2, *inside, channel % spec.c2)] = codes[:, channel]
    else:
        memory[tuple(slice(0, extent) for extent in spec.shape)] = codes
    return pack_int4(memory.astype(np.int8)) if spec.dtype.bits == 4 else memory


def channel_last(array: Array, spec: TensorSpec) -> Array:
    return array if spec.layout is Layout.PLAIN or array.ndim < 2 else np.moveaxis(array, 1, -1)


def channel_back(array: Array, spec: TensorSpec) -> Array:
    return array if spec.layout is Layout.PLAIN or array.ndim < 2 else np.moveaxis(array, -1, 1)


def expected_codes(codes: Array, source: TensorSpec, target: TensorSpec, preprocess: Preprocess | None) -> Array:
    kind = np.dtype(np.int8) if target.dtype is DType.INT4 else target.dtype.storage
    from_quantization = source.quantization if source.dtype in QUANTIZED else None
    to_quantization = target.quantization if target.dtype in QUANTIZED else None
    floats = source.dtype.is_float or target.dtype.is_float
    if preprocess is None and from_quantization is None and to_quantization is None and not floats:
        numbers = codes.astype(object)
        if target.dtype is DType.BOOL:
            return (numbers != 0).astype(bool)
        first, last = target.dtype.limits
        return np.vectorize(lambda x: max(first, min(int(x), last)), otypes=[kind])(numbers)
    if source.dtype is DType.BFLOAT16:
        values = (codes.astype(np.uint32) << 16).view(np.float32)
    elif from_quantization is not None:
        values = channel_back(arithmetic.dequantize(channel_last(codes, source), from_quantization), source)
    else:
        values = codes.astype(np.float32)
    if preprocess is not None:
        # the channel of a pair is that of its image side
        image = source if source.layout is not Layout.PLAIN else target
        mean, std = np.float32(preprocess.mean), np.float32(preprocess.std)
        values = channel_back((channel_last(values, image) - mean) / std, image)
    if target.dtype is DType.FLOAT32:
        return values
    if target.dtype is DType.FLOAT16:
        return values.astype(np.float16)
    if target.dtype is DType.BFLOAT16:
        bits = values.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    if target.dtype is DType.BOOL:
        return values != 0
    if target.dtype in (DType.INT64, DType.UINT64):
        first, last = target.dtype.limits
        return np.vectorize(lambda x: max(first, min(int(np.rint(x)), last)), otypes=[kind])(values)
    quantization = to_quantization or Affine.per_tensor(1.0, 0)
    wide = DType.INT16 if target.dtype.bits == 4 else target.dtype
    result = channel_back(arithmetic.quantize(channel_last(values, target), quantization, wide), target)
    return np.clip(result, *target.dtype.limits).astype(kind)


# ---- random tensors ----


def some_quantization(rng: np.random.Generator, dtype: DType, channels: int) -> Quantization | None:
    if dtype not in QUANTIZED:
        return None
    first, last = dtype.limits
    low, high = max(first, -30000), min(last, 30000)
    choice = int(rng.integers(0, 5))
    scale = float(np.float32(rng.uniform(0.005, 0.4)))
    if choice == 0:
        return None
    if choice == 1:
        return DynamicFixedPoint(int(rng.integers(-1, 7)))
    if choice == 2 or channels == 1:
        return Affine.per_tensor(scale, int(rng.integers(low, high + 1)))
    groups = (1,) * channels if choice == 3 else (channels // 2, channels - channels // 2)
    zeros = tuple(int(zero) for zero in rng.integers(low, high + 1, len(groups)))
    return Affine(tuple(float(s) for s in rng.uniform(0.005, 0.4, len(groups))), zeros, groups)


def some_spec(rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: DType) -> TensorSpec:
    layouts = [Layout.PLAIN] if len(shape) < 2 else list(Layout)
    layout = layouts[int(rng.integers(0, len(layouts)))]
    options: dict[str, int] = {}
    if layout is Layout.NC1HWC2:
        options["c2"] = int(rng.choice([1, 3, 4, 8, 16, 32]))
        if rng.random() < 0.4:
            options["c1"] = -(-shape[1] // options["c2"]) + int(rng.integers(0, 3))
    if layout is not Layout.PLAIN and len(shape) >= 4 and rng.random() < 0.4:
        options["w_stride"], options["h_stride"] = shape[-1] + int(rng.integers(0, 5)), shape[-2] + int(rng.integers(0, 3))
    spec = TensorSpec(name, shape, dtype, layout, **options)
    quantization = some_quantization(rng, dtype, spec.channels)
    return TensorSpec(name, shape, dtype, layout, quantization, **options)


def some_memory(rng: np.random.Generator, spec: TensorSpec) -> Array:
    count = math.prod(spec.memory_shape)
    if spec.dtype.bits == 4:
        return rng.integers(0, 256, spec.nbytes, np.uint8)
    if spec.dtype is DType.BOOL:
        return (rng.random(count) < 0.5).reshape(spec.memory_shape)
    if spec.dtype.is_float:
        values = (rng.normal(size=count) * rng.choice([0.1, 3.0, 300.0])).astype(np.float32)
        values[rng.random(count) < 0.05] = 0.5
        if spec.dtype is DType.BFLOAT16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(spec.memory_shape)
        return values.astype(spec.dtype.storage).reshape(spec.memory_shape)
    first, last = spec.dtype.limits
    small = rng.random() < 0.5
    low, high = (max(first, -200), min(last, 200)) if small else (first, last)
    return rng.integers(low, high, count, spec.dtype.storage, endpoint=True).reshape(spec.memory_shape)


def some_shape(rng: np.random.Generator) -> tuple[int, ...]:
    rank = int(rng.choice([0, 1, 2, 3, 4, 4, 4, 4, 5]))
    limits = (2, 70, 6, 20) if rank == 4 else (3, 12, 4, 5, 6)
    shape = [int(rng.integers(1, limit + 1)) for limit in limits[:rank]]
    if rank == 4 and rng.random() < 0.3:
        shape[1] = 3
    return tuple(shape)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("seed", range(12))
def test_any_tensor_to_any_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for trial in range(70):
        shape = some_shape(rng)
        types = list(DType)
        source = some_spec(rng, "source", shape, types[int(rng.integers(0, len(types)))])
        target = some_spec(rng, "target", shape, types[int(rng.integers(0, len(types)))])
        preprocess = None
        image = source if source.layout is not Layout.PLAIN else target
        if rng.random() < 0.3:
            count = image.channels if rng.random() < 0.7 else 1
            preprocess = Preprocess(
                tuple(float(x) for x in rng.uniform(-3, 130, count)), tuple(float(x) for x in rng.uniform(0.5, 60, count))
            )
        memory = some_memory(rng, source)
        with np.errstate(all="ignore"):
            codes = expected_codes(codes_of(memory, source), source, target, preprocess)
        expected = memory_of(codes, target)
        where = f"trial {trial}: {source} -> {target}, {preprocess}"
        actual = convert(memory, source, target, preprocess=preprocess)
        assert actual.dtype == target.dtype.storage, where
        np.testing.assert_array_equal(actual, expected.view(actual.dtype), err_msg=where)
        # the same from and into raw bytes
        out = np.full(target.nbytes, 0xAA, np.uint8)
        assert convert(memory.reshape(-1).view(np.uint8), source, target, out, preprocess) is out, where
        np.testing.assert_array_equal(out, np.frombuffer(expected.tobytes(), np.uint8), err_msg=where)


IMAGENET = Preprocess((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("layout", [Layout.NHWC, Layout.NCHW, Layout.NC1HWC2])
@pytest.mark.parametrize(
    ("preprocess", "quantization"),
    [
        (Preprocess((0.0,), (255.0,)), Affine.per_tensor(1 / 255, -128)),
        (Preprocess((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), Affine.per_tensor(1.0, 0)),
        (IMAGENET, Affine.per_tensor(0.018658, -14)),
        (IMAGENET, Affine((0.01, 0.03, 0.2), (-100, 4, 90), (1, 1, 1))),
        (Preprocess((127.5,), (127.5,)), Affine.per_tensor(2 / 255, -1)),
        (Preprocess((3.0, 2.0, 1.0), (-58.0, 0.002, 1e6)), Affine.per_tensor(0.02, 11)),
        (None, DynamicFixedPoint(-1)),
        (None, None),
    ],
)
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8, DType.FLOAT16, DType.FLOAT32, DType.INT16])
def test_images_of_all_bytes(
    layout: Layout, preprocess: Preprocess | None, quantization: Quantization | None, dtype: DType
) -> None:
    every = np.arange(256, dtype=np.uint8)
    image = np.stack([every, every[::-1], np.roll(every, 77)], axis=-1).reshape(8, 32, 3)
    quantization = None if dtype.is_float else quantization
    target = TensorSpec("x", (1, 3, 8, 32), dtype, layout, quantization, c2=8 if layout is Layout.NC1HWC2 else 0, w_stride=40)
    values = image.astype(np.float32)
    if preprocess is not None:
        values = (values - np.float32(preprocess.mean)) / np.float32(preprocess.std)
    if dtype.is_float:
        with np.errstate(over="ignore"):
            codes = values.astype(dtype.storage)
    else:
        codes = arithmetic.quantize(values, quantization or Affine.per_tensor(1.0, 0), dtype)
    expected = memory_of(np.moveaxis(codes, -1, 0)[None], target)
    np.testing.assert_array_equal(image_to_codes(image, target, preprocess), expected)
    np.testing.assert_array_equal(image_to_codes(image[None], target, preprocess), expected)


def test_hot_image_paths_need_no_table() -> None:
    """The straight line is exact where it is used: over many random means, stds and scales all 256 bytes agree with the arithmetic."""
    rng = np.random.default_rng(9)
    every = np.arange(256, dtype=np.uint8).reshape(1, 256, 1)
    for _ in range(150):
        preprocess = Preprocess((float(rng.uniform(0, 255)),), (float(rng.uniform(0.5, 255)),))
        scale = float(np.float32(rng.uniform(0.3, 3) / preprocess.std[0]))
        quantization = Affine.per_tensor(scale, int(rng.integers(-128, 128)))
        target = TensorSpec("x", (1, 1, 1, 256), DType.INT8, Layout.NHWC, quantization)
        values = (every.astype(np.float32) - np.float32(preprocess.mean)) / np.float32(preprocess.std)
        expected = arithmetic.quantize(values, quantization, DType.INT8)
        np.testing.assert_array_equal(image_to_codes(every, target, preprocess)[0], expected)


def test_padding_becomes_the_zero_point_and_junk_of_the_source_does_not_show() -> None:
    source = TensorSpec(
        "x", (1, 3, 2, 2), DType.INT8, Layout.NC1HWC2, Affine.per_tensor(0.5, 9), c2=4, c1=2, w_stride=3, h_stride=4
    )
    target = TensorSpec(
        "x", (1, 3, 2, 2), DType.INT8, Layout.NC1HWC2, Affine.per_tensor(0.25, -5), c2=4, c1=3, w_stride=5, h_stride=3
    )
    memory = np.full(source.memory_shape, 77, np.int8)
    memory[0, 0, :2, :2, :3] = 9
    assert (convert(memory, source, target) == -5).all()


def test_equal_scales_move_codes_untouched() -> None:
    codes = np.arange(-128, 128, dtype=np.int8).reshape(1, 16, 4, 4)
    quantization = Affine.per_tensor(1 / 3, 100)
    source = TensorSpec("x", (1, 16, 4, 4), DType.INT8, Layout.NCHW, quantization)
    target = TensorSpec("x", (1, 16, 4, 4), DType.INT8, Layout.NHWC, quantization)
    np.testing.assert_array_equal(convert(codes, source, target), codes.transpose(0, 2, 3, 1))


def test_float16_outputs_may_carry_the_vendors_trivial_quantisation() -> None:
    source = TensorSpec("x", (4,), DType.FLOAT16, quantization=Affine.per_tensor(1.0, 0))
    target = TensorSpec("x", (4,), DType.FLOAT32)
    assert convert(np.array([1, 2, 3, 4], np.float16), source, target).tolist() == [1, 2, 3, 4]


def test_out_may_be_the_source_itself() -> None:
    source = TensorSpec("x", (1, 3, 4, 4), DType.INT8, Layout.NCHW)
    target = TensorSpec("x", (1, 3, 4, 4), DType.INT8, Layout.NHWC)
    memory = np.arange(48, dtype=np.int8)
    expected = memory.reshape(3, 4, 4).transpose(1, 2, 0).ravel().tolist()
    convert(memory, source, target, out=memory)
    assert memory.tolist() == expected


def test_other_threads_run_during_a_conversion() -> None:
    """The GIL is free: a thread that only looks at the clock has its turn in the middle of a conversion."""
    shape = (1, 64, 512, 512)
    source, target = TensorSpec("x", shape, DType.INT8, Layout.NCHW), TensorSpec("x", shape, DType.INT8, Layout.NHWC)
    memory, out = np.zeros(shape, np.int8), np.zeros(target.memory_shape, np.int8)
    stamps: list[float] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            stamps.append(time.perf_counter())
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    inside = False
    for _ in range(500):  # a busy machine may leave the thread without a turn, even many times
        stamps.clear()
        started = time.perf_counter()
        convert(memory, source, target, out)
        ended = time.perf_counter()
        quarter = (ended - started) / 4
        inside = any(started + quarter < stamp < ended - quarter for stamp in list(stamps))
        if inside:
            break
    stop.set()
    thread.join()
    assert inside


CODES = TensorSpec("x", (1, 3, 4, 4), DType.INT8, Layout.NHWC, Affine.per_tensor(0.1, 0))
FLOATS = TensorSpec("x", (1, 3, 4, 4), DType.FLOAT32, Layout.NCHW)
DATA = np.zeros((1, 3, 4, 4), np.float32)
PICTURE = np.zeros((4, 4, 3), np.uint8)


def spec(**changes: Any) -> TensorSpec:
    options: dict[str, Any] = {"name": "x", "shape": (1, 3, 4, 4), "dtype": DType.INT8, "layout": Layout.NHWC} | changes
    return TensorSpec(**options)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: convert(DATA.tolist(), FLOATS, CODES), TensorTypeError),
        (lambda: convert(DATA.astype(np.float64), FLOATS, CODES), TensorTypeError),
        (lambda: convert(DATA[0], FLOATS, CODES), ShapeError),
        (lambda: convert(DATA.transpose(0, 2, 3, 1), FLOATS, CODES), ShapeError),
        (lambda: convert(np.zeros(47, np.float32), FLOATS, CODES), ShapeError),
        (lambda: convert(DATA, FLOATS, spec(shape=(1, 3, 4, 5))), ShapeError),
        (lambda: convert(DATA, FLOATS, spec(layout=Layout.NC1HWC2)), ShapeError),
        (lambda: convert(DATA, FLOATS, spec(layout=Layout.NC1HWC2, c2=2, c1=1)), ShapeError),
        (lambda: convert(DATA, FLOATS, spec(quantization=Affine((1.0, 1.0), (0, 0), (1, 1)))), ShapeError),
        (
            lambda: convert(PICTURE[None], spec(dtype=DType.UINT8), spec(quantization=Affine((1.0, 1.0), (0, 0), (1, 1)))),
            ShapeError,
        ),
        (lambda: convert(DATA, FLOATS, spec(dtype=DType.FLOAT16, quantization=Affine.per_tensor(0.5, 0))), TensorTypeError),
        (lambda: convert(DATA, FLOATS, spec(dtype=DType.INT64, quantization=Affine.per_tensor(0.5, 0))), TensorTypeError),
        (lambda: convert(DATA, FLOATS, CODES, np.empty((1, 4, 4, 3), np.uint8)), TensorTypeError),
        (lambda: convert(DATA, FLOATS, CODES, np.empty((1, 3, 4, 4), np.int8)), ShapeError),
        (lambda: convert(DATA, FLOATS, CODES, np.empty((1, 4, 4, 6), np.int8)[..., ::2]), ShapeError),
        (lambda: convert(DATA, FLOATS, CODES, np.empty(96, np.uint8)[::2]), TensorTypeError),
        (lambda: convert(DATA, FLOATS, CODES, [0] * 48), TensorTypeError),
        (lambda: convert(np.zeros(24, np.uint8), spec(shape=(24,), dtype=DType.INT4, layout=Layout.PLAIN), CODES), ShapeError),
        (lambda: convert(np.zeros(24), spec(shape=(24,), dtype=DType.INT8, layout=Layout.NHWC), CODES), ShapeError),
        (lambda: convert(DATA, FLOATS, CODES, preprocess=Preprocess((0.0, 0.0), (1.0,))), ShapeError),
        (lambda: convert(DATA, FLOATS, CODES, preprocess=Preprocess((0.0,), (0.0,))), InputError),
        (lambda: convert(DATA, FLOATS, CODES, preprocess=Preprocess((math.nan,), (1.0,))), InputError),
        (lambda: image_to_codes(PICTURE.astype(np.int8), CODES), TensorTypeError),
        (lambda: image_to_codes([1, 2], CODES), TensorTypeError),
        (lambda: image_to_codes(PICTURE[:3], CODES), ShapeError),
        (lambda: image_to_codes(PICTURE.transpose(2, 0, 1), CODES), ShapeError),
        (lambda: image_to_codes(PICTURE, spec(shape=(3, 4, 4), layout=Layout.PLAIN)), ShapeError),
    ],
)
def test_what_does_not_fit_is_a_typed_error_with_a_hint(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.hint  # type: ignore[attr-defined]
