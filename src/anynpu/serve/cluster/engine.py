"""What runs on the boards of a cluster: how many replicas each pool wants, their generation, and when they are ready.

Nothing here knows of Ray: the engine decides, and a :class:`Platform` does it.

All methods block, and are called in threads of their own; the lock makes them follow each other.

Shutdown: :meth:`Engine.stop` deletes the applications that :meth:`Engine.start` made, and the platform's serving if it was not
there before. The platform lets each replica finish what it has accepted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...errors import ServeError
from .messages import PoolPlan
from .routing import Boards

log = logging.getLogger("anynpu.serve")

START_TIMEOUT = 180.0
_LOOK_EVERY = 0.1


@dataclass(frozen=True)
class Deployment:
    """What one pool should look like.

    :ivar boards: how many replicas
    :ivar generation: replicas of another one are replaced, board by board
    """

    plan: PoolPlan
    boards: int
    generation: int


@dataclass(frozen=True)
class ApplicationState:
    """How the application of a pool is.

    :ivar running: replicas that take requests
    :ivar complete: whether it has as many as it should, all of the generation that it should
    :ivar failure: why it cannot start; empty if it can
    """

    running: int
    complete: bool
    failure: str = ""


class Platform(Protocol):
    """What carries the boards. All methods block; they raise ServeError when the platform has trouble of its own."""

    def connect(self) -> None:
        """Find the cluster."""

    def disconnect(self) -> None:
        """Leave the cluster as it is."""

    @property
    def address(self) -> str:
        """Where boards join the cluster."""

    def count(self, resource: str) -> int:
        """Boards with a resource."""

    def start_serving(self) -> bool:
        """Make the cluster ready for applications; whether it was not before."""

    def stop_serving(self) -> None:
        """Take all applications away, and what carries them."""

    def deploy(self, deployments: Sequence[Deployment]) -> None:
        """Begin to make applications as they should be."""

    def delete(self, application: str) -> None:
        """Take one application away."""

    def states(self) -> Mapping[str, ApplicationState]:
        """How the applications are, by name."""

    def boards(self, plan: PoolPlan) -> Boards:
        """The boards of a pool, whose calls find the application once it is there."""

    def attach(self, plan: PoolPlan) -> None:
        """Find an application that another owner has deployed."""


class Engine:
    """Keeps what runs on the boards as it was planned.

    :param attach: use applications that another owner has deployed, and leave them as they are
    :param clock: reports the time, in seconds; and *sleep* lets it pass
    :param wall: seconds since 1970, which all gateways share
    """

    def __init__(
        self,
        platform: Platform,
        plans: Sequence[PoolPlan],
        attach: bool = False,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.boards = [platform.boards(plan) for plan in plans]
        self._platform = platform
        self._plans = tuple(plans)
        self._attach = attach
        self._clock, self._sleep, self._wall = clock, sleep, wall
        self._lock = threading.Lock()
        self._wanted = [0] * len(plans)
        self._generation = 0
        self._connected = False
        self._own_serving = False
        self._deployed = False

    def start(self) -> None:
        """Connect and put a replica on every board; returns when each pool has one at least."""
        with self._lock:
            self._platform.connect()
            self._connected = True
            if self._attach:
                for plan in self._plans:
                    self._platform.attach(plan)
                return
            self._wanted = self._there()
            for plan, count in zip(self._plans, self._wanted, strict=True):
                if not count:
                    raise ServeError(
                        f"the cluster has no board for pool '{plan.name}'",
                        hint=f"on each board: ray start --address={self._platform.address} --resources='{_json(plan)}'",
                    )
            self._own_serving = self._platform.start_serving()
            self._deployed = True
            self._deploy()
            self._wait()

    def fit(self) -> None:
        """Make space for boards that have joined, in pools that take all. A board that has left keeps its place: it may come back."""
        with self._lock:
            if not self._deployed:
                return
            wanted = [max(pair) for pair in zip(self._there(), self._wanted, strict=True)]
            if wanted != self._wanted:
                log.info("boards: %s", ", ".join(f"{plan.name} {count}" for plan, count in zip(self._plans, wanted, strict=True)))
                self._wanted = wanted
                self._deploy()

    def update(self) -> None:
        """Replace what runs on the boards, board by board: each finishes what it has accepted, then restarts."""
        with self._lock:
            if not self._deployed:
                raise ServeError(
                    "what runs on the boards was not started here, and cannot be replaced from here",
                    hint="update it where it was deployed: serve deploy cluster.yaml",
                )
            self._generation = max(self._generation + 1, int(self._wall()))  # no gateway before this one has used it
            self._deploy()
            self._wait(complete=True)

    def stop(self) -> None:
        """End what was started here. May be called twice."""
        with self._lock:
            if not self._connected:
                return
            try:
                if self._own_serving:
                    self._platform.stop_serving()
                elif self._deployed:
                    for plan in self._plans:
                        self._platform.delete(plan.application)
            finally:
                self._connected = self._deployed = self._own_serving = False
                self._platform.disconnect()

    def _there(self) -> list[int]:
        return [plan.boards or self._platform.count(plan.resource) for plan in self._plans]

    def _deploy(self) -> None:
        pairs = zip(self._plans, self._wanted, strict=True)
        self._platform.deploy([Deployment(plan, count, self._generation) for plan, count in pairs])

    def _wait(self, complete: bool = False) -> None:
        """Until every pool has a board that is ready; with *complete*, all that it wants."""
        until = self._clock() + START_TIMEOUT
        while True:
            found = self._platform.states()
            states = [found[plan.application] for plan in self._plans if plan.application in found]
            failed = next((state for state in states if state.failure), None)
            if failed is not None:
                raise ServeError(f"the boards cannot start: {failed.failure}", hint="look at Ray's logs on the boards")
            if len(states) == len(self._plans) and all(state.complete if complete else state.running for state in states):
                return
            if self._clock() > until:
                missing = "not every board" if complete else "no board"
                raise ServeError(f"{missing} was ready within {START_TIMEOUT:g} s", hint="look at: serve status, ray status")
            self._sleep(_LOOK_EVERY)


def _json(plan: PoolPlan) -> str:
    return "{" + ", ".join(f'"{name}": {count:g}' for name, count in plan.resources.items()) + "}"
