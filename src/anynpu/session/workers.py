"""Threads that do what they are handed.

A worker waits on a lock of its own; whoever has work takes an idle worker off the list, gives it the work and releases that lock: one
wake-up, and no other lock. There is always a thread for work that is handed over: if none is idle, a new one starts. So work may wait for
other work without harm, and there are never more threads than pieces of work were in hand at one time.

The list of idle workers is the only shared state; its append, pop and remove are atomic. Threads are daemons: those that a device never
lets go must not keep the interpreter alive. They end when the scheduler closes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

__all__ = ["Workers"]


class _Worker(threading.Thread):
    def __init__(self, workers: Workers, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._workers = workers
        self.wake = threading.Lock()
        self.wake.acquire()
        self.work: Callable[[], None] | None = work

    def run(self) -> None:
        idle = self._workers.idle
        while True:
            work, self.work = self.work, None
            if work is None:
                return
            work()
            del work  # it may be the last to know a session's data
            idle.append(self)
            if self._workers.ended:
                try:
                    idle.remove(self)
                except ValueError:
                    pass  # work is on its way, possibly the one that ends the thread
                else:
                    return
            self.wake.acquire()


class Workers:
    """The threads of one session."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = 0
        self._threads: list[_Worker] = []
        self.idle: list[_Worker] = []
        self.ended = False

    def start(self, work: Callable[[], None]) -> None:
        """Have *work* done by an idle thread, or by a new one; if the system has none to give, by the calling thread."""
        try:
            worker = self.idle.pop()
        except IndexError:
            self._started += 1
            worker = _Worker(self, f"{self._name} {self._started}", work)
            try:
                worker.start()
            except RuntimeError:  # no more threads, or the interpreter is ending
                work()
            else:
                self._threads.append(worker)
            return
        worker.work = work
        worker.wake.release()

    def end(self, lost: Collection[int] | None) -> None:
        """Let every thread end as soon as it has nothing to do, and wait for that.

        :param lost: threads that will not come back soon; None to wait for nobody
        """
        self.ended = True
        while self.idle:
            try:
                worker = self.idle.pop()
            except IndexError:
                break
            worker.wake.release()
        if lost is None:
            return
        own = threading.current_thread()
        for worker in self._threads:
            if worker is not own and worker.ident not in lost:
                worker.join()
