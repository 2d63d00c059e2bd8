"""Board profiles: written, read, and rejected where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anynpu import chips
from anynpu.chips.timing.board import read_board, write_board
from anynpu.chips.timing.parameters import FloatParameters, TimingParameters, TimingProfile, timing_profile
from anynpu.errors import ModelFormatError, UnknownChipError

PROFILE = TimingProfile(
    "rk3566",
    TimingParameters(400.0, 3.0, 40.0, 5e4, 0.5, 2.0, 1.58, 2.9e6),
    True,
    "5 models of desk.csv",
    "2.3.0",
    5,
    0.02,
    0.11,
    float_numbers=FloatParameters(3.0, 10.0, 9.0, 17.0, 0.0, 2.0, 0.4, 1e5),
    float_error=0.2,
)


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_board(write_board(PROFILE, tmp_path / "desk.json")) == PROFILE


def test_a_profile_that_is_written_from_a_chip_is_calibrated(tmp_path: Path) -> None:
    profile = timing_profile(chips.get("rk3588"))
    back = read_board(write_board(profile, tmp_path / "chip.json"))
    assert back.parameters == profile.parameters
    assert back.median_error == profile.median_error


def changed(tmp_path: Path, **entries: Any) -> Path:
    path = write_board(PROFILE, tmp_path / "desk.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    return path


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"anynpu board profile"'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ModelFormatError, match="is not a board profile"):
        read_board(path)


@pytest.mark.parametrize("value", [None, "fast", True, float("nan"), float("inf"), 0, -1])
def test_parameters_that_are_no_positive_numbers_are_refused(tmp_path: Path, value: Any) -> None:
    parameters = {**vars(PROFILE.parameters), "bytes_per_ns": value}
    with pytest.raises(ModelFormatError, match="bytes_per_ns"):
        read_board(changed(tmp_path, parameters=parameters))


def test_an_offset_may_be_negative(tmp_path: Path) -> None:
    path = changed(tmp_path, parameters={**vars(PROFILE.parameters), "offset_ns": -2e5})
    assert read_board(path).parameters.offset_ns == -2e5


def test_a_newer_version_and_an_unknown_chip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="version 2"):
        read_board(changed(tmp_path, version=2))
    with pytest.raises(UnknownChipError, match="rk9999"):
        read_board(changed(tmp_path, chip="rk9999"))
    with pytest.raises(ModelFormatError, match="no parameters"):
        read_board(changed(tmp_path, parameters=[1, 2]))


def test_a_file_without_float_numbers_has_those_of_the_chip(tmp_path: Path) -> None:
    read = read_board(changed(tmp_path, float_numbers=None))
    assert read.float_numbers == timing_profile(chips.get("rk3566")).float_numbers


@pytest.mark.parametrize("value", [None, "fast", True, float("nan"), -1.0, 0])
def test_float_numbers_that_are_none_are_refused(tmp_path: Path, value: Any) -> None:
    numbers = {**vars(PROFILE.floats), "weight_bytes_per_ns": value}
    with pytest.raises(ModelFormatError, match="weight_bytes_per_ns"):
        read_board(changed(tmp_path, float_numbers=numbers))
    with pytest.raises(ModelFormatError, match="float_numbers"):
        read_board(changed(tmp_path, float_numbers=[1]))
