"""What a session's requests wait for and what happens next: a state machine without locks, threads or a clock.

A :class:`Machine` gets events (a request is submitted, a run has ended, a deadline has passed, the session closes) and changes its
state. What is to be done outside of it is put on the list ``todo`` as actions; :mod:`anynpu.session.runner` calls the machine with its
lock held, and does the actions after the lock is released. Every action may be done twice without harm.

A request is NEW, then BLOCKED (waits for space in the queue), QUEUED (waits for a device worker), RUNNING (has a device worker)
and DONE (completed, or about to be). An interrupt may come after any call, so the state changes first, right before the call
that puts the request into its new place; then the old place is left. :meth:`Machine.repair` can report by the state which place is right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import AnynpuError, JobCancelled, OptionError
from .request import BLOCKED, CALLER, DONE, NOBODY, QUEUED, RUNNING, WORKER, Request

if TYPE_CHECKING:
    from .backend import Lane


# Device workers in groups: a group is a queue and the device workers that serve it.
#
# There is a group for each core of a schedule, or one for all device workers; a request that asks for a core of its own makes a
# group for that core if there is none. Groups and slots belong to the state machine and change under the runner's lock.
# ``Slot.lane`` belongs to the thread that runs the slot's request.


def core_label(mask: int) -> str:
    """What a core mask is called in statistics and messages.

    >>> core_label(0), core_label(4), core_label(3)
    ('any core', 'core 2', 'cores 0,1')
    """
    if mask == 0:
        return "any core"
    if mask >= 0xFFFF:
        return "all cores"
    cores = [str(core) for core in range(mask.bit_length()) if mask >> core & 1]
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {','.join(cores)}"


class Slot:
    """The place of one device worker: open, or still to be opened by the thread that runs the first request."""

    __slots__ = ("busy_ns", "failures", "group", "index", "jobs", "lane", "lost", "request", "thread")

    def __init__(self, group: Group, index: int, lane: Lane | None = None) -> None:
        self.group = group
        self.index = index
        self.lane = lane
        self.request: Request | None = None
        self.lost = False  # its thread did not come back from the device
        self.thread = 0  # the worker that runs its request
        self.failures = 0  # in a row
        self.jobs = 0
        self.busy_ns = 0

    @property
    def label(self) -> str:
        """Its name in statistics and traces."""
        return f"{core_label(self.group.mask)}, device worker {self.index}"


class Group:
    """A queue and its device workers."""

    __slots__ = ("blocked", "free", "limit", "mask", "queue", "slots")

    def __init__(self, mask: int, limit: int) -> None:
        self.mask = mask
        self.limit = limit  # device workers that it may have
        self.slots: list[Slot] = []
        self.free: list[Slot] = []
        self.queue: deque[Request] = deque()
        self.blocked: deque[Request] = deque()  # wait for space in the queue

    def take(self) -> Slot | None:
        """A slot without a request: a free one, or a new one if the group may have more; None if there is none."""
        if self.free:
            return self.free.pop()
        if len(self.slots) < self.limit:
            return self.add()
        return None

    def add(self, lane: Lane | None = None) -> Slot:
        """A new slot."""
        used = {slot.index for slot in self.slots}
        index = 0
        while index in used:
            index += 1
        slot = Slot(self, index, lane)
        self.slots.append(slot)
        return slot

    def put(self, request: Request) -> None:
        """Into the queue: by priority, smaller first, then in the order of arrival."""
        queue = self.queue
        if not queue or queue[-1].priority <= request.priority:
            queue.append(request)
        else:
            queue.insert(bisect_right([waiting.priority for waiting in queue], request.priority), request)


START, COMPLETE, ADMIT, DELIVER, CLOSE_LANE, CLOSE_BACKEND, IDLE = range(7)
"""Run a request that has a device worker; notify the threads that wait for a request; let the submitter of a request go on; run
user code; close the device worker of a slot; close the backend; report a waiter that nothing is left to do."""

Action = tuple[int, Any]
"""One of the above, and what it is about."""

EXTRA_UNDELIVERED = 8
"""Callbacks that may be late, besides one for each request that the device workers and queues hold."""


class Machine:
    """Queues, device workers and callbacks of one session.

    :param cores: of the device
    :param schedule: core of each request in turn; None for one group of device workers with *mask*
    :param lanes: how many device workers that one group may have
    :param threads_per_core: how many device workers a core may have
    :param max_queue_size: how many requests may wait for each group
    :param sequential: callbacks are called in the order of submission
    """

    def __init__(
        self,
        *,
        cores: int,
        schedule: Sequence[int] | None = None,
        mask: int = 0,
        lanes: int = 1,
        threads_per_core: int = 1,
        max_queue_size: int = 3,
        sequential: bool = True,
    ) -> None:
        self.todo: list[Action] = []
        self.groups: dict[int, Group] = {}
        self.max_queue_size = max_queue_size
        self.closed: AnynpuError | None = None
        self.running = 0
        """Slots that hold a request."""
        self.order: deque[Request] = deque()
        """Requests whose callback is to be called, in this order."""
        self.hooked: deque[Request] = deque()
        """Requests whose future has functions attached."""
        self.undelivered = 0
        """Callbacks of requests that were let in and not called yet."""
        self.delivering = False
        """Whether a thread runs user code, or is about to."""
        self.deliverer = 0
        """That thread."""
        self._at_hand: Request | None = None
        self._cores = cores
        self._per_core = threads_per_core
        self._sequential = sequential
        self._numbers = 0
        self._turn = 0
        self._idle_waiters: list[tuple[object, int]] = []
        self._ending = self._backend_closed = False
        self._turns = [self._group(1 << core, threads_per_core) for core in schedule or ()]
        self._main = self._turns[0] if self._turns else self._group(mask, lanes)
        self.max_undelivered = self.lanes + max_queue_size * len(self.groups) + EXTRA_UNDELIVERED

    @property
    def lanes(self) -> int:
        """How many requests may run at a time."""
        return sum(group.limit for group in self.groups.values())

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(len(group.queue) + len(group.blocked) for group in self.groups.values())

    def slots(self) -> list[Slot]:
        """All slots."""
        return [slot for group in self.groups.values() for slot in group.slots]

    def closed_error(self) -> AnynpuError:
        """A new error that states why the session takes no requests."""
        assert self.closed is not None
        return type(self.closed)(self.closed.message, hint=self.closed.hint)

    # -- requests come

    def begin(self, request: Request, core: int | None) -> Slot | None:
        """A synchronous request. With a slot its caller runs it; without one it waits."""
        if core is None and self.closed is None:
            turns = self._turns
            group = turns[self._turn % len(turns)] if turns else self._main
            request.group = group
            self._turn += 1
        else:
            group = self._chosen(request, core)
        request.number = self._numbers
        self._numbers += 1
        if group.free:
            slot = group.free[-1]
            slot.request = request
            request.slot = slot
            request.runner = CALLER
            request.state = RUNNING
            self.running += 1
            del group.free[-1]
            return slot
        if len(group.slots) < group.limit:
            slot = group.add()
            self._hold(slot, request, CALLER)
            return slot
        if self._has_room(group):
            self._queue(group, request)
        else:
            request.state = BLOCKED
            group.blocked.append(request)
        return None

    def submit(self, request: Request, core: int | None, overflow: str, thread: int) -> bool:
        """A request that another thread will run; False if there is no space and *overflow* is ``fail``. The caller starts the
        request if it has a slot now.

        :param thread: who submits it: a callback does not wait for callbacks
        """
        group = self._chosen(request, core)
        request.urgent = request.callback is None or thread == self.deliverer
        late = not request.urgent and self.undelivered >= self.max_undelivered
        slot = None if late else group.take()
        if slot is not None:
            self._hold(slot, request, NOBODY)
        elif not late and self._has_room(group):
            self._queue(group, request)
        elif overflow == "fail":
            return False
        elif overflow == "drop_oldest" and not late and (oldest := self._oldest(group, request)) is not None:
            self._queue(group, request)
            oldest.error = JobCancelled("the request was dropped for a newer one", hint="the queue was full; see overflow")
            self._done(oldest)
            group.queue.remove(oldest)
        else:
            request.state = BLOCKED
            group.blocked.append(request)
        request.number = self._numbers
        self._numbers += 1
        if core is None:
            self._turn += 1
        if request.callback is not None:
            if request.state != BLOCKED:
                self.undelivered += 1
            if self._sequential:
                self.order.append(request)
        return True

    def _chosen(self, request: Request, core: int | None) -> Group:
        """The group of a new request."""
        if self.closed is not None:
            raise self.closed_error()
        if core is not None:
            if not isinstance(core, int) or not 0 <= core < self._cores:
                raise OptionError(
                    f"core {core!r} does not exist: this NPU has {self._cores}", hint=f"use a core from 0 to {self._cores - 1}"
                )
            group = self._group(1 << core, self._per_core)
        elif self._turns:
            group = self._turns[self._turn % len(self._turns)]
        else:
            group = self._main
        request.group = group
        return group

    def _group(self, mask: int, limit: int) -> Group:
        group = self.groups.get(mask)
        if group is None:
            group = self.groups[mask] = Group(mask, limit)
        return group

    def _has_room(self, group: Group) -> bool:
        """Whether a new request may go into the queue: not past those that wait for space."""
        if len(group.queue) >= self.max_queue_size:
            return False
        return not group.blocked or not any(one.urgent or self.undelivered < self.max_undelivered for one in group.blocked)

    def _oldest(self, group: Group, request: Request) -> Request | None:
        """Who makes space for *request*: the oldest that is no more urgent and that no thread waits for."""
        return next((old for old in group.queue if old.waiter is None and old.priority >= request.priority), None)

    def _queue(self, group: Group, request: Request) -> None:
        request.state = QUEUED
        group.put(request)

    def _hold(self, slot: Slot, request: Request, runner: int) -> None:
        slot.request = request
        request.slot = slot
        request.runner = runner
        request.state = RUNNING
        self.running += 1

    # -- requests run

    def claim(self, request: Request, runner: int) -> Slot | None:
        """A thread wants to run *request*; None if it has no device worker, or another thread runs it."""
        if request.state != RUNNING or request.runner != NOBODY:
            return None
        request.runner = runner
        return request.slot

    def ended(self, slot: Slot, request: Request, go_on: bool) -> Request | None:
        """A run is over.

        :param go_on: the thread will run the next request for the same device worker, which is returned; else that one is started
        """
        following = None
        if slot.lost:
            slot.request = None
            self.todo.append((CLOSE_LANE, slot))
            if self._ending and not self.running:
                self._close_backend()
            return None
        request.state = DONE
        request.slot = None
        if request.callback is not None:
            if not self._sequential:
                self.order.append(request)
            self._want_delivery()
        elif request.hooked:
            self.hooked.append(request)
            self._want_delivery()
        group = slot.group
        if group.queue:
            following = group.queue[0]
            slot.request = following
            following.slot = slot
            following.state = RUNNING
            del group.queue[0]
            if go_on:
                following.runner = WORKER
            else:
                self.todo.append((START, following))
                following = None
        else:
            slot.request = None
            self.running -= 1
            if self._ending:
                self._close_lane(slot)
            else:
                group.free.append(slot)
            if self._idle_waiters:
                self._tell_idle()
        if group.blocked:
            self._admit(group)
        return following

    def lane_refused(self, slot: Slot, request: Request) -> bool:
        """The device worker of a slot cannot be opened: the request waits for another; False if there is none."""
        group = slot.group
        if len(group.slots) <= 1 or slot.lost or self.closed is not None:
            return False
        request.slot = None
        request.runner = NOBODY
        request.started = 0
        request.state = QUEUED
        group.queue.appendleft(request)
        slot.request = None
        group.slots.remove(slot)
        group.limit = len(group.slots)
        self.running -= 1
        self._refill(group)
        return True

    def give_up(self, slot: Slot, error: AnynpuError) -> None:
        """The thread of a slot does not come back from the device: its request fails, and a new device worker takes the place."""
        request = slot.request
        assert request is not None
        slot.lost = True
        slot.group.slots.remove(slot)
        self.running -= 1
        request.error = error
        request.slot = None
        self._done(request)
        self._refill(slot.group)
        self._tell_idle()

    def _admit(self, group: Group) -> None:
        """Let requests that wait for space into the queue, or start them."""
        if self.closed is not None or len(group.queue) > self.max_queue_size // 2:
            return  # a submitter that is woken for one place blocks again at once: wait until there are several
        for request in tuple(group.blocked):
            if not request.urgent and self.undelivered >= self.max_undelivered:
                continue
            slot = None if group.queue else group.take()
            if slot is not None:
                self._hold(slot, request, NOBODY)
                self.todo.append((START, request))
            elif len(group.queue) < self.max_queue_size:
                self._queue(group, request)
            else:
                return
            group.blocked.remove(request)
            if request.callback is not None:
                self.undelivered += 1
            if request.admitted is not None:
                self.todo.append((ADMIT, request))

    def _refill(self, group: Group) -> None:
        """Give free device workers to what waits."""
        while group.queue and (slot := group.take()) is not None:
            request = group.queue[0]
            self._hold(slot, request, NOBODY)
            del group.queue[0]
            self.todo.append((START, request))
        if group.blocked:
            self._admit(group)

    # -- requests end without a run

    def deny(self, request: Request, error: AnynpuError) -> bool:
        """End a request that waits; False if it does not wait."""
        if request.state not in (BLOCKED, QUEUED):
            return False
        group = request.group
        assert group is not None
        queued = request.state == QUEUED
        request.error = error
        self._done(request)
        if queued:
            group.queue.remove(request)
        else:
            group.blocked.remove(request)
            if request.callback is not None:
                self.undelivered += 1  # as if it had been let in: its callback takes it off again
            if request.admitted is not None:
                self.todo.append((ADMIT, request))
        if group.blocked:
            self._admit(group)
        return True

    def withdraw(self, request: Request, error: AnynpuError | None = None) -> bool:
        """Take out a request that waits for space and whose submitter will raise, as if it had never come; False if it got in.

        :param error: why, if the submitter does not know; it is notified
        """
        if request.state != BLOCKED:
            return False
        group = request.group
        assert group is not None
        request.number = -1
        request.error = error
        request.state = DONE
        if error is not None:
            self.todo.append((ADMIT, request))
        group.blocked.remove(request)
        if request.callback is not None and self._sequential:
            self.order.remove(request)
        self._want_delivery()
        if group.blocked:
            self._admit(group)
        return True

    def _done(self, request: Request) -> None:
        """A request ends without the thread that ran it."""
        request.state = DONE
        if request.callback is None:
            if not request.hooked:
                self.todo.append((COMPLETE, request))
                return
            self.hooked.append(request)
        elif not self._sequential:
            self.order.append(request)
        self._want_delivery()

    # -- user code

    def hook(self, request: Request) -> bool:
        """User code is attached to a future; False if the request is being completed without regard to it."""
        if request.state != DONE:
            request.hooked = True
        return request.hooked

    def next_delivery(self, thread: int, delivered: Request | None) -> Request | None:
        """The next request with user code to run, for the thread that does so; None when nothing is left, or if another thread does it.

        :param delivered: the one before, whose user code has run
        """
        if delivered is None and self.deliverer:
            return None
        self.deliverer = thread
        if delivered is not None and delivered.callback is not None:
            self.undelivered -= 1
            for group in self.groups.values():
                if group.blocked:
                    self._admit(group)
        self._at_hand = None
        if self.hooked:
            self._at_hand = self.hooked.popleft()
        else:
            while self._at_hand is None and self.order and self.order[0].state == DONE:
                request = self.order.popleft()
                self._at_hand = request if request.number >= 0 else None  # withdrawn, and interrupted
        if self._at_hand is not None:
            return self._at_hand
        self.delivering = False
        self.deliverer = 0
        self._tell_idle()
        return None

    def _want_delivery(self) -> None:
        if not self.delivering and (self.hooked or (self.order and self.order[0].state == DONE)):
            self.delivering = True
            self.todo.append((DELIVER, None))

    # -- the end

    def wait_idle(self, waiter: object, thread: int) -> None:
        """Notify *waiter* when every request is completed. User code that *thread* itself is running does not count."""
        self._idle_waiters.append((waiter, thread))
        self._tell_idle()

    def forget_waiter(self, waiter: object) -> None:
        """Undo :meth:`wait_idle`."""
        self._idle_waiters = [entry for entry in self._idle_waiters if entry[0] is not waiter]

    def _tell_idle(self) -> None:
        if not self._idle_waiters or self.running or any(group.queue or group.blocked for group in self.groups.values()):
            return
        for waiter, thread in self._idle_waiters:
            if not self.delivering or self.deliverer == thread:
                self.todo.append((IDLE, waiter))

    def close(self, error: AnynpuError) -> None:
        """Take no more requests, and end those that wait."""
        if self.closed is None:
            self.closed = error
        for group in self.groups.values():
            for request in (*group.queue, *group.blocked):
                if request.admitted is None or not self.withdraw(request, self.closed_error()):
                    self.deny(request, self.closed_error())

    def end(self) -> None:
        """Close the device workers: those that are free now, the others when their thread leaves them; the backend after the last."""
        self._ending = True
        for group in self.groups.values():
            while group.free:
                self._close_lane(group.free[-1])
                del group.free[-1]
        if not self.running:
            self._close_backend()

    def _close_lane(self, slot: Slot) -> None:
        self.todo.append((CLOSE_LANE, slot))
        if not self.running:
            self._close_backend()

    def _close_backend(self) -> None:
        if not self._backend_closed:
            self._backend_closed = True
            self.todo.append((CLOSE_BACKEND, None))

    def leave(self, error: AnynpuError) -> None:
        """In a forked child: all that is here belongs to the parent's threads."""
        self.closed = error
        self.todo = []
        self.running = self.undelivered = 0
        self.delivering = False
        self.deliverer = 0
        self.order.clear()
        self.hooked.clear()
        self._idle_waiters = []
        self._ending = self._backend_closed = True
        for group in self.groups.values():
            group.queue.clear()
            group.blocked.clear()
            group.free.clear()

    # -- an interrupt

    def repair(self, request: Request | None, make_error: Callable[[], AnynpuError]) -> None:
        """An interrupt (Ctrl-C) came in the middle of an event, or before its actions were done: make the state whole again, and put what
        has to be done on the list, some of it perhaps for the second time.

        :param request: that of the call that was interrupted, if it had one. A synchronous one ends, unless a worker runs it
        :param make_error: why it ended
        """
        if request is not None:
            self._repair_request(request, make_error)
        self.order = deque(one for one in self.order if one.number >= 0)
        self.running = 0
        for group in self.groups.values():
            self._repair(group)
        counted = [one for group in self.groups.values() for one in group.queue]
        counted += [slot.request for slot in self.slots() if slot.request is not None]
        counted += [one for one in self.order if one.state == DONE]
        counted += [] if self._at_hand is None else [self._at_hand]
        self.undelivered = sum(one.callback is not None for one in counted)
        if not self.deliverer:
            self.delivering = False
        self._want_delivery()
        self._tell_idle()
        if self._ending and not self.running:
            self._close_backend()

    def _repair_request(self, request: Request, make_error: Callable[[], AnynpuError]) -> None:
        if request.synchronous:
            if request.state in (BLOCKED, QUEUED) or (request.state == RUNNING and request.runner != WORKER):
                request.state = DONE
                request.error = make_error()
        elif request.number < 0:
            if request.state in (BLOCKED, QUEUED):
                request.state = DONE
        elif request.state == DONE:
            if request.callback is None and not request.hooked:
                self.todo.append((COMPLETE, request))
        elif request.callback is not None and self._sequential and request not in self.order:
            self.order.append(request)

    def _repair(self, group: Group) -> None:
        waiting = [one for one in group.blocked if one.state == QUEUED and one not in group.queue]
        group.blocked = deque(one for one in group.blocked if one.state == BLOCKED)
        group.queue = deque(one for one in group.queue if one.state == QUEUED)
        for one in waiting:
            group.put(one)
        group.free = []
        for slot in group.slots:
            held = slot.request
            if held is not None and (held.state != RUNNING or held.slot is not slot):
                held = slot.request = None
            if held is None:
                if self._ending:
                    self.todo.append((CLOSE_LANE, slot))
                else:
                    group.free.append(slot)
                continue
            self.running += 1
            if held.runner == NOBODY:
                self.todo.append((START, held))
            if held.admitted is not None:
                self.todo.append((ADMIT, held))
        for one in group.queue:
            if one.admitted is not None:
                self.todo.append((ADMIT, one))
        if self.closed is None:
            self._refill(group)
