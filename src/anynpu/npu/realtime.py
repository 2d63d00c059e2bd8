"""Real time: a job keeps its cores for as long as the chip would.

A run is computed as fast as the host can, and then waits until the predicted time has passed; the cores stay occupied. What follows
on a core without a pause begins, for the clock, when the job before it should have ended, so that the small delay with which a host
wakes a thread does not add up: a thousand jobs of 2 ms on one core take two seconds.

Concurrency: the end of the last job of each core, and the figures, belong to the clock and are protected by its lock, which is never held
while anything waits. Waiting ends early when the job is cancelled or out of time.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from ..errors import DeviceError
from .control import RunControl

__all__ = ["RealTimeClock", "RealTimeReport", "speed_of"]

_SAME_BREATH = 0.001
"""A job that begins this many seconds after the one before it should have ended follows it without a pause."""

_SHARE_OF_A_JOB = 0.5
"""... or this share of the job's own time, where that is more."""


@dataclass(frozen=True)
class RealTimeReport:
    """How well the host kept the chip's time.

    :ivar jobs: that were run in real time
    :ivar late: of them, those for which the host took longer than the chip would have
    :ivar predicted: seconds that the chip would have taken
    :ivar spent: seconds that the jobs took
    :ivar overshoot: the longest delay after the predicted end, in seconds, of a job that was not late
    """

    jobs: int
    late: int
    predicted: float
    spent: float
    overshoot: float

    def __str__(self) -> str:
        if not self.jobs:
            return "no job has run in real time"
        text = f"{self.jobs} jobs, {self.spent:.3f} s where the chip takes {self.predicted:.3f} s"
        return f"{text}; the host was too slow for {self.late} of them" if self.late else text


def speed_of(given: float | bool | str | None) -> float | None:
    """The speed that was asked for: 1 is the chip's, 2 twice as fast, None does not wait at all.

    Without a word from the caller the variable ``ANYNPU_REALTIME`` decides.

    >>> speed_of(True), speed_of(0.5), speed_of("off")
    (1.0, 0.5, None)
    """
    if given is None:
        given = os.environ.get("ANYNPU_REALTIME", "")
    if isinstance(given, str):
        text = given.strip().lower()
        if text in ("", "0", "off", "no", "false"):
            return None
        if text in ("1", "on", "yes", "true"):
            return 1.0
        try:
            given = float(text)
        except ValueError:
            raise _no_speed(text) from None
    if given is False:
        return None
    if not 1e-6 <= float(given) <= 1e6:
        raise _no_speed(str(given))
    return float(given)


def _no_speed(text: str) -> DeviceError:
    return DeviceError(
        f"'{text}' is no speed for real time", hint="use 1 for the chip's own speed, 2 for twice as fast, 0 for off"
    )


class RealTimeClock:
    """Makes the jobs of one device take their time.

    :param cores: of the chip
    :param speed: 1 is the chip's own
    """

    def __init__(self, cores: int, speed: float = 1.0) -> None:
        self.speed = speed
        self._lock = threading.Lock()
        self._free_at = [0.0] * cores
        self._jobs = self._late = 0
        self._predicted = self._spent = self._overshoot = 0.0

    def begin(self, cores: tuple[int, ...], predicted_us: float) -> float:
        """A job of this length starts on these cores now; gives the time at which it should end."""
        duration = predicted_us / 1e6 / self.speed
        now = time.monotonic()
        with self._lock:
            free = max((self._free_at[core] for core in cores), default=0.0)
            follows = now - free <= max(_SAME_BREATH, _SHARE_OF_A_JOB * duration)
            start = free if free <= now and follows else now
            return start + duration

    def finish(self, cores: tuple[int, ...], predicted_us: float, started: float, ends: float, control: RunControl) -> None:
        """Wait until *ends*; raises if the job is cancelled or out of time while it waits."""
        computed = time.monotonic()
        remaining = ends - computed
        if remaining > 0:
            _wait(remaining, control)
        now = time.monotonic()
        late = remaining <= 0
        with self._lock:
            for core in cores:
                self._free_at[core] = now if late else ends
            self._jobs += 1
            self._late += late
            self._predicted += predicted_us / 1e6 / self.speed
            self._spent += now - started
            if not late:
                self._overshoot = max(self._overshoot, now - ends)

    def report(self) -> RealTimeReport:
        """The figures so far."""
        with self._lock:
            return RealTimeReport(self._jobs, self._late, self._predicted, self._spent, self._overshoot)


def _wait(seconds: float, control: RunControl) -> None:
    limit = control.remaining
    woken = threading.Event()
    with control.watching(woken.set):
        woken.wait(seconds if limit is None else min(seconds, limit))
    control.check()
