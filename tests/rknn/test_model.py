"""RknnModel: load, run, read."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import DeviceClosed, DeviceUnavailable, ModelError, ShapeError, TensorNameError, TensorTypeError
from anynpu.npu import Device
from anynpu.program import Model
from anynpu.rknn import RknnModel, SoftwareLibrary, dequantize_affine, nc1hwc2_to_flat

from .conftest import Open
from .support import CHANNELS, HEIGHT, WIDTH, Array, features_model, file_bytes, picture_model, pixels

CHIPS = ["rk3588", "rk3566", "rk3562", "rv1106", "rv1103b"]


def codes_of(model: Model, picture: Array) -> list[Array]:
    with Device(model.chip) as device:
        return device.load(model).context().run([picture], layout="nhwc", dequantize=False)


def maps_of(model: RknnModel, array: Array) -> Array:
    """NC1HWC2 to the model's order of axes."""
    n, c1, h, w, c2 = model.output_attrs()[0].shape
    return array.reshape(n, c1, h, w, c2).transpose(0, 1, 4, 2, 3).reshape(n, c1 * c2, h, w)[:, :CHANNELS]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_picture(open_software: Open, tmp_path: Path, chip: str, as_bytes: bool) -> None:
    path = tmp_path / "model.rknn"
    path.write_bytes(file_bytes(picture_model(chip)))
    with RknnModel.load(path, device=open_software(chip)) as model:
        assert model.input_attr().shape == (1, HEIGHT, WIDTH, 3)
        for seed in (0, 1):
            picture = pixels(seed=seed)
            model.run(picture.tobytes() if as_bytes else picture[0])
            expected = codes_of(picture_model(chip), picture)
            np.testing.assert_array_equal(maps_of(model, model.output_raw(0)), expected[0])
            np.testing.assert_array_equal(model.output_raw(1), expected[1].reshape(-1))
            for index in (0, 1):
                info = model.output_attrs()[index]
                values = (model.output_raw(index).astype(np.float32) - info.zp) * np.float32(info.scale)
                assert model.output_f32(index).dtype == np.float32
                np.testing.assert_array_equal(model.output_f32(index), values)


def test_a_float_model(library: SoftwareLibrary) -> None:
    compiled = picture_model(dtype="fp16")
    with RknnModel.from_bytes(compiled, device=library) as model, Device("rk3588") as device:
        model.run(pixels())
        expected = device.load(compiled).context().run([pixels()], layout="nhwc")
        assert model.output_raw(0).dtype == np.float16
        np.testing.assert_array_equal(maps_of(model, model.output_f32(0)), expected[0])


def test_inputs_that_are_no_pictures(library: SoftwareLibrary) -> None:
    compiled = features_model()
    with RknnModel.from_bytes(file_bytes(compiled), device=library) as model:
        info = model.input_attr(0)
        assert info.layout == "nc1hwc2"
        random = np.random.default_rng(1)
        maps, vector = random.integers(-128, 128, (1, 4, 6, 20), np.int8), random.integers(-128, 128, (1, 24), np.int8)
        blocks = np.zeros(info.shape, np.int8)
        for channel in range(20):
            blocks[0, channel // 16, :, :, channel % 16] = maps[0, :, :, channel]
        model.run(blocks, vector)
        first = model.output_raw(0).copy()
        model.run(blocks.tobytes(), vector.tobytes())
        np.testing.assert_array_equal(model.output_raw(0), first)
        with Device("rk3588") as device:
            context = device.load(compiled).context()
            context.write("features", maps, layout="nhwc", raw=True)
            context.write("vector", vector, raw=True)
            context.execute()
            np.testing.assert_array_equal(model.output_raw(1), context.read(compiled.outputs[1].name, dequantize=False)[0])


def test_raw_outputs_are_views(library: SoftwareLibrary) -> None:
    with RknnModel.from_bytes(picture_model(), device=library) as model:
        model.run(pixels())
        raw = model.output_raw(0)
        before = raw.copy()
        assert np.shares_memory(raw, model.output_raw(0))
        model.run(pixels(seed=3))
        assert not np.array_equal(raw, before)
    gc.collect()
    kept = raw.copy()  # a view that is still held keeps its memory
    np.testing.assert_array_equal(kept, raw)


def test_inputs_that_do_not_fit(library: SoftwareLibrary) -> None:
    with RknnModel.from_bytes(picture_model(), device=library) as model:
        with pytest.raises(ShapeError, match=r"takes 360 elements \(\[1, 6, 20, 3\]\), got 359"):
            model.run(bytes(359))
        with pytest.raises(TensorTypeError, match="takes uint8, got float32"):
            model.run(pixels().astype(np.float32))
        with pytest.raises(TensorNameError, match="2 inputs given"):
            model.run(pixels(), pixels())
        for index in (-1, 2):
            with pytest.raises(TensorNameError, match="there is no output"):
                model.output_raw(index)
            with pytest.raises(TensorNameError, match="there is no output"):
                model.output_f32(index)
        with pytest.raises(TensorNameError, match="there is no input 1"):
            model.input_attr(1)


def test_a_closed_model(library: SoftwareLibrary) -> None:
    memories = len(library.memories)
    model = RknnModel.from_bytes(picture_model(), device=library)
    assert "software NPU" in repr(model)
    model.close()
    model.close()
    assert len(library.memories) == memories
    for use in (lambda: model.run(pixels()), lambda: model.output_raw(0), lambda: model.output_f32(0)):
        with pytest.raises(DeviceClosed):
            use()


def test_models_that_cannot_be_loaded(library: SoftwareLibrary, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        RknnModel.load(tmp_path / "missing.rknn", device=library)
    with pytest.raises(DeviceUnavailable, match="cannot be loaded"):
        RknnModel.load_with_lib(tmp_path / "missing.rknn", tmp_path / "librknnrt.so")


def test_helpers_of_the_crate_give_what_the_arrays_hold(open_software: Open) -> None:
    with RknnModel.from_bytes(picture_model("rv1106"), device=open_software("rv1106")) as model:
        model.run(pixels())
        info, raw = model.output_attrs()[0], model.output_raw(0)
        assert (info.n_elems, info.format, info.data_type) == (info.elements, info.fmt, info.type)
        layout = model.output_nc1hwc2_layout(0)
        _, c1, h, w, c2 = info.shape
        flat = nc1hwc2_to_flat(data=raw, c1=c1, h=h, w=w, c2=c2, total_channels=CHANNELS)
        np.testing.assert_array_equal(flat, maps_of(model, raw).reshape(-1))
        offsets = layout.precompute_channel_offsets(2, CHANNELS - 2)
        for prediction in range(layout.num_predictions()):
            base = prediction * layout.prediction_stride()
            for channel, offset in enumerate(offsets, 2):
                assert offset == layout.channel_offset(channel)
                assert raw[base + offset] == flat[channel * h * w + prediction]
        values = dequantize_affine(data=flat, zp=info.zp, scale=info.scale)
        assert layout.dequant(int(flat[0])) == pytest.approx(float(values[0]))
        half = float(np.median(values))
        np.testing.assert_array_equal(flat >= layout.threshold_i8(half), values >= np.float32(half - 1e-6))
        assert (layout.c2(), layout.zp(), layout.scale()) == (c2, info.zp, info.scale)


def test_bytes_and_errors_as_python_has_them(tmp_path: Path) -> None:
    with RknnModel.load_from_bytes(file_bytes(picture_model("rv1106"))) as model:
        model.run(pixels())
        with pytest.raises(IndexError):
            model.output_raw(9)
        with pytest.raises(IndexError):
            model.input_attr(1)
        with pytest.raises(ShapeError, match="NC1HWC2"):
            model.output_nc1hwc2_layout(1)
    with pytest.raises(OSError, match="cannot be read"):
        RknnModel.load(tmp_path / "missing.rknn")
    with pytest.raises(DeviceUnavailable):
        RknnModel.load_from_bytes(file_bytes(picture_model("rv1106")), tmp_path / "librknnmrt.so")
