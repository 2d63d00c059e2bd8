"""Faults as data.

A plan has a seed and a list of faults. Each fault has a kind, when it happens, and what the kind needs:

* ``at`` and ``times``: from the event with this number (from 1) on, that many times in a row; 0 for always. This is the default, once at
  the first event;
* ``every``: at each event whose number is a multiple of it;
* ``probability``: at random, by the plan's seed.

What an event is depends on the kind: a call, a job, a model that is opened, or a task of a command stream. With ``core`` only jobs on
that core count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..._util.options import read_table
from ...errors import OptionError

__all__ = ["KINDS", "Fault", "Plan", "read_plan"]

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
"""The kinds of faults, with the fields that each takes besides those that say when it happens."""

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
            raise OptionError(f"a plan of faults has no '{unknown[0]}'", hint="it has seed, and fault as a list of tables")
        tables, seed = entries.get("fault", []), entries.get("seed", 0)
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not isinstance(seed, int):
            raise OptionError("a plan of faults is a list of tables", hint="begin each with [[fault]]")
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
    return Plan.of(read_table(path, "plan of faults", hint="see docs/failures.md"))
