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
from collections import deque
from collections.abc import Callable, Sequence

from ..errors import (
    AnynpuError,
    DeviceClosed,
    DeviceHungError,
    DeviceTimeout,
    JobCancelled,
    OptionError,
    SessionError,
    SubmitTimeout,
)
from .backend import Backend, Lane
from .lanes import Group, Slot, core_label
from .pacing import Pacer
from .request import BLOCKED, DONE, QUEUED, RUNNING, Request
from .statistics import Recorder
from .timekeeper import Timekeeper
from .workers import Workers

__all__ = ["Scheduler"]

log = logging.getLogger("anynpu.session")

FAILURES = 3
"""Runs in a row that may fail before the context is opened anew."""

EXTRA_UNDELIVERED = 8
"""Callbacks that may be late, besides one for each request that the lanes and queues hold."""


class Scheduler:
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
        self.backend = backend
        self._lock = threading.Lock()
        self._per_core = threads_per_core
        self._max_queue = max_queue_size
        self._submit_timeout = submit_timeout
        self._sequential = sequential
        self._watchdog = watchdog
        self._groups: dict[int, Group] = {}
        self._turns: list[Group] = []  # of the groups, where there is a schedule
        self._turn = 0
        self._numbers = 0
        self._closed: AnynpuError | None = None
        self._running = 0  # slots that a thread holds
        self._order: deque[Request] = deque()  # callbacks to come
        self._hooked: deque[Request] = deque()  # futures to be settled by a thread without a lane
        self._delivering = False
        self._deliverer = 0
        self._undelivered = 0
        self._idle_waiters: list[tuple[threading.Event, int]] = []  # with the thread that waits
        self._lost_threads: set[int] = set()
        self._forked = False
        self._ended = False  # lanes are closed by the threads that come back with them
        self._workers = Workers(name)
        self._timekeeper = Timekeeper(self._expired, self._find_hung, watchdog)
        self.recorder = Recorder()
        self.on_callback_error: Callable[[BaseException], object] | None = None
        if schedule is None:
            self._main = self._group(mask, most)
        else:
            for core in schedule:
                self._turns.append(self._group(1 << core, threads_per_core))
            self._main = self._turns[0]
        cores = len(self._groups) if schedule is not None else max(1, most // threads_per_core)
        self._pacer = Pacer(cores) if pacing else None
        self._limit = sum(group.most for group in self._groups.values()) + max_queue_size * len(self._groups) + EXTRA_UNDELIVERED

    # -- lanes

    def open(self, at_once: bool) -> None:
        """Open lanes: all that there may be, or the first only."""
        for group in self._groups.values():
            while len(group.slots) < (group.most if at_once else 1):
                lane = self.backend.open_lane(group.mask)
                group.free.insert(0, group.add(lane))
        self._timekeeper.start()

    @property
    def lanes(self) -> int:
        """How many requests may run at a time."""
        return sum(group.most for group in self._groups.values())

    def _group(self, mask: int, most: int) -> Group:
        group = self._groups.get(mask)
        if group is None:
            group = self._groups[mask] = Group(mask, most)
        return group

    # -- requests come in

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
            elif not late and len(group.queue) < self._max_queue:
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

    def _enter(self, request: Request, core: int | None, turn: bool = True) -> Group:
        if self._closed is not None:
            raise self._closed_error()
        if core is not None:
            group = self._pinned(core)
        elif self._turns:
            group = self._turns[self._turn % len(self._turns)]
        else:
            group = self._main
        request.group = group
        if turn:
            self._number(request, core)
        return group

    def _number(self, request: Request, core: int | None) -> None:
        request.number = self._numbers
        self._numbers += 1
        if core is None:
            self._turn += 1

    def _pinned(self, core: int) -> Group:
        cores = self.backend.cores
        if not isinstance(core, int) or not 0 <= core < cores:
            raise OptionError(f"core {core!r} does not exist: this NPU has {cores}", hint=f"use a core from 0 to {cores - 1}")
        return self._group(1 << core, self._per_core)

    def _queue_or_block(self, group: Group, request: Request) -> None:
        if len(group.queue) < self._max_queue:
            request.state = QUEUED
            group.put(request)
        else:
            group.blocked.append(request)

    def _oldest(self, group: Group, request: Request) -> Request | None:
        """Who makes room for *request*: the oldest that is no more urgent and that nobody waits for in his thread."""
        if not request.urgent and self._undelivered >= self._limit:
            return None
        return next((old for old in group.queue if old.waiter is None and old.priority >= request.priority), None)

    def _hold(self, slot: Slot, request: Request) -> None:
        request.state = RUNNING
        request.slot = slot
        slot.request = request
        self._running += 1

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
        request.error = _out_of_time(request) if late else self._saturated()
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

    # -- requests are executed

    def _run_inline(self, slot: Slot, request: Request) -> None:
        request.waiter = None
        if slot.lane is None and not self._open(slot, request):
            self._await(request)
            return
        self._execute(slot, request)
        self._finish(slot, request, inline=True)

    def _serve(self, slot: Slot, request: Request | None) -> None:
        """Run *request* and then what waits for the same lane; in a worker."""
        slot.thread = threading.get_ident()
        while request is not None:
            if slot.lane is None and not self._open(slot, request):
                return
            self._execute(slot, request)
            request = self._finish(slot, request)

    def _open(self, slot: Slot, request: Request) -> bool:
        """Open a lane at its first use. If there is no more to be had the session goes on with those it has: the request queues
        again, and False is returned."""
        request.started = time.perf_counter_ns()
        try:
            slot.lane = self.backend.open_lane(slot.group.mask)
            return True
        except AnynpuError as error:
            group = slot.group
            started: list[tuple[Slot, Request]] = []
            with self._lock:
                if len(group.slots) <= 1 or slot.lost or self._closed is not None:
                    return True  # the request will meet the same error, and report it
                log.warning("%s cannot be opened; %d serve the session: %s", slot.label, len(group.slots) - 1, error)
                group.slots.remove(slot)
                group.most = len(group.slots)
                slot.request = request.slot = None
                request.state = QUEUED
                request.started = 0
                self._running -= 1
                if request.callback is None and request.future is None and request.notify is None and request.waiter is None:
                    request.waiter = threading.Lock()
                    request.waiter.acquire()
                group.queue.appendleft(request)
                self._refill(group, started)
            self._start(started)
            return False

    def _execute(self, slot: Slot, request: Request) -> None:
        now = time.perf_counter_ns
        request.started = request.written = request.ran = now()
        timeout = None
        try:
            if request.deadline:
                timeout = (request.deadline - request.started) / 1e9
                if timeout <= 0:
                    raise _out_of_time(request)
            lane = slot.lane
            if lane is None:
                lane = slot.lane = self.backend.open_lane(slot.group.mask)
            if request.bound is not None:
                request.bound(lane, timeout)
                request.ran = now()
            else:
                feed = request.feed
                assert feed is not None
                lane.write(feed.arrays, feed.nhwc, feed.shape_set)
                request.written = now()
                lane.run(timeout)
                request.ran = now()
                request.outcome = lane.read(request.wanted, request.types)
        except BaseException as error:  # whatever it is, it belongs to the one who waits for the answer
            request.error = error
            if request.written != request.started and request.ran == request.started:
                self._run_failed(slot, error)
        else:
            slot.failures = 0
        request.finished = now()

    def _run_failed(self, slot: Slot, error: BaseException) -> None:
        """Open the context anew after a few failures in a row; a device that lost a context does not recover by itself."""
        if isinstance(error, JobCancelled | DeviceTimeout):
            return
        slot.failures += 1
        if slot.failures >= FAILURES and not slot.lost:
            log.warning("%s failed %d times in a row; its context is opened anew", slot.label, slot.failures)
            slot.failures = 0
            lane, slot.lane = slot.lane, None
            _close_lane(lane)

    def _finish(self, slot: Slot, request: Request, inline: bool = False) -> Request | None:
        """Answer *request* and give the next one for the same lane. A thread of the user (*inline*) passes the lane on instead."""
        started: list[tuple[Slot, Request]] = []
        deliver = hooked = last = False
        with self._lock:
            slot.request = None
            if not slot.lost:
                request.state = DONE
                request.slot = None
                slot.jobs += 1
                slot.busy_ns += request.finished - request.started
                self.recorder.add(slot, request)
                hooked = request.hooked
                if hooked:
                    self._hooked.append(request)
                if request.callback is not None:
                    if not self._sequential:
                        self._order.append(request)
                    deliver = self._claim_delivery()
                elif hooked:
                    deliver = self._claim_delivery()
                following = self._next(slot, started)
                last = self._ended and self._running == 0
        if slot.lost or self._ended:
            lane, slot.lane = slot.lane, None
            _close_lane(lane)
            if slot.lost:
                return None
            if last:
                self.backend.close()
        if self._pacer is not None:
            self._pacer.learn(request.ran - request.written)
        if started:
            self._start(started)
        if inline and following is not None:
            self._pass_on(slot, following)
            following = None
        if request.callback is None and not hooked:
            self._answer(request)
        if deliver:
            if following is None and not inline:
                self._deliver()
            else:
                self._workers.start(self._deliver)
        return following

    def _pass_on(self, slot: Slot, request: Request) -> None:
        if request.waiter is not None and self._watchdog is None:
            request.waiter.release()
        else:
            self._workers.start(functools.partial(self._serve, slot, request))

    def _next(self, slot: Slot, started: list[tuple[Slot, Request]]) -> Request | None:
        """The next request for a slot, which goes on being held; without one the slot is free, or closed if the session is."""
        group = slot.group
        if group.queue:
            request = group.queue.popleft()
            request.state = RUNNING
            request.slot = slot
            slot.request = request
        else:
            request = None
            group.free.append(slot)
            self._running -= 1
            if self._idle_waiters:
                self._tell_idle()
        if group.blocked:
            self._admit(group, started)
        return request

    def _admit(self, group: Group, started: list[tuple[Slot, Request]]) -> None:
        """Let requests that wait for room into the queue, or start them."""
        if self._closed is not None:
            return
        for request in tuple(group.blocked):
            if not request.urgent and self._undelivered >= self._limit:
                continue
            slot = None if group.queue else group.take()
            if slot is not None:
                self._hold(slot, request)
                started.append((slot, request))
            elif len(group.queue) < self._max_queue:
                request.state = QUEUED
                group.put(request)
            else:
                return
            group.blocked.remove(request)
            if request.callback is not None:
                self._undelivered += 1
            if request.admitted is not None:
                request.admitted.release()

    def _start(self, started: list[tuple[Slot, Request]]) -> None:
        for slot, request in started:
            self._pass_on(slot, request)

    # -- requests are answered

    def _answer(self, request: Request) -> None:
        if request.waiter is not None:
            request.waiter.release()
        elif request.future is not None:
            request.future.answer()
        elif request.notify is not None:
            request.notify(request)

    def hook(self, request: Request) -> bool:
        """User code is attached to a request; False if the request is being answered without regard to it."""
        with self._lock:
            if request.state != DONE:
                request.hooked = True
            return request.hooked

    def _claim_delivery(self) -> bool:
        """Whether the calling thread has to see to deliveries now; expects the lock."""
        if self._delivering or not (self._hooked or (self._order and self._order[0].state == DONE)):
            return False
        self._delivering = True
        return True

    def _deliver(self) -> None:
        """Run user code for what is finished, in order, until nothing is left."""
        self._deliverer = threading.get_ident()
        delivered: Request | None = None
        while True:
            started: list[tuple[Slot, Request]] = []
            with self._lock:
                if delivered is not None and delivered.callback is not None:
                    self._undelivered -= 1
                    for group in self._groups.values():
                        if group.blocked:
                            self._admit(group, started)
                delivered = None
                if self._hooked:
                    request = self._hooked.popleft()
                elif self._order and self._order[0].state == DONE:
                    request = self._order.popleft()
                else:
                    self._delivering = False
                    self._deliverer = 0
                    if self._idle_waiters:
                        self._tell_idle()
                    request = None
            self._start(started)
            if request is None:
                return
            if request.callback is not None:
                self._call(request)
            else:
                self._answer(request)
            delivered, request = request, None

    def _call(self, request: Request) -> None:
        callback, user_data = request.callback, request.user_data
        error, request.error = request.error, None
        results, request.outcome = request.outcome, None
        assert callback is not None
        try:
            if error is None:
                callback(results, user_data, "")
            else:
                callback(None, user_data, str(error) or type(error).__name__)
        except BaseException as raised:  # the next callback must come whatever this one did
            log.error("a callback raised %s: %s", type(raised).__name__, raised, exc_info=raised)
            self._report(raised)

    def _report(self, raised: BaseException) -> None:
        hook = self.on_callback_error
        if hook is None:
            return
        try:
            hook(raised)
        except BaseException as second:
            log.error("on_callback_error raised %s itself: %s", type(second).__name__, second, exc_info=second)

    # -- requests end early

    def cancel(self, request: Request) -> bool:
        """Take a waiting request out of the queue, or ask the device to stop a running one; False if neither can be done."""
        with self._lock:
            state = request.state
            if state == DONE:
                return False
            started: list[tuple[Slot, Request]] = []
            if state == RUNNING:
                slot = request.slot
                lane = None if slot is None else slot.lane
            else:
                started = self._deny(request)
        if state == RUNNING:
            return lane is not None and lane.cancel()
        self._start(started)
        self._answer_denied(request, JobCancelled("the request was cancelled"))
        return True

    def _deny(self, request: Request) -> list[tuple[Slot, Request]]:
        """Move a waiting request to DONE; expects the lock. Whoever calls this answers it."""
        group = request.group
        assert group is not None
        started: list[tuple[Slot, Request]] = []
        if request.state == BLOCKED:
            group.blocked.remove(request)
            if request.callback is not None:
                self._undelivered += 1  # as if it had been let in: its callback takes it off again
        else:
            group.queue.remove(request)
        # no callback may be made before the error is there: see _answer_denied
        request.slot = None
        request.state = DONE if request.callback is None else RUNNING
        if group.blocked:
            self._admit(group, started)
        return started

    def _answer_denied(self, request: Request, error: AnynpuError) -> None:
        request.error = error
        if request.callback is None and not request.hooked:
            self._answer(request)
            return
        with self._lock:
            request.state = DONE
            if request.callback is None:
                self._hooked.append(request)
            elif not self._sequential:
                self._order.append(request)
            deliver = self._claim_delivery()
        if deliver:
            self._workers.start(self._deliver)

    def _expired(self, request: Request) -> None:
        """The deadline of an asynchronous request has come. Called by the timekeeper."""
        with self._lock:
            state = request.state
            if state == DONE:
                return
            started: list[tuple[Slot, Request]] = []
            lane = None
            if state == RUNNING:
                lane = None if request.slot is None else request.slot.lane
            else:
                started = self._deny(request)
        if state == RUNNING:
            if lane is not None:
                lane.cancel()
            return
        self._start(started)
        self._answer_denied(request, _out_of_time(request))

    def _find_hung(self) -> None:
        """Give up lanes whose thread has been in the device for too long. Called by the timekeeper."""
        assert self._watchdog is not None
        oldest = time.perf_counter_ns() - int(self._watchdog * 1e9)
        lost: list[Slot] = []
        answers: list[Request] = []
        started: list[tuple[Slot, Request]] = []
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

    def _refill(self, group: Group, started: list[tuple[Slot, Request]]) -> None:
        """Lanes for what waits in a group; expects the lock."""
        while group.queue and (slot := group.take()) is not None:
            request = group.queue.popleft()
            self._hold(slot, request)
            started.append((slot, request))
        if group.blocked:
            self._admit(group, started)

    # -- the end

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

    def _tell_idle(self) -> None:
        if self._running or any(group.queue or group.blocked for group in self._groups.values()):
            return
        for event, thread in self._idle_waiters:
            if not self._delivering or self._deliverer == thread:
                event.set()

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
            _close_lane(lane)
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

    def _closed_error(self) -> AnynpuError:
        assert self._closed is not None
        return type(self._closed)(self._closed.message, hint=self._closed.hint)

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


def _close_lane(lane: Lane | None) -> None:
    if lane is None:
        return
    try:
        lane.close()
    except AnynpuError as error:
        log.warning("a context could not be closed: %s", error)


def _closed_error() -> DeviceClosed:
    return DeviceClosed("the session was closed", hint="open a new one")


def _out_of_time(request: Request) -> DeviceTimeout:
    return DeviceTimeout(
        f"the request did not finish within {request.limit:g} s", hint="give it more time, or submit less at a time"
    )
