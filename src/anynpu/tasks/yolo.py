"""Heads of YOLO networks whose outputs are one list of boxes, as exporters write them: versions 5 to 11, YOLOX, pose, masks, rotation.

Scores are looked at first and everything else only where they pass: a picture has a few objects, and a head has 8,400 boxes or more.
"""

from __future__ import annotations

import numpy as np

from .._util.types import Array
from ..errors import ShapeError
from .results import Detections, Thresholds, no_detections
from .suppress import cells, corners_of, sigmoid, suppress, suppress_rotated

__all__ = ["STRIDES", "decode_columns", "decode_final", "decode_rows", "finish", "is_activated", "mask_maps"]

STRIDES = (8, 16, 32)
"""Of the three grids of most networks. Those for 1,280 pixels have a fourth."""

_BOX = 4


def is_activated(values: Array) -> bool:
    """Whether values are probabilities already: all of them from 0 to 1, but for what rounding adds."""
    return bool(values.size == 0 or (values.min() >= -0.01 and values.max() <= 1.01))


def finish(
    boxes: Array,
    scores: Array,
    classes: Array,
    thresholds: Thresholds,
    *,
    keypoints: Array | None = None,
    coefficients: Array | None = None,
    prototypes: Array | None = None,
) -> Detections:
    """Candidates as detections: overlapping ones are suppressed, and masks are computed for those that stay."""
    kept = suppress(boxes, scores, classes, thresholds)
    masks = None
    if coefficients is not None and prototypes is not None:
        masks = mask_maps(coefficients[kept], prototypes)
    return Detections(
        boxes[kept].astype(np.float32),
        scores[kept].astype(np.float32),
        classes[kept].astype(np.int64),
        keypoints=None if keypoints is None else keypoints[kept].astype(np.float32),
        masks=masks,
    )


def mask_maps(coefficients: Array, prototypes: Array) -> Array:
    """Probabilities [N, h, w] of masks: each a mixture of *prototypes* [K, h, w] by its *coefficients* [N, K]."""
    count, height, width = prototypes.shape
    mixed = coefficients.astype(np.float32) @ prototypes.reshape(count, -1).astype(np.float32)
    return sigmoid(mixed).reshape(-1, height, width)


def _to_corners(boxes: Array) -> Array:
    """Left, top, right and bottom of boxes [N, 4] that are given by centre and size."""
    half = boxes[:, 2:_BOX] / 2
    result: Array = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return result


def _in_pixels(boxes: Array, size: tuple[int, int]) -> Array:
    """Some exporters write boxes in shares of the input: none of them is larger than a few pixels then."""
    if len(boxes) and float(np.abs(boxes).max()) <= 2.0:
        scaled: Array = boxes * np.array([size[1], size[0], size[1], size[0]], np.float32)
        return scaled
    return boxes


def decode_columns(
    output: Array,
    size: tuple[int, int],
    thresholds: Thresholds | None = None,
    *,
    keypoints: int = 0,
    prototypes: Array | None = None,
    rotated: bool = False,
) -> Detections:
    """[4 + classes + extra, N], as Ultralytics exports versions 8 to 11: centre, size and scores of boxes in columns.

    :param keypoints: number of keypoints, in the rows after the classes
    :param prototypes: [K, h, w] of a network with masks; the last K rows are the coefficients
    :param rotated: the last row is an angle in radians
    """
    thresholds = thresholds or Thresholds()
    output = _matrix(output)
    width = 3 * keypoints
    extra = width + (0 if prototypes is None else len(prototypes)) + int(rotated)
    last = len(output) - extra
    if last <= _BOX:
        raise ShapeError(
            f"a head of {len(output)} rows has no room for classes beside a box and {extra} more",
            hint="check the kind of the head",
        )
    best = output[_BOX:last].max(axis=0)
    limit = thresholds.score
    found = np.flatnonzero(best >= limit)
    if not len(found):
        return no_detections()
    chosen = output.take(found, axis=1)
    scores, classes = best.take(found), chosen[_BOX:last].argmax(axis=0)
    boxes = _in_pixels(chosen[:_BOX].T, size)
    if rotated:
        turned = np.concatenate([boxes, chosen[-1:].T], axis=1)
        return rotated_detections(turned, scores, classes, thresholds)
    points = chosen[last : last + width].T.reshape(-1, keypoints, 3) if keypoints else None
    coefficients = None if prototypes is None else chosen[last:].T
    return finish(
        _to_corners(boxes), scores, classes, thresholds, keypoints=points, coefficients=coefficients, prototypes=prototypes
    )


def rotated_detections(turned: Array, scores: Array, classes: Array, thresholds: Thresholds) -> Detections:
    """Detections of rotated boxes [N, 5]."""
    kept = suppress_rotated(turned, scores, classes, thresholds)
    corners = corners_of(turned[kept].astype(np.float64))
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    return Detections(boxes, scores[kept].astype(np.float32), classes[kept].astype(np.int64), corners=corners)


def decode_rows(
    output: Array, size: tuple[int, int], thresholds: Thresholds | None = None, *, prototypes: Array | None = None
) -> Detections:
    """[N, 5 + classes], as YOLOv5, v6, v7 and YOLOX export: centre, size, objectness and class scores of boxes in rows.

    YOLOX writes places within cells and logarithms of sizes, unless its exporter was told to decode them; which of the two it is shows in
    the values: decoded centres grow along the grid.

    :param prototypes: [K, h, w] of a network with masks; the last K columns are the coefficients
    """
    thresholds = thresholds or Thresholds()
    output = _matrix(output)
    last = output.shape[1] - (0 if prototypes is None else len(prototypes))
    if last <= _BOX + 1:
        raise ShapeError(
            f"a head of {output.shape[1]} columns has no room for classes beside a box and an objectness", hint="check the head"
        )
    grid = _grid_of(output, size)
    found = np.flatnonzero(output[:, _BOX] >= thresholds.score)
    chosen = output[found]
    classified = chosen[:, _BOX + 1 : last]
    scores = classified.max(axis=1, initial=0.0) * chosen[:, _BOX]
    passed = scores >= thresholds.score
    found, chosen, classified, scores = found[passed], chosen[passed], classified[passed], scores[passed]
    if not len(found):
        return no_detections()
    boxes = chosen[:, :_BOX]
    if grid is None:
        boxes = _in_pixels(boxes, size)
    else:
        points, steps = grid[0][found], grid[1][found]
        boxes = np.concatenate([(boxes[:, :2] + points) * steps, np.exp(np.minimum(boxes[:, 2:], 12.0)) * steps], axis=1)
    return finish(
        _to_corners(boxes),
        scores,
        classified.argmax(axis=1),
        thresholds,
        coefficients=None if prototypes is None else chosen[:, last:],
        prototypes=prototypes,
    )


def _grid_of(output: Array, size: tuple[int, int]) -> tuple[Array, Array] | None:
    """The cells and strides of rows that are not decoded; None where they are, or where they are those of another grid."""
    for strides in (STRIDES, (*STRIDES, 64)):
        points, steps = cells(size, strides)
        if len(points) == len(output):
            # a decoded centre lies near its cell; a place within a cell does not know its cell
            expected = (points[:, 0] + 0.5) * steps[:, 0]
            x = output[:, 0].astype(np.float64)
            spread = float(x.std() * expected.std())
            agreement = 0.0 if spread < 1e-9 else float(((x - x.mean()) * (expected - expected.mean())).mean()) / spread
            return (points, steps) if agreement < 0.5 else None
    return None


def decode_final(output: Array, size: tuple[int, int], thresholds: Thresholds | None = None) -> Detections:
    """[N, 6], as YOLOv10 and networks exported with their suppression: corners, score and class; or [N, 7] with a batch number first.

    With seven columns the class comes before the score.
    """
    thresholds = thresholds or Thresholds()
    output = _matrix(output)
    if output.shape[1] == 7:
        output = output[:, [1, 2, 3, 4, 6, 5]]
    order = np.argsort(-output[:, 4], kind="stable")
    chosen = output[order[output[order, 4] >= thresholds.score][: thresholds.count]]
    if not len(chosen):
        return no_detections()
    boxes = _in_pixels(chosen[:, :_BOX], size)
    return Detections(boxes.astype(np.float32), chosen[:, 4].astype(np.float32), np.rint(chosen[:, 5]).astype(np.int64))


def _matrix(output: Array) -> Array:
    """An output without its batch axis."""
    if output.ndim == 3 and output.shape[0] == 1:
        output = output[0]
    if output.ndim != 2:
        raise ShapeError(
            f"a head of one picture has two axes besides the batch, not {list(output.shape)}", hint="run one picture"
        )
    return output
