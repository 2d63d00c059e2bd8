"""Pages and lines of text, drawn from a seed: calibration data and test data that need no download.

The same seed gives the same image. Pages for calibration and pages for a measurement should come from different seeds.

The grain of the paper matters to an int8 model more than it looks. PP-OCRv4 detection in int8 stays close to float32 on pages with color
grain, as a camera's sensor gives, and loses more on flat paper and on gray grain; docs/validation.md has the numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util import optional as _optional

# Images with captions, side by side.


_CAPTION_HEIGHT = 34


def captioned(image: Image, caption: str) -> Image:
    """*image* under a white strip with a line of text."""
    cv2 = _optional.cv2()
    strip = np.full((_CAPTION_HEIGHT, image.shape[1], 3), 255, np.uint8)
    cv2.putText(strip, caption, (8, 23), cv2.FONT_HERSHEY_SIMPLEX, 0.55, (30, 30, 30), 1, cv2.LINE_AA)
    stacked: Image = np.vstack([strip, image])
    return stacked


def side_by_side(panels: Sequence[Image], gap: int = 12) -> Image:
    """Panels of equal height in one row, with white gaps."""
    white = np.full((panels[0].shape[0], gap, 3), 255, np.uint8)
    row = [panels[0]]
    for panel in panels[1:]:
        row += [white, panel]
    return np.hstack(row)


Image = npt.NDArray[np.uint8]


class Grain(str, enum.Enum):
    """The noise of an image."""

    COLOR = "color"  # each channel on its own, as from a camera
    GREY = "grey"  # the same in all channels
    NONE = "none"


PAGE_SIZE = 480
LINE_SHAPE = (48, 192)

_WORDS = (
    "river", "signal", "garden", "window", "market", "cable", "letter", "morning", "paper", "station", "copper", "engine",
    "harbour", "winter", "ticket", "number", "yellow", "bridge", "silver", "candle", "Report", "Invoice", "Total", "Section",
    "Chapter", "Street", "Room", "Platform", "Order", "Delivery", "of", "and", "the", "to", "in", "for", "with", "from",
)  # fmt: skip
_FONT_NAMES = (
    "FONT_HERSHEY_SIMPLEX",
    "FONT_HERSHEY_DUPLEX",
    "FONT_HERSHEY_COMPLEX",
    "FONT_HERSHEY_TRIPLEX",
    "FONT_HERSHEY_COMPLEX_SMALL",
)


def page(seed: int, size: int = PAGE_SIZE, grain: Grain = Grain.COLOR) -> Image:
    """A page of printed text as an RGB image of *size* x *size* pixels.

    >>> page(1).shape
    (480, 480, 3)
    """
    cv2 = _optional.cv2()
    rng = np.random.default_rng((0x9A6E, seed))
    image = _paper(rng, size, size)
    ink = int(rng.integers(0, 110))
    margin = int(rng.integers(size // 24, size // 8))
    y = margin
    while y < size - margin // 2:
        heading = rng.random() < 0.15
        scale = float(rng.uniform(0.9, 1.3) if heading else rng.uniform(0.45, 0.8))
        font = getattr(cv2, str(rng.choice(_FONT_NAMES)))
        thickness = 2 if heading else 1
        indent = margin + int(rng.integers(0, size // 5) if rng.random() < 0.3 else 0)
        text = _fitting_text(cv2, rng, font, scale, thickness, size - margin - indent)
        (width, height), base = cv2.getTextSize(text, font, scale, thickness)
        y += height + base
        if y + base >= size:
            break
        shade = ink
        if rng.random() < 0.12:  # white on a dark bar
            bar = int(rng.integers(20, 100))
            cv2.rectangle(image, (indent - 4, y - height - 4), (indent + width + 4, y + base), (bar, bar, bar), -1)
            shade = 245
        cv2.putText(image, text, (indent, y), font, scale, (shade, shade, shade), thickness, cv2.LINE_AA)
        if rng.random() < 0.1:
            cv2.line(image, (margin, y + base + 3), (size - margin, y + base + 3), (ink, ink, ink), 1)
        y += int(rng.integers(6, 40))
    return _with_grain(rng, image, grain)


def text_line(seed: int, flipped: bool = False) -> Image:
    """One line of text as an RGB image of 48 x 192 pixels; *flipped* turns it by 180 degrees.

    >>> text_line(1).shape
    (48, 192, 3)
    """
    cv2 = _optional.cv2()
    rng = np.random.default_rng((0x11E, seed))
    rows, columns = LINE_SHAPE
    image = _paper(rng, rows, columns)
    font = getattr(cv2, str(rng.choice(_FONT_NAMES)))
    scale = float(rng.uniform(0.7, 1.0))
    text = _fitting_text(cv2, rng, font, scale, 1, columns - 16)
    (width, height), _ = cv2.getTextSize(text, font, scale, 1)
    # A short line is drawn larger until it fills the strip, as a cropped line of a real page would.
    scale *= min((columns - 16) / max(width, 1), (rows * 0.55) / max(height, 1))
    (width, height), _ = cv2.getTextSize(text, font, scale, 1)
    ink = int(rng.integers(0, 110))
    cv2.putText(image, text, (8, (rows + height) // 2), font, scale, (ink, ink, ink), 1, cv2.LINE_AA)
    image = _with_grain(rng, image, Grain.COLOR)
    return np.ascontiguousarray(image[::-1, ::-1]) if flipped else image


def _paper(rng: np.random.Generator, rows: int, columns: int) -> Image:
    shade = int(rng.integers(200, 256))
    return np.full((rows, columns, 3), shade, np.uint8)


def _with_grain(rng: np.random.Generator, image: Image, grain: Grain) -> Image:
    if grain is Grain.NONE:
        return image
    channels = 3 if grain is Grain.COLOR else 1
    noise = rng.normal(0.0, float(rng.uniform(1.0, 5.0)), (*image.shape[:2], channels))
    return np.clip(np.rint(image + noise), 0, 255).astype(np.uint8)


def _fitting_text(cv2: Any, rng: np.random.Generator, font: int, scale: float, thickness: int, room: int) -> str:
    text = _word(rng)
    for _ in range(int(rng.integers(1, 9))):
        longer = f"{text} {_word(rng)}"
        if cv2.getTextSize(longer, font, scale, thickness)[0][0] > room:
            break
        text = longer
    return text


def _word(rng: np.random.Generator) -> str:
    if rng.random() < 0.2:
        return str(rng.integers(1, 100_000))
    return str(rng.choice(_WORDS))
