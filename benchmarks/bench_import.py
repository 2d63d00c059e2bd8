"""What importing the package costs beyond numpy, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys

from . import print_table

GOAL = 0.15
ROUNDS = 7
MODULES = ("anynpu", "anynpu.program.convert")
TIMED = "import time, numpy; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
NUMPY = "import time; t = time.perf_counter(); import numpy; print(time.perf_counter() - t)"


def _seconds(code: str) -> float:
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table: the best of some rounds that take turns."""
    codes = {"numpy": NUMPY, **{module: TIMED.format(module=module) for module in MODULES}}
    best = dict.fromkeys(codes, float("inf"))
    for _ in range(ROUNDS):
        for name, code in codes.items():
            best[name] = min(best[name], _seconds(code))
    rows = [["numpy", f"{best['numpy'] * 1e3:.0f}", "", ""]]
    for module in MODULES:
        verdict = "ok" if best[module] < GOAL else "MISSED"
        rows.append([module, f"{best[module] * 1e3:.1f}", f"{best[module] / best['numpy']:.2f}", f"{GOAL * 1e3:.0f} {verdict}"])
    print_table("import beyond numpy's", ["ms", "best", "of numpy's", "goal"], rows)
