"""Every public name of onnxruntime is here, or docs/session.md states why it is not; and what the names do."""

from __future__ import annotations

import logging
import re
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from documentation import section

import anynpu
import anynpu.session.onnxruntime as ort
from anynpu import errors, modelfile
from anynpu._util import optional as _optional

from .models import save_models

PAGE = section("session", "Names that are not here")
CLASSES = ("SessionOptions", "RunOptions", "OrtValue", "IOBinding", "NodeArg", "ModelMetadata", "InferenceSession", "OrtDevice")


KNOWN = (1, 31)
"""The release of onnxruntime whose names were looked at; a later one may have more."""


@pytest.fixture
def theirs() -> Any:
    package = _optional.onnxruntime()
    if tuple(map(int, package.__version__.split(".")[:2])) > KNOWN:
        pytest.skip(f"onnxruntime {package.__version__} is later than the names that were looked at")
    return package


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def explained() -> set[str]:
    """The names that the page gives a reason for."""
    return set(re.findall(r"`(\w+)`", PAGE)) - {"run_with_ort_values"}


def test_names_of_the_module(theirs: Any) -> None:
    names = {name for name in public(theirs) if not isinstance(getattr(theirs, name), ModuleType)}
    assert names - public(ort) - explained() == set()


@pytest.mark.parametrize("name", CLASSES)
def test_names_of_a_class(name: str, theirs: Any) -> None:
    ours = getattr(ort, name)
    found = public(ours) | set(getattr(ours, "__dataclass_fields__", ()))
    found |= set(vars(ours())) if name in ("SessionOptions", "RunOptions") else set()
    assert public(getattr(theirs, name)) - found - explained() == set()


def test_nothing_is_explained_that_is_here() -> None:
    everything = public(ort).union(*(public(getattr(ort, name)) for name in CLASSES))
    assert explained() & everything == {"version"}  # of the package there, of a model here


@pytest.mark.parametrize("name", ["GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "OrtAllocatorType"])
def test_numbers_of_enumerations(name: str) -> None:
    theirs = getattr(_optional.onnxruntime(), name)
    assert {key: int(value) for key, value in theirs.__members__.items()} == {
        key: int(value) for key, value in getattr(ort, name).__members__.items()
    }
    assert int(ort.OrtMemType.DEFAULT) == 0


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_defaults_of_options(name: str) -> None:
    theirs, ours = getattr(_optional.onnxruntime(), name)(), getattr(ort, name)()
    for attribute in public(theirs):
        value = getattr(theirs, attribute)
        if not callable(value):
            assert getattr(ours, attribute) == (int(value) if hasattr(value, "value") else value), attribute


def test_options_take_anything() -> None:
    options, run_options = ort.SessionOptions(), ort.RunOptions()
    options.no_such_option = run_options.no_such_option = 3  # type: ignore[attr-defined]
    options.add_provider("CUDAExecutionProvider", {})
    options.add_provider_for_devices([], {})
    options.set_provider_selection_policy(None)
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 1)
    assert not options.has_providers()
    for call, key in ((options.get_session_config_entry, "a"), (run_options.get_run_config_entry, "a")):
        with pytest.raises(RuntimeError, match="does not have configuration with key: a"):
            call(key)
    for refused in (
        lambda: options.add_initializer("w", None),
        lambda: options.add_external_initializers(["w"], []),
        lambda: options.register_custom_ops_library("libops.so"),
        lambda: run_options.add_active_adapter(None),
    ):
        with pytest.raises(RuntimeError):
            refused()


def test_exceptions_have_the_usual_names() -> None:
    state = _optional.onnxruntime().capi.onnxruntime_pybind11_state
    names = {
        name for name in dir(state) if isinstance(getattr(state, name), type) and issubclass(getattr(state, name), Exception)
    }
    for module in (ort.capi.onnxruntime_pybind11_state, ort.capi._pybind_state):
        assert names <= set(dir(module))
        assert all(issubclass(getattr(module, name), errors.AnynpuError) for name in names)
    assert ort.capi.onnxruntime_pybind11_state.InvalidArgument is errors.FeedError


def test_small_functions(caplog: pytest.LogCaptureFixture) -> None:
    assert ort.get_device() == anynpu.get_device() == "NPU"
    assert ort.get_version_string() == ort.__version__
    assert ort.__version__ in ort.get_build_info()
    assert set(ort.get_available_providers()) < set(ort.get_all_providers())
    assert set(_optional.onnxruntime().get_all_providers()) <= set(ort.get_all_providers())
    logger = logging.getLogger("anynpu")
    before = logger.level
    try:
        for severity, level in ((0, logging.DEBUG), (2, logging.WARNING), (4, logging.CRITICAL), (9, logging.CRITICAL)):
            ort.set_default_logger_severity(severity)
            assert logger.level == level
    finally:
        logger.setLevel(before)
    for nothing in (ort.disable_telemetry_events, ort.enable_telemetry_events, ort.preload_dlls):
        assert not nothing()
    ort.set_seed(3)
    ort.set_default_logger_verbosity(1)


def test_names_at_the_top_are_those_of_the_module() -> None:
    for name in ("InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding", "NodeArg", "ModelMetadata"):
        assert getattr(anynpu, name) is getattr(ort, name)
    assert issubclass(anynpu.InferenceSession, anynpu.session.InferenceSession)
    assert anynpu.__version__ == anynpu.session.__version__
    assert ort.SessionIOBinding is ort.IOBinding


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The classifier as int8."""
    folder = tmp_path_factory.mktemp("names")
    save_models(folder)
    return modelfile.to_bytes(anynpu.compile(folder / "classifier.onnx", "rk3588", dataset=folder / "data"))


def test_foreign_providers_are_taken_with_one_warning(model: bytes) -> None:
    mixed: list[Any] = [("CUDAExecutionProvider", {"device_id": 0}), "TensorrtExecutionProvider", "CPUExecutionProvider"]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ort.InferenceSession(model, providers=mixed, device="sim") as session:
            assert session.get_providers() == ["RKNPU2ExecutionProvider"]
        own = [*mixed, ("RKNPU2ExecutionProvider", {"layout": "nhwc"})]
        with ort.InferenceSession(model, providers=own, device="sim") as session:
            assert session.get_provider_options() == {"RKNPU2ExecutionProvider": {"layout": "nhwc"}}
            session.set_providers(["CPUExecutionProvider"])
        given = [{}, {"max_queue_size": 7}]
        both = ["CPUExecutionProvider", "RKNPU2ExecutionProvider"]
        with ort.InferenceSession(model, providers=both, provider_options=given, device="sim") as session:
            assert session.options.max_queue_size == 7
    assert [entry.category for entry in seen] == [ort.ForeignProviderWarning] * 4
    assert "CUDAExecutionProvider, TensorrtExecutionProvider, CPUExecutionProvider" in str(seen[0].message)
    assert seen[0].filename == __file__


def test_own_providers_are_as_strict_as_before(model: bytes) -> None:
    with pytest.raises(errors.OptionError, match="Unsupported execution provider"):
        ort.InferenceSession(model, providers=["NoSuchProvider"], device="sim")
    with ort.InferenceSession(model, providers=ort.get_available_providers(), device="sim") as session:
        assert session.get_providers() == ["RKNPU2ExecutionProvider"]


def test_a_compiled_model_shows_numbers_and_not_codes(model: bytes) -> None:
    x = np.random.default_rng(2).standard_normal((1, 3, 16, 16)).astype(np.float32)
    with ort.InferenceSession(model, device="sim") as session:
        assert [(node.name, node.shape, node.type) for node in session.get_inputs()] == [
            ("input", [1, 3, 16, 16], "tensor(float)")
        ]
        assert [(node.shape, node.type) for node in session.get_outputs()] == [([1, 10], "tensor(float)")]
        (result,) = session.run(None, {"input": x})
        assert result.dtype == np.float32
        assert session.get_overridable_initializers() == []
        assert isinstance(session.get_session_options(), ort.SessionOptions)
        value = ort.OrtValue.ortvalue_from_numpy(x, "npu", session=session, name="input")
        assert (value.element_type(), value.data_type()) == (1, "tensor(float)")
        binding = session.io_binding()
        binding.bind_ortvalue_input("input", value)
        session.run_with_iobinding(binding)
        (output,) = binding.get_outputs_as_ortvaluevector()
        assert isinstance(output, ort.OrtValue)
        np.testing.assert_array_equal(output.numpy(), result)


def test_values_by_the_number_of_their_type() -> None:
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(3, np.uint16), 10)
    assert (value.data_type(), value.element_type(), value.numpy().dtype) == ("tensor(float16)", 10, np.float16)
    device = ort.OrtDevice.make("NPU", 1)
    assert (device.device_type(), device.device_id(), device.device_mem_type(), device.device_vendor_id()) == (3, 1, 0, 0)
