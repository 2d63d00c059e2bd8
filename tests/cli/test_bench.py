"""``anynpu bench``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Invoke = Callable[..., Any]


def test_both_ways_by_default(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("bench", compiled_path, "--seconds", 0.1)
    assert outcome.code == 0, outcome.err
    assert "software NPU, rk3588, 3 cores" in outcome.out
    lines = [line.split() for line in outcome.out.splitlines()]
    modes = {line[0]: line for line in lines if line and line[0] in ("sync", "async")}
    assert set(modes) == {"sync", "async"}
    for line in modes.values():
        p50, p90, p95, p99, per_second = map(float, line[2:7])
        assert 0 < p50 <= p90 <= p95 <= p99
        assert per_second > 0
    assert "device (predicted)" in outcome.out


def test_json_and_trace(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    outcome = invoke(
        "bench", compiled_path, "--async", "--cores", "0,2", "--seconds", 0.1, "--json", "--trace", tmp_path / "t.json"
    )
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    (measured,) = data["host"]
    assert measured["mode"] == "async"
    assert measured["cores"] == "0,2"
    assert measured["requests"] >= 1
    assert data["predicted"]["chip"] == "rk3588"
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(event["ph"] == "X" and event["name"] == "run" for event in events)


def test_phases_are_parts_of_the_latency(invoke: Invoke, compiled_path: Path) -> None:
    data = json.loads(invoke("bench", compiled_path, "--sync", "--seconds", 0.1, "--json").out)
    (measured,) = data["host"]
    assert 0 < measured["run"] <= measured["p99"]
    assert measured["convert"] > 0
    assert measured["copy"] > 0


@pytest.mark.parametrize(("cores", "text"), [("0,9", "names core 9"), ("x", "not a list of cores")])
def test_wrong_cores(invoke: Invoke, compiled_path: Path, cores: str, text: str) -> None:
    outcome = invoke("bench", compiled_path, "--cores", cores, "--seconds", 0.1)
    assert outcome.code != 0
    assert text in outcome.err


def test_a_file_that_is_no_model(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no model")
    outcome = invoke("bench", path, "--seconds", 0.1)
    assert outcome.code == 1
    assert "error:" in outcome.err
