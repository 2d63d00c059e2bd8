"""The scheduler: who gets which cores when. Most tests queue without threads, so that the order is exact."""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import pytest
from waiting import PATIENCE, wait_until

from anynpu.errors import AnynpuError, DeviceClosed, DeviceTimeout, JobCancelled, UnsupportedCall
from anynpu.npu import CoreMask, CoreScheduler, Lease, RunControl

from .builders import Thread


class Queue:
    """Queues jobs by name and notes in which order they are served."""

    def __init__(self, scheduler: CoreScheduler) -> None:
        self.scheduler = scheduler
        self.order: list[str] = []
        self.leases: dict[str, Lease] = {}
        self.errors: dict[str, AnynpuError] = {}
        self.controls: dict[str, RunControl] = {}

    def ask(self, name: str, *cores: int, priority: int = 0, exclusive: tuple[str, ...] = ()) -> None:
        def settled(lease: Lease) -> None:
            if lease.error is not None:
                self.errors[name] = lease.error
                return
            self.order.append(name)
            self.leases[name] = lease

        self.controls[name] = RunControl()
        self.scheduler.enqueue(settled, CoreMask.of(*cores), priority=priority, control=self.controls[name], exclusive=exclusive)

    def end(self, name: str) -> None:
        self.leases[name].release()


@pytest.fixture
def queue() -> Queue:
    return Queue(CoreScheduler(3))


def wait_for_waiters(scheduler: CoreScheduler, count: int) -> None:
    wait_until(lambda: scheduler.waiting == count, f"{count} wait")


def test_any_idle_core_is_taken_and_no_core_twice(queue: Queue) -> None:
    for name in "abcd":
        queue.ask(name)
    assert sorted(queue.leases[name].cores for name in "abc") == [(0,), (1,), (2,)]
    assert "d" not in queue.leases
    queue.end("b")
    assert queue.leases["d"].cores == queue.leases["b"].cores


def test_the_core_that_did_least_is_chosen(queue: Queue) -> None:
    for core in (0, 1):
        with queue.scheduler.acquire((core,)):
            time.sleep(0.002)
    with queue.scheduler.acquire() as lease:
        assert lease.cores == (2,)


def test_a_job_on_several_cores_has_them_all_to_itself(queue: Queue) -> None:
    queue.ask("pair", 0, 2)
    queue.ask("zero", 0)
    queue.ask("any")
    queue.ask("two", 2)
    assert queue.order == ["pair", "any"]
    assert queue.leases["any"].cores == (1,)
    queue.end("pair")
    assert queue.order == ["pair", "any", "zero", "two"]


def test_all_cores() -> None:
    scheduler = CoreScheduler(3)
    with scheduler.acquire(CoreMask.ALL) as lease:
        assert lease.cores == (0, 1, 2)
    single = CoreScheduler(1)
    with single.acquire(CoreMask.ALL) as lease:
        assert lease.cores == (0,)


@pytest.mark.parametrize("mask", [CoreMask.CORE_3, 9, (0, 3), (-1,), -2, 1 << 20])
def test_cores_that_do_not_exist(mask: int | tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedCall) as caught:
        CoreScheduler(3).acquire(mask)
    assert "CoreMask" in caught.value.hint


def test_the_order_is_priority_then_arrival(queue: Queue) -> None:
    queue.ask("first", 0, 1, 2)
    for name, priority in (("c1", 2), ("a1", 0), ("b1", 1), ("a2", 0), ("c2", 2), ("urgent", -1)):
        queue.ask(name, 0, 1, 2, priority=priority)
    while queue.scheduler.waiting:
        queue.end(queue.order[-1])
    assert queue.order == ["first", "urgent", "a1", "a2", "b1", "c1", "c2"]


def test_a_job_on_all_cores_is_not_overtaken_by_small_ones(queue: Queue) -> None:
    for name in ("s0", "s1", "s2"):
        queue.ask(name)
    queue.ask("all", 0, 1, 2)
    for name in ("s3", "s4", "s5", "s6"):
        queue.ask(name)
    queue.end("s1")
    queue.end("s2")
    assert queue.order == ["s0", "s1", "s2"], "two idle cores wait for the third"
    queue.ask("s7")
    queue.end("s0")
    assert queue.order[3:] == ["all"]
    queue.end("all")
    assert queue.order[4:] == ["s3", "s4", "s5"]


def test_a_job_on_all_cores_is_served_under_steady_load() -> None:
    scheduler = CoreScheduler(3)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            with scheduler.acquire(control=RunControl(PATIENCE)):
                time.sleep(0.0005)

    threads = [Thread(load) for _ in range(6)]
    try:
        for _ in range(20):
            with scheduler.acquire(CoreMask.ALL, control=RunControl(PATIENCE)) as lease:
                assert lease.cores == (0, 1, 2)
    finally:
        stop.set()
    for thread in threads:
        thread.finish()


def test_who_waits_reserves_only_the_cores_it_needs(queue: Queue) -> None:
    queue.ask("zero", 0)
    queue.ask("pair", 0, 1)
    queue.ask("two", 2)
    queue.ask("one", 1)
    assert queue.order == ["zero", "two"]
    queue.end("two")
    queue.ask("any")
    assert queue.leases["any"].cores == (2,), "core 1 is idle but reserved"
    queue.end("zero")
    queue.end("pair")
    assert queue.order == ["zero", "two", "any", "pair", "one"]


def test_a_more_urgent_job_passes_a_reservation(queue: Queue) -> None:
    queue.ask("zero", 0)
    queue.ask("all", 0, 1, 2, priority=1)
    queue.ask("urgent", 1, priority=0)
    assert queue.order == ["zero", "urgent"]


def test_a_reservation_ends_with_its_job(queue: Queue) -> None:
    queue.ask("zero", 0)
    queue.ask("pair", 0, 1)
    queue.ask("one", 1)
    queue.controls["pair"].cancel(JobCancelled("no longer wanted"))
    assert queue.order == ["zero", "one"]
    assert isinstance(queue.errors["pair"], JobCancelled)


def test_exclusive_things_are_had_by_one_job_at_a_time_and_in_order(queue: Queue) -> None:
    queue.ask("a1", exclusive=("a",))
    queue.ask("a2", exclusive=("a",))
    queue.ask("ab", exclusive=("a", "b"))
    queue.ask("b1", exclusive=("b",))
    queue.ask("c1", exclusive=("c",))
    assert queue.order == ["a1", "c1"], "idle cores do not help a job whose context is busy, and are not held for it"
    queue.end("a1")
    queue.end("a2")
    assert queue.order == ["a1", "c1", "a2", "ab"]
    queue.end("ab")
    assert queue.order[-1] == "b1"


def test_a_job_that_waits_for_something_exclusive_reserves_no_core(queue: Queue) -> None:
    queue.ask("a1", 0, exclusive=("a",))
    queue.ask("a2", 0, 1, 2, exclusive=("a",))
    queue.ask("x", 1)
    assert queue.order == ["a1", "x"]


def test_releasing_twice_does_nothing(queue: Queue) -> None:
    queue.ask("a", 0)
    queue.ask("b", 0)
    queue.ask("c", 0)
    queue.end("a")
    queue.end("a")
    assert queue.order == ["a", "b"]


def test_waiting_ends_with_the_deadline() -> None:
    scheduler = CoreScheduler(1)
    with scheduler.acquire():
        with pytest.raises(DeviceTimeout, match=r"got no core within 0\.02 s"):
            scheduler.acquire(control=RunControl(0.02))
        assert scheduler.waiting == 0
    with scheduler.acquire(control=RunControl(PATIENCE)):
        pass


def test_a_deadline_that_has_passed_asks_for_nothing() -> None:
    scheduler = CoreScheduler(1)
    with pytest.raises(DeviceTimeout):
        scheduler.acquire(control=RunControl(0.0))
    assert scheduler.statistics[0].jobs == 0


def test_waiting_ends_with_the_cancellation() -> None:
    scheduler = CoreScheduler(1)
    control = RunControl()
    with scheduler.acquire():
        waiter = Thread(lambda: scheduler.acquire(control=control))
        wait_for_waiters(scheduler, 1)
        control.cancel()
        with pytest.raises(JobCancelled):
            waiter.finish()
        assert scheduler.waiting == 0


def test_an_interrupted_wait_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = CoreScheduler(1)
    with scheduler.acquire():
        with monkeypatch.context() as patch:

            def interrupt(event: threading.Event, timeout: float | None = None) -> bool:
                raise KeyboardInterrupt

            patch.setattr(threading.Event, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                scheduler.acquire()
        assert scheduler.waiting == 0
    with scheduler.acquire(control=RunControl(PATIENCE)):
        pass


def test_closing_denies_who_waits_and_stops_who_runs() -> None:
    scheduler = CoreScheduler(1)
    running, left = threading.Event(), threading.Event()

    def work() -> None:
        control = RunControl()
        with scheduler.acquire(control=control):
            running.set()
            while not control.cancelled:
                time.sleep(0.001)
            left.set()
            control.check()

    worker = Thread(work)
    assert running.wait(120)
    waiters = [Thread(scheduler.acquire) for _ in range(3)]
    wait_for_waiters(scheduler, 3)
    scheduler.close()
    assert left.is_set(), "close returns when nobody has a core any more"
    for thread in (worker, *waiters):
        with pytest.raises(DeviceClosed):
            thread.finish()
    with pytest.raises(DeviceClosed):
        scheduler.acquire()
    scheduler.close()


def test_closing_from_inside_a_job_does_not_wait_for_itself() -> None:
    scheduler = CoreScheduler(1)
    control = RunControl()
    with scheduler.acquire(control=control):
        scheduler.close()
        with pytest.raises(DeviceClosed):
            control.check()


def test_retiring_something_exclusive_leaves_the_rest_alone(queue: Queue) -> None:
    queue.ask("a1", exclusive=("a",))
    queue.ask("b1", exclusive=("b",))
    queue.ask("a2", exclusive=("a",))
    retiring = Thread(lambda: queue.scheduler.retire("a", DeviceClosed("gone")))
    wait_until(lambda: queue.controls["a1"].cancelled, "the one who has it is cancelled")
    assert retiring.is_alive()
    queue.end("a1")
    retiring.finish()
    assert isinstance(queue.errors["a2"], DeviceClosed)
    assert not queue.controls["b1"].cancelled


def test_draining_waits_for_all_that_was_asked_for(queue: Queue) -> None:
    queue.ask("a", 0)
    queue.ask("b", 0)
    draining = Thread(queue.scheduler.drain)
    queue.end("a")
    draining.join(0.02)
    assert draining.is_alive()
    queue.end("b")
    draining.finish()


def test_statistics(queue: Queue) -> None:
    with queue.scheduler.acquire((0, 1)):
        time.sleep(0.002)
    with queue.scheduler.acquire((1,)):
        pass
    zero, one, two = queue.scheduler.statistics
    assert (zero.jobs, one.jobs, two.jobs) == (1, 2, 0)
    assert zero.busy_ns >= 2_000_000
    assert one.busy_ns > zero.busy_ns
    assert two.busy_ns == 0


def test_many_threads_never_share_a_core() -> None:
    scheduler = CoreScheduler(3)
    owners = [0, 0, 0]

    def work(seed: int) -> None:
        choice = random.Random(seed)
        for _ in range(60):
            mask = choice.choice([(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
            with scheduler.acquire(mask, priority=choice.randrange(2), control=RunControl(PATIENCE)) as lease:
                for core in lease.cores:
                    owners[core] += 1
                if choice.random() < 0.2:
                    time.sleep(0.0002)
                assert all(owners[core] == 1 for core in lease.cores)
                for core in lease.cores:
                    owners[core] -= 1

    for thread in [Thread(partial(work, seed)) for seed in range(8)]:
        thread.finish()
    assert scheduler.waiting == 0
    assert sum(core.jobs for core in scheduler.statistics) >= 8 * 60
