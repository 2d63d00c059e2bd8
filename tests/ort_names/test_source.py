"""ONNX files where compiled models are asked for: settings, the cache, dynamic shapes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu.session.onnxruntime as ort
from anynpu import errors
from anynpu._util import optional as _optional
from anynpu.session.onnxruntime import dynamic_shapes as openshapes
from anynpu.session.onnxruntime.ports import is_onnx, program_variables
from anynpu.session.onnxruntime.source import OnnxSource

from .models import save_models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("source")
    save_models(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYNPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ANYNPU_DEVICE", "sim")
    return tmp_path / "cache" / "onnx"


def as_float16() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_session_config_entry("anynpu.dtype", "fp16")
    return options


def test_it_must_be_said_how_to_compile(models: Path) -> None:
    with pytest.raises(errors.SessionModelError, match="no compile options are given") as caught:
        ort.InferenceSession(models / "classifier.onnx")
    assert "--float16" in caught.value.hint


def test_settings_of_the_environment_and_of_the_options(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_ONNX_DTYPE", "fp16")
    monkeypatch.setenv("ANYNPU_ONNX_CHIP", "rk3566")
    source = OnnxSource.of(models / "classifier.onnx", {}, {}, None)
    assert (source.chip, source.dtype, source.dataset) == ("rk3566", "fp16", "")
    source = OnnxSource.of(models / "classifier.onnx", {"anynpu.chip": "rk3576"}, {}, "sim:rk3588")
    assert source.chip == "rk3576"
    monkeypatch.delenv("ANYNPU_ONNX_CHIP")
    assert OnnxSource.of(models / "classifier.onnx", {}, {}, "sim:rk3562").chip == "rk3562"
    monkeypatch.setenv("ANYNPU_ONNX_DATASET", f"classifier8={models / 'data'}:other=/nowhere")
    assert OnnxSource.of(models / "classifier8.onnx", {}, {}, None).dtype == "w8a8"
    assert OnnxSource.of(models / "classifier.onnx", {}, {}, None).dtype == "fp16"
    monkeypatch.setenv("ANYNPU_ONNX_DATASET", f"{models / 'data'}")
    assert OnnxSource.of(models / "classifier.onnx", {}, {}, None).dtype == "w8a8"


def test_the_vendors_library_takes_no_onnx(models: Path) -> None:
    with pytest.raises(errors.SessionModelError, match="cannot run on the vendor's library"):
        ort.InferenceSession(models / "classifier.onnx", as_float16(), device="rknn:librknnrt.so")


def test_what_is_compiled_once_is_found_again(models: Path, cache: Path) -> None:
    x = np.ones((1, 3, 16, 16), np.float32)
    with ort.InferenceSession(models / "classifier.onnx", as_float16()) as session:
        (expected,) = session.run(None, {"input": x})
    (file,) = cache.iterdir()
    before = file.stat().st_mtime_ns
    with ort.InferenceSession((models / "classifier.onnx").read_bytes(), as_float16()) as session:
        np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected)
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]
    file.write_bytes(file.read_bytes()[:100])  # damaged: made again
    with ort.InferenceSession(models / "classifier.onnx", as_float16()) as session:
        np.testing.assert_array_equal(session.run(None, {"input": x})[0], expected)


def test_changed_calibration_data_is_another_model(models: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "0.npy", np.ones((1, 3, 16, 16), np.float32))
    source = OnnxSource(models / "classifier.onnx", "rk3588", "w8a8", str(data))
    first = source._key({"input": (1, 3, 16, 16)})
    assert source._key({"input": (1, 3, 16, 16)}) == first
    assert source._key({"input": (1, 3, 16, 32)}) != first
    np.save(data / "1.npy", np.ones((1, 3, 16, 16), np.float32))
    assert source._key({"input": (1, 3, 16, 16)}) != first


def test_what_is_onnx(models: Path, tmp_path: Path) -> None:
    assert is_onnx(models / "classifier.onnx")
    assert is_onnx(str(models / "classifier.onnx"))
    assert is_onnx((models / "classifier.onnx").read_bytes())
    (tmp_path / "text").write_text("hello")
    for other in (tmp_path / "text", tmp_path / "absent", tmp_path, b"", b"RKNN", None, "grpc://board/yolo"):
        assert not is_onnx(other), other


def same(session: ort.InferenceSession, genuine: Any, x: Any) -> None:
    np.testing.assert_allclose(session.run(None, {"x": x})[0], genuine.run(None, {"x": x})[0], atol=0.01)


def test_open_shapes_are_compiled_as_they_come(models: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openshapes, "MAX_OPEN", 2)
    rng = np.random.default_rng(1)
    genuine = _optional.onnxruntime().InferenceSession(str(models / "recogniser.onnx"))
    with ort.InferenceSession(models / "recogniser.onnx", as_float16()) as session:
        assert not cache.exists() or not list(cache.iterdir())
        for width in (16, 32, 48, 16, 32):  # more than a lane keeps open
            same(session, genuine, rng.random((1, 3, 16, width), np.float32))
        assert len(list(cache.iterdir())) == 3
        assert session.get_inputs()[0].shape == ["batch", 3, 16, "width"]
        for shape in ((1, 3, 17, 16), (1, 4, 16, 16), (3, 16, 16)):
            with pytest.raises(errors.FeedShapeError, match=r"it takes \['batch', 3, 16, 'width'\]"):
                session.run(None, {"x": np.zeros(shape, np.float32)})
        with pytest.raises(errors.FeedNameError):
            session.run(None, {"y": np.zeros((1, 3, 16, 16), np.float32)})
        with pytest.raises(errors.SessionError, match="device memory"):
            ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 3, 1, 1), np.float32), "npu", session=session, name="x")
        with pytest.raises(errors.SessionError, match="weights cannot be shared"):
            ort.InferenceSession(models / "recogniser.onnx", as_float16(), use_weight_from=session)


def test_open_shapes_in_many_threads_are_compiled_once(models: Path, cache: Path) -> None:
    x = np.random.default_rng(2).random((1, 3, 16, 32), np.float32)
    results: list[Any] = []
    with ort.InferenceSession(models / "recogniser.onnx", as_float16()) as session:
        threads = [threading.Thread(target=lambda: results.append(session.run(None, {"x": x})[0])) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        answers = list(session.stream([{"x": x}] * 5))
    assert len(results) == 6
    assert len(answers) == 5
    assert all((result == results[0]).all() for result in [*results, *(answer[0] for answer in answers)])
    assert len(list(cache.iterdir())) == 1


def test_open_shapes_with_channels_last(models: Path) -> None:
    x = np.random.default_rng(3).random((1, 3, 16, 32), np.float32)
    with ort.InferenceSession(models / "recogniser.onnx", as_float16()) as session:
        (expected,) = session.run(None, {"x": x})
    last = {"layout": "nhwc"}
    with ort.InferenceSession(models / "recogniser.onnx", as_float16(), provider_options=last) as session:
        assert session.get_inputs()[0].shape == ["batch", 16, "width", 3]
        (result,) = session.run(None, {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1))})
    np.testing.assert_array_equal(result, expected)


def test_bindings_of_open_shapes(models: Path) -> None:
    x = np.random.default_rng(4).random((1, 3, 16, 32), np.float32)
    with ort.InferenceSession(models / "recogniser.onnx", as_float16()) as session:
        (expected,) = session.run(None, {"x": x})
        binding = session.io_binding()
        with pytest.raises(errors.FeedNameError, match="All model inputs must be bound"):
            session.run_with_iobinding(binding)
        with pytest.raises(errors.FeedNameError, match="there is no input 'y'"):
            binding.bind_cpu_input("y", x)
        with pytest.raises(errors.FeedNameError, match="there is no output 'y'"):
            binding.bind_output("y")
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        target = ort.OrtValue.ortvalue_from_shape_and_type(expected.shape, np.float32)
        binding.bind_ortvalue_output("text", target)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(target.numpy(), expected)
        binding.clear_binding_outputs()
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)


def test_variables_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = program_variables({"ANYNPU_CHIP": "rk3576", "A": "b"}, float16=True, datasets=["det=pages", "more"])
    assert made == {
        "A": "b",
        "ANYNPU_CHIP": "rk3576",
        "ANYNPU_DEVICE": "sim:rk3576",
        "ANYNPU_ONNX_DTYPE": "fp16",
        "ANYNPU_ONNX_DATASET": f"det={tmp_path / 'pages'}:{tmp_path / 'more'}",
    }
    assert program_variables({}) == {"ANYNPU_DEVICE": "sim"}
    assert program_variables({"ANYNPU_DEVICE": "sim:rv1106"}) == {"ANYNPU_DEVICE": "sim:rv1106"}


def test_a_compiled_model_needs_no_compiler() -> None:
    code = (
        "import sys, anynpu; anynpu.InferenceSession; print([name for name in sys.modules if name.startswith('anynpu.compiler')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[]\n"


def test_flags_of_exec_that_belong_together() -> None:
    command = [sys.executable, "-m", "anynpu.cli", "exec", "--float16", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, "are for --onnxruntime" in done.stderr) == (2, True)
