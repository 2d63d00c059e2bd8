"""Compile time and peak memory of three networks with this tree and with another one, in one run.

``python -m benchmarks.compile_before_after OTHER/.venv/bin/python [ROUNDS]``: the other Python is that of an environment with an earlier
version. Both compile the same files to int8 with the same samples, in turns, each time in a fresh interpreter. Seconds are those of all
processors together, so that a busy machine does not change them much; memory is the largest resident size. What stands is the least of the
rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from . import print_table
from .bench_compile_networks import NETWORKS, SAMPLES, write_network

ROUNDS = 2
MODEL = "made.rknn"
_CHILD = """
import json, os, sys
from pathlib import Path
import anynpu
folder = Path(sys.argv[1])
anynpu.compile(str(folder / "network.onnx"), "rk3588", dataset=str(folder / "samples.npy")).save(folder / sys.argv[2])
spent = os.times()
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(json.dumps([spent.user + spent.system, int(peak) / 1024]))
"""


def run(other: str, rounds: int = ROUNDS) -> None:
    """Print the table, one row per network."""
    rows = []
    for name, (make, size) in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_network(make(size), size, Path(folder))
            megabytes = path.stat().st_size / 2**20
            before, after = [], []
            for _ in range(rounds):
                before.append(_measured(other, folder))
                after.append(_measured(sys.executable, folder))
        least = [tuple(min(column) for column in zip(*runs, strict=True)) for runs in (before, after)]
        (seconds, memory), (seconds_now, memory_now) = least
        rows.append(
            [
                f"{name}, {megabytes:.0f} MB",
                *(f"{seconds:.1f}", f"{seconds_now:.1f}", f"{seconds_now / seconds:.2f}"),
                *(f"{memory:.0f}", f"{memory_now:.0f}", f"{memory / megabytes:.1f}", f"{memory_now / megabytes:.1f}"),
            ]
        )
    header = ["", "CPU s before", "after", "ratio", "peak MB before", "after", "over the file before", "after"]
    print_table(f"int8 with {SAMPLES} samples, before and after", header, rows)


def _measured(python: str, folder: str) -> tuple[float, float]:
    """CPU seconds and megabytes of one compilation in a fresh interpreter."""
    command = [python, "-c", _CHILD, folder, MODEL]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(
            "name the Python of the other environment: python -m benchmarks.compile_before_after OTHER/.venv/bin/python [ROUNDS]"
        )
    run(sys.argv[1], *map(int, sys.argv[2:3]))
