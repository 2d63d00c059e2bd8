"""One model through every door gives the same numbers: our session, EZ RKNN Async's and onnxruntime's names, RKNN's calls, C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import anynpu
import anynpu.session
import anynpu.session.onnxruntime
from anynpu.npu import Device
from anynpu.rknn import Context

from .conftest import SIDE, Models
from .running import board_environment, build, run

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def picture() -> Array:
    return np.random.default_rng(31).integers(0, 256, (1, SIDE, SIDE, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def expected(models: Models, picture: Array) -> Array:
    with Device("rk3588") as device, device.load(models.small).context() as context:
        return context.run([picture], layout="nhwc")[0]


def by_session(module: Any, **options: Any) -> Callable[[Path, Array], Array]:
    def door(model: Path, picture: Array) -> Array:
        with module.InferenceSession(str(model), **options) as session:
            last = options.get("provider_options", {}).get("layout") == "nhwc"
            fed = picture if last else np.ascontiguousarray(picture.transpose(0, 3, 1, 2))
            result: Array = session.run(None, {"images": fed})[0]
            return result

    return door


def by_ez_rknn_async(model: Path, picture: Array) -> Array:
    """Device memory, as its own example does it."""
    module: ModuleType = sys.modules["anynpu.session"]
    with module.InferenceSession(str(model), provider_options=module.make_provider_options(layout="nhwc")) as session:
        value = module.OrtValue.ortvalue_from_numpy(picture, "rknpu2", session=session, name="images", io_kind="input")
        binding = session.io_binding()
        binding.bind_ortvalue_input("images", value)
        binding.bind_output("features", "rknpu2")
        session.run_with_iobinding(binding)
        result: Array = binding.get_outputs()[0].numpy(np.float32)
        return result


def by_onnxruntime(model: Path, picture: Array) -> Array:
    """Float32 in NCHW, as a program for onnxruntime has it, through values."""
    ort = anynpu.session.onnxruntime
    with ort.InferenceSession(str(model), ort.SessionOptions()) as session:
        value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(picture.transpose(0, 3, 1, 2)).astype(np.float32))
        result: Array = session.run_with_ort_values(["features"], {"images": value})[0].numpy()
        return result


def by_rknn_calls(model: Path, picture: Array) -> Array:
    with Context(model) as context:
        result: Array = context.run([picture])[0]
        return result


DOORS: dict[str, Callable[[Path, Array], Array]] = {
    "anynpu.session": by_session(anynpu.session),
    "anynpu.session, channels last": by_session(anynpu.session, provider_options={"layout": "nhwc"}),
    "EZ RKNN Async's names": by_ez_rknn_async,
    "import anynpu as ort": by_session(anynpu),
    "anynpu.session.onnxruntime": by_onnxruntime,
    "RKNN calls": by_rknn_calls,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_of_python(door: str, models: Models, picture: Array, expected: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_DEVICE", "sim:rk3588")
    np.testing.assert_array_equal(DOORS[door](models.small, picture), expected)


def test_the_door_of_c(models: Models, picture: Array, expected: Array, tmp_path: Path) -> None:
    program = build("door.c", tmp_path / "door")
    picture.tofile(tmp_path / "pixels")
    run([program, models.small, tmp_path / "pixels", tmp_path / "numbers"], board_environment("rk3588"))
    np.testing.assert_array_equal(np.fromfile(tmp_path / "numbers", np.float32).reshape(expected.shape), expected)
