"""The Context class: numpy in and out, errors as exceptions, memory as arrays."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from npu.builders import GatedEngine, Thread, dense_chain

from anynpu.errors import (
    AnynpuError,
    DeviceClosed,
    DeviceError,
    DeviceMemoryError,
    DeviceTimeout,
    ModelError,
    ParameterError,
    ShapeError,
    TensorNameError,
    TensorTypeError,
    UnsupportedCall,
)
from anynpu.npu import Device
from anynpu.rknn import Context, Flag, SoftwareLibrary, rknn_core_mask, rknn_tensor_format, rknn_tensor_type

from .conftest import Open
from .support import (
    CHANNELS,
    HEIGHT,
    WIDTH,
    Array,
    dynamic_model,
    features_model,
    file_bytes,
    picture_model,
    pixels,
    resolution_model,
)
from .test_calls_running import expire


@pytest.fixture
def context(library: SoftwareLibrary) -> Iterator[Context]:
    with Context(picture_model(), device=library) as context:
        yield context


def wanted() -> list[Array]:
    with Device("rk3588") as device:
        return device.load(picture_model()).context().run([pixels()], layout="nhwc")


# opening


def test_models_from_everywhere(library: SoftwareLibrary, tmp_path: Path) -> None:
    data = file_bytes(picture_model())
    path = tmp_path / "model.rknn"
    path.write_bytes(data)
    bundle = tmp_path / "bundle"
    bundle.write_bytes(b"1234" + data + b"5")
    expected = wanted()
    for context in (
        Context(path, device=library),
        Context(str(path), device=library),
        Context(data, device=library),
        Context(picture_model(), device=library),
        Context(bundle, device=library, offset=4, size=len(data)),
    ):
        with context:
            for got, want in zip(context.run([pixels()]), expected, strict=True):
                np.testing.assert_array_equal(got, want)


def test_the_default_is_the_software_npu_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANYNPU_DEVICE", "ANYNPU_RKNN_LIBRARY", "ANYNPU_VIP_LIBRARY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ANYNPU_DEVICE", "sim")
    with Context(picture_model("rk3566")) as context:
        assert context.library.description == "software NPU, the chip of each model"
        with pytest.raises(UnsupportedCall) as caught:
            context.set_core_mask(1)
    assert (caught.value.code, caught.value.call) == (-13, "rknn_set_core_mask")
    assert str(caught.value) == "rknn_set_core_mask is not available on rk3566 (RKNN_ERR_TARGET_PLATFORM_UNMATCH, -13)"


def test_models_that_cannot_be_used(library: SoftwareLibrary, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        Context(tmp_path / "missing.rknn", device=library)
    assert (caught.value.code, caught.value.call, caught.value.code_name) == (-6, "rknn_init", "RKNN_ERR_MODEL_INVALID")
    with pytest.raises(ModelError) as caught:
        Context(picture_model("rk3566"), device=library)
    assert caught.value.code == -13
    assert caught.value.hint == "compile it with target='rk3588'"
    with pytest.raises(ParameterError, match="the model is empty"):
        Context(b"", device=library)
    with pytest.raises(ParameterError, match="have bits without a meaning"):
        Context(picture_model(), device=library, flags=1 << 30)


def test_sharing(library: SoftwareLibrary) -> None:
    with Context(resolution_model(8), device=library, flags=Flag.RKNN_FLAG_ENABLE_SRAM) as first:
        second = Context(file_bytes(resolution_model(12), True), weights_from=first, sram_from=first)
        assert second.library is library
        free = first.memory_sizes.sram_free
        third = Context(resolution_model(8), sram_from=first)
        assert third.library is library
        assert third.memory_sizes.sram_free == free
        with pytest.raises(ParameterError, match="cannot come from two contexts"):
            Context(resolution_model(8), weights_from=first, sram_from=second)
    (result,) = second.run([np.ones((12, 12, 3), np.float32)])
    assert result.shape == (1, 8, 10, 10)
    second.close()
    third.close()


# what it reports


def test_what_a_context_tells(context: Context) -> None:
    (image,) = context.inputs
    assert (image.name, image.shape, image.layout, image.dtype) == ("image", (1, HEIGHT, WIDTH, 3), "nhwc", np.int8)
    assert image.type == rknn_tensor_type.RKNN_TENSOR_INT8
    maps, scores = context.outputs
    assert (maps.shape, maps.fmt, maps.size) == ((1, CHANNELS, HEIGHT, WIDTH), rknn_tensor_format.RKNN_TENSOR_NCHW, 2400)
    assert (scores.shape, scores.layout) == ((1, 10), "undefined")
    assert context.native_outputs[0].layout == "nc1hwc2"
    assert context.native_inputs[0].w_stride == 32
    assert context.nhwc_inputs[0].layout == "nhwc"
    assert context.custom_string == "RGB"
    assert context.version.driver == "0.9.8"
    assert context.memory_sizes.weights > 0 < context.memory_sizes.internal
    assert context.memory_sizes.sram > 0
    assert "software NPU, rk3588, 3 cores" in repr(context)


def test_what_a_chip_lacks(context: Context, open_software: Open) -> None:
    with pytest.raises(ParameterError):
        _ = context.device_memory
    with pytest.raises(ModelError, match="has no dynamic shapes"):
        _ = context.shape_ranges
    with pytest.raises(AnynpuError, match="the model has not run yet"):
        _ = context.run_microseconds
    with pytest.raises(ParameterError, match="has no NHWC form"):
        _ = context.nhwc_outputs  # of the scores
    with Context(picture_model("rv1106"), device=open_software("rv1106")) as small:
        assert small.device_memory[1] >= small.memory_sizes.internal
        assert small.perf_detail == ""
        with pytest.raises(UnsupportedCall):
            small.run([pixels()])


def test_times(library: SoftwareLibrary) -> None:
    with Context(picture_model(), device=library, flags=Flag.RKNN_FLAG_COLLECT_PERF_MASK) as context:
        context.run([pixels()])
        assert context.run_microseconds > 0
        assert f"Total Operator Elapsed Per Frame Time(us): {context.run_microseconds}" in context.perf_detail


# running


@pytest.mark.parametrize("kind", ["uint8", "float32", "float16"])
def test_both_layouts(context: Context, kind: str) -> None:
    picture = pixels().astype(kind)
    for results in (
        context.run([picture]),
        context.run(picture),
        context.run({"image": picture}),
        context.run([picture[0]]),
        context.run([picture.transpose(0, 3, 1, 2)], layout="nchw"),
        context.run([picture.tolist()]) if kind == "float32" else context.run([picture]),
    ):
        for got, want in zip(results, wanted(), strict=True):
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, want)


def test_codes_instead_of_numbers(context: Context) -> None:
    values, codes = context.run([pixels()]), context.run([pixels()], want_float=False)
    for info, value, code in zip(context.outputs, values, codes, strict=True):
        assert code.dtype == np.int8
        np.testing.assert_array_equal(value, (code.astype(np.float32) - info.zp) * np.float32(info.scale))


def test_results_are_the_caller_s(context: Context) -> None:
    first = context.run([pixels()])
    kept = [array.copy() for array in first]
    context.run([pixels(seed=5)])
    for array, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_inputs_that_do_not_fit(context: Context) -> None:
    with pytest.raises(ShapeError, match="takes") as caught:
        context.run([pixels().transpose(0, 3, 1, 2)])
    assert "layout='nchw'" in caught.value.hint
    with pytest.raises(ShapeError, match="takes"):
        context.run([np.zeros((1, 4, 4, 3), np.uint8)])
    with pytest.raises(TensorTypeError, match="does not take"):
        context.run([pixels().astype(np.complex64)])
    with pytest.raises(TensorTypeError, match="does not take >f4"):
        context.run([pixels().astype(">f4")])
    with pytest.raises(TensorNameError, match="there is no input 'picture'"):
        context.run({"picture": pixels()})
    with pytest.raises(TensorNameError, match="2 inputs for a model with 1"):
        context.run([pixels(), pixels()])
    with Context(features_model(), device=context.library) as other, pytest.raises(TensorNameError, match="'vector' is missing"):
        other.run({"features": np.zeros((1, 4, 6, 20), np.float32)})
    with pytest.raises(ParameterError, match="has no data") as missing:
        context.execute()
    assert (missing.value.code, missing.value.call) == (-8, "rknn_run")
    with pytest.raises(ParameterError, match="has not run yet"):
        context.get_outputs()


def test_cores_and_duplicates(context: Context) -> None:
    expected = context.run([pixels()])
    context.set_core_mask(rknn_core_mask.RKNN_NPU_CORE_0_1)
    context.set_batch_cores(2)
    with pytest.raises(ParameterError, match="core mask 5 is not possible") as caught:
        context.set_core_mask(5)
    assert "possible are" in caught.value.hint
    copy = context.duplicate()
    threads = [Thread(lambda entry=entry: [entry.run([pixels()]) for _ in range(20)]) for entry in (context, copy)]
    for thread in threads:
        for results in thread.finish():
            for got, want in zip(results, expected, strict=True):
                np.testing.assert_array_equal(got, want)
    context.close()
    np.testing.assert_array_equal(copy.run([pixels()])[0], expected[0])
    copy.close()


def test_dynamic_shapes(library: SoftwareLibrary) -> None:
    with Context(dynamic_model(), device=library) as context:
        assert [entry.shapes for entry in context.shape_ranges] == [((1, 8, 8, 3), (1, 12, 16, 3)), ((1, 4), (1, 6))]
        with pytest.raises(AnynpuError, match="no shapes are set"):
            _ = context.current_inputs
        for shapes in ({"image": (1, 12, 16, 3), "vector": (1, 6)}, [(1, 8, 8, 3), (1, 4)]):
            context.set_shapes(shapes)
            chosen = list(shapes.values()) if isinstance(shapes, dict) else shapes
            assert [info.shape for info in context.inputs] == [info.shape for info in context.current_inputs] == chosen
            results = context.run([np.zeros(shape, np.float32) for shape in chosen])
            assert results[0].shape == (1, 4, *chosen[0][1:3]) == context.outputs[0].shape == context.current_outputs[0].shape
            memory = context.bind_input("image")
            assert memory.size == context.current_native_inputs[0].size_with_stride
            assert context.current_native_outputs[0].layout == "nc1hwc2"
        with pytest.raises(ParameterError, match="was not compiled for"):
            context.set_shapes([(1, 9, 9, 3), (1, 4)])


# frames


class Gate:
    """A context whose layers wait for a gate."""

    def __init__(self, open_software: Open) -> None:
        self.engine = GatedEngine()
        self.context = Context(dense_chain(layers=3), device=open_software("rk3588", engine=self.engine))
        self.context.set_inputs([np.zeros((1, 8), np.int8)])


@pytest.fixture
def gate(open_software: Open) -> Iterator[Gate]:
    entry = Gate(open_software)
    yield entry
    entry.engine.gate.set()
    entry.context.close()


def test_frames(gate: Gate) -> None:
    context = gate.context
    assert [context.execute(block=False), context.execute(block=False), context.execute(block=False, frame=9)] == [1, 2, 9]
    with pytest.raises(DeviceTimeout) as caught:
        context.wait(1, timeout=0.01)
    assert (caught.value.code, caught.value.call) == (-2, "rknn_wait")
    gate.engine.gate.set()
    assert (context.wait(1), context.wait(), context.wait(9, timeout=120)) == (1, 9, 9)
    with pytest.raises(ParameterError, match="no frame 5 was started"):
        context.wait(5)
    (result,) = context.get_outputs(want_float=False)
    assert result.shape == (1, 8)


def test_time_limits(gate: Gate) -> None:
    runner = Thread(lambda: gate.context.execute(timeout=0.01))
    expire(runner, gate.engine, 0.02)
    with pytest.raises(DeviceTimeout) as caught:
        runner.finish()
    assert (caught.value.code, caught.value.call) == (-2, "rknn_run")
    gate.context.execute(timeout=120)


def test_closing_during_a_run(gate: Gate) -> None:
    runner = Thread(gate.context.execute)
    gate.engine.wait_entered()
    closer = Thread(gate.context.close)
    gate.engine.wait_cancelled()
    gate.engine.gate.set()
    closer.finish()
    with pytest.raises(DeviceClosed):
        runner.finish()
    assert len(gate.engine.begun) == 1


# memory


def test_memory_is_an_array(context: Context) -> None:
    memory = context.memory(100)
    assert (memory.size, memory.array().shape, memory.array(np.int32).shape) == (100, (100,), (25,))
    memory.array(np.uint8, (2, 3))[1, 2] = 7
    assert memory.array()[5] == 7
    assert memory.fd >= 0
    assert memory.physical_address
    with mmap.mmap(memory.fd, 100) as mapping:
        assert mapping[5] == 7
    with pytest.raises(DeviceMemoryError, match="are not inside"):
        memory.array(np.uint8, (101,))
    for direction in ("to_device", "from_device", "both"):
        memory.sync(direction)  # type: ignore[arg-type]
    memory.close()
    memory.close()
    with pytest.raises(DeviceClosed, match="the memory was closed"):
        memory.array()
    assert "closed" in repr(memory)


def test_an_array_keeps_its_memory(context: Context) -> None:
    array = context.memory(4096).array(np.int32)
    gc.collect()
    others = [context.memory(4096) for _ in range(4)]
    array[:] = 3
    assert (array == 3).all()
    assert all(not other.array().any() for other in others)


def test_memory_that_is_refused(context: Context) -> None:
    with pytest.raises(ParameterError, match="memory of 0 bytes") as caught:
        context.memory(0)
    assert (caught.value.code, caught.value.call) == (-5, "rknn_create_mem")
    with pytest.raises(DeviceMemoryError, match="do not fit") as large:
        context.memory(1 << 33, flags=1)
    assert large.value.code == -4
    with pytest.raises(DeviceError, match="cannot be mapped"):
        context.memory_from_fd(-1, 10)
    with pytest.raises(ParameterError, match="physical address"):
        context.memory_from_physical(1, 10)


def test_memory_from_elsewhere(context: Context) -> None:
    fd = os.memfd_create("test")
    try:
        os.ftruncate(fd, 4096)
        memory = context.memory_from_fd(fd, 100, offset=10)
        memory.array()[0] = 9
        assert os.pread(fd, 1, 10) == b"\x09"
        memory.close()
    finally:
        os.close(fd)
    array = np.zeros(64, np.uint8)
    memory = context.memory_from_physical(0x4000, 64, address=array.ctypes.data)
    memory.array()[1] = 2
    assert array[1] == 2
    assert memory.physical_address == 0x4000


@pytest.mark.parametrize("view", ["native", "nhwc", "logical"])
def test_bound_memory(context: Context, view: str) -> None:
    expected = context.run([pixels()], want_float=False)
    source = context.bind_input("image", view=view, dtype="uint8")  # type: ignore[arg-type]
    stride = context.inputs[0].w_stride
    source.array(np.uint8, (HEIGHT, stride, 3))[:, :WIDTH] = pixels()[0]
    target = context.bind_output(0, view=view)  # type: ignore[arg-type]
    floats = context.bind_output(1, dtype="float32", layout="undefined")
    context.execute()
    info = {"native": context.native_outputs, "nhwc": context.native_outputs, "logical": context.outputs}[view][0]
    raw = target.array(np.int8)
    if view == "native":
        blocks = raw.reshape(info.shape).transpose(0, 1, 4, 2, 3)
        got = blocks.reshape(1, -1, HEIGHT, WIDTH)[:, :CHANNELS]
    elif view == "nhwc":
        got = raw[: expected[0].size].reshape(1, HEIGHT, WIDTH, CHANNELS).transpose(0, 3, 1, 2)
    else:
        got = raw[: expected[0].size].reshape(expected[0].shape)
    np.testing.assert_array_equal(got, expected[0])
    info = context.outputs[1]
    values = (expected[1].astype(np.float32) - info.zp) * np.float32(info.scale)
    np.testing.assert_array_equal(floats.array(np.float32, (1, 10)), values)


def test_binding_that_is_refused(context: Context) -> None:
    with pytest.raises(TensorNameError, match="there is no tensor 'nobody'"):
        context.bind_input("nobody")
    with pytest.raises(TensorTypeError, match="there is no type 'float8'"):
        context.bind_input(0, dtype="float8")
    with pytest.raises(ShapeError, match="there is no layout 'chwn'"):
        context.bind_output(0, layout="chwn")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="there is no view 'other'"):
        context.bind_output(0, view="other")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="the memory has 10") as caught:
        context.bind_input(0, context.memory(10))
    assert caught.value.call == "rknn_set_io_mem"


def test_weights_and_internal_memory(library: SoftwareLibrary) -> None:
    with Context(picture_model(), device=library, flags=Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE) as context:
        with pytest.raises(DeviceMemoryError, match="has no memory for its weights"):
            context.run([pixels()])
        context.set_weight_memory(context.memory(context.memory_sizes.weights))
        with pytest.raises(DeviceMemoryError, match="has no internal memory"):
            context.run([pixels()])
        context.set_internal_memory(context.memory(context.memory_sizes.internal))
        gc.collect()  # the context keeps both
        for got, want in zip(context.run([pixels()]), wanted(), strict=True):
            np.testing.assert_array_equal(got, want)


# the end


def test_a_closed_context(context: Context) -> None:
    memory = context.memory(64)
    context.close()
    context.close()
    assert context.closed
    assert repr(context) == "<rknn.Context, closed>"
    for use in (lambda: context.run([pixels()]), lambda: context.inputs, context.duplicate, lambda: context.memory(8)):
        with pytest.raises(DeviceClosed, match="the context was closed"):
            use()
    memory.array()[0] = 1
    memory.close()


def test_a_lost_context_is_destroyed(library: SoftwareLibrary) -> None:
    context = Context(picture_model(), device=library)
    context.bind_input(0)
    handle = context.handle
    memories = len(library.memories)
    del context
    gc.collect()
    assert not library.handles.known(handle)
    assert len(library.memories) == memories - 1


def test_memory_goes_before_its_context(library: SoftwareLibrary) -> None:
    """The vendor's library may not know the memory of a context that is gone."""
    order: list[str] = []

    class Recording:
        description = "recording"

        def __getattr__(self, name: str) -> object:
            function = getattr(library, name)
            if name not in ("rknn_destroy", "rknn_destroy_mem"):
                return function

            def call(*arguments: object) -> int:
                order.append(name)
                code: int = function(*arguments)
                return code

            return call

    for explicit in (True, False):
        context = Context(picture_model(), device=Recording())  # type: ignore[arg-type]
        context.bind_input(0)
        if explicit:
            context.close()
        del context
        gc.collect()
    assert order == ["rknn_destroy_mem", "rknn_destroy"] * 2
