"""The models of a gateway together with the engine that keeps its boards: started with it, fitted while it serves, ended with it.

Belongs to the event loop of the gateway. The engine blocks, so its methods run in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from ...errors import AnynpuError, DeviceTimeout, ModelUnavailableError, OverloadedError, UnknownModelError
from ...session.protocol.messages import ModelDetails
from ..admission import Admission, Announcement
from ..interfaces import IndexEntry, Model, pick_version, unknown_model
from ..model import CoreFigures, InferAnswer, InferRequest, ModelCounts, ModelFigures, TensorDescription
from ..options import ServeOptions
from .engine import Engine
from .messages import BoardReport, ModelReport, Order, Orders
from .routing import BoardPool, no_board, route

# The models of a cluster, as the protocols see them: each runs on all boards of the pools that have it.
#
# What the boards have and have done is asked for every second, and whenever metrics are read. Requests are counted here, runs on
# the boards; of a board that is gone the last known counts stay in the sums.
#
# Belongs to the event loop of the gateway: no lock but one, so that questions to the boards follow each other.


_LOOK_EVERY = 1.0
_FRESH = 0.05
"""Seconds for which numbers are fresh enough."""

_REPORT_TIMEOUT = 5.0
_LOAD_TIMEOUT = 300.0

_RUN_COUNTS = ("inferences", "executions", "wait_ns", "inputs_ns", "run_ns", "outputs_ns")


class RemoteModel:
    """One version of a model, on the boards of its pools."""

    def __init__(self, report: ModelReport, options: ServeOptions) -> None:
        self.name = report.name
        self.version = report.version
        self.described = report
        self.pools: list[BoardPool] = []
        self.reports: dict[str, tuple[str, ModelReport]] = {}  # by board: its name, and the model there
        self._options = options
        self._own = ModelCounts()
        self._gone = ModelCounts()
        max_wait = None if options.max_wait_ms is None else options.max_wait_ms / 1000
        self._clock = asyncio.get_running_loop().time
        self._admission = Admission(1, options.max_queue, max_wait, self._clock)
        self._shed = 0  # by the boards

    @property
    def platform(self) -> str:
        """What the protocol calls the platform: the chip."""
        return self.described.platform

    @property
    def file_name(self) -> str:
        """Of its file, without the folder."""
        return self.described.file_name

    @property
    def batch(self) -> int:
        """Samples of one run; 0 for a model without batches."""
        return self.described.batch

    @property
    def inputs(self) -> tuple[TensorDescription, ...]:
        """Its inputs."""
        return self.described.inputs

    @property
    def outputs(self) -> tuple[TensorDescription, ...]:
        """Its outputs."""
        return self.described.outputs

    @property
    def details(self) -> ModelDetails:
        """What a session on another machine must know: all boards together look like one device with many cores."""
        details = self.described.details
        boards = len(self.reports)
        cores = sum(report.details.cores for _, report in self.reports.values())
        return replace(details, cores=max(1, cores), description=f"{boards} boards: {details.description}")

    @property
    def counts(self) -> ModelCounts:
        """Requests as they were counted here, runs as the boards counted them."""
        counts = replace(self._own)
        for part in (self._gone, *(report.counts for _, report in self.reports.values())):
            for name in _RUN_COUNTS:
                setattr(counts, name, getattr(counts, name) + getattr(part, name))
        return counts

    def figures(self) -> ModelFigures:
        """How it is on all boards together."""
        parts = sorted(((board, report.figures) for board, report in self.reports.values()), key=lambda part: part[0])
        cores = tuple(
            CoreFigures(f"{board}/{core.label}", core.jobs, core.busy_ms) for board, figures in parts for core in figures.cores
        )
        run_ms = sorted(figures.run_ms for _, figures in parts)
        return ModelFigures(
            self.details.description,
            sum(figures.waiting for _, figures in parts),
            sum(figures.running for _, figures in parts),
            self._shed + self._admission.shed,
            run_ms[len(run_ms) // 2] if run_ms else 0.0,
            cores,
        )

    def see(self, reports: dict[str, tuple[str, ModelReport]]) -> None:
        """Take the boards' newest word; what is missing is gone."""
        for board, (_, report) in self.reports.items():
            if board not in reports:
                for name in _RUN_COUNTS:
                    setattr(self._gone, name, getattr(self._gone, name) + getattr(report.counts, name))
        self.reports = reports
        if not reports:
            return
        models = [report for _, report in reports.values()]
        self.described = models[0]
        self._admission.lanes = max(1, sum(report.details.cores for report in models))
        self._admission.max_queue = self._options.max_queue * len(models)
        self._admission.service = sorted(report.figures.run_ms for report in models)[len(models) // 2] / 1000

    def hold(self) -> None:
        """Nothing: the boards see to it that a model that is replaced answers what it was given."""

    def let_go(self) -> None:
        """The end of :meth:`hold`."""

    def announce(self) -> Announcement:
        """Take note of a request; raise if there is no board, or if none would take it up soon.

        Every board decides for itself as well, but what is rejected here is rejected before its body is read and travels.
        """
        if not any(pool.reports for pool in self.pools):
            raise no_board(self.name)
        return self._admission.announce(self.name)

    async def infer(self, request: InferRequest) -> InferAnswer:
        """Run *request* on a board. Cancelling the task takes it back from there."""
        began = self._clock()
        limit = self._options.timeout
        counts = self._own
        ticket = self._admission.enter(self.name, 1)
        try:
            answer = await route(self.pools, request, limit if request.timeout is None else min(request.timeout, limit))
        except asyncio.CancelledError:
            counts.cancelled += 1
            raise
        except BaseException as error:
            self._shed += isinstance(error, OverloadedError)
            counts.fail += 1
            counts.fail_ns += self._since(began)
            raise
        finally:
            self._admission.leave(ticket)
        counts.answered(0, self._since(began))
        return answer

    def _since(self, began: float) -> int:
        return round((self._clock() - began) * 1e9)


class ClusterModels:
    """All models of a cluster.

    :param pools: groups of boards; two of them may have the same model
    :param wall: nanoseconds since 1970, which all gateways share
    """

    def __init__(self, pools: Sequence[BoardPool], options: ServeOptions, wall: Callable[[], int] = time.time_ns) -> None:
        self._pools = tuple(pools)
        self._options = options
        self._wall = wall
        self._models: dict[str, dict[str, RemoteModel]] = {}
        self._orders: Orders = {}
        self._numbers = 0
        self._asking = asyncio.Lock()
        self._asked = float("-inf")
        self._watching: asyncio.Task[None] | None = None

    async def load_all(self) -> None:
        """Ask all boards what they have, and go on asking."""
        await self.refresh()
        self._watching = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        """Stop asking."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def refresh(self) -> None:
        """Ask all boards how they are."""
        clock = asyncio.get_running_loop().time
        if clock() - self._asked < _FRESH:
            return
        async with self._asking:
            if clock() - self._asked >= _FRESH:
                await asyncio.gather(*map(self._ask, self._pools))
                self._take_in()
                self._asked = clock()

    def models(self) -> list[Model]:
        """All that are ready."""
        return [model for versions in self._models.values() for model in versions.values()]

    def get(self, name: str, version: str = "") -> RemoteModel:
        """One that is ready; the highest version if none is named."""
        found = pick_version(self._models, name, version)
        if found is not None:
            return found
        label = f"{name}' version '{version}" if version else name
        known = next((entry for entry in self._index().values() if entry.name == name), None)
        if not self._models.get(name) and known is not None:
            raise ModelUnavailableError(
                f"model '{label}' is not loaded: {known.reason}", hint="load it with the repository's call, or look at the boards"
            )
        raise unknown_model(self._models, label)

    def versions(self, name: str) -> list[str]:
        """Versions of a model that are ready, in order."""
        return sorted(self._models.get(name, ()), key=int)

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        """All that are known, ready or not."""
        known = self._index()
        return [known[key] for key in sorted(known) if not only_ready or known[key].state == "READY"]

    def _index(self) -> dict[tuple[str, str], IndexEntry]:
        known: dict[tuple[str, str], IndexEntry] = {}
        for report in _reports(self._pools):
            for entry in report.index:
                if entry.state != "READY":
                    known.setdefault((entry.name, entry.version), replace(entry, reason=f"{report.name}: {entry.reason}"))
        for model in self.models():
            known[model.name, model.version] = IndexEntry(model.name, model.version, "READY", "")
        return known

    def problems(self) -> bool:
        """Whether a pool has no board, or a board could not load a model."""
        return any(not pool.reports for pool in self._pools) or any(report.problems for report in _reports(self._pools))

    async def load(self, name: str, path: str | None = None) -> None:
        """Load or reload a model on all boards that know it."""
        await self._order(name, True, path)

    async def unload(self, name: str) -> None:
        """Take a model away from all boards; what they were given they still answer."""
        if name not in self._models:
            raise UnknownModelError(f"there is no model '{name}' to unload", hint="the repository's index lists all")
        await self._order(name, False, None)

    async def _order(self, name: str, load: bool, path: str | None) -> None:
        before = self._orders.get(name)
        self._numbers = max(self._numbers + 1, self._wall())  # later than those of any gateway before
        self._orders[name] = Order(self._numbers, load, path)
        pools = [pool for pool in self._pools if path is not None or self._knows(pool, name)]
        if not pools:
            self._restore(name, before)
            names = sorted({entry.name for entry in self._index().values()})
            raise UnknownModelError(f"there is no model '{name}' to load", hint=f"there are: {', '.join(names) or 'none'}")
        told = await asyncio.gather(
            *(pool.boards.tell("obey", {name: self._orders[name]}, timeout=_LOAD_TIMEOUT) for pool in pools)
        )
        failures = [answer[name] for answers in told for answer in answers if name in answer]
        self._asked = float("-inf")
        await self.refresh()
        if failures:
            self._restore(name, before)
            raise failures[0]

    def _restore(self, name: str, before: Order | None) -> None:
        """Boards that come later must not repeat what failed."""
        if before is None:
            self._orders.pop(name, None)
        else:
            self._orders[name] = before

    def _knows(self, pool: BoardPool, name: str) -> bool:
        return any(entry.name == name for report in pool.reports.values() for entry in report.index)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                await self.refresh()
            except AnynpuError as error:
                log.warning("the boards cannot be asked: %s", error)

    async def _ask(self, pool: BoardPool) -> None:
        orders = {name: order for name, order in self._orders.items() if order.path is not None or self._knows(pool, name)}
        try:
            reports = await pool.boards.tell("report", orders, timeout=_REPORT_TIMEOUT)
        except DeviceTimeout:
            return  # one of them hangs; the engine will state that it is gone
        now = {report.board: report for report in reports}
        for board, report in now.items():
            if board not in pool.reports:
                log.info("board %s has joined pool %s", report.name, pool.name)
        for board, report in pool.reports.items():
            if board not in now:
                log.warning("board %s has left pool %s", report.name, pool.name)
        pool.reports = now

    def _take_in(self) -> None:
        found: dict[tuple[str, str], dict[str, tuple[str, ModelReport]]] = {}
        having: dict[tuple[str, str], list[BoardPool]] = {}
        for pool in self._pools:
            for report in pool.reports.values():
                for model in report.models:
                    key = model.name, model.version
                    found.setdefault(key, {})[report.board] = report.name, model
                    if pool not in having.setdefault(key, []):
                        having[key].append(pool)
        for name, versions in list(self._models.items()):
            for version, known in list(versions.items()):
                if (name, version) not in found and any(pool.reports for pool in known.pools):
                    del versions[version]  # its boards are there, and do not have it any more
                    if not versions:
                        del self._models[name]
                else:
                    known.see(found.get((name, version), {}))
        for (name, version), reports in found.items():
            versions = self._models.setdefault(name, {})
            if version not in versions:
                versions[version] = RemoteModel(next(iter(reports.values()))[1], self._options)
                versions[version].see(reports)
            versions[version].pools = having[name, version]


def _reports(pools: Iterable[BoardPool]) -> Iterable[BoardReport]:
    return (report for pool in pools for report in pool.reports.values())


log = logging.getLogger("anynpu.serve")

FIT_EVERY = 5.0
"""Seconds after which the gateway looks again whether boards have joined."""

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
        """Replace what runs on the boards, board by board; the log states how it went. Blocks."""
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
            except AnynpuError as error:  # the gateway goes on with the boards that it knows
                log.warning("the number of boards cannot be changed: %s", error)
