"""Sessions on the RKNN calls, answered by the software NPU."""

from __future__ import annotations

import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npu.builders import SCALE, GatedEngine, Thread, dense_chain, dense_values, image_model, shape_sets
from tools import need
from waiting import PATIENCE, wait_until

from anynpu import chips, modelfile
from anynpu.chips.timing import predict
from anynpu.dropin.environment import library_folder
from anynpu.errors import (
    AnynpuError,
    DeviceHungError,
    DeviceTimeout,
    FeedShapeError,
    FeedTypeError,
    JobCancelled,
    OptionError,
    SessionError,
    SessionModelError,
)
from anynpu.program import Layer, MemoryPlan, Model, Program, Transpose
from anynpu.rknn import SoftwareLibrary
from anynpu.session import InferenceSession, OrtValue
from anynpu.tensor import DType, TensorSpec

from .test_calls_running import expire

IMAGE = np.random.default_rng(3).integers(0, 256, (1, 3, 4, 6), np.uint8)


@pytest.fixture(params=["sim", "rknn"])
def device(request: pytest.FixtureRequest) -> str:
    """The software NPU on its own, and behind its own librknnrt.so, loaded as if it were the vendor's."""
    return "sim" if request.param == "sim" else f"rknn:{library_folder() / 'librknnrt.so'}"


def opened(model: Model, device: Any = "sim", **options: Any) -> InferenceSession:
    return InferenceSession(modelfile.to_bytes(model), provider_options=options, device=device)


def integer_model() -> Model:
    """int64 [1, 3] -> int64 [1, 3], unchanged."""
    specs = {name: TensorSpec(name, (1, 3), DType.INT64) for name in ("n", "m")}
    layer = Layer("same", "Transpose", Transpose((1, 3), (0, 1)), ("n",), ("m",))
    return Model("rk3588", "w8a8", (Program(("n",), ("m",), specs, (layer,), MemoryPlan({}, 0)),), name="integers")


def test_results_are_those_of_the_network(device: str) -> None:
    model = dense_chain()
    codes = np.random.default_rng(1).integers(-128, 128, (1, 8), np.int8)
    expected = dense_values(model, codes)["y"]
    with opened(model, device) as session:
        (values,) = session.run(None, {"x": codes.astype(np.float32) * SCALE})
        assert values.dtype == np.float32
        assert values.tolist() == (expected * SCALE).tolist()
        assert session.run(None, codes)[0].tolist() == values.tolist(), "the input's own type are codes"
        results = session.stream([codes] * 20)
        assert all(result[0].tolist() == values.tolist() for result in results)
    with opened(model, device, output_type="model") as session:
        assert session.run(["y"], codes)[0].tolist() == expected.tolist()
    with opened(model, device, output_type="float16") as session:
        assert session.run(["y"], codes)[0].dtype == np.float16


@pytest.mark.parametrize("layout", ["nchw", "nchw_software", "nhwc", "any"])
def test_layouts_give_the_same_result(layout: str, device: str) -> None:
    with opened(image_model(), device, layout=layout) as session:
        last = layout in ("nhwc", "any")
        given = np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1)) if last else IMAGE
        assert session.get_inputs()[0].shape == list(given.shape)
        for array in (given, given.astype(np.float32), given.astype(np.float64), given.astype(">i4"), given.tolist()):
            (result,) = session.run(None, {"images": array})
            assert result.tolist() == IMAGE.tolist()
        turned = IMAGE.transpose(0, 2, 3, 1) if last else np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        assert session.run(None, turned)[0].tolist() == IMAGE.tolist(), "not contiguous"


def test_integers_are_not_squeezed_through_floats(device: str) -> None:
    numbers = np.array([[2**24 + 1, -(2**60) - 1, 7]], np.int64)
    with opened(integer_model(), device) as session:
        assert session.get_inputs()[0].type == "tensor(int64)"
        (result,) = session.run(None, numbers)
        assert result.dtype == np.int64
        assert result.tolist() == numbers.tolist()


def test_dynamic_shapes_follow_the_input_on_every_lane(device: str) -> None:
    model = shape_sets((4, 6), (8, 8), (2, 2))
    random = np.random.default_rng(2)
    images = [random.integers(0, 256, (1, 3, *size), np.uint8) for size in ((4, 6), (8, 8), (2, 2), (8, 8))] * 5
    with opened(model, device) as session:
        for image, (result,) in zip(images, session.stream(images), strict=True):
            assert result.tolist() == image.tolist()
        with pytest.raises(FeedShapeError, match=r"\[1, 3, 4, 6\] or \[1, 3, 8, 8\] or \[1, 3, 2, 2\]"):
            session.run(None, np.zeros((1, 3, 5, 5), np.uint8))
        binding = session.io_binding()
        binding.bind_cpu_input("images", images[0])
        with pytest.raises(SessionError, match="does not run on bound memory"):
            session.run_with_iobinding(binding)


@pytest.mark.parametrize("zero_copy_layout", ["nhwc", "native"])
def test_bound_memory_on_every_core(zero_copy_layout: str, device: str) -> None:
    with opened(image_model(), device, zero_copy_layout=zero_copy_layout) as session:
        native = session.get_native_outputs()[0].layout
        assert native == ("NHWC" if zero_copy_layout == "nhwc" else "NC1HWC2")
        for core in range(3):
            value = OrtValue.ortvalue_from_numpy(IMAGE, "npu", session=session, name="images")
            binding = session.io_binding()
            binding.bind_ortvalue_input("images", value)
            binding.bind_output("y", "npu")
            session.run_with_iobinding(binding, core=core)
            (result,) = binding.get_outputs()
            assert result.numpy(np.float32).tolist() == IMAGE.tolist()
            value.update_inplace(255 - IMAGE)
            session.submit_with_iobinding(binding, core=core).result(120)
            assert result.numpy(np.float32).tolist() == (255 - IMAGE).tolist()
        binding = session.io_binding()
        binding.bind_cpu_input("images", IMAGE)
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == IMAGE.tolist()
        assert session.run(None, IMAGE)[0].tolist() == IMAGE.tolist(), "bound and other runs do not disturb each other"


def test_codes_in_bound_memory(device: str) -> None:
    codes = (IMAGE.astype(np.int16) - 128).astype(np.int8)
    with opened(image_model(), device) as session:
        value = OrtValue.ortvalue_from_numpy(codes, "npu", session=session, name="images")
        assert value.element_type() == "tensor(int8)"
        assert value.numpy().tolist() == codes.tolist()
        binding = session.io_binding()
        binding.bind_ortvalue_input("images", value)
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == IMAGE.tolist()


def test_what_a_session_tells() -> None:
    with opened(image_model(), device="sim:rk3588") as session:
        assert session.device == "software NPU, rk3588, 3 cores"
        assert session.get_providers() == ["RKNPU2ExecutionProvider"]
        assert session.get_modelmeta().custom_metadata_map == {}
        assert session.get_inputs()[0].layout == "NCHW"
        assert session.get_native_inputs()[0].layout == "NHWC"


def single_core() -> Model:
    model = image_model()
    return Model("rk3566", "w8a8", model.programs, name=model.name)


def test_a_chip_with_one_core() -> None:
    with opened(single_core()) as session:
        assert session.device == "software NPU, rk3566, 1 core"
        jobs = [session.submit(None, IMAGE) for _ in range(5)]
        assert all(job.result(120)[0].tolist() == IMAGE.tolist() for job in jobs)
    with opened(single_core(), schedule=[0]) as session:
        session.run(None, IMAGE)
    with opened(single_core(), tp_mode="0") as session:
        session.run(None, IMAGE)
    for wrong in ({"schedule": [0, 1]}, {"tp_mode": "all"}, {"tp_mode": "1"}):
        with pytest.raises(OptionError, match="rk3566"):
            opened(single_core(), **wrong)


@pytest.mark.parametrize(
    "options", [{"schedule": [0, 1, 2]}, {"tp_mode": "0,1,2"}, {"disable_dup_context": True}, {"threads_per_core": 2}]
)
def test_every_way_to_use_cores(options: dict[str, Any], device: str) -> None:
    with opened(image_model(), device, **options) as session:
        assert all(result[0].tolist() == IMAGE.tolist() for result in session.stream([IMAGE] * 12))


@pytest.mark.parametrize("chip", ["rv1106", "rv1103b"])
def test_chips_without_the_general_calls(chip: str) -> None:
    library = SoftwareLibrary()
    images = image_model(mean=3.0, std=2.0)
    model = Model(chip, "w8a8", images.programs, name="image", preprocess=images.preprocess)
    with InferenceSession(modelfile.to_bytes(model), device=OwnLibrary(library)) as session:
        expected = np.clip(np.rint((IMAGE - 3.0) / 2.0), 0, 255)
        assert session.run(None, IMAGE)[0].tolist() == expected.tolist()
        codes = (IMAGE.astype(np.int16) - 128).astype(np.int8)
        assert session.run(None, codes)[0].tolist() == IMAGE.tolist()
        assert [result[0].tolist() for result in session.stream([IMAGE, codes] * 5)] == [expected.tolist(), IMAGE.tolist()] * 5
        with pytest.raises(FeedTypeError, match="normalizes bytes only"):
            session.run(None, IMAGE.astype(np.float32))
        binding = session.io_binding()
        binding.bind_cpu_input("images", IMAGE)
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == expected.tolist()
        del binding
    assert len(library.handles) == 0
    assert len(library.memories) == 0
    chain = dense_chain()
    rows = np.random.default_rng(1).integers(-128, 128, (1, 8), np.int8)
    with opened(Model(chip, "w8a8", chain.programs, name="chain"), output_type="model") as session:
        for given in (rows, rows.astype(np.float32) * SCALE):
            assert session.run(None, given)[0].tolist() == dense_values(chain, rows)["y"].tolist()


def test_weights_are_shared_and_outlive_the_lender() -> None:
    model = modelfile.to_bytes(image_model())
    library = SoftwareLibrary()
    lender = InferenceSession(model, device=OwnLibrary(library))
    borrower = InferenceSession(model, device=OwnLibrary(library), use_weight_from=lender)
    lender.close()
    assert borrower.run(None, IMAGE)[0].tolist() == IMAGE.tolist()
    assert len(library.handles) == 2, "the lender's context stays while its weights are used"
    borrower.close()
    assert len(library.handles) == 0


class OwnLibrary:
    """A device that is a library of the test's own."""

    def __init__(self, library: SoftwareLibrary) -> None:
        self.library = library

    def open_backend(self, model: Any, options: Any, weights_from: Any) -> Any:
        from anynpu.rknn import open_backend

        return open_backend(model, options, self.library, weights_from)


def test_nothing_is_left_open() -> None:
    library = SoftwareLibrary()
    for options in ({}, {"schedule": [0, 1, 2]}, {"threads_per_core": 2}):
        session = InferenceSession(modelfile.to_bytes(image_model()), device=OwnLibrary(library), provider_options=options)
        list(session.stream([IMAGE] * 8))
        binding = session.io_binding()
        binding.bind_cpu_input("images", IMAGE)
        session.run_with_iobinding(binding)
        session.close()
        del binding, session
        assert len(library.handles) == 0
        assert len(library.memories) == 0
    for wrong in ({"schedule": [7]}, {"output_type": {"nothing": "model"}}):
        with pytest.raises(OptionError):
            InferenceSession(modelfile.to_bytes(image_model()), device=OwnLibrary(library), provider_options=wrong)
        assert len(library.handles) == 0


def test_a_run_that_is_stopped_or_out_of_time() -> None:
    engine = GatedEngine()
    library = SoftwareLibrary(engine=engine)
    model = modelfile.to_bytes(dense_chain(layers=40))
    row = np.zeros((1, 8), np.int8)
    with InferenceSession(model, device=OwnLibrary(library)) as session:
        job = session.submit(None, row)
        engine.wait_entered()
        assert job.cancel()
        engine.gate.set()
        with pytest.raises(JobCancelled):
            job.result(120)
        session.run(None, row)
        engine.gate.clear()
        while engine.entered.acquire(blocking=False):
            pass  # the layers of the runs before
        late = Thread(lambda: session.run(None, row, timeout=0.02))
        expire(late, engine, 0.05)
        with pytest.raises(DeviceTimeout):
            late.finish()


def test_a_hung_context_is_replaced() -> None:
    engine = GatedEngine()
    library = SoftwareLibrary(engine=engine)
    row = np.zeros((1, 8), np.int8)
    with InferenceSession(
        modelfile.to_bytes(dense_chain()),
        device=OwnLibrary(library),
        provider_options={"schedule": [0, 1], "watchdog_ms": 3_600_000},
    ) as session:
        job = session.submit(None, row)
        engine.wait_entered()
        session._runner._find_hung(time.perf_counter_ns() + 7_200_000_000_000)  # two hours later
        with pytest.raises(DeviceHungError):
            job.result(PATIENCE)
        engine.gate.set()
        for _ in range(6):
            session.run(None, row)
    wait_until(lambda: len(library.handles) == 0, "all contexts are gone")


def test_models_that_cannot_be_opened(tmp_path: Path) -> None:
    for content in (b"ABCD" * 40, b"RKNN" + bytes(12), b"RK"):
        with pytest.raises(SessionModelError) as caught:
            InferenceSession(content, device="sim")
        assert isinstance(caught.value, RuntimeError)
        (tmp_path / "bad.rknn").write_bytes(content)
        with pytest.raises(RuntimeError):
            InferenceSession(tmp_path / "bad.rknn", device="sim")
    with pytest.raises(OptionError, match="another family"):
        opened_with_provider("VIPLiteExecutionProvider")
    opened_with_provider("RKNPU2ExecutionProvider").close()


def opened_with_provider(name: str) -> InferenceSession:
    return InferenceSession(modelfile.to_bytes(image_model()), providers=[name], device="sim")


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(AnynpuError, match=r"/nowhere/librknnrt\.so cannot be loaded"):
        opened(image_model(), device="rknn:/nowhere/librknnrt.so")
    with pytest.raises(AnynpuError, match="there is no device 'gpu'"):
        opened(image_model(), device="gpu")


@pytest.fixture(scope="module")
def compiler() -> str:
    return need("cc")


def test_plugins_that_cannot_be_used(tmp_path: Path, compiler: str) -> None:
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "empty.c").write_text("int something_else(void) { return 0; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "empty.so", tmp_path / "empty.c"], check=True, timeout=600)
    for path, text in (
        (tmp_path / "gone.so", "there is no plugin"),
        (tmp_path / "text.so", "cannot be loaded"),
        (tmp_path / "empty.so", "does not export get_rknn_custom_op"),
    ):
        with pytest.warns(UserWarning, match="rknn_init"), pytest.raises(RuntimeError, match=text) as caught:
            opened(image_model(), custom_op_paths=path)
        assert str(path) in str(caught.value), "the whole name, readable"


def test_the_vendors_folder_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("anynpu.session.options.DEFAULT_PLUGIN_FOLDER", str(tmp_path / "op_plugins"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        opened(image_model(), custom_op_default_path=True).close()
    assert "there is no folder" in str([str(one.message) for one in warned])
    (tmp_path / "op_plugins").mkdir()
    (tmp_path / "op_plugins" / "librkcst_bad.so").write_text("no library")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        opened(image_model(), load_custom_ops_from_default_path=True).close()
    assert "librkcst_bad.so is left out" in str([str(one.message) for one in warned])


STUB = """
#include <stdint.h>
#include <string.h>
#include "abi.h"
static uint32_t contexts = 0;
static int failing = 0;
int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend)
{ (void)model; (void)size; (void)flag; (void)extend; *context = ++contexts; return 0; }
int rknn_dup_context(rknn_context *in, rknn_context *out) { (void)in; *out = ++contexts; return 0; }
int rknn_destroy(rknn_context context) { (void)context; return 0; }
static void tensor(rknn_tensor_attr *attr, const char *name)
{ uint32_t index = attr->index; memset(attr, 0, sizeof *attr); attr->index = index; strcpy(attr->name, name);
  attr->n_dims = 2; attr->dims[0] = 1; attr->dims[1] = 4; attr->n_elems = 4; attr->size = attr->size_with_stride = 16;
  attr->fmt = RKNN_TENSOR_UNDEFINED; attr->type = RKNN_TENSOR_FLOAT32; }
int rknn_query(rknn_context context, rknn_query_cmd cmd, void *info, uint32_t size)
{ (void)context;
  if (cmd == RKNN_QUERY_IN_OUT_NUM) { ((rknn_input_output_num *)info)->n_input = ((rknn_input_output_num *)info)->n_output = 1; return 0; }
  if (cmd == RKNN_QUERY_INPUT_ATTR || cmd == RKNN_QUERY_NATIVE_INPUT_ATTR) { tensor(info, "x"); return 0; }
  if (cmd == RKNN_QUERY_OUTPUT_ATTR || cmd == RKNN_QUERY_NATIVE_OUTPUT_ATTR) { tensor(info, "y"); return 0; }
  if (cmd == RKNN_QUERY_SDK_VERSION) { memset(info, 0, size); strcpy(((rknn_sdk_version *)info)->drv_version, "0.9.8"); return 0; }
  return RKNN_ERR_PARAM_INVALID; }
int rknn_set_core_mask(rknn_context context, rknn_core_mask mask) { (void)context; (void)mask; return 0; }
static float held[64][4];
static float result[64][4];
int rknn_inputs_set(rknn_context context, uint32_t n, rknn_input *inputs)
{ if (n != 1 || inputs[0].size != 16) return RKNN_ERR_INPUT_INVALID;
  memcpy(held[context & 63], inputs[0].buf, 16); failing = held[context & 63][0] < 0;
  return held[context & 63][0] < -1 ? RKNN_ERR_INPUT_INVALID : 0; }
int rknn_run(rknn_context context, rknn_run_extend *extend)
{ (void)extend; if (failing) return RKNN_ERR_FAIL;
  for (int i = 0; i < 4; i++) result[context & 63][i] = 3 * held[context & 63][i]; return 0; }
int rknn_outputs_get(rknn_context context, uint32_t n, rknn_output *outputs, rknn_output_extend *extend)
{ (void)extend; if (n != 1 || outputs[0].size < 16) return RKNN_ERR_OUTPUT_INVALID;
  memcpy(outputs[0].buf, result[context & 63], 16); return 0; }
int rknn_outputs_release(rknn_context context, uint32_t n, rknn_output *outputs) { (void)context; (void)n; (void)outputs; return 0; }
"""


def test_a_library_that_was_loaded(tmp_path: Path, compiler: str) -> None:
    """The way of a board: the same calls as functions of a shared library, one after the other outside the GIL."""
    (tmp_path / "stub.c").write_text(STUB)
    header = Path(modelfile.__file__).parents[1] / "rknn"
    library = tmp_path / "librknnrt.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-I", header, "-o", library, tmp_path / "stub.c"], check=True, timeout=600)
    model = b"RKNN" + bytes(4) + (6).to_bytes(8, "little") + bytes(64)
    with InferenceSession(model, device=f"rknn:{library}") as session:
        assert "librknnrt" in session.device
        assert "driver 0.9.8" in session.device
        for value in range(4):
            row = np.full((1, 4), value, np.float32)
            assert session.run(None, row)[0].tolist() == [[3 * value] * 4]
        rows = [np.full((1, 4), value, np.float32) for value in range(30)]
        assert [result[0][0, 0] for result in session.stream(rows)] == [3 * value for value in range(30)]
        with pytest.raises(RuntimeError, match=r"rknn_run, RKNN_ERR_FAIL, -1"):
            session.run(None, np.full((1, 4), -1, np.float32))
        with pytest.raises(RuntimeError, match=r"rknn_inputs_set, RKNN_ERR_INPUT_INVALID, -8"):
            session.run(None, np.full((1, 4), -2, np.float32))
        assert len(session.statistics.lanes) == session._backend.cores, "all contexts are opened before the first run"


def test_statistics_tell_the_time_on_the_chip() -> None:
    model = image_model()
    with opened(model) as session:
        predicted = predict(model.programs[0], chips.get(model.chip)).latency_us / 1000
        assert session.statistics.device_ms == pytest.approx(predicted)
    assert session.statistics.device_ms is None
    with opened(
        model, f"rknn:{library_folder() / 'librknnrt.so'}"
    ) as session:  # a library that was loaded has a clock of its own
        assert session.statistics.device_ms is None
