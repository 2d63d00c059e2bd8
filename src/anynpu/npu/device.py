"""The software NPU as a device: a chip's cores, its memory, the models in it, and the jobs that were submitted.

Who owns what: the device owns the scheduler, the memory account and the worker threads. It knows loaded models and contexts only weakly,
so that what a program forgets is given back at once, and closes those that are left when it is closed.

Locks: the scheduler, the account and the workers each protect themselves (see there). The device's own lock protects the flag that says it
is closed and the two weak sets; it is never held while anything waits.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from .. import chips, modelfile
from ..errors import AnynpuError, DeviceClosed, DeviceError, JobCancelled, ModelError
from ..program import Model, Program
from ..tensor import Layout
from ..timing import Prediction, predict
from .context import Context, Inputs
from .control import RunControl
from .cores import CoreMask, CoreScheduler, CoreStatistics, Lease
from .engines.base import Engine
from .engines.choice import choose_engine
from .loaded import LoadedModel
from .memory import Buffer, MemoryPool, MemoryUsage
from .realtime import RealTimeClock, speed_of
from .workers import Workers

if TYPE_CHECKING:
    from .board import SharedCores
    from .status import StatusFile

__all__ = ["Device", "Job"]

Array = npt.NDArray[Any]


class Job(Future[list[Array]]):
    """A submitted run: a ``concurrent.futures.Future`` whose result is the list of outputs.

    :meth:`cancel` also stops a job that runs, between two layers; :meth:`result` then raises :class:`JobCancelled`.
    """

    def __init__(self, control: RunControl, scheduler: CoreScheduler) -> None:
        super().__init__()
        self._control = control
        self._scheduler = scheduler
        self.cores: tuple[int, ...] = ()
        """The cores that it ran on; empty before it has begun."""
        self.host_ns: int | None = None
        """Host time from the first to the last layer, conversions included; None before it has finished."""

    def cancel(self) -> bool:
        """Ask the job to stop; False if it had already finished or had been asked before."""
        if self.done() or not self._control.cancel():
            return False
        self._scheduler.drop(self._control, JobCancelled("the job was cancelled"))
        return True

    def cancelled(self) -> bool:
        """Whether the job ended because it was cancelled."""
        return self.done() and isinstance(self.exception(), JobCancelled)


class _Task:
    """A submitted run on its way from the queue to a worker thread."""

    def __init__(
        self, job: Job, workers: Workers, context: Context, inputs: Inputs, layout: Layout | str | None, dequantize: bool
    ) -> None:
        self._job: Job | None = job
        self._workers = workers
        self._context = context
        self._arguments = (inputs, layout, dequantize)

    def watch(self, timeout: float | None, expire: Callable[[], None]) -> None:
        """Call *expire* after *timeout* seconds if the job still waits then."""
        job = self._job
        if timeout is None or job is None or job.cores:
            return
        timer = threading.Timer(timeout, expire)
        timer.daemon = True  # it only denies a job that still waits: nothing is lost with it
        job.add_done_callback(lambda _: timer.cancel())
        timer.start()

    def granted(self, lease: Lease) -> None:
        try:
            self._workers.start(lambda: self._run(lease))
        except (RuntimeError, DeviceClosed) as error:
            lease.release()
            self._settle(error)

    def denied(self, error: AnynpuError) -> None:
        self._settle(error)

    def _run(self, lease: Lease) -> None:
        job = self._job
        assert job is not None
        outcome: list[Array] | BaseException
        try:
            with lease:
                begin = time.perf_counter_ns()
                job.cores = lease.cores
                job.set_running_or_notify_cancel()
                outcome = self._context._run_held(lease, *self._arguments)
                job.host_ns = time.perf_counter_ns() - begin
        except AnynpuError as error:  # of the cores of a shared board; a run's own is its outcome
            outcome = error
        self._settle(outcome)
        del job, outcome  # an error refers to this frame, which must not refer to the error

    def _settle(self, outcome: list[Array] | BaseException) -> None:
        job, self._job = self._job, None
        assert job is not None
        if isinstance(outcome, BaseException):
            job.set_exception(outcome)
        else:
            job.set_result(outcome)
        del job, outcome


class Device:
    """A software NPU.

    :param chip: name in the catalogue
    :param memory_limit: the most bytes of device memory, as on a board with little of it; None for no limit
    :param host_threads: host threads that a run uses, integer layers and float islands alike; if not given, one, or for integer layers as
        many as the job occupies cores (and the machine has processors)
    :param engine: what executes layers: ``"native"`` (compiled kernels; the default), ``"reference"`` (numpy, slow, the same bytes), or an
        engine of your own. The environment variable ``ANYNPU_ENGINE`` takes the place of the default
    :param board: name of a board whose cores all processes that name it share; the environment variable ``ANYNPU_BOARD`` by default
    :param realtime: True lets every job take as long as on the chip, a number that many times faster; by default the variable
        ``ANYNPU_REALTIME`` decides, and without it jobs run as fast as the host can

    >>> with Device("rk3588") as device:
    ...     print(device)
    software NPU, rk3588, 3 cores
    """

    def __init__(
        self,
        chip: str = "rk3588",
        *,
        memory_limit: int | None = None,
        host_threads: int | None = None,
        engine: Engine | str | None = None,
        board: str | None = None,
        realtime: float | bool | None = None,
    ) -> None:
        self.chip = chips.get(chip)
        self.engine: Engine = choose_engine(engine, threads=host_threads)
        speed = speed_of(realtime)
        self.clock = None if speed is None else RealTimeClock(self.chip.cores, speed)
        """Makes jobs take the chip's time; None where they do not."""
        self.memory = MemoryPool(memory_limit)
        board = board or os.environ.get("ANYNPU_BOARD")
        status = functools.partial(_open_status, self.chip, board, speed)
        self.scheduler = CoreScheduler(self.chip.cores, _shared_cores(board, self.chip), status)
        self._workers = Workers(self.chip.cores, f"anynpu {self.chip.name}")
        self._lock = threading.Lock()
        self._closed = False
        self._models: weakref.WeakSet[LoadedModel] = weakref.WeakSet()
        self._predictions: weakref.WeakKeyDictionary[Program, dict[tuple[int, int], Prediction]] = weakref.WeakKeyDictionary()
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    @property
    def cores(self) -> int:
        """How many cores the chip has."""
        return self.chip.cores

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def statistics(self) -> tuple[CoreStatistics, ...]:
        """What each core has done so far."""
        return self.scheduler.statistics

    def memory_usage(self) -> MemoryUsage:
        """Device memory in use, by purpose."""
        return self.memory.usage()

    def prediction(self, program: Program, *, cores: int = 1, sram_bytes: int = 0) -> Prediction:
        """What the chip is predicted to take for one run; computed once for each program and way to run it."""
        known = self._predictions.setdefault(program, {})
        key = (cores, sram_bytes)
        if key not in known:
            known[key] = predict(program, self.chip, cores=cores, sram_bytes=sram_bytes)
        return known[key]

    def allocate(self, size: int) -> Buffer:
        """Device memory for the caller's own use: to bind to a context, or as weights or internal memory."""
        self.require_open()
        return self.memory.allocate(size)

    def load(
        self,
        model: Model | str | Path | bytes,
        *,
        weights: Buffer | None = None,
        weights_from: LoadedModel | None = None,
    ) -> LoadedModel:
        """Put a model into device memory.

        :param model: a compiled model, or its file as a path or as bytes; for a file of the vendor's own, its twin beside it is loaded
        :param weights: memory for the weights, used instead of the device's own; for a model that was saved without weights, the memory
            that holds them
        :param weights_from: a loaded model of the same network, whose weights serve this one as well
        """
        self.require_open()
        if not isinstance(model, Model):
            model = modelfile.read_or_twin(model)
        if chips.get(model.chip).name != self.chip.name:
            raise ModelError(
                f"the model '{model.name}' was compiled for {model.chip}, this device is {self.chip.name}",
                hint=f"compile it again with target='{self.chip.name}', or open Device('{model.chip}')",
            )
        loaded = LoadedModel(self, model, weights=weights, weights_from=weights_from)
        self.adopt(loaded)
        return loaded

    def adopt(self, member: LoadedModel | Context) -> None:
        """Close *member* together with the device; refused if that has happened already."""
        with self._lock:
            self.require_open()
            if isinstance(member, Context):
                self._contexts.add(member)
            else:
                self._models.add(member)

    def submit(
        self,
        context: Context,
        inputs: Inputs = None,
        *,
        layout: Layout | str | None = None,
        dequantize: bool = True,
        mask: CoreMask | int | Iterable[int] | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Job:
        """Queue a run and return at once; parameters as in :meth:`Context.run`.

        Jobs of one context run one after the other; jobs of different contexts run at the same time where there are cores for them. The
        arrays must not change before the job has finished.
        """
        self.require_open()
        if context._device is not self:
            raise DeviceError("the context belongs to another device", hint="submit it to the device that loaded its model")
        control = RunControl(timeout)
        job = Job(control, self.scheduler)
        task = _Task(job, self._workers, context, inputs, layout, dequantize)
        self.scheduler.enqueue(
            task.granted, task.denied, mask, priority=priority, control=control, exclusive=context._exclusive()
        )
        task.watch(timeout, lambda: self.scheduler.drop(control, control.reason("got no core")))
        return job

    def require_open(self) -> None:
        """Raise if the device was closed."""
        if self._closed:
            raise DeviceClosed(f"the device ({self}) was closed", hint="open a new one")

    def close(self, *, finish: bool = False) -> None:
        """Close the device and all that is in it; calling it again does nothing.

        New work is refused from now on. Jobs that wait are denied and jobs that run stop between two layers, both with
        :class:`DeviceClosed`; with *finish* all of them are finished first. When this returns, no job runs, the threads have ended, and
        contexts, models and buffers of the device are closed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if finish:
            self.scheduler.drain()
        self.scheduler.close(DeviceClosed(f"the device ({self}) was closed", hint="open a new one"))
        self._workers.close()
        with self._lock:
            contexts, models = list(self._contexts), list(self._models)
        for context in contexts:
            context.close()
        for model in models:
            model.close()
        self.memory.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finishes what was submitted, unless the block ends with an exception."""
        self.close(finish=kind is None)

    def __repr__(self) -> str:
        return f"software NPU, {self.chip.name}, {self.cores} core{'' if self.cores == 1 else 's'}"


def _open_status(chip: chips.Chip, board: str | None, speed: float | None) -> StatusFile | None:
    try:
        from .status import open_status
    except ImportError:  # no file locks, no shared folder: not on every system
        return None
    return open_status(chip.name, chip.cores, board=board or "", realtime=speed)


def _shared_cores(board: str | None, chip: chips.Chip) -> SharedCores | None:
    if not board:
        return None
    from .board import SharedCores  # file locks: not on every system

    return SharedCores(board, chip.name, chip.cores)
