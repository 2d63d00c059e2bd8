"""Requests for a part of a model's batch, gathered within a window into one run.

Belongs to the event loop of the server: no lock. A request whose client has gone is left out when the run begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .._util.types import Array
from .traces import RequestTrace, join_requests, traced_requests

__all__ = ["Batcher"]

Run = Callable[[list[Array], int, "float | None"], Awaitable[list[Array]]]


@dataclass(eq=False)
class _Entry:
    arrays: list[Array]
    count: int
    priority: int
    until: float
    answer: asyncio.Future[list[Array]]
    traced: tuple[RequestTrace, ...]


@dataclass(eq=False)
class _Batch:
    entries: list[_Entry] = field(default_factory=list)
    count: int = 0
    timer: asyncio.TimerHandle | None = None


class Batcher:
    """Fills batches of *size* samples.

    :param window: seconds that a sample waits for others
    :param run: runs one whole batch: arrays, priority and seconds in, all outputs out
    """

    def __init__(self, size: int, window: float, run: Run) -> None:
        self._size = size
        self._window = window
        self._run = run
        self._open: dict[tuple[str, ...], _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, arrays: Sequence[Array], count: int, priority: int, timeout: float) -> list[Array]:
        """All outputs for *count* samples, fewer than the batch has."""
        loop = asyncio.get_running_loop()
        key = tuple(f"{array.dtype.str}{array.shape[1:]}" for array in arrays)
        batch = self._open.setdefault(key, _Batch())
        if batch.count + count > self._size:
            self._flush(key)
            batch = self._open.setdefault(key, _Batch())
        entry = _Entry(list(arrays), count, priority, loop.time() + timeout, loop.create_future(), traced_requests())
        batch.entries.append(entry)
        batch.count += count
        if batch.count == self._size:
            self._flush(key)
        elif batch.timer is None:
            batch.timer = loop.call_later(self._window, self._flush, key)
        return await entry.answer

    def _flush(self, key: tuple[str, ...]) -> None:
        batch = self._open.pop(key, None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        entries = [entry for entry in batch.entries if not entry.answer.done()]
        if entries:
            task = asyncio.get_running_loop().create_task(self._execute(entries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _execute(self, entries: list[_Entry]) -> None:
        join_requests(tuple(request for entry in entries for request in entry.traced))
        try:
            now = asyncio.get_running_loop().time()
            filled = [self._fill([entry.arrays[index] for entry in entries]) for index in range(len(entries[0].arrays))]
            timeout = max(entry.until for entry in entries) - now
            outputs = await self._run(filled, min(entry.priority for entry in entries), timeout)
        except BaseException as error:  # whatever it is, it belongs to those who wait
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        start = 0
        for entry in entries:
            if not entry.answer.done():
                entry.answer.set_result([output[start : start + entry.count] for output in outputs])
            start += entry.count

    def _fill(self, pieces: list[Array]) -> Array:
        missing = self._size - sum(piece.shape[0] for piece in pieces)
        if missing:
            pieces = [*pieces, np.zeros((missing, *pieces[0].shape[1:]), pieces[0].dtype)]
        return np.concatenate(pieces)
