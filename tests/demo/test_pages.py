"""Generated pages and lines of text."""

from __future__ import annotations

import numpy as np

from anynpu.cli.demo.pages import LINE_SHAPE, Grain, page, text_line


def test_a_page_depends_on_its_seed_alone() -> None:
    np.testing.assert_array_equal(page(3), page(3))
    assert not np.array_equal(page(3), page(4))


def test_a_page_has_paper_and_ink() -> None:
    for seed in range(4):
        image = page(seed, 240)
        assert image.shape == (240, 240, 3)
        assert image.dtype == np.uint8
        dark = (image < 150).mean()
        assert 0.005 < dark < 0.4


def test_a_flipped_line_is_the_line_turned_by_half_a_turn() -> None:
    upright, turned = text_line(5), text_line(5, flipped=True)
    assert upright.shape == (*LINE_SHAPE, 3)
    np.testing.assert_array_equal(turned[::-1, ::-1], upright)
    assert not np.array_equal(turned, upright)


def test_grain_is_in_each_channel_in_all_alike_or_nowhere() -> None:
    def differs(grain: Grain) -> tuple[bool, bool]:
        image = page(3, 240, grain)
        return not np.array_equal(image[..., 0], image[..., 1]), len(np.unique(image[:5])) > 1

    assert differs(Grain.COLOR) == (True, True)
    assert differs(Grain.GREY) == (False, True)
    assert differs(Grain.NONE) == (False, False)
