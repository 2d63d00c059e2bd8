"""Text: where an image has it, and what it states (PP-OCR and its like)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._util import optional as _optional
from .._util.types import Array
from ..errors import ShapeError
from .boxes import is_activated
from .results import TextLine, TextRegions
from .suppress import softmax

MIN_SIDE = 3.0
"""Shorter side, in pixels, of a region that is looked at."""

MAX_PROPORTION = 100
"""Width of a strip in heights."""

_SPACE = 0.15
"""Width of the narrowest space between words, in heights of the line."""

_UPRIGHT = 1.5
"""A region this much taller than wide holds a line that is turned."""


def find_text(probability: Array, *, threshold: float = 0.3, min_score: float = 0.6, unclip: float = 1.6) -> TextRegions:
    """Regions of text in a map of probabilities [H, W], as differentiable binarisation means them.

    :param threshold: a pixel above it belongs to text
    :param min_score: regions with a smaller mean probability are dropped
    :param unclip: how far a region grows, since training shrank it: area * unclip / perimeter on every side
    """
    cv2 = _optional.cv2()
    values = np.ascontiguousarray(probability.reshape(probability.shape[-2:]), np.float32)
    contours, _ = cv2.findContours((values > threshold).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    corners, scores = [], []
    for contour in contours:
        centre, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < MIN_SIDE:
            continue
        left, top, across, down = cv2.boundingRect(contour)
        inside = np.zeros((down, across), np.uint8)
        cv2.drawContours(inside, [contour], -1, 1, -1, offset=(-left, -top))
        score = float(values[top : top + down, left : left + across][inside.astype(bool)].mean())
        if score < min_score:
            continue
        grow = width * height * unclip / (2 * (width + height))
        corners.append(_ordered(np.asarray(cv2.boxPoints((centre, (width + 2 * grow, height + 2 * grow), angle)), np.float32)))
        scores.append(score)
    if not corners:
        return TextRegions(np.zeros((0, 4, 2), np.float32), np.zeros(0, np.float32))
    stacked = np.stack(corners)
    order = _reading_order(stacked)
    return TextRegions(stacked[order], np.array(scores, np.float32)[order])


def _ordered(corners: Array) -> Array:
    """Corners from the one at the top left, clockwise."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = by_x[:2], by_x[2:]
    left, right = left[np.argsort(left[:, 1], kind="stable")], right[np.argsort(right[:, 1], kind="stable")]
    return np.stack([left[0], right[0], right[1], left[1]])


def _reading_order(corners: Array) -> Array:
    """From top to bottom, and from left to right where regions stand in one row."""
    middles = corners.mean(axis=1)
    heights = np.linalg.norm(corners[:, 3] - corners[:, 0], axis=1)
    order = list(np.argsort(middles[:, 1], kind="stable"))
    rows: list[list[int]] = []
    for index in order:
        if rows and abs(middles[index, 1] - middles[rows[-1][0], 1]) < min(heights[index], heights[rows[-1][0]]) / 2:
            rows[-1].append(index)
        else:
            rows.append([index])
    return np.array([index for row in rows for index in sorted(row, key=lambda entry: float(middles[entry, 0]))], np.int64)


def crop_text(picture: Array, corners: Array, height: int) -> Array:
    """The region with these *corners* [4, 2] as a strip: upright, *height* pixels high, and as wide as its proportions ask for."""
    cv2 = _optional.cv2()
    points = np.asarray(corners, np.float32)
    across = float(max(np.linalg.norm(points[1] - points[0]), np.linalg.norm(points[2] - points[3])))
    down = float(max(np.linalg.norm(points[3] - points[0]), np.linalg.norm(points[2] - points[1])))
    if down >= across * _UPRIGHT:
        points, across, down = points[[1, 2, 3, 0]], down, across
    width = int(min(max(round(height * across / max(down, 1.0)), 1), height * MAX_PROPORTION))
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(points, target)
    strip: Array = cv2.warpPerspective(picture, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return strip.reshape(height, width, -1)


def split_line(strip: Array, width: int, fill: int = 127) -> list[tuple[Array, str]]:
    """*strip* [H, W, C] in pieces of *width*, for a recognizer whose input is no wider; what the last one leaves over is filled.

    A line that is too long is cut where it has the least ink, which is between words or characters. The text with each piece stands between
    it and the piece before: a space where the gap is as wide as one.

    >>> [piece.shape for piece, _ in split_line(np.zeros((48, 500, 3), np.uint8), 320)]
    [(48, 320, 3), (48, 320, 3)]
    """
    height, total = strip.shape[:2]
    ink = strip.mean(axis=2).std(axis=0)
    window = max(height // 4, 1)
    smooth = np.convolve(ink, np.ones(window) / window, mode="same")
    pieces: list[tuple[Array, str]] = []
    start, between = 0, ""
    while True:
        end = total
        following = ""
        if total - start > width:
            first = start + width // 2
            # of several places without ink the last: pieces as long as possible
            end = start + width - int(np.argmin(smooth[first : start + width][::-1]))
            # a frame around the line is ink in every column
            low, high = float(ink.min()), float(ink.max())
            blank = ink <= low + 0.25 * (high - low) + 1e-6
            following = " " if _run_around(blank, min(end, total - 1)) >= height * _SPACE else ""
        canvas = np.full((height, width, strip.shape[2]), fill, np.uint8)
        canvas[:, : end - start] = strip[:, start:end]
        pieces.append((canvas, between))
        if end >= total:
            return pieces
        start, between = end, following


def _run_around(blank: Array, place: int) -> int:
    """How many neighbors in a row around *place* are blank."""
    before, after = blank[:place][::-1], blank[place:]
    reach = [int(np.argmin(side)) if not side.all() else len(side) for side in (before, after)]
    return sum(reach)


def alphabet_of(characters: Sequence[str], classes: int) -> tuple[str, ...]:
    """The character of each class of a recognizer: the first is the blank, the last a space where the list has none for it.

    >>> alphabet_of(["a", "b"], 4)
    ('', 'a', 'b', ' ')
    """
    listed = ("", *characters)
    if len(listed) == classes - 1:
        listed = (*listed, " ")
    if len(listed) != classes:
        raise ShapeError(
            f"the network distinguishes {classes} characters apart, the list has {len(characters)}",
            hint=f"a list for it has {classes - 1} lines, or {classes - 2} and a space is added",
        )
    return listed


def read_text(output: Array, alphabet: Sequence[str]) -> TextLine:
    """The line in [T, classes]: the best class of each step, without blanks (class 0) and repetitions.

    >>> read_text(np.eye(3)[[1, 1, 0, 1, 2]], ("", "a", "b")).text
    'aab'
    """
    values: Array = np.asarray(output, np.float32).reshape(output.shape[-2:])
    if values.shape[1] != len(alphabet):
        raise ShapeError(
            f"the network distinguishes {values.shape[1]} characters apart, the alphabet has {len(alphabet)}",
            hint="check the list",
        )
    if not is_activated(values):
        values = softmax(values)
    best = values.argmax(axis=1)
    kept = (best != 0) & np.concatenate([[True], best[1:] != best[:-1]])
    text = "".join(alphabet[index] for index in best[kept])
    return TextLine(text, float(values.max(axis=1)[kept].mean()) if kept.any() else 0.0)
