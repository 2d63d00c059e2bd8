"""Networks that others wrote, compiled when their session is created."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anynpu.dropin.environment import execution_provider

from .building import PROGRAMS, run_python

COUNT = int(os.environ.get("ANYNPU_EP_NETWORKS", "20"))
"""`make soak` asks for more."""


@pytest.mark.full  # a process of the compiler for each network
def test_networks_give_the_results_of_our_session(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    output = run_python(
        PROGRAMS / "networks.py", execution_provider(), tmp_path, str(COUNT), path=tests, seconds=60 * COUNT + 600
    )
    print(output)
    lines = [line.split(maxsplit=3) for line in output.splitlines()]
    assert len(lines) == COUNT
    assert {what for *_, what in lines} <= {"ours", "parts", "CPU"}, output
    assert sum(what == "ours" for *_, what in lines) >= 0.8 * COUNT, output
