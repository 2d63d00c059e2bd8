"""Library interface: the vendor's functions and their error text."""

from __future__ import annotations

import functools
from typing import Any

from .._rknn import ffi, lib
from ..vendors import libraries
from ..vendors.libraries import CallFailure

__all__ = ["CallFailure", "RknnLibrary", "bindings", "functions"]


def bindings() -> tuple[Any, Any]:
    """The cffi module, for drop-in libraries: its types, and one C function per call."""
    return ffi, lib


@functools.lru_cache(maxsize=1)
def functions() -> tuple[str, ...]:
    """The names of all functions of the interface."""
    return libraries.functions_of(lib, "rknn_")


class RknnLibrary(libraries.Library):
    """The base of library objects. Each has an attribute for every name of :func:`functions`, which is called as the C function
    is: with pointers of ``anynpu._rknn.ffi`` and numbers, in the order of ``abi.h``."""
