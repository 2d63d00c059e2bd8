"""Flat buffers, read by hand: tables, vectors and texts of a file that may be damaged.

A table begins with the distance back to its *vtable*, which holds the place of each field, or 0 for one that is left out. Every read is
checked against the end of the data, so a damaged file ends in one error and never in a wild read.

Many places of a file can point to the same text or vector, so a small file can stand for much more than it holds. What is made of a file is
counted, and bounded by a multiple of its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ...._util.types import Array
from ....errors import ModelFormatError

__all__ = ["Table", "root_table"]

ItemT = TypeVar("ItemT")

MAX_ITEMS = 1 << 24
"""Entries of a vector of tables or texts; a network has some thousands."""

MAX_SHARE = 8
SPARE = 1 << 24
"""Texts, entries of vectors and numbers may have so many times the bytes of the file, and so many besides."""


def _damaged(what: str) -> ModelFormatError:
    return ModelFormatError(f"the TFLite file is damaged: {what}", hint="convert the model again")


class _Account:
    """What may still be made of a file."""

    def __init__(self, size: int) -> None:
        self._left = MAX_SHARE * size + SPARE

    def take(self, count: int) -> None:
        """Before *count* bytes are made into objects."""
        self._left -= count
        if self._left < 0:
            raise _damaged("it stands for far more than it holds")


@dataclass(frozen=True)
class Table:
    """One table of a flat buffer; fields are asked for by their number in the schema."""

    data: memoryview
    position: int
    account: _Account

    def integer(self, field: int, kind: str = "i", default: int = 0) -> int:
        """A whole number; *kind* as in :mod:`struct`."""
        place = self._place(field)
        return default if place is None else int(_unpack(kind, self.data, place))

    def real(self, field: int, default: float = 0.0) -> float:
        """A float32."""
        place = self._place(field)
        return default if place is None else float(_unpack("f", self.data, place))

    def truth(self, field: int) -> bool:
        """A boolean, false where it is left out."""
        return bool(self.integer(field, "B"))

    def text(self, field: int) -> str:
        """A text; empty where it is left out."""
        place = self._place(field)
        return "" if place is None else self._text(self._target(place))

    def table(self, field: int) -> Table | None:
        """A table inside this one."""
        place = self._place(field)
        return None if place is None else self._table(self._target(place))

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        return self._items(field, self._table)

    def length(self, field: int) -> int:
        """How many entries a vector has."""
        place = self._place(field)
        return 0 if place is None else int(_unpack("I", self.data, self._target(place)))

    def numbers(self, field: int, dtype: str) -> Array:
        """A vector of numbers of a little-endian type such as ``<i4``; a view of the data, empty where it is left out."""
        place = self._place(field)
        kind = np.dtype(dtype)
        if place is None:
            return np.zeros(0, kind)
        start = self._target(place)
        count = int(_unpack("I", self.data, start))
        end = start + 4 + count * kind.itemsize
        if end > len(self.data):
            raise _damaged(f"a vector of {count} numbers reaches beyond its end")
        self.account.take(end - start)
        return np.frombuffer(self.data[start + 4 : end], kind)

    def has(self, field: int) -> bool:
        """Whether the field was written."""
        return self._place(field) is not None

    def _place(self, field: int) -> int | None:
        vtable = self.position - int(_unpack("i", self.data, self.position))
        size = int(_unpack("H", self.data, vtable))
        slot = 4 + 2 * field
        if slot + 2 > size:
            return None
        offset = int(_unpack("H", self.data, vtable + slot))
        return self.position + offset if offset else None

    def _target(self, place: int) -> int:
        return place + int(_unpack("I", self.data, place))

    def _table(self, position: int) -> Table:
        _unpack("i", self.data, position)
        return Table(self.data, position, self.account)

    def _text(self, position: int) -> str:
        count = int(_unpack("I", self.data, position))
        end = position + 4 + count
        if end > len(self.data):
            raise _damaged("a text reaches beyond its end")
        self.account.take(4 + count)
        return bytes(self.data[position + 4 : end]).decode("utf-8", "replace")

    def _items(self, field: int, read: Callable[[int], ItemT]) -> list[ItemT]:
        place = self._place(field)
        if place is None:
            return []
        start = self._target(place)
        count = int(_unpack("I", self.data, start))
        if count > MAX_ITEMS or start + 4 + 4 * count > len(self.data):
            raise _damaged(f"a vector of {count} entries reaches beyond its end")
        self.account.take(4 + 4 * count)
        return [read(self._target(start + 4 + 4 * index)) for index in range(count)]


def root_table(data: bytes | memoryview) -> Table:
    """The outermost table."""
    view = memoryview(data)
    return Table(view, int(_unpack("I", view, 0)), _Account(len(view)))


def _unpack(kind: str, data: memoryview, position: int) -> float | int:
    if position < 0 or position + struct.calcsize(f"<{kind}") > len(data):
        raise _damaged("an offset points outside of it")
    (value,) = struct.unpack_from(f"<{kind}", data, position)
    return value  # type: ignore[no-any-return]
