"""Lanes in groups: a group is a queue and the lanes that serve it.

There is a group for each core of a schedule, or one for all lanes; a request that asks for a core of its own makes a group for that core
if there is none. Groups and slots have no lock: they belong to the scheduler and change under its lock. ``Slot.lane`` belongs to the
thread that holds the slot.
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
    """The place of one lane: open, or still to be opened by the thread that holds the slot."""

    __slots__ = ("busy_ns", "failures", "group", "index", "jobs", "lane", "lost", "request", "thread")

    def __init__(self, group: Group, index: int, lane: Lane | None = None) -> None:
        self.group = group
        self.index = index
        self.lane = lane
        self.request: Request | None = None  # what it works on
        self.lost = False  # its thread did not come back from the device
        self.thread = 0  # the worker that holds it
        self.failures = 0  # in a row
        self.jobs = 0
        self.busy_ns = 0

    @property
    def label(self) -> str:
        """Its name in statistics and traces."""
        return f"{core_label(self.group.mask)}, lane {self.index}"


class Group:
    """A queue and its lanes."""

    __slots__ = ("blocked", "free", "mask", "most", "queue", "slots")

    def __init__(self, mask: int, most: int) -> None:
        self.mask = mask
        self.most = most  # lanes that it may have
        self.slots: list[Slot] = []
        self.free: list[Slot] = []
        self.queue: deque[Request] = deque()
        self.blocked: deque[Request] = deque()  # wait for room in the queue

    def take(self) -> Slot | None:
        """A slot that nobody holds: free, or new if there may be one more."""
        if self.free:
            return self.free.pop()
        if len(self.slots) < self.most:
            return self.add()
        return None

    def add(self, lane: Lane | None = None) -> Slot:
        """A new slot, which the caller holds."""
        used = {slot.index for slot in self.slots}
        slot = Slot(self, next(index for index in range(len(used) + 1) if index not in used), lane)
        self.slots.append(slot)
        return slot

    def put(self, request: Request) -> None:
        """Into the queue: by priority, smaller first, then in the order of arrival."""
        queue = self.queue
        if not queue or queue[-1].priority <= request.priority:
            queue.append(request)
        else:
            queue.insert(bisect_right([waiting.priority for waiting in queue], request.priority), request)
