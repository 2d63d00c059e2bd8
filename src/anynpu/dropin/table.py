"""Fills the table of a drop-in library with functions that end in the software NPU.

The library calls :func:`fill` once, in the Python that it found or started. A vendor's table has bindings (a cffi module with the types and
one C function for each call) and opens a *library object*, whose methods carry the names of the calls; :func:`fill` ties the two together.

State: what each vendor in this process uses is kept in a module variable, which :func:`fill` writes and which a forked child rewrites:
the threads of its parent do not exist in it, so that it gets another library object, to which contexts of before the fork are unknown.
Who ends: Python's end closes the gate of each library before anything of Python is gone; a program in C closes it in ``exit``.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..devtools.sanitizer.watch import at_exit
from ..vendors import DropIn, registry
from ..vendors.libraries import SoftwareCalls, instrumented
from .accel import ACCEL, ACCEL_LIBRARY
from .observe import CallObserver, observer_from

__all__ = ["fill"]


@dataclass
class _Installed:
    served: DropIn
    chip: str | None
    names: list[str]
    observer: CallObserver
    library: Any = None


_installed: dict[str, _Installed] = {}
"""By the name of the vendor, or of the library that no vendor has: its libraries share one library object in a process."""

_left_behind: list[Any] = []
"""In a forked child, what was the parent's: never closed, since its threads are not here to answer."""


def fill(library: str, address: int) -> None:
    """Fill the table of *library*, whose ``anynpu_start`` lies at *address*."""
    name, served = _server_of(library)
    ffi, lib = served.bindings()
    start = ffi.cast("anynpu_start *", address)
    names = [ffi.string(start.names[index]).decode() for index in range(start.count)]
    if name not in _installed:
        chip = chosen_chip(os.environ) or served.libraries[library]
        observer = observer_from(os.environ, library, served)
        installed = _Installed(served, chip, names, observer)
        _connect(installed)
        if not _installed:
            os.register_at_fork(after_in_child=_renew)
        _installed[name] = installed
    for index, call in enumerate(names):
        start.entries[index] = ffi.cast("anynpu_entry", ffi.addressof(lib, f"anynpu_{call}"))
    start.shutdown = lib.anynpu_shutdown
    start.ready = 1
    atexit.register(_close_gate, start)


def _server_of(library: str) -> tuple[str, DropIn]:
    """Who serves a drop-in library: a vendor, or the device of the mainline driver."""
    if library == ACCEL_LIBRARY:
        return library, ACCEL
    vendor = registry.find(lambda vendor: vendor.dropin is not None and library in vendor.dropin.libraries)
    if vendor is None or vendor.dropin is None:
        raise KeyError(library)
    return vendor.name, vendor.dropin


def chosen_chip(environment: Any) -> str | None:
    """The chip that the environment names: ``ANYNPU_CHIP=rk3566`` or ``ANYNPU_DEVICE=sim:rk3566``.

    >>> chosen_chip({"ANYNPU_DEVICE": "sim:rk3566"})
    'rk3566'
    """
    device, _, chip = environment.get("ANYNPU_DEVICE", "").partition(":")
    return environment.get("ANYNPU_CHIP") or (chip if device == "sim" and chip else None)


def _connect(installed: _Installed) -> None:
    """Make a library object and let the C functions call its methods."""
    ffi, _ = installed.served.bindings()
    opened = installed.served.open(installed.chip)
    if isinstance(opened, SoftwareCalls):
        messages = installed.observer.messages
        opened.warn = messages.warn
        if messages.failures:
            opened.report_failures(messages.failed)
    library = installed.library = instrumented(opened)
    for name in installed.names:
        method = installed.observer.around(ffi, library, name)
        kind = ffi.typeof(f"{name}_fn").result.kind
        if kind == "void":
            ffi.def_extern(name=f"anynpu_{name}")(_without_result(method))
        else:
            unsigned = ffi.typeof(f"{name}_fn").result.cname.startswith("uint")
            failure = ffi.NULL if kind == "pointer" else 0 if unsigned else installed.served.failure
            ffi.def_extern(name=f"anynpu_{name}", error=failure)(method)
    ffi.def_extern(name="anynpu_shutdown")(functools.partial(_end, library))


def _end(library: Any) -> None:
    """The process ends."""
    at_exit()
    library.close()


def _without_result(method: Callable[..., Any]) -> Callable[..., None]:
    """For a function that returns nothing: the code of a failure has nowhere to go."""

    def call(*arguments: Any) -> None:
        method(*arguments)

    return call


def _renew() -> None:
    for installed in _installed.values():
        _left_behind.append(installed.library)
        _connect(installed)


def _close_gate(start: Any) -> None:
    start.close()
