"""Fault injection: what a board does on a bad day, at a chosen job or call, the same each time.

A *plan* lists faults as data, read from TOML, JSON or a dictionary. An :class:`Injector` decides, event by event, which of them happen. The
software NPU asks it where one is in force (``with faults.inject(plan):``, or the environment variable ``ANYNPU_FAULTS``), and nothing is
asked otherwise.

>>> plan = Plan.of({"fault": [{"kind": "code", "call": "rknn_run", "code": "RKNN_ERR_TIMEOUT", "at": 3}]})
>>> plan.faults[0].at
3
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from ..._util.options import read_table
from ..._util.types import Array
from ...errors import DeviceTimeout, DeviceUnavailable, OptionError

__all__ = [
    "KINDS",
    "VARIABLE",
    "Fault",
    "FaultClock",
    "Injector",
    "Plan",
    "SimulatedTime",
    "WallTime",
    "active",
    "inject",
    "read_plan",
]


# Faults as data.
#
# A plan has a seed and a list of faults. Each fault has a kind, when it happens, and what the kind needs:
#
# * ``at`` and ``times``: from the event with this number (from 1) on, that many times in a row; 0 for always. This is the default, once at
#   the first event;
# * ``every``: at each event whose number is a multiple of it;
# * ``probability``: at random, by the plan's seed.
#
# What an event is depends on the kind: a call, a job, a model that is opened, or a task of a command stream. With ``core`` only jobs on
# that core count.


_WHEN = ("kind", "at", "times", "every", "probability")

KINDS: dict[str, tuple[str, ...]] = {
    "code": ("call", "code"),
    "hang": ("core", "seconds"),
    "timeout": ("core",),
    "slow": ("core", "factor"),
    "throttle": ("core", "factor", "ramp"),
    "contention": ("core", "factor"),
    "busy": ("core", "seconds"),
    "flip": ("core", "bit"),
    "stream": ("bit",),
    "lost": (),
    "version": (),
    "model": ("keep",),
    "memory": ("megabytes",),
}
"""The kinds of faults, with the fields that each takes besides those that state when it happens."""

_CALLS = ("code",)
_OPENINGS = ("version", "model")
_DEVICES = ("memory",)


@dataclass(frozen=True)
class Fault:
    """One entry of a plan.

    :ivar kind: a name of :data:`KINDS`
    :ivar call: the call that answers with *code*, such as ``rknn_run``
    :ivar code: as a number, or by the vendor's name
    :ivar core: only jobs on this core
    :ivar at: number of the first event at which it happens, from 1
    :ivar times: at how many events in a row; 0 for all that follow
    :ivar every: at each event whose number is a multiple of it, instead of *at* and *times*
    :ivar probability: at random, instead of *at* and *times*
    :ivar factor: how many times as long a job takes
    :ivar ramp: jobs over which the factor of ``throttle`` is reached
    :ivar seconds: until the driver gives a hanging job up; how long others have the cores
    :ivar bit: of the output byte that is wrong
    :ivar keep: the part of a model file that is there
    :ivar megabytes: of device memory that there are
    """

    kind: str
    call: str = ""
    code: int | str = -1
    core: int | None = None
    at: int = 1
    times: int = 1
    every: int = 0
    probability: float = 0.0
    factor: float = 10.0
    ramp: int = 1
    seconds: float = 6.0
    bit: int = 6
    keep: float = 0.5
    megabytes: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"there is no fault '{self.kind}'", hint=f"use one of {', '.join(KINDS)}")
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
                raise OptionError(f"{name} of the fault '{self.kind}' is {value!r}", hint=f"use {low:g} to {high:g}")
        if self.kind in _CALLS and not self.call:
            raise OptionError("the fault 'code' needs the call that fails", hint='such as call = "rknn_run"')
        for name, number, low in (("code", self.code, -_MAX_CODE - 1), ("core", self.core, 0)):
            if isinstance(number, int) and not low <= number <= _MAX_CODE:
                raise OptionError(f"{name} of the fault '{self.kind}' is {number}", hint=f"use {low} to {_MAX_CODE}")
        if self.every and self.probability:
            raise OptionError(f"the fault '{self.kind}' has every and probability", hint="give one of them")

    @property
    def event(self) -> str:
        """What is counted for it: ``job``, ``stream``, ``open``, ``device``, or the name of a call."""
        if self.kind in _CALLS:
            return self.call
        if self.kind == "stream":
            return "stream"
        return "open" if self.kind in _OPENINGS else "device" if self.kind in _DEVICES else "job"

    def __str__(self) -> str:
        own = ", ".join(f"{name} {getattr(self, name)}" for name in KINDS[self.kind] if getattr(self, name) is not None)
        return f"{self.kind} ({own})" if own else self.kind


_MANY = 1e9
_MAX_CODE = 2**31 - 1
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("at", 1, _MANY),
    ("times", 0, _MANY),
    ("every", 0, _MANY),
    ("probability", 0, 1),
    ("factor", 1, 1e6),
    ("ramp", 1, _MANY),
    ("seconds", 0, 86_400),
    ("bit", 0, 7),
    ("keep", 0, 1),
    ("megabytes", 0, 1e6),
)


@dataclass(frozen=True)
class Plan:
    """Faults that happen, and the seed of those that happen at random."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    @staticmethod
    def of(entries: Mapping[str, Any]) -> Plan:
        """A plan as a file holds it: ``seed``, and ``fault`` as a list of tables."""
        unknown = sorted(set(entries) - {"seed", "fault"})
        if unknown:
            raise OptionError(f"a fault plan has no '{unknown[0]}'", hint="it has seed, and fault as a list of tables")
        tables, seed = entries.get("fault", []), entries.get("seed", 0)
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not isinstance(seed, int):
            raise OptionError("a fault plan is a list of tables", hint="begin each with [[fault]]")
        return Plan(tuple(_fault(table) for table in tables), seed)


def _fault(table: Mapping[str, Any]) -> Fault:
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise OptionError(f"there is no fault '{kind}'", hint=f"use one of {', '.join(KINDS)}")
    known = (*_WHEN, *KINDS[kind])
    for name, value in table.items():
        if name not in known:
            raise OptionError(f"the fault '{kind}' has no '{name}'", hint=f"it has {', '.join(known)}")
        wanted = _TYPES[name]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise OptionError(f"{name} of the fault '{kind}' is {value!r}", hint="see docs/failures.md")
    return Fault(**table)


_TYPES: dict[str, tuple[type, ...]] = {
    field.name: {
        "str": (str,),
        "int": (int,),
        "int | str": (int, str),
        "int | None": (int,),
        "float": (int, float),
    }[str(field.type)]
    for field in fields(Fault)
}


def read_plan(path: str | Path) -> Plan:
    """A plan from a file: TOML, or JSON where the name ends in ``.json``."""
    return Plan.of(read_table(path, "fault plan", hint="see docs/failures.md"))


# How long faults take: in the time of the wall, or in simulated time for tests.
#
# A wait ends early when its job is cancelled or out of time. What stops a job is asked through the few names of :class:`Stoppable`, which
# :class:`anynpu.npu.RunControl` has.


class Stoppable(Protocol):
    """A job that can be cancelled or be out of time."""

    @property
    def remaining(self) -> float | None: ...
    def check(self) -> None: ...
    def watching(self, watcher: Callable[[], None]) -> AbstractContextManager[None]: ...


class FaultClock(Protocol):
    """What waits."""

    def now(self) -> float:
        """Seconds, from anywhere."""

    def wait(self, seconds: float, job: Stoppable) -> None:
        """Let time pass for *job*; raises if it is cancelled or out of time meanwhile."""


class WallTime:
    """Waits as long as it states."""

    def now(self) -> float:
        """Seconds of the system's clock that never goes back."""
        return time.monotonic()

    def wait(self, seconds: float, job: Stoppable) -> None:
        """Sleep, unless *job* ends."""
        limit = job.remaining
        woken = threading.Event()
        with job.watching(woken.set):
            woken.wait(seconds if limit is None else min(seconds, limit))
        job.check()


class SimulatedTime:
    """Simulated time: it advances when a caller waits, and takes no real time.

    Its lock protects the time that has passed; jobs of several threads wait one after the other.

    >>> clock = SimulatedTime()
    >>> clock.now()
    0.0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0.0

    def now(self) -> float:
        """Seconds that were waited for."""
        with self._lock:
            return self._now

    def wait(self, seconds: float, job: Stoppable) -> None:
        """Add *seconds*; a job that has less time left is out of time."""
        job.check()
        limit = job.remaining
        with self._lock:
            self._now += seconds if limit is None else min(seconds, limit)
        if limit is not None and limit < seconds:
            raise DeviceTimeout("the job did not finish in time", hint="pass a longer timeout")


# Which faults of a plan happen when.
#
# Each fault counts its own events and has its own sequence of random numbers, from the plan's seed and its place in the plan. So the same
# events in the same order meet the same faults, and a fault that is added changes nothing about the others.
#
# State and lock: counts and random numbers belong to the injector and are protected by its lock, which is never held while anything waits.


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


# Which injector is in force.
#
# State: one injector for the process, which a ``with`` block sets, or the environment names. Devices and libraries ask once, when they are
# opened, and keep what they found. Who ends: the block, which also closes the libraries that were opened in it.


VARIABLE = "ANYNPU_FAULTS"
"""The environment variable that names the file of a plan."""

_lock = threading.Lock()
_current: Injector | None = None
_named: dict[str, Injector] = {}
_hooked = False


def active() -> Injector | None:
    """The injector in force; None where no faults are asked for."""
    if _current is not None:
        return _current
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    with _lock:
        if path not in _named:
            _named[path] = Injector(read_plan(path))
            _hook()
        return _named[path]


def _hook() -> None:
    """A forked child counts its own events, and does not wait for locks of threads that it does not have."""
    global _hooked
    if not _hooked and hasattr(os, "register_at_fork"):
        _hooked = True
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _lock, _current
    _lock = threading.Lock()
    _named.clear()
    if _current is not None:
        _current = Injector(_current.plan, _current.clock)


@contextmanager
def inject(plan: Plan | Mapping[str, Any] | str | os.PathLike[str], *, clock: FaultClock | None = None) -> Iterator[Injector]:
    """Faults for the devices and sessions that are opened in the block, in all threads.

    :param plan: or its file, or what the file would hold
    :param clock: :class:`SimulatedTime` for tests that must not wait
    """
    global _current
    if isinstance(plan, (str, os.PathLike)):
        plan = read_plan(Path(plan))
    elif not isinstance(plan, Plan):
        plan = Plan.of(plan)
    injector = Injector(plan, clock)
    with _lock:
        before, _current = _current, injector
        _hook()
    try:
        yield injector
    finally:
        with _lock:
            _current = before
        injector.end()


# Faults of calls: a library object whose methods fail by plan.
#
# Only the methods that some fault concerns are wrapped, on the object itself; a library that is opened without a plan has nothing of this.


class FaultyLibrary(Protocol):
    """What a library must be able to do for its calls to fail."""

    def opening_call(self) -> str:
        """The call that opens a model."""

    def code_number(self, code: int | str) -> int:
        """A quantized value of the interface by its number or name; raises KeyError where there is none."""

    def fault_code(self, kind: str) -> int:
        """What opening a model answers where the device is ``lost``, or where the ``version`` of the driver does not fit."""

    def fail_call(self, call: str, arguments: tuple[Any, ...], code: int, text: str) -> Any:
        """Let *call* fail: note why, and give what it returns."""

    def cut_model(self, arguments: tuple[Any, ...], keep: float) -> tuple[Any, ...]:
        """The arguments of the opening call with a model of which that part is there."""


def wrap_calls(library: FaultyLibrary, injector: Injector) -> None:
    """Let calls of *library* fail as the plan of *injector* states."""
    opening = library.opening_call()
    for event in injector.events() - {"job", "device"}:
        name = opening if event == "open" else event
        method = getattr(library, name, None)
        if method is None:  # a call of another vendor
            continue
        for fault in injector.plan.faults:
            if fault.event == name:
                _number(library, fault)  # a name that is wrong is rejected now
        around = _opened if event == "open" else _called
        setattr(library, name, around(library, injector, name, method))


def _called(library: FaultyLibrary, injector: Injector, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        for each in injector.offer(name):
            return library.fail_call(name, arguments, _number(library, each.fault), f"by the fault plan, at call {each.event}")
        return method(*arguments)

    return call


def _opened(library: FaultyLibrary, injector: Injector, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        for each in injector.offer("open"):
            kind = each.fault.kind
            if kind != "model":
                why = "the NPU is not there" if kind == "lost" else "library and driver are of versions that do not fit"
                return library.fail_call(name, arguments, library.fault_code(kind), f"{why} (injected)")
            arguments = library.cut_model(arguments, each.fault.keep)
        return method(*arguments)

    return call


def _number(library: FaultyLibrary, fault: Fault) -> int:
    try:
        return library.code_number(fault.code)
    except KeyError:
        raise OptionError(f"there is no code '{fault.code}'", hint="use the vendor's name, or its number") from None


# Faults of jobs: a device asks when a job begins and when it has computed.
#
# The job holds its cores meanwhile, so that other jobs wait longer, as after a slow or hanging core.


class FaultyJobs:
    """Faults of the jobs of one device.

    :param cores: of the chip
    """

    def __init__(self, injector: Injector, cores: int) -> None:
        self.injector = injector
        self._cores = cores

    def begin(self, cores: tuple[int, ...], busy: int, job: Stoppable) -> FaultyRun | None:
        """A job begins on *cores*, with *busy* cores in use; raises where it fails. What happens at its end, or None for nothing."""
        factor, wrong = 1.0, []
        for each in self.injector.offer("job", cores):
            kind = each.fault.kind
            if kind in ("slow", "throttle", "contention"):
                factor *= self._factor(each, busy)
            elif kind == "flip":
                wrong.append(each)
            else:
                self._fail(each, cores, job)
        return FaultyRun(self.injector, factor, wrong) if factor > 1 or wrong else None

    def _factor(self, each: Injected, busy: int) -> float:
        more = each.fault.factor - 1
        if each.fault.kind == "throttle":
            more *= min(1.0, each.count / each.fault.ramp)
        elif each.fault.kind == "contention":
            more *= (max(busy, 1) - 1) / max(self._cores - 1, 1)
        return 1 + more

    def _fail(self, each: Injected, cores: tuple[int, ...], job: Stoppable) -> None:
        fault, where = each.fault, f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"
        if fault.kind == "busy":
            self.injector.clock.wait(fault.seconds, job)
        elif fault.kind == "hang":
            self.injector.clock.wait(fault.seconds, job)
            raise DeviceTimeout(
                f"{where} did not answer for {fault.seconds:g} s and was reset (injected)", hint="submit the job again"
            )
        elif fault.kind == "timeout":
            raise DeviceTimeout(f"the job on {where} did not finish in time (injected)", hint="submit the job again")
        else:
            raise DeviceUnavailable("the NPU is not there (injected)", hint="try again; open the model again where that fails")


class FaultyRun:
    """What is still to happen to a job that has begun."""

    def __init__(self, injector: Injector, factor: float, wrong: Sequence[Injected]) -> None:
        self._injector = injector
        self._factor = factor
        self._wrong = wrong

    def end(self, seconds: float, outputs: Callable[[], Sequence[Array]], job: Stoppable) -> None:
        """The job has computed.

        :param seconds: that it took so far
        :param outputs: their bytes
        """
        if self._factor > 1:
            self._injector.clock.wait((self._factor - 1) * seconds, job)
        for each in self._wrong:
            arrays = [array for array in outputs() if array.size]
            place = self._injector.byte_of(each.fault, sum(array.size for array in arrays))
            for array in arrays:
                if place < array.size:
                    array[place] ^= 1 << each.fault.bit
                    break
                place -= array.size
