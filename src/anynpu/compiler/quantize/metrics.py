"""How much of a float network's answers a quantized one keeps: 1 is all of them, and larger is better.

A metric takes the outputs of both networks for one sample. Cosine is the default of last resort: it states little about a network with two
classes, or about one whose answers are a few large values among many small ones. Name what the network is for instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..._util.types import Array
from ...errors import CompileError

Metric = Callable[[Sequence[Array], Sequence[Array]], float]

_DETECTED = 0.3
_SAME_BOX = 0.5
_MAP_THRESHOLD = 0.3
_BOX = 4
_BACKGROUND = 0.05
"""Scores below this are background; a sample with no more than that hardly counts."""

_NEARLY = 1e-3
_FEWEST_ANCHORS = 20
_TINY = 1e-30


def cosine(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """The mean cosine of the outputs; what is not finite in the expected ones is left out.

    >>> cosine([np.array([1.0, 0.0])], [np.array([2.0, 0.0])])
    1.0
    """
    found = []
    for first, second in zip(expected, given, strict=True):
        a, b = first.astype(np.float64).ravel(), second.astype(np.float64).ravel()
        if not math.isfinite(a.sum()):
            a, b = a[np.isfinite(a)], b[np.isfinite(a)]
        length = float(np.linalg.norm(a) * np.linalg.norm(b))
        found.append(float(a @ b) / length if length > _TINY else float(np.array_equal(a, b)))
    return float(np.mean(found)) if found else 1.0


def worst_channel(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """The cosine of the worst channel of any output: scores of classes stand beside boxes whose numbers are hundreds of times larger.

    Channels are the entries of the second axis, or of the third where there are three and the third is shorter.

    >>> worst_channel([np.array([[[640.0, 320.0], [0.1, 0.0]]])], [np.array([[[640.0, 320.0], [0.0, 0.1]]])])
    0.0
    """
    found = [1.0]
    for first, second in zip(expected, given, strict=True):
        if not math.isfinite(first.sum(dtype=np.float64)):
            first, second = (np.where(np.isfinite(first), values, 0.0) for values in (first, second))
        axis = 2 if first.ndim == 3 and first.shape[2] < first.shape[1] else 1
        channels = first.shape[axis] if first.ndim > 2 else 1
        a, b = (np.moveaxis(x, axis, 0).reshape(channels, -1) if channels > 1 else x.reshape(1, -1) for x in (first, second))
        lengths = np.sqrt(_products(a, a) * _products(b, b))
        same = (a == b).all(axis=1)
        found.append(float(np.where(lengths > _TINY, _products(a, b) / np.maximum(lengths, _TINY), same).min(initial=1.0)))
    return min(found)


def _products(first: Array, second: Array) -> Array:
    result: Array = np.einsum("ij,ij->i", first, second, dtype=np.float64)
    return result


def top1(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """The share of rows (all axes but the last) of the first output whose largest entry is the same."""
    first, second = (np.asarray(outputs[0]).reshape(-1, outputs[0].shape[-1]) for outputs in (expected, given))
    return float((first.argmax(axis=1) == second.argmax(axis=1)).mean())


def margin(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """How much of the lead of the float network's class over the next one is left, from -1 to 1, as a mean over rows.

    >>> margin([np.array([[3.0, 1.0]])], [np.array([[2.0, 1.0]])])
    0.5
    """
    first, second = (np.asarray(outputs[0], np.float64).reshape(-1, outputs[0].shape[-1]) for outputs in (expected, given))
    rows = np.arange(len(first))
    best = first.argmax(axis=1)

    def lead(values: Array) -> Array:
        others = values.copy()
        others[rows, best] = -np.inf
        result: Array = values[rows, best] - others.max(axis=1)
        return result

    return float(np.clip(lead(second) / np.maximum(lead(first), _TINY), -1.0, 1.0).mean())


def map_overlap(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """Intersection over union of the first output where it exceeds 0.3: for maps of probabilities."""
    first, second = (np.asarray(outputs[0]) > _MAP_THRESHOLD for outputs in (expected, given))
    union = int((first | second).sum())
    return float((first & second).sum()) / union if union else 1.0


def detections(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """How well detections agree (F1): same place in the output, same class, boxes that overlap by half.

    Takes rows of box, objectness and classes (YOLOv5, YOLOX), [1, N, 5 + classes], or columns of box and classes, [1, 4 + classes, N].
    """
    first, second = _scored(expected[0]), _scored(given[0])
    found, kept = (score > _DETECTED for _, score, _ in (first, second))
    same = found & kept & (first[2] == second[2]) & (_overlap(first[0], second[0]) > _SAME_BOX)
    total = int(found.sum()) + int(kept.sum())
    return 2.0 * int(same.sum()) / total if total else 1.0


def soft_detections(expected: Sequence[Array], given: Sequence[Array]) -> float:
    """How much of the detections' scores agrees, at the same place and class, weighted by the overlap of the boxes.

    Unlike :func:`detections` it has no threshold that a few samples rarely reach: it reports two quantized networks apart that keep the
    same number of boxes.

    >>> boxes = np.tile([8.0, 8.0, 4.0, 4.0, 0.8], (1, 10, 1))
    >>> round(soft_detections([boxes], [boxes * [1.0, 1.0, 1.0, 1.0, 0.5]]), 2)
    0.47
    """
    (first, a), (second, b) = (_boxes_and_scores(outputs[0], expected[0]) for outputs in (expected, given))
    a, b = (np.maximum(scores - _BACKGROUND, 0.0) for scores in (a, b))
    rows = np.flatnonzero((a.max(axis=1) > 0.0) | (b.max(axis=1) > 0.0))
    overlap = _overlap(first[rows], second[rows])
    same = float((np.minimum(a[rows], b[rows]) * overlap[:, None]).sum())
    return (same + _BACKGROUND) / (float(np.maximum(a[rows], b[rows]).sum()) + _BACKGROUND)


def _scored(output: Array, like: Array | None = None) -> tuple[Array, Array, Array]:
    """Boxes as corners, scores and classes by row."""
    boxes, scores = _boxes_and_scores(output, output if like is None else like)
    return boxes, scores.max(axis=1), scores.argmax(axis=1)


def _boxes_and_scores(output: Array, like: Array) -> tuple[Array, Array]:
    """Boxes as corners and scores by class. Scores end where the output *like* has other values, such as keypoints or masks."""
    values = np.asarray(output, np.float64)
    if values.ndim != 3 or values.shape[0] != 1 or min(values.shape[1:]) <= _BOX:
        raise CompileError(
            f"the metric 'detections' takes one output of [1, N, 5 + classes] or [1, 4 + classes, N], not {list(values.shape)}",
            hint="pass a function of your own as metric=, or one of: cosine, top1, margin, map",
        )
    turned = values.shape[1] < values.shape[2]
    rows, others = (np.asarray(entry[0].T if turned else entry[0], np.float64) for entry in (values, like))
    outside = (others[:, _BOX:].min(axis=0) < -_NEARLY) | (others[:, _BOX:].max(axis=0) > 1.0 + _NEARLY)
    end = _BOX + max(int(outside.argmax()) if outside.any() else len(outside), 1)
    if turned or end == _BOX + 1:
        scores = rows[:, _BOX:end]
    else:
        scores = rows[:, _BOX + 1 : end] * rows[:, _BOX : _BOX + 1]
    centre, half = rows[:, :2], rows[:, 2:_BOX] / 2.0
    return np.concatenate([centre - half, centre + half], axis=1), scores


def _holds_detections(expected: Sequence[Sequence[Array]]) -> bool:
    """Whether a network's only output is boxes in pixels next to scores from 0 to 1, by its answers to a few samples."""
    if not expected or any(len(outputs) != 1 or outputs[0].ndim != 3 or outputs[0].shape[0] != 1 for outputs in expected):
        return False
    shape = expected[0][0].shape
    if min(shape[1:]) <= _BOX or max(shape[1:]) < _FEWEST_ANCHORS:
        return False
    rows = np.concatenate([outputs[0][0].T if shape[1] < shape[2] else outputs[0][0] for outputs in expected])
    first = rows[:, _BOX]
    sizes = rows[:, 2:_BOX]
    return bool(
        np.isfinite(rows).all()
        and first.min() >= -_NEARLY
        and first.max() <= 1.0 + _NEARLY
        and sizes.min() >= -1.0
        and np.abs(rows[:, :_BOX]).max(axis=0).min() > 2.0
    )


def _overlap(first: Array, second: Array) -> Array:
    low, high = np.maximum(first[:, :2], second[:, :2]), np.minimum(first[:, 2:], second[:, 2:])
    shared = np.maximum(high - low, 0.0).prod(axis=1)
    areas = [np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0).prod(axis=1) for boxes in (first, second)]
    result: Array = shared / np.maximum(areas[0] + areas[1] - shared, _TINY)
    return result


METRICS: dict[str, Metric] = {
    "cosine": cosine,
    "top1": top1,
    "margin": margin,
    "detections": detections,
    "map": map_overlap,
}
"""The metrics that have a name."""

FINER: dict[Metric, Metric] = {detections: soft_detections}
"""Metrics that also distinguish what the named one counts alike: choices are made by them."""


def metric_of(
    metric: str | Metric | None, shapes: Sequence[tuple[int, ...]], expected: Sequence[Sequence[Array]] = ()
) -> tuple[str, Metric]:
    """A metric and its name. Without a choice, the outputs decide: boxes with scores are compared as detections, classes by their margin.

    :param shapes: of the outputs
    :param expected: the float network's outputs for some samples
    """
    if metric is None:
        if _holds_detections(expected):
            return "detections", detections
        classes = len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] > 1
        return ("margin", margin) if classes else ("cosine", cosine)
    if callable(metric):
        name = getattr(metric, "__name__", "metric")
        return name, metric if metric in METRICS.values() else _of_the_caller(name, metric)
    if metric not in METRICS:
        raise CompileError(f"there is no metric '{metric}'", hint=f"choose one of: {', '.join(METRICS)}, or pass a function")
    return metric, METRICS[metric]


def _of_the_caller(name: str, metric: Metric) -> Metric:
    """A function of the caller; where it fails, that is said in words, with its own error as the cause."""

    def judged(expected: Sequence[Array], given: Sequence[Array]) -> float:
        try:
            result = float(metric(expected, given))
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(
                f"the metric {name} failed: {type(error).__name__}: {error}",
                hint="it gets the outputs of the float network and of the quantized one, two lists of arrays, and gives one number",
            ) from error
        if result != result:
            raise CompileError(f"the metric {name} gives no number (NaN)", hint="give a number that is larger the better")
        return result

    return judged
