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
    from .board import SharedCores, StatusFile


_NO_CORES: frozenset[int] = frozenset()


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


class Lease:
    """A job's request for cores and exclusive things; once it is granted, the job's hold on them.

    A context manager. Releasing it twice does nothing. The scheduler's lock protects all fields but the event and the hold on a board.
    """

    __slots__ = (
        *("_event", "_held", "_on_settled", "_order", "_scheduler", "_started_ns", "_thread", "_wanted"),
        *("control", "cores", "error", "exclusive", "granted"),
    )

    def __init__(
        self,
        scheduler: CoreScheduler,
        order: tuple[int, int],
        wanted: frozenset[int] | None,
        exclusive: frozenset[Hashable],
        control: RunControl,
    ) -> None:
        self._scheduler = scheduler
        self._order = order
        self._wanted = wanted  # None: any one core
        self._on_settled: Callable[[Lease], None] | None = None
        self._event: threading.Event | None = None
        self._held: AbstractContextManager[None] | None = None  # the cores on a shared board
        self._started_ns = 0
        self._thread = 0
        self.exclusive = exclusive
        self.control = control
        self.granted = False
        self.cores: tuple[int, ...] = ()
        """The cores that the job runs on."""
        self.error: AnynpuError | None = None
        """Why it was denied."""

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
        self._scheduler._release(self)

    def __enter__(self) -> Lease:
        self._thread = threading.get_ident()
        if self._scheduler._shared is not None:
            self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._held is None:
            self._scheduler._release(self)
        else:
            self.release()


class CoreScheduler:
    """Hands out the cores of one NPU.

    :param shared: the cores of a board that other processes use as well
    :param status: opens, with the first job, the file that reports others what the cores do

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
        self._left = threading.Condition(self._lock)  # notified whenever a holder or a waiter leaves, if anybody waits for that
        self._watching = 0  # threads that wait for it
        self._tickets = itertools.count()
        self._masks: dict[int, frozenset[int] | None] = {0: None}  # those that were resolved
        self._waiters: list[Lease] = []  # in the order in which they are served
        self._holders: set[Lease] = set()
        self._idle = set(range(cores))
        self._singles = [frozenset({core}) for core in range(cores)]
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
            if mask in self._masks:
                return self._masks[mask]
            cores = frozenset(range(self._count)) if mask == CoreMask.ALL else _cores_of(mask)
        else:
            cores = frozenset(mask)
        absent = sorted(core for core in cores if not 0 <= core < self._count)
        if absent:
            raise UnsupportedCall(
                f"core {absent[0]} does not exist: this NPU has {self._count} (from 0 to {self._count - 1})",
                hint="use CoreMask.AUTO, which takes any idle core",
            )
        if isinstance(mask, int):
            self._masks[int(mask)] = cores or None
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
        wanted = _NO_CORES if no_cores else None if not mask else self.resolve(mask)
        lease = Lease(self, (priority, next(self._tickets)), wanted, frozenset(exclusive), control)
        lease._thread = threading.get_ident()
        with self._lock:
            settled = self._enter(lease)
            if lease.granted and len(settled) == 1:  # at once, and no other job has to be notified
                return lease
            if not lease.granted and lease.error is None:
                lease._event = threading.Event()
        try:
            _tell(settled)
            if lease._event is not None:
                with control.watching(lease._event.set):
                    lease._event.wait(control.remaining)
            self._collect(lease)
            lease.take()
            return lease
        except BaseException:  # also an interrupt from the keyboard: nothing may stay behind in the queue
            self._abandon(lease)
            raise

    def enqueue(
        self,
        on_settled: Callable[[Lease], None],
        mask: CoreMask | int | Iterable[int] | None = CoreMask.AUTO,
        *,
        priority: int = 0,
        control: RunControl,
        exclusive: Iterable[Hashable] = (),
    ) -> None:
        """Queue without waiting. *on_settled* is called once, with the lease, when it is granted or denied (then ``lease.error`` states
        why): at once by the calling thread, or later by whichever thread frees the cores, cancels the job or closes the device.
        A lease that is granted must be released. Cancelling *control* takes a job that waits out of the queue.
        """
        lease = Lease(self, (priority, next(self._tickets)), self.resolve(mask), frozenset(exclusive), control)

        def give_up() -> None:
            self.drop(control, control.reason("got no core"))

        def told(settled: Lease) -> None:
            control.unwatch(give_up)
            on_settled(settled)

        lease._on_settled = told
        control.watch(give_up)
        with self._lock:
            settled = self._enter(lease)
        _tell(settled)
        if control.cancelled:  # before it was in the queue
            give_up()

    def drop(self, control: RunControl, error: AnynpuError) -> None:
        """Deny the job of *control* with *error* if it still waits."""
        with self._lock:
            settled = self._deny([lease for lease in self._waiters if lease.control is control], error)
        _tell(settled)

    def retire(self, key: Hashable, error: AnynpuError) -> None:
        """End all use of an exclusive thing: who waits for it is denied with *error*, who has it is cancelled with *error*.

        Returns when it is free (the calling thread itself does not count).
        """
        self._end(lambda lease: key in lease.exclusive, error)

    def close(self, error: AnynpuError | None = None) -> None:
        """Deny all waiters, cancel all jobs that run, and return when they have left (the calling thread itself does not count)."""
        error = error or DeviceClosed("the device was closed", hint="open a new one")
        with self._lock:
            self._closed = self._closed or error
        self._end(lambda lease: True, error)
        with self._lock:
            if self._status is not None:
                self._status.close()
            self._status = self._open_status = None

    def drain(self) -> None:
        """Wait until no job waits and no core is in use (the calling thread itself does not count)."""
        own = threading.get_ident()
        self._wait_until(lambda: not self._waiters and all(lease._thread == own for lease in self._holders))

    def _end(self, concerns: Callable[[Lease], bool], error: AnynpuError) -> None:
        """Deny the waiters and cancel the holders that are meant, and return when those have left."""
        with self._lock:
            settled = self._deny([lease for lease in self._waiters if concerns(lease)], error)
            holders = [lease for lease in self._holders if concerns(lease)]
        _tell(settled)
        for lease in holders:
            lease.control.cancel(error)
        own = threading.get_ident()
        self._wait_until(lambda: not any(concerns(lease) and lease._thread != own for lease in self._holders))

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        with self._left:
            self._watching += 1
            try:
                self._left.wait_for(reached)
            finally:
                self._watching -= 1

    def recover(self, thread: int) -> None:
        """An interrupt (Ctrl-C) ended what *thread* did, perhaps in the middle of a change here: give up all that it has or waits for, work
        out again what is idle, and notify all others again."""
        with self._lock:
            given_up = [lease for lease in self._holders if lease._thread == thread]
            self._holders.difference_update(given_up)
            self._waiters = [
                lease for lease in self._waiters if lease._thread != thread and not lease.granted and lease.error is None
            ]
            self._idle = set(range(self._count)).difference(*(lease.cores for lease in self._holders))
            self._taken = set().union(*(lease.exclusive for lease in self._holders))
            self._dispatch()
            told = list(self._holders)
            self._left.notify_all()
        for lease in given_up:
            held, lease._held = lease._held, None
            if held is not None:
                held.__exit__(None, None, None)
        _tell(told)

    # The methods from here to `_release` expect the lock to be held, unless they take it themselves.

    def _enter(self, lease: Lease) -> list[Lease]:
        if self._closed is not None:
            lease.error = self._closed
            return [lease]
        if not self._waiters and not lease.exclusive & self._taken:  # what `_dispatch` does for a single one
            cores = self._least_busy(self._idle) if lease._wanted is None else lease._wanted
            if cores is not None and cores <= self._idle:
                self._grant(lease, cores)
                return [lease]
        bisect.insort(self._waiters, lease, key=lambda waiter: waiter._order)
        return self._dispatch()

    def _least_busy(self, idle: set[int]) -> frozenset[int] | None:
        """The one of the idle cores that has worked least (on a shared board: that is free there, if one is); None if there is none."""
        if not idle:
            return None
        order = sorted([(self._busy_ns[core], self._jobs[core], core) for core in idle])
        shared = self._shared
        if shared is None:
            return self._singles[order[0][2]]
        return self._singles[next((core for _, _, core in order if shared.is_free(core)), order[0][2])]

    def _grant(self, lease: Lease, cores: frozenset[int]) -> None:
        if cores:
            lease.cores = tuple(sorted(cores))
        lease._started_ns = time.perf_counter_ns()
        lease.granted = True
        self._holders.add(lease)  # from here on all else can be worked out again, see `recover`
        self._taken |= lease.exclusive
        if cores:
            self._idle -= cores
            if self._open_status is not None:
                self._status, self._open_status = self._open_status(), None
            if self._status is not None:
                self._status.started(lease.cores, lease._started_ns, len(self._waiters))

    def _dispatch(self) -> list[Lease]:
        """Grant what can be granted, in order; gives the leases that got something."""
        granted: list[Lease] = []
        idle = set(self._idle)  # less what an earlier waiter reserves
        taken = set(self._taken)
        for lease in self._waiters:
            cores = lease._wanted
            if lease.exclusive & taken:
                taken |= lease.exclusive  # keeps the order among those that share something; reserves no core
                continue
            if cores is None:
                cores = self._least_busy(idle)
            taken |= lease.exclusive
            if cores is None:
                continue
            if cores <= idle:
                self._grant(lease, cores)
                granted.append(lease)
            idle -= cores
        if granted:
            self._waiters = [lease for lease in self._waiters if not lease.granted]
        return granted

    def _deny(self, leases: list[Lease], error: AnynpuError) -> list[Lease]:
        for lease in leases:
            lease.error = error
        self._waiters = [lease for lease in self._waiters if lease.error is None]
        self._left.notify_all()
        return leases + self._dispatch()

    def _collect(self, lease: Lease) -> None:
        """The wait is over, for whatever reason: raises unless the lease is granted."""
        self._leave(lease, "got no core")
        if lease.error is not None:
            raise copy.copy(lease.error)

    def _abandon(self, lease: Lease) -> None:
        self._leave(lease, "was given up")
        self._release(lease)

    def _leave(self, lease: Lease, why: str) -> None:
        """Out of the queue, if it is still in it, which may let others go."""
        with self._lock:
            waits = not lease.granted and lease.error is None
            settled = self._deny([lease], lease.control.reason(why)) if waits else []
        _tell([other for other in settled if other is not lease])

    def _release(self, lease: Lease) -> None:
        with self._lock:
            if lease not in self._holders:
                return
            self._holders.remove(lease)
            if lease.cores:
                elapsed = time.perf_counter_ns() - lease._started_ns
                for core in lease.cores:
                    self._idle.add(core)
                    self._jobs[core] += 1
                    self._busy_ns[core] += elapsed
                if self._status is not None:
                    self._status.ended(lease.cores, self._busy_ns, self._jobs, len(self._waiters))
            self._taken -= lease.exclusive
            settled = self._dispatch() if self._waiters else ()
            if self._watching:
                self._left.notify_all()
        if settled:
            _tell(settled)


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


def _tell(leases: Iterable[Lease]) -> None:
    """Wake those that were granted or denied; without the lock, because callbacks may come back to the scheduler."""
    for lease in leases:
        if lease._event is not None:
            lease._event.set()
        if lease._on_settled is not None:
            callback, lease._on_settled = lease._on_settled, None
            callback(lease)
