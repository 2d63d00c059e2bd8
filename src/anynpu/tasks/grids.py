"""Heads that come as one or more tensors per grid, as the vendors' model zoos cut them out for their NPUs.

What follows the last convolutions (softmax over distances, places of cells, concatenation) suffers from int8 and is slow on an NPU, so
it is left to the program: here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from .._util.types import Array
from ..errors import ShapeError
from .results import Detections, Thresholds, no_detections
from .suppress import cells, sigmoid
from .yolo import finish, is_activated, rotated_detections

__all__ = ["ANCHORS", "decode_anchors", "decode_cells", "decode_distances"]

ANCHORS = {
    "yolov5": ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326)),
    "yolov7": ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401)),
}
"""Widths and heights of the boxes that these networks begin with, in pixels, by grid."""


def decode_distances(
    grids: Sequence[Sequence[Array]],
    size: tuple[int, int],
    thresholds: Thresholds | None = None,
    *,
    keypoints: Array | None = None,
    angles: Array | None = None,
    prototypes: Array | None = None,
) -> Detections:
    """YOLOv6, 8, 9, 10 and 11 cut before their boxes: for each grid the distances to the four sides, the scores, and more.

    Distances [4 * bins, H, W] are distributions over bins, or plain numbers with one bin. Scores [classes, H, W] may be logits. A sum of
    the scores, which the vendor's head has to save its loops time, is not needed. Masks have coefficients [K, H, W] as the last tensor of
    a grid.

    :param grids: the tensors of each grid, the finest first, without their batch axis: distances, scores, ..., coefficients
    :param keypoints: [keypoints, 3, N] over all grids, in pixels
    :param angles: [N] over all grids: radians, or from 0 to 1 as the network's sigmoid gives them
    :param prototypes: [K, h, w] of a network with masks
    """
    thresholds = thresholds or Thresholds()
    if not grids:
        return no_detections()
    channels = len(grids[0][0])
    if channels % 4:
        raise ShapeError(f"{channels} channels are not distances to four sides", hint="give the box tensor of each grid first")
    for tensors in grids:
        if tensors[1].shape[1:] != tensors[0].shape[1:]:
            raise ShapeError(
                f"distances {list(tensors[0].shape)} and scores {list(tensors[1].shape)} are not of one grid",
                hint="give the tensors of each grid together",
            )
    centres, steps, ends = _cells_of(tuple(tensors[0].shape[1:] for tensors in grids), size)
    best = np.empty(ends[-1], np.float32)
    for tensors, start, end in zip(grids, (0, *ends), ends, strict=False):
        np.maximum.reduce(tensors[1].reshape(len(tensors[1]), -1), axis=0, out=best[start:end], dtype=np.float32)
    # the best score of a cell that shows nothing is near 0 as a probability, and far below as a logit: no need to look at all scores
    activated = is_activated(best)
    found = np.flatnonzero(best >= (thresholds.score if activated else _logit(thresholds.score)))
    if not len(found):
        return no_detections()
    distances = _taken([tensors[0] for tensors in grids], found, ends).astype(np.float32, copy=False)
    sides = _expected(distances.reshape(4, channels // 4, -1))
    classes = _taken([tensors[1] for tensors in grids], found, ends).argmax(axis=0)
    scores = best.take(found) if activated else sigmoid(best.take(found))
    centres, steps = centres.take(found, axis=1), steps.take(found, axis=1)
    if angles is not None:
        turned = _turned(centres.T, sides.T, steps.T, angles.reshape(-1), found)
        return rotated_detections(turned, scores, classes, thresholds)
    boxes = np.empty((4, len(found)), np.float32)
    np.subtract(centres, sides[:2], out=boxes[:2])
    np.add(centres, sides[2:], out=boxes[2:])
    boxes.reshape(2, 2, -1)[...] *= steps
    points = None
    if keypoints is not None:
        points = keypoints[:, :, found].transpose(2, 0, 1).astype(np.float32)
        if not is_activated(keypoints[:, 2]):
            points[..., 2] = sigmoid(points[..., 2])
    mixtures = _taken([tensors[-1] for tensors in grids], found, ends).T if prototypes is not None else None
    return finish(boxes.T, scores, classes, thresholds, keypoints=points, coefficients=mixtures, prototypes=prototypes)


@functools.lru_cache(maxsize=16)
def _cells_of(extents: tuple[tuple[int, int], ...], size: tuple[int, int]) -> tuple[Array, Array, tuple[int, ...]]:
    """Of grids of these extents over an input of *size*: all cells' middles (x, y), in cells [2, N]; pixels per cell; where grids end."""
    centres = [cells(extent, (1,))[0].T + np.float32(0.5) for extent in extents]
    steps = [np.full((2, y * x), [[size[1] / x], [size[0] / y]], np.float32) for y, x in extents]
    return np.concatenate(centres, axis=1), np.concatenate(steps, axis=1), tuple(np.cumsum([y * x for y, x in extents]).tolist())


def _taken(tensors: Sequence[Array], found: Array, ends: Sequence[int]) -> Array:
    """The columns *found*, which rise, of tensors [C, H, W] whose cells are numbered one after the other: [C, len(found)]."""
    parts = []
    begin = start = 0
    for tensor, end, stop in zip(tensors, ends, np.searchsorted(found, ends).tolist(), strict=True):
        if stop > begin:
            parts.append(tensor.reshape(len(tensor), -1).take(found[begin:stop] - start, axis=1))
        begin, start = stop, end
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _expected(distances: Array) -> Array:
    """Distances to four sides [4, N], each the mean of a distribution over bins [4, bins, N]."""
    if distances.shape[1] == 1:
        return distances[:, 0]
    powers = np.exp(distances - distances.max(axis=1, keepdims=True))
    means: Array = np.einsum("sbn,b->sn", powers, np.arange(distances.shape[1], dtype=np.float32)) / powers.sum(axis=1)
    return means


def _turned(centres: Array, sides: Array, steps: Array, angles: Array, places: Array) -> Array:
    """Rotated boxes [N, 5] in pixels: the distances are along the box's own axes."""
    radians = (angles[places] - 0.25) * np.pi if is_activated(angles) else angles[places]
    away = (sides[:, 2:] - sides[:, :2]) / 2
    cosine, sine = np.cos(radians), np.sin(radians)
    moved = np.stack([away[:, 0] * cosine - away[:, 1] * sine, away[:, 0] * sine + away[:, 1] * cosine], axis=1)
    extents = sides[:, :2] + sides[:, 2:]
    result: Array = np.concatenate([(centres + moved) * steps, extents * steps, radians[:, None]], axis=1)
    return result


def decode_anchors(
    grids: Sequence[Array],
    size: tuple[int, int],
    thresholds: Thresholds | None = None,
    *,
    anchors: Sequence[Sequence[float]] = ANCHORS["yolov5"],
) -> Detections:
    """YOLOv5 and v7 cut before their boxes: for each grid [anchors * (5 + classes), H, W], logits or after the sigmoid.

    :param anchors: widths and heights in pixels by grid, the finest first; :data:`ANCHORS` has those of the published networks
    """
    thresholds = thresholds or Thresholds()
    boxes, scores, classes = [], [], []
    for tensor, sizes in zip(grids, anchors, strict=True):
        pairs = np.asarray(sizes, np.float32).reshape(-1, 2)
        rows, columns = tensor.shape[1:]
        if len(tensor) % len(pairs) or len(tensor) // len(pairs) <= 5:
            raise ShapeError(f"{len(tensor)} channels are not 5 + classes for {len(pairs)} anchors", hint="check the anchors")
        values = tensor.reshape(len(pairs), -1, rows * columns)
        activated = is_activated(tensor)
        limit = thresholds.score if activated else _logit(thresholds.score)
        anchor, place = np.nonzero(values[:, 4] >= limit)
        chosen = values[anchor, :, place]
        chosen = chosen if activated else sigmoid(chosen)
        best = chosen[:, 5:].max(axis=1, initial=0.0) * chosen[:, 4]
        passed = best >= thresholds.score
        anchor, place, chosen = anchor[passed], place[passed], chosen[passed]
        y, x = np.divmod(place, columns)
        steps = np.array([size[1] / columns, size[0] / rows], np.float32)
        centre = (chosen[:, :2] * 2 - 0.5 + np.stack([x, y], axis=1)) * steps
        half = (chosen[:, 2:4] * 2) ** 2 * pairs[anchor] / 2
        boxes.append(np.concatenate([centre - half, centre + half], axis=1))
        scores.append(best[passed])
        classes.append(chosen[:, 5:].argmax(axis=1))
    return finish(np.concatenate(boxes), np.concatenate(scores), np.concatenate(classes), thresholds)


def decode_cells(grids: Sequence[Array], size: tuple[int, int], thresholds: Thresholds | None = None) -> Detections:
    """YOLOX cut before its boxes: for each grid [5 + classes, H, W], places within cells, logarithms of sizes, objectness, scores."""
    thresholds = thresholds or Thresholds()
    boxes, scores, classes = [], [], []
    for tensor in grids:
        rows, columns = tensor.shape[1:]
        values = tensor.reshape(len(tensor), -1)
        activated = is_activated(values[4:])
        limit = thresholds.score if activated else _logit(thresholds.score)
        found = np.flatnonzero(values[4] >= limit)
        chosen = values[:, found]
        certain = chosen[4:] if activated else sigmoid(chosen[4:])
        best = certain[1:].max(axis=0, initial=0.0) * certain[0]
        passed = best >= thresholds.score
        found, chosen, certain = found[passed], chosen[:, passed], certain[:, passed]
        points, _ = cells((rows, columns), (1,))
        steps = np.array([size[1] / columns, size[0] / rows], np.float32)
        centre = (chosen[:2].T + points[found]) * steps
        half = np.exp(np.minimum(chosen[2:4].T, 12.0)) * steps / 2
        boxes.append(np.concatenate([centre - half, centre + half], axis=1))
        scores.append(best[passed])
        classes.append(certain[1:].argmax(axis=0))
    return finish(np.concatenate(boxes), np.concatenate(scores), np.concatenate(classes), thresholds)


def _logit(probability: float) -> float:
    """What the sigmoid makes *probability* of."""
    bounded = min(max(probability, 1e-6), 1.0 - 1e-6)
    return float(np.log(bounded / (1.0 - bounded)))
