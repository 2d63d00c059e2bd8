"""Threads of C that share the rows of a layer with the thread that runs a program."""

from __future__ import annotations

import os
from typing import Any

from ..._native import ffi, lib
from ...tensor import round_up
from . import native_arrays

__all__ = ["IDLE_WORK", "LEAST_WORK", "WorkerThreads"]

LEAST_WORK = 1_000_000
"""Products of a fast convolution below which a layer stays on one thread: about 5 microseconds. Handing out rows costs about one."""

IDLE_WORK = 20_000_000
"""Products of fast convolutions below which a program leaves idle processors alone: about 100 microseconds."""

_MOST_IDLE = 8
"""Threads that a run has at most on idle processors: layers have no more parts of a useful size."""


class WorkerThreads:
    """The threads and the scratch memory for runs on several threads. Belongs to one bound program and serves one run at a time.

    Threads are started when a run first wants them and end with :meth:`close`, or when the object is forgotten. A process that was made
    by ``fork`` does not have them; a run there uses one thread.

    :param scratch_size: bytes that one thread needs
    :param idle: whether a run also uses idle processors, beyond the threads that it is given
    """

    def __init__(self, scratch_size: int, idle: bool = False) -> None:
        self._step = round_up(max(scratch_size, 1), native_arrays.ALIGNMENT)
        self._most = min(available_processors(), _MOST_IDLE) if idle else 1
        self.threads = 1
        """Those of the run at hand."""
        self._threads = 1
        self._pool: Any = None
        self._sharing: Any = ffi.NULL
        self._memory: Any = None
        self.scratch: Any = ffi.NULL
        """For all threads; valid while there are several."""

    def sharing(self, threads: int) -> Any:
        """What ``anynpu_execute_shared`` wants to know for a run on so many threads; NULL where one is all there is."""
        most = max(threads, self._most)
        if most == 1:
            return ffi.NULL
        if most != self._threads:
            self.close()
            self._threads = most  # also where the system gives fewer: asking again for every run would not help
            self._open(most)
        if self._sharing:
            self._sharing.threads = threads
        return self._sharing

    def _open(self, threads: int) -> None:
        pool = lib.anynpu_workers_open(threads)
        if not pool:
            return
        self._pool = ffi.gc(pool, lib.anynpu_workers_close)
        self._memory = native_arrays.aligned_bytes(lib.anynpu_workers_threads(pool) * self._step)
        self.scratch = ffi.cast("void *", self._memory.ctypes.data)
        self._sharing = ffi.new(
            "struct anynpu_sharing *", {"workers": pool, "scratch_step": self._step, "least_work": LEAST_WORK}
        )

    def close(self) -> None:
        """End the threads and give their memory back; a later run may start new ones."""
        if self._pool is not None:
            ffi.release(self._pool)
        self._threads, self._pool, self._memory = 1, None, None
        self._sharing = self.scratch = ffi.NULL


def available_processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
