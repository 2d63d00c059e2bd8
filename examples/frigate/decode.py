"""From the outputs of a model to rows of class, score, top, left, bottom and right, in parts of the image; the best first.

One function for each kind of model; :data:`DECODERS` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Detections = npt.NDArray[np.float32]
Decoder = Callable[[Sequence[Array], int, int], tuple[Array, Array, Array]]
"""Outputs, height and width of the image -> boxes (left, top, right, bottom in pixels), scores, classes."""

STRIDES = (8, 16, 32)


def detections(decoder: str, outputs: Sequence[Array], height: int, width: int, threshold: float, overlap: float) -> Detections:
    """The objects of an image.

    :param decoder: a name of :data:`DECODERS`
    :param threshold: objects with a lower score do not count
    :param overlap: of two objects of one class that share more of their area than this, the better one counts
    """
    boxes, scores, classes = DECODERS[decoder](outputs, height, width)
    good = np.flatnonzero(scores >= threshold)
    order = good[np.argsort(-scores[good], kind="stable")]
    boxes, scores, classes = boxes[order], scores[order], classes[order]
    kept = without_overlaps(boxes, classes, overlap)
    left, top, right, bottom = np.clip(boxes[kept] / (width, height, width, height), 0, 1).T
    return np.stack([classes[kept], scores[kept], top, left, bottom, right], axis=1).astype(np.float32)


def without_overlaps(boxes: Array, classes: Array, overlap: float) -> list[int]:
    """Indices of the boxes that no better box of their class covers; boxes come best first."""
    area = np.maximum(boxes[:, 2] - boxes[:, 0], 0) * np.maximum(boxes[:, 3] - boxes[:, 1], 0)
    alive = np.ones(len(boxes), np.bool_)
    kept = []
    for index in range(len(boxes)):
        if not alive[index]:
            continue
        kept.append(index)
        low = np.maximum(boxes[index, :2], boxes[:, :2])
        high = np.minimum(boxes[index, 2:], boxes[:, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = area[index] + area - shared
        alive &= (classes != classes[index]) | (shared <= overlap * union)
    return kept


def decode_ssd(outputs: Sequence[Array], height: int, width: int) -> tuple[Array, Array, Array]:
    """Decoded in the model: boxes [1, n, 4] (top, left, bottom, right in parts of the image), classes [1, n], scores [1, n]."""
    top, left, bottom, right = outputs[0].reshape(-1, 4).T
    boxes = np.stack([left * width, top * height, right * width, bottom * height], axis=1)
    return boxes, outputs[2].reshape(-1), outputs[1].reshape(-1)


def decode_end2end(outputs: Sequence[Array], height: int, width: int) -> tuple[Array, Array, Array]:
    """Decoded in the model: one output [1, n, 6] of left, top, right, bottom in pixels, score, class (YOLOv10, YOLO26)."""
    rows = outputs[0].reshape(-1, 6)
    return rows[:, :4], rows[:, 4], rows[:, 5]


def decode_yolov8(outputs: Sequence[Array], height: int, width: int) -> tuple[Array, Array, Array]:
    """One output [1, 4 + classes, n] of center and size in pixels, and scores (YOLOv8, v9, v11)."""
    rows = outputs[0].reshape(outputs[0].shape[-2:]).T
    return _corners(rows[:, :4]), *_best(rows[:, 4:])


def decode_yolov8_split(outputs: Sequence[Array], height: int, width: int) -> tuple[Array, Array, Array]:
    """For each stride boxes [1, 4 * bins, h, w] as distributions of distances, and scores [1, classes, h, w], as the exports for RKNN
    have them; a third output with the sum of the scores is not needed."""
    per_stride = len(outputs) // len(STRIDES)
    boxes, scores = [], []
    for number, stride in enumerate(STRIDES):
        distances, classes = outputs[per_stride * number], outputs[per_stride * number + 1]
        rows, columns = distances.shape[-2:]
        bins = distances.reshape(4, -1, rows * columns)
        weights = np.exp(bins - bins.max(axis=1, keepdims=True))
        steps = np.arange(bins.shape[1])[:, np.newaxis]
        left, top, right, bottom = (weights * steps).sum(axis=1) / weights.sum(axis=1)
        x, y = _cells(rows, columns) + 0.5
        boxes.append(stride * np.stack([x - left, y - top, x + right, y + bottom], axis=1))
        scores.append(classes.reshape(-1, rows * columns).T)
    return np.concatenate(boxes), *_best(np.concatenate(scores))


def decode_yolox(outputs: Sequence[Array], height: int, width: int) -> tuple[Array, Array, Array]:
    """One output [1, n, 5 + classes]: center and size relative to cells of strides 8, 16 and 32, objectness, scores (YOLOX)."""
    rows = outputs[0].reshape(outputs[0].shape[-2:])
    cells = np.concatenate([_cells(height // stride, width // stride) for stride in STRIDES], axis=1).T
    strides = np.repeat(STRIDES, [(height // stride) * (width // stride) for stride in STRIDES])[:, np.newaxis]
    boxes = np.concatenate([(rows[:, :2] + cells) * strides, np.exp(rows[:, 2:4]) * strides], axis=1)
    return _corners(boxes), *_best(rows[:, 5:] * rows[:, 4:5])


DECODERS: dict[str, Decoder] = {
    "ssd": decode_ssd,
    "end2end": decode_end2end,
    "yolov8": decode_yolov8,
    "yolov8-split": decode_yolov8_split,
    "yolox": decode_yolox,
}


def _cells(rows: int, columns: int) -> Array:
    """Columns and rows of the cells of a grid, row by row."""
    y, x = np.mgrid[:rows, :columns]
    return np.stack([x.reshape(-1), y.reshape(-1)])


def _corners(boxes: Array) -> Array:
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _best(scores: Array) -> tuple[Array, Array]:
    classes = scores.argmax(axis=1)
    return scores[np.arange(len(scores)), classes], classes
