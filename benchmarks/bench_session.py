"""Sessions beside EZ RKNN Async on three cores: on the software NPU of an RK3588 in real time, and on a library whose jobs only sleep.

In real time a core keeps the chip's rhythm, so what counts is whether the session has the next job ready; the sleeping library counts every
moment between two jobs.

The peer lives in an environment of its own (``make venv`` makes it, ``ANYNPU_PEER_PYTHON`` names another); without it only our numbers
are printed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from anynpu import chips
from anynpu.chips.timing import predict
from anynpu.dropin.environment import library_folder, remember_python

from . import print_table
from .networks import tiny_model

HERE = Path(__file__).parent
ABI = HERE.parent / "src" / "anynpu" / "rknn"
ROUNDS = 3
Figures = dict[str, float]


def main() -> None:
    """Print the tables: of some rounds that take turns, the best of each."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("\nsessions: no C compiler, not measured")
        return
    pythons = {"ours": sys.executable}
    peer = os.environ.get("ANYNPU_PEER_PYTHON", str(Path(sys.prefix) / "peer" / "bin" / "python"))
    if Path(peer).is_file():
        pythons["peer"] = peer
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "librknnrt.so"
        subprocess.run(
            [compiler, "-O2", "-pthread", "-shared", "-fPIC", "-I", ABI, "-o", library, HERE / "session_device.c"], check=True
        )
        _real_time(pythons, Path(folder))
        _throughput(pythons, library)
        _latency(pythons, library)


def _real_time(pythons: dict[str, str], folder: Path) -> None:
    model = tiny_model()
    path = model.save(folder / "tiny.rknn")
    predicted = predict(model.programs[0], chips.get("rk3588")).latency_us
    libraries = library_folder()
    remember_python()
    rows = []
    for name, what, job_us in (
        ("1 ms jobs", "callbacks", 1000),
        ("5 ms jobs", "callbacks", 5000),
        ("20 ms jobs", "callbacks", 20000),
        ("5 ms jobs, paced", "pacing", 5000),
    ):
        extra = {"SESSION_MODEL": str(path), "ANYNPU_REALTIME": repr(predicted / job_us)}
        found = _measured(pythons, libraries / "librknnrt.so", what, job_us, 1, extra)
        for whose, figures in found.items():
            row = [f"{name}, {whose}", f"{figures['rate']:.0f}", f"{figures['share']:.3f}", f"{figures['cpu_us']:.0f}"]
            against = found.get("peer")
            rows.append([*row, f"{figures['rate'] / against['rate']:.2f}x" if against and whose == "ours" else ""])
    headings = ["", "per second", "of ideal", "CPU us each", "of the peer's"]
    print_table("requests with callbacks, software NPU of an RK3588 in real time", headings, rows)


def _throughput(pythons: dict[str, str], library: Path) -> None:
    rows = []
    for name, what, job_us, slow in (
        ("1 ms jobs", "callbacks", 1000, 1),
        ("5 ms jobs", "callbacks", 5000, 1),
        ("20 ms jobs", "callbacks", 20000, 1),
        ("5 ms jobs, paced", "pacing", 5000, 1),
        ("5 ms jobs, core 0 takes 20", "slow", 5000, 4),
    ):
        found = _measured(pythons, library, what, job_us, slow)
        for whose, figures in found.items():
            row = [f"{name}, {whose}", f"{figures['rate']:.0f}", f"{figures['share']:.3f}", f"{figures['cpu_us']:.0f}"]
            against = found.get("peer")
            rows.append([*row, f"{figures['rate'] / against['rate']:.2f}x" if against and whose == "ours" else ""])
    print_table(
        "requests with callbacks, a library whose jobs sleep",
        ["", "per second", "of ideal", "CPU us each", "of the peer's"],
        rows,
    )


def _latency(pythons: dict[str, str], library: Path) -> None:
    found = _measured(pythons, library, "latency", 0, 1)
    rows = [[whose, f"{figures['p50']:.1f}", f"{figures['p99']:.1f}"] for whose, figures in found.items()]
    print_table("a synchronous run of a job that takes no time, us", ["", "p50", "p99"], rows)


def _measured(
    pythons: dict[str, str], library: Path, what: str, job_us: int, slow: int, extra: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Figures]:
    best: dict[str, Figures] = {}
    for _ in range(ROUNDS):
        for whose, python in pythons.items():
            environment = {**os.environ, "SESSION_JOB_US": str(job_us), "SESSION_SLOW": str(slow), **extra}
            command = [python, str(HERE / "session_client.py"), whose, str(library), what]
            output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=environment).stdout
            figures: Figures = json.loads(output.splitlines()[-1])
            better = min if what == "latency" else max
            known = best.get(whose, figures)
            best[whose] = better(known, figures, key=lambda one: one.get("rate", one.get("p50", 0.0)))
    return best
