"""Boards without Ray and without sessions: the real :class:`Board` and the real balance, on models that take as long as they are set to.

A :class:`FakePool` holds the boards, as Ray does for all gateways; each gateway reaches them through a :class:`FakeHandle` of its own, and
counts what it has sent itself. Everything happens in virtual time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anynpu.errors import BoardLostError, DeviceTimeout, ModelUnavailableError, UnknownModelError
from anynpu.serve import ServeOptions
from anynpu.serve.admission import Admission, Announcement
from anynpu.serve.cluster.board import Board
from anynpu.serve.cluster.front import ClusterModels
from anynpu.serve.cluster.messages import BoardRefusal
from anynpu.serve.cluster.routing import BoardPool, LeastWork
from anynpu.serve.interfaces import IndexEntry
from anynpu.serve.model import CoreFigures, InferAnswer, InferRequest, ModelCounts, ModelFigures, TensorDescription
from anynpu.session.protocol.messages import ModelDetails

RUN = 1.0
"""Seconds of an inference."""

TENSOR = TensorDescription("x", "FP32", (1, 4))


class FakeModel:
    """Answers with the contents of its file."""

    version = "1"
    platform = "anynpu_fake"
    batch = 0
    inputs = outputs = (TENSOR,)

    def __init__(self, name: str, contents: float, options: ServeOptions, cores: int, seconds: float) -> None:
        self.name = name
        self.contents = contents
        self.file_name = f"{name}.rknn"
        self.details = ModelDetails("fake NPU", "Fake", "fake", cores, "nchw", (), (), (), {})
        self.counts = ModelCounts()
        self.seconds = seconds
        self.timeouts: list[float | None] = []
        max_wait = None if options.max_wait_ms is None else options.max_wait_ms / 1000
        self.admission = Admission(cores, options.max_queue, max_wait, asyncio.get_running_loop().time)
        self.admission.service = seconds
        self._cores = asyncio.Semaphore(cores)
        self._number = cores
        self.running = 0
        self.failure: Exception | None = None  # of every run

    def figures(self) -> ModelFigures:
        cores = tuple(CoreFigures(str(number), self.counts.executions, 0.0) for number in range(self._number))
        return ModelFigures("fake NPU", self.admission.waiting, self.running, self.admission.shed, self.seconds * 1000, cores)

    def hold(self) -> None: ...

    def let_go(self) -> None: ...

    def announce(self) -> Announcement:
        return self.admission.announce(self.name)

    async def infer(self, request: InferRequest) -> InferAnswer:
        self.timeouts.append(request.timeout)
        ticket = self.admission.enter(self.name, 1, request.timeout)
        try:
            await asyncio.wait_for(self._run(), request.timeout)
        except asyncio.CancelledError:
            self.counts.cancelled += 1
            raise
        except (asyncio.TimeoutError, TimeoutError):
            raise DeviceTimeout("the board was too slow") from None
        finally:
            self.admission.leave(ticket)
        if self.failure is not None:
            raise self.failure
        return InferAnswer(self.name, self.version, request.id, {"y": np.float32(self.contents)})

    async def _run(self) -> None:
        async with self._cores:
            self.running += 1
            try:
                await asyncio.sleep(self.seconds)
            finally:
                self.running -= 1
            self.counts.executions += 1


class FakeRepository:
    """The models of one board; *files* are on the disk that all boards see."""

    def __init__(self, files: dict[str, float], options: ServeOptions, cores: int, seconds: float) -> None:
        self.files = files
        self.cores, self.seconds = cores, seconds
        self.ready: dict[str, FakeModel] = {}
        self.loads: list[str] = []
        self.closed = False
        self._options = options

    async def load_all(self) -> None:
        for name in self.files:
            await self.load(name)

    async def refresh(self) -> None: ...

    async def close(self) -> None:
        self.closed = True

    def models(self) -> list[Any]:
        return list(self.ready.values())

    def get(self, name: str, version: str = "") -> FakeModel:
        if self.closed or name not in self.ready:
            raise ModelUnavailableError(f"model '{name}' is not loaded")
        return self.ready[name]

    def versions(self, name: str) -> list[str]:
        return ["1"] if name in self.ready else []

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        state = {True: "READY", False: "UNAVAILABLE"}
        return [IndexEntry(name, "1", state[name in self.ready], "unloaded") for name in sorted({*self.files, *self.ready})]

    def problems(self) -> bool:
        return False

    async def load(self, name: str, path: str | None = None) -> None:
        self.loads.append(name)
        if name not in self.files:
            raise UnknownModelError(f"there is no model '{name}' to load")
        self.ready[name] = FakeModel(name, self.files[name], self._options, self.cores, self.seconds)

    async def unload(self, name: str) -> None:
        if self.ready.pop(name, None) is None:
            raise UnknownModelError(f"there is no model '{name}' to unload")


@dataclass(eq=False)
class Place:
    """A board that is there, and what runs on it."""

    board: Board
    repository: FakeRepository
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    lost: bool = False
    silent: bool = False  # does not answer questions

    @property
    def name(self) -> str:
        return self.board.name

    @property
    def identity(self) -> str:
        return self.board.identity

    def model(self, name: str = "net") -> FakeModel:
        return self.repository.ready[name]


class FakePool:
    """Boards with the same files."""

    def __init__(self, name: str, files: dict[str, float], *, cores: int = 1, seconds: float = RUN, **options: Any) -> None:
        self.name = name
        self.files = files
        self.places: dict[str, Place] = {}
        self.options = ServeOptions(**options)
        self._cores, self._seconds = cores, seconds
        self._starts = 0
        self.arrived = asyncio.Event()

    async def join(self, *names: str) -> None:
        """Boards come, or come back."""
        for name in names:
            self._starts += 1
            repository = FakeRepository(self.files, self.options, self._cores, self._seconds)
            board = Board((), self.options, f"{name}#{self._starts}", repository)
            board.name = name
            await board.start()
            self.places[name] = Place(board, repository)
            self.arrived.set()

    def lose(self, name: str) -> None:
        """A board loses its power."""
        place = self._take_away(name)
        place.lost = True
        for task in place.tasks:
            task.cancel()

    async def replace(self, name: str) -> None:
        """What a platform does for one board when an application changes: no new requests, finish the old ones, start again."""
        place = self._take_away(name)
        while place.tasks:
            await asyncio.wait(set(place.tasks))
        await place.board.close()
        await asyncio.sleep(3.0)  # processes take their time
        await self.join(name)

    def _take_away(self, name: str) -> Place:
        place = self.places.pop(name)
        if not self.places:
            self.arrived.clear()
        return place

    def runs(self, model: str = "net") -> dict[str, int]:
        """What each board has run."""
        return {name: place.model(model).counts.executions for name, place in self.places.items()}


class FakeHandle:
    """How one gateway reaches a pool. Boards with equal work are taken in the order in which they joined."""

    def __init__(self, pool: FakePool) -> None:
        self.name = pool.name
        self.pool = pool
        self.work: LeastWork[str] = LeastWork(chance=lambda: 0.0)

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | BoardRefusal:
        while not self.pool.places:
            await self.pool.arrived.wait()
        place = self.work.ranked(list(self.pool.places.values()), lambda each: each.identity, avoid)[0]
        self.work.sent(place.identity)
        task = asyncio.ensure_future(place.board.infer(request))
        place.tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if place.lost:
                raise BoardLostError(f"board {place.name} is gone", hint="come again") from None
            raise
        finally:
            self.work.ended(place.identity)
            place.tasks.discard(task)

    async def tell(self, method: str, *arguments: Any, timeout: float) -> list[Any]:
        places = list(self.pool.places.values())
        if any(place.silent for place in places):
            await asyncio.sleep(timeout)
            raise DeviceTimeout(f"a board did not answer within {timeout:g} s")
        return [await getattr(place.board, method)(*arguments) for place in places]


async def pool_of(*names: str, files: dict[str, float] | None = None, name: str = "boards", **given: Any) -> FakePool:
    """A pool with boards that have the model ``net``, which answers 2, unless *files* states otherwise."""
    pool = FakePool(name, {"net": 2.0} if files is None else files, **given)
    await pool.join(*names)
    return pool


async def front_of(*pools: FakePool, wall: int = 0, **options: Any) -> ClusterModels:
    """A gateway that has asked its boards what they have. It asks again when the test calls :func:`later`, or after ``load_all``."""
    made = [BoardPool(FakeHandle(pool)) for pool in pools]
    models = ClusterModels(made, ServeOptions(**{"max_wait_ms": 1e6, **options}), lambda: wall)
    await models.refresh()
    return models


async def later(models: ClusterModels) -> None:
    """The gateway asks its boards again."""
    await asyncio.sleep(1.0)
    await models.refresh()


def ask(model: str = "net", timeout: float | None = None) -> InferRequest:
    """A request."""
    return InferRequest(model, "", "7", {"x": np.zeros((1, 4), np.float32)}, [], timeout=timeout)


async def answer(models: ClusterModels, model: str = "net", timeout: float | None = None) -> float:
    """What a gateway answers to one request."""
    return float((await models.get(model).infer(ask(model, timeout))).outputs["y"])


def submit(models: ClusterModels, count: int, model: str = "net", timeout: float | None = None) -> list[asyncio.Task[float]]:
    """Requests that come at the same moment."""
    return [asyncio.ensure_future(answer(models, model, timeout)) for _ in range(count)]


async def settle() -> None:
    """Let everything happen that needs no time."""
    await asyncio.sleep(0.001)
