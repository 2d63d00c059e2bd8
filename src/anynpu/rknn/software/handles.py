"""Handles: numbers that stand for objects across the C interface.

A handle is below 2**32 (a client of the small runtime keeps it in four bytes), never zero, and not given again before four thousand
million others were. A number that was never given, or whose object is gone, is rejected and not looked up in memory.

Concurrency: adding and removing hold the table's lock; looking up is one read of a dictionary and holds none.
"""

from __future__ import annotations

import itertools
import threading
from typing import TypeVar

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
from ...vendors.libraries import Refusal
from ..constants import Code

# What a call of the software library raises inside: a code for the caller and words for who wants to know why.


_CODES: tuple[tuple[type[AnynpuError], Code], ...] = (
    (DeviceTimeout, Code.RKNN_ERR_TIMEOUT),
    (DeviceMemoryError, Code.RKNN_ERR_MALLOC_FAIL),
    (DeviceUnavailable, Code.RKNN_ERR_DEVICE_UNAVAILABLE),
    (UnsupportedCall, Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH),
    (DeviceClosed, Code.RKNN_ERR_CTX_INVALID),
    (JobCancelled, Code.RKNN_ERR_FAIL),
    (ModelError, Code.RKNN_ERR_MODEL_INVALID),
    (InputError, Code.RKNN_ERR_PARAM_INVALID),
)


def code_of(error: AnynpuError) -> Code:
    """The code that states best what *error* states."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.RKNN_ERR_FAIL)


_Kind = TypeVar("_Kind")
_LOW_BITS = 0xFFFF_FFFF


class Handles:
    """The objects that callers hold by number.

    >>> handles = Handles()
    >>> handle = handles.add("a context")
    >>> handles.get(handle, str)
    'a context'
    """

    def __init__(self, first: int = 0x1000_0001) -> None:
        self._objects: dict[int, object] = {}
        self._numbers = itertools.count(first)
        self._lock = threading.Lock()

    def add(self, entry: object) -> int:
        """Give *entry* a number."""
        with self._lock:
            number = next(number & _LOW_BITS for number in self._numbers if number & _LOW_BITS)
            while number in self._objects:
                number = next(self._numbers) & _LOW_BITS or next(self._numbers) & _LOW_BITS
            self._objects[number] = entry
        return number

    def get(self, handle: int, kind: type[_Kind]) -> _Kind:
        """The object behind *handle*; upper bits are ignored, which a caller with handles of four bytes may leave unset."""
        entry = self._objects.get(handle & _LOW_BITS)
        if isinstance(entry, kind):
            return entry
        raise _unknown(handle, entry)

    def remove(self, handle: int, kind: type[_Kind]) -> _Kind:
        """Take the object off the table; only one of several callers gets it."""
        with self._lock:
            entry = self._objects.get(handle & _LOW_BITS)
            if isinstance(entry, kind):
                del self._objects[handle & _LOW_BITS]
                return entry
        raise _unknown(handle, entry)

    def holds(self, handle: int, kind: type[object]) -> bool:
        """Whether the object behind *handle* is of this kind."""
        return isinstance(self._objects.get(handle & _LOW_BITS), kind)

    def known(self, handle: int) -> bool:
        """Whether there is an object behind *handle*."""
        return handle & _LOW_BITS in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def clear(self) -> list[object]:
        """Take every object off the table; gives them in no order."""
        with self._lock:
            objects, self._objects = list(self._objects.values()), {}
        return objects


def _unknown(handle: int, entry: object) -> Refusal[Code]:
    if entry is None:
        return Refusal(
            Code.RKNN_ERR_CTX_INVALID,
            f"there is no context {handle:#x}",
            "use a context that rknn_init gave and that was not destroyed",
        )
    return Refusal(
        Code.RKNN_ERR_CTX_INVALID,
        f"context {handle:#x} is of another kind",
        "contexts of models and of matmuls have calls of their own",
    )
