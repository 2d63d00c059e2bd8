"""``anynpu run`` on pictures: what is printed, and what is drawn."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..._util import optional as _optional
from ..._util.output_files import check_output, write_output
from ..._util.types import Array
from ...compiler.images import IMAGE_SUFFIXES
from ...errors import ImageError, ParameterError
from ...tasks import Result, TextLine, TextRegions, Thresholds
from ...tasks.draw import draw
from ..demo.panels import captioned, side_by_side
from .console import plain_table
from .image_models import FloatPictureModel, PictureModel, predicted_fps
from .image_sources import VIDEO_SUFFIXES, Frame, FrameSource

__all__ = ["Canvas", "Shown", "open_canvas", "print_shown", "show", "speed_line"]

_TABLE_ROWS = 20
_FPS = 25.0


@dataclass(frozen=True)
class Shown:
    """What a model says about one picture.

    :ivar drawn: the file that it was drawn into, if any
    :ivar in_float: the result of the float model, if it was asked for
    """

    name: str
    result: Result
    rows: list[dict[str, Any]]
    drawn: Path | None
    in_float: Shown | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        data = {"picture": self.name, "results": self.rows, "drawn": None if self.drawn is None else str(self.drawn)}
        return data if self.in_float is None else {**data, "float": self.in_float.rows}

    @property
    def words(self) -> str:
        """One line: ``2 person, 1 dog``."""
        if isinstance(self.result, TextLine):
            return f"{self.result.text!r} {self.result.score:.2f}"
        if isinstance(self.result, TextRegions) and not self.result.lines:
            return f"{len(self.rows)} regions of text"
        if isinstance(self.result, TextRegions):
            return " | ".join(line.text for line in self.result.lines) or "no text"
        if self.rows and "box" not in self.rows[0]:
            return ", ".join(f"{row['label']} {row.get('score', row.get('share')):.2f}" for row in self.rows[:3])
        counted = Counter(row["label"] for row in self.rows)
        return ", ".join(f"{count} {label}" for label, count in counted.most_common()) or "nothing found"


class Canvas:
    """Where drawn pictures go: a file, a folder, or a video."""

    def __init__(self, path: Path, source: FrameSource) -> None:
        self._path = path
        self._source = source
        self._writer: Any = None
        self._unfinished = path.with_name(f".{path.stem}.{secrets.token_hex(6)}{path.suffix}")
        suffix = path.suffix.lower()
        self._is_video = suffix in VIDEO_SUFFIXES
        self._is_file = suffix in IMAGE_SUFFIXES
        if self._is_video and not source.is_moving:
            raise ParameterError(f"--draw {path}: a {source.kind} is not drawn into a video", hint="give a picture or a folder")
        if self._is_file and source.kind != "picture":
            raise ParameterError(
                f"--draw {path}: a {source.kind} has many pictures", hint="give a folder, or for frames a video such as out.mp4"
            )
        if not self._is_file and not self._is_video and (path.suffix and not path.is_dir()) and source.kind == "picture":
            raise ParameterError(
                f"--draw {path}: pictures are not written as {path.suffix}", hint="write .jpg or .png, or give a folder"
            )
        drawn = [path] if self._is_file or self._is_video else [path / _file_name(file.name) for file in source.files]
        for file in drawn:
            check_output(file, source.files)
        folder = path.parent if self._is_file or self._is_video else path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ParameterError(
                f"--draw {path}: the folder {folder} cannot be made: {error.strerror}", hint="name another place"
            ) from None

    def put(self, name: str, picture: Array) -> Path:
        """Write one picture; the path of the file that it is in."""
        cv2 = _optional.cv2()
        turned = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
        if self._is_video:
            if self._writer is None:
                code = cv2.VideoWriter_fourcc(*("MJPG" if self._path.suffix.lower() == ".avi" else "mp4v"))
                extent = (picture.shape[1], picture.shape[0])
                self._writer = cv2.VideoWriter(str(self._unfinished), code, self._source.fps or _FPS, extent)
                if not self._writer.isOpened():
                    raise ImageError(f"cannot write the video '{self._path}'", hint="write .avi or .mp4, or give a folder")
            self._writer.write(turned)
            return self._path
        path = self._path if self._is_file else self._path / _file_name(name)
        return write_output(path, cv2.imencode(path.suffix, turned)[1].tobytes(), inputs=self._source.files)

    def close(self) -> None:
        """End a video."""
        if self._writer is not None:
            self._writer.release()
            os.replace(self._unfinished, os.path.realpath(self._path))


@contextmanager
def open_canvas(path: Path | None, source: FrameSource) -> Iterator[Canvas | None]:
    """The canvas for *path*, checked before any work; None without a path."""
    if path is None:
        yield None
        return
    canvas = Canvas(path, source)
    try:
        yield canvas
    finally:
        canvas.close()


def _file_name(name: str) -> str:
    if Path(name).suffix.lower() in IMAGE_SUFFIXES:
        return Path(name).name
    return f"{name.replace(' ', '_').replace('/', '_')}.jpg"


def show(
    model: PictureModel | FloatPictureModel,
    recognizer: PictureModel | None,
    frames: Iterable[Frame],
    canvas: Canvas | None,
    thresholds: Thresholds | None,
    in_float: FloatPictureModel | None = None,
) -> Iterator[Shown]:
    """Each picture's result, drawn where there is a canvas.

    :param in_float: the float model, whose result is drawn to the left
    """
    for frame in frames:
        result = model.result(frame.picture, thresholds)
        if recognizer is not None and isinstance(result, TextRegions):
            result = recognizer.read_regions(frame.picture, result)
        labels, other = model.labels, None
        if in_float is not None:
            found = in_float.result(frame.picture, thresholds)
            other = Shown(frame.name, found, list(found.rows(in_float.labels)), None)
        drawn = None
        if canvas is not None:
            image = draw(frame.picture, result, labels)
            if other is not None and isinstance(model, PictureModel):
                panels = [(draw(frame.picture, other.result, labels), "float32"), (image, f"{model.model.dtype}, {model.chip}")]
                image = side_by_side([captioned(panel, caption) for panel, caption in panels])
            drawn = canvas.put(frame.name, image)
        yield Shown(frame.name, result, list(result.rows(labels)), drawn, other)


def print_shown(console: Console, shown: Shown, *, alone: bool) -> None:
    """One line, and for a single picture a table."""
    console.print(f"{shown.name}: {shown.words}")
    if shown.in_float is not None:
        console.print(f"  float32: {shown.in_float.words}")
    if not alone or isinstance(shown.result, TextLine) or not shown.rows:
        return
    number = ("score", "box", "share", "text score")
    columns = [key for key in ("text", "label", "score", "text_score", "share", "box", "corners") if key in shown.rows[0]]
    table = plain_table(*(key.replace("_", " ") for key in columns), right=number)
    for row in shown.rows[:_TABLE_ROWS]:
        table.add_row(*(_cell(row[key]) for key in columns))
    console.print(table)
    if len(shown.rows) > _TABLE_ROWS:
        console.print(f"and {len(shown.rows) - _TABLE_ROWS} more; --json has all")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " ".join(
            f"{entry:.0f}" if isinstance(entry, float) else ",".join(f"{part:.0f}" for part in entry) for entry in value
        )
    return str(value)


def speed_line(model: PictureModel | FloatPictureModel, shape_set: int) -> str:
    """Pictures per second here, and as predicted for the chip."""
    spent = model.spent
    here = f"{spent.fps:.1f} pictures per second here ({1000 * spent.running / max(spent.pictures, 1):.1f} ms network"
    here = f"{here}, {1000 * spent.reading / max(spent.pictures, 1):.1f} ms outputs)"
    if not isinstance(model, PictureModel):
        return here
    fps, confidence = predicted_fps(model.model, shape_set, model.chip)
    return f"{here}; {model.chip}: {fps:.0f} per second predicted on all cores, {confidence}"
