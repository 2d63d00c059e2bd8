"""The SRAM that an NPU may use besides DRAM: who has how much of it.

Contexts with ``RKNN_FLAG_ENABLE_SRAM`` take as much as their internal memory needs and the chip has left; the bytes themselves are
ordinary memory here. One lock protects the account; shares are given back once, by their owner.
"""

from __future__ import annotations

import threading

from ..._util.lifetime import at_end

__all__ = ["Sram", "SramShare"]


class Sram:
    """The SRAM of one chip.

    >>> sram = Sram(1000)
    >>> first, second = sram.take(700), sram.take(700)
    >>> first.size, second.size, sram.free
    (700, 300, 0)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return self._free

    def take(self, wanted: int) -> SramShare:
        """As many of the *wanted* bytes as there are."""
        with self._lock:
            size = min(wanted, self._free)
            self._free -= size
        return SramShare(self, size)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._free += size


class SramShare:
    """A part of the SRAM; given back when it is released or forgotten. Contexts that share SRAM hold the same share."""

    def __init__(self, sram: Sram, size: int) -> None:
        self.size = size
        self._finalizer = at_end(self, sram._give_back, size)

    def release(self) -> None:
        """Give it back; again is harmless."""
        self._finalizer()
