"""What a recording and a plan of faults cost: the same session with and without, in turns, and how much a recording writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import anynpu

from . import print_table
from .networks import mobilenet_v1

TURNS = 3
RUNS = 30
SIDE = 224
CHILD = """
import sys, time
import numpy as np
from anynpu.session import InferenceSession
with InferenceSession(sys.argv[1], device="sim:rk3588") as session:
    source = session.get_inputs()[0]
    rng = np.random.default_rng(2)
    feeds = [{source.name: rng.integers(0, 256, source.shape).astype(np.float32)} for _ in range(int(sys.argv[2]))]
    session.run(None, feeds[0])
    begin = time.perf_counter()
    for feed in feeds:
        session.run(None, feed)
    print((time.perf_counter() - begin) / len(feeds))
"""


def main() -> None:
    """Print the table: ratios to a run with nothing around its calls; the best of some turns counts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        proto = mobilenet_v1()
        picture = np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)
        dataset = [{proto.graph.input[0].name: picture}]
        model = Path(anynpu.compile(proto, "rk3588", dataset=dataset, accuracy="fast").save(folder / "model.rknn"))
        plan, trace = folder / "plan.json", folder / "trace.jsonl"
        plan.write_text(json.dumps({"fault": [{"kind": "slow", "at": 1_000_000}]}), encoding="utf-8")
        ways = {
            "nothing": {},
            "recording": {"ANYNPU_RECORD": str(trace)},
            "recording, hashes": {"ANYNPU_RECORD": str(trace), "ANYNPU_RECORD_HASHES": "1"},
            "faults that do not happen": {"ANYNPU_FAULTS": str(plan)},
        }
        best = dict.fromkeys(ways, float("inf"))
        written = dict.fromkeys(ways, 0)
        for _ in range(TURNS):
            for way, changes in ways.items():
                trace.unlink(missing_ok=True)
                best[way] = min(best[way], _seconds(model, changes))
                written[way] = trace.stat().st_size if trace.exists() else 0
    rows = [
        [way, f"{seconds * 1e3:.2f}", f"{seconds / best['nothing']:.2f}", f"{written[way] / 1e6:.2f}" if written[way] else ""]
        for way, seconds in best.items()
    ]
    print_table(f"around the calls of a session, {RUNS} runs", ["", "ms per run", "of nothing", "MB written"], rows)


def _seconds(model: Path, changes: dict[str, str]) -> float:
    """Seconds of one run in a process with *changes* of its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANYNPU_")} | changes
    command = [sys.executable, "-c", CHILD, str(model), str(RUNS)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
