"""One version of a model that is served: its session, its admission, its batches and its counts.

Belongs to the event loop of the server: no lock. The session has its own threads; its results come back to the loop.

Shutdown: :meth:`ServedModel.drain` waits until the last request has left, then closes the session in another thread. A request holds the
model from the moment it found it, so a model that is replaced under load answers everything that it was given.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._util.types import Array
from ..errors import DeviceTimeout, FeedNameError, JobCancelled, RequestError
from ..session import InferenceSession, RunTimes, make_provider_options
from ..session.nodes import output_types
from ..session.protocol.messages import ModelDetails, datatype_of
from ..tensor import TensorSpec
from .admission import Admission, Announcement
from .options import ServeOptions
from .regions import SharedPlace, SharedTensor
from .traces import RequestTrace, join_requests, note_run, traced_requests

# Requests for a part of a model's batch, gathered within a window into one run.
#
# Belongs to the event loop of the server: no lock. A request whose client has gone is left out when the run begins.


Run = Callable[[list[Array], int, "float | None"], Awaitable[list[Array]]]


@dataclass(eq=False)
class _Entry:
    arrays: list[Array]
    count: int
    priority: int
    until: float
    answer: asyncio.Future[list[Array]]
    traced: tuple[RequestTrace, ...]


@dataclass(eq=False)
class _Batch:
    entries: list[_Entry] = field(default_factory=list)
    count: int = 0
    timer: asyncio.TimerHandle | None = None


class Batcher:
    """Fills batches of *size* samples.

    :param window: seconds that a sample waits for others
    :param run: runs one whole batch: arrays, priority and seconds in, all outputs out
    """

    def __init__(self, size: int, window: float, run: Run) -> None:
        self._size = size
        self._window = window
        self._run = run
        self._open: dict[tuple[str, ...], _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, arrays: Sequence[Array], count: int, priority: int, timeout: float) -> list[Array]:
        """All outputs for *count* samples, fewer than the batch has."""
        loop = asyncio.get_running_loop()
        key = tuple(f"{array.dtype.str}{array.shape[1:]}" for array in arrays)
        batch = self._open.setdefault(key, _Batch())
        if batch.count + count > self._size:
            self._flush(key)
            batch = self._open.setdefault(key, _Batch())
        entry = _Entry(list(arrays), count, priority, loop.time() + timeout, loop.create_future(), traced_requests())
        batch.entries.append(entry)
        batch.count += count
        if batch.count == self._size:
            self._flush(key)
        elif batch.timer is None:
            batch.timer = loop.call_later(self._window, self._flush, key)
        return await entry.answer

    def _flush(self, key: tuple[str, ...]) -> None:
        batch = self._open.pop(key, None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        entries = [entry for entry in batch.entries if not entry.answer.done()]
        if entries:
            task = asyncio.get_running_loop().create_task(self._execute(entries))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _execute(self, entries: list[_Entry]) -> None:
        join_requests(tuple(request for entry in entries for request in entry.traced))
        try:
            now = asyncio.get_running_loop().time()
            filled = [self._fill([entry.arrays[index] for entry in entries]) for index in range(len(entries[0].arrays))]
            timeout = max(entry.until for entry in entries) - now
            outputs = await self._run(filled, min(entry.priority for entry in entries), timeout)
        except BaseException as error:  # whatever it is, it belongs to those who wait
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        start = 0
        for entry in entries:
            if not entry.answer.done():
                entry.answer.set_result([output[start : start + entry.count] for output in outputs])
            start += entry.count

    def _fill(self, pieces: list[Array]) -> Array:
        missing = self._size - sum(piece.shape[0] for piece in pieces)
        if missing:
            pieces = [*pieces, np.zeros((missing, *pieces[0].shape[1:]), pieces[0].dtype)]
        return np.concatenate(pieces)


LAST_PRIORITY = 2**31
"""Of requests that name none: the protocol's priorities begin with 1, the most urgent."""

_KEPT = 1024
"""Latencies that the percentiles of the status page are made of."""


@dataclass(frozen=True)
class TensorDescription:
    """An input or output as the protocol reports it."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass
class InferRequest:
    """An inference that a client asks for, whatever protocol it came by.

    :ivar outputs: names; empty for all
    :ivar priority: 1 is the most urgent; 0 for none
    :ivar timeout: seconds
    :ivar shared_inputs: further inputs, which lie in memory that the client shares
    :ivar shared_outputs: where outputs go that the client wants there
    """

    model: str
    version: str
    id: str
    inputs: dict[str, Array]
    outputs: list[str]
    priority: int = 0
    timeout: float | None = None
    shared_inputs: dict[str, SharedTensor] = field(default_factory=dict)
    shared_outputs: dict[str, SharedPlace] = field(default_factory=dict)


@dataclass(frozen=True)
class InferAnswer:
    """Outputs by name, in the order in which they were asked for.

    :ivar shared: those that were put into memory of the client, and where
    """

    model: str
    version: str
    id: str
    outputs: dict[str, Array]
    shared: dict[str, SharedPlace] = field(default_factory=dict)


@dataclass
class ModelCounts:
    """What a model has done since it was loaded; times in nanoseconds, summed."""

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    cancelled: int = 0
    inferences: int = 0
    executions: int = 0
    wait_ns: int = 0
    inputs_ns: int = 0
    run_ns: int = 0
    outputs_ns: int = 0
    last: int = 0
    latencies: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def executed(self, times: RunTimes) -> None:
        """One run of the device."""
        self.executions += 1
        self.wait_ns += times.wait
        self.inputs_ns += times.inputs
        self.run_ns += times.run
        self.outputs_ns += times.outputs

    def answered(self, samples: int, nanoseconds: int) -> None:
        """One request."""
        self.success += 1
        self.success_ns += nanoseconds
        self.inferences += samples
        self.last = time.time_ns() // 1_000_000
        self.latencies.append(nanoseconds)


@dataclass(frozen=True)
class CoreFigures:
    """One context of a model: its name among the others, how many runs it has had, and how long it was busy."""

    label: str
    jobs: int
    busy_ms: float


@dataclass(frozen=True)
class ModelFigures:
    """A model at one moment.

    :ivar waiting: runs that wait for a core
    :ivar running: runs on the cores
    :ivar shed: requests that were rejected because they would be late
    :ivar run_ms: median of the last runs
    """

    device: str
    waiting: float
    running: int
    shed: int
    run_ms: float
    cores: tuple[CoreFigures, ...]


def open_session(path: Path, options: ServeOptions) -> InferenceSession:
    """A session as the server uses one."""
    # no other owner has the memory of a request: it need not be copied
    given: dict[str, Any] = {"layout": options.layout, "max_queue_size": options.max_queue, "copy_inputs": False}
    given["watchdog_ms"] = options.watchdog_ms or max(1, round(options.timeout * 1000))
    if options.isolate:
        given.update(isolate=True, isolate_memory_mb=options.isolate_memory_mb, isolate_cpu_s=max(1, round(options.timeout)))
    return InferenceSession(path, provider_options=make_provider_options(**given), device=options.device)


class ServedModel:
    """A version of a model, ready to answer."""

    def __init__(self, name: str, version: str, path: Path, session: InferenceSession, options: ServeOptions) -> None:
        self.name = name
        self.version = version
        self.path = path
        self.session = session
        self.counts = ModelCounts()
        backend = session.backend
        lanes = max(1, session.cores)
        longest = None if options.max_wait_ms is None else options.max_wait_ms / 1000
        self.admission = Admission(lanes, options.max_queue, longest)
        self.inputs = tuple(
            TensorDescription(node.name, _input_datatype(spec), tuple(node.shape))
            for node, spec in zip(session.get_inputs(), backend.inputs, strict=True)
        )
        self.outputs = tuple(
            TensorDescription(spec.name, datatype_of(kind), tuple(spec.shape))
            for spec, kind in zip(backend.outputs, output_types(backend.outputs, "float32"), strict=True)
        )
        self._options = options
        self._batch = _batch_size([*backend.inputs, *backend.outputs], bool(backend.shape_sets))
        self._names = [tensor.name for tensor in self.inputs]
        self._output_numbers = {tensor.name: number for number, tensor in enumerate(self.outputs)}
        self._batcher = Batcher(self._batch, options.batch_window_ms / 1000, self._run_all) if self._batch > 1 else None
        self._users = 0
        self._left = asyncio.Event()
        self._left.set()

    @property
    def file_name(self) -> str:
        """Of its file, without the folder."""
        return self.path.name

    @property
    def platform(self) -> str:
        """What the protocol calls the platform: the chip."""
        return f"anynpu_{self.session.backend.chip}"

    @property
    def batch(self) -> int:
        """Samples of one run; 0 for a model whose tensors have no batch in common, which takes no batches."""
        return self._batch

    @property
    def details(self) -> ModelDetails:
        """What a session on another machine must know."""
        backend = self.session.backend
        return ModelDetails(
            backend.description,
            backend.provider,
            backend.chip,
            backend.cores,
            self._options.layout,
            tuple(backend.inputs),
            tuple(backend.outputs),
            tuple(backend.shape_sets),
            dict(backend.metadata),
        )

    def figures(self) -> ModelFigures:
        """How it is at this moment."""
        statistics = self.session.statistics
        cores = tuple(CoreFigures(str(number), lane.jobs, lane.busy_ms) for number, lane in enumerate(statistics.lanes))
        admission = self.admission
        return ModelFigures(self.session.device, admission.waiting, statistics.running, admission.shed, statistics.run.p50, cores)

    def hold(self) -> None:
        """The model is in use: it will not be closed before :meth:`let_go`."""
        self._users += 1
        self._left.clear()

    def let_go(self) -> None:
        """The end of :meth:`hold`."""
        self._users -= 1
        if not self._users:
            self._left.set()

    async def drain(self, timeout: float) -> None:
        """Wait until the model is not in use, at most *timeout* seconds, and close its session."""
        try:
            await asyncio.wait_for(self._left.wait(), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            pass  # what is left is notified that the session was closed
        await asyncio.to_thread(self.session.close, False, timeout)

    async def infer(self, request: InferRequest) -> InferAnswer:
        """Run *request*. Cancelling the task takes it out of the queue."""
        began = time.perf_counter_ns()
        limit = self._options.timeout
        timeout = limit if request.timeout is None else min(request.timeout, limit)
        names = request.outputs or list(self._output_numbers)
        unknown = next((name for name in names if name not in self._output_numbers), None)
        if unknown is not None:
            raise FeedNameError(f"there is no output {unknown!r}", hint=f"the model has: {', '.join(self._output_numbers)}")
        samples, runs = self._size(request.inputs)
        ticket = self.admission.enter(self.name, runs, None if request.timeout is None else timeout)
        try:
            results = await self._dispatch(request, samples, names, timeout)
        except asyncio.CancelledError:
            self.counts.cancelled += 1
            raise
        except JobCancelled:
            self.counts.fail += 1
            self.counts.fail_ns += time.perf_counter_ns() - began
            if time.perf_counter_ns() - began < 0.9 * timeout * 1e9:
                raise
            raise _late(timeout) from None  # it was stopped because its time was over
        except BaseException:
            self.counts.fail += 1
            self.counts.fail_ns += time.perf_counter_ns() - began
            raise
        finally:
            self.admission.leave(ticket)
        self.counts.answered(samples or 1, time.perf_counter_ns() - began)
        outputs = dict(zip(names, results, strict=True))
        return InferAnswer(self.name, self.version, request.id, outputs, request.shared_outputs)

    def announce(self) -> Announcement:
        """Take note of a request before its body is read; raise if there is no space for it. To be withdrawn before :meth:`infer`."""
        return self.admission.announce(self.name)

    def _size(self, inputs: dict[str, Array]) -> tuple[int, float]:
        """Samples of a request that is no single run of the model (0 for one that is), and the runs that it counts for."""
        batch = self._batch
        if not batch or set(inputs) != set(self._names):
            return 0, 1
        arrays = [inputs[name] for name in self._names]
        counts = {array.shape[0] if array.ndim else 0 for array in arrays}
        if len(counts) != 1:
            return 0, 1
        (samples,) = counts
        fits = all(self._fits(tensor, array) for tensor, array in zip(self.inputs, arrays, strict=True))
        if samples in (0, batch) or not fits:
            return 0, 1  # the session runs it, or states what is wrong
        if samples > self._options.max_batch:
            raise RequestError(
                f"the request has a batch of {samples}, and the server takes {self._options.max_batch}",
                hint="send smaller batches, or raise --max-batch",
            )
        return samples, math.ceil(samples / batch) if samples > batch else samples / batch

    def _fits(self, tensor: TensorDescription, array: Array) -> bool:
        shape = array.shape[1:]
        if shape == tensor.shape[1:]:
            return True
        return self._options.layout == "any" and len(shape) == 3 and shape == (tensor.shape[3], *tensor.shape[1:3])

    async def _dispatch(self, request: InferRequest, samples: int, names: list[str], timeout: float) -> Sequence[Array]:
        priority = request.priority or LAST_PRIORITY
        if not samples:
            return await self._run(names, request.inputs, priority, timeout)
        arrays = [request.inputs[name] for name in self._names]
        tasks = []
        for start in range(0, samples, self._batch):
            part = [array[start : start + self._batch] for array in arrays]
            tasks.append(asyncio.ensure_future(self._part(part, names, priority, timeout)))
        try:
            parts = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]

    async def _part(self, arrays: list[Array], names: list[str], priority: int, timeout: float) -> Sequence[Array]:
        """At most one batch."""
        count = arrays[0].shape[0]
        if count == self._batch or self._batcher is None:
            return await self._run(names, dict(zip(self._names, arrays, strict=True)), priority, timeout)
        try:
            outputs = await asyncio.wait_for(self._batcher.submit(arrays, count, priority, timeout), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            raise _late(timeout) from None
        return [outputs[self._output_numbers[name]] for name in names]

    async def _run(self, names: list[str] | None, feed: object, priority: int, timeout: float | None) -> Sequence[Array]:
        began = time.perf_counter()
        try:
            results, times = await self.session.arun_timed(names, feed, priority=priority, timeout=timeout)
        except JobCancelled:
            # this one was not cancelled: a stop that was meant for the request before it on its core came late
            left = None if timeout is None else timeout - (time.perf_counter() - began)
            if left is not None and left <= 0.1 * (timeout or 0.0):
                raise
            results, times = await self.session.arun_timed(names, feed, priority=priority, timeout=left)
        self.counts.executed(times)
        note_run(times)
        self.admission.learn((times.inputs + times.run + times.outputs) / 1e9)
        return results

    async def _run_all(self, arrays: list[Array], priority: int, timeout: float | None) -> list[Array]:
        return list(await self._run(None, arrays, priority, timeout))


def _late(timeout: float) -> DeviceTimeout:
    return DeviceTimeout(f"the request did not finish within {timeout:g} s", hint="give it more time, or send less at a time")


def _input_datatype(spec: TensorSpec) -> str:
    """What a client should send: values, unless the input holds integers that mean themselves."""
    return "FP32" if spec.quantization is not None or spec.dtype.is_float else datatype_of(spec.dtype.storage)


def _batch_size(specs: Sequence[TensorSpec], dynamic: bool) -> int:
    """The batch that all tensors of a model have; 0 if there is none."""
    sizes = {spec.shape[0] if spec.shape else 0 for spec in specs}
    return sizes.pop() if len(sizes) == 1 and not dynamic else 0
