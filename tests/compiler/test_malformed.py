"""Malformed models end in a typed error: no crash, no hang, no other exception, and no more memory than is stated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .malformed import MUTATIONS

MEMORY = 6_000_000_000
"""Bytes of address space that compiling any of them must do with, libraries included."""

BYTES, ROUNDS = 800, 30
"""Models with damaged bytes, and rounds through all mutations of the structure."""

SECONDS = 600
"""After which one of them is taken for hung."""


@pytest.mark.parametrize("share", [0.05, pytest.param(1.0, marks=pytest.mark.full)], ids=["some", "all"])
def test_malformed_models_end_in_typed_errors(share: float) -> None:
    bytes_cases, rounds = int(share * BYTES), max(2, int(share * ROUNDS))
    worker = subprocess.run(
        [sys.executable, "-m", f"{__package__}.malformed_worker", *map(str, (bytes_cases, rounds, MEMORY, SECONDS))],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    lines = worker.stdout.splitlines() or ["nothing"]
    assert worker.returncode == 0, f"crashed or hung at '{lines[-1]}':\n{worker.stderr[-3000:]}"
    report = json.loads(lines[-1])
    assert report["bad"] == []
    counts = report["counts"]
    assert sum(counts.values()) == bytes_cases + rounds * len(MUTATIONS) >= 1000 * share
    # damage that does no harm compiles, and damage that does is rejected in more than one way
    assert counts["compiled"] > 100 * share
    assert counts["CompileError"] > 500 * share
    rare = {"CalibrationError"} if share == 1.0 else set()  # two rounds hold no model of that kind
    assert {"ShapeError", "UnsupportedOperatorError"} | rare <= set(counts)
    assert report["peak"] < MEMORY
