"""The front of a cluster: the plain server, whose models are on the boards.

It runs in the process of whoever starts it, on the head of the Ray cluster, and holds nothing that could be lost: a second or a next
front finds the same boards. One thread owns the event loop, as in :mod:`anynpu.serve.server`; what waits for Ray runs in others.

Ending: as the plain server ends, then the applications on the boards are taken away, if they were started here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Sequence

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from ...errors import AnynpuError
from ..options import ServeOptions
from ..server import Server
from ..service import Service
from .engine import Engine
from .models import ClusterModels
from .plan import PoolPlan
from .routing import Pool

__all__ = ["ClusterServer"]

log = logging.getLogger("anynpu.serve")

_FIT_EVERY = 5.0

_TROUBLE = (AnynpuError, RayError, RayServeException, RuntimeError, OSError)
"""What Ray's head may answer with while it has trouble of its own; the front goes on with the boards that it knows."""


class ClusterServer(Server):
    """Serves models on the boards of a Ray cluster.

    :param plans: which boards serve which models
    :param options: as for a plain server; those about models hold on every board
    :param address: of the Ray cluster: ``auto`` for the one of this machine, or host and port
    :param attach: be a front for applications that are deployed already, and leave them as they are
    """

    def __init__(
        self, plans: Sequence[PoolPlan], options: ServeOptions | None = None, *, address: str = "auto", attach: bool = False
    ) -> None:
        super().__init__([], options)
        self._engine = Engine(plans, self.options, address, attach)

    def run(self) -> None:
        """Serve until a signal or :meth:`stop`. SIGHUP replaces what runs on the boards, board by board."""
        try:
            super().run()
        finally:
            self._engine.stop()

    def update(self) -> None:
        """Replace what runs on the boards, board by board, from the model files as they are now. From any thread but the server's."""
        self._engine.update()

    def _run_thread(self) -> None:
        try:
            super()._run_thread()
        finally:
            self._engine.stop()

    def _make_service(self) -> Service:
        pools = [Pool(boards) for boards in self._engine.boards]
        return Service((), self.options, _EngineModels(pools, self.options, self._engine))


class _EngineModels(ClusterModels):
    """The models of a cluster, together with the engine that they need."""

    def __init__(self, pools: Sequence[Pool], options: ServeOptions, engine: Engine) -> None:
        super().__init__(pools, options)
        self._engine = engine
        self._fitting: asyncio.Task[None] | None = None

    async def load_all(self) -> None:
        """Put a replica on every board, and ask them what they have."""
        await asyncio.to_thread(self._engine.start)
        await super().load_all()
        self._fitting = asyncio.ensure_future(self._fit())
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, self._update))

    async def close(self) -> None:
        """Stop asking, and take the replicas away."""
        if self._fitting is not None:
            self._fitting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._fitting
        await super().close()
        await asyncio.to_thread(self._engine.stop)

    def _update(self) -> None:
        log.info("replacing what runs on the boards")
        try:
            self._engine.update()
        except _TROUBLE as error:
            log.error("the boards were not all replaced: %s", error)
        else:
            log.info("all boards are replaced")

    async def _fit(self) -> None:
        while True:
            await asyncio.sleep(_FIT_EVERY)
            try:
                await asyncio.to_thread(self._engine.fit)
            except _TROUBLE as error:
                log.warning("the number of boards cannot be changed: %s", error)
