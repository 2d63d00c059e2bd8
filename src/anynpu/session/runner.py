"""Threads, time and the device of one session: does what the state machine states.

One lock protects the machine and the numbers. It is held for one event at a time, never while the device works, user code runs or a thread
waits.

* A synchronous request that finds a device worker free runs in its caller's thread. Otherwise it waits, and the device worker is
  handed to that thread.
* An asynchronous request is run by a worker. A worker that finishes takes the next request of its group with the same device worker.
* User code (callbacks, functions attached to futures) runs in a thread that has no device worker, one piece at a time. It may
  use the session.
* SessionWorkers run synchronous requests too if the device worker has yet to be opened, and where there is a watchdog: the
  thread that hangs in the device must not be the caller's.

An interrupt (Ctrl-C) may come between any two steps of the main thread, in the middle of an event too. The call that it ends then has a
worker, which cannot be interrupted, repair the machine; the actions are made so that they may be done twice.

Shutdown: :meth:`Runner.close` ends what waits, stops what runs where the device can, and closes each device worker when its
thread has left it. A thread that does not come back from the device keeps its device worker. A forked child has none of the
threads: there the session only reports it.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from .._util.types import Array
from ..errors import AnynpuError, DeviceClosed, DeviceHungError, DeviceTimeout, JobCancelled, SessionError, SubmitTimeout
from ..npu.value_check import ValueCheck
from .backend import Backend
from .machine import ADMIT, CLOSE_BACKEND, CLOSE_LANE, COMPLETE, DELIVER, IDLE, START, Action, Machine, Slot, core_label
from .request import BLOCKED, CALLER, DONE, NOBODY, RUNNING, WORKER, Request, complete, let_go
from .statistics import RunRecorder

# Deadlines and the watchdog of one session.
#
# One thread, started by the first request with a deadline (or by the first session with a watchdog), sleeps until the earliest deadline
# or the next look at the device workers. Its condition protects the heap. What it finds it reports to the runner, without
# holding the condition.


LOOKS = 4
"""How often the device workers are looked at within the watchdog's limit."""

PURGED = 256
"""Deadlines that are held before those of finished requests are forgotten."""


class Timekeeper:
    """Reports when a deadline has come, and when to look for device workers that hang."""

    def __init__(self, expired: Callable[[Request], None], look: Callable[[], None], watchdog: float | None) -> None:
        self._expired = expired
        self._look = look
        self._period = None if watchdog is None else watchdog / LOOKS
        self._condition = threading.Condition()
        self._heap: list[tuple[int, int, Request]] = []
        self._most = PURGED
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._ended = False

    def start(self) -> None:
        """Begin to look at the device workers, if there is a watchdog."""
        if self._period is not None:
            with self._condition:
                self._ensure_thread()

    def add(self, request: Request) -> None:
        """Watch the deadline of a request."""
        with self._condition:
            if len(self._heap) >= self._most:
                self._heap = [entry for entry in self._heap if entry[2].state != DONE]
                heapq.heapify(self._heap)
                self._most = max(PURGED, 2 * len(self._heap))
            heapq.heappush(self._heap, (request.deadline, next(self._count), request))
            self._ensure_thread()
            if self._heap[0][2] is request:
                self._condition.notify()

    def end(self) -> None:
        """Stop the thread; it holds nothing that would have to be waited for."""
        with self._condition:
            self._ended = True
            self._heap.clear()
            self._condition.notify()

    def forget(self) -> None:
        """In a child process, where there is no thread."""
        self._condition = threading.Condition()
        self._ended = True

    def _ensure_thread(self) -> None:
        if self._thread is None and not self._ended:
            self._thread = threading.Thread(target=self._watch, name="anynpu session clock", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while True:
            due: list[Request] = []
            with self._condition:
                if not self._ended:
                    self._condition.wait(self._pause())
                if self._ended:
                    return
                now = time.perf_counter_ns()
                while self._heap and (self._heap[0][0] <= now or self._heap[0][2].state == DONE):
                    due.append(heapq.heappop(self._heap)[2])
            for request in due:
                self._expired(request)
            if self._period is not None:
                self._look()

    def _pause(self) -> float | None:
        pauses = [] if self._period is None else [self._period]
        if self._heap:
            pauses.append(max(0.0, (self._heap[0][0] - time.perf_counter_ns()) / 1e9))
        return min(pauses, default=None)


# Pacing: submissions spread to the rate that the device sustains.
#
# The pacer's own lock protects its three numbers; no thread waits while holding it. A thread that comes too early takes the next
# free moment and sleeps until then: it neither polls nor is turned away.


_KEPT = 0.95  # of the old average, for each new run


class Pacer:
    """Lets one submission through for each *average run time / cores*.

    >>> pacer = Pacer(2)
    >>> pacer.learn(10_000_000)
    >>> pacer.average_ns, pacer.interval_ns
    (10000000.0, 5000000.0)
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._lock = threading.Lock()
        self._next = 0
        self.average_ns = 0.0
        """Moving average of the device's run time, without conversions."""

    @property
    def interval_ns(self) -> float:
        return self.average_ns / self._cores

    def learn(self, run_ns: int) -> None:
        """Take a run into the average."""
        if run_ns <= 0:
            return
        with self._lock:
            self.average_ns = _KEPT * self.average_ns + (1 - _KEPT) * run_ns if self.average_ns else float(run_ns)

    def wait_time(self) -> float:
        """Seconds until the next free moment."""
        return max(0, self._next - time.perf_counter_ns()) / 1e9

    def pace(self) -> None:
        """Take the next free moment and sleep until it has come."""
        now = time.perf_counter_ns()
        with self._lock:
            moment = max(now, self._next)
            self._next = moment + int(self.interval_ns)
        if moment > now:
            time.sleep((moment - now) / 1e9)


# Threads that do what they are handed.
#
# A worker waits on a lock of its own; a caller with work takes an idle worker off the list, gives it the work and releases that lock:
# one wake-up, and no other lock. There is always a thread for work that is handed over: if none is idle, a new one starts. So work
# may wait for other work without harm, and there are never more threads than pieces of work were in hand at one time.
#
# The list of idle workers is the only shared state; its append, pop and remove are atomic. Threads are daemons: those that a device
# never lets go must not keep the interpreter alive. They end when the session closes.


JOIN_SECONDS = 10.0
"""How long the end of a session waits for threads that have nothing to do any more."""


class _Worker(threading.Thread):
    def __init__(self, workers: SessionWorkers, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._workers = workers
        self.wake = threading.Lock()
        self.wake.acquire()
        self.work: Callable[[], None] | None = work

    def run(self) -> None:
        workers, idle = self._workers, self._workers.idle
        while True:
            work, self.work = self.work, None
            if work is not None:
                work()
                del work  # it may be the last to know a session's data
                idle.append(self)
            if workers.ended:
                try:
                    idle.remove(self)
                except ValueError:
                    pass  # work is on its way
                else:
                    return
            self.wake.acquire()


class SessionWorkers:
    """The threads of one session."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = 0
        self._threads: list[_Worker] = []
        self.idle: list[_Worker] = []
        self.ended = False

    def start(self, work: Callable[[], None]) -> None:
        """Have *work* done by an idle thread, or by a new one; if the system has none to give, by the calling thread."""
        idle = self.idle
        while idle:
            handed = False
            try:
                worker = idle[-1]
            except IndexError:
                break
            try:
                idle.remove(worker)
                worker.work = work
                handed = True
                let_go(worker.wake)
            except ValueError:
                continue  # another thread took it
            except BaseException:  # an interrupt: the thread must not wait for work that will not come
                if not handed:
                    idle.append(worker)
                let_go(worker.wake)
                raise
            return
        self._started += 1
        worker = _Worker(self, f"{self._name} {self._started}", work)
        self._threads.append(worker)  # before it starts: an interrupt in between must not hide it from end()
        try:
            worker.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._threads.remove(worker)
            work()

    def end(self, lost: Collection[int] | None) -> None:
        """Let every thread end as soon as it has nothing to do, and wait for that a little.

        :param lost: threads that will not come back soon; None to wait for no thread
        """
        self.ended = True
        for worker in tuple(self._threads):
            let_go(worker.wake)
        if lost is None:
            return
        limit = time.monotonic() + JOIN_SECONDS
        for worker in tuple(self._threads):
            started = worker.ident is not None
            if started and worker is not threading.current_thread() and worker.ident not in lost:
                worker.join(max(0.0, limit - time.monotonic()))

    def forget(self) -> None:
        """In a child process, where there are no threads."""
        self._threads, self.idle = [], []
        self.ended = True


log = logging.getLogger("anynpu.session")

MAX_FAILURES = 3
"""Runs in a row that may fail before a new context is opened."""

REPAIR_SECONDS = 5.0
"""How long an interrupted call waits for the repair before it raises."""


class Runner:
    """The threads of one session. Knows no session, so that a session that is forgotten can be closed.

    :param submit_timeout: seconds that a submitter waits for space in the queue
    :param watchdog: seconds that a run may take before its device worker is given up
    :param name: of its threads
    """

    def __init__(
        self, backend: Backend, machine: Machine, *, submit_timeout: float, pacer: Pacer | None, watchdog: float | None, name: str
    ) -> None:
        self.backend = backend
        self.machine = machine
        self.recorder = RunRecorder()
        self.on_callback_error: Callable[[BaseException], object] | None = None
        """Called with what a callback raised."""
        self._lock = threading.Lock()
        self._submit_timeout = submit_timeout
        self._pacer = pacer
        self._watchdog = watchdog
        self._values = ValueCheck(log.warning)
        self._floats = {index: spec for index, spec in enumerate(backend.outputs) if spec.dtype.is_float}
        self._lost_threads: set[int] = set()
        self._forked = self._backend_closed = False
        self._workers = SessionWorkers(name)
        self._timekeeper = Timekeeper(self._expired, self._find_hung, watchdog)

    def open(self, at_once: bool) -> None:
        """Open device workers: all that there may be, or the first only."""
        for group in self.machine.groups.values():
            while len(group.slots) < (group.limit if at_once else 1):
                lane = self.backend.open_lane(group.mask)
                group.free.insert(0, group.add(lane))
        self._timekeeper.start()

    # -- requests come

    def run(self, request: Request, core: int | None = None) -> None:
        """Have *request* run and return when it is done; ``request.error`` states how."""
        if self._pacer is not None:
            self._pacer.pace()
        try:
            with self._lock:
                slot = self.machine.begin(request, core)
                if slot is None:
                    request.waiter = _held_lock()
            if slot is None:
                self._wait(request)
            elif self._watchdog is None and slot.lane is not None:
                self._run_here(slot, request)
            else:
                request.waiter = _held_lock()
                request.runner = NOBODY
                self._workers.start(functools.partial(self._work, request))
                self._wait(request)
        except BaseException as error:
            if not isinstance(error, AnynpuError):
                self._interrupted(request)
            raise

    def post(self, request: Request, core: int | None = None, overflow: str = "wait") -> bool:
        """Have *request* run by another thread; returns when it is in the queue.

        :param overflow: what happens if the queue is full: ``wait`` (up to the submit timeout), ``later`` (the request waits for space
            on its own), ``fail`` (False is returned), ``drop_oldest`` (the oldest request of the queue is cancelled)
        """
        pacer = self._pacer
        if pacer is not None and overflow != "later":
            if overflow == "fail" and pacer.wait_time() > 0:
                return False
            pacer.pace()
        todo = None
        try:
            with self._lock:
                if not self.machine.submit(request, core, overflow, threading.get_ident()):
                    return False
                if request.state == BLOCKED and overflow != "later":
                    request.admitted = _held_lock()
                if self.machine.todo:
                    todo, self.machine.todo = self.machine.todo, []
            if request.state == RUNNING:
                self._workers.start(functools.partial(self._work, request))
            if todo:
                self._perform(todo)
            if request.deadline:
                self._timekeeper.add(request)
            if request.admitted is not None:
                self._await_room(request)
        except BaseException as error:
            if not isinstance(error, AnynpuError):
                self._interrupted(request, todo)
            raise
        return True

    def _wait(self, request: Request) -> None:
        """Wait for a synchronous request; run it here if a device worker is handed over."""
        waiter = request.waiter
        assert waiter is not None
        while True:
            if waiter.acquire(timeout=self._patience(request)):
                with self._lock:
                    slot = self.machine.claim(request, CALLER) if self._runs_here(request) else None
                if slot is not None:
                    self._run_here(slot, request)
                    return
            else:
                self._end_if_late(request)
            if request.state == DONE:
                return

    def _patience(self, request: Request) -> float:
        """Seconds that the thread of a synchronous request waits before it looks again."""
        until = request.submitted + int(self._submit_timeout * 1e9) if request.state == BLOCKED else 0
        if request.deadline and request.state != RUNNING:
            until = min(until or request.deadline, request.deadline)
        return max(0.0, (until - time.perf_counter_ns()) / 1e9) if until else threading.TIMEOUT_MAX

    def _end_if_late(self, request: Request) -> None:
        """End a synchronous request that has waited for too long."""
        now = time.perf_counter_ns()
        if request.deadline and now >= request.deadline:
            self._deny(request, _out_of_time(request))
        elif now >= request.submitted + int(self._submit_timeout * 1e9):
            with self._lock:
                blocked = request.state == BLOCKED and self.machine.deny(request, self._no_room())
                todo, self.machine.todo = self.machine.todo, []
            if blocked:
                self._perform(todo)

    def _await_room(self, request: Request) -> None:
        """Wait until a request was let into the queue."""
        admitted = request.admitted
        assert admitted is not None
        try:
            if admitted.acquire(timeout=self._submit_timeout):
                error: BaseException | None = request.error if request.number < 0 else None
            else:
                error = self._no_room() if self._withdraw(request) else None
        except BaseException:
            self._withdraw(request)
            raise
        if error is not None:
            raise error

    def _withdraw(self, request: Request) -> bool:
        with self._lock:
            withdrawn = self.machine.withdraw(request)
            todo, self.machine.todo = self.machine.todo, []
        self._perform(todo)
        return withdrawn

    def _no_room(self) -> SubmitTimeout:
        return SubmitTimeout(
            f"submit timed out: no space in the queue for {self._submit_timeout:g} s "
            f"(max_queue_size {self.machine.max_queue_size})",
            hint="the device or a callback is too slow for what is submitted: wait for results, use try_submit, or raise max_queue_size",
        )

    # -- requests run

    def _run_here(self, slot: Slot, request: Request) -> None:
        """Run a synchronous request in its caller's thread, and hand the device worker on."""
        self._execute(slot, request)
        machine = self.machine
        with self._lock:
            if not slot.lost:
                self.recorder.add(slot, request)
            machine.ended(slot, request, False)
            todo = None
            if machine.todo:
                todo, machine.todo = machine.todo, []
        if self._pacer is not None:
            self._pacer.learn(request.ran - request.written)
        if todo:
            self._perform(todo)

    def _work(self, request: Request | None) -> None:
        """Run *request* and then what waits for the same device worker; in a worker."""
        assert request is not None
        machine = self.machine
        with self._lock:
            slot = machine.claim(request, WORKER)
        if slot is None:
            return
        slot.thread = threading.get_ident()
        while request is not None:
            if slot.lane is None and not self._open(slot, request):
                return
            self._execute(slot, request)
            with self._lock:
                lost = slot.lost
                if not lost:
                    self.recorder.add(slot, request)
                following = machine.ended(slot, request, True)
                todo = None
                if machine.todo:
                    todo, machine.todo = machine.todo, []
            if self._pacer is not None:
                self._pacer.learn(request.ran - request.written)
            if not lost and request.callback is None and not request.hooked:
                complete(request)
            request = following
            if todo:
                self._perform(todo, deliver_here=following is None)

    def _open(self, slot: Slot, request: Request) -> bool:
        """Open a device worker at its first use. If no more are available the session goes on with those it has: the request queues again,
        and False is returned."""
        request.started = time.perf_counter_ns()
        try:
            slot.lane = self.backend.open_lane(slot.group.mask)
        except AnynpuError as error:
            with self._lock:
                refused = self.machine.lane_refused(slot, request)
                todo, self.machine.todo = self.machine.todo, []
            if refused:
                log.warning("%s cannot be opened; %d serve the session: %s", slot.label, len(slot.group.slots), error)
            self._perform(todo)
            return not refused  # without another device worker the request will meet the same error, and report it
        return True

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
                assert request.feed is not None
                request.outcome = lane.infer(request.feed, request.wanted, request.types, timeout, request)
                if self._floats:
                    self._check_values(request.wanted, request.outcome)
            slot.failures = 0
        except BaseException as error:  # whatever it is, it belongs to the one who waits for the result
            request.error = error
            if request.written != request.started and request.ran == request.started:
                self._run_failed(slot, error)
        request.feed = None  # a caller that keeps the request need not keep its arrays
        request.finished = now()

    def _check_values(self, wanted: Sequence[int], arrays: Sequence[Array]) -> None:
        for index, array in zip(wanted, arrays, strict=True):
            spec = self._floats.get(index)
            if spec is not None:
                self._values.output(spec.name, spec.dtype, array)

    def _run_failed(self, slot: Slot, error: BaseException) -> None:
        """Open a new context after a few failures in a row; a device that lost a context does not recover on its own."""
        if isinstance(error, JobCancelled | DeviceTimeout):
            return
        slot.failures += 1
        if slot.failures >= MAX_FAILURES and not slot.lost:
            log.warning("%s failed %d times in a row; a new context takes its place", slot.label, slot.failures)
            slot.failures = 0
            _close_lane(slot)

    # -- actions

    def _perform(self, todo: list[Action], deliver_here: bool = False) -> None:
        """Do actions; without the lock."""
        deliver = False
        try:
            for kind, subject in todo:
                if kind == START:
                    self._start(subject)
                elif kind == COMPLETE:
                    complete(subject)
                elif kind == ADMIT:
                    let_go(subject.admitted)
                elif kind == DELIVER:
                    deliver = True
                elif kind == CLOSE_LANE:
                    _close_lane(subject)
                elif kind == CLOSE_BACKEND:
                    if not self._backend_closed:
                        self._backend_closed = True
                        self.backend.close()
                elif kind == IDLE:
                    subject.set()
            if deliver:
                if deliver_here:
                    self._deliver()
                else:
                    self._workers.start(self._deliver)
        except BaseException as error:
            if not isinstance(error, AnynpuError):
                self._workers.start(functools.partial(self._perform, todo))
            raise

    def _start(self, request: Request) -> None:
        """Have a thread run a request that has a device worker."""
        if self._runs_here(request):
            let_go(request.waiter)
        else:
            self._workers.start(functools.partial(self._work, request))

    def _runs_here(self, request: Request) -> bool:
        """Whether the thread that waits for a request runs it too. Device workers are opened by workers, which cannot be interrupted."""
        slot = request.slot
        return request.waiter is not None and self._watchdog is None and slot is not None and slot.lane is not None

    def _interrupted(self, request: Request | None, todo: list[Action] | None = None) -> None:
        """A call was interrupted: repair the machine and do what is left to do, in a thread that cannot be interrupted."""
        repaired = threading.Event()

        def repair() -> None:
            with self._lock:
                self.machine.repair(request, _interrupted_error)
                again = [*(todo or ()), *self.machine.todo]
                self.machine.todo = []
                if request is not None and request.synchronous and request.state == RUNNING:
                    _stop(request)  # a worker runs it, without a waiting thread
            self._perform(again)
            repaired.set()

        self._workers.start(repair)
        repaired.wait(REPAIR_SECONDS)

    # -- user code

    def hook(self, request: Request) -> bool:
        """User code is attached to a future; False if the request is being completed without regard to it."""
        with self._lock:
            return self.machine.hook(request)

    def _deliver(self) -> None:
        """Run user code for what is done, in order, until nothing is left."""
        machine, thread = self.machine, threading.get_ident()
        delivered: Request | None = None
        while True:
            with self._lock:
                request = machine.next_delivery(thread, delivered)
                todo = None
                if machine.todo:
                    todo, machine.todo = machine.todo, []
            if todo:
                self._perform(todo)
            if request is None:
                return
            if request.callback is None:
                complete(request)
            else:
                self._call(request)
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
        return self._deny(request, JobCancelled("the request was cancelled"))

    def _expired(self, request: Request) -> None:
        """The deadline of an asynchronous request has come. Called by the timekeeper."""
        self._deny(request, _out_of_time(request))

    def _deny(self, request: Request, error: AnynpuError) -> bool:
        todo: list[Action] = []
        try:
            with self._lock:
                if request.state == RUNNING:
                    return _stop(request)
                denied = self.machine.deny(request, error)
                todo, self.machine.todo = self.machine.todo, []
            self._perform(todo)
        except BaseException as raised:
            if not isinstance(raised, AnynpuError):
                self._interrupted(request, todo)
            raise
        return denied

    def _find_hung(self, now: int | None = None) -> None:
        """Give up device workers whose thread has been in the device for too long. Called by the timekeeper.

        :param now: the time, if it is not that of the clock
        """
        assert self._watchdog is not None
        oldest = (time.perf_counter_ns() if now is None else now) - int(self._watchdog * 1e9)
        lost: list[Slot] = []
        with self._lock:
            for slot in self.machine.slots():
                request = slot.request
                if request is None or not request.started or request.started > oldest or request.runner != WORKER:
                    continue
                lost.append(slot)
                self._lost_threads.add(slot.thread)
                error = DeviceHungError(
                    f"{core_label(slot.group.mask)} did not answer for {self._watchdog:g} s",
                    hint="its context was given up and a new one opened; if this repeats, reset the NPU or the board",
                )
                self.machine.give_up(slot, error)
            todo, self.machine.todo = self.machine.todo, []
        for slot in lost:
            if slot.lane is not None:
                slot.lane.abandon()
            log.error("%s did not answer for %g s; its context is given up", slot.label, self._watchdog)
        self._perform(todo)

    # -- the end

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until every request is completed (what the calling thread itself is in the middle of does not count)."""
        idle = threading.Event()
        try:
            with self._lock:
                self.machine.wait_idle(idle, threading.get_ident())
                todo, self.machine.todo = self.machine.todo, []
            self._perform(todo)
            return idle.wait(timeout)
        finally:
            with self._lock:
                self.machine.forget_waiter(idle)

    def close(self, finish: bool = False, timeout: float | None = None) -> bool:
        """End everything; False if a device worker did not come back within *timeout* seconds.

        :param finish: let waiting requests run first
        """
        if self._forked:
            return True
        todo: list[Action] = []
        try:
            if finish and self.machine.closed is None:
                self.wait_idle(timeout)
            with self._lock:
                self.machine.close(DeviceClosed("the session was closed", hint="open a new one"))
                lanes = [slot.lane for slot in self.machine.slots() if slot.request is not None]
                todo, self.machine.todo = self.machine.todo, []
            self._perform(todo)
            if not finish:
                for lane in lanes:
                    if lane is not None:
                        lane.cancel()
            back = self.wait_idle(timeout)
            with self._lock:
                self.machine.end()
                todo, self.machine.todo = self.machine.todo, []
            self._perform(todo)
        except BaseException as error:
            if not isinstance(error, AnynpuError):
                self._interrupted(None, todo)
            raise
        self._timekeeper.end()
        self._workers.end(self._lost_threads if back else None)
        return back

    def give_up(self) -> None:
        """After a close that ran out of time: fail the requests that still run. Their device workers are closed when the device
        lets go of them."""
        with self._lock:
            for slot in self.machine.slots():
                if slot.request is not None:
                    self.machine.give_up(slot, self.machine.closed_error())
            todo, self.machine.todo = self.machine.todo, []
        self._perform(todo)

    @property
    def closed(self) -> bool:
        return self.machine.closed is not None

    def abandon_after_fork(self) -> None:
        """In a child process: threads and contexts are the parent's; nothing here may be used or closed."""
        self._lock = threading.Lock()
        self._forked = True
        self.machine.leave(_forked_error())
        self._timekeeper.forget()
        self._workers.forget()

    def require_own_process(self) -> None:
        """Raise in a forked child, where no thread will complete a request."""
        if self._forked:
            raise _forked_error()

    def waiting(self) -> int:
        """How many requests wait."""
        with self._lock:
            return self.machine.waiting

    def slots(self) -> list[Slot]:
        """All device workers that were opened."""
        with self._lock:
            return self.machine.slots()


def _held_lock() -> threading.Lock:
    """What a thread waits for: it acquires the lock when another has released it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _close_lane(slot: Slot) -> None:
    lane, slot.lane = slot.lane, None
    if lane is None:
        return
    try:
        lane.close()
    except AnynpuError as error:
        log.warning("a context could not be closed: %s", error)


def _stop(request: Request) -> bool:
    """Ask the device to stop a request. With the lock held the device worker cannot go on to the next one in the meantime."""
    lane = None if request.slot is None else request.slot.lane
    return lane is not None and lane.cancel()


def _out_of_time(request: Request) -> DeviceTimeout:
    return DeviceTimeout(
        f"the request did not finish within {request.limit:g} s", hint="give it more time, or submit less at a time"
    )


def _interrupted_error() -> AnynpuError:
    return JobCancelled("the call was interrupted")


def _forked_error() -> SessionError:
    return SessionError(
        "this session belongs to the process that was forked", hint="open a session in each process, after the fork"
    )
