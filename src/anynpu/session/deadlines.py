"""Deadlines and the watchdog of one session.

One thread, started by the first request with a deadline (or by the first session with a watchdog), sleeps until the earliest deadline
or the next look at the lanes. Its condition protects the heap. What it finds it reports to the runner, without holding the condition.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from .request import DONE, Request

__all__ = ["Timekeeper"]

LOOKS = 4
"""How often the lanes are looked at within the watchdog's limit."""

PURGED = 256
"""Deadlines that are held before those of finished requests are forgotten."""


class Timekeeper:
    """Tells when a deadline has come, and when to look for lanes that hang."""

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
        """Begin to look at the lanes, if there is a watchdog."""
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
