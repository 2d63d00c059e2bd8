"""What contexts of a loaded model cost and do: memory, two at a time, cancelling, the clock."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.errors import JobCancelled
from anynpu.npu import Context, Device
from anynpu.npu.control import RunControl
from anynpu.npu.engines.native import NativeEngine, NativeExecutable
from anynpu.program import Model

from . import print_table
from .engine_layers import peak_runner
from .engine_timing import cpu_times, verdict

__all__ = ["print_contexts", "print_memory"]

ARENA_GOAL = 7.5
THROUGHPUT_GOAL = 1.7
CLOCK_GOAL = 0.01
THROUGHPUT_ROUNDS = 5
THROUGHPUT_SECONDS = 0.8
PROFILED_RUNS = 20
CANCELLED_RUNS = 60
CLOCK_SECONDS = 8.0


def print_memory(model: Model) -> None:
    """Internal memory, and what the device's account and the engine's scratch state of a second context."""
    (program,) = model.programs
    io = sum(spec.nbytes for spec in (*program.input_specs, *program.output_specs))
    prepared = NativeEngine().prepare(program)
    assert isinstance(prepared, NativeExecutable)
    with Device(model.chip) as device, device.load(model) as loaded:
        totals, contexts = [], []
        for _ in range(2):
            contexts.append(loaded.context())
            contexts[-1].run({spec.name: np.zeros(spec.shape, np.uint8) for spec in contexts[-1].inputs})
            totals.append(device.memory_usage().total)
    arena = program.memory.size
    rows: list[tuple[str, int, str]] = [
        ("internal memory (arena)", arena, verdict(arena / 2**20, ARENA_GOAL)),
        ("inputs and outputs", io, ""),
        ("second context, on the account", totals[1] - totals[0], ""),
        ("scratch of a context, not on the account", prepared.scratch_size, ""),
    ]
    print_table(
        "memory of PP-OCRv4 detection",
        ["MiB", "", "goal"],
        [[name, f"{size / 2**20:.2f}", goal] for name, size, goal in rows],
    )


def print_contexts(model: Model) -> None:
    """Two contexts on two threads, cancelling, and the clock."""
    rows = []
    with Device(model.chip) as device, device.load(model) as loaded:
        contexts = [loaded.context(), loaded.context()]
        for context in contexts:
            context.run({spec.name: np.zeros(spec.shape, np.uint8) for spec in context.inputs})
        one, two = _throughputs([context.execute for context in contexts])
        bare_one, bare_two = _throughputs([peak_runner(NativeEngine().isa)] * 2)
        ratio, bare_ratio = two.rate / one.rate, bare_two.rate / bare_one.rate
        rows.append(
            ["two contexts on two threads, throughput of one", f"{ratio:.2f}", verdict(ratio, THROUGHPUT_GOAL, at_least=True)]
        )
        rows.append(["  CPU time of a run, that of one thread", f"{two.cpu / one.cpu:.2f}", ""])
        rows.append(["  what the machine gives to loops without memory", f"{bare_ratio:.2f}", ""])
        longest = _longest_layer(contexts[0])
        latencies = _latencies(contexts[0])
        rows.append(["longest layer, ms", f"{longest:.2f}", ""])
        rows.append(["cancelled until stopped, median ms", f"{statistics.median(latencies):.2f}", _below(latencies, longest)])
        rows.append(["  the slowest, ms", f"{max(latencies):.2f}", ""])
        times = cpu_times({"off": contexts[0].execute, "on": lambda: contexts[0].execute(profile=True)}, CLOCK_SECONDS)
        cost = times["on"].best / times["off"].best - 1
        rows.append(["clock of each layer, added CPU time", f"{cost:+.1%}", verdict(cost, CLOCK_GOAL)])
    print_table("contexts of PP-OCRv4 detection (throughput needs an idle machine with two cores)", ["", "", "goal"], rows)


def _below(latencies: Sequence[float], longest: float) -> str:
    return f"longest layer {'ok' if statistics.median(latencies) < longest else 'MISSED'}"


@dataclass(frozen=True)
class _Throughput:
    """Runs a second, and CPU seconds a run."""

    rate: float
    cpu: float


def _throughputs(runs: Sequence[Callable[[], object]]) -> tuple[_Throughput, _Throughput]:
    """The best of some rounds with the first alone and with all on a thread each, in turn."""
    ones, alls = [], []
    for _ in range(THROUGHPUT_ROUNDS):
        ones.append(_throughput(runs[:1]))
        alls.append(_throughput(runs))
    return max(ones, key=lambda found: found.rate), max(alls, key=lambda found: found.rate)


def _throughput(runs: Sequence[Callable[[], object]]) -> _Throughput:
    counts = [0] * len(runs)
    begin, cpu = time.perf_counter(), time.process_time()
    end = begin + THROUGHPUT_SECONDS

    def work(number: int) -> None:
        while time.perf_counter() < end:
            runs[number]()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _Throughput(sum(counts) / (time.perf_counter() - begin), (time.process_time() - cpu) / sum(counts))


def _longest_layer(context: Context) -> float:
    """Milliseconds, from the best time of each layer."""
    runs = [[entry.ns for entry in context.execute(profile=True)] for _ in range(PROFILED_RUNS)]
    return float(max(min(times) for times in zip(*runs, strict=True)) / 1e6)


def _latencies(context: Context) -> list[float]:
    """Milliseconds from cancelling a run, at some moment of it, until it has ended."""
    begin = time.perf_counter()
    context.execute()
    length = time.perf_counter() - begin
    moments = np.random.default_rng(0).uniform(0.1, 0.8, CANCELLED_RUNS) * length
    found = []
    for moment in moments.tolist():
        control, ended = RunControl(), [0.0]

        def run(control: RunControl = control, ended: list[float] = ended) -> None:
            try:
                context.execute(control=control)
            except JobCancelled:
                ended[0] = time.perf_counter()

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(moment)
        cancelled = time.perf_counter()
        control.cancel()
        thread.join()
        if ended[0]:
            found.append((ended[0] - cancelled) * 1e3)
    return found
