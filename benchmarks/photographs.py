"""Images for measurements of accuracy: photographed pages that are drawn from a seed, and views of photographs that are on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu._util.optional import cv2 as load_cv2
from anynpu.cli.demo.pages import Grain, page

Image = npt.NDArray[np.uint8]

VIEWS = ("as it is", "mirrored", "nearer", "darker")
"""How a photograph is looked at; each view is a test of its own."""

_BORDER = 114


def photographed_page(seed: int, size: int = 480) -> Image:
    """A page of text as a camera sees it: tilted, on a table, with a shadow, little contrast, out of focus, with grain."""
    cv2 = load_cv2()
    random = np.random.default_rng((0xF070, seed))
    sheet = page(seed, size, Grain.NONE)
    corners = np.array([[0, 0], [size, 0], [size, size], [0, size]], np.float32)
    seen = corners * 0.86 + size * 0.07 + random.uniform(-0.07, 0.07, (4, 2)).astype(np.float32) * size
    turn = cv2.getPerspectiveTransform(corners, seen)
    table = _table(random, size)
    inside = cv2.warpPerspective(np.ones((size, size), np.float32), turn, (size, size))[..., None]
    picture = cv2.warpPerspective(sheet, turn, (size, size), flags=cv2.INTER_AREA) * inside + table * (1.0 - inside)
    picture = picture * _shadow(cv2, random, size)
    contrast = random.uniform(0.3, 1.0)
    picture = (picture - 128.0) * contrast + 128.0 + random.uniform(-50.0, 30.0)
    picture = picture * random.uniform(0.9, 1.1, 3)  # the color of the light
    picture = cv2.GaussianBlur(picture, (0, 0), random.uniform(0.3, 1.4))
    channels = 3 if random.random() < 0.7 else 1
    picture = picture + random.normal(0.0, random.uniform(1.0, 9.0), (size, size, channels))
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _table(random: np.random.Generator, size: int) -> npt.NDArray[Any]:
    """What the page lies on: a color that changes slowly, with lines as wood has them."""
    colour = random.uniform(30.0, 160.0, 3)
    rows = np.cumsum(random.normal(0.0, 2.0, size)).reshape(-1, 1, 1)
    result: npt.NDArray[Any] = np.clip(colour + rows - rows.mean() + np.zeros((size, size, 3)), 0, 255)
    return result


def _shadow(cv2: Any, random: np.random.Generator, size: int) -> npt.NDArray[Any]:
    """How bright each place is: light from one side, and the soft shadow of something."""
    place = np.linspace(-0.5, 0.5, size)
    slope = random.uniform(-0.4, 0.4, 2)
    light = 1.0 + slope[0] * place[:, None] + slope[1] * place[None, :]
    polygon = (random.uniform(-0.3, 1.3, (4, 2)) * size).astype(np.int32)
    dark = cv2.fillConvexPoly(np.zeros((size, size), np.float32), cv2.convexHull(polygon), 1.0)
    dark = cv2.GaussianBlur(dark, (0, 0), random.uniform(4.0, 25.0))
    result: npt.NDArray[Any] = (light * (1.0 - random.uniform(0.0, 0.5) * dark))[..., None]
    return result


def photos(folder: Path) -> list[Image]:
    """The photographs of a folder in the order of their names, as BGR."""
    return [load_cv2().imread(str(path)) for path in sorted(folder.glob("*.jpg"))]


def viewed(photo: Image, view: str) -> Image:
    """A photograph in one of the :data:`VIEWS`."""
    if view == "mirrored":
        return np.ascontiguousarray(photo[:, ::-1])
    if view == "nearer":
        height, width = photo.shape[:2]
        return np.ascontiguousarray(photo[height // 6 : height - height // 12, width // 12 : width - width // 6])
    if view == "darker":
        return np.rint(photo * 0.6).astype(np.uint8)
    return photo


def letterboxed(photo: Image, size: int) -> Image:
    """A photograph in the upper left corner of a square, as YOLOX has it."""
    cv2 = load_cv2()
    ratio = min(size / photo.shape[0], size / photo.shape[1])
    small = cv2.resize(photo, (int(photo.shape[1] * ratio), int(photo.shape[0] * ratio)), interpolation=cv2.INTER_LINEAR)
    result = np.full((size, size, 3), _BORDER, np.uint8)
    result[: small.shape[0], : small.shape[1]] = small
    return result


def folds(count: int) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
    """Two halves of *count* photographs: each once for calibration and once for the test."""
    first, second = range(count // 2), range(count // 2, count)
    return (first, second), (second, first)
