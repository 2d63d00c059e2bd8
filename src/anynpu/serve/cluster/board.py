"""One board of a cluster: its models, with their sessions, queues and admission, as a plain server has them.

Ray runs one of these on each board; nothing here knows of Ray. Belongs to the event loop that its methods are called in: no lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from dataclasses import replace

from ...errors import AnynpuError, DeviceHungError, DeviceUnavailable, UnknownModelError
from ..interfaces import Models
from ..model import InferAnswer, InferRequest, ServedModel
from ..options import ServeOptions
from ..repository import Repository
from .messages import BoardRefusal, BoardReport, ModelReport, Orders

log = logging.getLogger("anynpu.serve")


class Board:
    """The models of one board.

    :param models: ``PATH``, ``NAME=PATH``, ``NAME:VERSION=PATH``, or folders, on the board
    :param identity: reports it from all others
    :param repository: the models themselves; those of this machine if it is None
    """

    def __init__(self, models: tuple[str, ...], options: ServeOptions, identity: str, repository: Models | None = None) -> None:
        self.identity = identity
        self.name = os.environ.get("ANYNPU_BOARD") or socket.gethostname()
        self._repository: Models = Repository(models, options) if repository is None else repository
        self._obeyed: dict[str, int] = {}
        self._obeying = asyncio.Lock()
        self._hung = 0  # runs that never came back, since the last one that did

    async def start(self) -> None:
        """Load everything."""
        await self._repository.load_all()

    async def infer(self, request: InferRequest) -> InferAnswer | BoardRefusal:
        """Run a request, or state why not."""
        try:
            model = self._repository.get(request.model, request.version)
            model.hold()
            try:
                answer = await model.infer(request)
            finally:
                model.let_go()
        except AnynpuError as error:
            if isinstance(error, DeviceHungError):
                self._hung += 1
            return BoardRefusal(self.identity, error)
        self._hung = 0
        return answer

    async def obey(self, orders: Orders) -> dict[str, AnynpuError]:
        """Catch up with what clients said about models; gives what went wrong."""
        failures: dict[str, AnynpuError] = {}
        async with self._obeying:
            for name, order in sorted(orders.items(), key=lambda pair: pair[1].number):
                if order.number <= self._obeyed.get(name, 0):
                    continue
                self._obeyed[name] = order.number
                try:
                    if order.load:
                        await self._repository.load(name, order.path)
                    else:
                        await self._repository.unload(name)
                except UnknownModelError as error:
                    if order.load:
                        failures[name] = error
                except AnynpuError as error:
                    log.error("model %s cannot be loaded: %s", name, error.one_line)
                    failures[name] = error
        return failures

    async def report(self, orders: Orders) -> BoardReport:
        """How the board is, after it has caught up."""
        await self.obey(orders)
        reports = []
        for model in self._repository.models():
            counts = replace(model.counts, latencies=deque())
            reports.append(
                ModelReport(
                    model.name,
                    model.version,
                    model.platform,
                    model.file_name,
                    model.batch,
                    model.inputs,
                    model.outputs,
                    model.details,
                    counts,
                    model.figures(),
                )
            )
        index = tuple(self._repository.index())
        return BoardReport(self.identity, self.name, os.getpid(), tuple(reports), index, self._repository.problems())

    def check_health(self) -> None:
        """Raise if the board should be restarted: a session has ended on its own, or no core comes back any more."""
        models = self._repository.models()
        for model in models:
            if isinstance(model, ServedModel) and model.session.closed:
                raise DeviceUnavailable(
                    f"the session of model '{model.name}' on {self.name} has ended", hint="the board restarts"
                )
        cores = max((model.details.cores for model in models), default=1)
        if self._hung >= max(1, cores):
            raise DeviceUnavailable(
                f"the last {self._hung} runs on {self.name} did not come back", hint="if this repeats, reset the NPU or the board"
            )

    async def close(self) -> None:
        """Finish what was accepted and end all sessions."""
        await self._repository.close()
