"""Who runs what, when and in which thread.

One lock protects all of it: groups (queues, free lanes), the state of requests, the order of callbacks, the counts. It is held for a few
assignments at a time, never while the device works, a callback runs or anything waits.

* A synchronous request that finds a lane free runs in its caller's thread. Otherwise it queues, and either a worker runs it on the way, or
  the lane is handed to the waiting thread.
* An asynchronous request is run by a worker; a worker that finishes takes the next request of its group with the same lane, so that a
  busy lane costs no wake-up.
* User code (callbacks, functions attached to futures) runs in a thread that holds no lane: in the worker itself if nothing waits for its
  lane, else in another. One piece of it runs at a time. It may therefore use the session freely, and close it.
* A request is answered exactly once: by whoever moves its state to DONE, under the lock.

Ending: :meth:`close` denies what waits, lets running requests finish (or stops them), and closes each lane when its thread has left it. A
thread that does not come back (a hung device) keeps its lane; all else is closed.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence

from ..errors import DeviceClosed, DeviceHungError, JobCancelled, SessionError, SubmitTimeout
from .backend import Backend
from .execution import Execution, close_lane, out_of_time
from .lanes import Slot, core_label
from .pacing import Pacer
from .queues import Started
from .request import BLOCKED, DONE, QUEUED, RUNNING, Request
from .statistics import Recorder
from .timekeeper import Timekeeper
from .workers import Workers

__all__ = ["Scheduler"]

log = logging.getLogger("anynpu.session")


class Scheduler(Execution):
    """The queues, lanes and threads of one session. Knows no session: a session that is forgotten can be closed."""

    def __init__(
        self,
        backend: Backend,
        *,
        schedule: Sequence[int] | None,
        mask: int,
        most: int,
        threads_per_core: int,
        max_queue_size: int,
        submit_timeout: float,
        sequential: bool,
        pacing: bool,
        watchdog: float | None,
        name: str,
    ) -> None:
        super().__init__(
            cores=backend.cores,
            schedule=schedule,
            mask=mask,
            most=most,
            threads_per_core=threads_per_core,
            max_queue_size=max_queue_size,
            sequential=sequential,
        )
        self.backend = backend
        self.recorder = Recorder()
        self._submit_timeout = submit_timeout
        self._watchdog = watchdog
        self._lost_threads: set[int] = set()
        self._forked = False
        self._ended = False  # lanes are closed by the threads that come back with them
        self._workers = Workers(name)
        self._timekeeper = Timekeeper(self._expired, self._find_hung, watchdog)
        cores = len(self._groups) if schedule is not None else max(1, most // threads_per_core)
        self._pacer = Pacer(cores) if pacing else None

    def open(self, at_once: bool) -> None:
        """Open lanes: all that there may be, or the first only."""
        for group in self._groups.values():
            while len(group.slots) < (group.most if at_once else 1):
                lane = self.backend.open_lane(group.mask)
                group.free.insert(0, group.add(lane))
        self._timekeeper.start()

    def run(self, request: Request, core: int | None = None) -> None:
        """Have *request* run and return when it is done; ``request.error`` says how."""
        pacer = self._pacer
        if pacer is not None:
            pacer.pace()
        inline = self._watchdog is None  # a thread that hangs in the device must not be the caller's
        with self._lock:
            group = self._enter(request, core)
            slot = group.take()
            if slot is not None:
                self._hold(slot, request)
            else:
                request.waiter = threading.Lock()
                request.waiter.acquire()
                self._queue_or_block(group, request)
        if slot is not None:
            if inline:
                self._run_inline(slot, request)
                return
            request.waiter = threading.Lock()
            request.waiter.acquire()
            self._workers.start(functools.partial(self._serve, slot, request))
        self._await(request)

    def post(self, request: Request, core: int | None = None, overflow: str = "wait") -> bool:
        """Have *request* run by another thread; returns when it is in the queue.

        :param overflow: what happens if the queue is full: ``wait`` (up to the submit timeout), ``later`` (the request waits for room
            by itself), ``fail`` (False is returned), ``drop_oldest`` (the oldest request of the queue is cancelled)
        """
        pacer = self._pacer
        if pacer is not None and overflow != "later":
            if overflow == "fail" and pacer.wait_time() > 0:
                return False
            pacer.pace()
        victim = None
        with self._lock:
            group = self._enter(request, core, turn=False)
            callback = request.callback is not None
            request.urgent = not callback or threading.get_ident() == self._deliverer  # a callback must not wait for callbacks
            late = not request.urgent and self._undelivered >= self._limit
            slot = None if late else group.take()
            if slot is not None:
                self._hold(slot, request)
            elif not late and self._has_room(group):
                request.state = QUEUED
                group.put(request)
            elif overflow == "fail":
                return False
            elif overflow == "drop_oldest" and (victim := self._oldest(group, request)) is not None:
                self._deny(victim)
                request.state = QUEUED
                group.put(request)
            else:
                if overflow != "later":
                    request.admitted = threading.Lock()
                    request.admitted.acquire()
                group.blocked.append(request)
            self._number(request, core)
            if callback:
                if request.state != BLOCKED:
                    self._undelivered += 1
                if self._sequential:
                    self._order.append(request)
        if slot is not None:
            self._workers.start(functools.partial(self._serve, slot, request))
        if victim is not None:
            self._answer_denied(
                victim, JobCancelled("the request was dropped for a newer one", hint="the queue was full; see overflow")
            )
        if request.deadline:
            self._timekeeper.add(request)
        if request.admitted is not None:
            self._await_admission(request)
        return True

    def _await(self, request: Request) -> None:
        """Wait for a synchronous request; runs it in this thread if a lane is handed over."""
        waiter = request.waiter
        assert waiter is not None
        try:
            while not waiter.acquire(timeout=self._patience(request)):
                if self._give_up(request):
                    return
        except BaseException:  # an interrupt from the keyboard: nothing may stay behind
            self.cancel(request)
            if request.state == RUNNING and waiter.acquire():
                self._run_if_handed(request)
            raise
        self._run_if_handed(request)

    def _patience(self, request: Request) -> float:
        """How long the thread of a synchronous request waits before it looks again."""
        until = request.submitted + int(self._submit_timeout * 1e9) if request.state == BLOCKED else 0
        if request.deadline and request.state != RUNNING:
            until = min(until or request.deadline, request.deadline)
        return max(0.0, (until - time.perf_counter_ns()) / 1e9) if until else threading.TIMEOUT_MAX

    def _run_if_handed(self, request: Request) -> None:
        slot = request.slot
        if request.state == RUNNING and slot is not None:
            self._run_inline(slot, request)

    def _give_up(self, request: Request) -> bool:
        """End a synchronous request whose time to wait is over; False if it may go on."""
        now = time.perf_counter_ns()
        with self._lock:
            if request.state not in (BLOCKED, QUEUED):
                return False
            late = bool(request.deadline) and now >= request.deadline
            if not late and not (request.state == BLOCKED and now >= request.submitted + int(self._submit_timeout * 1e9)):
                return False
            started = self._deny(request)
        self._start(started)
        request.error = out_of_time(request) if late else self._saturated()
        return True

    def _await_admission(self, request: Request) -> None:
        admitted = request.admitted
        assert admitted is not None
        try:
            if admitted.acquire(timeout=self._submit_timeout):
                error: BaseException | None = request.error if request.state == DONE and request.number < 0 else None
            else:
                error = self._saturated() if self._withdraw(request) else None
        except BaseException:
            self._withdraw(request)
            raise
        if error is not None:
            raise error

    def _withdraw(self, request: Request) -> bool:
        """Take a request that waits for room out again, as if it had never come; False if it got in meanwhile."""
        with self._lock:
            if request.state != BLOCKED:
                return False
            assert request.group is not None
            request.group.blocked.remove(request)
            if request.callback is not None and self._sequential:
                self._order.remove(request)
            request.state = DONE
            deliver = self._claim_delivery()
        if deliver:
            self._workers.start(self._deliver)
        return True

    def _saturated(self) -> SubmitTimeout:
        return SubmitTimeout(
            f"submit timed out: no room in the queue for {self._submit_timeout:g} s (max_queue_size {self._max_queue})",
            hint="the device or a callback is too slow for what is submitted: wait for results, use try_submit, or raise max_queue_size",
        )

    def cancel(self, request: Request) -> bool:
        """Take a waiting request out of the queue, or ask the device to stop a running one; False if neither can be done."""
        with self._lock:
            state = request.state
            if state == DONE:
                return False
            if state == RUNNING:
                return self._stop(request)
            started = self._deny(request)
        self._start(started)
        self._answer_denied(request, JobCancelled("the request was cancelled"))
        return True

    def _stop(self, request: Request) -> bool:
        """Ask the device to stop a running request. The lock is held: the lane cannot go on to the next one in the meantime."""
        lane = None if request.slot is None else request.slot.lane
        return lane is not None and lane.cancel()

    def _expired(self, request: Request) -> None:
        """The deadline of an asynchronous request has come. Called by the timekeeper."""
        with self._lock:
            state = request.state
            if state == DONE:
                return
            if state == RUNNING:
                self._stop(request)
                return
            started = self._deny(request)
        self._start(started)
        self._answer_denied(request, out_of_time(request))

    def _find_hung(self) -> None:
        """Give up lanes whose thread has been in the device for too long. Called by the timekeeper."""
        assert self._watchdog is not None
        oldest = time.perf_counter_ns() - int(self._watchdog * 1e9)
        lost: list[Slot] = []
        answers: list[Request] = []
        started: Started = []
        deliver = False
        with self._lock:
            for group in self._groups.values():
                for slot in tuple(group.slots):
                    request = slot.request
                    if request is None or not request.started or request.started > oldest or request.state != RUNNING:
                        continue
                    lost.append(slot)
                    slot.lost = True
                    self._lost_threads.add(slot.thread)
                    group.slots.remove(slot)
                    self._running -= 1
                    request.error = DeviceHungError(
                        f"{core_label(group.mask)} did not answer for {self._watchdog:g} s",
                        hint="its context was given up and a new one opened; if this repeats, reset the NPU or the board",
                    )
                    request.state = DONE
                    request.slot = None
                    if request.hooked:
                        self._hooked.append(request)
                    elif request.callback is None:
                        answers.append(request)
                    elif not self._sequential:
                        self._order.append(request)
                    self._refill(group, started)
            if lost:
                deliver = self._claim_delivery()
                self._tell_idle()
        for slot in lost:
            if slot.lane is not None:
                slot.lane.abandon()
            log.error("%s did not answer for %g s; its context is given up", slot.label, self._watchdog)
        for request in answers:
            self._answer(request)
        self._start(started)
        if deliver:
            self._workers.start(self._deliver)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until every request is answered (what the calling thread itself is in the middle of does not count)."""
        entry = (threading.Event(), threading.get_ident())
        with self._lock:
            self._idle_waiters.append(entry)
            self._tell_idle()
        try:
            return entry[0].wait(timeout)
        finally:
            with self._lock:
                self._idle_waiters.remove(entry)

    def close(self, finish: bool = False, timeout: float | None = None) -> bool:
        """End everything; False if a lane did not come back within *timeout* seconds.

        :param finish: let waiting requests run first
        """
        if self._forked:
            return True
        if finish and self._closed is None:
            self.wait_idle(timeout)
        with self._lock:
            first = self._closed is None
            if first:
                self._closed = _closed_error()
            denied = [request for group in self._groups.values() for request in (*group.queue, *group.blocked)]
            threads = [request for request in denied if request.admitted is not None and request.state == BLOCKED]
            for request in denied:
                if request in threads:
                    self._drop_blocked(request)
                else:
                    self._deny(request)
            lanes = [slot.lane for group in self._groups.values() for slot in group.slots if slot.request is not None]
        for request in threads:
            assert request.admitted is not None
            request.admitted.release()
        for request in denied:
            if request not in threads:
                self._answer_denied(request, self._closed_error())
        if not finish:
            for lane in lanes:
                if lane is not None:
                    lane.cancel()
        back = self.wait_idle(timeout)
        with self._lock:
            self._ended = True
            free = [slot for group in self._groups.values() for slot in group.free]
            last = self._running == 0
        for slot in free:
            lane, slot.lane = slot.lane, None
            close_lane(lane)
        self._timekeeper.end()
        self._workers.end(self._lost_threads if back else None)
        if first and last:
            self.backend.close()
        return back

    def _drop_blocked(self, request: Request) -> None:
        """A thread waits for room for this one, and will raise: as if the request had never come."""
        assert request.group is not None
        request.group.blocked.remove(request)
        if request.callback is not None and self._sequential:
            self._order.remove(request)
        request.state = DONE
        request.number = -1
        request.error = self._closed_error()

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def abandon_after_fork(self) -> None:
        """In a child process: threads and contexts are the parent's; nothing here may be used or closed."""
        self._lock = threading.Lock()
        self._forked = True
        self._closed = SessionError(
            "this session belongs to the process that was forked", hint="open a session in each process, after the fork"
        )
        self._timekeeper.forget()
        self._workers.idle = []

    def depth(self) -> int:
        """How many requests wait."""
        with self._lock:
            return sum(len(group.queue) + len(group.blocked) for group in self._groups.values())

    def slots(self) -> list[Slot]:
        """All lanes that were opened."""
        with self._lock:
            return [slot for group in self._groups.values() for slot in group.slots]

    def running(self) -> int:
        """How many requests run."""
        return self._running


def _closed_error() -> DeviceClosed:
    return DeviceClosed("the session was closed", hint="open a new one")
