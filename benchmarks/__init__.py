"""Side-by-side measurements. ``make bench`` runs them all; each prints ratios, since absolute times depend on the machine.

A benchmark is a module ``bench_*.py`` with a function ``main()`` that prints its tables. One that also has a function ``soak()`` takes
part in ``make soak``; it raises where something grows that should not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["interleaved", "print_table"]


def interleaved(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 50, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The shortest time of each candidate in seconds. They take turns, so that all see the same moods of the machine."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, candidate in candidates.items():
            started = clock()
            candidate()
            best[name] = min(best[name], clock() - started)
    return best


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in plain text: the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    print(f"\n{title}")
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
