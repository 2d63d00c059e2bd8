"""Heads of YOLO networks whose outputs are one list of boxes, as exporters write them: versions 5 to 11, YOLOX, pose, masks, rotation.

Scores are looked at first and everything else only where they pass: an image has a few objects, and a head has 8,400 boxes or more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from .._util.types import Array
from ..errors import ShapeError
from .results import Detections, Thresholds, no_detections
from .suppress import cells, corners_of, sigmoid, softmax, suppress, suppress_rotated

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
    """Left, top, right and bottom of boxes [N, 4] that are given by center and size."""
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
    """[4 + classes + extra, N], as Ultralytics exports versions 8 to 11: center, size and scores of boxes in columns.

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
            f"a head of {len(output)} rows has no space for classes beside a box and {extra} more",
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
    """[N, 5 + classes], as YOLOv5, v6, v7 and YOLOX export: center, size, objectness and class scores of boxes in rows.

    YOLOX writes places within cells and logarithms of sizes, unless its exporter was set to decode them; which of the two it is shows in
    the values: decoded centers grow along the grid.

    :param prototypes: [K, h, w] of a network with masks; the last K columns are the coefficients
    """
    thresholds = thresholds or Thresholds()
    output = _matrix(output)
    last = output.shape[1] - (0 if prototypes is None else len(prototypes))
    if last <= _BOX + 1:
        raise ShapeError(
            f"a head of {output.shape[1]} columns has no space for classes beside a box and an objectness", hint="check the head"
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
            # a decoded center lies near its cell; a place within a cell does not know its cell
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
        raise ShapeError(f"a head of one image has two axes besides the batch, not {list(output.shape)}", hint="run one image")
    return output


# Heads that come as one or more tensors per grid, as the vendors' model zoos cut them out for their NPUs.
#
# What follows the last convolutions (softmax over distances, places of cells, concatenation) suffers from int8 and is slow on an NPU, so
# it is left to the program: here.


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
    """Of grids of these sizes over an input of *size*: all cells' middles (x, y), in cells [2, N]; pixels per cell; where grids end."""
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


# RetinaFace: boxes of faces with five points.


_SIDES = {8: (16, 32), 16: (64, 128), 32: (256, 512)}
"""Sides in pixels of the boxes that each grid begins with."""

_CENTRE, _EXTENT = 0.1, 0.2
"""By how much the network's numbers were enlarged in training."""


@functools.lru_cache(maxsize=8)
def face_priors(size: tuple[int, int]) -> Array:
    """The boxes that the network begins with: center and size [N, 4] in shares of the input."""
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
