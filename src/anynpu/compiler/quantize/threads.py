"""Work on samples in several threads: onnxruntime and numpy let other threads run while they compute."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["MAX_THREADS", "in_order", "thread_count"]

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
