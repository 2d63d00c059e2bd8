"""The sanitizer together with faults and recordings: what a plan does is nobody's fault, and each of them sees what it would see alone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu._rknn import ffi
from anynpu.devtools import faults
from anynpu.devtools.faults import SimulatedTime
from anynpu.devtools.recording import read_trace, replay
from anynpu.devtools.sanitizer import Reporter
from anynpu.devtools.sanitizer.memory import accesses_are_known
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.constants import Code
from anynpu.rknn.tracing import table as rknn_table
from anynpu.vendors.libraries import instrumented
from anynpu.vip import SoftwareLibrary as VipSoftware
from anynpu.vip.constants import vip_status_e
from anynpu.vip.tracing import table as vip_table

from .rknn_programs import FROM_DEVICE, NO_OUTPUT_FLUSH, memory_array, picture
from .rknn_programs import RKNN as RKNN_PROGRAMS
from .rknn_programs import Board as RknnBoard
from .vip_programs import INVALIDATE
from .vip_programs import VIP as VIP_PROGRAMS
from .vip_programs import Board as VipBoard
from .vip_programs import picture as planes

pytestmark = pytest.mark.usefixtures("only_own_libraries")


@pytest.fixture(autouse=True)
def sanitizer_is_sound(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, "anynpu.devtools.sanitizer"):
        yield
    assert not [record for record in caplog.records if record.name == "anynpu.devtools.sanitizer"]


@contextlib.contextmanager
def watched_inside(plan: dict[str, Any], board: Callable[[], Any]) -> Iterator[tuple[Any, Reporter]]:
    """The library is opened first, and watched later."""
    with faults.inject(plan, clock=SimulatedTime()):
        made = board()
        instrumented(made.library)
        with anynpu.sanitize(check=False) as found:
            yield made, found
        made.library.close()


@contextlib.contextmanager
def watched_outside(plan: dict[str, Any], board: Callable[[], Any]) -> Iterator[tuple[Any, Reporter]]:
    """The library is opened by a program that is watched."""
    with anynpu.sanitize(check=False) as found, faults.inject(plan, clock=SimulatedTime()):
        made = board()
        instrumented(made.library)
        yield made, found
    made.library.close()


WAYS = pytest.mark.parametrize("way", [watched_inside, watched_outside])


@WAYS
def test_codes_of_a_plan_are_no_findings(way: Any) -> None:
    codes = [code for code in Code if code < 0]
    calls = ("rknn_inputs_set", "rknn_run", "rknn_outputs_get")
    entries = [{"kind": "code", "call": call, "code": int(code), "at": at} for call in calls for at, code in enumerate(codes, 1)]
    with way({"fault": entries}, RknnBoard) as (board, found):
        handle = board.open()
        failed = [board.set(handle) for _ in codes] + [board.set(handle) and 1]
        failed += [board.run(handle) for _ in codes] + [board.run(handle)]
        assert [code for code in failed if code] == [int(code) for code in codes] * 2
        library = board.library
        outputs = board_outputs(board, handle, len(codes))
        board.release(handle, outputs)
        library.rknn_destroy(handle)
    assert found.findings == [], found.text()


def board_outputs(board: RknnBoard, handle: int, refusals: int) -> Any:
    """The outputs, which are rejected so many times before."""
    outputs = ffi.new("rknn_output[1]")
    for _ in range(refusals):
        assert board.library.rknn_outputs_get(handle, 1, outputs, ffi.NULL) < 0
    return board.outputs(handle)


@WAYS
def test_statuses_of_a_plan_are_no_findings(way: Any) -> None:
    statuses = [status for status in vip_status_e if status < 0]
    entries = [
        {"kind": "code", "call": "vip_run_network", "code": int(status), "at": at} for at, status in enumerate(statuses, 1)
    ]
    with way({"fault": entries}, VipBoard) as (board, found):
        network = board.start()
        source, target = board.bind(network, cached=True)
        for number, status in enumerate((*statuses, 0)):
            board.write(source, planes(number % 3))  # a new image for each attempt
            board.flush(source)
            assert board.run(network) == status
        board.flush(target, INVALIDATE)
        board.end(network, source, target)
    assert found.findings == [], found.text()


@WAYS
@pytest.mark.parametrize("kind", ["timeout", "lost", "hang", "slow"])
def test_runs_that_fail_and_are_tried_again_are_right(way: Any, kind: str) -> None:
    """With another image: memory of a run that failed may be written."""
    plan = {"fault": [{"kind": kind, "every": 2}]}
    with way(plan, VipBoard) as (board, found):
        network = board.start()
        source, target = board.bind(network, cached=True)
        answers = []
        for number in range(4):
            board.write(source, planes(number))
            board.flush(source)
            if number < 2:
                answers.append(board.run(network))
            else:
                board.ok(board.library.vip_trigger_network(network))
                answers.append(board.library.vip_wait_network(network))
        assert sum(bool(answer) for answer in answers) == (0 if kind == "slow" else 2)
        board.end(network, source, target)
    assert found.findings == [], found.text()
    with way(plan, RknnBoard) as (board, found):
        while True:  # a device that is lost opens no model either
            with contextlib.suppress(AssertionError):
                handle = board.open()
                break
        memories = board.bind(handle)
        for number in range(4):
            board.write(memories[0], picture(number))
            board.run(handle)
        board.close(handle, *memories)
    assert found.findings == [], found.text()


def test_a_wrong_program_is_found_under_faults_that_recover() -> None:
    finding, chip, program = next(each for each in RKNN_PROGRAMS.values() if each[0] == "context-leak")
    with faults.inject({"fault": [{"kind": "slow", "every": 1, "factor": 2}]}, clock=SimulatedTime()):
        board = RknnBoard(chip)
        instrumented(board.library)
        with anynpu.sanitize(check=False) as found:
            program(board, True)
        board.library.close()
    assert [one.id for one in found.findings] == [finding]


@pytest.mark.parametrize("opened", ["before", "inside"])
def test_a_recording_holds_what_the_npu_saw_and_hides_nothing(
    opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero copy with a cache: recorded are bytes that were flushed; what the program did not read does not count as read."""
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("ANYNPU_RECORD", str(path))
    board = RknnBoard()
    if opened == "before":
        instrumented(board.library)
    with anynpu.sanitize(check=False) as found:
        if opened == "inside":
            board = RknnBoard()
            instrumented(board.library)
        handle = board.open(NO_OUTPUT_FLUSH)
        source, target = board.bind(handle)
        for number in range(2):
            board.write(source, picture(number))
            assert board.run(handle) == 0
        board.library.rknn_mem_sync(handle, target, FROM_DEVICE)
        result = memory_array(target).copy()
        board.close(handle, source, target)
    assert found.findings == [], found.text()
    recorded_calls = len(read_trace(path).calls)
    again = board.open()
    board.close(again)
    board.library.close()
    trace = read_trace(path)
    assert len(trace.calls) > recorded_calls, "the recording goes on when the sanitizer has ended"
    runs = [entry for entry in trace.calls if entry["call"] == "rknn_run"]
    left = trace.data(runs[-1]["memory_after"]["memory2"])
    np.testing.assert_array_equal(np.frombuffer(left, np.uint8), result)
    assert replay(trace, rknn_table(), lambda: SoftwareLibrary("rk3588")).difference is None


FORGETFUL = [
    pytest.param(kind, *entry, id=name)
    for programs, kind in ((RKNN_PROGRAMS, RknnBoard), (VIP_PROGRAMS, VipBoard))
    for name, entry in programs.items()
    if entry[0] in ("input-never-set", "output-not-invalidated", "input-not-flushed", "written-during-run")
]


@pytest.mark.skipif(not accesses_are_known(), reason="this system does not report which pages were touched")
@pytest.mark.parametrize(("kind", "finding", "chip", "program"), FORGETFUL)
def test_a_recording_does_not_touch_what_the_program_forgot(
    kind: Any, finding: str, chip: str, program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYNPU_RECORD", str(tmp_path / "trace.jsonl"))
    board = kind(chip)
    instrumented(board.library)
    with anynpu.sanitize(check=False) as found:
        program(board, True)
    board.library.close()
    assert [one.id for one in found.findings] == [finding], found.text()


def test_viplite_is_recorded_and_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("ANYNPU_RECORD", str(path))
    with anynpu.sanitize(check=False) as found:
        board = VipBoard()
        instrumented(board.library)
        network = board.start()
        source, target = board.bind(network, cached=True)
        for number in range(2):
            board.write(source, planes(number))
            board.flush(source)
            assert board.run(network) == 0
        board.flush(target, INVALIDATE)
        board.end(network, source, target)
        board.library.close()
    assert found.findings == [], found.text()
    trace = read_trace(path)
    runs = [entry["memory_after"] for entry in trace.calls if entry["call"] == "vip_run_network"]
    assert runs[0] != runs[1]
    assert replay(trace, vip_table(), lambda: VipSoftware("t527")).difference is None


def test_what_was_put_around_calls_meanwhile_stays() -> None:
    """Faults of a library that was opened under the sanitizer still happen after it."""
    plan = {"fault": [{"kind": "code", "call": "rknn_run", "code": "RKNN_ERR_TIMEOUT", "at": 1, "times": 0}]}
    with faults.inject(plan):
        with anynpu.sanitize(check=False) as found:
            board = RknnBoard()
            instrumented(board.library)
            handle = board.open()
            assert board.set(handle) == 0
            assert board.run(handle) == Code.RKNN_ERR_TIMEOUT
            board.close(handle)
        again = board.open()
        assert board.set(again) == 0
        assert board.run(again) == Code.RKNN_ERR_TIMEOUT
        board.close(again)
        board.library.close()
    assert found.findings == [], found.text()
