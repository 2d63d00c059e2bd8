"""Handles: pointers that a caller holds and never looks behind.

A handle lies where no memory of a program can lie (the upper bits of an address are either all zero or all one), so that it is
never taken for an address of the caller's, and a stale one is refused instead of being followed. No number is given twice.

Concurrency: adding and removing hold the table's lock; looking up is one read of a dictionary and holds none.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, TypeVar

from ..._vip import ffi

__all__ = ["Handles", "address_of"]

_Kind = TypeVar("_Kind")
_FIRST = 0x00A9_0000_0000_0010 if ffi.sizeof("void *") == 8 else 0x0000_0010
_LAST = _FIRST | 0xFFFF_FFFF_FFFF if ffi.sizeof("void *") == 8 else 0x0000_FFFF
_STEP = 16


def address_of(pointer: Any) -> int:
    """The number of a pointer."""
    return int(ffi.cast("uintptr_t", pointer))


class Handles:
    """The objects that callers hold.

    >>> handles = Handles()
    >>> handle = handles.add("a network")
    >>> handles.find(handle, str), handles.find(handle + 16, str), handles.find(handle, int)
    ('a network', None, None)
    """

    def __init__(self) -> None:
        self._objects: dict[int, object] = {}
        self._numbers = itertools.count(_FIRST, _STEP)
        self._lock = threading.Lock()

    def add(self, entry: object) -> int:
        """Give *entry* a handle."""
        with self._lock:
            number = next(self._numbers)
            self._objects[number] = entry
        return number

    def find(self, handle: int, kind: type[_Kind]) -> _Kind | None:
        """The object of that kind behind *handle*, if there is one."""
        entry = self._objects.get(handle)
        return entry if isinstance(entry, kind) else None

    def remove(self, handle: int, kind: type[_Kind]) -> _Kind | None:
        """Take the object off the table; only one of several callers gets it."""
        with self._lock:
            entry = self._objects.get(handle)
            if isinstance(entry, kind):
                del self._objects[handle]
                return entry
        return None

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        """Every object of a kind, in no order."""
        with self._lock:
            return [entry for entry in self._objects.values() if isinstance(entry, kind)]

    def clear(self) -> None:
        """Forget all objects; their handles become unknown."""
        with self._lock:
            self._objects.clear()

    @staticmethod
    def looks_like_one(number: int) -> bool:
        """Whether a pointer can only be a handle, known or stale."""
        return _FIRST <= number <= _LAST
