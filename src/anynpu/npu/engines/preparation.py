"""What preparing the programs of one model may take, and what they share.

Programs are prepared from weights that a file stores once, however many layers refer to them. A layer needs them in another form: packed
for a kernel, as float32, turned. That form is kept once too, for all layers and programs of the model that ask for the same. What cannot be
shared (constants per channel, tables, copies inside onnxruntime) is counted, so that a small file cannot make much memory of few bytes.

A preparation belongs to one loaded model. It has no lock: who prepares programs does it one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DeviceMemoryError

__all__ = ["GROWTH", "ROOM", "Preparation", "address_of"]

Array = npt.NDArray[Any]

ROOM = 256 << 20
"""Bytes that preparing a model may take in any case."""
GROWTH = 8
"""How many times the stored weights it may take on top: float16 becomes float32, and onnxruntime keeps copies of its own."""


class Preparation:
    """The prepared forms of one model's weights, and how much memory has been taken.

    :param stored: bytes of the weights as they are stored; None for no limit

    >>> Preparation(stored=1000).limit - ROOM
    8000
    """

    def __init__(self, stored: int | None = None) -> None:
        self.limit = None if stored is None else ROOM + GROWTH * stored
        self.taken = 0
        self._shared: dict[Hashable, tuple[Array, Array]] = {}

    def fits(self, size: int) -> bool:
        """Whether *size* bytes more may be taken."""
        return self.limit is None or self.taken + size <= self.limit

    def take(self, size: int) -> None:
        """Count *size* bytes that are about to be taken.

        :raises DeviceMemoryError: that is more than the model may take
        """
        if self.limit is not None and not self.fits(size):
            raise DeviceMemoryError(
                f"preparing the model takes more than {self.limit} bytes, for weights of {(self.limit - ROOM) // GROWTH} bytes",
                hint="many layers use the same weights in different ways, or there are very many layers; compile a smaller model",
            )
        self.taken += size

    def shared(self, key: Hashable, source: Array, size: int, make: Callable[[], Array]) -> Array:
        """What *make* gives for *source*, made once for each *key* and place of *source* in memory.

        :param size: bytes of it, which are counted before it is made
        """
        place = (key, address_of(source), source.shape, source.strides, source.dtype.str)
        if place not in self._shared:
            self.take(size)
            self._shared[place] = (make(), source)  # with the source, so that no other array can have its address
        return self._shared[place][0]


def address_of(array: Array) -> int:
    """Where an array begins."""
    return int(np.asarray(array).ctypes.data)
