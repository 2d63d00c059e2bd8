"""Fills the table of a drop-in library with functions that end in the software NPU.

The library calls :func:`fill` once, in the Python that it found or started. A family of libraries has bindings (a cffi module with the
types and one C function for each call) and a *library object*, whose methods carry the names of the calls; :func:`fill` ties the two
together.

State: what each family in this process uses is kept in a module variable, which :func:`fill` writes and which a forked child writes anew:
the threads of its parent do not exist in it, so that it gets another library object, to which contexts of before the fork are unknown.
Who ends: Python's end closes the gate of each library before anything of Python is gone; a program in C closes it in ``exit``.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .observe import Observer, observer_from

__all__ = ["fill"]


@dataclass(frozen=True)
class _Family:
    """How a family of libraries is served.

    :ivar bindings: gives ``(ffi, lib)`` of the cffi module
    :ivar open: makes the library object for a chip; None: each model says for which chip it is
    :ivar failure: what a call returns that Python could not finish
    :ivar code_name: the interface's name of a result
    """

    bindings: Callable[[], tuple[Any, Any]]
    open: Callable[[str | None], Any]
    failure: int
    code_name: Callable[[int], str]


@dataclass
class _Installed:
    family: _Family
    chip: str | None
    names: list[str]
    observer: Observer
    library: Any = None


def _rknn_bindings() -> tuple[Any, Any]:
    from .. import _rknn

    return _rknn.ffi, _rknn.lib


def _rknn_library(chip: str | None) -> Any:
    from ..rknn.software.library import SoftwareLibrary

    return SoftwareLibrary(chip)


def _rknn_code_name(code: int) -> str:
    from ..rknn.constants import Code

    try:
        return Code(code).name
    except ValueError:
        return f"code {code}"


def _vip_bindings() -> tuple[Any, Any]:
    from .. import _vip

    return _vip.ffi, _vip.lib


def _vip_library(chip: str | None) -> Any:
    from ..vip.software.library import SoftwareLibrary

    return SoftwareLibrary(chip)


def _vip_status_name(status: int) -> str:
    from ..vip.constants import vip_status_e

    try:
        return vip_status_e(status).name
    except ValueError:
        return f"status {status}"


_RKNN = _Family(_rknn_bindings, _rknn_library, failure=-1, code_name=_rknn_code_name)
_VIP = _Family(_vip_bindings, _vip_library, failure=-11, code_name=_vip_status_name)
_LIBRARIES: dict[str, tuple[_Family, str | None]] = {
    "librknnrt": (_RKNN, None),
    "librknnmrt": (_RKNN, "rv1106"),
    "libVIPlite": (_VIP, None),
    "libNBGlinker": (_VIP, "a733"),
}
"""The family of each library, and the chip that it stands for unless something else is said."""

_installed: dict[int, _Installed] = {}
"""By the identity of the family: libraries of one family in one process share one library object."""

_left_behind: list[Any] = []
"""In a forked child, what was the parent's: never closed, since its threads are not here to answer."""


def fill(library: str, address: int) -> None:
    """Fill the table of *library*, whose ``anynpu_start`` lies at *address*."""
    family, chip = _LIBRARIES[library]
    ffi, lib = family.bindings()
    start = ffi.cast("anynpu_start *", address)
    names = [ffi.string(start.names[index]).decode() for index in range(start.count)]
    if id(family) not in _installed:
        chip = chosen_chip(os.environ) or chip
        observer = observer_from(os.environ, library, family.code_name)
        installed = _Installed(family, chip, names, observer)
        _connect(installed)
        if not _installed:
            os.register_at_fork(after_in_child=_renew)
        _installed[id(family)] = installed
    for index, name in enumerate(names):
        start.entries[index] = ffi.cast("anynpu_entry", ffi.addressof(lib, f"anynpu_{name}"))
    start.shutdown = lib.anynpu_shutdown
    start.ready = 1
    atexit.register(_close_gate, start)


def chosen_chip(environment: Any) -> str | None:
    """The chip that the environment names: ``ANYNPU_CHIP=rk3566`` or ``ANYNPU_DEVICE=sim:rk3566``.

    >>> chosen_chip({"ANYNPU_DEVICE": "sim:rk3566"})
    'rk3566'
    """
    device, _, chip = environment.get("ANYNPU_DEVICE", "").partition(":")
    return environment.get("ANYNPU_CHIP") or (chip if device == "sim" and chip else None)


def _connect(installed: _Installed) -> None:
    """Make a library object and let the C functions call its methods."""
    ffi, _ = installed.family.bindings()
    library = installed.library = installed.family.open(installed.chip)
    for name in installed.names:
        method = installed.observer.around(ffi, library, name)
        kind = ffi.typeof(f"{name}_fn").result.kind
        if kind == "void":
            ffi.def_extern(name=f"anynpu_{name}")(_without_result(method))
        else:
            unsigned = ffi.typeof(f"{name}_fn").result.cname.startswith("uint")
            failure = ffi.NULL if kind == "pointer" else 0 if unsigned else installed.family.failure
            ffi.def_extern(name=f"anynpu_{name}", error=failure)(method)
    ffi.def_extern(name="anynpu_shutdown")(library.close)


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
