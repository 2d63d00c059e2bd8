"""Handles: pointers that a caller holds and never looks behind.

A handle lies where no memory of a program can lie (the upper bits of an address are either all zero or all one), so that it is
never taken for an address of the caller's, and a stale one is rejected instead of being followed. No number is given twice.

Concurrency: adding and removing hold the table's lock; looking up is one read of a dictionary and holds none.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, TypeVar

from ..._vip import ffi
from ...errors import (
    AnynpuError,
    DeviceClosed,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    InputError,
    JobCancelled,
    ModelError,
    UnsupportedCall,
)
from ..constants import vip_status_e

# What a call of the software library raises inside: a status for the caller and words for who wants to know why.


Status = vip_status_e


_STATUS: tuple[tuple[type[AnynpuError], Status], ...] = (
    (DeviceTimeout, Status.VIP_ERROR_TIMEOUT),
    (JobCancelled, Status.VIP_ERROR_CANCELED),
    (DeviceMemoryError, Status.VIP_ERROR_OUT_OF_MEMORY),
    (DeviceUnavailable, Status.VIP_ERROR_IO),
    (UnsupportedCall, Status.VIP_ERROR_NOT_SUPPORTED),
    (DeviceClosed, Status.VIP_ERROR_FAILURE),
    (ModelError, Status.VIP_ERROR_INVALID_NETWORK),
    (InputError, Status.VIP_ERROR_INVALID_ARGUMENTS),
)


def status_of(error: AnynpuError) -> Status:
    """The status that states best what *error* states; an error that carries one keeps it."""
    if error.code is not None:
        return Status(error.code)
    return next((status for kind, status in _STATUS if isinstance(error, kind)), Status.VIP_ERROR_FAILURE)


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
