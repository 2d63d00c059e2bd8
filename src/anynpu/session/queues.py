"""What waits for which lane: the state of a session, and the steps that change it.

Everything here expects the scheduler's lock to be held, and neither runs nor waits for anything: who takes a request or a lane out of here
acts on it after the lock is released. Requests that got a lane on the way are collected in *started*.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from ..errors import AnynpuError, OptionError
from .lanes import Group, Slot
from .request import BLOCKED, DONE, QUEUED, RUNNING, Request

__all__ = ["Queues", "Started"]

Started = list[tuple[Slot, Request]]
"""Requests that have a lane and must be run by whoever has the list."""

EXTRA_UNDELIVERED = 8
"""Callbacks that may be late, besides one for each request that the lanes and queues hold."""


class Queues:
    """Groups, requests that wait, callbacks to come, counts.

    :param cores: of the device
    :param schedule: core of each request in turn; None for one group with *mask* and at most *most* lanes
    """

    def __init__(
        self,
        *,
        cores: int,
        schedule: Sequence[int] | None,
        mask: int,
        most: int,
        threads_per_core: int,
        max_queue_size: int,
        sequential: bool,
    ) -> None:
        self._lock = threading.Lock()
        self._cores = cores
        self._per_core = threads_per_core
        self._max_queue = max_queue_size
        self._sequential = sequential
        self._groups: dict[int, Group] = {}
        self._turns: list[Group] = []  # of the groups, where there is a schedule
        self._turn = 0
        self._numbers = 0
        self._closed: AnynpuError | None = None
        self._running = 0  # slots that a thread holds
        self._order: deque[Request] = deque()  # callbacks to come
        self._hooked: deque[Request] = deque()  # futures to be settled by a thread without a lane
        self._delivering = False
        self._deliverer = 0  # the thread that does so
        self._undelivered = 0
        self._idle_waiters: list[tuple[threading.Event, int]] = []  # with the thread that waits
        if schedule is None:
            self._main = self._group(mask, most)
        else:
            for core in schedule:
                self._turns.append(self._group(1 << core, threads_per_core))
            self._main = self._turns[0]
        self._limit = self.lanes + max_queue_size * len(self._groups) + EXTRA_UNDELIVERED

    @property
    def lanes(self) -> int:
        """How many requests may run at a time."""
        return sum(group.most for group in self._groups.values())

    def _group(self, mask: int, most: int) -> Group:
        group = self._groups.get(mask)
        if group is None:
            group = self._groups[mask] = Group(mask, most)
        return group

    def _enter(self, request: Request, core: int | None, turn: bool = True) -> Group:
        if self._closed is not None:
            raise self._closed_error()
        if core is not None:
            group = self._pinned(core)
        elif self._turns:
            group = self._turns[self._turn % len(self._turns)]
        else:
            group = self._main
        request.group = group
        if turn:
            self._number(request, core)
        return group

    def _number(self, request: Request, core: int | None) -> None:
        request.number = self._numbers
        self._numbers += 1
        if core is None:
            self._turn += 1

    def _pinned(self, core: int) -> Group:
        cores = self._cores
        if not isinstance(core, int) or not 0 <= core < cores:
            raise OptionError(f"core {core!r} does not exist: this NPU has {cores}", hint=f"use a core from 0 to {cores - 1}")
        return self._group(1 << core, self._per_core)

    def _queue_or_block(self, group: Group, request: Request) -> None:
        if self._has_room(group):
            request.state = QUEUED
            group.put(request)
        else:
            group.blocked.append(request)

    def _has_room(self, group: Group) -> bool:
        """Whether a new request may go into the queue: not past those that wait for room."""
        if len(group.queue) >= self._max_queue:
            return False
        return not group.blocked or not any(one.urgent or self._undelivered < self._limit for one in group.blocked)

    def _oldest(self, group: Group, request: Request) -> Request | None:
        """Who makes room for *request*: the oldest that is no more urgent and that nobody waits for in his thread."""
        if not request.urgent and self._undelivered >= self._limit:
            return None
        return next((old for old in group.queue if old.waiter is None and old.priority >= request.priority), None)

    def _hold(self, slot: Slot, request: Request) -> None:
        request.state = RUNNING
        request.slot = slot
        slot.request = request
        self._running += 1

    def _next(self, slot: Slot, started: Started) -> Request | None:
        """The next request for a slot, which goes on being held; without one the slot is free, or closed if the session is."""
        group = slot.group
        if group.queue:
            request = group.queue.popleft()
            request.state = RUNNING
            request.slot = slot
            slot.request = request
        else:
            request = None
            group.free.append(slot)
            self._running -= 1
            if self._idle_waiters:
                self._tell_idle()
        if group.blocked:
            self._admit(group, started)
        return request

    def _admit(self, group: Group, started: Started) -> None:
        """Let requests that wait for room into the queue, or start them."""
        if self._closed is not None or len(group.queue) > self._max_queue // 2:
            return  # a submitter who is woken for one place goes back to sleep at once: let there be several
        for request in tuple(group.blocked):
            if not request.urgent and self._undelivered >= self._limit:
                continue
            slot = None if group.queue else group.take()
            if slot is not None:
                self._hold(slot, request)
                started.append((slot, request))
            elif len(group.queue) < self._max_queue:
                request.state = QUEUED
                group.put(request)
            else:
                return
            group.blocked.remove(request)
            if request.callback is not None:
                self._undelivered += 1
            if request.admitted is not None:
                request.admitted.release()

    def _refill(self, group: Group, started: Started) -> None:
        """Lanes for what waits in a group; expects the lock."""
        while group.queue and (slot := group.take()) is not None:
            request = group.queue.popleft()
            self._hold(slot, request)
            started.append((slot, request))
        if group.blocked:
            self._admit(group, started)

    def _deny(self, request: Request) -> Started:
        """Move a waiting request to DONE; expects the lock. Whoever calls this answers it."""
        group = request.group
        assert group is not None
        started: Started = []
        if request.state == BLOCKED:
            group.blocked.remove(request)
            if request.callback is not None:
                self._undelivered += 1  # as if it had been let in: its callback takes it off again
        else:
            group.queue.remove(request)
        # no callback may be made before the error is there: see _answer_denied
        request.slot = None
        request.state = DONE if request.callback is None else RUNNING
        if group.blocked:
            self._admit(group, started)
        return started

    def _claim_delivery(self) -> bool:
        """Whether the calling thread has to see to deliveries now; expects the lock."""
        if self._delivering or not (self._hooked or (self._order and self._order[0].state == DONE)):
            return False
        self._delivering = True
        return True

    def _tell_idle(self) -> None:
        if self._running or any(group.queue or group.blocked for group in self._groups.values()):
            return
        for event, thread in self._idle_waiters:
            if not self._delivering or self._deliverer == thread:
                event.set()

    def _closed_error(self) -> AnynpuError:
        assert self._closed is not None
        return type(self._closed)(self._closed.message, hint=self._closed.hint)
