"""Boxes: which of several that overlap stay, and what decoders have in common."""

from __future__ import annotations

import functools

import numpy as np

from .._native import ffi, lib
from .._util.types import Array
from ..errors import ShapeError
from .results import Thresholds

MAX_CANDIDATES = 3000
"""Boxes that suppression looks at, by score: more come from a threshold near 0 only."""


def sigmoid(values: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * np.asarray(values, np.float32)))
    return result


def softmax(values: Array, axis: int = -1) -> Array:
    """Probabilities along an axis."""
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    result: Array = powers / powers.sum(axis=axis, keepdims=True)
    return result


@functools.lru_cache(maxsize=32)
def cells(size: tuple[int, int], strides: tuple[int, ...]) -> tuple[Array, Array]:
    """The corners (x, y) of all cells of the grids of an input of *size*, in cells, float32 [N, 2]; and their strides [N, 1].

    >>> cells((64, 64), (32,))[0].tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    points, steps = [], []
    for stride in strides:
        rows, columns = size[0] // stride, size[1] // stride
        y, x = np.divmod(np.arange(rows * columns), max(columns, 1))
        points.append(np.stack([x, y], axis=1).astype(np.float32))
        steps.append(np.full((rows * columns, 1), stride, np.float32))
    made = np.concatenate(points), np.concatenate(steps)
    for array in made:
        array.flags.writeable = False
    return made


def overlap(box: Array, boxes: Array) -> Array:
    """Intersection over union of one box with each of *boxes* [N, 4].

    >>> overlap(np.array([0.0, 0, 2, 2]), np.array([[0.0, 0, 2, 2], [1, 0, 3, 2]])).tolist()
    [1.0, 0.3333333333333333]
    """
    others = boxes.T
    shared = np.maximum(np.minimum(box[2], others[2]) - np.maximum(box[0], others[0]), 0.0)
    shared = shared * np.maximum(np.minimum(box[3], others[3]) - np.maximum(box[1], others[1]), 0.0)
    areas = (box[2] - box[0]) * (box[3] - box[1]) + (others[2] - others[0]) * (others[3] - others[1])
    result: Array = shared / np.maximum(areas - shared, np.finfo(others.dtype).tiny)
    return result


def suppress(boxes: Array, scores: Array, classes: Array, thresholds: Thresholds | None = None) -> Array:
    """Indices of the boxes that stay, by falling score: each suppresses those of its class that overlap it more than the threshold."""
    thresholds = thresholds or Thresholds()
    if boxes.shape != (len(scores), 4) or classes.shape != scores.shape:
        raise ShapeError(
            f"boxes {list(boxes.shape)}, scores {list(scores.shape)} and classes {list(classes.shape)} do not belong together",
            hint="give boxes [N, 4], scores [N] and classes [N]",
        )
    order = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES].astype(np.int64, copy=False)
    kept = np.empty(min(len(order), max(thresholds.count, 0)), np.int64)
    count = lib.anynpu_suppress_f64(
        ffi.from_buffer("double[]", np.ascontiguousarray(boxes, np.float64)),
        ffi.from_buffer("int64_t[]", np.ascontiguousarray(classes, np.int64)),
        ffi.from_buffer("int64_t[]", order),
        len(order),
        thresholds.overlap,
        len(kept),
        ffi.from_buffer("int64_t[]", kept),
    )
    return kept[:count]


def corners_of(rotated: Array) -> Array:
    """Corners [N, 4, 2] of rotated boxes [N, 5]: center x and y, width, height, angle in radians, clockwise on the screen."""
    cosine, sine = np.cos(rotated[:, 4]), np.sin(rotated[:, 4])
    across = np.stack([cosine, sine], axis=1) * rotated[:, 2:3] / 2
    down = np.stack([-sine, cosine], axis=1) * rotated[:, 3:4] / 2
    centre = rotated[:, :2]
    corners: Array = np.stack([centre - across - down, centre + across - down, centre + across + down, centre - across + down], 1)
    return corners.astype(np.float32)


def _covariances(rotated: Array) -> tuple[Array, Array, Array]:
    a, b = rotated[:, 2] ** 2 / 12, rotated[:, 3] ** 2 / 12
    cosine, sine = np.cos(rotated[:, 4]), np.sin(rotated[:, 4])
    return a * cosine**2 + b * sine**2, a * sine**2 + b * cosine**2, (a - b) * cosine * sine


def rotated_overlap(box: Array, boxes: Array) -> Array:
    """How much one rotated box and each of *boxes* [N, 5] agree, 0 to 1, as normal distributions (probabilistic IoU).

    It is what networks for rotated boxes are trained and evaluated with; a true intersection of polygons is neither needed nor meant.
    """
    a1, b1, c1 = _covariances(box[None].astype(np.float64))
    a2, b2, c2 = _covariances(boxes.astype(np.float64))
    x, y = box[0] - boxes[:, 0], box[1] - boxes[:, 1]
    tiny = 1e-7
    a, b, c = a1 + a2, b1 + b2, c1 + c2
    determinant = a * b - c**2
    first = (a * y**2 + b * x**2) / (determinant + tiny) / 4
    second = -(c * x * y) / (determinant + tiny) / 2
    roots = np.sqrt(np.maximum(a1 * b1 - c1**2, 0) * np.maximum(a2 * b2 - c2**2, 0))
    third = np.log(determinant / (4 * roots + tiny) + tiny) / 2
    distance = np.clip(first + second + third, tiny, 100.0)
    result: Array = 1.0 - np.sqrt(1.0 - np.exp(-distance) + tiny)
    return result


def suppress_rotated(rotated: Array, scores: Array, classes: Array, thresholds: Thresholds) -> Array:
    """As :func:`suppress`, for rotated boxes [N, 5]."""
    order = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
    kept: list[int] = []
    left = np.arange(len(order))
    boxes, numbers = rotated[order], classes[order]
    while len(left) and len(kept) < thresholds.count:
        first = left[0]
        kept.append(int(first))
        rest = left[1:]
        same = numbers[rest] == numbers[first]
        left = rest[~same | (rotated_overlap(boxes[first], boxes[rest]) < thresholds.overlap)]
    return order[kept]
