"""Ray as the platform of a cluster: the connection, the applications of the pools, and calls to their boards.

Calls to boards (:class:`RayBoards`) belong to the event loop of the gateway. What :class:`RayPlatform` does blocks, and the engine calls it
from one thread at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from ...errors import BoardLostError, DeviceTimeout, ServeError
from ..model import InferAnswer, InferRequest
from ..options import ServeOptions
from .application import application
from .engine import ApplicationState, Deployment
from .messages import BoardRefusal, PoolPlan

log = logging.getLogger("anynpu.serve")

_CONTROLLER = "SERVE_CONTROLLER_ACTOR"


def quieten() -> None:
    """Ray without its statistics of usage, and without its chatter."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    # Ray knows another maker's NPU by the name of our resource, and looks for its library
    logging.getLogger("ray._private.accelerators.npu").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _trouble(what: str) -> Iterator[None]:
    """What Ray's head answers with while it has trouble of its own, as an error of ours."""
    try:
        yield
    except (RayError, RayServeException, RuntimeError, OSError) as error:
        raise ServeError(f"Ray cannot {what}: {error}", hint="look at: ray status, serve status") from error


class RayBoards:
    """The boards of a pool behind the handle of their deployment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.handle: Any = None

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | BoardRefusal:
        """Run a request on the board with the least work."""
        response = self.handle.infer.remote(request, avoid=avoid)
        finished = False
        try:
            reply: InferAnswer | BoardRefusal = await response
            finished = True
            return reply
        except RayTaskError:
            finished = True
            raise  # a mistake on the board: the log of the gateway states which
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


class RayPlatform:
    """A Ray cluster that this machine is part of.

    :param options: those about models, for every board
    :param address: of the cluster: ``auto`` for the one of this machine, or host and port
    """

    def __init__(self, options: ServeOptions, address: str) -> None:
        self._options = options
        self._address = address
        self._boards: dict[str, RayBoards] = {}

    def connect(self) -> None:
        """Join the cluster as a driver."""
        quieten()
        host = self._address.rpartition(":")[0]
        # a driver on a loopback address must report it, or Ray takes the address of the network
        given = {"_node_ip_address": host} if host.startswith("127.") else {}
        try:
            ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, **given)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ServeError(
                f"there is no Ray cluster at {self._address}: {error}",
                hint="start one (ray start --head), or try virtual boards: --virtual 3",
            ) from None

    def disconnect(self) -> None:
        """Leave the cluster as it is."""
        ray.shutdown()

    @property
    def address(self) -> str:
        """Where boards join the cluster."""
        return str(ray.get_runtime_context().gcs_address)

    def count(self, resource: str) -> int:
        """Boards with a resource."""
        with _trouble("count the boards"):
            return int(ray.cluster_resources().get(resource, 0))

    def start_serving(self) -> bool:
        """Start Ray Serve; whether it did not run before."""
        with _trouble("start Ray Serve"):
            if any(actor["name"] == _CONTROLLER for actor in ray.util.list_named_actors(all_namespaces=True)):
                return False
            serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING", "enable_access_log": False})
        quieten()
        return True

    def stop_serving(self) -> None:
        """End Ray Serve with all applications."""
        serve.shutdown()

    def deploy(self, deployments: Sequence[Deployment]) -> None:
        """Begin to make applications as they should be."""
        targets = [
            serve.RunTarget(application(each.plan, self._options, each.boards, each.generation), each.plan.application, None)
            for each in deployments
        ]
        with _trouble("deploy to the boards"):
            handles = serve.run_many(targets, wait_for_applications_running=False)
        for each, handle in zip(deployments, handles, strict=True):
            boards = self._boards[each.plan.name]
            if boards.handle is None:
                boards.handle = handle

    def delete(self, application: str) -> None:
        """Take one application away."""
        serve.delete(application)

    def states(self) -> Mapping[str, ApplicationState]:
        """How the applications are, by name."""
        with _trouble("report the state of the boards"):
            found = serve.status().applications
        return {
            name: ApplicationState(
                sum(deployment.replica_states.get("RUNNING", 0) for deployment in state.deployments.values()),
                state.status == "RUNNING",
                state.message or "no reason is given" if state.status == "DEPLOY_FAILED" else "",
            )
            for name, state in found.items()
        }

    def boards(self, plan: PoolPlan) -> RayBoards:
        """The boards of a pool, whose calls find the application once it is there."""
        return self._boards.setdefault(plan.name, RayBoards(plan.name))

    def attach(self, plan: PoolPlan) -> None:
        """Find an application that another owner has deployed."""
        try:
            self._boards[plan.name].handle = serve.get_app_handle(plan.application)
        except RayServeException as error:
            raise ServeError(
                f"the application {plan.application} is not there: {error}", hint="deploy it first: serve deploy cluster.yaml"
            ) from None
