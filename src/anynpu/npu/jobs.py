"""Jobs: work that has cores and contexts from its first to its last layer.

A job runs in the thread that asks (:meth:`Context.run`, :meth:`Context.execute`, :func:`run_stages`), or it is started and runs in a
thread of the device (:meth:`Device.submit`, :func:`start_stages`). Both wait in the one queue of the device's scheduler.

Who owns what: the :class:`RunControl` of a job belongs to who made it; cancelling it is the one way to stop the job, whether it waits
or runs. The scheduler owns the place in the queue. A started job is a :class:`DeviceJob`, which is notified once of its result. Locks:
those of the control, the scheduler and the workers; there are none here.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import DeviceClosed, DeviceTimeout, JobCancelled
from .control import RunControl
from .cores import CoreMask, CoreScheduler, Lease

if TYPE_CHECKING:
    from .context import Context
    from .device import Device


# The threads that run submitted jobs.
#
# State and lock: the queue of tasks and the set of threads belong to :class:`WorkerPool` and are protected by its condition. Threads are
# started when there is work for them and end after a moment without any, so that a device that is not closed does not keep a program from
# ending.


_LINGER_SECONDS = 0.25


class WorkerPool:
    """Runs tasks in at most *limit* threads. A task must not raise."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._busy = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        with self._changed:
            return len(self._threads)

    def start(self, task: Callable[[], None]) -> None:
        """Run *task* soon."""
        with self._changed:
            if self._closed:
                raise DeviceClosed("the device was closed", hint="open a new one")
            self._tasks.append(task)
            if self._busy + len(self._tasks) > len(self._threads) and len(self._threads) < self._limit:
                thread = threading.Thread(target=self._work, name=f"{self._name} worker", daemon=False)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError:  # no thread available, which includes an interpreter that ends
                    self._threads.discard(thread)
                    if not self._threads:
                        self._tasks.remove(task)
                        raise
            self._changed.notify()

    def close(self) -> None:
        """Run what is queued, then end all threads. The calling thread, if it is one of them, ends on its own later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            finally:
                with self._changed:
                    self._busy -= 1
            del task  # a waiting thread must not keep the last job's arrays alive

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closed, timeout=_LINGER_SECONDS)
            if self._tasks:
                self._busy += 1
                return self._tasks.popleft()
            self._threads.discard(threading.current_thread())
            return None


ResultT = TypeVar("ResultT")


class DeviceJob(Future[ResultT], Generic[ResultT]):
    """A job that was started: a ``concurrent.futures.Future`` of its result.

    :meth:`cancel` also stops a job that runs, between two layers; :meth:`result` then raises :class:`JobCancelled`.

    :param work: called with the lease in a thread of the device
    """

    def __init__(self, work: Callable[[Lease], ResultT], control: RunControl) -> None:
        super().__init__()
        self.control = control
        self._work: Callable[[Lease], ResultT] | None = work
        self.cores: tuple[int, ...] = ()
        """The cores that it ran on; empty before it has begun."""
        self.host_ns: int | None = None
        """Host time from the first to the last layer, conversions included; None before it has finished."""

    def enqueue(
        self,
        scheduler: CoreScheduler,
        workers: WorkerPool,
        mask: CoreMask | int | Iterable[int] | None,
        priority: int,
        exclusive: Iterable[Hashable],
    ) -> None:
        """Take a place in the queue; called once."""
        control = self.control

        def settled(lease: Lease) -> None:
            error: Exception | None = copy.copy(lease.error)
            if error is None:
                try:
                    workers.start(partial(self._run, lease))
                    return
                except (RuntimeError, DeviceClosed) as refused:
                    lease.release()
                    error = refused
            self._work = None
            self.set_exception(error)

        scheduler.enqueue(settled, mask, priority=priority, control=control, exclusive=exclusive)
        remaining = control.remaining
        if remaining is not None and not self.cores and not self.done():
            timer = threading.Timer(remaining, lambda: scheduler.drop(control, control.reason("got no core")))
            timer.daemon = True  # it only denies a job that still waits: nothing is lost with it
            self.add_done_callback(lambda _: timer.cancel())
            timer.start()

    def cancel(self) -> bool:
        """Ask the job to stop; False if it had already finished or had been asked before."""
        return not self.done() and self.control.cancel()

    def cancelled(self) -> bool:
        """Whether the job ended because it was cancelled."""
        return self.done() and isinstance(self.exception(), JobCancelled)

    def _run(self, lease: Lease) -> None:
        work, self._work = self._work, None  # it refers to arrays and contexts
        assert work is not None
        try:
            with lease:
                begin = time.perf_counter_ns()
                self.cores = lease.cores
                self.set_running_or_notify_cancel()
                result = work(lease)
                self.host_ns = time.perf_counter_ns() - begin
        except BaseException as error:  # whatever it is belongs to who asks for the result
            self.set_exception(error)
        else:
            self.set_result(result)
        del self, work  # an error refers to this frame, which must not refer to the job


@dataclass(frozen=True, eq=False)
class Stage:
    """One program of a job of several, executed on what its input buffers hold.

    :ivar before: called before the first layer, while the job has the context and the cores
    :ivar after: called after the last layer
    :ivar duration_us: the time that the chip takes, for a device in real time; the prediction of the program if not given
    """

    context: Context
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    duration_us: float | None = None


def run_stages(
    device: Device,
    stages: Sequence[Stage],
    *,
    mask: CoreMask | int | Iterable[int] | None = None,
    priority: int = 0,
    control: RunControl,
    on_timeout: Callable[[], None] | None = None,
) -> None:
    """Execute *stages* one after the other, in the calling thread; parameters as in :meth:`Context.execute`.

    :param on_timeout: called if the job is out of time while it runs, as long as it still has its cores
    """
    device.require_open()
    with device.scheduler.acquire(mask, priority=priority, control=control, exclusive=_exclusive(stages)) as lease:
        _perform(lease, stages, on_timeout)


def start_stages(
    device: Device,
    stages: Sequence[Stage],
    *,
    mask: CoreMask | int | Iterable[int] | None = None,
    priority: int = 0,
    control: RunControl,
    on_timeout: Callable[[], None] | None = None,
) -> DeviceJob[None]:
    """Queue *stages* and return at once; they have their place in the queue then. Parameters as in :func:`run_stages`."""
    return device.start(
        lambda lease: _perform(lease, stages, on_timeout),
        mask=mask,
        priority=priority,
        control=control,
        exclusive=_exclusive(stages),
    )


def _exclusive(stages: Sequence[Stage]) -> frozenset[Hashable]:
    return frozenset(key for stage in stages for key in stage.context.exclusive)


def _perform(lease: Lease, stages: Sequence[Stage], on_timeout: Callable[[], None] | None) -> None:
    lease.control.began = True
    try:
        for stage in stages:
            stage.context._execute(lease, duration_us=stage.duration_us, before=stage.before, after=stage.after)
    except DeviceClosed:
        lease.control.check()  # a job that was stopped before its context was closed reports it
        raise
    except DeviceTimeout:
        if on_timeout is not None:
            on_timeout()
        raise
