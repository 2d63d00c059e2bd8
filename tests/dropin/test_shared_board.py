"""Programs that share a board: one uses its cores, another sees that, and the end of the first blocks nobody."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Models
from .running import board_environment, build, run

PATIENCE = 300


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return board_environment("rk3588", board="lab")


@pytest.fixture(scope="module")
def infer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("infer.c", tmp_path_factory.mktemp("board") / "infer")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("system.c", tmp_path_factory.mktemp("board") / "system", library=None)


@pytest.fixture
def busy(infer: Path, models: Models, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program that keeps core 0 busy."""
    process = subprocess.Popen([infer, models.slow, "1000000"], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    yield process
    process.kill()
    process.communicate(timeout=PATIENCE)


def load(system: Path, environment: dict[str, str]) -> str:
    return run([system, "load"], environment).stdout


IDLE = "NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,\n"


def test_another_program_sees_the_load(system: Path, environment: dict[str, str], busy: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while (seen := load(system, environment)) == IDLE:  # between two jobs
        assert time.monotonic() < end
    assert seen == "NPU load:  Core0: 100%, Core1:  0%, Core2:  0%,\n"
    busy.send_signal(signal.SIGKILL)
    busy.wait(PATIENCE)
    assert load(system, environment) == IDLE  # whatever it left behind


def test_two_programs_take_turns(infer: Path, models: Models, environment: dict[str, str], busy: subprocess.Popen[str]) -> None:
    assert run([infer, models.small, "5"], environment).stdout == "0\n1\n2\n3\n4\n"
    assert busy.poll() is None


def test_a_program_that_is_killed_leaves_its_core(
    infer: Path, models: Models, environment: dict[str, str], busy: subprocess.Popen[str]
) -> None:
    time.sleep(0.1)
    busy.send_signal(signal.SIGKILL)
    assert run([infer, models.small, "3"], environment).stdout == "0\n1\n2\n"
