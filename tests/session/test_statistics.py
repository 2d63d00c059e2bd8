"""Numbers and traces."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from anynpu.session.statistics import Percentiles

from .fake import FakeDevice, feed


def test_a_snapshot_counts_what_happened() -> None:
    device = FakeDevice(3, run_time=0.002, fails=lambda lane: lane.arrays[0][0, 0] == 1)
    with device.open(schedule=[0, 1, 2]) as session:
        empty = session.statistics
        assert (empty.requests, empty.failed, empty.queued, empty.running) == (0, 0, 0, 0)
        assert empty.run == Percentiles(0.0, 0.0, 0.0, 0.0)
        jobs = [session.submit(None, feed(value)) for value in range(9)]
        for job in jobs:
            job.exception(120)
        session.close(finish=True)
        figures = session.statistics
        assert (figures.requests, figures.failed) == (9, 1)
        assert [lane.jobs for lane in figures.lanes] == [3, 3, 3]
        assert [lane.label for lane in figures.lanes] == [
            "core 0, device worker 0",
            "core 1, device worker 0",
            "core 2, device worker 0",
        ]
        assert all(lane.busy_ms >= 3 * 2 for lane in figures.lanes)
        assert 2 <= figures.run.p50 <= figures.run.p95 <= figures.run.p99 <= figures.run.most
        assert figures.wait.most >= 2
        assert figures.convert.p50 > 0


def test_a_trace_has_a_track_for_each_lane(tmp_path: Path) -> None:
    device = FakeDevice(3, run_time=0.001)
    with device.open(schedule=[0, 1]) as session:
        for job in [session.submit(None, feed()) for _ in range(6)]:
            job.result(120)
        session.write_trace(tmp_path / "trace.json")
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        assert events == json.loads(json.dumps(session.trace()))
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"core 0, device worker 0", "core 1, device worker 0"}
    runs = [event for event in events if event["name"] == "run"]
    assert len(runs) == 6
    assert {event["ph"] for event in runs} == {"X"}
    for track in {event["tid"] for event in runs}:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in runs if event["tid"] == track)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    waiting = [event["args"]["requests"] for event in events if event["name"] == "waiting"]
    assert min(waiting) == waiting[-1] == 0


@pytest.mark.parametrize(("values", "p50", "most"), [([1], 1, 1), (list(range(1, 101)), 51, 100)])
def test_percentiles(values: list[int], p50: float, most: float) -> None:
    figures = Percentiles.of([value * 1_000_000 for value in values])
    assert (figures.p50, figures.most) == (p50, most)
