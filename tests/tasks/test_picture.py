"""Images in the size of an input, and the way back."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import ImageError, ParameterError
from anynpu.tasks import FITS, Detections, fit_picture, place


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("picture", [(480, 640), (640, 480), (33, 7), (100, 100)])
@pytest.mark.parametrize("size", [(416, 416), (64, 128)])
def test_there_and_back(fit: str, picture: tuple[int, int], size: tuple[int, int]) -> None:
    placement = place(picture, size, fit)
    points = np.array([[0.0, 0.0], [picture[1], picture[0]], [3.5, 4.25]])
    np.testing.assert_allclose(placement.to_picture(placement.to_input(points)), points, atol=1e-3)
    corners = placement.to_input(points[:2])
    if fit in ("letterbox", "corner"):
        assert corners.min() >= 0
        assert corners[1, 0] <= size[1]
        assert corners[1, 1] <= size[0]
        assert corners[1, 0] - corners[0, 0] == size[1] or corners[1, 1] - corners[0, 1] == size[0]
    if fit == "crop":
        assert corners[0].max() <= 0


@pytest.mark.parametrize("fit", FITS)
def test_a_mark_lies_where_the_placement_says(fit: str) -> None:
    picture = np.zeros((60, 100, 3), np.uint8)
    picture[28:32, 48:52] = 255
    fitted, placement = fit_picture(picture, (64, 64), fit, fill=0)
    assert fitted.shape == (64, 64, 3)
    y, x = (float(np.average(np.arange(64) + 0.5, weights=fitted[..., 0].sum(axis=axis))) for axis in (1, 0))
    np.testing.assert_allclose(placement.to_picture(np.array([x, y])), [50, 30], atol=1.0)


def test_what_is_left_over_is_filled() -> None:
    fitted, _ = fit_picture(np.zeros((10, 20, 3), np.uint8), (20, 20), "letterbox")
    assert set(np.unique(fitted)) == {0, 114}
    assert (fitted[:5] == 114).all()
    assert (fitted[15:] == 114).all()
    assert (fitted[5:15] == 0).all()


def test_a_picture_of_the_inputs_size_is_not_touched() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (32, 48, 3), np.uint8)
    np.testing.assert_array_equal(fit_picture(picture, (32, 48))[0], picture)
    assert fit_picture(picture[..., :1], (16, 16))[0].shape == (16, 16, 1)


def test_boxes_end_at_the_pictures_borders() -> None:
    placement = place((50, 100), (100, 100), "letterbox")
    boxes = placement.boxes(np.array([[-5.0, 20.0, 200.0, 60.0]]))
    np.testing.assert_allclose(boxes, [[0.0, 0.0, 100.0, 35.0]])


def test_masks_on_a_coarse_grid_come_to_the_picture_inside_their_boxes() -> None:
    masks = np.zeros((1, 8, 8), np.float32)
    masks[0, :, 4:] = 1.0
    found = Detections(np.array([[0, 0, 64, 32]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64), masks=masks)
    placed = found.placed(place((128, 128), (64, 64), "stretch"))
    assert placed.masks is not None
    assert placed.masks.shape == (1, 128, 128)
    assert placed.masks[0, :64, 66:].all()
    assert not placed.masks[0, 64:].any()
    assert not placed.masks[0, :, :62].any()
    assert next(placed.rows())["pixels"] == int(placed.masks.sum())


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ImageError, match="uint8"):
        fit_picture(np.zeros((4, 4, 3), np.float32), (8, 8))
    with pytest.raises(ParameterError, match="no fit 'squeeze'"):
        place((4, 4), (8, 8), "squeeze")
    with pytest.raises(ImageError, match="0 x 4"):
        place((0, 4), (8, 8))
