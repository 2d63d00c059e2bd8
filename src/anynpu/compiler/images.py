"""Images from files, as arrays for a model's input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._util import optional as _optional
from ..errors import ImageError

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""File names that end so are taken for images, in either case."""

MAX_BYTES = 1 << 29
"""Of the file of an image."""

MAX_SCANS = 100
"""Of a JPEG image: encoders write about ten, and each goes over the whole image again."""

_JPEG, _SCAN = b"\xff\xd8", b"\xff\xda"


def load_image(path: str | os.PathLike[str], height: int, width: int, channels: int = 3) -> npt.NDArray[np.uint8]:
    """The image in *path* as uint8 [height, width, channels]: RGB, gray for one channel, RGBA for four.

    It is scaled to the given size without regard to its proportions: by area where it shrinks, linearly where it grows. The orientation
    stored by a camera is applied.

    >>> load_image("street.jpg", 480, 640).shape    # doctest: +SKIP
    (480, 640, 3)

    :raises ImageError: the file is missing, empty, damaged, or not an image
    """
    if channels not in (1, 3, 4):
        raise ImageError(f"an image has 1, 3 or 4 channels, not {channels}", hint="pass the data as a .npy file")
    return _resize(_optional.cv2(), read_image(path, channels), height, width)


MAX_HELD = 256 << 20
"""Bytes of scaled images that are held for the next pass over a dataset."""


class DecodedImages:
    """The images of one dataset, each decoded once.

    An image that was asked for in its own size is held in that size until it is asked for in the input's size. In that size images are held
    up to :data:`MAX_HELD`; further ones are decoded again in the next pass. Callers do not write to them.
    """

    def __init__(self) -> None:
        self._whole: dict[tuple[Path, int], npt.NDArray[np.uint8]] = {}
        self._scaled: dict[tuple[Path, int, int, int], npt.NDArray[np.uint8]] = {}
        self._held = 0

    def whole(self, path: Path, channels: int = 3) -> npt.NDArray[np.uint8]:
        """The image in its own size, as :func:`read_image` gives it."""
        key = path, channels
        if key not in self._whole:
            self._whole[key] = read_image(path, channels)
        return self._whole[key]

    def scaled(self, path: Path, height: int, width: int, channels: int = 3) -> npt.NDArray[np.uint8]:
        """The image in the size of an input, as :func:`load_image` gives it."""
        key = path, height, width, channels
        found = self._scaled.get(key)
        if found is not None:
            return found
        whole = self._whole.pop((path, channels), None)
        image = load_image(path, height, width, channels) if whole is None else _resize(_optional.cv2(), whole, height, width)
        if self._held + image.nbytes <= MAX_HELD:
            self._scaled[key] = image
            self._held += image.nbytes
        return image


def read_image(path: str | os.PathLike[str], channels: int = 3) -> npt.NDArray[np.uint8]:
    """The image in *path* in its own size: uint8 [height, width, channels], as :func:`load_image` reads it."""
    return decode_image(_read(Path(path)), os.fspath(path), channels)


def decode_image(encoded: npt.NDArray[np.uint8], name: str, channels: int = 3) -> npt.NDArray[np.uint8]:
    """The image in the bytes of a file; *name* is what an error calls it."""
    cv2 = _optional.cv2()
    if channels == 1:
        return _decode(cv2, encoded, cv2.IMREAD_GRAYSCALE, name)[:, :, np.newaxis]
    # first, so that what is stored, which may have eight bytes per pixel, is gone before the colors come
    alpha = _alpha(_decode(cv2, encoded, cv2.IMREAD_UNCHANGED, name)) if channels == 4 else None
    colour: npt.NDArray[np.uint8] = cv2.cvtColor(_decode(cv2, encoded, cv2.IMREAD_COLOR, name), cv2.COLOR_BGR2RGB)
    if channels == 3:
        return colour
    if alpha is None or alpha.shape != colour.shape[:2]:
        alpha = np.full(colour.shape[:2], 255, np.uint8)
    return np.dstack((colour, alpha))


def _alpha(stored: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    """How opaque each pixel is, where the image states it."""
    if stored.ndim != 3 or stored.shape[2] != 4:
        return None
    return stored[:, :, 3].copy() if stored.dtype == np.uint8 else (stored[:, :, 3] >> 8).astype(np.uint8)


def _read(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(f"the image '{path}' has more than {MAX_BYTES >> 20} MB", hint="save it in a smaller form")
        encoded = path.read_bytes()
    except OSError as error:
        raise ImageError(f"cannot read the image '{path}': {error.strerror}", hint="check the path and its permissions") from None
    if not encoded:
        raise ImageError(f"the image '{path}' is an empty file", hint="replace it or remove it")
    return np.frombuffer(encoded, np.uint8)


def _decode(cv2: Any, encoded: npt.NDArray[np.uint8], mode: int, path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    if bytes(encoded[:2]) == _JPEG and encoded.tobytes().count(_SCAN) > MAX_SCANS:
        raise ImageError(
            f"'{os.fspath(path)}' is a JPEG image in more than {MAX_SCANS} scans, which would take very long",
            hint="save it again, or remove it",
        )
    # Decoding from memory fails on a file that is cut short; cv2.imread would fill the rest of a JPEG with gray.
    try:
        picture = cv2.imdecode(encoded, mode)
    except cv2.error:
        picture = None
    if picture is None:
        raise ImageError(
            f"'{os.fspath(path)}' is not an image that OpenCV can read, or it is damaged or cut short",
            hint="open it in a viewer; save it again as PNG or JPEG, or remove it",
        )
    decoded: npt.NDArray[Any] = picture
    return decoded


def _resize(cv2: Any, picture: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = picture.shape[0] >= height and picture.shape[1] >= width
    scaled: npt.NDArray[np.uint8] = cv2.resize(
        picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )
    return scaled if scaled.ndim == 3 else scaled[:, :, np.newaxis]
