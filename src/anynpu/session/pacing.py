"""Pacing: submissions spread to the rate that the device sustains.

The pacer's own lock protects its three numbers; nobody waits while holding it. A thread that comes too early takes the next free moment
and sleeps until then: it neither polls nor is turned away.
"""

from __future__ import annotations

import threading
import time

__all__ = ["Pacer"]

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
