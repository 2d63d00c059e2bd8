"""An image in the size of a network's input, and the way back from its pixels to those of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._util import optional as _optional
from .._util.types import Array
from ..errors import ImageError, ParameterError

FITS = ("letterbox", "corner", "stretch", "crop")
"""How an image gets into the input: whole, in the middle; whole, at the top left; without regard to proportions; its middle only."""

_CROP = 224 / 256
"""The share of the shorter side that networks for ImageNet are shown."""


@dataclass(frozen=True)
class Placement:
    """Where an image lies in a network's input.

    :ivar picture: height and width of the image
    :ivar size: height and width of the input
    :ivar scale: pixels of the input per pixel of the image, across and down
    :ivar offset: where the image's left and top border lie in the input; negative where it is cut
    """

    picture: tuple[int, int]
    size: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]

    def to_picture(self, points: Array) -> Array:
        """Points [..., 2] of the input, x and y, in pixels of the image.

        >>> place((100, 200), (64, 64), "letterbox").to_picture(np.array([0.0, 16.0])).tolist()
        [0.0, 0.0]
        """
        moved: Array = ((points - np.array(self.offset)) / np.array(self.scale)).astype(np.float32)
        return moved

    def to_input(self, points: Array) -> Array:
        """Points [..., 2] of the image in pixels of the input."""
        moved: Array = (points * np.array(self.scale) + np.array(self.offset)).astype(np.float32)
        return moved

    def boxes(self, boxes: Array) -> Array:
        """Boxes [N, 4] of the input in pixels of the image, cut at its borders."""
        points = self.to_picture(boxes.reshape(-1, 2, 2))
        height, width = self.picture
        return np.clip(points, 0.0, np.array([width, height], np.float32)).reshape(-1, 4).astype(np.float32)

    def map_to_picture(self, values: Array) -> Array:
        """Maps [..., h, w] on any grid over the input, interpolated at every pixel of the image: [..., H, W]."""
        for axis, extent in ((-2, 0), (-1, 1)):
            places = (np.arange(self.picture[extent]) + 0.5) * self.scale[1 - extent] + self.offset[1 - extent]
            values = _interpolated(values, places * values.shape[axis] / self.size[extent] - 0.5, axis)
        return values

    def nearest_to_picture(self, values: Array) -> Array:
        """As :meth:`map_to_picture` for classes, which cannot be mixed: the nearest value."""
        for axis, extent in ((-2, 0), (-1, 1)):
            places = (np.arange(self.picture[extent]) + 0.5) * self.scale[1 - extent] + self.offset[1 - extent]
            index = np.floor(places * values.shape[axis] / self.size[extent]).astype(np.int64)
            values = np.take(values, np.clip(index, 0, values.shape[axis] - 1), axis)
        return values


def _interpolated(values: Array, places: Array, axis: int) -> Array:
    last = values.shape[axis] - 1
    low = np.clip(np.floor(places), 0, last).astype(np.int64)
    high = np.minimum(low + 1, last)
    share = np.clip(places - low, 0.0, 1.0).astype(np.float32)
    share = share[:, None] if axis == -2 else share
    mixed: Array = np.take(values, low, axis) * (1 - share) + np.take(values, high, axis) * share
    return mixed


def place(picture: tuple[int, int], size: tuple[int, int], fit: str = "letterbox") -> Placement:
    """How an image (height, width) is put into an input of *size*.

    :param fit: one of :data:`FITS`

    >>> place((480, 640), (416, 416), "letterbox").offset
    (0.0, 52.0)
    """
    if fit not in FITS:
        raise ParameterError(f"there is no fit '{fit}'", hint=f"choose one of: {', '.join(FITS)}")
    if min(*picture, *size) < 1:
        raise ImageError(f"an image of {picture[0]} x {picture[1]} cannot be scaled", hint="check the image")
    (height, width), (rows, columns) = picture, size
    if fit == "stretch":
        return Placement(picture, size, (columns / width, rows / height), (0.0, 0.0))
    if fit == "crop":
        factor = max(rows, columns) / _CROP / min(height, width)
    else:
        factor = min(rows / height, columns / width)
    inner = max(round(height * factor), 1), max(round(width * factor), 1)
    scale = inner[1] / width, inner[0] / height
    if fit == "corner":
        return Placement(picture, size, scale, (0.0, 0.0))
    return Placement(picture, size, scale, (float((columns - inner[1]) // 2), float((rows - inner[0]) // 2)))


def fit_picture(picture: Array, size: tuple[int, int], fit: str = "letterbox", fill: int = 114) -> tuple[Array, Placement]:
    """*picture* [H, W, C] as uint8 in the *size* of an input, and where it lies there.

    Scaled by area where it shrinks, linearly where it grows; what is left over is filled with *fill*.

    >>> fitted, placement = fit_picture(np.zeros((48, 64, 3), np.uint8), (32, 32))    # doctest: +SKIP
    """
    if picture.ndim != 3 or picture.dtype != np.uint8:
        raise ImageError(
            f"an image is uint8 [height, width, channels], not {picture.dtype} {list(picture.shape)}",
            hint="read it with OpenCV, or convert it with numpy",
        )
    placement = place((picture.shape[0], picture.shape[1]), size, fit)
    height, width = round(picture.shape[0] * placement.scale[1]), round(picture.shape[1] * placement.scale[0])
    scaled = _resized(_optional.cv2(), picture, height, width)
    if (height, width) == size:
        return scaled, placement
    left, top = int(placement.offset[0]), int(placement.offset[1])
    if fit == "crop":
        return np.ascontiguousarray(scaled[-top : size[0] - top, -left : size[1] - left]), placement
    canvas = np.full((*size, picture.shape[2]), fill, np.uint8)
    canvas[top : top + height, left : left + width] = scaled
    return canvas, placement


def _resized(cv2: Any, picture: Array, height: int, width: int) -> Array:
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = picture.shape[0] >= height and picture.shape[1] >= width
    scaled: Array = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    return scaled if scaled.ndim == 3 else scaled[:, :, None]
