"""Contexts: inputs, outputs, internal memory, runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from anynpu.errors import (
    DeviceClosed,
    DeviceMemoryError,
    DeviceTimeout,
    JobCancelled,
    ModelFormatError,
    ShapeError,
    TensorNameError,
)
from anynpu.npu import Buffer, Context, CoreMask, Device, RunControl
from anynpu.program import Convert, Float, FloatOp, Layer, MemoryPlan, Model, Program
from anynpu.tensor import Affine, DType, Layout, TensorSpec

from .builders import SCALE, Thread, dense_chain, dense_values, float_model, image_model, plan, shape_sets

PATTERN = 0xA5


@pytest.fixture
def device() -> Iterator[Device]:
    with Device("rk3588") as device:
        yield device


def codes(seed: int = 0, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, (1, width), np.int8)


def test_a_run_gives_values(device: Device) -> None:
    model = dense_chain()
    context = device.load(model).context()
    x = codes()
    expected = dense_values(model, x)["y"]
    (values,) = context.run([x.astype(np.float32) * SCALE])
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected.astype(np.float32) * SCALE)
    (raw,) = context.run({"x": x}, dequantize=False)
    assert raw.dtype == np.int8
    np.testing.assert_array_equal(raw, expected)
    np.testing.assert_array_equal(context.run(x)[0], values)


def test_results_belong_to_the_caller(device: Device) -> None:
    context = device.load(dense_chain()).context()
    (first,) = context.run([codes(1)], dequantize=False)
    kept = first.copy()
    context.run([codes(2)])
    np.testing.assert_array_equal(first, kept)


def test_images_in_both_orders_with_mean_and_std(device: Device) -> None:
    context = device.load(image_model(mean=10.0, std=2.0)).context()
    image = np.random.default_rng(3).integers(10, 250, (1, 4, 6, 3), np.uint8)
    expected = np.rint((image.astype(np.float32) - 10) / 2).transpose(0, 3, 1, 2)
    for array, layout in (
        (image, "nhwc"),
        (image.astype(np.float32), Layout.NHWC),
        (np.ascontiguousarray(image.transpose(0, 3, 1, 2)), None),
        (image.transpose(0, 3, 1, 2), "nchw"),
        (image.astype(np.float64).transpose(0, 3, 1, 2), None),
    ):
        (result,) = context.run([array], layout=layout)
        assert result.shape == (1, 3, 4, 6)
        np.testing.assert_array_equal(result, expected)


def test_codes_are_taken_as_they_are(device: Device) -> None:
    context = device.load(image_model(mean=10.0, std=2.0)).context()
    given = np.random.default_rng(3).integers(-128, 128, (1, 3, 4, 6), np.int8)
    (result,) = context.run([given], dequantize=False)
    np.testing.assert_array_equal(result, given)


def test_wrong_inputs(device: Device) -> None:
    context = device.load(image_model()).context()
    with pytest.raises(ShapeError, match=r"input 'images' takes \[1, 3, 4, 6\], got \[1, 4, 6, 3\]"):
        context.run([np.zeros((1, 4, 6, 3), np.uint8)])
    with pytest.raises(TensorNameError, match="there is no input 'image'") as caught:
        context.run({"images": np.zeros((1, 3, 4, 6), np.uint8), "image": 0})
    assert "did you mean 'images'?" in caught.value.hint
    with pytest.raises(TensorNameError, match="no array for input 'images'"):
        context.run({})
    with pytest.raises(TensorNameError, match="no array for input 'images'"):
        context.run([])
    with pytest.raises(TensorNameError, match="2 inputs for a model with 1"):
        context.run([0, 0])
    with pytest.raises(TensorNameError, match="no output 'images'"):
        context.read("images")
    (result,) = context.run([np.full((1, 3, 4, 6), 7, np.uint8)])
    assert set(result.ravel()) == {7.0}, "a rejected run leaves the context usable"


def test_writing_executing_and_reading_by_hand(device: Device) -> None:
    model = dense_chain()
    context = device.load(model).context()
    x = codes(4)
    context.write("x", x)
    np.testing.assert_array_equal(context.input_buffer("x").array(np.int8), x[0])
    assert context.execute() == []
    expected = dense_values(model, x)["y"]
    np.testing.assert_array_equal(context.output_buffer("y").array(np.int8), expected[0])
    np.testing.assert_array_equal(context.read("y", dequantize=False), expected)
    np.testing.assert_array_equal(context.run()[0], context.read("y"))


def test_the_profile_has_every_layer(device: Device) -> None:
    context = device.load(dense_chain(5)).context()
    times = context.execute(profile=True)
    assert [layer for layer, _ in times] == [0, 1, 2, 3, 4]
    assert all(ns > 0 for _, ns in times)


def test_inputs_and_outputs_in_buffers_of_the_caller(device: Device) -> None:
    model = dense_chain()
    context = device.load(model).context()
    fd = os.memfd_create("camera")
    os.ftruncate(fd, 4096)
    x = codes(5)
    with Buffer.from_fd(fd, 8, offset=100) as source, Buffer.allocate(64) as target:
        context.bind_input("x", source)
        context.bind_output("y", target.slice(32, 8))
        assert device.memory_usage().io == 0, "nothing of its own where everything is bound"
        os.pwrite(fd, x.tobytes(), 100)
        context.execute()
        expected = dense_values(model, x)["y"]
        np.testing.assert_array_equal(target.array(np.int8)[32:40], expected[0])
        np.testing.assert_array_equal(context.run({}, dequantize=False)[0], expected)
        context.run({"x": codes(6)})
        assert os.pread(fd, 8, 100) == codes(6).tobytes(), "an array is converted straight into the bound buffer"
        assert device.memory_usage().io == 0
        context.bind_input("x", None)
        context.run([x])
        assert os.pread(fd, 8, 100) == codes(6).tobytes()
        with pytest.raises(DeviceMemoryError, match="tensor 'x' takes 8 bytes, the buffer has 7"):
            context.bind_input("x", target.slice(0, 7))
    os.close(fd)
    with pytest.raises(DeviceClosed, match="buffer"):
        context.execute()
    with pytest.raises(DeviceClosed, match="buffer"):
        context.bind_output("y", target)


def test_intermediates_are_in_the_memory_of_the_caller(device: Device) -> None:
    model = dense_chain(4, width=100)
    loaded = device.load(model)
    memory = model.programs[0].memory
    assert loaded.internal_size == memory.size
    with Buffer.allocate(memory.size + 64) as internal:
        internal.array()[:] = PATTERN
        context = loaded.context(internal=internal)
        x = codes(7, 100)
        context.run([x])
        values = dense_values(model, x)
        for name, offset in memory.offsets.items():
            found = internal.array(np.int8, (1, 100), offset)
            np.testing.assert_array_equal(found, values[name], err_msg=name)
        assert set(internal.view()[memory.size :]) == {PATTERN}, "and nothing beyond"
        assert device.memory_usage().internal == 0, "and the device has none of its own"
        with pytest.raises(DeviceMemoryError) as caught:
            loaded.context(internal=internal.slice(0, memory.size - 1))
        assert str(memory.size) in caught.value.hint


def test_internal_memory_of_its_own_is_accounted_and_given_back(device: Device) -> None:
    loaded = device.load(dense_chain(4))
    context = loaded.context()
    context.run([codes()])
    usage = device.memory_usage()
    assert (usage.internal, usage.io) == (loaded.internal_size, 128)
    context.close()
    usage = device.memory_usage()
    assert (usage.internal, usage.io) == (0, 0)


def test_two_contexts_share_internal_memory_and_take_turns(device: Device) -> None:
    model = dense_chain(4, width=64)
    loaded = device.load(model)
    first = loaded.context()
    second = loaded.context(internal=first.internal_memory)
    assert device.memory_usage().internal == loaded.internal_size

    def work(context: Context, seed: int) -> None:
        for step in range(15):
            x = codes(seed + step, 64)
            (result,) = context.run([x], dequantize=False)
            np.testing.assert_array_equal(result, dense_values(model, x)["y"])

    for thread in [Thread(lambda: work(first, 100)), Thread(lambda: work(second, 200))]:
        thread.finish()
    first.close()
    second.run([codes(1, 64)])


def test_internal_memory_in_use_is_waited_for(device: Device) -> None:
    loaded = device.load(dense_chain())
    first = loaded.context()
    second = loaded.context(internal=first.internal_memory)
    other = loaded.context()

    def between(layer: int) -> None:
        if layer == 1:
            with pytest.raises(DeviceTimeout):
                second.execute(timeout=0.02)
            other.execute(timeout=120)

    first.execute(between=between)
    second.execute(timeout=120)


def test_two_threads_take_turns_in_one_context(device: Device) -> None:
    model = dense_chain()
    context = device.load(model).context()

    def work(seed: int) -> None:
        for step in range(20):
            x = codes(seed + step)
            (result,) = context.run([x], dequantize=False)
            np.testing.assert_array_equal(result, dense_values(model, x)["y"])

    for thread in [Thread(partial(work, seed)) for seed in (0, 1000, 2000)]:
        thread.finish()


def test_shape_sets(device: Device) -> None:
    loaded = device.load(shape_sets((4, 6), (2, 2), (8, 8)))
    assert loaded.internal_size == 3 * 64
    context = loaded.context(shapes={"images": (1, 3, 2, 2)})
    assert context.inputs[0].shape == (1, 3, 2, 2)
    (small,) = context.run([np.full((1, 3, 2, 2), 3, np.uint8)])
    assert small.shape == (1, 3, 2, 2)
    context.select_shapes(2)
    (large,) = context.run([np.full((1, 3, 8, 8), 4, np.uint8)])
    assert large.shape == (1, 3, 8, 8)
    assert set(large.ravel()) == {4.0}
    context.select_shapes({"images": [1, 3, 4, 6]})
    assert context.run([np.zeros((1, 3, 4, 6), np.uint8)])[0].shape == (1, 3, 4, 6)
    with pytest.raises(ShapeError, match="was not compiled for images") as caught:
        context.select_shapes({"images": (1, 3, 5, 5)})
    assert "[1, 3, 8, 8]" in caught.value.hint
    with pytest.raises(ShapeError, match="there is no shape set 3"):
        context.select_shapes(3)


def test_cancelled_between_two_layers(device: Device) -> None:
    context = device.load(dense_chain(5)).context()
    control = RunControl()
    seen: list[int] = []

    def between(layer: int) -> None:
        seen.append(layer)
        if layer == 2:
            control.cancel()

    with pytest.raises(JobCancelled):
        context.execute(control=control, between=between)
    assert seen == [0, 1, 2]
    assert [core.jobs for core in device.statistics] == [1, 0, 0]
    context.execute(timeout=120)


def test_out_of_time_between_two_layers(device: Device) -> None:
    context = device.load(dense_chain(3)).context()
    control = RunControl(30)

    def between(layer: int) -> None:
        control.deadline = 0.0

    with pytest.raises(DeviceTimeout):
        context.execute(control=control, between=between)


def test_cores_by_mask(device: Device) -> None:
    context = device.load(dense_chain()).context()
    context.execute(mask=CoreMask.of(1, 2))
    context.run([codes()], mask=CoreMask.CORE_2)
    assert [core.jobs for core in device.statistics] == [0, 1, 2]


def test_closing_stops_a_run_in_another_thread(device: Device) -> None:
    context = device.load(dense_chain(3)).context()
    closer: list[Thread] = []

    def between(layer: int) -> None:
        if layer == 1:
            closer.append(Thread(context.close))
            while not control.cancelled:
                pass

    control = RunControl(30)
    with pytest.raises(DeviceClosed, match="context"):
        context.execute(control=control, between=between)
    closer[0].finish()


def test_nothing_works_after_close_and_closing_twice_does(device: Device) -> None:
    context = device.load(dense_chain()).context()
    context.close()
    context.close()
    for use in (
        context.run,
        context.execute,
        lambda: context.write("x", codes()),
        lambda: context.read("y"),
        lambda: context.inputs,
        lambda: context.internal_memory,
        lambda: context.bind_input("x", None),
        lambda: context.select_shapes(0),
    ):
        with pytest.raises(DeviceClosed):
            use()


def test_closing_from_inside_a_run(device: Device) -> None:
    context = device.load(dense_chain()).context()
    with pytest.raises(DeviceClosed):
        context.execute(between=lambda layer: context.close())


def test_a_forgotten_context_gives_its_memory_back(device: Device) -> None:
    loaded = device.load(dense_chain())
    context = loaded.context()
    context.run([codes()])
    del context
    usage = device.memory_usage()
    assert (usage.internal, usage.io) == (0, 0)


def test_outputs_that_are_another_tensors_memory(device: Device) -> None:
    """A program whose outputs are a view of an intermediate, a view of another output, and its own input."""
    quantization = Affine.per_tensor(1.0, 0)
    specs = [
        TensorSpec("x", (1, 6), DType.INT8, quantization=quantization),
        TensorSpec("f", (1, 6), DType.FLOAT32),
        TensorSpec("g", (2, 3), DType.FLOAT32),
        TensorSpec("y", (1, 6), DType.INT8, quantization=quantization),
        TensorSpec("z", (3, 2), DType.INT8, quantization=quantization),
    ]
    layers = (
        Layer("dequantise", "Convert", Convert(), ("x",), ("f",)),
        Layer("quantise", "Convert", Convert(), ("g",), ("y",)),
    )
    tensors = {spec.name: spec for spec in specs}
    tensors["y"] = replace(tensors["y"], shape=(2, 3))
    program = Program(("x",), ("g", "y", "z", "x"), tensors, layers, plan([tensors["f"]]), views={"g": "f", "z": "y"})
    context = device.load(Model("rk3588", "w8a8", (program,))).context()
    x = np.arange(6, dtype=np.int8)[None]
    g, y, z, same = context.run([x])
    assert g.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert y.tolist() == g.tolist()
    assert z.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert same.tolist() == x.tolist()


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("x", (1, 4, 5), DType.INT8, Layout.NHWC, Affine.per_tensor(1.0, 3)),
        TensorSpec("x", (2, 3, 4, 5), DType.FLOAT16, Layout.NHWC),
        TensorSpec("x", (1, 3, 4, 5), DType.INT8, Layout.NHWC, Affine((1.0, 0.5), (0, 1), (1, 2)), w_stride=8),
        TensorSpec("x", (1, 20, 3, 3), DType.INT8, Layout.NC1HWC2, Affine.per_tensor(1.0, 3), c2=16),
        TensorSpec("x", (2, 6), DType.UINT8, Layout.PLAIN, Affine.per_tensor(1.0, 0)),
        TensorSpec("x", (2, 6), DType.INT64),
        TensorSpec("x", (), DType.FLOAT32),
    ],
    ids=lambda spec: f"{spec.layout.value}-{spec.dtype.value}-{len(spec.shape)}",
)
def test_what_is_written_can_be_read(device: Device, spec: TensorSpec) -> None:
    program = Program(("x",), ("x",), {"x": spec}, (), MemoryPlan({}, 0))
    context = device.load(Model("rk3588", "w8a8", (program,))).context()
    values = np.random.default_rng(1).integers(0, 50, spec.shape)
    given = values if spec.dtype is DType.INT64 else np.asarray(values, np.float32)
    (result,) = context.run([given])
    assert result.dtype == given.dtype
    np.testing.assert_array_equal(result, given)
    if len(spec.shape) >= 3:
        (result,) = context.run([np.moveaxis(given, 1, -1)], layout="nhwc")
        np.testing.assert_array_equal(result, given)


def test_a_float_layer_in_a_context(device: Device) -> None:
    weights = np.random.default_rng(8).standard_normal((16, 4)).astype(np.float16)
    context = device.load(float_model(weights, held=DType.FLOAT16)).context()
    x = np.random.default_rng(9).standard_normal((1, 16)).astype(np.float32)
    np.testing.assert_allclose(context.run([x])[0], x @ weights.astype(np.float32), rtol=1e-5, atol=1e-5)
    assert [layer for layer, _ in context.execute(profile=True)] == [0]


def test_a_program_without_memory_for_a_tensor_is_refused(device: Device) -> None:
    model = dense_chain()
    program = replace(model.programs[0], memory=MemoryPlan({}, 0))
    with pytest.raises(ModelFormatError, match="no memory for tensor 't"):
        device.load(replace(model, programs=(program,))).context().run([codes()])


def test_a_float_layer_that_breaks_the_rules_is_refused(device: Device) -> None:
    model = float_model(np.ones((4, 4), np.float32))
    stray = Layer("stray", "Teleport", Float((FloatOp("Teleport", ("x",), ("y",)),)), ("x",), ("y",))
    program = replace(model.programs[0], layers=(stray,))
    with pytest.raises(ModelFormatError, match="layer 'stray': Teleport is not a float operator"):
        device.load(replace(model, programs=(program,))).context().execute()
