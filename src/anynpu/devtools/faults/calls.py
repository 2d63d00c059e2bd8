"""Faults of calls: a library object whose methods fail by plan.

Only the methods that some fault concerns are wrapped, on the object itself; a library that is opened without a plan has nothing of this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import OptionError
from .injector import Injector
from .plan import Fault

__all__ = ["FaultyLibrary", "wrap_calls"]


class FaultyLibrary(Protocol):
    """What a library must be able to do for its calls to fail."""

    def opening_call(self) -> str:
        """The call that opens a model."""

    def code_number(self, code: int | str) -> int:
        """A code of the interface by its number or name; raises KeyError where there is none."""

    def fault_code(self, kind: str) -> int:
        """What opening a model answers where the device is ``lost``, or where the ``version`` of the driver does not fit."""

    def fail_call(self, call: str, arguments: tuple[Any, ...], code: int, text: str) -> Any:
        """Let *call* fail: note why, and give what it returns."""

    def cut_model(self, arguments: tuple[Any, ...], keep: float) -> tuple[Any, ...]:
        """The arguments of the opening call with a model of which that part is there."""


def wrap_calls(library: FaultyLibrary, injector: Injector) -> None:
    """Let calls of *library* fail as the plan of *injector* says."""
    opening = library.opening_call()
    for event in injector.events() - {"job", "device"}:
        name = opening if event == "open" else event
        method = getattr(library, name, None)
        if method is None:  # a call of another vendor
            continue
        for fault in injector.plan.faults:
            if fault.event == name:
                _number(library, fault)  # a name that is wrong is refused now
        around = _opened if event == "open" else _called
        setattr(library, name, around(library, injector, name, method))


def _called(library: FaultyLibrary, injector: Injector, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        for each in injector.offer(name):
            return library.fail_call(
                name, arguments, _number(library, each.fault), f"by the plan of faults, at call {each.event}"
            )
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
