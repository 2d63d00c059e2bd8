"""Deadline and cancellation of a job."""

from __future__ import annotations

import pytest

from anynpu.errors import DeviceClosed, DeviceTimeout, JobCancelled
from anynpu.npu import RunControl


def test_without_a_limit_nothing_stops_a_job() -> None:
    control = RunControl()
    control.check()
    assert control.remaining is None


def test_the_first_cancellation_counts() -> None:
    control = RunControl()
    assert control.cancel(DeviceClosed("the device went away"))
    assert not control.cancel(JobCancelled("too late"))
    for _ in range(2):
        with pytest.raises(DeviceClosed, match="went away"):
            control.check()


def test_every_raise_is_an_error_of_its_own() -> None:
    control = RunControl()
    control.cancel(JobCancelled("stop", hint="go on"))
    first, second = control.reason(""), control.reason("")
    assert first is not second
    assert (first.message, first.hint) == ("stop", "go on")


def test_a_deadline_that_has_passed() -> None:
    control = RunControl(0.0)
    assert control.remaining == 0
    with pytest.raises(DeviceTimeout, match="did not finish within 0 s"):
        control.check()


def test_watchers_are_told_once_and_only_while_they_watch() -> None:
    control = RunControl()
    told: list[str] = []
    with control.watching(lambda: told.append("early")):
        pass
    with control.watching(lambda: told.append("now")):
        control.cancel()
    with control.watching(lambda: told.append("late")):
        pass
    assert told == ["now", "late"]
