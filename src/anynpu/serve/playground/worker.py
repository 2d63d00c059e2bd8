"""The process that does one job of the playground; :mod:`anynpu.serve.playground.mount` starts it.

Models and images that a visitor dropped are opened here and nowhere else. Before that the process limits itself: memory, CPU time
and the size of files. It ends when its parent closes the pipe to it, also where a library is busy. It is no sandbox: it has the files and
the network that the user has.

It reads one line of JSON, the job, and writes one line for each step of its progress. The result goes to a file beside the images.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from ...errors import AnynpuError
from .request import JobRequest

RESULT = "result.json"
"""The file with the result, in the folder of the job."""

MAX_FILE_BYTES = 2**26
"""Of a file that the process writes."""

_NO_NEW_PRIVILEGES = 38
_TOLD_EVERY = 0.1
"""Seconds between two lines about the same step."""


class Teller:
    """Writes progress as lines, not more often than a reader can follow."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self._stage = ""
        self._said = 0.0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """State how far *stage* is."""
        now = time.monotonic()
        if stage != self._stage or now - self._said >= _TOLD_EVERY:
            self._stage, self._said = stage, now
            self.say({"stage": stage, "done": done, "total": total})

    def say(self, message: dict[str, Any]) -> None:
        """Write one line."""
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()


def main() -> None:
    """Do the job that the first line of standard input names."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no message
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="anynpu parent", daemon=True).start()
    teller = Teller(lines)
    teller("starting", 0, 1)
    folder = Path(job["folder"])
    try:
        from .work import do_job

        _limit(int(job["memory"]), int(job["cpu_seconds"]))
        request = JobRequest.read(job["request"])
        result = do_job(request, {name: Path(path) for name, path in job["files"].items()}, folder, teller)
        (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
        teller.say({"state": "done"})
    except AnynpuError as error:
        teller.say({"state": "failed", "error": str(error).partition("\n  hint: ")[0], "hint": error.hint or ""})
    except MemoryError:
        hint = f"try a smaller model or image; a job may take {int(job['memory']) >> 20} MB"
        teller.say({"state": "failed", "error": "the job needs more memory than it may have", "hint": hint})
    except Exception as error:  # whatever a stranger's file does to a library, the page states it
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        teller.say(
            {"state": "failed", "error": f"the job failed: {text}", "hint": "the file may be damaged; if it is not, report this"}
        )


def _limit(memory: int, cpu_seconds: int) -> None:
    """No more memory than there is by now plus *memory*, no more CPU time, no large files, no core dumps."""
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    for kind, value in (
        (resource.RLIMIT_AS, pages * mmap.PAGESIZE + memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)
