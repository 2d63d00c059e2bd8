"""Calls through librknnrt.so from a program in C, beside the same engine called from Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import anynpu
from anynpu.dropin.environment import include_folder, library_folder
from anynpu.npu import Device

from . import print_table
from .networks import mobilenet_v1

TURNS = 4
SECONDS = 1.0
GOALS = {"empty": 1e-6, "query": 3e-6, "cold_cpu": 0.5}
RATIO = 1.08
SIDE = 224


def main() -> None:
    """Print the tables. The C program and the engine in Python take turns; each counts with its best."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("\ndrop-in library: there is no C compiler")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _model(folder)
        program = folder / "dropin"
        source = Path(__file__).with_name("dropin.c")
        flags = [
            f"-I{include_folder()}",
            f"-L{library_folder()}",
            "-lrknnrt",
            f"-Wl,-rpath,{library_folder()}",
            "-O2",
            "-pthread",
        ]
        subprocess.run([compiler, str(source), "-o", str(program), *flags], check=True)
        found: list[dict[str, float]] = []
        python = float("inf")
        for _ in range(TURNS):
            found.append(_run(program, model))
            python = min(python, _python(model))
    _print(found, python)


def _model(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    data = [{"images": rng.random((1, 3, SIDE, SIDE), np.float32) * 255} for _ in range(2)]
    compiled = anynpu.compile(mobilenet_v1(SIDE), "rk3588", dataset=data, std=(255, 255, 255))
    return compiled.save(folder / "mobilenet.rknn")


def _run(program: Path, model: Path) -> dict[str, float]:
    environment = {**os.environ, "ANYNPU_PYTHON": sys.executable}
    done = subprocess.run([program, model, str(SECONDS)], env=environment, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _python(model: Path) -> float:
    """The engine's best time for one inference."""
    pixels: Any = np.full((1, SIDE, SIDE, 3), 77, np.uint8)
    best = float("inf")
    with Device("rk3588") as device, device.load(model).context() as context:
        context.run([pixels], layout="nhwc")
        end = time.perf_counter() + SECONDS
        while (begin := time.perf_counter()) < end:
            context.run([pixels], layout="nhwc")
            best = min(best, time.perf_counter() - begin)
    return best


def _print(found: list[dict[str, float]], python: float) -> None:
    best = {key: min(entry[key] for entry in found) for key in ("empty", "query", "cold_cpu", "cold", "inference")}
    rows = [
        [label, f"{best[key] * scale:.3g} {unit}", f"{GOALS[key] * scale:g}", "ok" if best[key] < GOALS[key] else "MISSED"]
        for label, key, scale, unit in (
            ("a call that does nothing (rknn_mem_sync)", "empty", 1e6, "us"),
            ("a query (numbers of inputs and outputs)", "query", 1e6, "us"),
            ("first call of a process, CPU time", "cold_cpu", 1, "s"),
        )
    ]
    ratio = best["inference"] / python
    rows.append(["an inference, of the engine's in Python", f"{ratio:.3f}", f"{RATIO}", "ok" if ratio <= RATIO else "MISSED"])
    print_table("librknnrt.so from C", ["", "best", "goal", ""], rows)
    print_table(
        "MobileNetV1 224, inputs_set + run + outputs_get as floats",
        ["", "ms"],
        [["through the library", f"{best['inference'] * 1e3:.2f}"], ["engine in Python", f"{python * 1e3:.2f}"]],
    )
    one = max(entry["threads1"] for entry in found)
    rates = {number: max(entry[f"threads{number}"] for entry in found) for number in (1, 2, 3)}
    rows = [[str(number), f"{rate:.0f}", f"{rate / one:.2f}"] for number, rate in rates.items()]
    print_table(f"threads with a context each, on a machine with {os.cpu_count()} processors", ["threads", "1/s", "of one"], rows)


if __name__ == "__main__":
    main()
