"""CPU time with this tree and with another one, in turns and in one run: calls, import and compilation.

``python -m benchmarks.before_after OTHER [ROUNDS]``: OTHER is a checkout with a .venv, or the Python of an environment that has the earlier
version. Everything is measured in fresh processes that take turns. The ratio is the median of those of neighboring processes, which saw the
same load of the machine. The exit code is 1 if something takes more than GOAL of the time before. With ``--networks`` before OTHER, compile
time and peak memory of three large networks are compared instead.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from . import print_table
from .bench_compile_networks import NETWORKS, SAMPLES, write_network
from .networks import mobilenet_v2

GOAL = 1.03
ROUNDS = 15
MORE_PAIRS = {"import anynpu": 6}
"""Pairs of processes in one round, of what is short and varies."""
NETWORK_ROUNDS = 2
SIZE = 96
"""Of the images of the network that is compiled."""

HERE = Path(__file__).resolve().parent
_CHILD = HERE / "before_after_child.py"
_COMPILE = """
import json, os, sys
from pathlib import Path
import anynpu
folder = Path(sys.argv[1])
anynpu.compile(str(folder / "network.onnx"), "rk3588", dataset=str(folder / "samples.npy")).save(folder / "made.rknn")
spent = os.times()
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(json.dumps([spent.user + spent.system, int(peak) / 1024]))
"""


def calls(before: str, after: str, rounds: int) -> int:
    """Print the table of calls, import and compilation; 1 if one of them is above the goal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pythons = {"before": before, "after": after}
        network = write_network(mobilenet_v2(SIZE), SIZE, folder)
        commands: dict[str, dict[str, list[str]]] = {
            "InferenceSession.run": {}, "rknn_run from Python": {}, "inference from C": {}, "import anynpu": {}, "compile": {}
        }  # fmt: skip
        for tree, python in pythons.items():
            model = folder / f"{tree}.rknn"
            _write_convolution(model.with_suffix(".onnx"))
            _run([python, str(_CHILD), "write_model", str(model)], folder, python)
            child = {
                "InferenceSession.run": ("session_run", model),
                "rknn_run from Python": ("rknn_run", model),
                "import anynpu": ("import_anynpu", model),
                "compile": ("compile_network", network),
            }
            for title, (function, path) in child.items():
                commands[title][tree] = [python, str(_CHILD), function, str(path)]
            program = _program(python, folder / f"{tree}.program")
            if program is not None:
                commands["inference from C"][tree] = [str(program), str(model), "0.5", "general"]
        times: dict[str, dict[str, list[float]]] = {
            title: {tree: [] for tree in pythons} for title, trees in commands.items() if trees
        }
        for number in range(rounds):
            for title, measured in times.items():
                for tree in list(pythons)[:: 1 if number % 2 else -1] * MORE_PAIRS.get(title, 1):
                    measured[tree].append(float(_run(commands[title][tree], folder, pythons[tree])))
    rows, missed = [], False
    for title, measured in times.items():
        ratio = statistics.median(now / then for then, now in zip(measured["before"], measured["after"], strict=True))
        missed |= ratio > GOAL
        verdict = "ok" if ratio <= GOAL else "MISSED"
        rows.append([title, *(f"{min(taken) * 1e6:,.1f}" for taken in measured.values()), f"{ratio:.3f} {verdict}"])
    print_table(
        f"CPU microseconds, least of {rounds} rounds, and the median ratio (goal {GOAL})", ["", "before", "after", "ratio"], rows
    )
    return int(missed)


def networks(before: str, after: str, rounds: int) -> None:
    """Print the table of large networks, one row each."""
    rows = []
    for name, (make, size) in NETWORKS.items():
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            megabytes = write_network(make(size), size, folder).stat().st_size / 2**20
            runs: dict[str, list[tuple[float, float]]] = {before: [], after: []}
            for _ in range(rounds):
                for python, measured in runs.items():
                    seconds, memory = json.loads(_run([python, "-c", _COMPILE, str(folder)], folder, python))
                    measured.append((seconds, memory))
        (seconds, memory), (seconds_now, memory_now) = (
            tuple(min(column) for column in zip(*measured, strict=True)) for measured in runs.values()
        )
        rows.append(
            [
                f"{name}, {megabytes:.0f} MB",
                *(f"{seconds:.1f}", f"{seconds_now:.1f}", f"{seconds_now / seconds:.2f}"),
                *(f"{memory:.0f}", f"{memory_now:.0f}", f"{memory / megabytes:.1f}", f"{memory_now / megabytes:.1f}"),
            ]
        )
    header = ["", "CPU s before", "after", "ratio", "peak MB before", "after", "over the file before", "after"]
    print_table(f"int8 with {SAMPLES} samples, before and after", header, rows)


def _write_convolution(path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "w"], ["y"], pads=[1, 1, 1, 1])],
        "small",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 32, 32])],
        [numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def _program(python: str, path: Path) -> Path | None:
    """The C program, linked with the drop-in library of one tree; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    found = json.loads(_run([python, "-m", "anynpu", "lib", "--json"], path.parent, python))
    flags = [*found["cflags"].split(), "-O2"]
    subprocess.run([compiler, str(HERE / "overheads.c"), "-o", str(path), *flags, *found["libs"].split()], check=True)
    return path


def _run(command: list[str], folder: Path, python: str) -> str:
    """What a command prints, without the settings of the caller."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANYNPU_", "PYTHON"))}
    environment |= {"ANYNPU_PYTHON": python, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment).stdout


def main(arguments: list[str]) -> int:
    """Run with the arguments of the command line."""
    large = arguments[:1] == ["--networks"]
    if large:
        arguments = arguments[1:]
    if not arguments:
        print("name the other tree: python -m benchmarks.before_after [--networks] OTHER [ROUNDS]", file=sys.stderr)
        return 2
    other = Path(arguments[0])
    python = str((other / ".venv/bin/python").absolute() if other.is_dir() else other)
    if large:
        networks(python, sys.executable, *map(int, arguments[1:2] or [str(NETWORK_ROUNDS)]))
        return 0
    return calls(python, sys.executable, *map(int, arguments[1:2] or [str(ROUNDS)]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
