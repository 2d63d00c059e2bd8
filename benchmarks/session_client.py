"""Drives one session for :mod:`benchmarks.bench_session` and prints what it measured: ``session_client.py WHOSE LIBRARY WHAT``.

It runs on its own, in an environment that may know nothing of anynpu. Without ``SESSION_MODEL`` the library is one that needs no
model; with it the jobs run on the software NPU, which the peer reaches through the drop-in library and ours directly.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np

MODEL = b"RKNN" + bytes(4) + (6).to_bytes(8, "little") + bytes(64)
REAL_MODEL = os.environ.get("SESSION_MODEL", "")
FEED = {"x": np.ones((1, 3, 16, 20), np.uint8) if REAL_MODEL else np.ones((1, 4), np.float32)}
CORES = 3


def opened(whose: str, library: str, **options: Any) -> Any:
    """A session of anynpu or of EZ RKNN Async on *library*."""
    if whose == "peer":
        os.environ["ZTU_RKNPU2_RUNTIME_LIBRARY"] = library
        import ztu_somemodelruntime_ez_rknn_async as peer

        return peer.InferenceSession(REAL_MODEL or MODEL, provider_options=peer.make_provider_options(**options))
    from anynpu.session import InferenceSession, make_provider_options

    device = "sim" if REAL_MODEL else f"rknn:{library}"
    return InferenceSession(REAL_MODEL or MODEL, provider_options=make_provider_options(**options), device=device)


def callbacks(session: Any, count: int) -> tuple[float, float]:
    """Wall and CPU seconds for so many requests with callbacks."""
    complete, calls = threading.Event(), 0

    def callback(results: Any, user_data: Any, err: str) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            complete.set()

    cpu, wall = time.process_time(), time.perf_counter()
    for number in range(count):
        session.run_async(None, FEED, callback, number)
    assert complete.wait(120)
    return time.perf_counter() - wall, time.process_time() - cpu


def main(whose: str, library: str, what: str) -> None:
    """Measure one thing."""
    job = int(os.environ["SESSION_JOB_US"]) / 1e6
    if what == "latency":
        session = opened(whose, library)
        times = []
        for _ in range(3000):
            begin = time.perf_counter()
            session.run(None, FEED)
            times.append(time.perf_counter() - begin)
        times = sorted(times[500:])
        result = {"p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6}
    else:
        default = what == "slow" and whose != "peer"  # the peer uses several cores with a schedule only
        options: dict[str, Any] = {} if default else {"schedule": list(range(CORES))}
        session = opened(whose, library, enable_pacing=what == "pacing", **options)
        callbacks(session, 4 * CORES)
        count = max(60, int(CORES * 1.0 / job))
        wall, cpu = callbacks(session, count)
        result = {"rate": count / wall, "share": count * job / CORES / wall, "cpu_us": cpu / count * 1e6}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the peer's destructor may wait for ever
