"""Runs that do not block: frames, one after the other, on a thread of the context's own.

The vendor declares this in ``rknn_run_extend`` and does not offer it; here it works. A context has one set of inputs and outputs, so
frames do not overlap: the next one begins when the one before has finished, and its outputs are there until then. A call that changes
inputs, shapes or memory waits for the frames before it.

Concurrency: the thread is started with the first frame and ends with :meth:`Frames.close`, after which frames are refused. Futures are
kept by frame number under the lock, so that a frame can be waited for more than once; of those that have finished, at most ``KEPT``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from ..constants import Code
from .refusal import Refusal

__all__ = ["Frames"]

KEPT = 64
"""Frames that nobody waited for; the oldest are forgotten."""


_MAX_NUMBER = 2**64 - 1


class Frames:
    """The frames of one context."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "anynpu frame")
        self._lock = threading.Lock()
        self._futures: OrderedDict[int, Future[None]] = OrderedDict()
        self._next = 1
        self._thread = 0
        self._closed = False

    def submit(self, frame: int, run: Callable[[], None]) -> int:
        """Queue *run* as *frame* (0: the next number) and return its number."""
        with self._lock:
            if self._closed:
                raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
            if not frame:
                frame = self._next
                while self._on_its_way(frame):  # the numbers have started again
                    frame = frame % _MAX_NUMBER + 1
            if self._on_its_way(frame):
                raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"frame {frame} is on its way already", "give every frame its number")
            self._next = max(self._next, frame) % _MAX_NUMBER + 1
            self._futures[frame] = self._pool.submit(self._run, run)
            self._futures.move_to_end(frame)
            while len(self._futures) > KEPT and next(iter(self._futures.values())).done():
                self._futures.popitem(last=False)
        return frame

    def _on_its_way(self, frame: int) -> bool:
        return frame in self._futures and not self._futures[frame].done()

    def wait(self, frame: int, timeout: float | None) -> int:
        """Wait for *frame* (0: the latest) and return its number; raises what its run raised."""
        with self._lock:
            if not frame and self._futures:
                frame = next(reversed(self._futures))
            future = self._futures.get(frame)
            closed = self._closed
        if future is None and closed:
            raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
        if future is None:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"no frame {frame} was started", "wait for a frame that rknn_run queued")
        try:
            future.result(timeout)
        except CancelledError:
            raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed before the frame ran") from None
        except FutureTimeoutError:
            if not future.done():
                raise Refusal(Code.RKNN_ERR_TIMEOUT, f"frame {frame} was not finished in time") from None
            raise
        return frame

    def settle(self) -> None:
        """Wait until all frames have ended, however they did; a frame's own thread (a custom operator) waits for nothing."""
        if threading.get_ident() != self._thread:
            with self._lock:
                pending = [future for future in self._futures.values() if not future.done()]
            for future in pending:  # not concurrent.futures.wait, which never returns for one that a shutdown has cancelled
                try:
                    future.exception()
                except CancelledError:
                    continue

    def _run(self, run: Callable[[], None]) -> None:
        self._thread = threading.get_ident()
        run()

    @property
    def latest(self) -> int:
        """The number of the frame queued last."""
        with self._lock:
            return next(reversed(self._futures)) if self._futures else 0

    def close(self) -> None:
        """Drop what waits and let what runs end (which may be the caller: a custom operator may destroy its context)."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=threading.get_ident() != self._thread, cancel_futures=True)
        with self._lock:
            self._futures.clear()  # an error refers to the frames of its run, and so to the context
