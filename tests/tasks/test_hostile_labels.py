"""Labels and keypoints that a stranger's model says it has."""

from __future__ import annotations

import pytest

from anynpu.tasks.labels import keypoint_count, labels_from_metadata


@pytest.mark.parametrize("text", ["{1e999: 'a'}", "[" * 100_000, "{-5: 'a'}", "{10000000: 'a'}"])
def test_labels_that_make_no_sense_are_none(text: str) -> None:
    assert labels_from_metadata({"names": text}) == ()


@pytest.mark.parametrize("text", ["[1e999, 3]", "[" * 100_000, "[-5, 3]", "[1000000000000, 3]", "[NaN, 3]", '["17", 3]', "17"])
def test_keypoints_that_make_no_sense_are_none(text: str) -> None:
    assert keypoint_count({"kpt_shape": text}) == 0


def test_keypoints() -> None:
    assert keypoint_count({"kpt_shape": "[17, 3]"}) == 17
