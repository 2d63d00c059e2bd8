"""The playground's place in a server: its page, what clients may drop, and the calls about jobs.

Belongs to the event loop of the server: no lock. Files that were dropped lie in a temporary folder, under names that the server chooses,
until others take their place; the folder goes with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Callable, Sequence
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
from .jobs import JobLimits, PlaygroundJob, PlaygroundJobs
from .request import ACCURACIES, AUTO, DTYPES, SCALES, JobRequest

__all__ = ["Playground"]

MAX_FILES = {"model": 2, "picture": 16}
"""Files of each kind that are kept; the oldest makes room."""

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
        """Paths that need no key: they tell nothing but that the page is there."""
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
    """Only for this machine's own name, also where clients show keys; and no calls that another page could make by itself."""
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
