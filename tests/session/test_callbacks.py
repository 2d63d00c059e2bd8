"""run_async: what callbacks get, in which order, and what they may do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from anynpu.errors import CallbackError, FeedShapeError, SessionError, SubmitTimeout
from anynpu.session import InferenceSession

from .fake import FakeDevice, FakeLane, feed


class Collector:
    """A callback that keeps what it gets."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[tuple[Any, Any, str]] = []
        self.threads: set[int] = set()
        self.inside = 0
        self.overlapped = False
        self.complete = threading.Event()

    def __call__(self, results: Any, user_data: Any, err: str) -> None:
        self.inside += 1
        self.overlapped |= self.inside > 1
        self.threads.add(threading.get_ident())
        self.calls.append((results, user_data, err))
        self.inside -= 1
        if len(self.calls) == self.count:
            self.complete.set()

    def wait(self) -> list[tuple[Any, Any, str]]:
        assert self.complete.wait(300), f"{len(self.calls)} of {self.count}"
        return self.calls


def by_value(slow: Callable[[float], float]) -> Callable[[FakeLane], float]:
    """Run times that follow from the input."""
    return lambda lane: slow(float(lane.arrays[0][0, 0]))


def test_results_user_data_and_no_error() -> None:
    with FakeDevice().open() as session:
        collector = Collector(2)
        session.run_async(None, feed(3), collector, "data")
        session.run_async(["y"], {"x": feed(4)}, collector)
        (first, second) = collector.wait()
        assert first[0][0].tolist() == [[6] * 4]
        assert first[1:] == ("data", "")
        assert second[1:] == (None, "")
        assert threading.get_ident() not in collector.threads


def test_a_failure_is_told_to_the_callback_and_a_bad_feed_to_the_caller() -> None:
    with FakeDevice(fails=lambda lane: True).open() as session:
        collector = Collector(1)
        session.run_async(None, feed(), collector, 5)
        ((results, user_data, err),) = collector.wait()
        assert results is None
        assert user_data == 5
        assert "the fake device failed" in err
        with pytest.raises(FeedShapeError):
            session.run_async(None, feed()[0], collector)
        assert len(collector.calls) == 1


def test_what_is_no_callback_and_batches_are_refused() -> None:
    with FakeDevice().open() as session:
        with pytest.raises(TypeError, match="callback must be callable") as caught:
            session.run_async(None, feed(), 7)  # type: ignore[arg-type]
        assert isinstance(caught.value, CallbackError)
        with pytest.raises(RuntimeError, match="does not spread a batch"):
            session.run_async(None, feed(), print, None, {"ztu_modelrt_dispatch_batch": True})


@pytest.mark.parametrize("options", [{}, {"schedule": [0, 1, 2]}, {"schedule": [0, 0, 1], "threads_per_core": 2}])
def test_callbacks_come_in_the_order_of_submission_one_at_a_time(options: dict[str, Any]) -> None:
    device = FakeDevice(3, run_time=by_value(lambda value: (value * 7 % 5) / 1000))
    with device.open(**options) as session:
        collector = Collector(60)
        for value in range(60):
            session.run_async(None, feed(value), collector, value)
        assert [user_data for _, user_data, _ in collector.wait()] == list(range(60))
        assert [float(results[0][0, 0]) for results, _, _ in collector.calls] == [2 * value for value in range(60)]
        assert not collector.overlapped
    assert device.violations == []


def test_failures_keep_their_place_in_the_order() -> None:
    device = FakeDevice(3, fails=lambda lane: lane.arrays[0][0, 0] % 3 == 1)
    with device.open(schedule=[0, 1, 2]) as session:
        collector = Collector(30)
        for value in range(30):
            session.run_async(None, feed(value), collector, value)
        for value, (results, user_data, err) in enumerate(collector.wait()):
            assert user_data == value
            assert (results is None) == bool(err) == (value % 3 == 1)


def test_without_sequential_callbacks_the_fast_ones_come_first() -> None:
    fast_are_through = threading.Event()
    device = FakeDevice(3, run_time=by_value(lambda value: float(value == 0 and not fast_are_through.wait(300))))
    with device.open(schedule=[0, 1, 2], sequential_callbacks=False) as session:

        class Watching(Collector):
            def __call__(self, results: Any, user_data: Any, err: str) -> None:
                super().__call__(results, user_data, err)
                if len(self.calls) == 4:
                    fast_are_through.set()

        collector = Watching(5)
        for value in range(5):
            session.run_async(None, feed(value), collector, value, core=0 if value == 0 else 1 + value % 2)
        order = [user_data for _, user_data, _ in collector.wait()]
        assert order[-1] == 0
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert not collector.overlapped


def test_an_exception_in_a_callback_is_logged_and_told_and_the_next_callback_comes(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[BaseException] = []
    with FakeDevice(3).open() as session, caplog.at_level(logging.ERROR, "anynpu.session"):
        session.on_callback_error = seen.append
        assert session.on_callback_error is not None
        collector = Collector(3)

        def fragile(results: Any, user_data: int, err: str) -> None:
            collector(results, user_data, err)
            if user_data == 0:
                raise ZeroDivisionError("first")
            if user_data == 1:
                raise SystemExit(3)

        for value in range(3):
            session.run_async(None, feed(value), fragile, value)
        collector.wait()
    assert [user_data for _, user_data, _ in collector.calls] == [0, 1, 2]
    assert [type(error) for error in seen] == [ZeroDivisionError, SystemExit]
    assert "a callback raised ZeroDivisionError: first" in caplog.text


def test_a_hook_that_raises_itself_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with FakeDevice().open() as session:
        session.on_callback_error = lambda error: 1 / 0
        collector = Collector(1)
        session.run_async(None, feed(), lambda *arguments: [][0])
        session.run_async(None, feed(), collector)
        collector.wait()
    assert "on_callback_error raised ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("options", [{}, {"schedule": [0]}, {"watchdog_ms": 20000}])
def test_a_callback_may_use_the_session_in_every_way(options: dict[str, Any]) -> None:
    """With one core and more requests waiting than the queue holds: no call inside may wait for itself."""
    device = FakeDevice(1, run_time=0.001)
    with device.open(max_queue_size=2, submit_timeout_ms=20000, **options) as session:
        collector = Collector(13)
        inner: list[float] = []

        def nested(results: Any, user_data: int, err: str) -> None:
            inner.append(float(session.run(None, feed(user_data))[0][0, 0]))
            inner.append(float(session.submit(None, feed(user_data)).result(120)[0][0, 0]))
            if user_data == 0:
                session.run_async(None, feed(99), collector, 99)
            collector(results, user_data, err)

        for value in range(12):
            session.run_async(None, feed(value), nested, value)
        collector.wait()
        assert inner == [2.0 * value for value in range(12) for _ in range(2)]
        assert sorted(user_data for _, user_data, _ in collector.calls) == [*range(12), 99]
    assert device.violations == []


def test_a_callback_may_wait_for_a_future_that_is_behind_it_in_the_queue() -> None:
    with FakeDevice(1).open() as session:
        job_known = threading.Event()
        jobs: list[Any] = []
        collector = Collector(1)

        def wait_for_other(results: Any, user_data: Any, err: str) -> None:
            assert job_known.wait(120)
            collector(jobs[0].result(120), user_data, err)

        session.run_async(None, feed(1), wait_for_other)
        jobs.append(session.submit(None, feed(2)))
        job_known.set()
        assert collector.wait()[0][0][0].tolist() == [[4] * 4]


def test_a_slow_callback_holds_up_no_synchronous_run() -> None:
    with FakeDevice(1).open() as session:
        release = threading.Event()
        collector = Collector(1)

        def slow(results: Any, user_data: Any, err: str) -> None:
            assert release.wait(120)
            collector(results, user_data, err)

        session.run_async(None, feed(), slow)
        for value in range(5):
            assert session.run(None, feed(value))[0].tolist() == [[2 * value] * 4]
        assert collector.calls == []
        release.set()
        collector.wait()


def test_callbacks_that_are_late_hold_up_submission_in_the_end() -> None:
    with FakeDevice(1).open(submit_timeout_ms=1000) as session:
        release = threading.Event()
        begun = 0
        collected: list[int] = []

        def stuck(results: Any, user_data: int, err: str) -> None:
            assert release.wait(120)
            collected.append(user_data)

        def flood() -> None:
            nonlocal begun
            for value in range(1000):
                session.run_async(None, feed(value), stuck, value)
                begun += 1

        with pytest.raises(SubmitTimeout, match="submit timed out"):
            flood()
        assert 8 <= begun < 50
        release.set()
        session.close(finish=True)
        assert collected == list(range(begun))


def test_closing_in_a_callback_answers_everybody() -> None:
    def run_time(lane: FakeLane) -> float:
        assert lane.arrays[0].flat[0] < 3 or wait_until(lambda: session.closed)  # those behind the third end after that
        return 0.002

    device = FakeDevice(3, run_time=run_time)
    session = device.open(max_queue_size=30)
    collector = Collector(20)

    def closing(results: Any, user_data: int, err: str) -> None:
        if user_data == 2:
            session.close()
        collector(results, user_data, err)

    gate = device.gate = threading.Event()  # nothing ends before the last request was submitted
    for value in range(20):
        session.run_async(None, feed(value), closing, value)
    gate.set()
    calls = collector.wait()
    assert [user_data for _, user_data, _ in calls] == list(range(20))
    assert [err for _, _, err in calls[:6]] == [""] * 6
    assert all("the session was closed" in err for _, _, err in calls[6:])
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0)


def test_dropping_the_last_reference_in_a_callback() -> None:
    device = FakeDevice(2, run_time=0.002)
    held: list[InferenceSession] = [device.open(max_queue_size=20)]
    collector = Collector(10)

    def dropping(results: Any, user_data: int, err: str) -> None:
        held.clear()
        collector(results, user_data, err)

    session = held[0]
    for value in range(10):
        session.run_async(None, feed(value), dropping, value)
    del session
    assert [user_data for _, user_data, _ in collector.wait()] == list(range(10))
    assert wait_until(lambda: device.open_lanes == device.open_backends == 0)


def wait_until(condition: Callable[[], bool], seconds: float = 600) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.002)
    return condition()


def test_a_policy_that_does_not_exist() -> None:
    with FakeDevice().open() as session, pytest.raises(SessionError, match="unknown overflow policy"):
        session.run_async(None, feed(), print, overflow="drop")
