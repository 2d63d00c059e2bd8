"""Loads and runs mutated model files or command streams: the part that runs in a process of its own, which a driver watches.

Run as ``python -m fuzz.modelfiles WHAT SEEDS STATE FIRST COUNT SECONDS [MODULE]``: mutants from FIRST on, COUNT of them or as many as fit
in SECONDS, of the files in SEEDS. WHAT is ``modelfiles``, ``geometries`` for mutants with extreme strides, dilations, pads or
kernels, or ``commands`` for command streams, which need no seeds. Each is written into ``STATE/current`` before it is tried, and its
number into ``STATE/number``; ``STATE/progress`` states what was done. MODULE is an extension module to use in the place of the installed
one: the one with sanitizers.

A mutant is rejected with an error of ours, or it is loaded and run on both engines: native, and the reference engine, in which onnxruntime
executes float operators. Everything else ends the process: another exception, a sanitizer's report, a signal, more than 5 s of processor
time for one mutant (SIGPROF), more than 1 GB of memory.
"""

from __future__ import annotations

import collections
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

CPU_SECONDS = 5
MEMORY = 1 << 30
RUN_TIMEOUT = 1.0
SEED_TIMEOUT = 120.0
"""Seconds for a seed, which must run to its end however busy the machine is."""


class _Finder:
    """Gives the module of *path* for ``anynpu._native``."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "anynpu._native":
            return None
        return importlib.util.spec_from_loader(name, importlib.machinery.ExtensionFileLoader(name, self.path))


def use_module(path: str) -> None:
    """Load the native kernels from *path*."""
    sys.meta_path.insert(0, _Finder(path))
    import anynpu._native

    assert anynpu._native.__file__ == path


def outcome(data: bytes, engines: tuple[str, ...] = ("native", "reference"), timeout: float = RUN_TIMEOUT) -> str:
    """Load and run one file; how that ended. An exception that is not ours goes through."""
    import numpy as np

    from anynpu import modelfile
    from anynpu.errors import AnynpuError
    from anynpu.npu import Device

    try:
        model = modelfile.read(data)
    except AnynpuError as error:
        return f"refused: {name_of(error)}"
    dice = np.random.default_rng(len(data))
    ended = "run"
    for engine in engines:
        try:
            with Device(model.chip, engine=engine, memory_limit=256 << 20, host_threads=1) as device:
                context = device.load(model).context()
                for name in context.custom_operators:
                    context.register_custom_operator(name, lambda call: None)
                inputs = {spec.name: dice.integers(-100, 100, spec.shape).astype(np.float32) for spec in context.inputs}
                context.run(inputs, timeout=timeout)
        except AnynpuError as error:
            ended = f"not run: {name_of(error)}"
    return ended


def name_of(error: Any) -> str:
    assert error.hint, f"an error without a hint: {error}"
    return type(error).__name__


def main(what: str, seeds: str, state: str, first: str, count: str, seconds: str, module: str = "") -> None:
    """Work through mutants; see the text at the head of this file."""
    if module:
        use_module(module)
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's about overflow: codes of a damaged model mean nothing
    from . import commands
    from .mutate import mutant, take_apart

    files = [] if what == "commands" else sorted(Path(seeds).iterdir())
    samples = [take_apart(path.read_bytes()) for path in files]
    for path in files:
        assert outcome(path.read_bytes(), timeout=SEED_TIMEOUT) == "run", f"the seed {path} does not run"
    current, progress = Path(state, "current"), Path(state, "progress")
    results: collections.Counter[str] = collections.Counter()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    end = time.monotonic() + float(seconds)
    started = int(first)
    slowest = 0.0
    with current.open("wb", buffering=0) as file, Path(state, "number").open("wb", buffering=0) as counter:
        for number in range(started, started + int(count)):
            if time.monotonic() > end:
                break
            counter.seek(0)
            counter.write(b"%020d" % number)
            dice = random.Random(f"mutant {number}")
            data = mutant(dice.choice(samples), dice, geometries=what == "geometries") if files else commands.mutant(dice)
            file.seek(0)
            file.truncate()
            file.write(data)
            before = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            results[outcome(data) if files else commands.outcome(data)] += 1
            signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - before)
            peak = peak_memory()
            assert peak <= MEMORY, f"{peak} bytes of memory"
            if number % 100 == 0:
                note(progress, number + 1 - started, results, slowest, peak)
    note(progress, sum(results.values()), results, slowest, peak_memory())
    current.unlink()
    sys.stdout.flush()
    os._exit(0)  # libraries that were not built for sanitizers have their own ways to end


def peak_memory() -> int:
    """The most bytes that this program has had in memory; the number of getrusage may be that of the program that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def note(progress: Path, done: int, results: collections.Counter[str], slowest: float, peak: int) -> None:
    """Write down how far a fuzzer has come; the file is complete at any time."""
    fresh = progress.with_suffix(".new")
    fresh.write_text(json.dumps({"done": done, "results": results, "slowest": slowest, "peak": peak}))
    fresh.replace(progress)


if __name__ == "__main__":
    main(*sys.argv[1:])
