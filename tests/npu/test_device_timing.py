"""A device whose predictions rest on a calibrated board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import chips
from anynpu.chips.timing.board import write_board
from anynpu.chips.timing.parameters import TimingProfile, timing_profile
from anynpu.errors import DeviceError
from anynpu.npu import Device
from anynpu.program import Program


def slow_board() -> TimingProfile:
    """Ten times as slow as the chip."""
    known = timing_profile(chips.get("rk3588"))
    return replace(known, parameters=replace(known.parameters, scale=10.0))


@pytest.fixture(scope="module")
def program() -> Program:
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6])],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")],
    )
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return anynpu.compile(proto, "rk3588", dtype="fp16").programs[0]


def test_a_device_takes_the_time_of_its_board(program: Program, tmp_path: Path) -> None:
    path = write_board(slow_board(), tmp_path / "desk.json")
    with Device("rk3588") as plain, Device("rk3588", timing=path) as named, Device("rk3588", timing=slow_board()) as given:
        times = [device.prediction(program).latency_us for device in (plain, named, given)]
    assert times[1:] == pytest.approx([10 * times[0]] * 2)


def test_the_environment_names_a_board(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_TIMING", str(write_board(slow_board(), tmp_path / "desk.json")))
    with Device("rk3588") as device, Device("rk3566") as other:
        assert device.timing is not None
        assert device.prediction(program).profile.parameters.scale == 10
        assert other.timing is None


def test_the_profile_of_another_chip_is_refused() -> None:
    with pytest.raises(DeviceError, match="a board with rk3588"):
        Device("rk3566", timing=slow_board())
