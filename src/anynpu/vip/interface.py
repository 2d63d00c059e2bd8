"""What a library object is: all functions of the interface, and a word about failures."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._vip import lib
from .generations import Generation

__all__ = ["CallFailure", "Library", "functions"]


@functools.lru_cache(maxsize=1)
def functions() -> tuple[str, ...]:
    """The names of all functions of the interface."""
    return tuple(name.removeprefix("anynpu_") for name in dir(lib) if name.startswith("anynpu_vip_"))


@dataclass(frozen=True)
class CallFailure:
    """Why a call failed."""

    call: str
    status: int
    text: str
    hint: str = ""


class Library:
    """The base of library objects. Each has an attribute for every name of :func:`functions`, which is called as the C function
    is: with pointers of ``anynpu._vip.ffi`` and numbers, in the order of ``abi.h``."""

    generation: Generation
    """The form of the interface that the library has."""

    @property
    def description(self) -> str:
        """What a user is told that he runs on."""
        return type(self).__name__

    def last_error(self) -> CallFailure | None:
        """Why the last call that failed in this thread did so; None where the library does not say."""
        return None

    def close(self) -> None:
        """End everything that was made through this library."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
