"""All calls of the interface from C and from C++, against the engine."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.npu import Context, CustomCall, Device

from .conftest import SIDE, Models
from .running import board_environment, build, clean_environment, fill_bytes, run
from .test_symbols import declared

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture
def folder(models: Models, tmp_path: Path) -> Path:
    for field in fields(models):
        shutil.copy(getattr(models, field.name), tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with Device("rk3588") as device:
        yield device


def picture(side: int, seed: int) -> Array:
    return fill_bytes(3 * side * side, seed).reshape(1, side, side, 3)


def gain(call: CustomCall) -> None:
    call.outputs[0].array[...] = call.inputs[0].array * call.attributes["gain"]


def check_outputs(folder: Path, models: Models, device: Device) -> None:
    def found(name: str, dtype: type[np.generic], like: Array) -> Array:
        return np.fromfile(folder / f"{name}.bin", dtype).reshape(like.shape)

    def outputs(context: Context, side: int, seed: int, dequantize: bool = True) -> Array:
        with context:
            result: Array = context.run([picture(side, seed)], layout="nhwc", dequantize=dequantize)[0]
        return result

    small, dynamic = device.load(models.small), device.load(models.dynamic)
    expected = outputs(small.context(), SIDE, 1)
    np.testing.assert_array_equal(found("general", np.float32, expected), expected)
    codes = outputs(small.context(), SIDE, 1, dequantize=False)
    blocks = (
        np.fromfile(folder / "native.bin", np.int8).reshape(-1, SIDE, SIDE, 16).transpose(0, 3, 1, 2).reshape(1, -1, SIDE, SIDE)
    )
    np.testing.assert_array_equal(blocks[:, : codes.shape[1]], codes)
    for index, side in enumerate((16, 24)):
        expected = outputs(dynamic.context(shapes=index), side, 5)
        np.testing.assert_array_equal(found(f"dynamic{side}", np.float32, expected), expected)
    context = device.load(models.custom).context()
    context.register_custom_operator("Gain", gain)
    expected = outputs(context, SIDE, 41)
    np.testing.assert_array_equal(found("custom", np.float32, expected), expected)


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("cc", ["-std=gnu99"]), ("c++", ["-x", "c++", "-std=c++17"]), ("address sanitizer", ["-fsanitize=address,undefined"])],
    ids=["c", "c++", "sanitizers"],
)
def test_all_calls(folder: Path, models: Models, device: Device, compiler: str, flags: list[str], tmp_path: Path) -> None:
    program = build("calls.c", tmp_path / "calls", *flags, compiler=compiler)
    environment = clean_environment(
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="halt_on_error=1",
        ANYNPU_CALL_LOG=str(tmp_path / "log"),
        RKNN_LOG_LEVEL="-1",  # some calls fail on purpose
    )
    environment["ANYNPU_CALL_LOG_FORMAT"] = "json"
    done = run([program, folder], environment)
    assert done.stdout == "done\n"
    assert done.stderr == ""
    check_outputs(folder, models, device)
    called = {json.loads(line)["call"] for line in (tmp_path / "log").read_text().splitlines()}
    assert called == declared()


def test_the_python_side_drives_the_library_as_a_vendors(models: Models, tmp_path: Path) -> None:
    """Our own Python class on our own library: what it does on a board."""
    from anynpu.dropin.environment import library_folder
    from anynpu.rknn.model import RknnModel

    code = """
import sys
from anynpu.rknn.model import RknnModel
with RknnModel.load_with_lib(sys.argv[1], sys.argv[2]) as model:
    model.run(open(sys.argv[3], "rb").read())
    open(sys.argv[4], "wb").write(model.output_raw(0).tobytes())
"""
    pixels = fill_bytes(3 * SIDE * SIDE, 8).tobytes()
    (tmp_path / "pixels").write_bytes(pixels)
    arguments = [models.small, library_folder() / "librknnrt.so", tmp_path / "pixels", tmp_path / "codes"]
    run([sys.executable, "-c", code, *arguments], board_environment("rk3588"))
    with RknnModel.load(models.small, device="sim:rk3588") as model:
        model.run(pixels)
        assert (tmp_path / "codes").read_bytes() == model.output_raw(0).tobytes()
