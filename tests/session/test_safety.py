"""The end of a session at any time, from anywhere; devices that hang; forks; the end of the interpreter."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from anynpu.errors import DeviceClosed, DeviceHungError, SessionError
from anynpu.session import InferenceSession
from anynpu.session import session as lifecycle

from .fake import FakeDevice, FakeLane, feed
from .test_callbacks import Collector, wait_until

FOLDER = Path(__file__).parents[1]


FULL = pytest.mark.full


@pytest.mark.parametrize("options", [{}, {"schedule": [0, 1, 2]}])
@pytest.mark.parametrize("cycles", [200, pytest.param(10_000, marks=FULL)])
def test_many_sessions_come_and_go(options: dict[str, Any], cycles: int) -> None:
    """The peer hangs after some hundred or thousand of these."""
    before = set(threading.enumerate())
    device = FakeDevice(3, run_time=0.0)
    random.seed(5)
    answered = 0

    def count(results: Any, user_data: Any, err: str) -> None:
        nonlocal answered
        answered += 1

    submitted = 0
    for cycle in range(cycles):
        session = device.open(**options)
        if cycle % 10 == 0:
            for _ in range(random.randrange(4)):
                session.run_async(None, feed(), count)
                submitted += 1
        if cycle % 3 == 0:
            session.close()
        del session
        device.writes.clear()
        device.lanes.clear()
        device.backends.clear()
        device.lent.clear()
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0)
    assert wait_until(lambda: answered == submitted)
    assert device.violations == []
    assert wait_until(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("anynpu fake")])


def test_closing_answers_what_waits_and_what_runs() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    session = device.open(max_queue_size=5)
    running = session.submit(None, feed(1))
    device.wait_entered()
    waiting = [session.submit(None, feed()) for _ in range(3)]
    collector = Collector(1)
    session.run_async(None, feed(), collector)
    blocked: list[Any] = []

    def block() -> None:
        try:
            session.submit(None, feed())
            session.submit(None, feed())
        except BaseException as error:
            blocked.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    assert wait_until(lambda: session.statistics.queued == 6)
    closer = threading.Thread(target=session.close)
    closer.start()
    for job in waiting:
        assert isinstance(job.exception(120), DeviceClosed)
    assert "the session was closed" in collector.wait()[0][2]
    thread.join(120)
    assert [type(error) for error in blocked] == [DeviceClosed]
    assert closer.is_alive(), "the device still works"
    device.gate.set()
    closer.join(120)
    assert running.result(0)[0][0, 0] == 2
    assert device.open_lanes == device.open_backends == 0


def test_closing_stops_what_runs_where_the_device_can() -> None:
    device = FakeDevice(3, run_time=3600.0, stoppable=True)
    session = device.open()
    jobs = [session.submit(None, feed()) for _ in range(3)]
    assert wait_until(lambda: sum(device.core_runs.values()) == 3)
    session.close()
    assert all("cancelled" in str(job.exception(0)) for job in jobs)
    assert device.open_lanes == 0


def test_the_end_of_a_with_block_finishes_what_was_submitted_unless_there_was_an_error() -> None:
    device = FakeDevice(1, run_time=0.002)
    with device.open(max_queue_size=20) as session:
        jobs = [session.submit(None, feed(value)) for value in range(10)]
    assert [job.result(0)[0][0, 0] for job in jobs] == [2 * value for value in range(10)]

    device.run_time = 0.2  # the block is left long before the last of them is done

    def fail() -> None:
        with device.open(max_queue_size=20) as session:
            jobs[:] = [session.submit(None, feed(value)) for value in range(10)]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(job.done() for job in jobs)
    assert any(isinstance(job.exception(), DeviceClosed) for job in jobs)


def test_closing_from_many_threads_at_once_with_work_in_flight() -> None:
    for seed in range(30):
        random.seed(seed)
        device = FakeDevice(3, run_time=0.0005)
        session = device.open(schedule=[0, 1, 2], max_queue_size=20)
        answers: list[Any] = []
        jobs = [session.submit(None, feed(value)) for value in range(15)]
        for value in range(15):
            session.run_async(
                None, feed(value), lambda results, user_data, err, answers=answers: answers.append(user_data), value
            )
        closers = [threading.Thread(target=session.close) for _ in range(4)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(120)
            assert not closer.is_alive()
        for job in jobs:
            job.exception(0)
        assert answers == list(range(15))
        assert device.open_lanes == device.open_backends == 0
        assert device.violations == []


def test_a_forgotten_session_is_closed_and_its_work_answered() -> None:
    device = FakeDevice(2, run_time=0.002)
    session = device.open(max_queue_size=30)
    jobs = [session.submit(None, feed(value)) for value in range(20)]
    gone = weakref.ref(session)
    del session
    for job in jobs:
        error = job.exception(120)
        assert error is None or isinstance(error, DeviceClosed)
    gc.collect()
    assert gone() is None
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0)


def test_the_waiting_requests_of_a_forgotten_session_fail_and_the_running_one_ends() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    session = device.open(max_queue_size=5)
    running = session.submit(None, feed(1))
    device.wait_entered()
    waiting = [session.submit(None, feed()) for _ in range(3)]
    del session
    gc.collect()
    for job in waiting:
        assert isinstance(job.exception(300), DeviceClosed)
    assert not running.done()
    device.gate.set()
    assert running.result(600)[0][0, 0] == 2
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0)


def test_a_forgotten_session_on_a_device_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "AT_EXIT", 0.01)
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    session = device.open()
    running = session.submit(None, feed(1))
    device.wait_entered()
    del session
    gc.collect()
    assert isinstance(running.exception(300), DeviceClosed)
    assert device.open_lanes == device.open_backends == 1
    device.gate.set()
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0), "what comes back late is closed"


def test_sessions_in_reference_cycles_are_collected_while_others_work() -> None:
    """The finalizer may run in the middle of anything: it must take no lock."""
    device = FakeDevice(3)
    with device.open(schedule=[0, 1, 2]) as busy:
        collector = Collector(300)
        old = gc.get_threshold()
        gc.set_threshold(20)
        try:
            for value in range(300):
                loose: list[Any] = [device.open()]
                loose[0].submit(None, feed())
                loose.append(loose)
                del loose
                busy.run_async(None, feed(value), collector, value)
        finally:
            gc.set_threshold(*old)
        collector.wait()
        gc.collect()
        assert wait_until(lambda: device.open_backends == 1)


def test_a_hung_lane_is_given_up_and_the_others_go_on() -> None:
    device = FakeDevice(3)
    hang = threading.Event()
    hanging = threading.Semaphore(0)

    def run_time(lane: FakeLane) -> float:
        if lane.arrays[0][0, 0] == 13:
            hanging.release()
            hang.wait()
        return 0.0

    device.run_time = run_time
    with device.open(schedule=[0, 1, 2], watchdog_ms=3_600_000, max_queue_size=20) as session:

        def an_hour_later(requests: int) -> None:
            """When *requests* have ended and one lane is left that hangs."""
            assert hanging.acquire(timeout=300)
            assert wait_until(lambda: session.statistics.requests == requests)
            session._runner._find_hung(time.perf_counter_ns() + 7_200_000_000_000)

        collector = Collector(12)
        for value in range(12):
            session.run_async(None, feed(13 if value == 4 else value), collector, value)
        an_hour_later(9)
        calls = collector.wait()
        assert [user_data for _, user_data, _ in calls] == list(range(12))
        assert "core 1 did not answer for 3600 s" in calls[4][2]
        assert [bool(err) for _, _, err in calls].count(True) == 1
        assert wait_until(lambda: session.statistics.requests == 11)
        watcher = threading.Thread(target=an_hour_later, args=(11,))
        watcher.start()
        with pytest.raises(DeviceHungError, match="core 2 did not answer") as caught:
            session.run(None, feed(13), core=2)
        watcher.join(300)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, RuntimeError)
        job = session.submit(None, feed(13), core=0)
        an_hour_later(11)
        assert isinstance(job.exception(120), DeviceHungError)
        for core in range(3):
            assert session.run(None, feed(1), core=core)[0].tolist() == [[2] * 4], "a new context took the place"
        assert len(device.lanes) == 6
    hang.set()
    assert wait_until(lambda: device.open_lanes == 0), "lanes that come back late are closed"
    assert device.violations == []


def test_closing_with_a_hung_lane_does_not_wait_for_ever() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    session = device.open()
    job = session.submit(None, feed())
    device.wait_entered()
    session.close(timeout=0.05)
    assert not job.done()
    device.gate.set()
    assert job.result(120)[0][0, 0] == 2
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0)


def test_an_interrupt_while_waiting_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open() as session:
        job = session.submit(None, feed(1))
        device.wait_entered()
        runner = session._runner

        def interrupted(request: Any) -> float:
            raise KeyboardInterrupt

        monkeypatch.setattr(runner, "_patience", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run(None, feed(2))
        monkeypatch.undo()
        assert session.statistics.queued == 0
        device.gate.set()
        job.result(120)
        assert session.run(None, feed(3))[0].tolist() == [[6] * 4]


def test_errors_do_not_keep_arrays_alive() -> None:
    with FakeDevice(1, fails=lambda lane: True).open() as session:
        array = feed()
        gone = weakref.ref(array)
        with pytest.raises(Exception, match="fake device failed"):
            session.run(None, array)
        session._backend.device.writes.clear()  # type: ignore[attr-defined]
        for lane in session._backend.device.lanes:  # type: ignore[attr-defined]
            lane.arrays = []
        del array
        assert gone() is None


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\nfrom session.fake import *\n{body}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*sys.path[:1], *sys.path]))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=600, check=False, env=environment
    )


def test_the_end_of_the_interpreter_with_work_in_flight() -> None:
    result = run_script(
        """
device = FakeDevice(3, run_time=0.02)
session = device.open(max_queue_size=50)
for value in range(20):
    session.run_async(None, feed(value), lambda results, user_data, err: print(user_data, bool(err), flush=True), value)
print("end", flush=True)
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    lines.remove("end")  # the first callbacks may have come before
    assert [line.split()[0] for line in lines] == [str(value) for value in range(20)]


def test_the_end_of_the_interpreter_with_a_hung_device() -> None:
    result = run_script(
        """
import anynpu.session.session
anynpu.session.session.AT_EXIT = 0.1
device = FakeDevice(1, gated=True)
session = device.open()
job = session.submit(None, feed())
device.wait_entered()
print("end", flush=True)
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "end\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_and_may_open_its_own() -> None:
    result = run_script(
        """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from anynpu.errors import SessionError
device = FakeDevice(3, run_time=0.002)
session = device.open(max_queue_size=50)
jobs = [session.submit(None, feed(value)) for value in range(20)]
child = os.fork()
if child == 0:
    try:
        session.run(None, feed())
    except SessionError as error:
        print(error.message, flush=True)
    session.close()
    del session
    with FakeDevice(2).open() as own:
        print(own.run(None, feed(4))[0][0, 0], own.submit(None, feed(5)).result(120)[0][0, 0], flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert [job.result(120)[0][0, 0] for job in jobs] == [2 * value for value in range(20)]
session.close()
print("parent done", flush=True)
"""
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["this session belongs to the process that was forked", "8.0 10.0", "parent done"]


def test_a_session_is_usable_by_name_from_the_package() -> None:
    import anynpu

    assert issubclass(anynpu.InferenceSession, InferenceSession)
    assert SessionError is anynpu.errors.SessionError
