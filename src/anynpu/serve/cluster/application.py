"""The Ray Serve application: one replica on each board, which owns all cores of the board.

``serve deploy`` takes :func:`build` as well::

    applications:
      - name: anynpu-boards
        route_prefix: null
        import_path: anynpu.serve.cluster.application:build
        args: {models: [/srv/models], boards: 3}

and ``anynpu cluster --attach`` is the gateway of what it deployed.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from ...errors import AnynpuError, OptionError
from ..model import InferAnswer, InferRequest
from ..options import ServeOptions
from .board import Board
from .messages import EVERY_BOARD, TRANSPORT, BoardRefusal, BoardReport, Orders, PoolPlan

MAX_REQUESTS = 10_000
"""Requests that Ray lets into a replica: far more than its admission does, which decides."""

HEALTH_PERIOD = 2.0
HEALTH_TIMEOUT = 15.0


class BoardReplica:
    """What Ray runs on a board."""

    def __init__(self, models: tuple[str, ...], options: ServeOptions, generation: int = 0) -> None:
        self._board = Board(models, options, serve.get_replica_context().replica_id.unique_id)

    async def reconfigure(self, config: dict[str, Any]) -> None:
        """Called by Ray before the first request: load all models."""
        await self._board.start()

    async def infer(self, request: InferRequest, avoid: str = "") -> InferAnswer | BoardRefusal:
        """Run a request, or state why not."""
        return await self._board.infer(request)

    async def report(self, orders: Orders) -> BoardReport:
        """How the board is."""
        return await self._board.report(orders)

    async def obey(self, orders: Orders) -> dict[str, AnynpuError]:
        """Catch up with what clients said about models."""
        return await self._board.obey(orders)

    async def check_health(self) -> None:
        """Called by Ray every other second; what raises is restarted."""
        self._board.check_health()

    async def __del__(self) -> None:
        """Called by Ray when what was accepted is finished."""
        await self._board.close()


def application(plan: PoolPlan, options: ServeOptions, boards: int, generation: int = 0) -> Any:
    """The application of one pool.

    :param boards: how many replicas
    :param generation: replicas of another one are replaced, one board after the other
    """
    deployment = serve.deployment(
        BoardReplica,
        name="board",
        num_replicas=boards,
        ray_actor_options={"num_cpus": 0, "resources": plan.resources, "runtime_env": {"env_vars": TRANSPORT}},
        max_ongoing_requests=MAX_REQUESTS,
        max_queued_requests=-1,
        user_config={},
        graceful_shutdown_timeout_s=options.drain_timeout,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_PERIOD,
        health_check_timeout_s=HEALTH_TIMEOUT,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        request_router_config=RequestRouterConfig(request_router_class="anynpu.serve.cluster.router.BoardRouter"),
    )
    # what belongs to the front stays there, its keys above all
    own = replace(options, host="127.0.0.1", certificate=None, private_key=None, api_keys=(), control_keys=(), insecure=False)
    return deployment.bind(plan.models, own, generation)


def build(arguments: dict[str, Any]) -> Any:
    """The application for ``serve deploy``: ``models``, ``boards``, ``pool``, and options of the server such as ``device``."""
    given = dict(arguments)
    models = given.pop("models", None)
    boards = given.pop("boards", None)
    name = given.pop("pool", EVERY_BOARD)
    known = {field.name for field in fields(ServeOptions)}
    unknown = sorted(set(given) - known)
    if not isinstance(models, list) or not models or not isinstance(boards, int) or unknown:
        raise OptionError(
            f"the arguments of the application do not fit: {', '.join(unknown) or 'models and boards are needed'}",
            hint="give models (a list), boards (a number), and if need be pool and options such as device and layout",
        )
    return application(PoolPlan(tuple(map(str, models)), name, boards), ServeOptions(**given), boards)
