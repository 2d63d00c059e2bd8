"""One inference on its way through a session, and the future that a user holds for it.

A :class:`Request` has no lock of its own: ``state``, ``slot`` and ``hooked`` belong to the scheduler and change under its lock; ``outcome``
and ``error`` are written by the one thread that executes or denies the request, before the state becomes DONE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import JobCancelled

if TYPE_CHECKING:
    from _thread import LockType

    from .backend import Lane
    from .feeds import Feed
    from .lanes import Group, Slot
    from .scheduler import Scheduler

__all__ = ["BLOCKED", "DONE", "Job", "QUEUED", "RUNNING", "Request", "Results"]

Array = npt.NDArray[Any]
Results = list[Array]
Callback = Callable[[Any, Any, str], object]

BLOCKED, QUEUED, RUNNING, DONE = range(4)
"""Waits for room in the queue; waits for a lane; has a lane; is answered or about to be."""


class Request:
    """What to compute, for whom, and what became of it. Exactly one of ``callback``, ``future``, ``notify`` and ``waiter`` is set."""

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
        self.state = BLOCKED
        self.hooked = False
        self.urgent = True  # does not wait until late callbacks have come
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


class Job(Future[Results]):
    """A submitted request: a ``concurrent.futures.Future`` whose result is the list of outputs.

    :meth:`cancel` takes a waiting request out of the queue, and stops a running one where the device can be stopped (its
    :meth:`result` then raises :class:`~anynpu.errors.JobCancelled`). Functions given to :meth:`add_done_callback` may use the session.
    """

    def __init__(self, scheduler: Scheduler, request: Request) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._request = request

    @property
    def number(self) -> int:
        """The number of the request in its session, from 0 in the order of submission."""
        return self._request.number

    def cancel(self) -> bool:
        """Ask for an end; True if the request will not give a result because of it."""
        return self._scheduler.cancel(self._request)

    def running(self) -> bool:
        """Whether a lane works on it."""
        return self._request.state == RUNNING

    def add_done_callback(self, fn: Callable[[Future[Results]], object]) -> None:
        """Call *fn* with this future when it is done, in a thread that may use the session; at once if it is done already."""
        if not self._scheduler.hook(self._request):
            wait_for_futures([self])  # being answered at this moment, by a thread that must not run the caller's code
        super().add_done_callback(fn)

    def answer(self) -> None:
        """Settle the future from its request. Called once, by the scheduler."""
        request = self._request
        error, request.error = request.error, None  # a traceback refers to frames that refer to the request
        if error is None:
            self.set_result(request.outcome or [])
        elif isinstance(error, JobCancelled) and not request.started:
            super().cancel()
            self.set_running_or_notify_cancel()
        else:
            self.set_exception(error)
