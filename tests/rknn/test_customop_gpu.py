"""Custom operators on the GPU: OpenCL through pyopencl, here on PoCL, with functions in C and in Python."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools import need, need_module

from anynpu._rknn import ffi
from anynpu.errors import DeviceUnavailable, ParameterError
from anynpu.rknn import Context, CustomOperator, OperatorCall, SoftwareLibrary, load_plugin
from anynpu.rknn.constants import rknn_target_type

from .customop_helpers import Callbacks, RawContext, build_plugin, chain_model, function

pytestmark = pytest.mark.full  # OpenCL

X = np.arange(8, dtype=np.float32)[None]
TWO = (("Scale", {"gain": np.array(2.0, np.float32)}), ("Scale", {"gain": np.array(0.25, np.float32)}))
KERNEL = """
__kernel void scale(__global const float *x, __global float *y, const float gain) {
    const size_t i = get_global_id(0);
    y[i] = x[i] * gain + SHIFT;
}
"""


@pytest.fixture(autouse=True, scope="module")
def opencl_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """PoCL keeps compiled kernels; not in the user's folder."""
    need_module("pyopencl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POCL_CACHE_DIR", str(tmp_path_factory.mktemp("pocl")))
        need("OpenCL")
        yield


def scale(call: OperatorCall) -> None:
    gpu = call.gpu
    gpu.kernel.set_args(gpu.buffer(call.inputs[0]), gpu.buffer(call.outputs[0]), np.float32(call.attr("gain")))
    need_module("pyopencl").enqueue_nd_range_kernel(gpu.queue, gpu.kernel, (call.inputs[0].array.size,), None)


def gpu_operator(**changes: Any) -> CustomOperator:
    fields: dict[str, Any] = {"kernel_name": "scale", "kernel_source": KERNEL, "build_options": "-DSHIFT=1.0f"}
    return CustomOperator("Scale", scale, target="gpu", **(fields | changes))


def test_functions_in_python() -> None:
    """Nothing waits for the kernel: what is in the queue is done before the next layer begins."""
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        context.register_operators(gpu_operator())
        for offset in (0, 5):
            (y,) = context.run([X + offset])
            np.testing.assert_array_equal(y, ((X + offset) * 2 + 1) * 0.25 + 1)


def test_the_source_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scale.cl"
    path.write_text(KERNEL)
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        context.register_operators(gpu_operator(kernel_source=path, build_options="-DSHIFT=0.0f"))
        np.testing.assert_array_equal(context.run([X])[0], X * 0.5)


def test_functions_in_c(tmp_path: Path) -> None:
    path = build_plugin(Path(__file__).with_name("custom_gpu_plugin.c"), tmp_path, "-ldl")
    library = SoftwareLibrary("rk3588")
    loader = re.findall(r"/\S*libOpenCL\S*", Path("/proc/self/maps").read_text())[0]
    getter = ffi.callback("void(rknn_custom_op_context *, char *, rknn_custom_op_attr *)", library.rknn_custom_op_get_op_attr)
    prepare = function(ctypes.CDLL(str(path)), "plugin_opencl", "int (*)(const char *, void *)")
    assert prepare(loader.encode(), getter) == 0
    context = RawContext(library, chain_model(*TWO))
    assert context.register(load_plugin(path).struct) == 0, context.error
    assert context.run(X) == 0, context.error
    np.testing.assert_array_equal(context.output(X.shape), X * 2 * 3 * 0.25 * 3)
    library.close()


def test_what_the_context_brings() -> None:
    """One cl_context and queue for all operators of a context, a kernel for each layer."""
    seen: list[tuple[int, int, int]] = []

    def init(call: OperatorCall) -> None:
        seen.append((call.gpu.context.int_ptr, call.gpu.queue.int_ptr, call.gpu.kernel.int_ptr))
        assert call.gpu.kernel.function_name == "scale"

    model = chain_model(*TWO, ("Other", {}))
    with Context(model, device="sim:rk3588") as context, Context(model, device="sim:rk3588") as second:
        other = CustomOperator(
            "Other", scale, target="gpu", kernel_name="scale", kernel_source=KERNEL.replace("SHIFT", "0"), init=init
        )
        context.register_operators(gpu_operator(init=init), other)
        assert len({entry[:2] for entry in seen}) == 1
        assert len({entry[2] for entry in seen}) == 3
        second.register_operators(other)
        assert seen[3][0] != seen[0][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"kernel_source": "__kernel void scale(__global float *x) { x[0] = nonsense; }"},
            "(?s)'Scale' does not compile.*nonsense",
        ),
        ({"build_options": "-DSHIFT=undefined_thing"}, "(?s)does not compile.*undefined_thing"),
        ({"kernel_name": "skale"}, "'skale' of custom operator 'Scale' is not in its source"),
        ({"kernel_name": ""}, "has no kernel"),
        ({"kernel_source": ""}, "has no kernel"),
        ({"kernel_source": Path("/nowhere/kernel.cl")}, "'/nowhere/kernel.cl', which cannot be read"),
    ],
    ids=["source", "options", "kernel name", "no name", "no source", "no file"],
)
def test_kernels_that_cannot_be_built(changes: dict[str, Any], message: str) -> None:
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        with pytest.raises(ParameterError, match=message) as caught:
            context.register_operators(gpu_operator(**changes))
        if changes.get("kernel_name"):
            assert "one of: scale" in caught.value.hint
        context.register_operators(gpu_operator())
        context.run([X])


def test_the_length_of_the_source_counts() -> None:
    """cl_source_size may leave the rest out, and may include the zero at the end."""
    library = SoftwareLibrary("rk3588")
    context = RawContext(library, chain_model(TWO[0]))
    operator = Callbacks("Scale", compute=lambda *arguments: 0)
    text = KERNEL.replace("SHIFT", "0").encode()
    source = ffi.new("char[]", text + b"this is not C")
    operator.struct.target = int(rknn_target_type.RKNN_TARGET_TYPE_GPU)
    operator.struct.cl_kernel_name = b"scale"
    operator.struct.cl_kernel_source = source
    operator.struct.cl_source_size = len(text)
    assert context.register(operator.struct) == 0, context.error
    operator.struct.cl_source_size = len(text) + 4
    assert context.register(operator.struct) != 0
    operator.struct.cl_kernel_source = source = ffi.new("char[]", text)
    operator.struct.cl_source_size = len(source)
    assert context.register(operator.struct) == 0, context.error
    library.close()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        with pytest.raises(DeviceUnavailable, match="pyopencl") as caught:
            context.register_operators(gpu_operator())
        assert "pip install '.[opencl]'" in caught.value.hint


@pytest.mark.parametrize("kind", ["no platform", "no device"])
def test_without_a_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def none() -> list[Any]:
        if kind == "no platform":
            raise need_module("pyopencl").LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
        return []

    monkeypatch.setattr(need_module("pyopencl"), "get_platforms", none)
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        with pytest.raises(DeviceUnavailable, match="no OpenCL device") as caught:
            context.register_operators(gpu_operator())
        assert "pip install '.[opencl]'" in caught.value.hint


def test_devices_that_cannot_compile_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = need_module("pyopencl")
    build = cl.Program.build

    def old_compiler(program: Any, *arguments: Any, **options: Any) -> Any:
        raise cl.RuntimeError("unknown target CPU 'generic'")

    monkeypatch.setattr(cl.Program, "build", old_compiler)
    with Context(chain_model(*TWO), device="sim:rk3588") as context:
        with pytest.raises(DeviceUnavailable, match=r"compiles a kernel .*unknown target CPU") as caught:
            context.register_operators(gpu_operator())
        assert "pocl-opencl-icd" in caught.value.hint
        monkeypatch.setattr(cl.Program, "build", build)
        context.register_operators(gpu_operator())
