"""The cores of an NPU and who may use them when.

A job asks for cores (by mask, or for any idle one) and for *exclusive* things, such as the context it runs in and the internal memory
it uses. It gets all of them at once or waits, so that no job holds one thing while it waits for another.

* One job at a time per core; a job on several cores has them all to itself.
* Who waits is served by priority (smaller first) and then by arrival. A waiter that needs busy cores reserves those it needs: later
  jobs of the same or lower priority do not overtake it on them, so a job on all cores is served however many small jobs arrive.
* Different priorities are strict: as long as more urgent jobs keep arriving, less urgent ones wait.
* A job that can start at once starts in the thread that asks; no other thread is involved.
* On a board that several processes share, a lease also waits for its cores there (:mod:`anynpu.npu.board`), in the thread of the job.

State and lock: the waiters, the owner of each core and of each exclusive thing and the statistics belong to the scheduler and are
protected by its one lock. The lock is never held while a job runs or a callback is called.
"""

from __future__ import annotations

import bisect
import copy
import enum
import itertools
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import AnynpuError, DeviceClosed, UnsupportedCall
from .control import RunControl

if TYPE_CHECKING:
    from .board import SharedCores
    from .status import StatusFile

__all__ = ["CoreMask", "CoreScheduler", "CoreStatistics", "Lease", "host_threads"]


class CoreMask(enum.IntFlag):
    """A set of cores as bits. ``AUTO`` is any one idle core, ``ALL`` is every core that the chip has.

    >>> CoreMask.of(0, 2) == CoreMask.CORE_0 | CoreMask.CORE_2
    True
    """

    AUTO = 0
    CORE_0 = 1
    CORE_1 = 2
    CORE_2 = 4
    CORE_3 = 8
    ALL = 0xFFFF

    @classmethod
    def of(cls, *cores: int) -> CoreMask:
        """The mask of some cores by number."""
        mask = cls.AUTO
        for core in cores:
            mask |= cls(1 << core)
        return mask


@dataclass(frozen=True)
class CoreStatistics:
    """What a core has done: jobs finished, and the host time they took on it."""

    jobs: int = 0
    busy_ns: int = 0


class _Claim:
    """A request: what it needs, and what became of it. All fields but the event are protected by the scheduler's lock."""

    def __init__(
        self,
        order: tuple[int, int],
        cores: frozenset[int] | None,
        exclusive: frozenset[Hashable],
        control: RunControl,
    ) -> None:
        self.order = order
        self.cores = cores  # None: any one
        self.exclusive = exclusive
        self.control = control
        self.on_settled: Callable[[], None] | None = None
        self.event: threading.Event | None = None
        self.granted: tuple[int, ...] | None = None
        self.error: AnynpuError | None = None
        self.started_ns = 0
        self.thread = 0

    @property
    def settled(self) -> bool:
        return self.granted is not None or self.error is not None


class Lease:
    """Cores and exclusive things in hand. A context manager; releasing it twice does nothing."""

    def __init__(self, scheduler: CoreScheduler, claim: _Claim, cores: tuple[int, ...]) -> None:
        self._scheduler = scheduler
        self._claim = claim
        self._held: AbstractContextManager[None] | None = None  # the cores on a shared board
        self.cores = cores
        """The cores that the job runs on."""

    @property
    def control(self) -> RunControl:
        return self._claim.control

    def take(self) -> None:
        """Wait until the cores are also free on a board that other processes use; on failure everything is given back."""
        shared = self._scheduler._shared
        if shared is None or self._held is not None or not self.cores:
            return
        held = shared.held(self.cores, self.control)
        try:
            held.__enter__()
        except BaseException:
            self.release()
            raise
        self._held = held

    def release(self) -> None:
        """Give everything back and let the next in the queue go."""
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(None, None, None)
        self._scheduler._release(self._claim)

    def __enter__(self) -> Lease:
        self._claim.thread = threading.get_ident()
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class CoreScheduler:
    """Hands out the cores of one NPU.

    :param shared: the cores of a board that other processes use as well
    :param status: opens, with the first job, the file that tells others what the cores do

    >>> scheduler = CoreScheduler(3)
    >>> with scheduler.acquire(CoreMask.of(0, 1)) as lease:
    ...     lease.cores
    (0, 1)
    """

    def __init__(
        self, cores: int, shared: SharedCores | None = None, status: Callable[[], StatusFile | None] | None = None
    ) -> None:
        self._count = cores
        self._open_status = status
        self._status: StatusFile | None = None
        self._shared = shared
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)  # told whenever a holder or a waiter leaves
        self._tickets = itertools.count()
        self._waiters: list[_Claim] = []  # in the order in which they are served
        self._holders: set[_Claim] = set()
        self._idle = set(range(cores))
        self._taken: set[Hashable] = set()
        self._jobs = [0] * cores
        self._busy_ns = [0] * cores
        self._closed: AnynpuError | None = None

    @property
    def cores(self) -> int:
        """How many there are."""
        return self._count

    @property
    def statistics(self) -> tuple[CoreStatistics, ...]:
        """What each core has done so far."""
        with self._lock:
            return tuple(CoreStatistics(jobs, busy) for jobs, busy in zip(self._jobs, self._busy_ns, strict=True))

    @property
    def busy(self) -> int:
        """How many cores are in use."""
        return self._count - len(self._idle)

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        with self._lock:
            return len(self._waiters)

    def resolve(self, mask: CoreMask | int | Iterable[int] | None) -> frozenset[int] | None:
        """The cores that a mask (bits, or core numbers) names; None for any one."""
        if mask is None:
            return None
        if isinstance(mask, int):
            cores = frozenset(range(self._count)) if mask == CoreMask.ALL else _cores_of(mask)
        else:
            cores = frozenset(mask)
        absent = sorted(core for core in cores if not 0 <= core < self._count)
        if absent:
            raise UnsupportedCall(
                f"core {absent[0]} does not exist: this NPU has {self._count} (from 0 to {self._count - 1})",
                hint="use CoreMask.AUTO, which takes any idle core",
            )
        return cores or None

    def acquire(
        self,
        mask: CoreMask | int | Iterable[int] | None = CoreMask.AUTO,
        *,
        priority: int = 0,
        control: RunControl | None = None,
        exclusive: Iterable[Hashable] = (),
        no_cores: bool = False,
    ) -> Lease:
        """Wait for cores and exclusive things; the calling thread has them when this returns.

        :param priority: smaller is served first
        :param control: deadline and cancellation (raises :class:`DeviceTimeout`, :class:`JobCancelled`)
        :param exclusive: keys of things that one job at a time may use
        :param no_cores: ask for the exclusive things alone
        """
        control = control or RunControl()
        control.check()
        claim = self._claim(frozenset() if no_cores else self.resolve(mask), priority, control, exclusive)
        claim.thread = threading.get_ident()
        with self._lock:
            settled = self._enter(claim)
            if not claim.settled:
                claim.event = threading.Event()
        try:
            if claim.granted is not None and len(settled) == 1:  # at once, and nobody else has to be told
                return Lease(self, claim, claim.granted)
            _tell(settled)
            if claim.event is not None:
                with control.watching(claim.event.set):
                    claim.event.wait(control.remaining)
            lease = self._collect(claim)
            lease.take()
            return lease
        except BaseException:  # also an interrupt from the keyboard: nothing may stay behind in the queue
            self._abandon(claim)
            raise

    def enqueue(
        self,
        on_granted: Callable[[Lease], None],
        on_denied: Callable[[AnynpuError], None],
        mask: CoreMask | int | Iterable[int] | None = CoreMask.AUTO,
        *,
        priority: int = 0,
        control: RunControl,
        exclusive: Iterable[Hashable] = (),
    ) -> None:
        """Queue without waiting. One of the two functions is called when the turn has come or is denied: at once by the calling thread,
        or later by whichever thread frees the cores or closes the device. Whoever gets the lease must release it."""
        claim = self._claim(self.resolve(mask), priority, control, exclusive)

        def settled_now() -> None:
            if claim.error is not None:
                on_denied(copy.copy(claim.error))
            else:
                on_granted(Lease(self, claim, claim.granted or ()))

        claim.on_settled = settled_now
        with self._lock:
            settled = self._enter(claim)
        _tell(settled)

    def drop(self, control: RunControl, error: AnynpuError) -> None:
        """Deny the job of *control* with *error* if it still waits."""
        with self._lock:
            settled = self._deny([claim for claim in self._waiters if claim.control is control], error)
        _tell(settled)

    def retire(self, key: Hashable, error: AnynpuError) -> None:
        """End all use of an exclusive thing: who waits for it is denied with *error*, who has it is cancelled with *error*.

        Returns when nobody has it any more (the calling thread itself does not count).
        """
        with self._lock:
            settled = self._deny([claim for claim in self._waiters if key in claim.exclusive], error)
            holders = [claim for claim in self._holders if key in claim.exclusive]
        _tell(settled)
        for claim in holders:
            claim.control.cancel(error)
        self._wait_until_left(lambda claim: key in claim.exclusive)

    def close(self, error: AnynpuError | None = None) -> None:
        """Deny all waiters, cancel all jobs that run, and return when they have left (the calling thread itself does not count)."""
        error = error or DeviceClosed("the device was closed", hint="open a new one")
        with self._lock:
            self._closed = self._closed or error
            settled = self._deny(list(self._waiters), error)
            holders = list(self._holders)
        _tell(settled)
        for claim in holders:
            claim.control.cancel(error)
        self._wait_until_left(lambda claim: True)
        with self._lock:
            if self._status is not None:
                self._status.close()
            self._status = self._open_status = None

    def drain(self) -> None:
        """Wait until nobody waits and nobody has anything (the calling thread itself does not count)."""
        own = threading.get_ident()
        with self._left:
            self._left.wait_for(lambda: not self._waiters and all(claim.thread == own for claim in self._holders))

    def _claim(self, cores: frozenset[int] | None, priority: int, control: RunControl, exclusive: Iterable[Hashable]) -> _Claim:
        return _Claim((priority, next(self._tickets)), cores, frozenset(exclusive), control)

    # The methods from here to `_release` expect the lock to be held, unless they take it themselves.

    def _enter(self, claim: _Claim) -> list[_Claim]:
        if self._closed is not None:
            claim.error = self._closed
            return [claim]
        if not self._waiters and not claim.exclusive & self._taken:  # what `_dispatch` does for a single claim
            cores = self._least_busy(self._idle) if claim.cores is None else claim.cores
            if cores is not None and cores <= self._idle:
                self._grant(claim, cores)
                return [claim]
        bisect.insort(self._waiters, claim, key=lambda waiter: waiter.order)
        return self._dispatch()

    def _least_busy(self, idle: set[int]) -> frozenset[int] | None:
        """The one of the idle cores that has worked least (on a shared board: that is free there, if one is); None if there is none."""
        if not idle:
            return None
        shared = self._shared
        if shared is None:
            return frozenset({min(idle, key=self._use_of)})
        order = sorted(idle, key=self._use_of)
        return frozenset({next((core for core in order if shared.is_free(core)), order[0])})

    def _use_of(self, core: int) -> tuple[int, int, int]:
        return self._busy_ns[core], self._jobs[core], core

    def _grant(self, claim: _Claim, cores: frozenset[int]) -> None:
        claim.granted = tuple(sorted(cores))
        claim.started_ns = time.perf_counter_ns()
        self._idle -= cores
        self._taken |= claim.exclusive
        self._holders.add(claim)
        if cores:
            if self._open_status is not None:
                self._status, self._open_status = self._open_status(), None
            if self._status is not None:
                self._status.started(claim.granted, claim.started_ns, len(self._waiters))

    def _dispatch(self) -> list[_Claim]:
        """Grant what can be granted, in order; gives the claims that got something."""
        if not self._waiters:
            return []
        granted: list[_Claim] = []
        idle = set(self._idle)  # less what an earlier waiter reserves
        taken = set(self._taken)
        for claim in self._waiters:
            cores = claim.cores
            if claim.exclusive & taken:
                taken |= claim.exclusive  # keeps the order among those that share something; reserves no core
                continue
            if cores is None:
                cores = self._least_busy(idle)
            taken |= claim.exclusive
            if cores is None:
                continue
            if cores <= idle:
                self._grant(claim, cores)
                granted.append(claim)
            idle -= cores
        if granted:
            self._waiters = [claim for claim in self._waiters if claim.granted is None]
        return granted

    def _deny(self, claims: list[_Claim], error: AnynpuError) -> list[_Claim]:
        for claim in claims:
            claim.error = error
        self._waiters = [claim for claim in self._waiters if claim.error is None]
        self._left.notify_all()
        return claims + self._dispatch()

    def _collect(self, claim: _Claim) -> Lease:
        """The lease of a claim whose wait is over, for whatever reason."""
        with self._lock:
            if claim.settled:
                settled = []
            else:  # out of time or cancelled: no longer in the queue, which may let others go
                settled = self._deny([claim], claim.control.reason("got no core"))
        _tell([other for other in settled if other is not claim])
        if claim.error is not None:
            raise copy.copy(claim.error)
        return Lease(self, claim, claim.granted or ())

    def _abandon(self, claim: _Claim) -> None:
        with self._lock:
            settled = [] if claim.settled else self._deny([claim], claim.control.reason("was given up"))
        _tell([other for other in settled if other is not claim])
        self._release(claim)

    def _release(self, claim: _Claim) -> None:
        with self._lock:
            if claim not in self._holders:
                return
            self._holders.remove(claim)
            elapsed = time.perf_counter_ns() - claim.started_ns
            for core in claim.granted or ():
                self._idle.add(core)
                self._jobs[core] += 1
                self._busy_ns[core] += elapsed
            if self._status is not None and claim.granted:
                self._status.ended(claim.granted, self._busy_ns, self._jobs, len(self._waiters))
            self._taken -= claim.exclusive
            settled = self._dispatch()
            self._left.notify_all()
        _tell(settled)

    def _wait_until_left(self, concerns: Callable[[_Claim], bool]) -> None:
        own = threading.get_ident()
        with self._left:
            self._left.wait_for(lambda: not any(concerns(claim) and claim.thread != own for claim in self._holders))


def host_threads(cores: int) -> int:
    """Host threads for a job on so many cores: as many, but no more than the machine has processors.

    >>> host_threads(1)
    1
    """
    return 1 if cores <= 1 else min(cores, os.cpu_count() or 1)


def _cores_of(bits: int) -> frozenset[int]:
    if bits < 0:
        raise UnsupportedCall(f"{bits} is not a core mask", hint="use CoreMask.of(0, 1), CoreMask.AUTO or CoreMask.ALL")
    return frozenset(core for core in range(bits.bit_length()) if bits >> core & 1)


def _tell(claims: list[_Claim]) -> None:
    """Wake the claims that were granted or denied; without the lock, because callbacks may come back to the scheduler."""
    for claim in claims:
        if claim.event is not None:
            claim.event.set()
        if claim.on_settled is not None:
            callback, claim.on_settled = claim.on_settled, None  # it refers to the claim: no cycle may stay behind
            callback()
