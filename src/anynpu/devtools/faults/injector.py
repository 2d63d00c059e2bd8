"""Which faults of a plan happen when.

Each fault counts its own events and has its own sequence of random numbers, from the plan's seed and its place in the plan. So the same
events in the same order meet the same faults, and a fault that is added changes nothing about the others.

State and lock: counts and random numbers belong to the injector and are protected by its lock, which is never held while anything waits.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from .clock import FaultClock, WallTime
from .plan import Fault, Plan

__all__ = ["MAX_NOTES", "Injected", "Injector"]

MAX_NOTES = 1000
"""Faults that an injector remembers, the last ones."""


@dataclass(frozen=True)
class Injected:
    """A fault that happened.

    :ivar event: number of the event at which it did, counted for this fault
    :ivar count: how many times in a row it has happened by now
    """

    fault: Fault
    event: int
    count: int


class _Rule:
    """A fault with its counters."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self.random = random.Random(seed)
        self.seen = 0
        self.happened = 0

    def offer(self) -> Injected | None:
        """One more event: does the fault happen?"""
        fault = self.fault
        self.seen += 1
        if fault.probability:
            happens = self.random.random() < fault.probability
        elif fault.every:
            happens = self.seen % fault.every == 0
        else:
            happens = self.seen >= fault.at and (not fault.times or self.seen < fault.at + fault.times)
        if not happens:
            return None
        self.happened += 1
        return Injected(fault, self.seen, self.happened)


class Injector:
    """Decides about the faults of one plan.

    :param clock: how the time of faults passes; really, if not given

    >>> injector = Injector(Plan((Fault("timeout", at=2),)))
    >>> [bool(injector.offer("job")) for _ in range(3)]
    [False, True, False]
    """

    def __init__(self, plan: Plan, clock: FaultClock | None = None) -> None:
        self.plan = plan
        self.clock: FaultClock = clock or WallTime()
        self._lock = threading.Lock()
        self._rules: dict[str, list[_Rule]] = {}
        for index, fault in enumerate(plan.faults):
            self._rules.setdefault(fault.event, []).append(_Rule(fault, f"{plan.seed}/{index}"))
            if fault.kind == "lost":  # a device that is lost opens no model either; one count for both
                self._rules.setdefault("open", []).append(self._rules["job"][-1])
        self._notes: deque[Injected] = deque(maxlen=MAX_NOTES)
        self._counts: Counter[str] = Counter()
        self._at_end: list[Callable[[], None]] = []
        self._stopped = False

    def stop(self) -> None:
        """No more faults from now on; what was opened stays open."""
        with self._lock:
            self._stopped = True

    def events(self) -> frozenset[str]:
        """The events that some fault waits for."""
        return frozenset(self._rules)

    def offer(self, event: str, cores: tuple[int, ...] | None = None) -> list[Injected]:
        """One more *event*: the faults that happen at it.

        :param cores: those of a job
        """
        happened = []
        with self._lock:
            for rule in () if self._stopped else self._rules.get(event, ()):
                core = rule.fault.core
                if core is not None and cores is not None and core not in cores:
                    continue
                injected = rule.offer()
                if injected is not None:
                    happened.append(injected)
                    self._notes.append(injected)
                    self._counts[rule.fault.kind] += 1
        return happened

    def memory_limit(self, asked: int | None) -> Callable[[], int | None]:
        """Bytes of memory of a device that is opened now, to be asked each time: when faults are over it has what it would have had.

        :param asked: the limit that it would have otherwise
        """
        limits = [int(each.fault.megabytes * 1_000_000) for each in self.offer("device")]
        faulty = min([*limits, *(() if asked is None else (asked,))], default=None)
        return lambda: asked if self._stopped else faulty

    def byte_of(self, fault: Fault, size: int) -> int:
        """Which of *size* bytes a fault concerns, at random."""
        with self._lock:
            (rule,) = [rule for rule in self._rules[fault.event] if rule.fault is fault]
            return rule.random.randrange(size)

    @property
    def injected(self) -> tuple[Injected, ...]:
        """The last faults that happened."""
        with self._lock:
            return tuple(self._notes)

    @property
    def counts(self) -> dict[str, int]:
        """How many faults of each kind have happened."""
        with self._lock:
            return dict(self._counts)

    def at_end(self, action: Callable[[], None]) -> None:
        """Call *action* when the injector is no longer in force."""
        self._at_end.append(action)

    def end(self) -> None:
        """No longer in force: close what was opened under it."""
        actions, self._at_end = self._at_end, []
        for action in actions:
            action()
