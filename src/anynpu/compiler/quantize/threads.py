"""Work on samples in several threads, and numpy's matmuls on one."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..._util.lifetime import ModuleLock

MAX_THREADS = 8
"""More threads than this would hold the tensors of too many samples at a time."""

_MAX_BYTES = 1 << 28

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count(sample_bytes: int = 0) -> int:
    """How many samples to work on at a time: one per processor, fewer where a sample takes *sample_bytes* of memory."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(here, MAX_THREADS, _MAX_BYTES // max(sample_bytes, 1)), 1)


def in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Iterator[Result]:
    """Results of *function*, which runs in *threads*, in the order of the items; these are read in the caller's thread.

    One result more than there are threads is waited for at most, so that a long data set does not pile up. An error ends it.

    >>> list(in_order(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    count = thread_count() if threads is None else threads
    if count < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(count, "anynpu-compiler") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


# numpy's matmuls on one thread, as long as many small ones are computed.
#
# OpenBLAS splits every product among all processors, and its threads wait for each other by spinning: for the small products of
# weight reconstruction that takes several times the CPU time, most of all on a busy machine. The split also decides how sums are
# rounded, so that quantized values would depend on the number of processors.


_NAMES = [f"{before}openblas_%s_num_threads{after}" for before in ("scipy_", "") for after in ("64_", "_64", "")]
_lock = ModuleLock()
_state = {"depth": 0, "before": 0}


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy use one thread for each product. Blocks may overlap, in one thread and in several: the last to end restores the number.

    Does nothing where numpy has another library than OpenBLAS.
    """
    found = _openblas()
    if found is None:
        yield
        return
    get, put = found
    with _lock:
        if not _state["depth"]:
            _state["before"] = get()
            put(1)
        _state["depth"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["depth"] -= 1
            if not _state["depth"]:
                put(_state["before"])


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """How to ask numpy's OpenBLAS for its number of threads, and how to set it; None where there is no such library."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                continue
            for name in _NAMES:
                get, put = (getattr(library, name % verb, None) for verb in ("get", "set"))
                if get is not None and put is not None:
                    get.restype, get.argtypes = ctypes.c_int, []
                    put.restype, put.argtypes = None, [ctypes.c_int]
                    return get, put
    return None
