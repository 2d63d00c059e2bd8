"""Boxes from a probability map."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.demo.boxes import captioned, draw_boxes, find_boxes, side_by_side


def probability_map() -> np.ndarray:
    """Two lines of text, one of them faint, and a speck."""
    values = np.zeros((100, 200), np.float32)
    values[60:70, 20:120] = 0.9
    values[20:30, 50:90] = 0.4
    values[5, 5] = 1.0
    return values


def test_boxes_are_found_grown_and_sorted() -> None:
    first, second = find_boxes(probability_map(), min_score=0.3)
    assert first.center == pytest.approx((69.5, 24.5), abs=0.6)
    assert second.center == pytest.approx((69.5, 64.5), abs=0.6)
    assert second.score == pytest.approx(0.9)
    # 99 x 9 pixels between the outermost centres: each side grows by 99 * 9 * 2 / (2 * 108) = 8.25
    xs = [x for x, _ in second.corners]
    ys = [y for _, y in second.corners]
    assert max(xs) - min(xs) == pytest.approx(99 + 16.5, abs=0.1)
    assert max(ys) - min(ys) == pytest.approx(9 + 16.5, abs=0.1)


def test_a_faint_box_and_a_speck_are_dropped() -> None:
    (only,) = find_boxes(probability_map())
    assert only.score == pytest.approx(0.9)
    assert find_boxes(np.zeros((10, 10), np.float32)) == []


def test_drawing_leaves_the_image_alone() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    drawn = draw_boxes(image, find_boxes(probability_map()), (0, 255, 0))
    assert not image.any()
    assert drawn[..., 1].max() == 255
    assert not drawn[..., 0].any()


def test_panels_stand_side_by_side_under_their_captions() -> None:
    panel = captioned(np.zeros((50, 60, 3), np.uint8), "a caption")
    assert panel.shape[0] > 50
    assert panel[:-50].min() < 255
    assert not panel[-50:].any()
    assert side_by_side([panel, panel], gap=10).shape == (panel.shape[0], 130, 3)
