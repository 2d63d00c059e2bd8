"""A pytest plugin that keeps the quick tests quick: it prints the slowest ones, and fails a run with one above the limit.

What counts is CPU time, of the test's process and of the children it waited for. Wall time would report how busy the machine is; CPU time
hardly changes while other programs run. A slower machine needs more of it, so the limit grows with the time that a fixed loop takes:
after a test above the limit, beside what runs there then, and at the end.

A fixture that several tests share is an entry of its own: the test that happens to come first does not pay for it. Tests marked
``full`` have no limit.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Entry", "Watch", "cpu_seconds", "machine_factor"]

_LOOP_SECONDS = 0.016
"""CPU time of the fixed loop on the machine for which the limit was chosen, while it is busy."""


def cpu_seconds() -> float:
    """CPU time so far of this process, all its threads and the children it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def machine_factor() -> float:
    """How many times slower this machine is than the one for which the limit was chosen; at least 1."""

    def loop() -> float:
        start = time.process_time()
        total = 0
        for number in range(200_000):
            total = (total * 31 + number) & 0xFFFF
        return time.process_time() - start

    return max(1.0, min(loop() for _ in range(5)) / _LOOP_SECONDS)


@dataclass(frozen=True)
class Entry:
    """The CPU time of a test, or of a fixture that tests share."""

    name: str
    seconds: float
    limited: bool
    factor: float = 1.0
    """How much slower than usual the machine was just then."""


@dataclass
class _Meter:
    """Measures one test: what it used, less what its shared fixtures used."""

    start: float
    shared: list[tuple[str, float]] = field(default_factory=list)
    depth: int = 0

    def own(self) -> float:
        return cpu_seconds() - self.start - sum(seconds for _, seconds in self.shared)


class Watch:
    """Measures in the process that runs the tests, and reports in the one that the user started.

    :param limit: CPU seconds for a test without the mark ``full``; None for no limit
    :param slowest: how many tests are printed
    :param report: a file for all entries, slowest first, one line each: seconds, a tab and the name
    """

    def __init__(self, limit: float | None, slowest: int, report: str | None = None) -> None:
        self.limit = limit
        self.slowest = slowest
        self.report = report
        self.entries: list[Entry] = []
        self._meter: _Meter | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._meter = _Meter(cpu_seconds())
        try:
            return (yield)
        finally:
            self._meter = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        meter = self._meter
        if meter is None or fixturedef.scope == "function" or meter.depth:
            return (yield)
        before = cpu_seconds()
        meter.depth += 1
        try:
            return (yield)
        finally:
            meter.depth -= 1
            meter.shared.append((f"fixture {fixturedef.argname} of {fixturedef.baseid or 'tests'}", cpu_seconds() - before))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "teardown" and self._meter is not None:
            limited = item.get_closest_marker("full") is None
            entries = [(item.nodeid, self._meter.own()), *self._meter.shared]
            above = limited and self.limit is not None and max(seconds for _, seconds in entries) > self.limit
            factor = machine_factor() if above else 1.0
            # a report's attributes travel from the worker to the process that the user started, as JSON
            report.watched = [[name, seconds, limited, factor] for name, seconds in entries]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.entries += [Entry(*entry) for entry in getattr(report, "watched", ())]

    def too_slow(self) -> list[Entry]:
        """What is above the limit, slowest first."""
        if self.limit is None:
            return []
        above = [entry for entry in self.entries if entry.limited and entry.seconds > self.limit]
        if not above:
            return []
        limit, now = self.limit, machine_factor()
        found = (entry for entry in above if entry.seconds > limit * max(now, entry.factor))
        return sorted(found, key=lambda entry: -entry.seconds)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput") and session.exitstatus == pytest.ExitCode.OK and self.too_slow():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_time = sorted(self.entries, key=lambda entry: -entry.seconds)
        if self.report:
            Path(self.report).write_text("".join(f"{entry.seconds:.3f}\t{entry.name}\n" for entry in by_time))
        slowest = by_time[: self.slowest]
        if slowest:
            terminalreporter.section(f"slowest {len(slowest)}, in seconds of CPU time")
        for entry in slowest:
            terminalreporter.line(f"{entry.seconds:7.2f}  {entry.name}")
        for entry in self.too_slow():
            terminalreporter.line(
                f"TOO SLOW: {entry.name} took {entry.seconds:.1f} s of CPU time; make it smaller, or mark it 'full' "
                f"and it runs in 'make test-all' (limit {self.limit} s)",
                red=True,
            )
