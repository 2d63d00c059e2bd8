"""The playground's place in a server: its page, what clients may drop, and the calls about jobs.

Belongs to the event loop of the server: no lock. Files that were dropped lie in a temporary folder, under names that the server chooses,
until others take their place; the folder goes with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ... import chips
from ...analysis.pages import page
from ...errors import AccessDeniedError, OptionError, RequestError, UnknownModelError
from ...vendors import registry
from ..model import ServedModel
from ..options import ServeOptions, is_loopback
from ..rest_service import Exchange, Handler, is_local
from ..service import Service
from .request import ACCURACIES, AUTO, DTYPES, MAX_PIXELS, SCALES, JobRequest
from .worker import RESULT

# Jobs of the playground: one at a time, each in a process with limits, with progress, and an end that can be asked for.
#
# Belongs to the event loop of the server: no lock. A thread reads what the process of a job states and hands it to the loop; it ends
# with the process. :meth:`PlaygroundJobs.cancel` and the limit of time only end the process: the thread sees that, and the loop
# states why.


_START = "import sys; sys.path[:] = sys.argv[1:]; from anynpu.serve.playground.worker import main; main()"  # nothing of the working folder
_MAX_LINE = 2**16
_ENDS = ("done", "failed")
_GRACE = 60.0
"""Seconds for a process that has closed its end of the pipe to end."""


@dataclass(frozen=True)
class JobLimits:
    """What a job may take.

    :ivar seconds: until its end
    :ivar cpu_seconds: of CPU time
    :ivar memory_mb: beyond what the process takes on its own
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
            words = path.name if path.parent != place else "the model" if path.name.startswith("model-") else "the image"
            text = text.replace(str(path), words)
        return text.replace(f"{place}/", "")

    def to_json(self) -> dict[str, Any]:
        """What the page receives."""
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
    """Hand the job over and hear what the process states, to its last word; None if it ends without one, an empty one for nonsense."""
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
    """The status of a process that has nothing more to state; one that does not end is ended."""
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
            f"the job took more than {limits.cpu_seconds} s of CPU time",
            "try a smaller model or fewer images",
        )
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    hint = f"the file may be damaged, or need more memory than a job may have ({limits.memory_mb} MB)"
    return "failed", f"the process of the job ended ({name})", hint


MAX_FILES = {"model": 2, "picture": 16}
"""Files of each kind that are kept; the oldest makes space."""

SAMPLE_IMAGES = 6
"""Images that come with the sample model."""

MARK = "x-anynpu-playground"
"""Header of every call that changes something: pages of others cannot send it without being asked for it first."""

_PICTURES = ("float", "compiled")
_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data: blob:; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Playground:
    """A page to play with, as a part of a server on loopback.

    :param limits: of a job
    :param command: of the process that does a job, for tests
    :param sample: writes a model and this many images for it into a folder, for visitors without files of their own
    """

    title = "playground"
    path = "/playground"

    def __init__(
        self,
        options: ServeOptions,
        limits: JobLimits | None = None,
        command: Sequence[str] = (),
        sample: Callable[[Path, int], tuple[Path, list[Path]]] | None = None,
    ) -> None:
        if not is_loopback(options.host):
            raise OptionError(
                f"the playground is for this machine alone, and {options.host} can be reached from others",
                hint="leave --host out, or listen on 127.0.0.1; from elsewhere, use a tunnel such as ssh -L 8000:127.0.0.1:8000 BOARD",
            )
        self._limits = limits or JobLimits()
        self._command = command
        self._sample = sample
        self._max_bytes = options.max_request_bytes
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._opened: PlaygroundJobs | None = None
        self._files: dict[str, Path] = {}
        self._count = 0

    @property
    def open_paths(self) -> tuple[str, ...]:
        """Paths that need no key: they reveal nothing but that the page is there."""
        return (self.path, "/playground.js", "/playground.css")

    def routes(self) -> list[tuple[str, str, Handler]]:
        """The calls, with their methods and paths."""
        rows: list[tuple[str, str, Handler]] = [
            ("GET", self.path, self._page),
            ("GET", "/playground.js", functools.partial(_asset, "playground.js", b"text/javascript; charset=utf-8")),
            ("GET", "/playground.css", functools.partial(_asset, "playground.css", b"text/css; charset=utf-8")),
            ("GET", "/playground/state", self._state),
            ("POST", "/playground/files/{kind}", self._drop),
            ("POST", "/playground/sample", self._take_sample),
            ("POST", "/playground/jobs", self._start),
            ("GET", "/playground/jobs/{job}", self._look),
            ("POST", "/playground/jobs/{job}/cancel", self._cancel),
            ("GET", "/playground/jobs/{job}/pictures/{picture}", self._picture),
        ]
        return [(method, path, functools.partial(_guarded, handler, method == "POST")) for method, path, handler in rows]

    async def close(self) -> None:
        """End the job that runs and remove everything that was dropped. May be called twice."""
        opened, self._opened = self._opened, None
        temporary, self._temporary = self._temporary, None
        if opened is not None:
            await opened.close()
        if temporary is not None:
            await asyncio.to_thread(temporary.cleanup)

    @property
    def folder(self) -> Path:
        """Where dropped files lie; made at first use."""
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="anynpu-playground-")
        return Path(self._temporary.name)

    @property
    def _jobs(self) -> PlaygroundJobs:
        if self._opened is None:
            self._opened = PlaygroundJobs(self.folder, self._limits, self._command)
        return self._opened

    async def _page(self, exchange: Exchange) -> None:
        await exchange.answer(200, [page("playground.html")], b"text/html; charset=utf-8", *_HEADERS)

    async def _state(self, exchange: Exchange) -> None:
        last = None if self._opened is None else self._opened.last
        await exchange.answer_json(
            {
                "chips": [
                    {"name": chip.name, "vendor": registry.of_chip(chip).title, "float16": bool(chip.float16)}
                    for chip in chips.all_chips()
                ],
                "types": DTYPES,
                "accuracies": ACCURACIES,
                "scales": {AUTO: "found by trying", **SCALES},
                "served": _served_names(exchange.service),
                "max_bytes": self._max_bytes,
                "sample": self._sample is not None,
                "job": None if last is None else last.to_json(),
            }
        )

    async def _drop(self, exchange: Exchange) -> None:
        kind = exchange.parameters["kind"]
        if kind not in MAX_FILES:
            raise RequestError(f"a {kind!r:.40} cannot be dropped", hint=f"drop one of: {', '.join(MAX_FILES)}")
        data = await exchange.raw_body(self._max_bytes)
        if not len(data):
            raise RequestError(f"the {kind} is an empty file", hint="choose another")
        await exchange.answer_json({"name": await self._keep(kind, data), "bytes": len(data)})

    async def _take_sample(self, exchange: Exchange) -> None:
        if self._sample is None:
            raise UnknownModelError("this server has no sample", hint="drop a model, or start it with: anynpu serve --playground")
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            model, images = await asyncio.to_thread(self._sample, Path(folder), SAMPLE_IMAGES)
            taken = [
                {"name": await self._keep(kind, path.read_bytes()), "file": path.name}
                for kind, path in [("model", model), *(("picture", image) for image in images)]
            ]
        await exchange.answer_json({"model": taken[0], "pictures": taken[1:]})

    async def _keep(self, kind: str, data: bytes | memoryview) -> str:
        """Write a file under a name of ours, and give that name."""
        self._count += 1
        name = f"{kind}-{self._count}"
        path = self.folder / (f"{name}.onnx" if kind == "model" else name)
        await asyncio.to_thread(path.write_bytes, data)
        self._files[name] = path
        self._make_room(kind)
        return name

    def _make_room(self, kind: str) -> None:
        """Remove the oldest files of a kind, but not those of a job that runs."""
        running = None if self._opened is None else self._opened.running
        used = () if running is None else running.files
        kept = [name for name in self._files if name.startswith(f"{kind}-")]
        for name in [name for name in kept if self._files[name] not in used][: max(len(kept) - MAX_FILES[kind], 0)]:
            with contextlib.suppress(FileNotFoundError):
                self._files.pop(name).unlink()

    async def _start(self, exchange: Exchange) -> None:
        request = JobRequest.read(await exchange.json())
        files = {name: self._file(name) for name in request.pictures}
        files["model"] = _served_path(exchange.service, request.served) if request.served else self._file(request.model)
        await exchange.answer_json(self._jobs.start(request, files).to_json())

    def _file(self, name: str) -> Path:
        if name not in self._files:
            raise RequestError(f"the file {name!r:.40} is not there any more", hint="drop it again")
        return self._files[name]

    def _job(self, exchange: Exchange) -> PlaygroundJob:
        return self._jobs.get(exchange.parameters["job"])

    async def _look(self, exchange: Exchange) -> None:
        job = self._job(exchange)
        result = await asyncio.to_thread(self._jobs.result, job) if job.state == "done" else None
        await exchange.answer_json({**job.to_json(), "result": result})

    async def _cancel(self, exchange: Exchange) -> None:
        job = self._jobs.cancel(exchange.parameters["job"])
        await job.ended.wait()
        await exchange.answer_json(job.to_json())

    async def _picture(self, exchange: Exchange) -> None:
        job, name = self._job(exchange), exchange.parameters["picture"]
        path = job.folder / f"{name}.jpg"
        if name not in _PICTURES or not path.is_file():
            raise UnknownModelError(
                "there is no such image", hint=f"there are: {', '.join(_PICTURES)}, where the job has made them"
            )
        data = await asyncio.to_thread(path.read_bytes)
        await exchange.answer(
            200, [data], b"image/jpeg", (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")
        )


async def _guarded(handler: Handler, changes: bool, exchange: Exchange) -> None:
    """Only for this machine's own name, also where clients show keys; and no calls that another page could make on its own."""
    host = exchange.headers.get("host", "")
    if not is_local(host):
        raise AccessDeniedError(
            f"the playground does not go by the name {host!r:.60}", hint="address it as 127.0.0.1 or localhost"
        )
    if changes and MARK not in exchange.headers:
        raise AccessDeniedError("this call is for the playground's own page", hint=f"send the header {MARK}: 1")
    await handler(exchange)


async def _asset(name: str, kind: bytes, exchange: Exchange) -> None:
    headers = (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")
    await exchange.answer(200, [page(name)], kind, *headers)


def _served_names(service: Service) -> list[dict[str, Any]]:
    """Models that have a file on this machine."""
    return [
        {"name": model.name, "file": model.file_name} for model in service.repository.models() if isinstance(model, ServedModel)
    ]


def _served_path(service: Service, name: str) -> Path:
    model = service.model(name)
    if not isinstance(model, ServedModel):
        raise UnknownModelError(f"model '{name}' has no file on this machine", hint="drop the ONNX file")
    return model.path
