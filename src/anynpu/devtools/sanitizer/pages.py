"""Whether the CPU has touched memory: the kernel's table of pages, asked and cleared.

Pages of a shared mapping can be taken out of the table without losing their bytes; the first access puts them back. What is not in the
table was not touched since. Nothing is trapped, so it costs nothing while the program runs.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["accesses_are_known", "clear_access", "red_zone_intact", "red_zone_of", "same_bytes", "touched"]

PAGE = 4096
_DONTNEED = 4
_PRESENT = 0x80
RED = 0xA5
"""What red zones are filled with."""


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux") or os.sysconf("SC_PAGE_SIZE") != PAGE:
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def clear_access(address: int, size: int) -> bool:
    """Forget accesses to pages of a *shared* mapping that begins at *address*; False where that is not possible."""
    advise = _madvise()
    if advise is None or address % PAGE or _table(address, size) is None:
        return False
    return advise(address, -(-size // PAGE) * PAGE, _DONTNEED) == 0


def touched(address: int, size: int) -> bool | None:
    """Whether any of these pages was accessed since :func:`clear_access`; None if the system does not say."""
    table = _table(address, size)
    return None if table is None else any(entry & _PRESENT for entry in table[7::8])


def accesses_are_known() -> bool:
    """Whether this system tells which pages were touched."""
    return _madvise() is not None and _table(id(_table), 1) is not None


def _table(address: int, size: int) -> bytes | None:
    first, last = address // PAGE, (address + max(size, 1) - 1) // PAGE
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as table:
            return os.pread(table.fileno(), 8 * (last - first + 1), 8 * first)
    except OSError:
        return None


_memcmp: Any = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def same_bytes(one: int, other: int, size: int) -> bool:
    """Whether *size* bytes at two addresses are the same."""
    return not _memcmp(one, other, size)


def red_zone_of(address: int, size: int) -> None:
    """Fill *size* bytes at *address* with the pattern of red zones."""
    ctypes.memset(address, RED, size)


def red_zone_intact(address: int, size: int) -> int | None:
    """None if a red zone is as it was, else how far into it the last byte was written."""
    found = ctypes.string_at(address, size)
    if found == bytes((RED,)) * size:
        return None
    return len(found.rstrip(bytes((RED,))))
