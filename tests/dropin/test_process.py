"""The libraries in a program that is not ours: how it may load them, call them, fork and end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from anynpu.dropin.environment import library_folder
from anynpu.npu import Device

from .conftest import SIDE, Models
from .running import build, checksum, clean_environment, fill_bytes, run


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("process.c", tmp_path_factory.mktemp("process") / "process", library=None)


@pytest.fixture(scope="module")
def careful_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With AddressSanitizer, which the libraries were not built with and must not disturb."""
    return build("process.c", tmp_path_factory.mktemp("process") / "careful", "-fsanitize=address", library=None)


@pytest.fixture(scope="module")
def expected(models: Models) -> str:
    """The checksum of the output's codes, from the engine itself."""
    with Device("rk3588") as device:
        context = device.load(models.small).context()
        pixels = fill_bytes(3 * SIDE * SIDE, 1).reshape(1, SIDE, SIDE, 3)
        (codes,) = context.run([pixels], layout="nhwc", dequantize=False)
    return checksum(codes.tobytes())


CASES = [
    "threads_first",
    "loaded_local",
    "loaded_global",
    "loaded_again",
    "small_stacks",
    "on_a_coroutine",
    "fork_before_use",
    "fork_after_use",
    "fork_from_a_small_thread",
    "nothing_changes",
]


@pytest.mark.parametrize("case", CASES)
def test_a_foreign_process(program: Path, models: Models, expected: str, case: str) -> None:
    done = run([program, case, library_folder() / "librknnrt.so", models.small])
    assert done.stdout == f"{expected}\n"
    if case == "fork_after_use":  # the child asks for a context of its parent
        assert re.fullmatch(r"E RKNN: \S+ rknn_query: there is no context .*\n", done.stderr)
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("case", ["threads_first", "small_stacks", "fork_after_use"])
def test_with_address_sanitizer(careful_program: Path, models: Models, expected: str, case: str) -> None:
    environment = clean_environment(ASAN_OPTIONS="detect_leaks=0")  # Python is never ended, on purpose
    done = run([careful_program, case, library_folder() / "librknnrt.so", models.small], environment)
    assert done.stdout == f"{expected}\n"


@pytest.mark.full
def test_the_process_may_end_with_calls_in_flight(program: Path, models: Models) -> None:
    for _ in range(2):
        done = run([program, "exit_in_flight", library_folder() / "librknnrt.so", models.slow], code=7)
        assert done.stderr == ""


def test_a_call_after_the_library_has_closed_is_refused(program: Path, models: Models, expected: str) -> None:
    done = run([program, "destroyed_at_exit", library_folder() / "librknnrt.so", models.small])
    assert done.stdout == f"{expected}\n"
    assert done.stderr == "late: -3\n"


def venv_without_packages(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=600)
    return folder / "bin" / "python"


def refuse(program: Path, models: Models, **environment: str | None) -> str:
    """The one line that a program writes which finds no Python."""
    done = run([program, "unavailable", library_folder() / "librknnrt.so", models.small], clean_environment(**environment))
    assert done.stdout == "unavailable\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("librknnrt (anynpu): ")
    return line


def test_an_environment_without_the_package(program: Path, models: Models, tmp_path: Path) -> None:
    """Neither is there another place to take it from."""
    python = venv_without_packages(tmp_path / "empty")
    line = refuse(program, models, ANYNPU_PYTHON=str(python), ANYNPU_SITE=str(tmp_path), PYTHONPATH=None)
    assert re.search(r"does not start in Python 3\.\d+ \(.*empty\): ModuleNotFoundError: No module named", line)


def test_an_environment_made_inside_another(program: Path, models: Models, tmp_path: Path) -> None:
    """Python 3.10 writes the other environment as its home, which has no library of Python's own."""
    python = venv_without_packages(tmp_path / "empty")
    other = venv_without_packages(tmp_path / "other")
    written = tmp_path / "empty" / "pyvenv.cfg"
    lines = [line for line in written.read_text().splitlines() if not line.startswith("home")]
    written.write_text("\n".join([f"home = {other.parent}", *lines]) + "\n")
    line = refuse(program, models, ANYNPU_PYTHON=str(python), ANYNPU_SITE=str(tmp_path), PYTHONPATH=None)
    assert "No module named" in line


def test_an_interpreter_that_does_not_exist(program: Path, models: Models, tmp_path: Path) -> None:
    line = refuse(program, models, ANYNPU_PYTHON=str(tmp_path / "bin" / "python"))
    assert f"{tmp_path}/bin/python" in line


def test_a_library_of_python_that_does_not_exist(program: Path, models: Models, tmp_path: Path) -> None:
    line = refuse(program, models, ANYNPU_LIBPYTHON=str(tmp_path / "libpython.so"))
    assert "cannot load Python" in line
    assert "ANYNPU_LIBPYTHON" in line


def test_an_environment_whose_python_was_removed(program: Path, models: Models, tmp_path: Path) -> None:
    """Python itself would end the process here."""
    python = venv_without_packages(tmp_path / "moved")
    settings = tmp_path / "moved" / "pyvenv.cfg"
    settings.write_text(re.sub(r"^home = .*$", f"home = {tmp_path}/gone/bin", settings.read_text(), flags=re.MULTILINE))
    line = refuse(program, models, ANYNPU_PYTHON=str(python), ANYNPU_LIBPYTHON=libpython())
    assert "has no standard library" in line


def test_a_wrong_python_home(program: Path, models: Models, tmp_path: Path) -> None:
    line = refuse(program, models, PYTHONHOME=str(tmp_path))
    assert "has no standard library" in line


def test_a_chip_that_does_not_exist(program: Path, models: Models) -> None:
    line = refuse(program, models, ANYNPU_CHIP="rk9999")
    assert "rk9999" in line


def libpython() -> str:
    from anynpu.dropin.environment import _python

    return _python()["libpython"]
