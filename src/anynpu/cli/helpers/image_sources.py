"""Where pictures come from: a file, a folder, a video, a camera, or a stream on stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..._util import optional as _optional
from ..._util.types import Array
from ...compiler.images import IMAGE_SUFFIXES, decode_image, read_image
from ...errors import ImageError

__all__ = ["MAX_FRAME_BYTES", "VIDEO_SUFFIXES", "Frame", "FrameSource", "open_source", "split_stream"]

VIDEO_SUFFIXES = frozenset({".avi", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm"})
"""File names that end so are taken for videos, in either case."""

MAX_FRAME_BYTES = 1 << 26
"""Bytes of one encoded picture of a stream."""

_CHUNK = 1 << 16
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"


@dataclass(frozen=True)
class Frame:
    """One picture: RGB uint8 [H, W, 3], and what to call it."""

    name: str
    picture: Array


@dataclass(frozen=True)
class FrameSource:
    """Pictures to be gone through once.

    :ivar kind: ``picture``, ``folder``, ``video``, ``camera`` or ``stream``
    :ivar fps: pictures per second that the source itself states; 0 if it does not
    :ivar files: what is read
    """

    kind: str
    frames: Iterator[Frame]
    fps: float = 0.0
    files: tuple[Path, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Whether its pictures follow each other in time."""
        return self.kind in ("video", "camera", "stream")


def open_source(text: str) -> FrameSource:
    """The pictures that *text* names: a path, the number or device of a camera, or ``-`` for JPEG or PNG pictures on stdin.

    :raises ImageError: there is nothing that could be read
    """
    if text == "-":
        return FrameSource("stream", _stream(sys.stdin.buffer))
    path = Path(text)
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file())
        if not files:
            raise ImageError(f"no pictures in the folder '{path}'", hint="name the folder that holds the pictures themselves")
        return FrameSource("folder", (Frame(file.name, read_image(file)) for file in files), files=tuple(files))
    if text.isdecimal() and not path.exists():
        return _captured(int(text), f"camera {text}", "camera")
    if path.is_char_device() and path.name.startswith("video"):
        return _captured(text, text, "camera")
    if not path.is_file():
        raise ImageError(
            f"there is no picture, folder or video '{text}'",
            hint="give a path, the number of a camera, or - for pictures on stdin",
        )
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return replace(_captured(text, path.name, "video"), files=(path,))
    return FrameSource("picture", iter([Frame(path.name, read_image(path))]), files=(path,))


def _captured(which: int | str, name: str, kind: str) -> FrameSource:
    cv2 = _optional.cv2()
    capture = cv2.VideoCapture(which)
    if not capture.isOpened():
        hint = "is it connected, and may you use it?" if kind == "camera" else "open it in a player; OpenCV must know its format"
        raise ImageError(f"cannot read {name}" if isinstance(which, int) else f"cannot read {kind} '{name}'", hint=hint)
    width, height = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    if width * height > _optional.MAX_PIXELS:
        capture.release()
        raise ImageError(
            f"the pictures of {kind} '{name}' have {width:.0f} x {height:.0f} pixels",
            hint=f"at most {_optional.MAX_PIXELS} pixels are read; make it smaller",
        )
    fps = float(capture.get(cv2.CAP_PROP_FPS))

    def frames() -> Iterator[Frame]:
        try:
            number = 0
            while True:
                there, picture = capture.read()
                if not there:
                    break
                number += 1
                yield Frame(f"{name} frame {number}", cv2.cvtColor(picture, cv2.COLOR_BGR2RGB))
            if not number:
                raise ImageError(f"{kind} '{name}' gave no picture", hint="open it in a player; OpenCV must know its format")
        finally:
            capture.release()

    return FrameSource(kind, frames(), fps if 0.0 < fps < 1000.0 else 0.0)


def _stream(stream: BinaryIO) -> Iterator[Frame]:
    number = 0
    for number, encoded in enumerate(split_stream(stream), 1):
        name = f"frame {number}"
        yield Frame(name, decode_image(np.frombuffer(encoded, np.uint8), name))
    if not number:
        raise ImageError(
            "no picture came on stdin", hint="pipe JPEG or PNG pictures in: ffmpeg -i in.mp4 -f image2pipe -c:v mjpeg -"
        )


def split_stream(stream: BinaryIO) -> Iterator[bytes]:
    """The JPEG and PNG pictures that follow each other in *stream*, each as soon as it is complete."""
    reader = _Reader(stream)
    while reader.has(2):
        start = bytes(reader.buffer[:2])
        if start == _JPEG:
            length = _jpeg_length(reader)
        elif reader.has(len(_PNG)) and reader.buffer[: len(_PNG)] == _PNG:
            length = _png_length(reader)
        else:
            raise ImageError("what came on stdin is neither JPEG nor PNG", hint="pipe encoded pictures in, one after the other")
        yield reader.take(length)


class _Reader:
    """A stream whose beginning can be looked at before it is taken.

    :ivar buffer: what was read and not taken
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self.buffer = bytearray()

    def has(self, count: int) -> bool:
        """Whether there are *count* bytes."""
        if count > MAX_FRAME_BYTES:
            raise ImageError(f"a picture of more than {MAX_FRAME_BYTES >> 20} MB on stdin", hint="send smaller pictures")
        while len(self.buffer) < count:
            chunk = self._read(_CHUNK)
            if not chunk:
                return False
            self.buffer += chunk
        return True

    def need(self, count: int) -> None:
        """As :meth:`has`, where the picture cannot end before."""
        if not self.has(count):
            raise ImageError("the last picture on stdin is cut short", hint="did the program that sends them end early?")

    def take(self, count: int) -> bytes:
        """The first *count* bytes."""
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken


def _png_length(reader: _Reader) -> int:
    """Chunks, each with its length, until the one that ends the picture."""
    place = len(_PNG)
    while True:
        reader.need(place + 8)
        length, kind = int.from_bytes(reader.buffer[place : place + 4], "big"), bytes(reader.buffer[place + 4 : place + 8])
        place += 12 + length
        reader.need(place)
        if kind == b"IEND":
            return place


def _jpeg_length(reader: _Reader) -> int:
    """Segments, each with its length, and after the start of a scan data until a marker that is not part of them."""
    place = 2
    while True:
        reader.need(place + 2)
        if reader.buffer[place] != 0xFF:
            raise ImageError("a JPEG picture on stdin is damaged", hint="pipe the pictures in as they are, one after the other")
        marker = reader.buffer[place + 1]
        if marker == 0xD9:
            return place + 2
        if marker == 0xFF:  # filling
            place += 1
            continue
        reader.need(place + 4)
        place += 2 + int.from_bytes(reader.buffer[place + 2 : place + 4], "big")
        if marker == 0xDA:
            place = _scan_end(reader, place)


def _scan_end(reader: _Reader, place: int) -> int:
    while True:
        found = reader.buffer.find(b"\xff", place)
        if found < 0:
            place = len(reader.buffer)
            reader.need(place + 1)
            continue
        reader.need(found + 2)
        following = reader.buffer[found + 1]
        if following and not 0xD0 <= following <= 0xD7:
            return found
        place = found + 2
