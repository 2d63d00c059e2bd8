"""Memory that programs in C get from the library: never among Python's own objects.

What a program writes behind the end of an output or of a struct would otherwise change an object of Python next to it, and end the process
in a message about Python. Here it meets room that nobody uses, and then memory of the C library, as with the vendor's library.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..._rknn import ffi

__all__ = ["ROOM_BEHIND", "new_outside"]

ROOM_BEHIND = 1024
"""Bytes behind each piece that nobody uses."""

_allocate = ctypes.pythonapi.PyMem_RawCalloc
_allocate.argtypes, _allocate.restype = (ctypes.c_size_t, ctypes.c_size_t), ctypes.c_void_p
_free = ctypes.pythonapi.PyMem_RawFree
_free.argtypes, _free.restype = (ctypes.c_void_p,), None


def _allocated(size: int) -> Any:
    return ffi.cast("void *", _allocate(1, size + ROOM_BEHIND) or 0)


def _freed(pointer: Any) -> None:
    _free(int(ffi.cast("uintptr_t", pointer)))


new_outside = ffi.new_allocator(_allocated, _freed, should_clear_after_alloc=False)
"""As ``ffi.new``."""
