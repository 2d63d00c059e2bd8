"""Runs the fuzzers and keeps what they find: ``python -m fuzz.driver modelfiles --seconds 60`` from the folder ``tests``.

A fuzzer works in a process of its own. If that ends otherwise than it should, its last input is written into the folder of findings with
what the process said, and the next process goes on behind it. A finding that was mended belongs into ``tests/fuzz/corpus``, which
``make test`` replays.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .sanitized import build_extension, sanitizer_environment
from .seeds import write_seeds

__all__ = ["Outcome", "fuzz_model_files"]

TESTS = Path(__file__).parents[1]
BATCH = 2000
"""Mutants of one process: memory that other libraries keep does not add up for ever."""


@dataclass
class Outcome:
    """What a fuzzer did.

    :ivar done: inputs tried
    :ivar results: how they ended, and how often
    :ivar findings: files with what must not happen
    :ivar slowest: most processor time of one input, in seconds
    :ivar peak: most memory of a process, in bytes
    """

    done: int = 0
    results: collections.Counter[str] = field(default_factory=collections.Counter)
    findings: list[Path] = field(default_factory=list)
    slowest: float = 0.0
    peak: int = 0

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.results.most_common())
        return f"{self.done} inputs ({counts}); slowest {self.slowest:.2f} s, {self.peak / 1e6:.0f} MB; {len(self.findings)} findings"


def fuzz_model_files(
    folder: Path,
    *,
    seconds: float = 1e9,
    count: int = 1 << 40,
    first: int = 0,
    sanitize: bool = True,
    max_findings: int = 20,
    report: bool = False,
) -> Outcome:
    """Load and run mutants until *seconds* have passed or *count* were tried.

    :param folder: for the sanitized module, the seeds and the findings; what was built there before is used again
    :param first: number of the first mutant; each number stands for one mutant
    :param report: print how far it has come, after each process
    """
    folder.mkdir(parents=True, exist_ok=True)
    seeds = folder / "seeds"
    if not seeds.exists():
        write_seeds(seeds)
    module = folder / "sanitized" / "_native.abi3.so"
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONPATH=str(TESTS))
    for name in ("ANYNPU_ENGINE", "ANYNPU_ISA", "ANYNPU_BOARD", "ANYNPU_REALTIME"):
        environment.pop(name, None)
    if sanitize:
        environment.update(sanitizer_environment())
        if not module.exists():
            build_extension(module.parent)
    total = Outcome()
    end = time.monotonic() + seconds
    number = first
    while (left := end - time.monotonic()) > 0 and number < first + count and len(total.findings) < max_findings:
        with tempfile.TemporaryDirectory(dir=folder) as state:
            wanted = min(BATCH, first + count - number)
            command = [sys.executable, "-m", "fuzz.modelfiles", str(seeds), state, str(number), str(wanted), str(left)]
            command += [str(module)] if sanitize else []
            done = subprocess.run(
                command, env=environment, cwd=TESTS, capture_output=True, text=True, errors="replace", check=False
            )
            noted = json.loads(Path(state, "progress").read_text()) if Path(state, "progress").exists() else {"done": 0}
            total.results.update(noted.get("results", {}))
            total.slowest = max(total.slowest, noted.get("slowest", 0.0))
            total.peak = max(total.peak, noted.get("peak", 0))
            if done.returncode == 0:
                number += max(noted["done"], 1)
            else:
                current = Path(state, "current")
                assert current.exists(), f"the fuzzer does not start:\n{done.stderr}"
                total.findings.append(_keep(folder / "findings", current.read_bytes(), done))
                number = _number_after(noted["done"] + number, current.read_bytes(), seeds)
            total.done = number - first
        if report:
            print(total, flush=True)
    return total


def _number_after(number: int, data: bytes, seeds: Path) -> int:
    """The number behind the mutant that is *data*; it lies within the hundred after the last note."""
    import random

    from .mutate import mutant, take_apart

    samples = [take_apart(path.read_bytes()) for path in sorted(seeds.iterdir())]
    for candidate in range(number, number + 101):
        dice = random.Random(f"mutant {candidate}")
        if mutant(dice.choice(samples), dice) == data:
            return candidate + 1
    return number + 101


def _keep(folder: Path, data: bytes, done: subprocess.CompletedProcess[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.model"
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(f"exit status {done.returncode}\n{done.stderr[-8000:]}")
    return path


def main() -> None:
    """Run a fuzzer from the command line; the exit status is 1 if it found something."""
    parser = argparse.ArgumentParser(description="Run a fuzzer and keep what it finds.")
    parser.add_argument("what", choices=["modelfiles", "http", "grpc"])
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--count", type=int, default=1 << 40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "anynpu-fuzz"))
    parser.add_argument("--plain", action="store_true", help="without sanitizers")
    given = parser.parse_args()
    if given.what == "modelfiles":
        outcome = fuzz_model_files(
            given.folder, seconds=given.seconds, count=given.count, first=given.first, sanitize=not given.plain, report=True
        )
    else:
        from .streams import fuzz_streams

        outcome = fuzz_streams(given.what, given.folder, seconds=given.seconds, count=given.count, first=given.first)
    print(outcome)
    sys.exit(1 if outcome.findings else 0)


if __name__ == "__main__":
    main()
