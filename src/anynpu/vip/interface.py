"""Library interface: the vendor's functions and their error text."""

from __future__ import annotations

import functools
from typing import Any

from .._vip import ffi, lib
from ..program import Model
from ..vendors import libraries
from ..vendors.libraries import CallFailure
from .generations import Generation

__all__ = ["CallFailure", "VipLibrary", "bindings", "functions"]


def bindings() -> tuple[Any, Any]:
    """The cffi module, for drop-in libraries: its types, and one C function per call."""
    return ffi, lib


@functools.lru_cache(maxsize=1)
def functions() -> tuple[str, ...]:
    """The names of all functions of the interface."""
    return libraries.functions_of(lib, "vip_")


class VipLibrary(libraries.Library):
    """The base of library objects. Each has an attribute for every name of :func:`functions`, which is called as the C function
    is: with pointers of ``anynpu._vip.ffi`` and numbers, in the order of ``abi.h``."""

    generation: Generation
    """The form of the interface that the library has."""

    def model_of(self, network: Any) -> Model | None:
        """The model of a network, where it is known."""
        del network
        return None

    def fd_of(self, buffer: Any) -> int:
        """The descriptor of a buffer's memory; -1 where there is none."""
        del buffer
        return -1
