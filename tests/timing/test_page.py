"""The page about timing: its example runs, its numbers are those of the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation import blocks, section

from anynpu import chips
from anynpu.chips.timing.parameters import timing_profile

from .nets import Chain

PAGE = section("validation", "Latency prediction")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    chain = Chain(1, 3, 64, 64)
    chain.conv(16, stride=2, activation="Silu")
    chain.save(tmp_path / "yolo.onnx", stripped=True)
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(section("choose-a-chip", "Predicted latency"))
    exec(compile(block, "choose-a-chip.md", "exec"), {})
    assert "fps on 3 cores, " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["rk3588", "rk3576", "rk3566", "rk3562"])
def test_the_parameters_are_those_of_the_catalogue(name: str) -> None:
    profile = timing_profile(chips.get(name))
    numbers = profile.parameters
    row = next(line for line in PAGE.splitlines() if re.match(rf"\| {name} \| \d", line))
    shown = [float(cell) for cell in row.strip("| ").split("|")[1:]]
    expected = (
        numbers.macs_per_ns,
        numbers.bytes_per_ns,
        numbers.lookup_ns,
        numbers.floor_ns / 1000,
        numbers.slow_ns,
        numbers.cpu_ns,
    )
    assert shown == pytest.approx(expected, rel=0.02)


def test_the_medians_are_those_of_the_catalogue() -> None:
    lines = PAGE.splitlines()
    names = next(line for line in lines if line.startswith("| model |")).strip("| ").split(" | ")[1:]
    medians = next(line for line in lines if line.startswith("| **median")).strip("| ").split(" | ")[1:]
    for name, text in zip(names, medians, strict=True):
        error = timing_profile(chips.get(name)).median_error
        assert error == pytest.approx(float(text.removesuffix(" %")) / 100, abs=6e-4)
