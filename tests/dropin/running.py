"""Compiles the test programs and runs them with the drop-in libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tools import need

from anynpu.dropin.environment import ALWAYS, Observation, include_folder, library_folder, program_environment

PROGRAMS = Path(__file__).parent / "programs"
TIMEOUT = 600


def build(source: str, target: Path, *flags: str, compiler: str = "cc", library: str | None = "rknnrt") -> Path:
    """Compile a program; with *library* it is linked with it."""
    command = [need(compiler), str(PROGRAMS / source), "-o", str(target), "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]
    command += [f"-I{include_folder()}", f"-I{PROGRAMS}", *flags]
    command += [] if library is None else [f"-L{library_folder()}", f"-l{library}"]
    done = subprocess.run([*command, "-ldl", "-lm"], capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return target


def clean_environment(**changes: str | None) -> dict[str, str]:
    """That of this process without what tests and users may have set; *changes* with None remove a variable."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANYNPU_", "RKNN_", "PYTEST_", "COV_"))
        and name not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    }
    environment["ANYNPU_PYTHON"] = sys.executable
    environment["LD_LIBRARY_PATH"] = str(library_folder())
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def board_environment(chip: str | None = None, board: str | None = None) -> dict[str, str]:
    """That of a program under ``anynpu exec``."""
    return program_environment(clean_environment(LD_LIBRARY_PATH=None), chip=chip, board=board)


def python_environment(chip: str | None = "rk3588", log: Path | None = None, **environment: str) -> dict[str, str]:
    """That of a Python program under ``anynpu exec --machine aarch64``."""
    changed = clean_environment(LD_LIBRARY_PATH=None, **environment)
    seen = Observation(None if log is None else str(log))
    return program_environment(changed, chip=chip, machine="aarch64", observation=seen, stand_ins=ALWAYS)


def run(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    *,
    code: int | None = 0,
    cwd: Path | None = None,
    timeout: float = TIMEOUT,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its exit status must be *code*."""
    done = subprocess.run(
        [str(part) for part in command],
        env=dict(clean_environment() if environment is None else environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=cwd,
    )
    assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def fill_bytes(size: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """What ``fill_bytes`` of support.h writes."""
    state = (seed * 2654435761 + 1) & 0xFFFFFFFF
    values = np.empty(size, np.uint8)
    for index in range(size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        values[index] = state >> 24
    return values


def checksum(data: bytes) -> str:
    """What process.c prints for the bytes of an output."""
    total = 17
    for value in data:
        total = (total * 31 + value) & 0xFFFFFFFF
    return f"{total:08x}"
