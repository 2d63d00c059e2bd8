"""From nothing to the first result: a fresh interpreter imports, reads a model file, packs its weights and runs it once.

``python -m benchmarks.engine_first_result FILE`` prints what that took as JSON: CPU seconds of the whole process, its peak resident
megabytes, and whether onnxruntime was imported.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from . import print_table
from .engine_timing import verdict

__all__ = ["print_first_result"]

ROUNDS = 7
SECONDS_GOAL = 0.4
MEGABYTES_GOAL = 120
_SETTINGS_OF_BENCHMARKS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")


def print_first_result(model: Path) -> None:
    """Some fresh processes with byte code on disk, as an installed package has it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name not in _SETTINGS_OF_BENCHMARKS}
        environment["PYTHONPYCACHEPREFIX"] = folder
        runs = [_measured(model, environment) for _ in range(ROUNDS + 1)][1:]  # the first one writes the byte code
    seconds, megabytes = [run[0] for run in runs], [run[1] for run in runs]
    imported = "imported" if any(run[2] for run in runs) else "not imported"
    print_table(
        "first result of PP-OCRv4 detection from its file in a fresh process",
        ["", "best", "median", "goal"],
        [
            ["CPU seconds", f"{min(seconds):.3f}", f"{statistics.median(seconds):.3f}", verdict(min(seconds), SECONDS_GOAL)],
            [
                "peak resident MB",
                f"{min(megabytes):.0f}",
                f"{statistics.median(megabytes):.0f}",
                verdict(max(megabytes), MEGABYTES_GOAL),
            ],
            ["onnxruntime", imported, "", ""],
        ],
    )


def _measured(model: Path, environment: dict[str, str]) -> tuple[float, float, bool]:
    command = [sys.executable, "-m", __name__, str(model)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds, megabytes, imported = json.loads(done.stdout)
    return seconds, megabytes, imported


def _run(model: str) -> tuple[float, float, bool]:
    import numpy as np

    import anynpu

    with anynpu.Device("rk3588") as device:
        loaded = device.load(model)
        (spec,) = loaded.inputs
        loaded.context().run({spec.name: np.zeros(spec.shape, np.uint8)})
    usage = resource.getrusage(resource.RUSAGE_SELF)
    # ru_maxrss would begin with that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return usage.ru_utime + usage.ru_stime, int(kilobytes) / 1024, "onnxruntime" in sys.modules


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1])))
