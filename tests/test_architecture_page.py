"""The image of the rooms in docs/architecture.md is that of the sources."""

from __future__ import annotations

import pytest
from test_architecture import tool


def test_the_page_has_the_picture_of_today() -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.updated(page), "run python tools/architecture_page.py"


def test_arrows_that_follow_from_others_are_left_out() -> None:
    assert tool.picture({"top": ["middle", "low"], "middle": ["low"], "low": []}) == (
        " 2  top          -> middle\n 1  middle       -> low\n 0  low\n"
    )


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c", "a"]),
        ({"a": ["b", "c"], "b": ["c"], "c": []}, []),
        ({"a": ["a"]}, ["a", "a"]),
    ],
)
def test_circles(graph: dict[str, list[str]], expected: list[str]) -> None:
    assert tool.cycle(graph) == expected
