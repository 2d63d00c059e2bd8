"""Custom operators on the software NPU: functions that a context calls in the middle of a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anynpu import modelfile
from anynpu.errors import DeviceClosed, DeviceError, DeviceTimeout
from anynpu.npu import Buffer, Context, CustomCall, Device, LoadedModel
from anynpu.program import Convert, Custom, CustomConstant, Layer, Model, Placement, Program
from anynpu.tensor import Affine, DType, Layout, TensorSpec

from .builders import Thread, plan

Array = np.ndarray[Any, Any]
SHIFT = np.array([[0.5, -1.0, 2.0, 0.0]], np.float32)


def custom_model(width: int = 4, *, tail: bool = True) -> Model:
    """x (int8) -> dequantized -> Affine(gain, shift) -> y, sign; with *tail* y is quantized too, to the output z."""
    quantization = Affine.per_tensor(0.25, 3)
    tensors = {
        "x": TensorSpec("x", (1, width), DType.INT8, Layout.PLAIN, quantization),
        "real": TensorSpec("real", (1, width), DType.FLOAT32),
        "y": TensorSpec("y", (1, width), DType.FLOAT32),
        "sign": TensorSpec("sign", (width,), DType.INT64),
        "z": TensorSpec("z", (1, width), DType.INT8, Layout.PLAIN, quantization),
    }
    attributes = {"gain": np.array(3.0, np.float32), "order": np.array([2, 1], np.int64), "mode": "exact", "names": ("a", "b")}
    shift = CustomConstant(0, "shift", np.resize(SHIFT, (1, width)))
    layers = [
        Layer("x:dequantize", "Dequantize", Convert(), ("x",), ("real",)),
        Layer(
            "affine",
            "Affine",
            Custom("Affine", attributes, (shift,)),
            ("real",),
            ("y", "sign"),
            Placement.CPU,
            "custom operator 'Affine'",
        ),
    ]
    outputs = ["y"]
    if tail:
        layers.append(Layer("y:quantize", "Quantize", Convert(), ("y",), ("z",)))
        outputs.append("z")
    program = Program(("x",), tuple(outputs), tensors, tuple(layers), plan([tensors["real"], tensors["sign"]]))
    return Model("rk3588", "w8a8", (program,), name="custom")


def affine(call: CustomCall) -> None:
    shift, real = (entry.array for entry in call.inputs)
    y, sign = (entry.array for entry in call.outputs)
    y[...] = real * call.attributes["gain"] + shift
    sign[...] = np.sign(y[0])


CODES = np.array([[-128, 3, 4, 127]], np.int8)


def expected(codes: Array, shift: Array = SHIFT) -> Array:
    result: Array = ((codes.astype(np.float32) - 3) * 0.25) * np.float32(3) + shift
    return result


@pytest.fixture(params=["native", "reference"])
def loaded(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    with Device("rk3588", engine=request.param) as device:
        yield device.load(custom_model())


@pytest.fixture
def context(loaded: LoadedModel) -> Iterator[Context]:
    with loaded.context() as context:
        yield context


def test_a_run_calls_the_function_and_goes_on(context: Context) -> None:
    context.register_custom_operator("Affine", affine)
    y, z = context.run([CODES])
    np.testing.assert_array_equal(y, expected(CODES))
    np.testing.assert_array_equal(z, np.clip(np.rint(expected(CODES) / 0.25) + 3, -128, 127) * 0.25 - 0.75)


def test_what_the_function_gets(loaded: LoadedModel, context: Context) -> None:
    seen: list[CustomCall] = []
    context.register_custom_operator("Affine", lambda call: seen.append(call))
    context.run([CODES])
    context.run([CODES])
    (call, again) = seen
    assert call is again
    assert (call.name, call.op_type) == ("affine", "Affine")
    assert call.attributes["gain"] == 3.0
    assert call.attributes["order"].dtype == np.int64  # type: ignore[union-attr]
    assert (call.attributes["mode"], call.attributes["names"]) == ("exact", ("a", "b"))
    assert [entry.spec.name for entry in call.inputs] == ["shift", "real"]
    assert [entry.spec.name for entry in call.outputs] == ["y", "sign"]
    assert [entry.array.dtype for entry in call.outputs] == [np.float32, np.int64]
    assert call.inputs[0].buffer is loaded.weights
    assert call.inputs[1].buffer is context.internal_memory
    assert call.outputs[0].buffer is context.output_buffer("y")
    for entry in (*call.inputs, *call.outputs):
        assert entry.array.shape == entry.spec.memory_shape
        assert entry.array.ctypes.data == entry.buffer.address + entry.offset
    np.testing.assert_array_equal(call.inputs[0].array, SHIFT)
    with pytest.raises(ValueError, match="read-only"):
        call.inputs[0].array[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        call.inputs[1].array[...] = 0


def test_calls_can_be_looked_at_before_a_run(context: Context) -> None:
    (call,) = context.custom_calls()
    assert call.op_type == "Affine"
    buffer = Buffer.allocate(16)
    context.bind_output("y", buffer)
    (other,) = context.custom_calls()
    assert other.outputs[0].buffer is buffer


def test_an_operator_that_is_not_registered(context: Context) -> None:
    assert context.custom_operators == {"Affine": None}
    context.register_custom_operator("Other", affine)
    with pytest.raises(DeviceError, match=r"custom operator 'Affine' of layer 'affine' is not registered") as caught:
        context.run([CODES])
    assert "register_custom_operator('Affine'" in caught.value.hint
    context.register_custom_operator("Affine", affine)
    assert context.custom_operators == {"Affine": affine}
    np.testing.assert_array_equal(context.run([CODES])[0], expected(CODES))


def test_functions_belong_to_one_context(loaded: LoadedModel, context: Context) -> None:
    context.register_custom_operator("Affine", affine)
    with loaded.context() as other, pytest.raises(DeviceError, match="not registered"):
        other.run([CODES])


def failing(call: CustomCall) -> None:
    raise ZeroDivisionError("no such number")


@pytest.mark.parametrize(
    ("function", "message", "cause", "code"),
    [
        (failing, "ZeroDivisionError: no such number", ZeroDivisionError, None),
        (lambda call: -1, "reported failure -1", None, -1),
        (lambda call: call.inputs[1].array * 2, "returned a ndarray", None, None),
        (lambda call: True, "returned a bool", None, None),
    ],
    ids=["raises", "reports", "returns an array", "returns a truth"],
)
def test_a_failure_names_operator_and_layer_and_leaves_the_context_usable(
    context: Context, function: Any, message: str, cause: type[Exception] | None, code: int | None
) -> None:
    context.register_custom_operator("Affine", function)
    with pytest.raises(DeviceError, match=message) as caught:
        context.run([CODES])
    assert "custom operator 'Affine' in layer 'affine'" in caught.value.message
    assert caught.value.hint
    assert caught.value.code == code
    assert type(caught.value.__cause__) is (cause or type(None))
    context.register_custom_operator("Affine", affine)
    np.testing.assert_array_equal(context.run([CODES])[0], expected(CODES))


def test_zero_is_success(context: Context) -> None:
    def counting(call: CustomCall) -> int:
        affine(call)
        return 0

    context.register_custom_operator("Affine", counting)
    np.testing.assert_array_equal(context.run([CODES])[0], expected(CODES))


def test_registering_waits_for_the_run(context: Context) -> None:
    entered, gate = threading.Event(), threading.Event()

    def waiting(call: CustomCall) -> None:
        entered.set()
        assert gate.wait(120)
        affine(call)

    context.register_custom_operator("Affine", waiting)
    run = Thread(lambda: context.run([CODES]))
    assert entered.wait(120)
    change = Thread(lambda: context.register_custom_operator("Affine", failing))
    change.join(0.1)
    assert change.is_alive()
    assert context.custom_operators == {"Affine": waiting}
    gate.set()
    np.testing.assert_array_equal(run.finish()[0], expected(CODES))
    change.finish()
    assert context.custom_operators == {"Affine": failing}


def test_time_is_up_in_the_function(context: Context) -> None:
    def slow(call: CustomCall) -> None:
        threading.Event().wait(0.3)

    context.register_custom_operator("Affine", slow)
    with pytest.raises(DeviceTimeout):
        context.run([CODES], timeout=0.1)
    context.register_custom_operator("Affine", affine)
    np.testing.assert_array_equal(context.run([CODES])[0], expected(CODES))


def test_profile_and_submitted_jobs(loaded: LoadedModel, context: Context) -> None:
    context.register_custom_operator("Affine", affine)
    np.testing.assert_array_equal(loaded.device.submit(context, [CODES]).result(120)[0], expected(CODES))
    context.write("x", CODES)
    indices: list[int] = []
    times = context.execute(profile=True, between=indices.append)
    assert [entry.layer for entry in times] == indices == [0, 1, 2]


def test_a_closed_context(loaded: LoadedModel) -> None:
    context = loaded.context()
    context.register_custom_operator("Affine", affine)
    context.close()
    with pytest.raises(DeviceClosed):
        context.register_custom_operator("Affine", affine)
    with pytest.raises(DeviceClosed):
        context.custom_calls()


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_an_output_in_memory_that_ends_with_its_page(engine: str) -> None:
    """The native engine does not work in such memory itself; the function still gets it."""
    width = 1024
    fd = os.memfd_create("page")
    os.ftruncate(fd, 4096)
    with Device("rk3588", engine=engine) as device, device.load(custom_model(width)).context() as context:
        context.register_custom_operator("Affine", affine)
        buffer = Buffer.from_fd(fd, 4096)
        os.close(fd)
        context.bind_output("y", buffer)
        codes = np.random.default_rng(0).integers(-128, 128, (1, width), np.int8)
        wanted = expected(codes, np.resize(SHIFT, (1, width)))
        for _ in range(2):
            y, z = context.run([codes])
            np.testing.assert_array_equal(y, wanted)
            np.testing.assert_array_equal(buffer.array(np.float32)[:width], wanted[0])
            np.testing.assert_array_equal(z, np.clip(np.rint(wanted / 0.25) + 3, -128, 127) * 0.25 - 0.75)
        assert context.custom_calls()[0].outputs[0].buffer is buffer


def test_a_file_and_weights_that_come_later() -> None:
    model = custom_model()
    with Device("rk3588") as device:
        complete = device.load(modelfile.read(modelfile.to_bytes(model)))
        bare = modelfile.read(modelfile.to_bytes(model, remove_weight=True))
        for loaded in (complete, device.load(bare, weights_from=complete)):
            assert loaded.model.custom_operators == ("Affine",)
            with loaded.context() as context:
                context.register_custom_operator("Affine", affine)
                np.testing.assert_array_equal(context.run([CODES])[0], expected(CODES))


def test_shape_sets_have_their_own_calls() -> None:
    first, second = custom_model(4).programs[0], custom_model(8).programs[0]
    model = replace(custom_model(), programs=(first, second))
    with Device("rk3588") as device, device.load(model).context() as context:
        context.register_custom_operator("Affine", affine)
        context.run([CODES])
        context.select_shapes(1)
        codes = np.arange(8, dtype=np.int8)[None]
        np.testing.assert_array_equal(context.run([codes])[0], expected(codes, np.resize(SHIFT, (1, 8))))
