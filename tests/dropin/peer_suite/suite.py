"""Runs EZ RKNN Async's own tests, from its published source package, which is fetched by name and never a part of this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["HERE", "NAME", "VERSION", "Outcomes", "Unavailable", "fetch", "run_suite"]

HERE = Path(__file__).parent
BUILD = Path(__file__).parents[3] / "build" / "peer-suite"
NAME = "ztu-somemodelruntime-ez-rknn-async"
VERSION = "0.11.0"
DOWNLOAD_SECONDS = 300
PATIENCE = 90.0
"""Seconds without any test that begins or ends, after which the process is given up: the peer hangs at times when a session ends."""
START_PATIENCE = 600.0
"""Seconds until the first of them begins: it does not hang before that, but a busy machine takes long to import what it needs."""
ATTEMPTS = 4
"""How often a test that hangs may do so."""
TICK = 0.1


class Unavailable(Exception):
    """The source package is not to be had; the text states why."""


def fetch() -> Path:
    """The folder of the unpacked source package, from the build folder or from the package index."""
    folder = BUILD / f"{NAME.replace('-', '_')}-{VERSION}"
    if folder.is_dir():
        return folder
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as fresh:
        reason = ""
        for isolation in (["--no-build-isolation"], []):  # pip asks a package for its metadata, which needs its build tools
            archive = Path(fresh, f"{folder.name}.tar.gz")
            if not archive.is_file():
                reason = _download(Path(fresh), isolation)
        if not archive.is_file():
            raise Unavailable(reason)
        with tarfile.open(archive) as package:
            package.extractall(fresh, filter="data") if hasattr(tarfile, "data_filter") else package.extractall(fresh)
        try:
            Path(fresh, folder.name).rename(folder)  # complete or not at all
        except OSError:
            if not folder.is_dir():  # another owner was faster
                raise
    return folder


def _download(folder: Path, flags: list[str]) -> str:
    """Have pip put the source package into *folder*; what it states if it does not."""
    # its own source only: of its build tools pip takes wheels, where a CMake would be compiled for an hour
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", NAME, *flags]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), f"{NAME}=={VERSION}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"its download took more than {DOWNLOAD_SECONDS} seconds"
    return (done.stderr.strip().splitlines() or ["no reason was given"])[-1]


@dataclass
class Outcomes:
    """What became of each test: ``passed``, ``failed``, ``skipped`` or ``hung``, and why."""

    results: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> list[str]:
        return [test for test, outcome in self.results.items() if outcome == "passed"]

    @property
    def others(self) -> dict[str, str]:
        """The tests that did not pass, and why."""
        return {test: f"{outcome}: {self.reasons.get(test, '')}" for test, outcome in self.results.items() if outcome != "passed"}


def run_suite(source: Path, environment: Mapping[str, str], module: Path, folder: Path) -> Outcomes:
    """Run all tests of the suite in a process of its own, and go on behind a test that hangs.

    :param module: the folder that has what the tests import under the peer's name
    """
    outcomes, collected, hung = Outcomes(), None, dict[str, int]()
    for attempt in range(100):
        log = folder / f"outcomes-{attempt}.jsonl"
        log.touch()
        done = set(outcomes.results)
        left = [] if collected is None else [test for test in collected if test not in done]
        if collected is not None and not left:
            break
        code = _run(source, {**environment, "PEER_OUTCOMES": str(log)}, module, folder, left, log)
        begun = None
        for entry in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
            collected = collected or entry.get("collected")
            begun = entry.get("begins", begun)
            if "test" in entry:
                outcomes.results[entry["test"]] = entry["outcome"]
                outcomes.reasons[entry["test"]] = entry["reason"]
                begun = None
        assert collected, f"the suite did not begin: {(folder / 'output.txt').read_text()[-2000:]}"
        if begun is not None:  # it hung, or took the process with it
            hung[begun] = hung.get(begun, 0) + 1
            if hung[begun] == ATTEMPTS:
                outcomes.results[begun] = "hung" if code is None else f"ended the process with {code}"
    return outcomes


def _run(source: Path, environment: Mapping[str, str], module: Path, folder: Path, tests: list[str], log: Path) -> int | None:
    """One process; None if it was given up."""
    paths = [str(HERE), str(module), environment.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes", "-c", os.devnull]
    command += [f"--rootdir={source}", f"--basetemp={folder / 'models'}", *(tests or ["tests"])]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=source,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        size, since = 0, time.monotonic()
        while process.poll() is None:
            now = log.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > (PATIENCE if size else START_PATIENCE):
                process.kill()
                process.wait()
                return None
            time.sleep(TICK)
        return process.returncode
