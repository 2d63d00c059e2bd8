"""Results drawn on the image that they belong to."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._util import optional as _optional
from .._util.types import Array
from .detect import Result
from .results import Detections, SemanticMap, TextLine, TextRegions

LIMBS = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),
    *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
"""Which of the 17 keypoints of a person in COCO belong together."""

_SEEN = 0.3
"""Smallest score of a keypoint that is drawn."""

_SHARE = 0.45
"""Of a mask's color over the image."""


def draw(picture: Array, result: Result, labels: Sequence[str] = ()) -> Array:
    """A copy of *picture*, RGB uint8 [H, W, 3], with *result* drawn on it."""
    cv2 = _optional.cv2()
    canvas: Array = np.ascontiguousarray(picture).copy()
    if isinstance(result, Detections):
        _detections(cv2, canvas, result, labels)
    elif isinstance(result, TextRegions):
        _regions(cv2, canvas, result)
    elif isinstance(result, SemanticMap):
        _map(cv2, canvas, result, labels)
    else:
        lines = [result.text] if isinstance(result, TextLine) else [_named(row) for row in result.rows(tuple(labels))]
        _listed(cv2, canvas, lines)
    return canvas


def _named(row: dict[str, Any]) -> str:
    return f"{row['label']} {row['score']:.2f}"


def _colour(number: int) -> tuple[int, int, int]:
    """A color per class: neighbors are far apart (steps of the golden ratio around the circle of hues)."""
    red, green, blue = colorsys.hsv_to_rgb((0.1 + number * 0.618034) % 1.0, 0.85, 0.95)
    return int(red * 255), int(green * 255), int(blue * 255)


def _thickness(canvas: Array) -> int:
    return max(1, round(float(min(canvas.shape[:2])) / 320))


def _detections(cv2: Any, canvas: Array, result: Detections, labels: Sequence[str]) -> None:
    thickness = _thickness(canvas)
    order = range(len(result) - 1, -1, -1)  # the highest score is drawn last, on top
    if result.masks is not None:
        for index in order:
            inside = result.masks[index]
            colour = np.array(_colour(int(result.classes[index])), np.float32)
            canvas[inside] = (canvas[inside] * (1 - _SHARE) + colour * _SHARE).astype(np.uint8)
    rows = list(result.rows(tuple(labels)))
    for index in order:
        colour_of = _colour(int(result.classes[index]))
        left, top, right, bottom = (round(float(value)) for value in result.boxes[index])
        if result.corners is None:
            cv2.rectangle(canvas, (left, top), (right, bottom), colour_of, thickness, cv2.LINE_AA)
        else:
            cv2.polylines(canvas, [np.rint(result.corners[index]).astype(np.int32)], True, colour_of, thickness, cv2.LINE_AA)
        if result.keypoints is not None:
            _keypoints(cv2, canvas, result.keypoints[index], colour_of, thickness)
        _label(cv2, canvas, _named(rows[index]), (left, top), colour_of)


def _keypoints(cv2: Any, canvas: Array, points: Array, colour: tuple[int, int, int], thickness: int) -> None:
    places = [(round(float(x)), round(float(y))) for x, y, _ in points]
    seen = points[:, 2] >= _SEEN
    for first, second in LIMBS if len(points) == 17 else ():
        if seen[first] and seen[second]:
            cv2.line(canvas, places[first], places[second], colour, thickness, cv2.LINE_AA)
    for place, shown in zip(places, seen, strict=True):
        if shown:
            cv2.circle(canvas, place, thickness + 1, (255, 255, 255), -1, cv2.LINE_AA)
            cv2.circle(canvas, place, thickness + 1, colour, thickness, cv2.LINE_AA)


def _ascii(text: str) -> str:
    """OpenCV's own letters are those of ASCII."""
    return text.encode("ascii", "replace").decode("ascii")


def _label(cv2: Any, canvas: Array, text: str, place: tuple[int, int], colour: tuple[int, int, int]) -> None:
    """Text on a ground of *colour* above *place*, moved into the image where it would leave it."""
    scale = max(0.4, min(canvas.shape[:2]) / 1000)
    (width, height), below = cv2.getTextSize(_ascii(text), cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    left = max(0, min(place[0], canvas.shape[1] - width - 4))
    bottom = place[1] if place[1] >= height + below + 4 else place[1] + height + below + 4
    cv2.rectangle(canvas, (left, bottom - height - below - 4), (left + width + 4, bottom), colour, -1)
    bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140
    ink = (0, 0, 0) if bright else (255, 255, 255)
    cv2.putText(canvas, _ascii(text), (left + 2, bottom - below - 2), cv2.FONT_HERSHEY_SIMPLEX, scale, ink, 1, cv2.LINE_AA)


def _regions(cv2: Any, canvas: Array, result: TextRegions) -> None:
    colour = (0, 150, 60)
    for index in range(len(result)):
        corners = np.rint(result.corners[index]).astype(np.int32)
        cv2.polylines(canvas, [corners], True, colour, _thickness(canvas), cv2.LINE_AA)
        if result.lines:
            _label(cv2, canvas, result.lines[index].text, (int(corners[0, 0]), int(corners[0, 1])), colour)


def _map(cv2: Any, canvas: Array, result: SemanticMap, labels: Sequence[str]) -> None:
    numbers = np.unique(result.classes)
    for number in numbers[numbers > 0]:
        inside = result.classes == number
        canvas[inside] = (canvas[inside] * (1 - _SHARE) + np.array(_colour(int(number)), np.float32) * _SHARE).astype(np.uint8)
    shown = [row for row in result.rows(tuple(labels)) if row["class"] > 0][:8]
    _listed(
        cv2, canvas, [f"{row['label']} {100 * row['share']:.0f} %" for row in shown], [_colour(row["class"]) for row in shown]
    )


def _listed(cv2: Any, canvas: Array, lines: Sequence[str], colours: Sequence[tuple[int, int, int]] = ()) -> None:
    """Lines at the top left."""
    step = round(max(0.4, min(canvas.shape[:2]) / 1000) * 22) + 12
    for index, line in enumerate(lines):
        _label(cv2, canvas, line, (4, step * (index + 1)), colours[index] if colours else (30, 30, 30))
