"""The threads that run submitted jobs.

State and lock: the queue of tasks and the set of threads belong to :class:`WorkerPool` and are protected by its condition. Threads are
started when there is work for them and end after a moment without any, so that a device that nobody closes does not keep a program from
ending.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ..errors import DeviceClosed

__all__ = ["WorkerPool"]

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
        """Run what is queued, then end all threads. The calling thread, if it is one of them, ends by itself later."""
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
