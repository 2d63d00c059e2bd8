"""Decoders written as plain loops over every box, in float64: what the fast ones are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anynpu._util.types import Array
from anynpu.tasks import Detections, Thresholds


@dataclass
class SlowBox:
    """One candidate."""

    box: tuple[float, float, float, float]
    score: float
    number: int
    more: list[float] = field(default_factory=list)
    angle: float = 0.0
    middle: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    width = max(min(a[2], b[2]) - max(a[0], b[0]), 0.0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)
    shared = width * height
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def turned_overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Of two turned boxes (x, y, width, height, angle): 1 less the Hellinger distance of the normal distributions that they stand for."""

    def spread(box: Sequence[float]) -> Array:
        cosine, sine = math.cos(box[4]), math.sin(box[4])
        turn = np.array([[cosine, -sine], [sine, cosine]])
        spread: Array = turn @ np.diag([box[2] ** 2 / 12, box[3] ** 2 / 12]) @ turn.T
        return spread

    first, second = spread(a), spread(b)
    both = (first + second) / 2
    away = np.array([a[0] - b[0], a[1] - b[1]])
    distance = float(away @ np.linalg.inv(both) @ away) / 8
    distance += 0.5 * math.log(np.linalg.det(both) / math.sqrt(np.linalg.det(first) * np.linalg.det(second)))
    return 1.0 - math.sqrt(max(1.0 - math.exp(-distance), 0.0))


def nms(found: list[SlowBox], thresholds: Thresholds) -> list[SlowBox]:
    kept: list[SlowBox] = []
    for candidate in sorted(found, key=lambda entry: -entry.score):
        if all(entry.number != candidate.number or iou(entry.box, candidate.box) <= thresholds.overlap for entry in kept):
            kept.append(candidate)
    return kept[: thresholds.count]


def around(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def columns(output: Array, thresholds: Thresholds, classes: int) -> list[SlowBox]:
    """[4 + classes + extra, N] in pixels."""
    found = []
    for place in range(output.shape[1]):
        column = [float(value) for value in output[:, place]]
        scores = column[4 : 4 + classes]
        number = max(range(classes), key=lambda index: scores[index])
        if scores[number] >= thresholds.score:
            x, y, width, height = column[:4]
            found.append(
                SlowBox(around(x, y, width, height), scores[number], number, column[4 + classes :], 0.0, (x, y, width, height))
            )
    return found


def rows(output: Array, thresholds: Thresholds, classes: int, grid: list[tuple[int, int, int]] | None = None) -> list[SlowBox]:
    """[N, 5 + classes + extra], in pixels or, with a *grid* of (x, y, stride), as YOLOX writes them."""
    found = []
    for place in range(len(output)):
        row = [float(value) for value in output[place]]
        scores = [row[4] * value for value in row[5 : 5 + classes]]
        number = max(range(classes), key=lambda index: scores[index])
        if scores[number] < thresholds.score:
            continue
        x, y, width, height = row[:4]
        if grid is not None:
            column, line, stride = grid[place]
            x, y, width, height = (x + column) * stride, (y + line) * stride, math.exp(width) * stride, math.exp(height) * stride
        found.append(SlowBox(around(x, y, width, height), scores[number], number, row[5 + classes :]))
    return found


def grid_of(size: tuple[int, int], strides: Sequence[int] = (8, 16, 32)) -> list[tuple[int, int, int]]:
    return [(x, y, stride) for stride in strides for y in range(size[0] // stride) for x in range(size[1] // stride)]


def distances(
    grids: Sequence[Sequence[Array]], size: tuple[int, int], thresholds: Thresholds, *, logits: bool, angles: Array | None = None
) -> list[SlowBox]:
    """Boxes as distances to four sides, with or without bins. What a box has besides is its place over all grids."""
    found = []
    place = 0
    for tensors in grids:
        boxes, scored = tensors[0].astype(np.float64), tensors[1].astype(np.float64)
        bins = len(boxes) // 4
        stride = size[0] / boxes.shape[1]
        for y in range(boxes.shape[1]):
            for x in range(boxes.shape[2]):
                values = [sigmoid(value) if logits else value for value in scored[:, y, x].tolist()]
                number = max(range(len(values)), key=lambda index: values[index])
                place += 1
                if values[number] < thresholds.score:
                    continue
                sides = []
                for side in range(4):
                    numbers = boxes[side * bins : (side + 1) * bins, y, x].tolist()
                    if bins == 1:
                        sides.append(numbers[0])
                        continue
                    powers = [math.exp(value - max(numbers)) for value in numbers]
                    sides.append(sum(index * power for index, power in enumerate(powers)) / sum(powers))
                left, top, right, bottom = sides
                box = (
                    (x + 0.5 - left) * stride,
                    (y + 0.5 - top) * stride,
                    (x + 0.5 + right) * stride,
                    (y + 0.5 + bottom) * stride,
                )
                made = SlowBox(box, values[number], number, [float(place - 1)])
                if angles is not None:
                    angle = float(angles[place - 1])
                    across, down = (right - left) / 2, (bottom - top) / 2
                    middle_x = x + 0.5 + across * math.cos(angle) - down * math.sin(angle)
                    middle_y = y + 0.5 + across * math.sin(angle) + down * math.cos(angle)
                    made.angle = angle
                    made.middle = (middle_x * stride, middle_y * stride, (left + right) * stride, (top + bottom) * stride)
                found.append(made)
    return found


def anchored(
    grids: Sequence[Array], size: tuple[int, int], thresholds: Thresholds, anchors: Sequence[Sequence[float]]
) -> list[SlowBox]:
    """YOLOv5 and v7, logits."""
    found = []
    for tensor, sizes in zip(grids, anchors, strict=True):
        stride = size[0] / tensor.shape[1]
        depth = len(tensor) // 3
        for anchor in range(3):
            for y in range(tensor.shape[1]):
                for x in range(tensor.shape[2]):
                    values = [sigmoid(value) for value in tensor[anchor * depth : (anchor + 1) * depth, y, x].tolist()]
                    scores = [values[4] * value for value in values[5:]]
                    number = max(range(len(scores)), key=lambda index: scores[index])
                    if scores[number] < thresholds.score:
                        continue
                    width = (2 * values[2]) ** 2 * sizes[2 * anchor]
                    height = (2 * values[3]) ** 2 * sizes[2 * anchor + 1]
                    middle = (2 * values[0] - 0.5 + x) * stride, (2 * values[1] - 0.5 + y) * stride
                    found.append(SlowBox(around(*middle, width, height), scores[number], number))
    return found


def assert_same(result: Detections, expected: list[SlowBox], *, at_least: int = 2) -> None:
    """The same boxes to a hundredth of a pixel and scores to 1e-5, in the same order."""
    assert len(expected) >= at_least, "the generated head has too few objects to state anything"
    assert len(result) == len(expected)
    np.testing.assert_allclose(result.scores, [entry.score for entry in expected], atol=1e-5)
    assert result.classes.tolist() == [entry.number for entry in expected]
    np.testing.assert_allclose(result.boxes, np.array([entry.box for entry in expected]), atol=1e-2)
