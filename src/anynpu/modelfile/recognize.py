"""What kind of file this is, from its first bytes. Nothing here trusts a length that a file claims."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..errors import ModelError, ModelFormatError
from ..vendors import FileFormat, Vendor, registry

MARKER = b"\x89ANYNPU\n"
"""Bytes 4 to 11 of our own files; before them stands the mark of the chip's vendor, whose own files have other bytes here."""

_HEAD = 16

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
"""A path, or the contents of a file in memory."""


class _Kinds(type):
    """Lets ``FileKind.NAME`` be the kind of that name, for the formats of all vendors."""

    def __getattr__(cls, name: str) -> FileKind:
        key = name.lower()
        if name != key.upper() or registry.find(lambda vendor: any(form.name == key for form in vendor.files)) is None:
            raise AttributeError(f"there is no kind of file {name}")
        return FileKind(key)


class FileKind(str, metaclass=_Kinds):
    """What a file is: one of ours, an ONNX model, unknown, or a file of a vendor's tools under the name that its table gives the format.

    There is one object for each kind: ``is`` compares them.

    >>> FileKind("nb") is FileKind.NB
    True
    """

    _known: ClassVar[dict[str, FileKind]] = {}
    ANYNPU: ClassVar[FileKind]
    ONNX: ClassVar[FileKind]
    UNKNOWN: ClassVar[FileKind]

    def __new__(cls, value: str) -> FileKind:
        return cls._known.setdefault(value, super().__new__(cls, value))

    @property
    def value(self) -> str:
        """The name as plain text."""
        return str(self)

    @property
    def of_a_vendor(self) -> bool:
        """Whether a vendor's tools wrote it."""
        return self not in (FileKind.ANYNPU, FileKind.ONNX, FileKind.UNKNOWN)

    def __repr__(self) -> str:
        return f"<FileKind.{self.upper()}: '{self}'>"

    def __reduce__(self) -> tuple[type[FileKind], tuple[str]]:
        return FileKind, (str(self),)


FileKind.ANYNPU, FileKind.ONNX, FileKind.UNKNOWN = FileKind("anynpu"), FileKind("onnx"), FileKind("unknown")


@dataclass(frozen=True)
class Contents:
    """The bytes of a file, and what to call it in messages.

    :ivar mapped: the bytes were read from a file, into memory that the caller cannot free or change
    """

    name: str
    data: memoryview
    mapped: bool


def open_source(source: Source) -> Contents:
    """Read a file into memory of its own, or take bytes as they are.

    A mapping of the file would end the process with SIGBUS where another process cuts the file short.

    :raises ModelError: the file cannot be read, or changed meanwhile

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
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            if not before.st_size:
                return Contents(path.name, memoryview(b""), mapped=False)
            memory = memoryview(mmap.mmap(-1, before.st_size))
            done = 0
            while done < before.st_size and (count := file.readinto(memory[done:])):
                done += count
            after = os.fstat(file.fileno())
            if done < before.st_size or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise ModelError(
                    f"{path} changed while it was read", hint="write to another file and rename it; then read the model again"
                )
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{path} cannot be read: {reason}", hint="check the path and who may read the file") from error
    except ValueError as error:  # a path with a NUL byte, or a file that shrinks while it is opened
        raise ModelError(f"{str(path)!r} cannot be read: {error}", hint="check the path") from error
    return Contents(path.name, memory.toreadonly(), mapped=True)


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
    found = vendor_of(data)
    if found is not None and found[1] is not None:
        return FileKind(found[1].name)
    if found is not None and data[4:12] == MARKER:
        return FileKind.ANYNPU
    return FileKind.ONNX if _looks_like_onnx(data) else FileKind.UNKNOWN


def vendor_of(data: memoryview) -> tuple[Vendor, FileFormat | None] | None:
    """The vendor whose chips a compiled model is for, and the format if the vendor's own tools wrote it."""
    return registry.of_file(bytes(data[:_HEAD]))


_GIVE_MODEL = "give the model file itself"
_LATEST_TEXT = 512
_OTHER_CONTENT: tuple[tuple[bytes, str, str], ...] = (
    (b"\xff\xd8\xff", "a JPEG image", _GIVE_MODEL),
    (b"\x89PNG\r\n", "a PNG image", _GIVE_MODEL),
    (b"GIF8", "a GIF image", _GIVE_MODEL),
    (b"\x93NUMPY", "a NumPy array", _GIVE_MODEL),
    (b"\x7fELF", "a program or library", _GIVE_MODEL),
    (b"%PDF-", "a PDF document", _GIVE_MODEL),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"PK\x03\x04", "a ZIP archive", "unpack it first; PyTorch models are named .pt, .pth or .pt2, Keras models .keras"),
    (b"\x89HDF\r\n", "an HDF5 file", "export the model to ONNX; Keras models are named .keras or .h5"),
    (b"version https://git-lfs.", "a Git LFS pointer", "fetch the file that it stands for: git lfs pull"),
)
"""First bytes, what such a file is, and what to do about it."""


def name_content(data: memoryview | bytes) -> tuple[str, str] | None:
    """What a file that holds no model is, and what to do about it; None if that is not known.

    >>> name_content(b""), name_content(b"version https://git-lfs.github.com/spec/v1")
    (('an empty file', 'export or download the model again'), ('a Git LFS pointer', 'fetch the file that it stands for: git lfs pull'))
    """
    if not len(data):
        return "an empty file", "export or download the model again"
    head = bytes(data[:_LATEST_TEXT])
    for start, name, hint in _OTHER_CONTENT:
        if head.startswith(start):
            return name, hint
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "a web page", "download the file itself, not the page that shows it"
    return None


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
