"""A network that is shown images, whatever runs it: how they get in, what its outputs state, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .._util.types import Array
from ..errors import ShapeError
from .detect import OutputReader, Result
from .letterbox import Placement, fit_picture
from .results import TextLine, TextRegions, Thresholds
from .text import crop_text, split_line

Run = Callable[[Array], Sequence[Array]]
"""A network: uint8 [1, C, H, W] in, its outputs out."""


@dataclass
class Spent:
    """Seconds spent on images so far.

    :ivar running: in the network
    :ivar reading: in its outputs
    """

    pictures: int = 0
    running: float = 0.0
    reading: float = 0.0
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)

    @property
    def fps(self) -> float:
        """Images per second, without reading and drawing files."""
        return self.pictures / max(self.running + self.reading, 1e-9)


class PictureReader:
    """Shows images to a network and reads what it answers.

    :param run: the network
    :param channels: of its input: 3, or 1 for gray
    :param order: of the channels that *run* takes, ``rgb`` or ``bgr``
    :param fit: how an image gets into the input; that of the reader where not given
    """

    def __init__(self, reader: OutputReader, run: Run, *, channels: int = 3, order: str = "rgb", fit: str | None = None) -> None:
        self.reader = reader
        self.size = reader.size
        self.fit = fit or reader.fit
        self.spent = Spent()
        self._network = run
        self._channels = channels
        self._order = order

    def outputs(self, fitted: Array) -> Sequence[Array]:
        """The outputs for an image in the size of the input, RGB uint8 [H, W, 3]."""
        planes = fitted.transpose(2, 0, 1)
        if self._channels == 1:
            planes = (planes.astype(np.uint32) * np.array([77, 150, 29], np.uint32)[:, None, None]).sum(0, keepdims=True) >> 8
        elif self._order == "bgr":
            planes = planes[::-1]
        return self._network(np.ascontiguousarray(planes[None], np.uint8))

    def result(self, picture: Array, thresholds: Thresholds | None = None) -> Result:
        """What the network states about *picture*, RGB uint8 [H, W, 3], in its own pixels."""
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
        """The line of text in a region, where the network is a recognizer. A line that is too long for its input is read in pieces."""
        text, scores = "", []
        for piece, between in split_line(crop_text(picture, corners, self.size[0]), self.size[1]):
            line = self._read(piece)
            if not isinstance(line, TextLine):
                raise ShapeError(f"the network reads no text: {self.reader.words}", hint="give a recognizer with --recognize")
            text += (between if text else "") + line.text
            scores += [line.score] * len(line.text)
        return TextLine(text.strip(), float(np.mean(scores)) if scores else 0.0)

    def read_regions(self, picture: Array, regions: TextRegions) -> TextRegions:
        """The text in each region, where the network is a recognizer."""
        lines = tuple(self.read_line(picture, corners) for corners in regions.corners)
        return TextRegions(regions.corners, regions.scores, lines)
