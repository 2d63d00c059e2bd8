"""Heads of 640 x 640 networks: the decoders of anynpu.tasks beside the usual numpy code, which decodes every box before it looks at scores.

The usual code is written here as the examples of model zoos do it: distances, scores and boxes of all 8,400 cells, then a loop over the
classes with non-maximum suppression in each. (Other examples loop over the cells in Python, which is slower.) Times
are of the processor: on a busy machine a long call is interrupted more often than a short one, which would flatter the short one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anynpu.tasks import Thresholds, decode_columns, decode_distances, decode_rows, reader_for

from . import interleaved, print_table

Array = np.ndarray[Any, Any]
Boxes = tuple[Array, Array, Array]

SIZE = (640, 640)
EXTENTS = (80, 40, 20)
LIMITS = Thresholds(score=0.25, overlap=0.45)
OBJECTS = 15
GOAL = 5.0
"""How many times as fast as the usual code, at least."""


def usual_suppression(boxes: Array, scores: Array) -> Array:
    """Non-maximum suppression of one class."""
    x, y = boxes[:, 0], boxes[:, 1]
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas = w * h
    order = scores.argsort()[::-1]
    keep = []
    while order.size > 0:
        i = order[0]
        keep.append(i)
        x1, y1 = np.maximum(x[i], x[order[1:]]), np.maximum(y[i], y[order[1:]])
        x2, y2 = np.minimum(x[i] + w[i], x[order[1:]] + w[order[1:]]), np.minimum(y[i] + h[i], y[order[1:]] + h[order[1:]])
        inner = np.maximum(0.0, x2 - x1) * np.maximum(0.0, y2 - y1)
        order = order[np.where(inner / (areas[i] + areas[order[1:]] - inner) <= LIMITS.overlap)[0] + 1]
    return np.array(keep)


def usual_end(boxes: Array, confidence: Array, probabilities: Array) -> Boxes:
    """Filter by score, then suppression class by class."""
    best, classes = probabilities.max(axis=-1), probabilities.argmax(axis=-1)
    kept = np.where(best * confidence >= LIMITS.score)
    scores, boxes, classes = (best * confidence)[kept], boxes[kept], classes[kept]
    found: list[Boxes] = []
    for number in sorted(set(classes.tolist())):
        index = np.where(classes == number)
        stay = usual_suppression(boxes[index], scores[index])
        found.append((boxes[index][stay], classes[index][stay], scores[index][stay]))
    if not found:
        return np.zeros((0, 4)), np.zeros(0), np.zeros(0)
    return tuple(np.concatenate(part) for part in zip(*found, strict=True))  # type: ignore[return-value]


def usual_distances(outputs: list[Array]) -> Boxes:
    """A split head of YOLOv8: boxes, scores and sums of three grids."""
    boxes, scores, ones = [], [], []
    for index in range(3):
        position, scored = outputs[3 * index], outputs[3 * index + 1]
        _, channels, height, width = position.shape
        bins = position.reshape(1, 4, channels // 4, height, width)
        powers = np.exp(bins - bins.max(axis=2, keepdims=True))
        shares = powers / powers.sum(axis=2, keepdims=True)
        sides = (shares * np.arange(channels // 4, dtype=np.float32).reshape(1, 1, -1, 1, 1)).sum(axis=2)
        column, row = np.meshgrid(np.arange(width), np.arange(height))
        grid = np.stack([column, row])[None]
        stride = SIZE[0] // height
        corners = np.concatenate([grid + 0.5 - sides[:, :2], grid + 0.5 + sides[:, 2:]], axis=1) * stride
        boxes.append(corners.transpose(0, 2, 3, 1).reshape(-1, 4))
        scores.append(scored.transpose(0, 2, 3, 1).reshape(-1, scored.shape[1]))
        ones.append(np.ones(height * width, np.float32))
    return usual_end(np.concatenate(boxes), np.concatenate(ones), np.concatenate(scores))


def usual_columns(output: Array) -> Boxes:
    """[1, 84, 8400]."""
    rows = output[0].T
    boxes = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], axis=1)
    return usual_end(boxes, np.ones(len(rows), np.float32), rows[:, 4:])


def usual_rows(output: Array) -> Boxes:
    """[1, 25200, 85]."""
    rows = output[0]
    boxes = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], axis=1)
    return usual_end(boxes, rows[:, 4], rows[:, 5:])


def scores_of(rng: np.random.Generator, classes: int, cells: int) -> Array:
    """Small everywhere, large where the objects are: each is seen by a few cells."""
    scores = rng.uniform(0.0, 0.05, (classes, cells)).astype(np.float32)
    for place, number in zip(rng.integers(0, cells - 4, OBJECTS), rng.integers(0, classes, OBJECTS), strict=True):
        scores[number, place : place + 4] = rng.uniform(0.3, 0.95, 4)
    return scores


def heads() -> list[tuple[str, Callable[[], Any], Callable[[], Any], float]]:
    """Name, ours, the usual code, and how many times as fast ours has to be."""
    rng = np.random.default_rng(1)
    split: list[Array] = []
    for extent in EXTENTS:
        scores = scores_of(rng, 80, extent * extent).reshape(1, 80, extent, extent)
        split += [rng.standard_normal((1, 64, extent, extent)).astype(np.float32) * 2, scores, scores.sum(axis=1, keepdims=True)]
    grids = [[tensor[0] for tensor in split[3 * index : 3 * index + 3]] for index in range(3)]
    boxes = rng.uniform(10, 600, (4, 25200)).astype(np.float32)
    columns = np.concatenate([boxes[:, :8400], scores_of(rng, 80, 8400)])[None]
    rows = np.concatenate([boxes, np.ones((1, 25200), np.float32), scores_of(rng, 80, 25200)]).T[None].copy()
    rows[0, :, 4] = np.where(rows[0, :, 5:].max(axis=1) > 0.1, 0.95, 0.01)
    reader = reader_for(SIZE, [tensor.shape for tensor in split])
    return [
        (
            "YOLOv8 by grid (the vendors' heads)",
            lambda: decode_distances(grids, SIZE, LIMITS),
            lambda: usual_distances(split),
            GOAL,
        ),
        ("the same, through reader_for", lambda: reader.read(split), lambda: usual_distances(split), GOAL),
        ("YOLOv8 to 11, 84 x 8,400", lambda: decode_columns(columns, SIZE, LIMITS), lambda: usual_columns(columns), GOAL),
        ("YOLOv5, 25,200 x 85", lambda: decode_rows(rows, SIZE, LIMITS), lambda: usual_rows(rows), GOAL),
    ]


def main() -> None:
    """Print one row per head."""
    table = []
    for name, ours, usual, goal in heads():
        assert len(ours()) == len(usual()[0]), name
        best = interleaved({"ours": ours, "usual": usual}, clock=time.thread_time)
        ratio = best["usual"] / best["ours"]
        verdict = "reached" if ratio >= goal else "MISSED"
        times = [f"{1000 * best[who]:.2f}" for who in ("ours", "usual")]
        table.append([name, *times, f"{ratio:.1f}", f"{goal:g}", verdict])
    header = ["head", "ours ms", "usual ms", "times as fast", "goal", ""]
    print_table("Decoding heads of 640 x 640 networks", header, table)


if __name__ == "__main__":
    main()
