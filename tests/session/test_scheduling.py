"""Which core runs what, what waits where, and what happens when there is no space."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest

from anynpu.errors import DeviceTimeout, JobCancelled, SubmitTimeout
from anynpu.session import runner

from .fake import FakeDevice, FakeLane, feed
from .test_callbacks import Collector, by_value


@pytest.mark.parametrize("schedule", [[0, 1, 2], [0, 0, 1], [2], [1, 0]])
def test_the_core_is_schedule_at_task_modulo_length(schedule: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[float, int] = {}
    original = FakeLane.write

    def write(lane: FakeLane, arrays: Any, *rest: Any) -> None:
        seen[float(arrays[0][0, 0])] = lane.mask
        original(lane, arrays, *rest)

    monkeypatch.setattr(FakeLane, "write", write)
    device = FakeDevice(3)
    with device.open(schedule=schedule) as session:
        collector = Collector(24)
        for value in range(24):
            session.run_async(None, feed(value), collector)
        collector.wait()
        session.run(None, feed(24))
    assert seen == {float(value): 1 << schedule[value % len(schedule)] for value in range(25)}


@pytest.mark.parametrize(("mode", "mask"), [("auto", 0), ("all", 0xFFFF), ("0", 1), ("0,1", 3), ("0,1,2", 7)])
def test_a_tensor_parallel_session_has_one_context_with_its_mask(mode: str, mask: int) -> None:
    device = FakeDevice(3, run_time=0.001)
    with device.open(tp_mode=mode) as session:
        for job in [session.submit(None, feed()) for _ in range(5)]:
            job.result(120)
    assert device.core_runs == {mask: 5}
    assert len(device.lanes) == 1


@pytest.mark.parametrize("per_core", [1, 2])
def test_threads_per_core(per_core: int) -> None:
    device = FakeDevice(3, gated=True)
    assert device.gate is not None
    with device.open(schedule=[0, 1, 1], threads_per_core=per_core, max_queue_size=10) as session:
        assert sorted(lane.mask for lane in device.lanes) == sorted([1, 2] * per_core)
        jobs = [session.submit(None, feed()) for _ in range(12)]
        device.wait_entered(2 * per_core)
        assert not device.entered.acquire(timeout=0.05)
        device.gate.set()
        for job in jobs:
            job.result(120)
    assert device.violations == []


def test_without_a_schedule_more_than_one_request_at_a_time_uses_all_cores() -> None:
    device = FakeDevice(3, gated=True)
    assert device.gate is not None
    with device.open() as session:
        assert device.open_lanes == 1
        jobs = [session.submit(None, feed(value)) for value in range(3)]
        device.wait_entered(3)
        device.gate.set()
        assert [job.result(120)[0][0, 0] for job in jobs] == [0, 2, 4]
        assert device.open_lanes == 3


def test_a_backend_that_cannot_open_contexts_later_opens_all_at_once() -> None:
    device = FakeDevice(3, on_demand=False)
    with device.open():
        assert device.open_lanes == 3


def test_one_slow_core_does_not_block_the_queues_of_the_others() -> None:
    """The peer's single queue would leave cores 1 and 2 idle while its head waits for core 0."""
    device = FakeDevice(3)
    gate = threading.Event()
    device.run_time = lambda lane: float(lane.mask == 1 and not gate.wait(120))
    with device.open(schedule=[0, 1, 2], max_queue_size=3) as session:
        collector = Collector(12)
        jobs = [session.submit(None, feed(value)) for value in range(12)]
        for number, job in enumerate(jobs):
            if number % 3:
                job.result(120)
        assert not any(jobs[number].done() for number in (0, 3, 6, 9))
        gate.set()
        for job in jobs:
            job.add_done_callback(lambda done: collector(done.result(), None, ""))
        collector.wait()


def test_a_full_queue_blocks_and_then_fails() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open(max_queue_size=2, submit_timeout_ms=30) as session:
        jobs = [session.submit(None, feed()) for _ in range(3)]
        device.wait_entered()
        for call in (
            lambda: session.submit(None, feed()),
            lambda: session.run(None, feed()),
            lambda: session.run_async(None, feed(), print),
            lambda: session.run_pipeline(feed()),
        ):
            begin = time.monotonic()
            with pytest.raises(SubmitTimeout, match=r"submit timed out: no space in the queue for 0\.03 s") as caught:
                call()
            assert isinstance(caught.value, RuntimeError)
            assert time.monotonic() - begin >= 0.03
        assert session.try_submit(None, feed()) is None
        with pytest.raises(SubmitTimeout, match="the queue is full"):
            session.submit(None, feed(), overflow="fail")
        assert session.statistics.queued == 2
        assert session.statistics.running == 1
        device.gate.set()
        for job in jobs:
            job.result(120)
        assert session.try_submit(None, feed()) is not None


def test_room_in_the_queue_lets_a_waiting_submitter_in_at_once() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open(max_queue_size=1, submit_timeout_ms=60000) as session:
        jobs = [session.submit(None, feed(value)) for value in range(2)]
        device.wait_entered()
        late: list[Any] = []
        thread = threading.Thread(target=lambda: late.append(session.submit(None, feed(7))))
        thread.start()
        assert not late
        device.gate.set()
        thread.join(120)
        assert [job.result(120)[0][0, 0] for job in [*jobs, *late]] == [0, 2, 14]


def test_drop_oldest_keeps_the_newest() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open(max_queue_size=2) as session:
        collector = Collector(1)
        jobs = [session.submit(None, feed(value)) for value in range(2)]
        device.wait_entered()
        session.run_async(None, feed(2), collector, 2)
        jobs += [session.submit(None, feed(value), overflow="drop_oldest") for value in (3, 4)]
        device.gate.set()
        assert jobs[0].result(120)[0][0, 0] == 0
        assert [job.result(120)[0][0, 0] for job in jobs[2:]] == [6, 8]
        assert jobs[1].cancelled()
        with pytest.raises(CancelledError):
            jobs[1].result(120)
        assert "dropped for a newer one" in collector.wait()[0][2]


def test_urgent_requests_overtake_waiting_ones() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open(max_queue_size=10) as session:
        first = session.submit(None, feed(0))
        device.wait_entered()
        finished: list[int] = []
        jobs = []
        for value, priority in ((1, 0), (2, 5), (3, -1), (4, 0), (5, -1)):
            job = session.submit(None, feed(value), priority=priority)
            job.add_done_callback(lambda done: finished.append(int(done.result()[0][0, 0]) // 2))
            jobs.append(job)
        device.gate.set()
        for job in [first, *jobs]:
            job.result(120)
        session.close(finish=True)
    assert finished == [3, 5, 1, 4, 2]


def test_a_core_of_its_own_for_one_request() -> None:
    device = FakeDevice(3)
    with device.open(schedule=[0, 1]) as session:
        session.submit(None, feed(), core=2).result(120)
        collector = Collector(1)
        session.run_async(None, feed(), collector, core=2)
        collector.wait()
        assert device.core_runs == {4: 2}
        session.run(None, feed())
        session.run(None, feed())
        assert device.core_runs == {4: 2, 1: 1, 2: 1}, "the schedule goes on where it was"


def test_a_deadline_ends_a_request_that_waits_and_one_that_runs() -> None:
    device = FakeDevice(1, gated=True, stoppable=True)
    assert device.gate is not None
    with device.open(max_queue_size=5) as session:
        first = session.submit(None, feed())
        device.wait_entered()
        waiting = session.submit(None, feed(), timeout=0.03)
        with pytest.raises(DeviceTimeout, match=r"within 0\.03 s"):
            waiting.result(120)
        collector = Collector(1)
        session.run_async(None, feed(), collector, timeout=0.03)
        assert "did not finish within 0.03 s" in collector.wait()[0][2]
        device.gate.set()
        first.result(120)
        device.gate = None
        device.run_time = 30.0
        with pytest.raises((DeviceTimeout, JobCancelled)):
            session.submit(None, feed(), timeout=0.05).result(120)


def test_finished_requests_with_far_deadlines_are_forgotten() -> None:
    with FakeDevice(1).open() as session:
        for _ in range(1000):
            session.submit(None, feed(), timeout=3600).result(120)
        assert len(session._runner._timekeeper._heap) <= 300


def test_cancelling() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open(max_queue_size=5) as session:
        first = session.submit(None, feed(1))
        device.wait_entered()
        second, third = session.submit(None, feed(2)), session.submit(None, feed(3))
        assert first.running()
        assert not second.running()
        assert second.cancel()
        assert not second.cancel() or second.cancelled()
        assert second.cancelled()
        assert second.done()
        assert not first.cancel(), "this device cannot be stopped"
        seen: list[bool] = []
        third.add_done_callback(lambda done: seen.append(done.cancelled()))
        assert third.cancel()
        device.gate.set()
        assert first.result(120)[0][0, 0] == 2
        assert not first.cancel()
        session.close(finish=True)
    assert seen == [True]
    assert (first.number, second.number, third.number) == (0, 1, 2)


def test_cancelling_what_runs_where_the_device_can_be_stopped() -> None:
    device = FakeDevice(1, run_time=30.0, stoppable=True)
    with device.open() as session:
        job = session.submit(None, feed())
        while not device.core_runs:
            time.sleep(0.001)
        assert job.cancel()
        with pytest.raises(JobCancelled):
            job.result(120)
        device.run_time = 0.0
        assert session.run(None, feed())[0].tolist() == [[2] * 4]


def test_a_late_stop_does_not_reach_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    running: list[float] = []

    def slow_cancel(lane: FakeLane) -> bool:
        """Lets the run end, and gives the next one plenty of time to begin before it looks."""
        assert device.gate is not None
        device.gate.set()
        device.entered.acquire(timeout=0.3)
        running.append(float(lane.arrays[0][0, 0]))
        return False

    monkeypatch.setattr(FakeLane, "cancel", slow_cancel)
    with device.open(max_queue_size=5) as session:
        first = session.submit(None, feed(1))
        device.wait_entered()
        second = session.submit(None, feed(2))
        first.cancel()
        assert [job.result(120)[0][0, 0] for job in (first, second)] == [2, 4]
    assert running == [1]


def test_functions_attached_to_a_future_may_use_the_session() -> None:
    with FakeDevice(1, run_time=0.001).open(max_queue_size=20) as session:
        results: list[float] = []
        complete = threading.Event()

        def again(done: Any) -> None:
            results.append(float(session.run(None, feed(done.result()[0][0, 0]))[0][0, 0]))
            if len(results) == 10:
                complete.set()

        for value in range(10):
            session.submit(None, feed(value)).add_done_callback(again)
        assert complete.wait(120)
        assert sorted(results) == [4.0 * value for value in range(10)]
        finished = session.submit(None, feed(1))
        finished.result(120)
        seen: list[Any] = []
        finished.add_done_callback(seen.append)
        assert seen == [finished]


def test_pacing_spreads_submissions() -> None:
    device = FakeDevice(1, run_time=0.02)
    with device.open(enable_pacing=True, max_queue_size=50) as session:
        session.run(None, feed())
        collector = Collector(10)
        begin = time.perf_counter()
        moments = []
        for value in range(10):
            session.run_async(None, feed(value), collector)
            moments.append(time.perf_counter() - begin)
        assert moments[-1] >= 8 * 0.02
        assert len(collector.wait()) == 10, "nothing is dropped"
        assert session.statistics.failed == 0


def test_who_comes_too_early_sleeps_once_and_costs_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only sleeping moves: a busy wait would never end, and one that polls would sleep more often."""
    now, sleeps = 5_000_000_000, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += round(seconds * 1e9)
        sleeps.append(seconds)
        assert len(sleeps) < 20

    def clock() -> int:
        assert next(looks) < 100, "it looks at the clock again and again"
        return now

    looks = itertools.count()
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter_ns=clock, sleep=sleep))
    pacer = runner.Pacer(2)
    pacer.learn(40_000_000)
    for _ in range(10):
        pacer.pace()
    assert sleeps == pytest.approx([0.02] * 9)


def test_pacing_counts_the_cores() -> None:
    device = FakeDevice(3, run_time=0.03)
    with device.open(enable_pacing=True, schedule=[0, 1, 2, 0]) as session:
        session.run(None, feed())
        begin = time.perf_counter()
        jobs = [session.submit(None, feed()) for _ in range(7)]
        elapsed = time.perf_counter() - begin
        assert elapsed >= 5 * 0.01
        for job in jobs:
            job.result(120)


def test_order_and_pacing_together() -> None:
    device = FakeDevice(3, run_time=by_value(lambda value: 0.001 * (value % 3)))
    with device.open(enable_pacing=True, schedule=[0, 1, 2]) as session:
        collector = Collector(30)
        for value in range(30):
            session.run_async(None, feed(value), collector, value)
        assert [user_data for _, user_data, _ in collector.wait()] == list(range(30))
