"""What a bar states about the time that is left."""

from __future__ import annotations

import pytest

from anynpu.cli.helpers.console import TimeLeft, bar_layout


def test_time_left_is_by_stage_and_begins_anew_with_it() -> None:
    times = iter([0.0, 10.0, 12.0, 20.0, 30.0, 31.0, 33.0])
    left = TimeLeft(lambda: next(times))
    assert left.text("calibrating", 1, 4) == ""
    assert left.text("calibrating", 2, 4) == ", 20 s left"
    assert left.text("judging", 1, 3) == ""
    assert left.text("calibrating", 3, 4) == ", 10 s left"
    assert left.text("calibrating", 4, 4) == ""
    assert left.text("judging", 1, 9) == ""  # seen again with as much done: nothing to report by
    assert left.text("judging", 5, None) == ""


def test_a_stage_that_ended_early_and_runs_again_begins_anew() -> None:
    """A judgment may end after one sample; what came between it and the next is no part of either."""
    times = iter([0.0, 1.0, 100.0, 101.0, 102.0])
    left = TimeLeft(lambda: next(times))
    assert left.text("judging", 1, 10) == ""
    assert left.text("fitting", 1, 9) == ""
    assert left.text("judging", 1, 10) == ""
    assert left.text("judging", 2, 10) == ", 8 s left"
    assert left.text("judging", 3, 10) == ", 7 s left"


@pytest.mark.parametrize(("width", "clock"), [(60, False), (80, False), (100, True), (160, True)])
def test_a_narrow_terminal_loses_the_clock_before_the_time_that_is_left(width: int, clock: bool) -> None:
    description = len("compiling yolox_nano for rk3588 (int8)")
    bar, shown, room = bar_layout(width, description)
    assert shown is clock
    assert description + len(" ") + bar + len(" 100 % ") + (len("0:00:00 ") if clock else 0) + room <= width
    assert room >= len("calibrating, 12 s left") or width < 80
