"""``anynpu selftest``: the board's networks on the software NPU, and what a board needs."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.cli.demo import selftest as room
from anynpu.cli.demo.selftest import all_cases, export, selftest
from anynpu.devtools import faults
from anynpu.devtools.faults import Fault, Plan
from anynpu.npu import NativeEngine
from anynpu.npu.rocket.device import AccelFile
from anynpu.npu.rocket.engine import expected_output
from anynpu.npu.rocket.ladder import STEPS, make_program, run_ladder

ROOT = Path(__file__).parents[2]
Invoke = Callable[..., Any]
FEW = ("relu", "swish", "div")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in all_cases() if case.name in FEW]
    monkeypatch.setattr(room, "all_cases", lambda: cases)


def test_the_cases_are_those_of_the_tests() -> None:
    made = json.loads(runpy.run_path(str(ROOT / "tools/selftest_cases.py"))["contents"]())
    stored = json.loads((ROOT / "src/anynpu/cli/demo/board_cases.json").read_text(encoding="utf-8"))
    assert stored["source"].endswith("(MIT license); see tests/arithmetic/board")
    assert {name: entry["outputs"] for name, entry in made["cases"].items()} == {
        name: entry["outputs"] for name, entry in stored["cases"].items()
    }
    assert made["inputs"] == stored["inputs"]
    assert (ROOT / "src/anynpu/cli/demo/board_cases.json").stat().st_size < 150_000


@pytest.mark.usefixtures("few")
def test_every_byte_is_equal(invoke: Invoke) -> None:
    outcome = invoke("selftest")
    assert outcome.code == 0, outcome.err
    assert "2304 of 2304 bytes equal those of an RV1103." in outcome.out
    data = json.loads(invoke("selftest", "--json").out)
    assert (data["compared"], data["equal"], data["device"]) == (2304, 2304, "sim")
    assert [case["name"] for case in data["cases"]] == sorted(FEW)


@pytest.mark.full
def test_all_networks() -> None:
    found = list(selftest())
    assert sum(entry.compared for entry in found) == sum(entry.equal for entry in found) == 16_928


@pytest.mark.usefixtures("few")
def test_a_difference_is_found_and_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    before = room.SelfTestCase.outputs.fget
    assert before is not None

    def wrong(case: room.SelfTestCase) -> dict[str, Any]:
        outputs = before(case)
        if case.name == "relu":
            outputs["ramp"] = np.where(np.arange(192) == 5, outputs["ramp"] ^ 1, outputs["ramp"]).astype(np.int8)
        return outputs

    monkeypatch.setattr(room.SelfTestCase, "outputs", property(wrong))
    outcome = invoke("selftest")
    assert outcome.code == 1
    assert "input 'ramp', byte 5: " in outcome.out
    assert "2303 of 2304" in outcome.out


def test_what_a_board_needs(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("selftest", "--device", "rknn")
    assert outcome.code == 1
    assert "--export" in outcome.err
    assert "wrote 20 networks to" in invoke("selftest", "--export", tmp_path).out
    assert sorted(path.stem for path in tmp_path.glob("*.onnx")) == [case.name for case in all_cases()]
    assert np.load(tmp_path / "ramp.npy").shape == (1, 8, 8, 3)
    assert export(tmp_path / "again")


def test_the_steps_of_the_mainline_driver(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    outcome = invoke("selftest", "--device", "rocket:emulated", "--report", path)
    assert outcome.code == 0, outcome.err
    assert f"{len(STEPS)} of {len(STEPS)} steps passed" in outcome.out
    report = json.loads(path.read_text())
    assert report["driver"] == "emulated"
    assert [step["name"] for step in report["steps"]] == list(STEPS)
    assert all(step["passed"] and step["compared"] > 500 for step in report["steps"])
    assert "only --device rocket" in invoke("selftest", "--report", path).err


def test_a_step_that_fails_is_in_the_report(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: STEPS[name] for name in ("copy", "3x3", "network")}
    monkeypatch.setattr("anynpu.npu.rocket.ladder.STEPS", chosen)
    path = tmp_path / "report.json"
    with faults.inject(Plan((Fault("stream", at=2, bit=6),))):
        outcome = invoke("selftest", "--device", "rocket:emulated", "--report", path)
    assert outcome.code == 1
    assert "1 differ, by up to 64" in outcome.out
    copied, failed, network = json.loads(path.read_text())["steps"]
    assert copied["passed"]
    assert network["passed"]
    assert (failed["different"], failed["largest"]) == (1, 64)
    ((layer, _, _, _, expected, given),) = failed["first"]
    assert (layer, abs(expected - given)) == ("conv 0", 64)


def test_a_job_that_writes_nothing_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anynpu.npu.rocket.ladder.STEPS", {"copy": STEPS["copy"]})
    monkeypatch.setattr(AccelFile, "_run", lambda self, queued: None)
    (result,) = run_ladder("emulated")
    assert "did not write the output" in result.error
    assert not result.passed


def test_the_steps_use_the_whole_range_of_the_output() -> None:
    """A step whose output is at the limits shows nothing."""
    for number, build in enumerate(STEPS.values()):
        program = make_program(build, number)
        if len(program.layers) == 1 and program.layers[0].name != "copy":
            random = np.random.default_rng(1)
            inputs = {
                name: random.integers(-128, 128, program.tensors[name].memory_shape).astype(np.int8) for name in program.inputs
            }
            output = expected_output(NativeEngine(threads=1), program, 0, inputs)
            assert np.mean(np.abs(output.astype(int)) < 120) > 0.5
