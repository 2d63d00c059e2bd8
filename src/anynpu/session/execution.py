"""Requests are run: by the caller's thread, or by a worker that goes on with what waits for the same lane."""

from __future__ import annotations

import functools
import logging
import threading
import time
from abc import abstractmethod

from ..errors import AnynpuError, DeviceTimeout, JobCancelled
from .backend import Backend, Lane
from .delivery import Delivery
from .lanes import Slot
from .pacing import Pacer
from .queues import Started
from .request import DONE, QUEUED, Request
from .statistics import Recorder

__all__ = ["Execution", "close_lane", "out_of_time"]

log = logging.getLogger("anynpu.session")

FAILURES = 3
"""Runs in a row that may fail before the context is opened anew."""


class Execution(Delivery):
    """Answers that come from lanes."""

    backend: Backend
    recorder: Recorder
    _pacer: Pacer | None
    _watchdog: float | None
    _ended: bool

    @abstractmethod
    def _await(self, request: Request) -> None:
        """Wait for a synchronous request in its caller's thread."""

    def _run_inline(self, slot: Slot, request: Request) -> None:
        request.waiter = None
        if slot.lane is None and not self._open(slot, request):
            self._await(request)
            return
        self._execute(slot, request)
        self._finish(slot, request, inline=True)

    def _serve(self, slot: Slot, request: Request | None) -> None:
        """Run *request* and then what waits for the same lane; in a worker."""
        slot.thread = threading.get_ident()
        while request is not None:
            if slot.lane is None and not self._open(slot, request):
                return
            self._execute(slot, request)
            request = self._finish(slot, request)

    def _open(self, slot: Slot, request: Request) -> bool:
        """Open a lane at its first use. If there is no more to be had the session goes on with those it has: the request queues
        again, and False is returned."""
        request.started = time.perf_counter_ns()
        try:
            slot.lane = self.backend.open_lane(slot.group.mask)
            return True
        except AnynpuError as error:
            group = slot.group
            started: Started = []
            with self._lock:
                if len(group.slots) <= 1 or slot.lost or self._closed is not None:
                    return True  # the request will meet the same error, and report it
                log.warning("%s cannot be opened; %d serve the session: %s", slot.label, len(group.slots) - 1, error)
                group.slots.remove(slot)
                group.most = len(group.slots)
                slot.request = request.slot = None
                request.state = QUEUED
                request.started = 0
                self._running -= 1
                if request.callback is None and request.future is None and request.notify is None and request.waiter is None:
                    request.waiter = threading.Lock()
                    request.waiter.acquire()
                group.queue.appendleft(request)
                self._refill(group, started)
            self._start(started)
            return False

    def _execute(self, slot: Slot, request: Request) -> None:
        now = time.perf_counter_ns
        request.started = request.written = request.ran = now()
        timeout = None
        try:
            if request.deadline:
                timeout = (request.deadline - request.started) / 1e9
                if timeout <= 0:
                    raise out_of_time(request)
            lane = slot.lane
            if lane is None:
                lane = slot.lane = self.backend.open_lane(slot.group.mask)
            if request.bound is not None:
                request.bound(lane, timeout)
                request.ran = now()
            else:
                feed = request.feed
                assert feed is not None
                request.outcome = lane.infer(feed, request.wanted, request.types, timeout, request)
        except BaseException as error:  # whatever it is, it belongs to the one who waits for the answer
            request.error = error
            if request.written != request.started and request.ran == request.started:
                self._run_failed(slot, error)
        else:
            slot.failures = 0
        request.feed = None  # whoever keeps the request need not keep its arrays
        request.finished = now()

    def _run_failed(self, slot: Slot, error: BaseException) -> None:
        """Open the context anew after a few failures in a row; a device that lost a context does not recover by itself."""
        if isinstance(error, JobCancelled | DeviceTimeout):
            return
        slot.failures += 1
        if slot.failures >= FAILURES and not slot.lost:
            log.warning("%s failed %d times in a row; its context is opened anew", slot.label, slot.failures)
            slot.failures = 0
            lane, slot.lane = slot.lane, None
            close_lane(lane)

    def _finish(self, slot: Slot, request: Request, inline: bool = False) -> Request | None:
        """Answer *request* and give the next one for the same lane. A thread of the user (*inline*) passes the lane on instead."""
        started: Started = []
        deliver = hooked = last = False
        with self._lock:
            slot.request = None
            if not slot.lost:
                request.state = DONE
                request.slot = None
                slot.jobs += 1
                slot.busy_ns += request.finished - request.started
                self.recorder.add(slot, request)
                hooked = request.hooked
                if hooked:
                    self._hooked.append(request)
                if request.callback is not None:
                    if not self._sequential:
                        self._order.append(request)
                    deliver = self._claim_delivery()
                elif hooked:
                    deliver = self._claim_delivery()
                following = self._next(slot, started)
                last = self._ended and self._running == 0
        if slot.lost or self._ended:
            lane, slot.lane = slot.lane, None
            close_lane(lane)
            if slot.lost:
                return None
            if last:
                self.backend.close()
        if self._pacer is not None:
            self._pacer.learn(request.ran - request.written)
        if started:
            self._start(started)
        if inline and following is not None:
            self._pass_on(slot, following)
            following = None
        if request.callback is None and not hooked:
            self._answer(request)
        if deliver:
            if following is None and not inline:
                self._deliver()
            else:
                self._workers.start(self._deliver)
        return following

    def _pass_on(self, slot: Slot, request: Request) -> None:
        if request.waiter is not None and self._watchdog is None:
            request.waiter.release()
        else:
            self._workers.start(functools.partial(self._serve, slot, request))

    def _start(self, started: Started) -> None:
        for slot, request in started:
            self._pass_on(slot, request)


def close_lane(lane: Lane | None) -> None:
    """Close a lane, if there is one."""
    if lane is None:
        return
    try:
        lane.close()
    except AnynpuError as error:
        log.warning("a context could not be closed: %s", error)


def out_of_time(request: Request) -> DeviceTimeout:
    """The error of a request whose time is over."""
    return DeviceTimeout(
        f"the request did not finish within {request.limit:g} s", hint="give it more time, or submit less at a time"
    )
