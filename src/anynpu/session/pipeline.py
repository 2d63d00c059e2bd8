"""Requests in flight for a caller who takes results in order: ``run_pipeline``, ``drain`` and ``stream``.

A :class:`PipelineTicket` is a request and the lock that is released when it is done. A :class:`Pipeline` belongs to one session; its lock
protects the tickets, and is not held while anything waits.
"""

from __future__ import annotations

import operator
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import DeviceTimeout, OptionTypeError, SessionError
from .request import Request, Results, let_go

if TYPE_CHECKING:
    from .session import InferenceSession

__all__ = ["Pipeline", "PipelineTicket", "stream"]


class PipelineTicket:
    """A posted request whose result somebody will take."""

    __slots__ = ("_lock", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self._lock = threading.Lock()
        self._lock.acquire()
        request.notify = self._done

    def _done(self, request: Request) -> None:
        let_go(self._lock)

    def take(self, timeout: float | None = None) -> Results:
        """Wait for the result, or raise what went wrong. Once."""
        self.wait(timeout)
        return taken(self.request)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it is a good one. The result is still there to be taken."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise DeviceTimeout(f"no result within {timeout:g} s", hint="wait longer, or look at what else uses the device")
        self._lock.release()
        return self.request.error is None


def taken(request: Request) -> Results:
    """The result of a finished request, or its error raised."""
    error, request.error = request.error, None
    if error is None:
        return request.outcome or []
    try:
        raise error
    finally:
        del error  # the traceback refers to this frame


class Pipeline:
    """The tickets of ``run_pipeline``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: deque[PipelineTicket] = deque()
        self._depth = 0

    def push(self, session: InferenceSession, input_feed: Any, depth: int, reset: bool) -> Results | None:
        """Submit, and give the result of the request that is now more than *depth* behind."""
        try:
            number = operator.index(depth)
        except TypeError:
            number = -1
        if number < 0:
            raise OptionTypeError(f"the pipeline depth must be a positive integer, got {depth!r}", hint="for example depth=3")
        if number == 0:
            raise SessionError("the pipeline depth must be greater than 0, got 0", hint="for example depth=3")
        depth = number
        ticket = session._ticket(None, input_feed)
        with self._lock:
            if reset or depth != self._depth:
                old, self._tickets = self._tickets, deque()
                self._depth = depth
            else:
                old = deque()
            self._tickets.append(ticket)
            due = self._tickets.popleft() if len(self._tickets) > depth else None
        for pending in old:
            session._runner.cancel(pending.request)
        return None if due is None else due.take()

    def drain(self, timeout: float | None = None) -> list[Results]:
        """The results that are still to come, in order, up to one that failed; if that is the first, its error is raised. The next
        call goes on after that. Nothing is lost if *timeout* is too short."""
        with self._lock:
            tickets = tuple(self._tickets)
        good = 0
        for ticket in tickets:
            if not ticket.wait(timeout):
                break
            good += 1
        with self._lock:
            count = max(1, good) if tickets else 0
            due = [self._tickets.popleft() for _ in range(min(count, len(self._tickets)))]
            if not self._tickets:
                self._depth = 0
        return [ticket.take() for ticket in due]


def stream(
    session: InferenceSession, feeds: Iterable[Any], depth: int, ordered: bool, output_names: object, options: dict[str, Any]
) -> Iterator[Results]:
    """Results for *feeds*, with *depth* requests in flight."""
    if ordered:
        tickets: deque[PipelineTicket] = deque()
        try:
            for feed in feeds:
                tickets.append(session._ticket(output_names, feed, **options))
                if len(tickets) >= depth:
                    yield tickets.popleft().take()
            while tickets:
                yield tickets.popleft().take()
        finally:
            for ticket in tickets:
                session._runner.cancel(ticket.request)
        return
    finished: queue.SimpleQueue[Request] = queue.SimpleQueue()
    flying: set[Request] = set()
    try:
        for feed in feeds:
            flying.add(session._notified(output_names, feed, finished.put, **options))
            if len(flying) >= depth:
                yield _arrived(finished, flying)
        while flying:
            yield _arrived(finished, flying)
    finally:
        for request in flying:
            session._runner.cancel(request)


def _arrived(finished: queue.SimpleQueue[Request], flying: set[Request]) -> Results:
    while (request := finished.get()) not in flying:  # told of it twice, after an interrupt
        pass
    flying.remove(request)
    return taken(request)
