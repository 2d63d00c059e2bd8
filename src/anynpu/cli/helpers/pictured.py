"""A compiled model that is shown pictures: how they get in, what its outputs say, and how fast that is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import anynpu

from ... import chips, timing
from ...errors import ShapeError
from ...program import Model
from ...session import InferenceSession
from ...tasks import (
    COCO,
    OutputReader,
    Placement,
    Result,
    TextLine,
    TextRegions,
    Thresholds,
    crop_text,
    fit_picture,
    labels_from_metadata,
    reader_for,
    split_line,
)
from ...types import Array

__all__ = ["PictureModel", "Spent", "predicted_fps"]


@dataclass
class Spent:
    """Seconds spent on pictures so far.

    :ivar running: in the network
    :ivar reading: in its outputs
    """

    pictures: int = 0
    running: float = 0.0
    reading: float = 0.0
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    @property
    def fps(self) -> float:
        """Pictures per second, without reading and drawing files."""
        return self.pictures / max(self.running + self.reading, 1e-9)


class PictureModel:
    """A model on the software NPU that takes pictures. Close it after use, or use it in a ``with`` block.

    :param task: what its outputs are; guessed where not given
    :param given: options of a session; with ``isolate`` the model runs in a process of its own
    :ivar assumes_coco: nobody named the classes, and there are as many as COCO has
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
                f"{path.name} does not take one picture: its inputs are "
                + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.program.input_specs),
                hint="give each input with --input NAME=FILE",
            )
        metadata = {} if self.model.metadata is None else dict(self.model.metadata.properties)
        self.labels = tuple(labels) or labels_from_metadata(metadata)
        self.size = (self.spec.shape[2], self.spec.shape[3])
        shapes = [spec.shape for spec in self.program.output_specs]
        self.reader: OutputReader = reader_for(self.size, shapes, task=task, head=head, labels=self.labels, metadata=metadata)
        self.assumes_coco = not self.labels and self.reader.task in ("detect", "segment") and self.reader.classes == len(COCO)
        if self.assumes_coco:
            self.labels = COCO
        self.fit = fit or self.reader.fit
        self.chip = target or self.model.chip
        self.spent = Spent()
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

    def outputs(self, fitted: Array) -> Sequence[Array]:
        """The outputs for a picture in the size of the input, RGB uint8 [H, W, 3]."""
        planes = fitted.transpose(2, 0, 1)
        if self.spec.shape[1] == 1:
            planes = (planes.astype(np.uint32) * np.array([77, 150, 29], np.uint32)[:, None, None]).sum(0, keepdims=True) >> 8
        preprocess = self.model.preprocess.get(self.spec.name)
        if preprocess is not None and preprocess.picture == "bgr":
            planes = planes[::-1]
        return self._run({self.spec.name: np.ascontiguousarray(planes[None], np.uint8)})

    def result(self, picture: Array, thresholds: Thresholds | None = None) -> Result:
        """What the model says about *picture*, in its own pixels."""
        self.spent.pictures += 1
        if self.reader.head == "text line":
            height, width = picture.shape[:2]
            return self.read_line(picture, np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32))
        fitted, placement = fit_picture(picture, self.size, self.fit)
        return self._read(fitted, placement, thresholds)

    def _read(self, fitted: Array, placement: Placement | None = None, thresholds: Thresholds | None = None) -> Result:
        began = self.spent.clock()
        outputs = self.outputs(fitted)
        ran = self.spent.clock()
        result = self.reader.read(outputs, placement, thresholds)
        self.spent.running += ran - began
        self.spent.reading += self.spent.clock() - ran
        return result

    def read_line(self, picture: Array, corners: Array) -> TextLine:
        """The line of text in a region, where this model is a recogniser. A line that is too long for its input is read in pieces."""
        text, scores = "", []
        for piece, between in split_line(crop_text(picture, corners, self.size[0]), self.size[1]):
            line = self._read(piece)
            if not isinstance(line, TextLine):
                raise ShapeError(
                    f"{self.model.name} reads no text: {self.reader.words}", hint="give a recogniser with --recognize"
                )
            text += (between if text else "") + line.text
            scores += [line.score] * len(line.text)
        return TextLine(text.strip(), float(np.mean(scores)) if scores else 0.0)

    def read_regions(self, picture: Array, regions: TextRegions) -> TextRegions:
        """The text in each region, where this model is a recogniser."""
        lines = tuple(self.read_line(picture, corners) for corners in regions.corners)
        return TextRegions(regions.corners, regions.scores, lines)


def predicted_fps(model: Model, shape_set: int, chip: str) -> tuple[float, str]:
    """Pictures per second that all cores of a chip are predicted to reach, and the confidence in it."""
    prediction = timing.predict(model.programs[shape_set], chips.get(chip))
    return timing.fps(prediction), str(prediction.confidence)
