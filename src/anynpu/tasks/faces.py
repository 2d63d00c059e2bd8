"""RetinaFace: boxes of faces with five points."""

from __future__ import annotations

import functools

import numpy as np

from .._util.types import Array
from ..errors import ShapeError
from .results import Detections, Thresholds, no_detections
from .suppress import cells, softmax
from .yolo import STRIDES, finish

__all__ = ["decode_faces", "face_priors"]

_SIDES = {8: (16, 32), 16: (64, 128), 32: (256, 512)}
"""Sides in pixels of the boxes that each grid begins with."""

_CENTRE, _EXTENT = 0.1, 0.2
"""By how much the network's numbers were enlarged in training."""


@functools.lru_cache(maxsize=8)
def face_priors(size: tuple[int, int]) -> Array:
    """The boxes that the network begins with: centre and size [N, 4] in shares of the input."""
    height, width = size
    made = []
    for stride in STRIDES:
        # a grid that does not divide the input has one more cell
        rows, columns = -(-height // stride), -(-width // stride)
        points = (cells((rows, columns), (1,))[0] + 0.5) * stride
        sides = np.array(_SIDES[stride], np.float32)
        centres = np.repeat(points / np.array([width, height], np.float32), len(sides), axis=0)
        extents = np.tile(np.stack([sides / width, sides / height], axis=1), (len(points), 1))
        made.append(np.concatenate([centres, extents], axis=1))
    priors: Array = np.concatenate(made).astype(np.float32)
    priors.flags.writeable = False
    return priors


def decode_faces(
    boxes: Array, scores: Array, points: Array, size: tuple[int, int], thresholds: Thresholds | None = None
) -> Detections:
    """Faces of RetinaFace: boxes [N, 4], scores [N, 2] of background and face, and five points [N, 10], each relative to its prior."""
    thresholds = thresholds or Thresholds(score=0.5, overlap=0.4)
    boxes, scores, points = (values.reshape(values.shape[-2:]) for values in (boxes, scores, points))
    priors = face_priors(size)
    if len(priors) != len(boxes):
        raise ShapeError(
            f"the network has {len(boxes)} boxes where an input of {size[0]} x {size[1]} has {len(priors)}",
            hint="give the size that the network was exported with",
        )
    sums = np.abs(scores.sum(axis=1) - 1.0)
    certain = scores if float(scores.min()) >= -0.01 and float(sums.max()) < 0.05 else softmax(scores.astype(np.float32))
    found = np.flatnonzero(certain[:, 1] >= thresholds.score)
    if not len(found):
        return no_detections()
    prior, chosen = priors[found], boxes[found]
    extent = np.array([size[1], size[0]], np.float32)
    centre = (prior[:, :2] + chosen[:, :2] * _CENTRE * prior[:, 2:]) * extent
    half = prior[:, 2:] * np.exp(chosen[:, 2:] * _EXTENT) * extent / 2
    placed = (prior[:, None, :2] + points[found].reshape(-1, 5, 2) * _CENTRE * prior[:, None, 2:]) * extent
    certainty = np.broadcast_to(certain[found, 1][:, None, None], (len(found), 5, 1))
    corners = np.concatenate([centre - half, centre + half], axis=1)
    return finish(
        corners,
        certain[found, 1],
        np.zeros(len(found), np.int64),
        thresholds,
        keypoints=np.concatenate([placed, certainty], axis=2),
    )
