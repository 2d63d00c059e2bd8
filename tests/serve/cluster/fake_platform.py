"""A platform without Ray: nodes with resources, on which applications start as time passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from anynpu.errors import ServeError
from anynpu.serve.cluster.engine import ApplicationState, Deployment
from anynpu.serve.cluster.messages import PoolPlan
from anynpu.serve.cluster.routing import Boards

from .fake_boards import FakeHandle, FakePool


class FakePlatform:
    """Starts, or replaces, one replica per second.

    :ivar replicas: the generations of what runs, by application
    :ivar steps: all that was asked of it, in order
    """

    def __init__(self, **nodes: int) -> None:
        self.nodes = Counter(nodes)
        self.replicas: dict[str, list[int]] = {}
        self.deployed: dict[str, Deployment] = {}
        self.steps: list[str] = []
        self.now = 1000.0
        self.serving = False
        self.connected = False
        self.failure = ""
        self.trouble = False
        self.pools: dict[str, FakePool] = {}
        self.fewest = 10**6  # replicas at any moment of a replacement

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """A second later one replica is as it should be."""
        before, self.now = int(self.now), self.now + seconds
        if int(self.now) > before:
            self.step()

    def step(self) -> None:
        for name, wanted in self.deployed.items():
            running = self.replicas.setdefault(name, [])
            room = min(wanted.boards, self.nodes[wanted.plan.resource])
            old = next((number for number, generation in enumerate(running) if generation != wanted.generation), None)
            if old is not None:
                del running[old]
                self.fewest = min(self.fewest, len(running))
                running.append(wanted.generation)
            elif len(running) < room:
                running.append(wanted.generation)

    def connect(self) -> None:
        self._note("connect")
        self.connected = True

    def disconnect(self) -> None:
        self._note("disconnect")
        self.connected = False

    @property
    def address(self) -> str:
        return "127.0.0.1:6379"

    def count(self, resource: str) -> int:
        if self.trouble:
            raise ServeError("the head does not answer")
        return self.nodes[resource]

    def start_serving(self) -> bool:
        self._note("start serving")
        fresh, self.serving = not self.serving, True
        return fresh

    def stop_serving(self) -> None:
        self._note("stop serving")
        self.serving = False
        self.replicas.clear()
        self.deployed.clear()

    def deploy(self, deployments: Sequence[Deployment]) -> None:
        assert self.connected
        assert self.serving
        for each in deployments:
            self._note(f"deploy {each.plan.name} {each.boards}")
            self.deployed[each.plan.application] = each

    def delete(self, application: str) -> None:
        self._note(f"delete {application}")
        self.deployed.pop(application, None)
        self.replicas.pop(application, None)

    def states(self) -> Mapping[str, ApplicationState]:
        return {
            name: ApplicationState(len(running), running == [wanted.generation] * wanted.boards, self.failure)
            for name, wanted in self.deployed.items()
            for running in [self.replicas.get(name, [])]
        }

    def boards(self, plan: PoolPlan) -> Boards:
        return FakeHandle(self.pools[plan.name]) if plan.name in self.pools else Absent(plan.name)

    def attach(self, plan: PoolPlan) -> None:
        self._note(f"attach {plan.name}")
        if plan.application not in self.deployed:
            raise ServeError(f"the application {plan.application} is not there", hint="deploy it first")

    def _note(self, step: str) -> None:
        self.steps.append(step)


class Absent:
    """The boards of a pool that nobody asks."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def infer(self, request: object, avoid: str) -> object:  # type: ignore[override]
        raise AssertionError("nobody asks these boards")

    async def tell(self, method: str, *arguments: object, timeout: float) -> list[object]:
        raise AssertionError("nobody asks these boards")
