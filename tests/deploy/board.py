"""A board for tests: a server with one virtual core, on which a run takes as many seconds as the first value of its input states."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from session.fake import FakeDevice, FakeLane

from anynpu.serve import ServeOptions, Server

MAX_QUEUE = 4
"""Runs that may wait: with the one that runs, a board is full with five."""


def seconds(lane: FakeLane) -> float:
    """How long the run of a lane takes."""
    return float(lane.arrays[0].flat[0])


if __name__ == "__main__":
    model, port, grpc_port = sys.argv[1:]
    options = ServeOptions(
        port=int(port),
        grpc_port=int(grpc_port),
        device=FakeDevice(1, run_time=seconds, stoppable=True),
        max_queue=MAX_QUEUE,
        max_wait_ms=1e6,
        timeout=1000.0,
    )
    Server([model], options).run()
