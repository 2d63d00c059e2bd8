"""Runs the program and reads what it prints."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Replayed", "replay"]


@dataclass(frozen=True)
class Replayed:
    """What the program said.

    :ivar kernels: by level the layers that each kernel ran
    """

    code: int
    text: str
    passed: int
    failed: int
    kernels: Mapping[str, Mapping[str, int]]


def replay(
    command: Sequence[str], cases: Path, levels: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Replayed:
    """Replay *cases* with the program of *command*, at the given levels or all there are."""
    done = subprocess.run(
        [*command, str(cases), *levels],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    total = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout, re.MULTILINE)
    assert total is not None, done.stdout
    kernels = {}
    for level, uses in re.findall(r"^(\w+): \d+ passed, \d+ failed; layers by kernel:(.*)$", done.stdout, re.MULTILINE):
        kernels[level] = {kernel: int(count) for kernel, count in (use.split("=") for use in uses.split())}
    return Replayed(done.returncode, done.stdout, int(total[1]), int(total[2]), kernels)
