"""What stops a job: its deadline and its cancellation.

A :class:`RunControl` belongs to one job and travels with it: to the scheduler while it waits for a core, to the engine while it runs.
Any thread may cancel it; its own lock protects the flag and the list of those to be notified.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import AnynpuError, DeviceTimeout, JobCancelled


class RunControl:
    """The deadline of a job and the means to cancel it.

    :param timeout: seconds from now until the job must have finished; None for no limit

    >>> control = RunControl()
    >>> control.cancel()
    True
    >>> control.check()
    Traceback (most recent call last):
    ...
    anynpu.errors.JobCancelled: the job was cancelled
    """

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.began = False
        """Whether the job got what it waited for; only jobs of :class:`~anynpu.npu.jobs.Stage` entries report it."""
        self._lock = threading.Lock()
        self._error: AnynpuError | None = None
        self._watchers: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._error is not None

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, never negative; None where there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def cancel(self, error: AnynpuError | None = None) -> bool:
        """Ask the job to stop at the next layer; it then raises *error* (:class:`JobCancelled` unless given).

        :return: False if it had been asked before
        """
        with self._lock:
            if self._error is not None:
                return False
            self._error = error or JobCancelled("the job was cancelled")
            watchers = tuple(self._watchers)
        for watcher in watchers:
            watcher()
        return True

    def check(self) -> None:
        """Raise if the job is cancelled or out of time."""
        if self._error is not None or (self.deadline is not None and time.monotonic() >= self.deadline):
            raise self.reason("did not finish")

    def reason(self, what: str) -> AnynpuError:
        """Why the job has to stop. Where it is out of time the message states that it *what* ("did not finish") within the limit."""
        if self._error is not None:
            return copy.copy(self._error)  # several threads may raise it, each with its own traceback
        limit = "" if self.timeout is None else f" within {self.timeout:g} s"
        return DeviceTimeout(f"the job {what}{limit}", hint="pass a longer timeout, or look at what else uses the cores")

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call *watcher* (from the cancelling thread) when the job is cancelled, until :meth:`unwatch`; at once if it already is."""
        with self._lock:
            self._watchers.append(watcher)
        if self._error is not None:
            watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Undo :meth:`watch`."""
        with self._lock:
            self._watchers.remove(watcher)

    @contextmanager
    def watching(self, watcher: Callable[[], None]) -> Iterator[None]:
        """:meth:`watch` for a block."""
        self.watch(watcher)
        try:
            yield
        finally:
            self.unwatch(watcher)
