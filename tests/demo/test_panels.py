"""Images with captions, side by side."""

from __future__ import annotations

import numpy as np

from anynpu.cli.demo.pages import captioned, side_by_side


def test_panels_stand_side_by_side_under_their_captions() -> None:
    panel = captioned(np.zeros((50, 60, 3), np.uint8), "a caption")
    assert panel.shape[0] > 50
    assert panel[:-50].min() < 255
    assert not panel[-50:].any()
    assert side_by_side([panel, panel], gap=10).shape == (panel.shape[0], 130, 3)
