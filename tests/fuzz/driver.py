"""Runs the fuzzers and keeps what they find: ``python -m fuzz.driver modelfiles --seconds 60`` from the folder ``tests``.

There are five: ``modelfiles`` loads and runs mutated files, on kernels that are built with sanitizers; ``geometries`` does so with extreme
strides, dilations, pads and kernels; ``commands`` runs mutated command streams of the RK3588 NPU on the same kernels; ``http`` and
``grpc`` send mutated byte streams to a running server. Each number stands for one input, so that a run can be repeated, or go on where
another ended (``--first``).

A fuzzer works in a process of its own. If that ends otherwise than it should, its last input is written into the folder of findings with
what the process said, and the next process goes on behind it. A finding that was fixed belongs into ``tests/fuzz/corpus``, which
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

__all__ = ["CORPUS", "Outcome", "fuzz"]

TESTS = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
"""Inputs that were found or thought of, in a folder for each fuzzer."""
SUFFIXES = {"modelfiles": ".model", "geometries": ".model", "commands": ".job", "http": ".http", "grpc": ".grpc"}
BATCH = 2000
"""Inputs of one process: memory that other libraries keep does not add up for ever."""
GUARDED = 4
"""One process of so many guards Python's own small objects too (buffers that go to the kernels are guarded in all): it is half as fast."""


@dataclass
class Outcome:
    """What a fuzzer did.

    :ivar done: inputs tried
    :ivar results: how they ended, and how often
    :ivar findings: files with what must not happen
    :ivar slowest: most CPU time of one input, in seconds
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

    def explained(self) -> str:
        """The findings, with what the processes said."""
        return "\n\n".join(f"{path}\n{path.with_suffix('.txt').read_text()}" for path in self.findings)


def fuzz(
    what: str,
    folder: Path,
    *,
    seconds: float = 1e9,
    count: int = 1 << 40,
    first: int = 0,
    sanitize: bool = True,
    max_findings: int = 20,
    report: bool = False,
) -> Outcome:
    """Try inputs until *seconds* have passed or *count* were tried.

    :param what: ``modelfiles``, ``geometries``, ``commands``, ``http`` or ``grpc``
    :param folder: for the sanitized module, the seeds and the findings; what was built there before is used again
    :param first: number of the first input
    :param sanitize: model files on kernels with sanitizers
    :param report: print how far it has come, after each process
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONPATH=str(TESTS))
    for name in ("ANYNPU_ENGINE", "ANYNPU_ISA", "ANYNPU_BOARD", "ANYNPU_REALTIME"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "fuzz.streams", what]
    behind: list[str] = []
    files = what in ("modelfiles", "geometries", "commands")
    if files:
        seeds, module = folder / "seeds", folder / "sanitized" / "_native.abi3.so"
        if not seeds.exists() and what != "commands":
            write_seeds(seeds)
        if sanitize:
            environment.update(sanitizer_environment())
            if not module.exists():
                build_extension(module.parent)
            behind = [str(module)]
        command = [sys.executable, "-m", "fuzz.modelfiles", what, str(seeds)]
    total = Outcome()
    end = time.monotonic() + seconds
    number = first
    while (left := end - time.monotonic()) > 0 and number < first + count and len(total.findings) < max_findings:
        with tempfile.TemporaryDirectory(dir=folder) as state:
            wanted = min(BATCH, first + count - number)
            if files and sanitize:
                environment["PYTHONMALLOC"] = "pymalloc" if number // BATCH % GUARDED else "malloc"
            done = subprocess.run(
                [*command, state, str(number), str(wanted), str(left), *behind],
                env=environment,
                cwd=TESTS,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
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
                total.findings.append(_keep(folder / "findings", current.read_bytes(), SUFFIXES[what], done))
                number = int(Path(state, "number").read_text()) + 1
            total.done = number - first
        if report:
            print(total, flush=True)
    return total


def _keep(folder: Path, data: bytes, suffix: str, done: subprocess.CompletedProcess[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(f"exit status {done.returncode}\n{done.stderr[-8000:]}")
    return path


def main() -> None:
    """Run a fuzzer from the command line; the exit status is 1 if it found something."""
    parser = argparse.ArgumentParser(description="Run a fuzzer and keep what it finds.")
    parser.add_argument("what", choices=list(SUFFIXES))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--count", type=int, default=1 << 40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "anynpu-fuzz"))
    parser.add_argument("--plain", action="store_true", help="without sanitizers")
    given = parser.parse_args()
    outcome = fuzz(
        given.what,
        given.folder,
        seconds=given.seconds,
        count=given.count,
        first=given.first,
        sanitize=not given.plain,
        report=True,
    )
    print(outcome)
    sys.exit(1 if outcome.findings else 0)


if __name__ == "__main__":
    main()
