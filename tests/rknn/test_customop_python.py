"""Custom operators in Python and from plugins: CustomOperator, load_plugin, register, and Context.register_operators."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu._rknn import ffi
from anynpu.errors import CallFailed, CustomOperatorError, DeviceError, ParameterError, UnsupportedCall
from anynpu.program import CustomConstant
from anynpu.rknn import (
    Code,
    Context,
    CustomOperator,
    OperatorCall,
    SoftwareLibrary,
    load_plugin,
    rknn_tensor_format,
    rknn_tensor_type,
)
from anynpu.rknn.custom_operators import Registration, register

from .customop_helpers import RawContext, build_plugin, chain_model

X = np.arange(8, dtype=np.float32)[None]
TWO = (("Scale", {"gain": np.array(2.0, np.float32)}), ("Scale", {"gain": np.array(0.25, np.float32)}))


def scale(call: OperatorCall) -> None:
    np.multiply(call.inputs[0].array, call.attr("gain", 1.0), out=call.outputs[0].array)


def test_compute_alone() -> None:
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        context.register_operators(CustomOperator("Scale", scale))
        for _ in range(2):
            np.testing.assert_array_equal(context.run([X])[0], X * 0.5)


def test_all_functions_and_what_a_layer_remembers() -> None:
    notes: list[Any] = []

    def init(call: OperatorCall) -> None:
        call.private = {"gain": call.attr("gain"), "runs": 0}
        notes.append("init")

    def prepare(call: OperatorCall) -> None:
        call.private["runs"] += 1

    def compute(call: OperatorCall) -> int:
        np.multiply(call.inputs[0].array, call.private["gain"], out=call.outputs[0].array)
        return 0

    def destroy(call: OperatorCall) -> None:
        notes.append((call.private["gain"], call.private["runs"], call.inputs, call.outputs, call.attr("gain")))

    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        context.register_operators(CustomOperator("Scale", compute, init=init, prepare=prepare, destroy=destroy))
        for _ in range(3):
            np.testing.assert_array_equal(context.run([X])[0], X * 0.5)
        assert notes == ["init", "init"]
    assert notes[2:] == [(0.25, 3, (), (), 0.25), (2.0, 3, (), (), 2.0)]


def test_what_functions_get() -> None:
    calls: list[OperatorCall] = []
    shift = CustomConstant(1, "shift", np.arange(3, dtype=np.int64))

    def compute(call: OperatorCall) -> None:
        calls.append(call)
        x, other = call.inputs
        (y,) = call.outputs
        assert (x.name, x.shape, x.type, x.fmt) == (
            "x",
            (1, 2, 2, 3),
            rknn_tensor_type.RKNN_TENSOR_FLOAT32,
            rknn_tensor_format.RKNN_TENSOR_NCHW,
        )
        assert (other.name, other.array.dtype, other.attr.index) == ("shift", np.int64, 1)
        assert x.array.ctypes.data == int(ffi.cast("uintptr_t", x.mem.virt_addr)) + x.mem.offset
        np.add(x.array, other.array, out=y.array)
        with pytest.raises(ValueError, match="read-only"):
            x.array[...] = 0
        with pytest.raises(DeviceError, match="has no GPU"):
            _ = call.gpu

    x = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)
    with Context(chain_model(("Shift", {}), shape=x.shape, constants=[shift]), device="sim:rk3588") as context:
        context.register_operators(CustomOperator("Shift", compute))
        np.testing.assert_array_equal(context.run([x], layout="nchw")[0], x + shift.value)
        inputs = calls[0].inputs
        context.run([x], layout="nchw")
        assert calls[1] is calls[0]
        assert calls[0].inputs is inputs  # nothing moved
    with pytest.raises(DeviceError, match="has ended"):
        calls[0].attr("gain")


def test_attributes_as_python_has_them() -> None:
    attributes = {
        "axis": np.array(-1, np.int64),
        "sizes": np.array([1, 2], np.int64),
        "gain": np.array(0.5, np.float32),
        "mode": "genau",
        "names": ("a", "bc"),
        "none": np.zeros(0, np.float32),
    }
    found: dict[str, Any] = {}

    def init(call: OperatorCall) -> None:
        found.update({name: call.attr(name) for name in (*attributes, "missing")})
        found["default"] = call.attr("missing", 7)

    with Context(chain_model(("Scale", attributes)), device="sim:rk3588") as context:
        context.register_operators(CustomOperator("Scale", scale, init=init))
    sizes, none = found.pop("sizes"), found.pop("none")
    assert found == {"axis": -1, "gain": 0.5, "mode": "genau", "names": "a\0bc", "missing": None, "default": 7}
    assert isinstance(found["axis"], int)
    assert (sizes.tolist(), sizes.dtype, none.shape) == ([1, 2], np.int64, (0,))


def raising(call: OperatorCall) -> None:
    raise ZeroDivisionError("no such number")


@pytest.mark.parametrize("callback", ["prepare", "compute"])
def test_an_exception_is_the_cause_of_the_error(callback: str) -> None:
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        functions: dict[str, Any] = {"compute": scale} | {callback: raising}
        context.register_operators(CustomOperator("Scale", **functions))
        with pytest.raises(CustomOperatorError, match=f"'Scale' in layer 'layer_0': {callback} returned -1") as caught:
            context.run([X])
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert (caught.value.call, caught.value.code) == ("rknn_run", Code.RKNN_ERR_FAIL)
        context.register_operators(CustomOperator("Scale", scale))
        np.testing.assert_array_equal(context.run([X])[0], X * 0.5)
        with pytest.raises(ParameterError) as other:
            context.set_batch_cores(-1)
        assert other.value.__cause__ is None  # an error of another call has nothing to do with it


def test_an_exception_in_init() -> None:
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        with pytest.raises(CustomOperatorError, match="init returned -1") as caught:
            context.register_operators(CustomOperator("Scale", scale, init=raising))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.call == "rknn_register_custom_ops"
        with pytest.raises(CallFailed, match="not registered"):
            context.run([X])


def test_an_exception_in_destroy_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Context(chain_model(TWO[0]), device="sim:rk3588") as context:
        context.register_operators(CustomOperator("Scale", scale, destroy=raising))
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


def test_numbers_are_codes() -> None:
    with Context(chain_model(TWO[0]), device="sim:rk3588") as context:
        context.register_operators(CustomOperator("Scale", lambda call: -8))
        with pytest.raises(CallFailed, match="compute returned -8"):
            context.run([X])
        context.register_operators(
            CustomOperator("Scale", raising, prepare=lambda call: Code.RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE)
        )
        context.run([X])
        wrong: Any = lambda call: call.inputs[0].array * 2  # noqa: E731
        context.register_operators(CustomOperator("Scale", wrong))
        with pytest.raises(CustomOperatorError) as caught:
            context.run([X])
        assert "returned a ndarray" in str(caught.value.__cause__)


def test_operators_serve_several_contexts() -> None:
    operator = CustomOperator("Scale", scale, init=lambda call: setattr(call, "private", object()))
    model = chain_model(*TWO)
    with Context(model, device="sim:rk3588") as first, Context(model, device="sim:rk3588") as second:
        first.register_operators(operator)
        with pytest.raises(CallFailed, match="not registered"):
            second.run([X])
        second.register_operators(operator)
        for context in (first, second):
            np.testing.assert_array_equal(context.run([X])[0], X * 0.5)
        with first.duplicate() as third:
            with pytest.raises(CallFailed, match="not registered"):
                third.run([X])
            third.register_operators(operator)
            np.testing.assert_array_equal(third.run([X])[0], X * 0.5)


def test_a_forgotten_context_calls_destroy_and_lets_everything_go() -> None:
    ended: list[float] = []

    alive: list[weakref.ref[OperatorCall]] = []
    operator = CustomOperator(
        "Scale",
        scale,
        init=lambda call: alive.append(weakref.ref(call)),
        destroy=lambda call: ended.append(call.attr("gain")),
    )
    context = Context(chain_model(*TWO), device="sim:rk3588")
    context.register_operators(operator)
    context.run([X])
    assert all(entry() is not None for entry in alive)
    del context
    gc.collect()
    assert ended == [0.25, 2.0]
    assert [entry() for entry in alive] == [None, None]


def test_register_by_hand() -> None:
    library = SoftwareLibrary("rk3588")
    context = RawContext(library, chain_model(*TWO))
    assert register(library, context.handle, []).operators == ()
    registration = register(library, context.handle, [CustomOperator("Scale", raising)])
    assert isinstance(registration, Registration)
    assert context.run(X) == Code.RKNN_ERR_FAIL
    assert isinstance(registration.take_failure(), ZeroDivisionError)
    assert registration.take_failure() is None
    context.destroy()
    library.close()


def test_a_chip_without_custom_operators() -> None:
    with (
        Context(chain_model(TWO[0], chip="rv1106"), device="sim:rv1106") as context,
        pytest.raises(UnsupportedCall, match="rknn_register_custom_ops is not available on rv1106"),
    ):
        context.register_operators(CustomOperator("Scale", scale))


@pytest.mark.parametrize(
    "arguments",
    [{"op_type": "x" * 256}, {"op_type": "a\0b"}, {"target": "npu"}, {"kernel_name": "k" * 300}, {"build_options": "-D" * 200}],
)
def test_descriptions_that_do_not_fit(arguments: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        CustomOperator(**({"op_type": "Scale", "compute": scale} | arguments))


# plugins


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_plugin(Path(__file__).with_name("custom_plugin.c"), tmp_path_factory.mktemp("plugin"))


def test_a_plugin_beside_python(plugin: Path) -> None:
    operator = load_plugin(plugin)
    assert (operator.op_type, repr(operator)) == ("Scale", "<PluginOperator Scale of libcustom_plugin.so>")
    with Context(chain_model(("Scale", {}), ("Shift", {})), device="sim:rk3588") as context:

        def shift(call: OperatorCall) -> None:
            np.add(call.inputs[0].array, 1, out=call.outputs[0].array)

        context.register_operators(operator, CustomOperator("Shift", shift))
        np.testing.assert_array_equal(context.run([X])[0], X + 1)  # the plugin cannot ask for its gain here, and takes 1


SOURCES = {
    "does not export get_rknn_custom_op": "int something_else(void) { return 0; }",
    "gave a null pointer": "void *get_rknn_custom_op(void) { return 0; }",
    "undefined symbol: rknn_custom_op_get_op_attr": (
        "void rknn_custom_op_get_op_attr(void *, const char *, void *);\n"
        'void *get_rknn_custom_op(void) { rknn_custom_op_get_op_attr(0, "x", 0); return 0; }'
    ),
}


@pytest.mark.parametrize("message", SOURCES)
def test_plugins_that_cannot_be_used(message: str, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text(SOURCES[message])
    path = build_plugin(source, tmp_path, "-fvisibility=default")
    with pytest.raises(DeviceError, match=message) as caught:
        load_plugin(path)
    assert caught.value.hint
    assert path.name in caught.value.message


def test_files_that_are_no_plugins(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"there is no plugin .*missing\.so"):
        load_plugin(tmp_path / "missing.so")
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(DeviceError, match="cannot be loaded"):
        load_plugin(str(text))
