"""Memory as two sides see it: what the CPU has in its cache, and what lies in main memory.

On a board both have the same addresses, and differ until the program flushes or invalidates the cache. Here they are two pieces of memory.
Where memory has no cache, or that is unknown, there is one.

Who owns what: a :class:`Memory` owns neither; its creator keeps both mapped for as long as it lives. No lock: the calls that change a
memory are those of the program about it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .stacks import Stack

# Whether the CPU has touched memory: the kernel's table of pages, asked and cleared.
#
# Pages of a shared mapping can be taken out of the table without losing their bytes; the first access puts them back. What is not in the
# table was not touched since. Nothing is trapped, so it costs nothing while the program runs.


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
    """Whether any of these pages was accessed since :func:`clear_access`; None if the system does not state."""
    table = _table(address, size)
    return None if table is None else any(entry & _PRESENT for entry in table[7::8])


def accesses_are_known() -> bool:
    """Whether this system reports which pages were touched."""
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


Bytes = npt.NDArray[np.uint8]


def bytes_at(address: int, size: int) -> Bytes:
    """Memory of the process as an array."""
    memory = (ctypes.c_ubyte * size).from_address(address)
    return np.frombuffer(memoryview(memory).cast("B"), np.uint8)


class Memory:
    """One piece of memory that the program knows.

    :param host: what the CPU sees
    :param device: what the NPU sees; None where there is no difference
    :param tracked: whether accesses can be asked for: a shared mapping that begins with a page
    :param zone: bytes after it that must not be written
    """

    def __init__(
        self,
        host: Bytes,
        origin: Stack,
        *,
        device: Bytes | None = None,
        tracked: bool = False,
        zone: int = 0,
        name: str = "memory",
    ) -> None:
        self.host = host
        self.device = device
        self.origin = origin
        self.name = name
        self.address = host.ctypes.data
        self.size = host.size
        self._device_address = 0 if device is None else device.ctypes.data
        self.unread = False
        """The NPU has written it, and the CPU's cache was not invalidated since."""
        self._told_stale = False
        self.written = not tracked
        """Whether the CPU has touched it, where one knows."""
        self._tracked = tracked
        self._zone = zone
        self._behind: memoryview | None = None
        if zone:
            red_zone_of(self.address + self.size, zone)
            self._behind = bytes_at(self.address + self.size, zone).data
            self._red = bytes(self._behind)
        if tracked:
            self._tracked = clear_access(self.address, self.size)
            self.written = not self._tracked

    def covers(self, address: int, size: int) -> bool:
        """Whether these bytes of the CPU's view are part of it."""
        return self.address <= address and address + size <= self.address + self.size

    def note_access(self) -> None:
        """Remember whether the program has touched it, before we do."""
        if not self.written and touched(self.address, self.size):
            self.written = True

    def overrun(self) -> int | None:
        """How many bytes behind its end were written; None if none were. Reported once."""
        if self._behind is None:
            return None
        if self.written and not self.unread and self._behind.tobytes() == self._red:
            return None  # accesses are not watched now
        self.note_access()
        last = None
        if self._behind.tobytes() != self._red:
            last = red_zone_intact(self.address + self.size, self._zone)
            red_zone_of(self.address + self.size, self._zone)
        self._forget_own_access()
        return last

    def flush(self) -> None:
        """What the CPU wrote becomes visible to the NPU."""
        if self.device is not None:
            self.note_access()
            self.device[:] = self.host
            self._forget_own_access()

    def differs(self) -> int:
        """How many bytes the CPU wrote that the NPU does not see."""
        if self.device is None or (self.written and not self.unread and self._same()):
            return 0
        self.note_access()
        count = 0 if self._same() else int(np.count_nonzero(self.host != self.device))
        self._forget_own_access()
        return count

    def invalidate(self) -> None:
        """What the NPU wrote becomes visible to the CPU."""
        self.unread = False
        if self.device is not None:
            self.host[:] = self.device
            self.written = True

    def wrote(self) -> None:
        """The NPU has written, and the CPU's cache is as it was."""
        self.written = True
        self.unread, self._told_stale = self.device is not None, False
        if self._tracked:
            clear_access(self.address, self.size)

    def read_stale(self) -> bool:
        """Whether the CPU has touched what the NPU wrote, without invalidating its cache. Reported once."""
        if not self.unread or self._told_stale:
            return False
        seen = touched(self.address, self.size) if self._tracked else None
        if seen is None:  # not known: then what differs counts as read
            seen = not self._same()
        self._told_stale = seen
        return seen

    def _same(self) -> bool:
        return same_bytes(self.address, self._device_address, self.size)

    def faults(self, invalidation: str) -> Sequence[tuple[str, str]]:
        """Kind and text of each fault that shows in its bytes: read before it was current, or written behind its end. Reported once.

        :param invalidation: what the program should have asked for before it read
        """
        stale, behind = self.unread and self.read_stale(), self.overrun()
        if not stale and behind is None:
            return ()
        found = []
        if stale:
            found.append(("output-not-invalidated", f"{self.name} was accessed after a run wrote it, without {invalidation}"))
        if behind is not None:
            found.append(("write-outside-buffer", f"up to {behind} bytes behind {self.name} were written"))
        return found

    def _forget_own_access(self) -> None:
        if self._tracked and (not self.written or self.unread):
            clear_access(self.address, self.size)
