"""The gateway of a cluster: the plain server, whose models are on the boards.

It runs in the process that starts it, on the head of the Ray cluster, and holds nothing that could be lost: a second or a next
gateway finds the same boards. One thread owns the event loop, as in :mod:`anynpu.serve.server`; what waits for Ray runs in others.

Shutdown: as the plain server, then the applications on the boards are taken away, if they were started here.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..options import ServeOptions
from ..server import Server
from ..service import Service
from .engine import Engine
from .front import Front
from .messages import PoolPlan
from .ray_platform import RayPlatform


class ClusterServer(Server):
    """Serves models on the boards of a Ray cluster.

    :param plans: which boards serve which models
    :param options: as for a plain server; those about models hold on every board
    :param address: of the Ray cluster: ``auto`` for the one of this machine, or host and port
    :param attach: be a gateway for applications that are deployed already, and leave them as they are
    :param exits: as for a plain server; Ray has some seconds more to take the applications away
    """

    exit_grace = 15.0

    def __init__(
        self,
        plans: Sequence[PoolPlan],
        options: ServeOptions | None = None,
        *,
        address: str = "auto",
        attach: bool = False,
        exits: bool = False,
    ) -> None:
        super().__init__([], options, exits=exits)
        self._engine = Engine(RayPlatform(self.options, address), plans, attach)

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

    def _check_loaded(self, service: Service) -> None:
        """Boards load models in their own time."""

    def _make_service(self) -> Service:
        return Service((), self.options, Front(self._engine, self.options))
