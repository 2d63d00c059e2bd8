"""Jobs of the playground: one at a time, each in a process with limits, with progress, and an end that can be asked for.

Belongs to the event loop of the server: no lock. A thread reads what the process of a job says and hands it to the loop; it ends with the
process. :meth:`PlaygroundJobs.cancel` and the limit of time only end the process: the thread sees that, and the loop says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import RequestError, UnknownModelError
from .request import MAX_PIXELS, JobRequest
from .worker import RESULT

__all__ = ["JobLimits", "PlaygroundJobs", "PlaygroundJob"]

_START = "import sys; sys.path[:] = sys.argv[1:]; from anynpu.serve.playground.worker import main; main()"  # nothing of the working folder
_MAX_LINE = 2**16
_ENDS = ("done", "failed")
_GRACE = 60.0
"""Seconds for a process that has closed its end of the pipe to end."""


@dataclass(frozen=True)
class JobLimits:
    """What a job may take.

    :ivar seconds: until its end
    :ivar cpu_seconds: of processor time
    :ivar memory_mb: beyond what the process takes by itself
    """

    seconds: float = 900.0
    cpu_seconds: int = 1800
    memory_mb: int = 4096


@dataclass
class PlaygroundJob:
    """One job.

    :ivar state: ``running``, ``done``, ``failed`` or ``cancelled``
    :ivar stage: what it does at the moment
    """

    name: str
    folder: Path
    files: tuple[Path, ...]
    state: str = "running"
    stage: str = "starting"
    done: int = 0
    total: int | None = None
    error: str = ""
    hint: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def tell(self, stage: str, done: int, total: int | None) -> None:
        """How far it is."""
        self.stage, self.done, self.total = stage, done, total

    def without_paths(self, text: str) -> str:
        """A message about the files of the job, by what they are to the reader: their temporary paths mean nothing to them."""
        place = self.folder.parent
        for path in self.files:
            words = f"the {path.name.partition('-')[0]}" if path.parent == place else path.name
            text = text.replace(str(path), words)
        return text.replace(f"{place}/", "")

    def to_json(self) -> dict[str, Any]:
        """What the page is told."""
        facts = {"job": self.name, "state": self.state, "stage": self.stage, "done": self.done, "total": self.total}
        return {**facts, "error": self.error, "hint": self.hint}


class PlaygroundJobs:
    """The jobs of one playground, of which the last is kept.

    :param folder: where jobs have their folders
    :param command: of the process that does a job
    """

    def __init__(self, folder: Path, limits: JobLimits, command: Sequence[str] = ()) -> None:
        self._folder = folder
        self._limits = limits
        self._command = tuple(command) or (sys.executable, "-c", _START, *map(os.path.abspath, sys.path))
        self._count = 0
        self._job: PlaygroundJob | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._verdict: tuple[str, str, str] | None = None  # why the process was ended: state, error, hint

    @property
    def running(self) -> PlaygroundJob | None:
        """The job that is being done."""
        return self._job if self._job is not None and self._job.state == "running" else None

    @property
    def last(self) -> PlaygroundJob | None:
        """The job that was started last."""
        return self._job

    def get(self, name: str) -> PlaygroundJob:
        """The job of that name, while it is the last one."""
        if self._job is None or self._job.name != name:
            raise UnknownModelError(f"there is no job '{name}' any more", hint="start it again")
        return self._job

    def start(self, request: JobRequest, files: Mapping[str, Path]) -> PlaygroundJob:
        """Start a job."""
        if self.running is not None:
            raise RequestError("a job is running already, and there is one at a time", hint="wait for it, or cancel it")
        self._count += 1
        name = f"job-{self._count}"
        folder = self._folder / name
        folder.mkdir()
        order = {
            "request": asdict(request),
            "files": {key: str(path) for key, path in files.items()},
            "folder": str(folder),
            "memory": self._limits.memory_mb << 20,
            "cpu_seconds": self._limits.cpu_seconds,
        }
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OPENCV_IO_MAX_IMAGE_PIXELS": str(MAX_PIXELS)},
            )
        except OSError as error:
            raise RequestError(f"the process for the job does not start: {error.strerror}", hint="try again") from None
        loop, seconds = asyncio.get_running_loop(), self._limits.seconds
        self._job = job = PlaygroundJob(name, folder, tuple(files.values()))
        self._process, self._verdict = process, None
        self._late = loop.call_later(
            seconds,
            self._end_process,
            "failed",
            f"the job took longer than {seconds:g} s",
            "try a smaller model or fewer images",
        )
        line = json.dumps(order).encode() + b"\n"
        threading.Thread(target=self._follow, args=(loop, job, process, line), name="anynpu playground", daemon=True).start()
        return job

    def cancel(self, name: str) -> PlaygroundJob:
        """Let a job end; nothing happens to one that has ended."""
        job = self.get(name)
        if job.state == "running":
            self._end_process("cancelled", "the job was cancelled", "")
        return job

    def result(self, job: PlaygroundJob) -> Any:
        """What a job that is done has found."""
        return json.loads((job.folder / RESULT).read_text(encoding="utf-8"))

    async def close(self) -> None:
        """End the job that runs, and wait for its end."""
        job = self.running
        if job is not None:
            self._end_process("cancelled", "the server has ended", "")
            await job.ended.wait()

    def _end_process(self, state: str, error: str, hint: str) -> None:
        if self._verdict is None:
            self._verdict = state, error, hint
        if self._process is not None:
            self._process.kill()

    def _follow(
        self, loop: asyncio.AbstractEventLoop, job: PlaygroundJob, process: subprocess.Popen[bytes], order: bytes
    ) -> None:
        """What the thread of a job does."""
        said: dict[str, Any] | None = None
        try:
            said = _listen(process, order, lambda *step: loop.call_soon_threadsafe(job.tell, *step))
        finally:
            status = _ended(process, at_once=said is not None)
            loop.call_soon_threadsafe(self._finish, job, said, status)

    def _finish(self, job: PlaygroundJob, said: dict[str, Any] | None, status: int) -> None:
        """The process of a job has ended."""
        if self._late is not None:
            self._late.cancel()
        self._process = None
        if self._verdict is not None:
            job.state, job.error, job.hint = self._verdict
        elif said is not None and said.get("state") in _ENDS:
            job.state, job.error, job.hint = (job.without_paths(str(said.get(key, ""))) for key in ("state", "error", "hint"))
        else:
            job.state, job.error, job.hint = _why(status, self._limits)
        job.ended.set()


def _listen(
    process: subprocess.Popen[bytes], order: bytes, tell: Callable[[str, int, int | None], object]
) -> dict[str, Any] | None:
    """Hand the job over and hear what the process says, to its last word; None if it ends without one, an empty one for nonsense."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(order)  # the pipe stays open: its end is the end of the process
        process.stdin.flush()
        while line := process.stdout.readline(_MAX_LINE):
            message = json.loads(line)
            if message.get("state") in _ENDS:
                return dict(message)
            tell(str(message["stage"]), int(message["done"]), None if message["total"] is None else int(message["total"]))
    except OSError:  # it has ended
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a stranger's file made it talk nonsense
        return {}
    return None


def _ended(process: subprocess.Popen[bytes], *, at_once: bool) -> int:
    """The status of a process that has nothing more to say; one that does not end is ended."""
    if not at_once:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    process.kill()
    status = process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
    return status


def _why(status: int, limits: JobLimits) -> tuple[str, str, str]:
    """Why a process ended that said nothing."""
    if status == -signal.SIGXCPU:
        return (
            "failed",
            f"the job took more than {limits.cpu_seconds} s of processor time",
            "try a smaller model or fewer images",
        )
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    hint = f"the file may be damaged, or need more memory than a job may have ({limits.memory_mb} MB)"
    return "failed", f"the process of the job ended ({name})", hint
