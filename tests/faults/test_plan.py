"""Plans of faults: what they may state, and that the same events meet the same faults."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from documentation import blocks, section
from rknn.support import picture_model

from anynpu._util.options import MAX_TEXT
from anynpu.devtools import faults
from anynpu.devtools.faults import KINDS, Fault, Injector, Plan, read_plan
from anynpu.errors import OptionError


def happenings(fault: Fault, events: int, seed: int = 0) -> list[int]:
    """The events at which a fault happens."""
    injector = Injector(Plan((fault,), seed))
    return [number for number in range(1, events + 1) if injector.offer(fault.event)]


def test_when_a_fault_happens() -> None:
    assert happenings(Fault("timeout"), 4) == [1]
    assert happenings(Fault("timeout", at=2, times=2), 6) == [2, 3]
    assert happenings(Fault("timeout", at=3, times=0), 6) == [3, 4, 5, 6]
    assert happenings(Fault("timeout", every=3), 7) == [3, 6]


def test_chance_is_the_same_each_time_and_each_fault_has_its_own() -> None:
    fault = Fault("timeout", probability=0.3)
    first = happenings(fault, 200, seed=5)
    assert first == happenings(fault, 200, seed=5)
    assert first != happenings(fault, 200, seed=6)
    assert 30 < len(first) < 90
    both = Injector(Plan((fault, Fault("slow", probability=0.5)), 5))
    kinds = [[each.fault.kind for each in both.offer("job")] for _ in range(200)]
    assert [number for number, found in enumerate(kinds, 1) if "timeout" in found] == first
    assert both.counts["timeout"] == len(first)


def test_a_core_of_its_own() -> None:
    injector = Injector(Plan((Fault("timeout", core=1, at=2),)))
    found = [bool(injector.offer("job", (core,))) for core in (1, 0, 0, 1, 1)]
    assert found == [False, False, False, True, False]


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    as_json = tmp_path / "plan.json"
    as_json.write_text(json.dumps({"seed": 3, "fault": [{"kind": "hang", "core": 0, "at": 5, "seconds": 0.5}]}))
    plan = read_plan(as_json)
    assert plan == Plan((Fault("hang", core=0, at=5, seconds=0.5),), 3)
    if sys.version_info >= (3, 11):
        as_toml = tmp_path / "plan.toml"
        as_toml.write_text('seed = 3\n[[fault]]\nkind = "hang"\ncore = 0\nat = 5\nseconds = 0.5\n')
        assert read_plan(as_toml) == plan


WRONG: list[Any] = [
    {"fault": [{"kind": "earthquake"}]},
    {"fault": [{"at": 1}]},
    {"fault": [{"kind": "hang", "factor": 2}]},
    {"fault": [{"kind": "hang", "at": 0}]},
    {"fault": [{"kind": "hang", "at": "one"}]},
    {"fault": [{"kind": "hang", "seconds": True}]},
    {"fault": [{"kind": "code"}]},
    {"fault": [{"kind": "slow", "factor": 0.5}]},
    {"fault": [{"kind": "slow", "every": 2, "probability": 0.5}]},
    {"fault": {"kind": "hang"}},
    {"faults": []},
    {"seed": "x"},
    {"fault": [{"kind": ["hang"]}]},
    {"fault": [{"kind": {}}]},
    {"fault": [{"kind": "code", "call": "rknn_run", "code": 2**31}]},
    {"fault": [{"kind": "slow", "core": 10**30}]},
    {"fault": [{"kind": "slow", "core": -1}]},
]


@pytest.mark.parametrize("entries", WRONG, ids=str)
def test_what_is_wrong_is_named(entries: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Plan.of(entries)
    assert caught.value.hint


def test_files_that_hold_no_plan(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    for name in ("list.json", "text.json", "bytes.json", "absent.json"):
        with pytest.raises(OptionError):
            read_plan(tmp_path / name)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
def test_tables_in_tables_without_an_end_are_refused_soon(tmp_path: Path) -> None:
    """Python's reader took minutes for such a line of 200 kB."""
    path = tmp_path / "plan.toml"
    for text in (f"[{'.'.join('a' * 100_000)}]", f"{' . '.join(['a', *['b'] * 100_000])} = 1", "#" * (MAX_TEXT + 1)):
        path.write_text(text)
        with pytest.raises(OptionError, match="tables in tables"):
            read_plan(path)
    path.write_text("[[fault]]\nkind = 'slow'\nfactor = 2.5 # " + ", ".join(["1.5"] * 100))
    assert read_plan(path).faults[0].factor == 2.5


def test_the_environment_names_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"fault": [{"kind": "memory", "megabytes": 1}]}))
    monkeypatch.delenv("ANYNPU_FAULTS", raising=False)
    assert faults.active() is None
    monkeypatch.setenv("ANYNPU_FAULTS", str(path))
    named = faults.active()
    assert named is not None
    assert faults.active() is named
    with faults.inject({"fault": []}) as own:
        assert faults.active() is own
    assert faults.active() is named


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_counts_its_own_events() -> None:
    with faults.inject({"fault": [{"kind": "timeout", "at": 2}]}) as injector:
        assert not injector.offer("job")
        assert injector._lock.acquire()  # as if another thread had it at this moment
        child = os.fork()
        if not child:
            status = 1
            try:
                own = faults.active()
                assert own is not None
                status = 0 if [bool(own.offer("job")) for _ in range(2)] == [False, True] else 2
            finally:
                os._exit(status)
        injector._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert injector.offer("job")


PAGE = section("failures", "Fault injection")


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture_model().save(tmp_path / "yolo.rknn")
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(PAGE)
    names: dict[str, Any] = {}
    exec(compile(block, "failures.md", "exec"), names)
    assert names["injector"].counts == {"hang": 1}
    if sys.version_info >= (3, 11):
        (plan,) = blocks(PAGE, "toml")
        (tmp_path / "plan.toml").write_text(plan)
        assert [fault.kind for fault in read_plan(tmp_path / "plan.toml").faults] == ["hang", "code", "lost"]


def test_every_kind_is_documented() -> None:
    assert [kind for kind in KINDS if f"| `{kind}` |" not in PAGE] == []
