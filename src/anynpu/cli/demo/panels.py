"""Pictures with captions, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..._util import optional as _optional

__all__ = ["captioned", "side_by_side"]

Image = npt.NDArray[np.uint8]

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
