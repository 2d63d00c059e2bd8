"""The path of one inference stays short: how many Python functions one ``run`` calls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from npu.builders import dense_chain

from anynpu import modelfile
from anynpu.session import InferenceSession

TESTS = Path(__file__).parents[1]

MAX_CALLS = {"rk3588": 60, "a733": 78}

MAX_CALLS_OF_THE_SESSION = 10


def calls_of(run: Any) -> Counter[str]:
    """The functions that *run* calls, by file and name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            calls[f"{frame.f_code.co_filename.rpartition('anynpu/')[2]} {frame.f_code.co_name}"] += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def fewest_calls(chip: str) -> Counter[str]:
    """The functions that a run of one layer calls."""
    x = np.zeros((1, 8), np.float32)
    with InferenceSession(modelfile.to_bytes(replace(dense_chain(1), chip=chip)), device="sim") as session:
        for _ in range(5):
            session.run(None, {"x": x})
        # the shortest of several: while one runs, Python may also finalize what was left behind
        return min((calls_of(lambda: session.run(None, {"x": x})) for _ in range(10)), key=Counter.total)


@pytest.mark.parametrize("chip", ["rk3588", "a733"])
def test_a_run_of_one_layer_makes_few_calls(chip: str) -> None:
    # in a process of its own: what other tests watched or wrapped must not count
    program = f"import json; from session.test_calls import fewest_calls; print(json.dumps(fewest_calls({chip!r})))"
    done = subprocess.run([sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True, check=True)
    calls = Counter(json.loads(done.stdout))
    assert calls.total() <= MAX_CALLS[chip], "\n".join(f"{count} {name}" for name, count in calls.most_common())
    own = Counter({name: count for name, count in calls.items() if name.startswith("session/")})
    assert own.total() <= MAX_CALLS_OF_THE_SESSION, own
