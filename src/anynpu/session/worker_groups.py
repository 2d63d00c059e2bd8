"""Lanes in groups: a group is a queue and the lanes that serve it.

There is a group for each core of a schedule, or one for all lanes; a request that asks for a core of its own makes a group for that core
if there is none. Groups and slots belong to the state machine and change under the runner's lock. ``Slot.lane`` belongs to the thread
that runs the slot's request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from .request import Request

if TYPE_CHECKING:
    from .backend import Lane

__all__ = ["Group", "Slot", "core_label"]


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
    """The place of one lane: open, or still to be opened by the thread that runs the first request."""

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
        return f"{core_label(self.group.mask)}, lane {self.index}"


class Group:
    """A queue and its lanes."""

    __slots__ = ("blocked", "free", "limit", "mask", "queue", "slots")

    def __init__(self, mask: int, limit: int) -> None:
        self.mask = mask
        self.limit = limit  # lanes that it may have
        self.slots: list[Slot] = []
        self.free: list[Slot] = []
        self.queue: deque[Request] = deque()
        self.blocked: deque[Request] = deque()  # wait for room in the queue

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
