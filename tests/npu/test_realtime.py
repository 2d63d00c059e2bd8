"""Jobs that take the chip's time."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from anynpu.errors import DeviceError, DeviceTimeout, JobCancelled
from anynpu.npu import RealTimeClock, RunControl, device
from anynpu.npu.device import speed_of


def run_job(clock: RealTimeClock, core: int, microseconds: float, control: RunControl | None = None) -> float:
    """The time at which the job should have ended, on the monotonic clock."""
    started = time.monotonic()
    ends = clock.begin((core,), microseconds)
    clock.finish((core,), microseconds, started, ends, control or RunControl())
    return ends


def test_a_job_does_not_end_before_its_time() -> None:
    clock = RealTimeClock(1)
    for _ in range(5):
        ends = run_job(clock, 0, 3000)
        assert time.monotonic() >= ends
    assert clock.report().jobs == 5


class FakeTime:
    """A clock that only moves when somebody waits, and then a little too far."""

    def __init__(self, late: float) -> None:
        self.now = 100.0
        self.late = late

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float, _: RunControl) -> None:
        self.now += seconds + self.late


@pytest.mark.parametrize(("late", "lost"), [(0.0004, 0.0), (0.0015, 0.0015)])
def test_late_waking_does_not_add_up_unless_it_is_a_pause(monkeypatch: pytest.MonkeyPatch, late: float, lost: float) -> None:
    fake = FakeTime(late)
    monkeypatch.setattr(device, "time", fake)
    monkeypatch.setattr(device, "_wait", fake.wait)
    clock = RealTimeClock(1)
    ends = []
    for _ in range(11):
        started, end = fake.now, clock.begin((0,), 2000)
        clock.finish((0,), 2000, started, end, RunControl())
        ends.append(end)
    steps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert steps == pytest.approx([0.002 + lost] * 10)
    assert clock.report().overshoot == pytest.approx(late)


def test_a_pause_starts_the_clock_anew() -> None:
    clock = RealTimeClock(1)
    run_job(clock, 0, 1000)
    time.sleep(0.02)
    begun = time.monotonic()
    assert run_job(clock, 0, 1000) >= begun + 0.001


def test_twice_as_fast_takes_half_the_time() -> None:
    clock = RealTimeClock(1, speed=2.0)
    before = time.monotonic()
    end = clock.begin((0,), 10_000)
    assert before + 0.005 <= end <= time.monotonic() + 0.005


def test_a_host_that_is_too_slow_is_reported() -> None:
    clock = RealTimeClock(1)
    started = time.monotonic()
    ends = clock.begin((0,), 500)
    time.sleep(0.003)
    clock.finish((0,), 500, started, ends, RunControl())
    assert clock.report().late == 1
    assert "too slow for 1" in str(clock.report())


def test_waiting_ends_when_the_job_is_cancelled() -> None:
    clock, control = RealTimeClock(1), RunControl()
    threading.Timer(0.02, control.cancel).start()
    with pytest.raises(JobCancelled):
        run_job(clock, 0, 30_000_000, control)


def test_waiting_ends_when_the_job_is_out_of_time() -> None:
    with pytest.raises(DeviceTimeout):
        run_job(RealTimeClock(1), 0, 30_000_000, RunControl(0.02))


@pytest.mark.parametrize(
    ("given", "speed"),
    [(True, 1.0), (False, None), (2, 2.0), ("1", 1.0), ("0.25", 0.25), ("off", None), ("", None), ("0", None), ("yes", 1.0)],
)
def test_speeds(given: float | bool | str, speed: float | None) -> None:
    assert speed_of(given) == speed


@pytest.mark.parametrize("given", ["fast", -1, 0.0, "nan", 1e9])
def test_no_speed(given: float | str) -> None:
    with pytest.raises(DeviceError, match="no speed"):
        speed_of(given)


def test_the_environment_decides_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_REALTIME", "4")
    assert speed_of(None) == 4.0
    assert speed_of(False) is None
