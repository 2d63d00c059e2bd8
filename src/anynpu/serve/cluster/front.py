"""The models of a front together with the engine that keeps its boards: started with it, fitted while it serves, ended with it.

Belongs to the event loop of the front. The engine blocks, so its methods run in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable

from ...errors import AnynpuError
from ..options import ServeOptions
from .engine import Engine
from .models import ClusterModels
from .routing import BoardPool

__all__ = ["Front"]

log = logging.getLogger("anynpu.serve")

FIT_EVERY = 5.0
"""Seconds after which the front looks again whether boards have joined."""

Blocking = Callable[[Callable[[], None]], Awaitable[None]]


class Front(ClusterModels):
    """The models of a cluster, which puts them on its boards itself.

    :param blocking: runs what blocks
    :param signals: whether SIGHUP replaces the replicas; in the main thread only
    """

    def __init__(
        self, engine: Engine, options: ServeOptions, blocking: Blocking = asyncio.to_thread, *, signals: bool = True
    ) -> None:
        super().__init__([BoardPool(boards) for boards in engine.boards], options)
        self._engine = engine
        self._blocking = blocking
        self._signals = signals
        self._fitting: asyncio.Task[None] | None = None

    async def load_all(self) -> None:
        """Put a replica on every board, and ask them what they have."""
        await self._blocking(self._engine.start)
        await super().load_all()
        self._fitting = asyncio.ensure_future(self._fit())
        if self._signals and threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, self.replace))

    async def close(self) -> None:
        """Stop asking, and take the replicas away."""
        if self._fitting is not None:
            self._fitting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._fitting
        await super().close()
        await self._blocking(self._engine.stop)

    def replace(self) -> None:
        """Replace what runs on the boards, board by board; the log says how it went. Blocks."""
        log.info("replacing what runs on the boards")
        try:
            self._engine.update()
        except AnynpuError as error:
            log.error("the boards were not all replaced: %s", error)
        else:
            log.info("all boards are replaced")

    async def _fit(self) -> None:
        while True:
            await asyncio.sleep(FIT_EVERY)
            try:
                await self._blocking(self._engine.fit)
            except AnynpuError as error:  # the front goes on with the boards that it knows
                log.warning("the number of boards cannot be changed: %s", error)
