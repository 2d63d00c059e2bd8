"""The container of the model file: a prefix, a table, and sections with a checksum each.

All numbers are little endian::

    0   4   RKNN or VPMN, by the chip's family: what clients look at
    4   8   our marker, 89 'ANYNPU' 0A
    12  4   version of the container
    16  4   number of sections
    20  4   CRC-32 of the prefix (with zeros here) and the table
    24  8   length of the file
    32  24  for each section: kind, CRC-32 (4 bytes each), offset, size (8 bytes each)

Sections are aligned to 64 bytes and stand in the order of the table. Bytes after the length of the file are ignored: what a client
loads into memory may be longer than the file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..errors import ModelFormatError, ModelVersionError
from .recognize import MARKER

__all__ = ["ALIGNMENT", "Buffer", "HEADER", "Section", "VERSION", "WEIGHTS", "pack", "unpack"]

Buffer = bytes | bytearray | memoryview

VERSION = 2
"""Version 1 had the float layers as ONNX models of their own. It is not read any more."""
ALIGNMENT = 64
HEADER, WEIGHTS = 1, 2

_NAMES = {HEADER: "header", WEIGHTS: "weights"}
_PREFIX = struct.Struct("<4s8sIIIQ")
_ENTRY = struct.Struct("<IIQQ")
_DAMAGED = "the file is damaged or was cut off; copy it again or compile the model again"


@dataclass(frozen=True)
class Section:
    """A section to be written; *pieces* gives its bytes each time it is called."""

    kind: int
    size: int
    pieces: Callable[[], Iterable[Buffer]]

    @property
    def checksum(self) -> int:
        value = 0
        for piece in self.pieces():
            value = zlib.crc32(piece, value)
        return value


def pack(magic: bytes, sections: list[Section]) -> Iterator[Buffer]:
    """The bytes of the file, in order."""
    written = position = _PREFIX.size + _ENTRY.size * len(sections)
    table, offsets = b"", []
    for section in sections:
        position += -position % ALIGNMENT
        table += _ENTRY.pack(section.kind, section.checksum, position, section.size)
        offsets.append(position)
        position += section.size
    checksum = zlib.crc32(_PREFIX.pack(magic, MARKER, VERSION, len(sections), 0, position) + table)
    yield _PREFIX.pack(magic, MARKER, VERSION, len(sections), checksum, position) + table
    for offset, section in zip(offsets, sections, strict=True):
        yield bytes(offset - written)
        yield from section.pieces()
        written = offset + section.size


def unpack(data: memoryview, *, verify: bool = True) -> dict[int, memoryview]:
    """The sections by kind, each inside the file, apart from the others, and with its checksum compared.

    :param verify: compare the checksum of the weights as well, which reads all of them
    """
    if len(data) < _PREFIX.size:
        raise ModelFormatError(f"{len(data)} bytes are too few for a model file", hint=_DAMAGED)
    magic, marker, version, count, checksum, length = _PREFIX.unpack_from(data)
    if version > VERSION:
        raise ModelVersionError(
            f"the file has version {version}; this anynpu reads up to version {VERSION}",
            hint="install a newer anynpu, or compile the model again",
        )
    if 1 <= version < VERSION:
        raise ModelVersionError(
            f"the file has version {version}, which an older anynpu wrote; this one reads version {VERSION}",
            hint="compile the model again",
        )
    if version < 1 or not 1 <= count <= len(_NAMES):
        raise ModelFormatError(f"version {version} with {count} sections makes no sense", hint=_DAMAGED)
    if length > len(data):
        raise ModelFormatError(f"the file is cut off: {len(data)} of {length} bytes", hint=_DAMAGED)
    end = _PREFIX.size + count * _ENTRY.size
    table = bytes(data[_PREFIX.size : end])
    if (
        len(table) != count * _ENTRY.size
        or zlib.crc32(_PREFIX.pack(magic, marker, version, count, 0, length) + table) != checksum
    ):
        raise ModelFormatError("the section table is damaged", hint=_DAMAGED)
    sections: dict[int, memoryview] = {}
    for kind, expected, offset, size in _ENTRY.iter_unpack(table):
        if kind not in _NAMES or kind in sections or offset < end or offset + size > length or offset % ALIGNMENT:
            raise ModelFormatError("invalid section table", hint=_DAMAGED)
        sections[kind] = data[offset : offset + size]
        end = offset + size
        if (verify or kind != WEIGHTS) and zlib.crc32(sections[kind]) != expected:
            raise ModelFormatError(f"the section '{_NAMES[kind]}' is damaged: its checksum differs", hint=_DAMAGED)
    return sections
