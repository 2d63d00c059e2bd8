"""Threads that do what they are handed.

A worker waits on a lock of its own; whoever has work takes an idle worker off the list, gives it the work and releases that lock: one
wake-up, and no other lock. There is always a thread for work that is handed over: if none is idle, a new one starts. So work may wait for
other work without harm, and there are never more threads than pieces of work were in hand at one time.

The list of idle workers is the only shared state; its append, pop and remove are atomic. Threads are daemons: those that a device never
lets go must not keep the interpreter alive. They end when the session closes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from .request import let_go

__all__ = ["SessionWorkers"]

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
            except BaseException:  # an interrupt: the thread must not wait for work that nobody will bring
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

        :param lost: threads that will not come back soon; None to wait for nobody
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
