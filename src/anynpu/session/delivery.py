"""Answers: results to those who wait, and user code for those who left some.

User code (callbacks, functions attached to futures) runs in a thread that holds no lane, one piece at a time. ``_delivering`` says that a
thread is at it; whoever makes something ready while it is False sets it and becomes, or starts, that thread.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable

from ..errors import AnynpuError
from .queues import Queues, Started
from .request import DONE, Request
from .workers import Workers

__all__ = ["Delivery"]

log = logging.getLogger("anynpu.session")


class Delivery(Queues):
    """Queues whose requests are answered."""

    _workers: Workers
    on_callback_error: Callable[[BaseException], object] | None = None
    """Called with what a callback raised."""

    @abstractmethod
    def _start(self, started: Started) -> None:
        """Have requests run that got a lane."""

    def _answer(self, request: Request) -> None:
        if request.waiter is not None:
            request.waiter.release()
        elif request.future is not None:
            request.future.answer()
        elif request.notify is not None:
            request.notify(request)

    def hook(self, request: Request) -> bool:
        """User code is attached to a request; False if the request is being answered without regard to it."""
        with self._lock:
            if request.state != DONE:
                request.hooked = True
            return request.hooked

    def _deliver(self) -> None:
        """Run user code for what is finished, in order, until nothing is left."""
        self._deliverer = threading.get_ident()
        delivered: Request | None = None
        while True:
            started: Started = []
            with self._lock:
                if delivered is not None and delivered.callback is not None:
                    self._undelivered -= 1
                    for group in self._groups.values():
                        if group.blocked:
                            self._admit(group, started)
                delivered = None
                if self._hooked:
                    request = self._hooked.popleft()
                elif self._order and self._order[0].state == DONE:
                    request = self._order.popleft()
                else:
                    self._delivering = False
                    self._deliverer = 0
                    if self._idle_waiters:
                        self._tell_idle()
                    request = None
            self._start(started)
            if request is None:
                return
            if request.callback is not None:
                self._call(request)
            else:
                self._answer(request)
            delivered, request = request, None

    def _call(self, request: Request) -> None:
        callback, user_data = request.callback, request.user_data
        error, request.error = request.error, None
        results, request.outcome = request.outcome, None
        assert callback is not None
        try:
            if error is None:
                callback(results, user_data, "")
            else:
                callback(None, user_data, str(error) or type(error).__name__)
        except BaseException as raised:  # the next callback must come whatever this one did
            log.error("a callback raised %s: %s", type(raised).__name__, raised, exc_info=raised)
            self._report(raised)

    def _report(self, raised: BaseException) -> None:
        hook = self.on_callback_error
        if hook is None:
            return
        try:
            hook(raised)
        except BaseException as second:
            log.error("on_callback_error raised %s itself: %s", type(second).__name__, second, exc_info=second)

    def _answer_denied(self, request: Request, error: AnynpuError) -> None:
        request.error = error
        request.feed = None
        if request.callback is None and not request.hooked:
            self._answer(request)
            return
        with self._lock:
            request.state = DONE
            if request.callback is None:
                self._hooked.append(request)
            elif not self._sequential:
                self._order.append(request)
            deliver = self._claim_delivery()
        if deliver:
            self._workers.start(self._deliver)
