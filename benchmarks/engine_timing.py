"""CPU time of candidates that take turns, and how it is printed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Times", "cpu_times", "verdict"]

_WARM_UP = 2


@dataclass(frozen=True)
class Times:
    """Seconds of CPU time of one candidate."""

    best: float
    median: float

    @property
    def milliseconds(self) -> str:
        return f"{self.best * 1e3:.2f} ({self.median * 1e3:.2f})"


def cpu_times(candidates: Mapping[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, Times]:
    """CPU time of the process in each candidate. They take turns for about *seconds*, at least *least* times."""
    for candidate in candidates.values():
        for _ in range(_WARM_UP):
            candidate()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        rounds += 1
        for name, candidate in candidates.items():
            begin = time.process_time()
            candidate()
            taken[name].append(time.process_time() - begin)
    return {name: Times(min(values), statistics.median(values)) for name, values in taken.items()}


def verdict(value: float, goal: float, *, at_least: bool = False) -> str:
    """Whether a number reaches its goal, as a cell of a table."""
    reached = value >= goal if at_least else value <= goal
    return f"{goal:.3g} {'ok' if reached else 'MISSED'}"
