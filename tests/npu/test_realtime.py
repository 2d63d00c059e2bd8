"""Jobs that take the chip's time."""

from __future__ import annotations

import threading
import time

import pytest

from anynpu.errors import DeviceError, DeviceTimeout, JobCancelled
from anynpu.npu import RealTimeClock, RunControl
from anynpu.npu.realtime import speed_of


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


def test_jobs_without_a_pause_do_not_lose_time_to_late_waking() -> None:
    clock = RealTimeClock(1)
    first = run_job(clock, 0, 2000)
    ends = [run_job(clock, 0, 2000) for _ in range(10)]
    steps = [later - earlier for earlier, later in zip([first, *ends], ends, strict=False)]
    # a busy host may wake a thread so late that a job counts as a new start; all others follow to the microsecond
    assert sum(abs(step - 0.002) < 1e-9 for step in steps) >= 5


def test_a_pause_starts_the_clock_anew() -> None:
    clock = RealTimeClock(1)
    run_job(clock, 0, 1000)
    time.sleep(0.02)
    begun = time.monotonic()
    assert run_job(clock, 0, 1000) >= begun + 0.001


def test_twice_as_fast_takes_half_the_time() -> None:
    clock = RealTimeClock(1, speed=2.0)
    begun = time.monotonic()
    assert clock.begin((0,), 10_000) == pytest.approx(begun + 0.005, abs=0.002)


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
