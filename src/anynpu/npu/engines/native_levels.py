"""Which instruction set the native engine uses: the best that the processor has, unless the caller chooses another."""

from __future__ import annotations

import os

from ..._native import ffi, lib
from ...errors import DeviceError

__all__ = ["VARIABLE", "available", "choose_level", "level_names"]

VARIABLE = "ANYNPU_ISA"


def level_names() -> tuple[str, ...]:
    """The instruction sets that this build knows, the best first; the processor need not have them.

    >>> level_names()[-1]
    'generic'
    """
    return tuple(ffi.string(lib.anynpu_level_name(level)).decode() for level in range(lib.anynpu_level_count()))


def available() -> tuple[str, ...]:
    """The instruction sets that this processor has, the best first.

    >>> "generic" in available()
    True
    """
    return tuple(name for level, name in enumerate(level_names()) if lib.anynpu_has_level(level))


def choose_level(name: str | None = None) -> str:
    """The instruction set to use: *name*, else what the environment variable ``ANYNPU_ISA`` states, else the best there is.

    What the environment states holds for the conversions of the process too.
    """
    if name is None and os.environ.get(VARIABLE):
        name = os.environ[VARIABLE]
        _check(name)
        lib.anynpu_use_level(name.encode())
    if name is None:
        return str(ffi.string(lib.anynpu_level()).decode())
    _check(name)
    return name


def _check(name: str) -> None:
    if name not in level_names():
        raise DeviceError(
            f"there is no instruction set '{name}' in this build", hint=f"{VARIABLE} is one of: {', '.join(level_names())}"
        )
    if name not in available():
        raise DeviceError(
            f"this processor does not have {name}",
            hint=f"it has: {', '.join(available())}; leave {VARIABLE} unset to use the best",
        )
