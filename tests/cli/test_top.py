"""``anynpu top``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anynpu.cli.commands.top import board_load
from anynpu.npu import Device

Invoke = Callable[..., Any]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_nothing_runs(invoke: Invoke) -> None:
    assert "no NPU is in use" in invoke("top", "--count", 1, "--interval", 0.05).out


def test_a_busy_core(invoke: Invoke) -> None:
    with Device("rk3588") as device, device.scheduler.acquire(0b010):
        outcome = invoke("top", "--count", 2, "--interval", 0.05)
        data = json.loads(invoke("top", "--count", 1, "--interval", 0.05, "--json").out)
    assert "rk3588" in outcome.out
    assert str(os.getpid()) in outcome.out
    (status,) = data["devices"]
    assert [core["load"] for core in status["cores"]] == [0.0, pytest.approx(100.0, abs=0.1), 0.0]


def test_the_load_of_a_real_board(tmp_path: Path) -> None:
    file = tmp_path / "load"
    file.write_text("NPU load:  Core0: 27%, Core1:  0%, Core2: 100%,")
    assert board_load(file) == [27.0, 0.0, 100.0]
    file.write_text("NPU load: 13%")
    assert board_load(file) == [13.0]
