"""What it costs to watch, to record and to be ready for faults: the same programs in C and Python, with and without, in one run.

Every measurement is a process of its own, the ways take turns, and the best inference of each counts, in time of the processor.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anynpu
from anynpu._util.optional import onnx
from anynpu.dropin.environment import include_folder, library_folder

from . import print_table
from .networks import mobilenet_v1

TURNS = 3
SECONDS = 0.4
GOAL = 2.0
"""The sanitizer's, of a plain run."""


def main() -> None:
    """Print the table of ratios."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {"one small convolution": _small(folder), "MobileNet v1": _mobilenet(folder)}
        plan, trace = folder / "plan.json", folder / "trace.jsonl"
        plan.write_text(json.dumps({"fault": [{"kind": "slow", "at": 1_000_000}]}), encoding="utf-8")
        sanitizer = {"ANYNPU_SANITIZE": "1"}
        recording = {"ANYNPU_RECORD": str(trace)}
        ways = {
            "plain": {},
            "sanitizer": sanitizer,
            "recording": recording,
            "hashes": recording | {"ANYNPU_RECORD_HASHES": "1"},
            "both": sanitizer | recording,
            "faults": {"ANYNPU_FAULTS": str(plan)},
        }
        rows = [
            _row(f"{title}, {language}, {call}", [*command, str(model), str(SECONDS), call], ways, trace)
            for title, model in models.items()
            for language, command in _programs(folder).items()
            for call in ("general", "zero")
        ]
    print_table(
        f"one inference, of a plain one (the sanitizer's goal is {GOAL:g})",
        ["program", "plain ms", *(way for way in ways if way != "plain")],
        rows,
    )


def _row(title: str, command: Sequence[str], ways: dict[str, dict[str, str]], trace: Path) -> list[str]:
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(TURNS):
        for way, changes in ways.items():
            trace.unlink(missing_ok=True)
            best[way] = min(best[way], _seconds(command, changes))
    ratios = [f"{seconds / best['plain']:.2f}" for way, seconds in best.items() if way != "plain"]
    return [title, f"{best['plain'] * 1e3:.3f}", *ratios]


def _seconds(command: Sequence[str], changes: dict[str, str]) -> float:
    """Of one inference in a process with *changes* of its environment; a program with findings would fail."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANYNPU_")}
    environment |= {"ANYNPU_PYTHON": sys.executable, **changes}
    folder = Path(__file__).resolve().parents[1]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=folder).stdout)


def _programs(folder: Path) -> dict[str, list[str]]:
    """How the program is started, by language; without a C compiler there is one language."""
    programs = {"Python": [sys.executable, "-m", "benchmarks.overheads_child"]}
    compiler = shutil.which("cc")
    if compiler is None:
        return programs
    program, source = folder / "overheads", Path(__file__).with_name("overheads.c")
    flags = [f"-I{include_folder()}", f"-L{library_folder()}", "-lrknnrt", f"-Wl,-rpath,{library_folder()}", "-O2"]
    subprocess.run([compiler, str(source), "-o", str(program), *flags], check=True)
    return {"C": [str(program)], **programs}


def _small(folder: Path, side: int = 32) -> Path:
    helper, kinds = onnx().helper, onnx().TensorProto
    weights = onnx().numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "w"], ["y"], pads=[1, 1, 1, 1])],
        "small",
        [helper.make_tensor_value_info("images", kinds.FLOAT, [1, 3, side, side])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [1, 8, side, side])],
        [weights],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return _compiled(proto, side, folder / "small.rknn")


def _mobilenet(folder: Path) -> Path:
    return _compiled(mobilenet_v1(), 224, folder / "mobilenet.rknn")


def _compiled(proto: Any, side: int, path: Path) -> Path:
    rng = np.random.default_rng(1)
    samples = [{"images": rng.uniform(0, 255, (1, 3, side, side)).astype(np.float32)} for _ in range(2)]
    return Path(anynpu.compile(proto, "rk3588", dataset=samples, std=(255, 255, 255)).save(path))


if __name__ == "__main__":
    main()
