"""Which injector is in force.

State: one injector for the process, which a ``with`` block sets, or the environment names. Devices and libraries ask once, when they are
opened, and keep what they found. Who ends: the block, which also closes the libraries that were opened in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .clock import FaultClock
from .injector import Injector
from .plan import Plan, read_plan

__all__ = ["VARIABLE", "active", "inject"]

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
