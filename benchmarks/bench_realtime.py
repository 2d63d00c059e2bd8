"""Real time: how exactly jobs keep the chip's rhythm, and what keeping it costs the host."""

from __future__ import annotations

import threading
import time

from anynpu import chips
from anynpu.chips.timing import predict
from anynpu.npu import Device

from . import print_table
from .networks import tiny_model

CORES = 3
JOBS = 1000


def main() -> None:
    """Three cores at a time, each with jobs of one length without a pause."""
    model = tiny_model()
    predicted = predict(model.programs[0], chips.get("rk3588")).latency_us
    computing = _computing(model)
    rows = []
    for milliseconds in (2, 5, 20):
        means, late, cpu = _run(model, predicted / (1000 * milliseconds), JOBS)
        error = max(abs(mean / (milliseconds / 1000) - 1) for mean in means)
        overshoot = sorted(late)[len(late) * 99 // 100]
        wall = JOBS * milliseconds / 1000
        share = max(0.0, cpu - CORES * JOBS * computing) / wall
        rows.append(
            [
                f"{milliseconds} ms, {JOBS} jobs a core",
                f"{100 * error:.2f} %",
                f"{1000 * overshoot:.2f} ms",
                f"{100 * share:.1f} %",
            ]
        )
    headings = ["", "mean error (goal 2 %)", "p99 overshoot (goal 1 ms)", "CPU of one processor (goal 10 %)"]
    print_table("real time on three cores of an RK3588", headings, rows)


def _computing(model: object) -> float:
    """Seconds of the processor that a job takes where nothing waits."""
    with Device("rk3588", realtime=False) as device:
        context = device.load(model).context()  # type: ignore[arg-type]
        context.execute()
        begin = time.process_time()
        for _ in range(2000):
            context.execute(mask=1)
        return (time.process_time() - begin) / 2000


def _run(model: object, speed: float, jobs: int) -> tuple[list[float], list[float], float]:
    """Mean seconds of a job on each core, how late each job came after its time, and the processor's seconds."""
    means: list[float] = []
    late: list[float] = []
    with Device("rk3588", realtime=speed) as device:
        loaded = device.load(model)  # type: ignore[arg-type]
        assert device.clock is not None

        def worker(core: int) -> None:
            context = loaded.context()
            context.execute(mask=1 << core)
            begin = last = time.monotonic()
            gaps = []
            for _ in range(jobs):
                context.execute(mask=1 << core)
                now = time.monotonic()
                gaps.append(now - last)
                last = now
            mean = (last - begin) / jobs
            means.append(mean)
            late.extend(gap - mean for gap in gaps)

        cpu = time.process_time()
        threads = [threading.Thread(target=worker, args=(core,)) for core in range(CORES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return means, late, time.process_time() - cpu


if __name__ == "__main__":
    main()
