"""From a text detector's probability map to boxes, and boxes on a picture.

The steps are those of differentiable binarisation: threshold, contours, smallest rotated rectangle, and growing it back by what the
training shrank it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _optional

__all__ = ["TextBox", "captioned", "draw_boxes", "find_boxes", "side_by_side"]

Image = npt.NDArray[np.uint8]

_SMALLEST_SIDE = 3.0
_CAPTION_HEIGHT = 34


@dataclass(frozen=True)
class TextBox:
    """A rotated rectangle around text.

    :ivar corners: four points (x, y), in order around the box
    :ivar score: mean probability inside the contour
    """

    corners: tuple[tuple[float, float], ...]
    score: float

    @property
    def center(self) -> tuple[float, float]:
        xs, ys = zip(*self.corners, strict=True)
        return sum(xs) / 4, sum(ys) / 4


def find_boxes(
    probability: npt.NDArray[np.floating], *, threshold: float = 0.3, min_score: float = 0.5, unclip: float = 2.0
) -> list[TextBox]:
    """Boxes of a probability map [H, W], from the top of the page to its bottom.

    :param threshold: a pixel above it belongs to text
    :param min_score: boxes with a smaller mean probability are dropped
    :param unclip: how far a box grows: area * unclip / perimeter on every side
    """
    cv2 = _optional.cv2()
    values = np.ascontiguousarray(probability, np.float32)
    text = (values > threshold).astype(np.uint8)
    contours, _ = cv2.findContours(text, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    boxes = []
    for contour in contours:
        center, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < _SMALLEST_SIDE:
            continue
        inside = np.zeros_like(text)
        cv2.drawContours(inside, [contour], -1, 1, -1)
        score = float(values[inside.astype(bool)].mean())
        if score < min_score:
            continue
        grow = width * height * unclip / (2 * (width + height))
        corners = cv2.boxPoints((center, (width + 2 * grow, height + 2 * grow), angle))
        boxes.append(TextBox(tuple((float(x), float(y)) for x, y in corners), score))
    return sorted(boxes, key=lambda box: (box.center[1], box.center[0]))


def draw_boxes(image: Image, boxes: Sequence[TextBox], color: tuple[int, int, int]) -> Image:
    """A copy of *image* with the outlines of *boxes*."""
    cv2 = _optional.cv2()
    canvas: Image = image.copy()
    for box in boxes:
        corners = np.rint(np.asarray(box.corners)).astype(np.int32)
        cv2.polylines(canvas, [corners], True, color, 2, cv2.LINE_AA)
    return canvas


def captioned(image: Image, caption: str) -> Image:
    """*image* under a white strip with a line of text."""
    cv2 = _optional.cv2()
    strip = np.full((_CAPTION_HEIGHT, image.shape[1], 3), 255, np.uint8)
    cv2.putText(strip, caption, (8, 23), cv2.FONT_HERSHEY_SIMPLEX, 0.55, (30, 30, 30), 1, cv2.LINE_AA)
    stacked: Image = np.vstack([strip, image])
    return stacked


def side_by_side(panels: Sequence[Image], gap: int = 12) -> Image:
    """Panels of equal height in one row, with white gaps."""
    white = np.full((panels[0].shape[0], gap, 3), 255, np.uint8)
    row = [panels[0]]
    for panel in panels[1:]:
        row += [white, panel]
    return np.hstack(row)
