"""What a library object is: all functions of the interface, and a word about failures."""

from __future__ import annotations

import functools

from .. import libraries
from .._vip import lib
from ..libraries import CallFailure
from .generations import Generation

__all__ = ["CallFailure", "Library", "functions"]


@functools.lru_cache(maxsize=1)
def functions() -> tuple[str, ...]:
    """The names of all functions of the interface."""
    return libraries.functions_of(lib, "vip")


class Library(libraries.Library):
    """The base of library objects. Each has an attribute for every name of :func:`functions`, which is called as the C function
    is: with pointers of ``anynpu._vip.ffi`` and numbers, in the order of ``abi.h``."""

    generation: Generation
    """The form of the interface that the library has."""
