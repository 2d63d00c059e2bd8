"""What kind of file this is, from its first bytes. Nothing here trusts a length that a file claims."""

from __future__ import annotations

import enum
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError, ModelFormatError

__all__ = ["Contents", "FileKind", "MARKER", "RKNN_MAGIC", "Source", "VIP_MAGIC", "identify", "open_source"]

RKNN_MAGIC = b"RKNN"
VIP_MAGIC = b"VPMN"
ENCRYPTED_MAGIC = b"CYPTRKNN"
MARKER = b"\x89ANYNPU\n"
"""Bytes 4 to 11 of our own files. A genuine .rknn has zeros at 4, a genuine .nb a version number below 2**28."""

_MAX_RKNN_VERSION = 0xFFFF
_MAX_NB_VERSION = 0x0FFFFFFF

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, or the contents of a file in memory."""


class FileKind(str, enum.Enum):
    """What a file is."""

    ANYNPU = "anynpu"  # compiled by anynpu, for either family
    RKNN = "rknn"  # compiled by Rockchip's toolkit
    NB = "nb"  # compiled by Allwinner's, VeriSilicon's, toolkit
    ONNX = "onnx"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Contents:
    """The bytes of a file, mapped or in memory, and what to call it in messages.

    :ivar mapped: the bytes are a mapping of a file, which the caller cannot free or change
    """

    name: str
    data: memoryview
    mapped: bool


def open_source(source: Source) -> Contents:
    """Map a file read-only, or take bytes as they are.

    >>> open_source(b"RKNN").name
    'the model in memory'
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source)
        if not view.c_contiguous:
            raise ModelFormatError("the model in memory is not contiguous", hint="pass bytes, or a contiguous memoryview")
        return Contents("the model in memory", view.cast("B"), mapped=False)
    path = Path(source)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # asked before it is opened: opening a pipe would wait for its writer
            raise ModelError(f"{path} is not a regular file", hint="give the path of a model file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return Contents(path.name, memoryview(b""), mapped=False)
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{path} cannot be read: {reason}", hint="check the path and who may read the file") from error
    except ValueError as error:  # a path with a NUL byte, or a file that shrinks while it is opened
        raise ModelError(f"{str(path)!r} cannot be read: {error}", hint="check the path") from error
    return Contents(path.name, memoryview(mapping), mapped=True)


def identify(source: Source) -> FileKind:
    """What kind of model a file or buffer holds; reads a few bytes only.

    >>> identify(b"VPMN" + (0x10014).to_bytes(4, "little") + bytes(500))
    <FileKind.NB: 'nb'>
    >>> identify(b"hello")
    <FileKind.UNKNOWN: 'unknown'>
    """
    return kind_of(open_source(source).data)


def kind_of(data: memoryview) -> FileKind:
    """As :func:`identify`, for bytes that are at hand."""
    head = bytes(data[:16])
    if head[:4] in (RKNN_MAGIC, VIP_MAGIC) and head[4:12] == MARKER:
        return FileKind.ANYNPU
    if head[:8] == ENCRYPTED_MAGIC:
        return FileKind.RKNN
    if head[:4] == RKNN_MAGIC and len(head) == 16 and head[4:8] == bytes(4):
        version = int.from_bytes(head[8:16], "little")
        return FileKind.RKNN if 1 <= version <= _MAX_RKNN_VERSION else FileKind.UNKNOWN
    if head[:4] == VIP_MAGIC and len(head) >= 12:
        version = int.from_bytes(head[4:8], "little")
        return FileKind.NB if 1 <= version <= _MAX_NB_VERSION else FileKind.UNKNOWN
    return FileKind.ONNX if _looks_like_onnx(data) else FileKind.UNKNOWN


# ModelProto: field number -> wire type (0 a number, 2 a length and bytes)
_ONNX_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_ONNX_GRAPH = 7


def _looks_like_onnx(data: memoryview) -> bool:
    """Whether the bytes read as the outer fields of a ModelProto up to its graph."""
    position = 0
    for _ in range(256):
        key, position = _varint(data, position)
        field, wire = key >> 3, key & 7
        if position < 0 or _ONNX_FIELDS.get(field) != wire:
            return False
        value, position = _varint(data, position)
        if position < 0:
            return False
        if field == _ONNX_GRAPH:
            return value > 0
        if wire == 2:
            position += value
    return False


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number of up to 64 bits and the position behind it, which is -1 where there is none."""
    value = 0
    for index, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    return 0, -1
