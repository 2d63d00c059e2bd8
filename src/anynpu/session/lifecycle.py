"""What ends sessions that nobody closes: forgotten ones, those alive at the end of the interpreter, those of a forked parent.

A forgotten session is closed by a thread of its own kind, the reaper: the last reference may go anywhere, in the middle of a garbage
collection too, where taking any lock could wait for ever. The finalizer therefore only puts the runner on a queue whose ``put`` is made
for that. New sessions wait while too many forgotten ones are on the queue, so that memory stays bounded.

The reaper and the two hooks (at exit, after a fork) come into being with the first session of a process; importing changes nothing. The
module's lock protects their creation; the set of live runners is weak.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref

from .runner import Runner

__all__ = ["Keeper", "keep"]

BACKLOG = 8
"""Forgotten sessions that may wait to be closed before a new one is opened."""

AT_EXIT = 5.0
"""Seconds that requests which run at the end of the interpreter are waited for."""

_lock = threading.Lock()
_live: weakref.WeakSet[Runner] = weakref.WeakSet()
_forgotten: queue.SimpleQueue[Runner] = queue.SimpleQueue()
_reaper: threading.Thread | None = None
_hooked = False
_left_behind: list[Runner] = []
"""In a forked child, what is the parent's: never closed, since the threads that would have to end are not here."""


class Keeper:
    """Ties the end of a session to the end of its runner."""

    def __init__(self, owner: object, runner: Runner) -> None:
        self._finalizer = weakref.finalize(owner, _forgotten.put, runner)
        self._finalizer.atexit = False  # the hook at exit closes in the right order

    def done(self) -> None:
        """The runner was closed by hand."""
        self._finalizer.detach()


def keep(owner: object, runner: Runner) -> Keeper:
    """See to it that *runner* is closed when *owner* is forgotten or the interpreter ends."""
    global _reaper, _hooked
    with _lock:
        if not _hooked:
            _hooked = True
            atexit.register(_at_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_after_fork)
        if _reaper is None:
            _reaper = threading.Thread(target=_reap, name="anynpu session reaper", daemon=True)
            _reaper.start()
        _live.add(runner)
    return Keeper(owner, runner)


def make_room() -> None:
    """Wait until few forgotten sessions are left to close; not for one that hangs."""
    limit = time.monotonic() + 1.0
    while _forgotten.qsize() > BACKLOG and threading.current_thread() is not _reaper and time.monotonic() < limit:
        time.sleep(0.0005)


def _reap() -> None:
    while True:
        runner = _forgotten.get()
        if not runner.close(timeout=AT_EXIT):
            runner.give_up()
        del runner


def _at_exit() -> None:
    limit = time.monotonic() + AT_EXIT
    for runner in list(_live):
        runner.close(timeout=max(0.0, limit - time.monotonic()))


def _after_fork() -> None:
    global _lock, _reaper, _forgotten, _live
    _lock = threading.Lock()
    _reaper = None
    _forgotten = queue.SimpleQueue()
    for runner in list(_live):
        runner.abandon_after_fork()
        _left_behind.append(runner)
    _live = weakref.WeakSet()
