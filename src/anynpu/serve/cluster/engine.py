"""Ray, as the front uses it: the connection, the applications of the pools, and calls to their boards.

Calls to boards belong to the event loop of the front. Everything that waits for Ray otherwise (:meth:`Engine.start`, :meth:`Engine.fit`,
:meth:`Engine.update`, :meth:`Engine.stop`) blocks, and is called in other threads, one at a time; the lock sees to that.

Ending: :meth:`Engine.stop` deletes the applications that :meth:`Engine.start` made, and Ray Serve if it was not there before. Ray lets each
replica finish what it has accepted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from ...errors import BoardLostError, DeviceTimeout, ServeError
from ..model import InferAnswer, InferRequest
from ..options import ServeOptions
from .application import application
from .messages import Refusal
from .plan import PoolPlan

__all__ = ["Engine", "RayBoards", "quieten"]

log = logging.getLogger("anynpu.serve")

START_TIMEOUT = 180.0
_CONTROLLER = "SERVE_CONTROLLER_ACTOR"


def quieten() -> None:
    """Ray without its statistics of usage, and without its chatter."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    # Ray knows another maker's NPU by the name of our resource, and looks for its library
    logging.getLogger("ray._private.accelerators.npu").setLevel(logging.CRITICAL)


class RayBoards:
    """The boards of a pool behind the handle of their deployment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.handle: Any = None

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | Refusal:
        """Run a request on the board with the least work."""
        response = self.handle.infer.remote(request, avoid=avoid)
        finished = False
        try:
            reply: InferAnswer | Refusal = await response
            finished = True
            return reply
        except RayTaskError:
            finished = True
            raise  # a mistake on the board: the log of the front says which
        except (RayError, RayServeException) as error:
            finished = True
            raise BoardLostError(
                f"the board that ran the request is gone ({type(error).__name__})", hint="come again: the others go on"
            ) from error
        finally:
            if not finished:
                response.cancel()

    async def tell(self, method: str, *arguments: Any, timeout: float) -> list[Any]:
        """Call a method of every board; gives the answers of those that gave one."""
        try:
            answers = await self.handle.broadcast(method, *arguments).results_async(timeout_s=timeout, return_exceptions=True)
        except TimeoutError:
            raise DeviceTimeout(f"a board of pool {self.name} did not answer within {timeout:g} s", hint="is it alive?") from None
        except (RayError, RayServeException):
            return []  # there is none
        for answer in answers:
            if isinstance(answer, RayTaskError):
                log.error("a board of pool %s failed: %s", self.name, answer)
        return [answer for answer in answers if not isinstance(answer, BaseException)]


class Engine:
    """The Ray side of a cluster.

    :param address: of a Ray cluster that this machine is part of
    :param attach: use applications that somebody else has deployed, and leave them as they are
    """

    def __init__(self, plans: Sequence[PoolPlan], options: ServeOptions, address: str, attach: bool = False) -> None:
        self.boards = [RayBoards(plan.name) for plan in plans]
        self._plans = tuple(plans)
        self._options = options
        self._address = address
        self._attach = attach
        self._lock = threading.Lock()
        self._wanted = [0] * len(plans)
        self._generation = 0
        self._connected = False
        self._own_serve = False
        self._deployed = False

    def start(self) -> None:
        """Connect to Ray and put a replica on every board; returns when each pool has one at least."""
        quieten()
        with self._lock:
            self._connect()
            if self._attach:
                for boards, plan in zip(self.boards, self._plans, strict=True):
                    boards.handle = self._found(plan)
                return
            self._wanted = [plan.boards or self._there(plan) for plan in self._plans]
            for plan, count in zip(self._plans, self._wanted, strict=True):
                if not count:
                    raise ServeError(
                        f"the cluster has no board for pool '{plan.name}'",
                        hint=f"on each board: ray start --address={ray.get_runtime_context().gcs_address} --resources='{_json(plan)}'",
                    )
            if not _serve_runs():
                self._own_serve = True
                serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING", "enable_access_log": False})
                quieten()
            self._deployed = True
            self._deploy()
            self._wait()

    def fit(self) -> None:
        """Make room for boards that have joined, in pools that take all."""
        with self._lock:
            if not self._deployed:
                return
            there = [plan.boards or self._there(plan) for plan in self._plans]
            wanted = [max(pair) for pair in zip(there, self._wanted, strict=True)]
            if wanted != self._wanted:
                log.info("boards: %s", ", ".join(f"{plan.name} {count}" for plan, count in zip(self._plans, wanted, strict=True)))
                self._wanted = wanted
                self._deploy()

    def update(self) -> None:
        """Replace what runs on the boards, board by board: each finishes what it has accepted, then starts anew."""
        with self._lock:
            self._generation = max(self._generation + 1, int(time.time()))  # no front before this one has used it
            self._deploy()
            self._wait(whole=True)

    def stop(self) -> None:
        """End what was started here."""
        with self._lock:
            if not self._connected:
                return
            try:
                if self._own_serve:
                    serve.shutdown()
                elif self._deployed:
                    for plan in self._plans:
                        serve.delete(plan.application)
            finally:
                self._connected = self._deployed = False
                ray.shutdown()

    def _connect(self) -> None:
        host = self._address.rpartition(":")[0]
        # a driver on a loopback address must say so, or Ray takes the address of the network
        given = {"_node_ip_address": host} if host.startswith("127.") else {}
        try:
            ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, **given)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ServeError(
                f"there is no Ray cluster at {self._address}: {error}",
                hint="start one (ray start --head), or try virtual boards: --virtual 3",
            ) from None
        self._connected = True

    def _found(self, plan: PoolPlan) -> Any:
        try:
            return serve.get_app_handle(plan.application)
        except RayServeException as error:
            raise ServeError(
                f"the application {plan.application} is not there: {error}", hint="deploy it first: serve deploy cluster.yaml"
            ) from None

    def _there(self, plan: PoolPlan) -> int:
        return int(ray.cluster_resources().get(plan.resource, 0))

    def _deploy(self) -> None:
        targets = [
            serve.RunTarget(application(plan, self._options, count, self._generation), plan.application, None)
            for plan, count in zip(self._plans, self._wanted, strict=True)
        ]
        handles = serve.run_many(targets, wait_for_applications_running=False)
        for boards, handle in zip(self.boards, handles, strict=True):
            if boards.handle is None:
                boards.handle = handle

    def _wait(self, whole: bool = False) -> None:
        """Until every pool has a board that is ready; with *whole*, all that it wants."""
        until = time.monotonic() + START_TIMEOUT
        while True:
            found = serve.status().applications
            states = [found[plan.application] for plan in self._plans if plan.application in found]
            failed = next((state for state in states if state.status == "DEPLOY_FAILED"), None)
            if failed is not None:
                raise ServeError(f"the boards cannot start: {failed.message}", hint="look at Ray's logs on the boards")
            if len(states) == len(self._plans) and all(
                state.status == "RUNNING" if whole else _running(state) for state in states
            ):
                return
            if time.monotonic() > until:
                raise ServeError(f"no board was ready within {START_TIMEOUT:g} s", hint="look at: serve status, ray status")
            time.sleep(0.1)


def _running(state: Any) -> bool:
    return any(deployment.replica_states.get("RUNNING", 0) for deployment in state.deployments.values())


def _serve_runs() -> bool:
    return any(actor["name"] == _CONTROLLER for actor in ray.util.list_named_actors(all_namespaces=True))


def _json(plan: PoolPlan) -> str:
    return "{" + ", ".join(f'"{name}": {count:g}' for name, count in plan.resources.items()) + "}"
