"""The raw contents of tensors in messages of the inference protocol, without protobuf's copies of them.

A message on the wire is a row of fields, each with its number. Raw contents are fields of bytes at the top of a message: they can be taken
out of it as views, and what is left is a small message that protobuf reads; and they can be put behind a message that protobuf has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np

from ..._util.types import Array

__all__ = ["BYTES", "VARINT", "field_of", "fields_of", "join_contents", "split_contents"]

Wire = TypeVar("Wire", bound=bytes | memoryview)

MAX_FIELDS = 4096
"""Fields that are looked at here; protobuf is quicker for messages with more."""

VARINT, BYTES = 0, 2
"""Wire types of fields: a number, and bytes or a message."""

_EIGHT_BYTES, _FOUR_BYTES = 1, 5


def split_contents(message: Wire, field: int) -> tuple[Wire | bytes, list[memoryview]]:
    """A message without its fields number *field*, and these.

    A message that is broken comes back whole: protobuf says what it is.

    >>> rest, contents = split_contents(b"\\x0a\\x03net" + b"\\x3a\\x02ab" + b"\\x3a\\x01c", 7)
    >>> rest, [bytes(one) for one in contents]
    (b'\\n\\x03net', [b'ab', b'c'])
    """
    view = memoryview(message)
    contents: list[memoryview] = []
    rest: list[memoryview] = []
    kept = end = 0
    try:
        for number, kind, begin, after in islice(fields_of(message), MAX_FIELDS):
            if number == field and kind == BYTES:
                contents.append(view[begin:after])
                rest.append(view[kept:end])
                kept = after
            end = after
    except IndexError:
        return message, []
    if end != len(message):
        return message, []
    return b"".join((*rest, view[kept:])) if contents else message, contents


def fields_of(message: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, begin and end of the value of each field of a message; an IndexError where it is broken or has groups.

    >>> list(fields_of(b"\\x0a\\x03net" + b"\\x18\\x05"))
    [(1, 2, 2, 5), (3, 0, 6, 7)]
    """
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        kind = tag & 7
        begin = at
        if kind == BYTES:
            length, begin = _varint(message, at)
            at = begin + length
        elif kind == VARINT:
            _, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise IndexError
        if at > size:
            raise IndexError
        yield tag >> 3, kind, begin, at


def join_contents(message: bytes, field: int, arrays: Iterable[Array]) -> bytes:
    """A message with the elements of *arrays* as its fields number *field*.

    >>> join_contents(b"\\x0a\\x03net", 6, [np.array([1, 258], np.int16)])
    b'\\n\\x03net2\\x04\\x01\\x00\\x02\\x01'
    """
    parts: list[bytes | memoryview] = [message]
    for array in arrays:
        if array.dtype.byteorder == ">" or not np.little_endian:
            array = array.astype(array.dtype.newbyteorder("<"))
        parts.append(_head(field, array.nbytes))
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return b"".join(parts)


def field_of(field: int, data: bytes) -> bytes:
    """A field of bytes, or of a message that is inside another one.

    >>> field_of(2, b"abc")
    b'\\x12\\x03abc'
    """
    return _head(field, len(data)) + data


def _head(field: int, size: int) -> bytes:
    return _packed(field << 3 | BYTES) + _packed(size)


def _packed(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends; an IndexError where it does not end."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError
