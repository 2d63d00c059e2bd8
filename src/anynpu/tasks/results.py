"""What decoders give back: frozen dataclasses of arrays, in the pixels of the network's input until they are placed on the image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._util.types import Array
from .letterbox import Placement


@dataclass(frozen=True)
class Thresholds:
    """What a decoder keeps.

    :ivar score: smallest score of a detection
    :ivar overlap: boxes of one class that overlap by more (intersection over union) are one detection
    :ivar count: maximum number of detections
    """

    score: float = 0.25
    overlap: float = 0.45
    count: int = 300


@dataclass(frozen=True, eq=False)
class Detections:
    """Objects in an image, the highest score first.

    :ivar boxes: float32 [N, 4]: left, top, right, bottom
    :ivar scores: float32 [N]
    :ivar classes: int64 [N]
    :ivar keypoints: float32 [N, K, 3] of x, y and score, where the network has them
    :ivar corners: float32 [N, 4, 2] of rotated boxes; their :attr:`boxes` are the upright ones around them
    :ivar masks: [N, H, W], where the network has them: probabilities on a coarse grid over the input, or, placed, bool per pixel
    """

    boxes: Array
    scores: Array
    classes: Array
    keypoints: Array | None = None
    corners: Array | None = None
    masks: Array | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, index: Array) -> Detections:
        """The detections at *index*, in that order."""
        keypoints, corners, masks = (
            None if value is None else value[index] for value in (self.keypoints, self.corners, self.masks)
        )
        return Detections(self.boxes[index], self.scores[index], self.classes[index], keypoints, corners, masks)

    def placed(self, placement: Placement) -> Detections:
        """The same on the image that *placement* put into the input: boxes are in its pixels and end at its borders."""
        keypoints, corners, masks = self.keypoints, self.corners, self.masks
        if keypoints is not None:
            keypoints = np.concatenate([placement.to_picture(keypoints[..., :2]), keypoints[..., 2:]], axis=-1)
        if corners is not None:
            corners = placement.to_picture(corners)
        boxes = placement.boxes(self.boxes)
        if masks is not None:
            masks = placement.map_to_picture(masks) > 0.5
            masks = masks & _inside(boxes, masks.shape[1:])
        return replace(self, boxes=boxes, keypoints=keypoints, corners=corners, masks=masks)

    def rows(self, labels: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """One JSON-ready dict per detection, without masks."""
        for index in range(len(self)):
            number = int(self.classes[index])
            row: dict[str, Any] = {
                "label": labels[number] if number < len(labels) else str(number),
                "class": number,
                "score": round(float(self.scores[index]), 4),
                "box": [round(float(value), 1) for value in self.boxes[index]],
            }
            if self.keypoints is not None:
                row["keypoints"] = np.round(self.keypoints[index].astype(np.float64), 2).tolist()
            if self.corners is not None:
                row["corners"] = np.round(self.corners[index].astype(np.float64), 1).tolist()
            if self.masks is not None:
                row["pixels"] = int(self.masks[index].sum())
            yield row


def no_detections() -> Detections:
    """An empty result."""
    return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def _inside(boxes: Array, shape: tuple[int, ...]) -> Array:
    """Bool [N, H, W]: which pixels lie in each box."""
    rows, columns = np.arange(shape[0])[:, None] + 0.5, np.arange(shape[1]) + 0.5
    left, top, right, bottom = (boxes[:, index, None, None] for index in range(4))
    inside: Array = (columns >= left) & (columns <= right) & (rows >= top) & (rows <= bottom)
    return inside


@dataclass(frozen=True, eq=False)
class Classification:
    """Classes of an image, the most probable first.

    :ivar classes: int64 [K]
    :ivar scores: float32 [K], probabilities
    """

    classes: Array
    scores: Array

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, labels: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """One JSON-ready dict per class."""
        for number, score in zip(self.classes.tolist(), self.scores.tolist(), strict=True):
            yield {"label": labels[number] if number < len(labels) else str(number), "class": number, "score": round(score, 4)}


@dataclass(frozen=True, eq=False)
class SemanticMap:
    """The class of every pixel.

    :ivar classes: int64 [H, W]
    """

    classes: Array

    def __len__(self) -> int:
        return len(np.unique(self.classes))

    def rows(self, labels: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """One JSON-ready dict per class that occurs, the largest first."""
        numbers, counts = np.unique(self.classes, return_counts=True)
        for index in np.argsort(-counts, kind="stable"):
            number = int(numbers[index])
            share = round(float(counts[index]) / self.classes.size, 4)
            yield {"label": labels[number] if number < len(labels) else str(number), "class": number, "share": share}


@dataclass(frozen=True)
class TextLine:
    """A line of text that a recognizer read.

    :ivar score: mean probability of its characters; 0 for an empty line
    """

    text: str
    score: float

    def __len__(self) -> int:
        return len(self.text)

    def rows(self, labels: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """One JSON-ready dict."""
        yield {"text": self.text, "score": round(self.score, 4)}


@dataclass(frozen=True, eq=False)
class TextRegions:
    """Where an image has text, from top to bottom.

    :ivar corners: float32 [N, 4, 2], from the corner at the top left, clockwise
    :ivar scores: float32 [N]
    :ivar lines: the text in each region; empty before a recognizer read it
    """

    corners: Array
    scores: Array
    lines: tuple[TextLine, ...] = ()

    def __len__(self) -> int:
        return len(self.scores)

    def placed(self, placement: Placement) -> TextRegions:
        """The same on the image that *placement* put into the input."""
        return replace(self, corners=placement.to_picture(self.corners))

    def rows(self, labels: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        """One JSON-ready dict per region."""
        for index in range(len(self)):
            row: dict[str, Any] = {
                "score": round(float(self.scores[index]), 4),
                "corners": np.round(self.corners[index].astype(np.float64), 1).tolist(),
            }
            if self.lines:
                row = {"text": self.lines[index].text, "text_score": round(self.lines[index].score, 4), **row}
            yield row
