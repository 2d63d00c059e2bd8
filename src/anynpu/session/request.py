"""One inference on its way through a session, and the future that a user holds for it.

A :class:`Request` has no lock of its own: ``state``, ``slot``, ``runner`` and ``hooked`` belong to the state machine and change under the
runner's lock; ``outcome`` and ``error`` are written before the state becomes DONE. :func:`complete` is the one place that
notifies the threads that waits for a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.types import Array
from ..errors import JobCancelled

if TYPE_CHECKING:
    from _thread import LockType

    from .backend import Lane
    from .feeds import Feed
    from .machine import Group, Slot
    from .runner import Runner

__all__ = ["BLOCKED", "CALLER", "DONE", "Job", "NEW", "NOBODY", "QUEUED", "RUNNING", "Request", "Results", "WORKER", "complete"]

Results = list[Array]
Callback = Callable[[Any, Any, str], object]

NEW, BLOCKED, QUEUED, RUNNING, DONE = range(5)
"""Not known to the machine; waits for space in the queue; waits for a device worker; has a device worker; is completed or about to be."""

NOBODY, CALLER, WORKER = range(3)
"""Who runs a request that has a device worker: no thread yet, the thread that called ``run``, or a worker."""


class Request:
    """What to compute, for whom, and what became of it. At most one of ``callback``, ``future`` and ``notify`` is set; without any the
    request is synchronous, and ``waiter`` is the lock that its thread waits for.

    :param limit: seconds until it must be done
    :param bound: executes the request on a device worker, instead of *feed*
    """

    __slots__ = (
        "admitted",
        "bound",
        "callback",
        "deadline",
        "error",
        "feed",
        "finished",
        "future",
        "group",
        "hooked",
        "limit",
        "notify",
        "number",
        "outcome",
        "priority",
        "ran",
        "runner",
        "slot",
        "started",
        "state",
        "submitted",
        "types",
        "urgent",
        "user_data",
        "waiter",
        "wanted",
        "written",
    )

    def __init__(
        self,
        feed: Feed | None,
        wanted: Sequence[int] = (),
        types: Sequence[np.dtype[Any]] = (),
        *,
        limit: float | None = None,
        priority: int = 0,
        bound: Callable[[Lane, float | None], None] | None = None,
    ) -> None:
        self.feed = feed
        self.wanted = wanted
        self.types = types
        self.bound = bound
        self.limit = limit
        self.priority = priority
        self.submitted = time.perf_counter_ns()
        self.deadline = 0 if limit is None else self.submitted + int(limit * 1e9)
        self.state = NEW
        self.runner = NOBODY
        self.hooked = False
        self.urgent = True  # does not wait for late callbacks
        self.number = -1
        self.group: Group | None = None
        self.slot: Slot | None = None
        self.outcome: Results | None = None
        self.error: BaseException | None = None
        self.callback: Callback | None = None
        self.user_data: Any = None
        self.future: Job | None = None
        self.notify: Callable[[Request], None] | None = None
        self.waiter: LockType | None = None
        self.admitted: LockType | None = None
        self.started = self.written = self.ran = self.finished = 0

    @property
    def synchronous(self) -> bool:
        """Whether a thread waits for it in ``run``."""
        return self.callback is None and self.future is None and self.notify is None


def complete(request: Request) -> None:
    """Notify the threads that wait for a request. A second time does nothing."""
    if request.waiter is not None:
        let_go(request.waiter)
    elif request.future is not None:
        request.future.settle()
    elif request.notify is not None:
        request.notify(request)


def let_go(waiter: LockType | None) -> None:
    """Let a thread go on that waits for a lock, or will."""
    if waiter is not None and waiter.locked():
        try:
            waiter.release()
        except RuntimeError:  # another thread did so at the same moment
            pass


class Job(Future[Results]):
    """A submitted request: a ``concurrent.futures.Future`` whose result is the list of outputs.

    :meth:`cancel` takes a waiting request out of the queue, and stops a running one where the device can be stopped (its
    :meth:`result` then raises :class:`~anynpu.errors.JobCancelled`). Functions given to :meth:`add_done_callback` may use the session.
    """

    def __init__(self, runner: Runner, request: Request) -> None:
        super().__init__()
        self._runner = runner
        self._request = request

    @property
    def number(self) -> int:
        """The number of the request in its session, from 0 in the order of submission."""
        return self._request.number

    def cancel(self) -> bool:
        """Ask for an end; True if the request will not give a result because of it."""
        return self._runner.cancel(self._request)

    def running(self) -> bool:
        """Whether a device worker works on it."""
        return self._request.state == RUNNING

    def result(self, timeout: float | None = None) -> Results:
        """The outputs, when they are there; or what went wrong, raised."""
        self._runner.require_own_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, when it is known."""
        self._runner.require_own_process()
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Results]], object]) -> None:
        """Call *fn* with this future when it is done, in a thread that may use the session; at once if it is done already."""
        if not self._runner.hook(self._request):
            wait_for_futures([self])  # it is being settled at this moment, by a thread that must not run the caller's code
        super().add_done_callback(fn)

    def settle(self) -> None:
        """Take over what became of the request."""
        if self.done():
            return
        request = self._request
        error = request.error
        if error is None:
            self.set_result(request.outcome or [])
        elif isinstance(error, JobCancelled) and not request.started:
            super().cancel()
            self.set_running_or_notify_cancel()
        else:
            self.set_exception(error)
        request.error = error = None  # a traceback refers to frames that refer to the request
