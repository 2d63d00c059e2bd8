"""What a session has done: numbers as a snapshot, and the last requests as a trace that Perfetto reads.

The recorder is written under the runner's lock, one entry for each request; it keeps the last few thousand. A snapshot copies them.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._util.output_files import write_output
from .machine import Slot
from .request import Request

KEPT = 8192
"""Requests that percentiles and traces are made of."""


class Entry(NamedTuple):
    """One request; times in nanoseconds of ``time.perf_counter_ns``."""

    number: int
    lane: str
    submitted: int
    started: int
    written: int
    ran: int
    finished: int
    failed: bool


@dataclass(frozen=True)
class RunTimes:
    """Where the time of one request went: nanoseconds of the host.

    :ivar wait: from submission to the start
    :ivar inputs: converting the inputs
    :ivar run: on the device
    :ivar outputs: converting the outputs
    :ivar submitted: when it was submitted, on the clock of ``time.perf_counter_ns``
    """

    wait: int
    inputs: int
    run: int
    outputs: int
    submitted: int = 0

    @classmethod
    def of(cls, request: Request) -> RunTimes:
        """Of a request that has run."""
        written, ran = request.written or request.started, request.ran or request.finished
        return cls(
            request.started - request.submitted,
            written - request.started,
            ran - written,
            request.finished - ran,
            request.submitted,
        )


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds: the half, 95 and 99 of a hundred take no longer than these."""

    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: list[int]) -> Percentiles:
        """From nanoseconds; zeros where there is none.

        >>> Percentiles.of([1_000_000, 2_000_000, 9_000_000]).p50
        2.0
        """
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        p50, p95, p99 = (ordered[min(len(ordered) - 1, len(ordered) * share // 100)] / 1e6 for share in (50, 95, 99))
        return cls(p50, p95, p99, ordered[-1] / 1e6)


@dataclass(frozen=True)
class LaneStatistics:
    """One context: how many requests it ran and how long it was busy."""

    label: str
    jobs: int
    busy_ms: float


@dataclass(frozen=True)
class Statistics:
    """A session at one moment. Percentiles are of the last requests, host time.

    :ivar requests: finished, failed ones included
    :ivar queued: waiting now
    :ivar running: running now
    :ivar wait: from submission to the start
    :ivar convert: inputs and outputs
    :ivar run: on the device
    :ivar device_ms: the time of a run on the chip, as it is predicted; None where a board takes it itself, or where it is not known
    """

    requests: int
    failed: int
    queued: int
    running: int
    lanes: tuple[LaneStatistics, ...]
    wait: Percentiles
    convert: Percentiles
    run: Percentiles
    device_ms: float | None = None


class RunRecorder:
    """Keeps the last requests."""

    def __init__(self) -> None:
        # plain tuples: they cost a fifth of an Entry, which the reader makes of them
        self._entries: deque[tuple[int, Slot, int, int, int, int, int, bool]] = deque(maxlen=KEPT)
        self.requests = 0
        self.failed = 0

    def add(self, slot: Slot, request: Request) -> None:
        """Note a finished request; expects the runner's lock."""
        slot.jobs += 1
        slot.busy_ns += request.finished - request.started
        self.requests += 1
        failed = request.error is not None
        if failed:
            self.failed += 1
        self._entries.append(
            (request.number, slot, request.submitted, request.started, request.written, request.ran, request.finished, failed)
        )

    def entries(self) -> list[Entry]:
        """The last requests, oldest first."""
        return [Entry(entry[0], entry[1].label, *entry[2:]) for entry in tuple(self._entries)]

    def statistics(self, slots: list[Slot], queued: int, running: int, device_ms: float | None = None) -> Statistics:
        """The numbers as of now."""
        entries = [entry for entry in self.entries() if not entry.failed]
        return Statistics(
            self.requests,
            self.failed,
            queued,
            running,
            tuple(LaneStatistics(slot.label, slot.jobs, slot.busy_ns / 1e6) for slot in slots),
            Percentiles.of([entry.started - entry.submitted for entry in entries]),
            Percentiles.of([entry.written - entry.started + entry.finished - entry.ran for entry in entries]),
            Percentiles.of([entry.ran - entry.written for entry in entries]),
            device_ms,
        )


def trace_events(entries: list[Entry], description: str) -> list[dict[str, Any]]:
    """Events of the trace format that Perfetto and chrome://tracing read: one track a device worker, one for the queue."""
    process = os.getpid()
    tracks = {lane: index for index, lane in enumerate(sorted({entry.lane for entry in entries}), 1)}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": process, "args": {"name": description}}]
    for lane, track in tracks.items():
        events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": lane}})
    changes: list[tuple[int, int]] = []
    for entry in entries:
        track = tracks[entry.lane]
        about = {"request": entry.number, "waited_us": (entry.started - entry.submitted) / 1e3, "failed": entry.failed}
        for name, begin, end in (
            ("inputs", entry.started, entry.written),
            ("run", entry.written, entry.ran),
            ("outputs", entry.ran, entry.finished),
        ):
            if end > begin:
                events.append(
                    {
                        "ph": "X",
                        "name": name,
                        "pid": process,
                        "tid": track,
                        "ts": begin / 1e3,
                        "dur": (end - begin) / 1e3,
                        "args": about,
                    }
                )
        changes += [(entry.submitted, 1), (entry.started, -1)]
    waiting = 0
    for moment, change in sorted(changes):
        waiting += change
        events.append({"ph": "C", "name": "waiting", "pid": process, "ts": moment / 1e3, "args": {"requests": waiting}})
    return events


def write_trace(path: str | os.PathLike[str], entries: list[Entry], description: str) -> None:
    """Write the trace as JSON."""
    write_output(path, json.dumps({"traceEvents": trace_events(entries, description)}))
