"""How long faults take: in the time of the wall, or in simulated time for tests.

A wait ends early when its job is cancelled or out of time. What stops a job is asked through the few names of :class:`Stoppable`, which
:class:`anynpu.npu.RunControl` has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from ...errors import DeviceTimeout

__all__ = ["FaultClock", "SimulatedTime", "Stoppable", "WallTime"]


class Stoppable(Protocol):
    """A job that can be cancelled or be out of time."""

    @property
    def remaining(self) -> float | None: ...
    def check(self) -> None: ...
    def watching(self, watcher: Callable[[], None]) -> AbstractContextManager[None]: ...


class FaultClock(Protocol):
    """What waits."""

    def now(self) -> float:
        """Seconds, from anywhere."""

    def wait(self, seconds: float, job: Stoppable) -> None:
        """Let time pass for *job*; raises if it is cancelled or out of time meanwhile."""


class WallTime:
    """Waits as long as it says."""

    def now(self) -> float:
        """Seconds of the system's clock that never goes back."""
        return time.monotonic()

    def wait(self, seconds: float, job: Stoppable) -> None:
        """Sleep, unless *job* ends."""
        limit = job.remaining
        woken = threading.Event()
        with job.watching(woken.set):
            woken.wait(seconds if limit is None else min(seconds, limit))
        job.check()


class SimulatedTime:
    """Time that passes when somebody waits, and takes none.

    Its lock protects the time that has passed; jobs of several threads wait one after the other.

    >>> clock = SimulatedTime()
    >>> clock.now()
    0.0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0.0

    def now(self) -> float:
        """Seconds that were waited for."""
        with self._lock:
            return self._now

    def wait(self, seconds: float, job: Stoppable) -> None:
        """Add *seconds*; a job that has less time left is out of time."""
        job.check()
        limit = job.remaining
        with self._lock:
            self._now += seconds if limit is None else min(seconds, limit)
        if limit is not None and limit < seconds:
            raise DeviceTimeout("the job did not finish in time", hint="pass a longer timeout")
