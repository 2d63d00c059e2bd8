"""A model that is shown images, compiled or in float: how they get in, what its outputs state, and how fast that is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import anynpu

from ... import chips
from ..._util import optional as _optional
from ..._util.types import Array
from ...chips import timing
from ...compiler.images import IMAGE_SUFFIXES, decode_image, read_image
from ...errors import ImageError, ShapeError
from ...program import Model
from ...session import InferenceSession
from ...tasks import COCO, PictureReader, labels_from_metadata, reader_for
from .onnxfile import reversed_orders

# Where images come from: a file, a folder, a video, a camera, or a stream on stdin.


VIDEO_SUFFIXES = frozenset({".avi", ".m4v", ".mjpeg", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm"})
"""File names that end so are taken for videos, in either case."""

MAX_FRAME_BYTES = 1 << 26
"""Bytes of one encoded image of a stream."""

_CHUNK = 1 << 16
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"


@dataclass(frozen=True)
class Frame:
    """One image: RGB uint8 [H, W, 3], and what to call it."""

    name: str
    picture: Array


@dataclass(frozen=True)
class FrameSource:
    """Images to be gone through once.

    :ivar kind: ``picture``, ``folder``, ``video``, ``camera`` or ``stream``
    :ivar fps: images per second that the source itself states; 0 if it does not
    :ivar files: what is read
    """

    kind: str
    frames: Iterator[Frame]
    fps: float = 0.0
    files: tuple[Path, ...] = ()

    @property
    def is_moving(self) -> bool:
        """Whether its images follow each other in time."""
        return self.kind in ("video", "camera", "stream")


def open_source(text: str) -> FrameSource:
    """The images that *text* names: a path, the number or device of a camera, or ``-`` for JPEG or PNG images on stdin.

    :raises ImageError: there is nothing that could be read
    """
    if text == "-":
        return FrameSource("stream", _stream(sys.stdin.buffer))
    path = Path(text)
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file())
        if not files:
            raise ImageError(f"no images in the folder '{path}'", hint="name the folder that holds the images themselves")
        return FrameSource("folder", (Frame(file.name, read_image(file)) for file in files), files=tuple(files))
    if text.isdecimal() and not path.exists():
        return _captured(int(text), f"camera {text}", "camera")
    if path.is_char_device() and path.name.startswith("video"):
        return _captured(text, text, "camera")
    if not path.is_file():
        raise ImageError(
            f"there is no image, folder or video '{text}'",
            hint="give a path, the number of a camera, or - for images on stdin",
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
            f"the images of {kind} '{name}' have {width:.0f} x {height:.0f} pixels",
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
                raise ImageError(f"{kind} '{name}' gave no image", hint="open it in a player; OpenCV must know its format")
        finally:
            capture.release()

    return FrameSource(kind, frames(), fps if 0.0 < fps < 1000.0 else 0.0)


def _stream(stream: BinaryIO) -> Iterator[Frame]:
    number = 0
    for number, encoded in enumerate(split_stream(stream), 1):
        name = f"frame {number}"
        yield Frame(name, decode_image(np.frombuffer(encoded, np.uint8), name))
    if not number:
        raise ImageError("no image came on stdin", hint="pipe JPEG or PNG images in: ffmpeg -i in.mp4 -f image2pipe -c:v mjpeg -")


def split_stream(stream: BinaryIO) -> Iterator[bytes]:
    """The JPEG and PNG images that follow each other in *stream*, each as soon as it is complete."""
    reader = _Reader(stream)
    while reader.has(2):
        start = bytes(reader.buffer[:2])
        if start == _JPEG:
            length = _jpeg_length(reader)
        elif reader.has(len(_PNG)) and reader.buffer[: len(_PNG)] == _PNG:
            length = _png_length(reader)
        else:
            raise ImageError("what came on stdin is neither JPEG nor PNG", hint="pipe encoded images in, one after the other")
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
            raise ImageError(f"an image of more than {MAX_FRAME_BYTES >> 20} MB on stdin", hint="send smaller images")
        while len(self.buffer) < count:
            chunk = self._read(_CHUNK)
            if not chunk:
                return False
            self.buffer += chunk
        return True

    def need(self, count: int) -> None:
        """As :meth:`has`, where the image cannot end before."""
        if not self.has(count):
            raise ImageError("the last image on stdin is cut short", hint="did the program that sends them end early?")

    def take(self, count: int) -> bytes:
        """The first *count* bytes."""
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken


def _png_length(reader: _Reader) -> int:
    """Chunks, each with its length, until the one that ends the image."""
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
            raise ImageError("a JPEG image on stdin is damaged", hint="pipe the images in as they are, one after the other")
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


class PictureModel(PictureReader):
    """A model on the software NPU that takes images. Close it after use, or use it in a ``with`` block.

    :param task: what its outputs are; guessed where not given
    :param given: options of a session; with ``isolate`` the model runs in a process of its own
    :ivar assumes_coco: no class names were given, and there are as many as COCO has
    """

    def __init__(
        self,
        path: Path,
        *,
        target: str | None = None,
        shape_set: int = 0,
        task: str | None = None,
        head: str | None = None,
        labels: Sequence[str] = (),
        fit: str | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Model = anynpu.load(path)
        self.program = self.model.programs[shape_set]
        self.spec = self.program.input_specs[0]
        if (
            len(self.program.inputs) != 1
            or len(self.spec.shape) != 4
            or self.spec.shape[0] != 1
            or self.spec.shape[1] not in (1, 3)
        ):
            raise ShapeError(
                f"{path.name} does not take one image: its inputs are "
                + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.program.input_specs),
                hint="give each input with --input NAME=FILE",
            )
        metadata = {} if self.model.metadata is None else dict(self.model.metadata.properties)
        self.labels = tuple(labels) or labels_from_metadata(metadata)
        size = (self.spec.shape[2], self.spec.shape[3])
        shapes = [spec.shape for spec in self.program.output_specs]
        reader = reader_for(size, shapes, task=task, head=head, labels=self.labels, metadata=metadata)
        preprocess = self.model.preprocess.get(self.spec.name)
        order = "rgb" if preprocess is None else preprocess.picture or "rgb"
        self.assumes_coco = not self.labels and reader.task in ("detect", "segment") and reader.classes == len(COCO)
        if self.assumes_coco:
            self.labels = COCO
        super().__init__(
            reader, lambda planes: self._run({self.spec.name: planes}), channels=self.spec.shape[1], order=order, fit=fit
        )
        self.chip = target or self.model.chip
        self._cleanup = contextlib.ExitStack()
        self._run = self._opened(path, shape_set, given or {})

    def _opened(self, path: Path, shape_set: int, given: Mapping[str, Any]) -> Callable[[dict[str, Array]], Sequence[Array]]:
        with contextlib.ExitStack() as stack:
            if given.get("isolate"):
                session = stack.enter_context(InferenceSession(path, provider_options=dict(given), device=f"sim:{self.chip}"))
                run: Callable[[dict[str, Array]], Sequence[Array]] = lambda arrays: session.run(None, arrays)  # noqa: E731
            else:
                device = stack.enter_context(anynpu.Device(self.chip))
                loaded = stack.enter_context(device.load(self.model))
                run = stack.enter_context(loaded.context(shapes=shape_set)).run
            self._cleanup = stack.pop_all()
        return run

    def __enter__(self) -> PictureModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()


class FloatPictureModel(PictureReader):
    """An ONNX model that takes images, in float32 on this machine.

    :param like: a compiled model whose mean, std and channel order are used; without it, usual ones are tried on *first*
    :param first: an image
    :ivar preprocessing: how the images are prepared, in words
    """

    def __init__(
        self,
        path: Path,
        *,
        like: PictureModel | None = None,
        first: Array | None = None,
        task: str | None = None,
        head: str | None = None,
        labels: Sequence[str] = (),
        fit: str | None = None,
    ) -> None:
        from ...compiler.importers.onnx_graph import import_onnx
        from ...compiler.importers.onnx_model import load_onnx
        from ...compiler.quantize.calibrate import FloatModel

        proto = load_onnx(path)
        given = None if like is None else {like.spec.name: like.spec.shape}
        graph = import_onnx(proto, given)
        shapes = {name: graph.shapes[name] for name in graph.inputs}
        name, shape = next(iter(shapes.items()), ("", ()))
        if len(shapes) != 1 or len(shape) != 4 or shape[0] != 1 or shape[1] not in (1, 3):
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ShapeError(
                f"{path.name} does not take one image: its inputs are {listed}",
                hint="compile it, and give the file that compile writes with --input NAME=FILE",
            )
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self.labels = tuple(labels) or labels_from_metadata(metadata)
        outputs = list(graph.outputs)
        reader = reader_for(
            (shape[2], shape[3]),
            [graph.shapes[output] for output in outputs],
            task=task,
            head=head,
            labels=self.labels,
            metadata=metadata,
        )
        self.assumes_coco = not self.labels and reader.task in ("detect", "segment") and reader.classes == len(COCO)
        if self.assumes_coco:
            self.labels = COCO
        self.chip = "float32"
        (mean, std, is_bgr), self.preprocessing = _as_compiled(like) if like is not None else _tried(path, first, shapes)
        model = FloatModel(graph, outputs, {})

        def run(planes: Array) -> Sequence[Array]:
            count = planes.shape[1]
            values = (planes.astype(np.float32) - mean[:count, None, None]) / std[:count, None, None]
            made = model.run({name: np.ascontiguousarray(values[:, ::-1] if is_bgr else values)})
            return [np.asarray(made[output]) for output in outputs]

        super().__init__(reader, run, channels=shape[1], fit=fit)


_Preparation = tuple[Array, Array, bool]
"""Mean and std of RGB channels, and whether the network takes BGR."""


def _as_compiled(model: PictureModel) -> tuple[_Preparation, str]:
    preprocess = model.model.preprocess.get(model.spec.name)
    mean, std = ((0.0,), (1.0,)) if preprocess is None else (preprocess.mean, preprocess.std)
    order = list(reversed_orders(model.model).values())
    prepared = _three(mean), _three(std), "bgr" in order
    return prepared, "images are prepared as for the compiled model"


def _tried(path: Path, first: Array | None, shapes: Mapping[str, tuple[int, ...]]) -> tuple[_Preparation, str]:
    from ...compiler.quantize.detect_preprocessing import find_recipe

    # one image states little; its mirror image is another one
    images = [] if first is None else [first, np.ascontiguousarray(first[:, ::-1])]
    found = find_recipe(path, images, shapes=dict(shapes))
    if found.best is None:
        words = "which preprocessing it was trained with cannot be determined from this image; values from 0 to 1 are assumed"
        return (_three((0.0,)), _three((255.0,)), False), words
    is_bgr = found.best.order == "bgr"
    mean, std = (values[::-1] if is_bgr else values for values in (found.best.mean, found.best.std))
    return (_three(mean), _three(std), is_bgr), f"preprocessing found by trying: {found.words}"


def _three(values: Sequence[float]) -> Array:
    return np.resize(np.asarray(values, np.float32), 3)


def predicted_fps(model: Model, shape_set: int, chip: str) -> tuple[float, str]:
    """Images per second that all cores of a chip are predicted to reach, and the confidence in it."""
    prediction = timing.predict(model.programs[shape_set], chips.get(chip))
    return timing.fps(prediction), str(prediction.confidence)
