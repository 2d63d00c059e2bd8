"""The software NPU as a device: a chip's cores, its memory, the models in it, and the jobs that were submitted.

Who owns what: the device owns the scheduler, the memory account and the worker threads. It knows loaded models and contexts only weakly,
so that what a program forgets is given back at once, and closes those that are left when it is closed.

Locks: the scheduler, the account and the workers each protect themselves (see there). The device's own lock protects the flag
that states it is closed and the two weak sets; it is never held while anything waits.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .. import chips, modelfile
from .._util.lifetime import Closeable
from .._util.types import Array
from ..chips.timing import Prediction, predict
from ..chips.timing.board import read_board
from ..chips.timing.parameters import TimingProfile
from ..devtools import faults
from ..devtools.faults import FaultyJobs
from ..errors import DeviceClosed, DeviceError, DeviceMemoryError, ModelError
from ..program import Model, Program
from ..tensor import Layout, TensorSpec
from .context import Context, Inputs
from .control import RunControl
from .cores import CoreMask, CoreScheduler, CoreStatistics, Lease
from .engines.base import Engine
from .engines.choice import choose_engine
from .jobs import DeviceJob, ResultT, WorkerPool
from .memory import Buffer, MemoryPool, MemoryUsage, Purpose, Resident, internal_size

if TYPE_CHECKING:
    from .board import SharedCores, StatusFile


# Models in device memory.
#
# Who owns what: a :class:`LoadedModel` is the user's handle. What is in memory (the placed model, its weights buffer, the prepared
# programs) is held together by one object that the handle and every context refer to (:mod:`anynpu.npu.memory`); it goes away with the
# last of them. Closing the handle therefore only ends the making of new contexts.


class LoadedModel(Closeable):
    """A model in the memory of a device, shared by all its contexts. Made by :meth:`Device.load`.

    >>> with Device("rk3588") as device:                                   # doctest: +SKIP
    ...     model = device.load("det.rknn")
    ...     first, second = model.context(), model.context()               # one copy of the weights
    """

    def __init__(
        self, device: Device, model: Model, *, weights: Buffer | None = None, weights_from: LoadedModel | None = None
    ) -> None:
        self._device = device
        if weights_from is not None:
            if weights is not None:
                raise DeviceMemoryError("weights and weights_from exclude each other", hint="pass one of them")
            weights = weights_from.weights
            placed = _attach(model, weights)
        elif model.weightless:
            if weights is None:
                raise ModelError(
                    f"the model '{model.name}' was saved without its weights",
                    hint="load it with weights_from=..., a model of the same network that has them, or with the buffer that holds them",
                )
            placed = _attach(model, weights)
        else:
            if weights is None:
                weights = device.memory.allocate(modelfile.weight_size(model), Purpose.WEIGHTS)
            placed = modelfile.place_weights(model, weights.view())
        self._resident: Resident | None = Resident(placed, weights, device.engine)

    @property
    def device(self) -> Device:
        return self._device

    @property
    def model(self) -> Model:
        """The model, its weights in device memory."""
        return self._require().model

    @property
    def weights(self) -> Buffer:
        """The memory that the weights lie in."""
        return self._require().weights

    @property
    def programs(self) -> tuple[Program, ...]:
        """One program for each set of input shapes."""
        return self._require().model.programs

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the first shape set."""
        return self.programs[0].input_specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the first shape set."""
        return self.programs[0].output_specs

    @property
    def internal_size(self) -> int:
        """Bytes of internal memory that a context needs: enough for every shape set."""
        return internal_size(self._require().model)

    @property
    def closed(self) -> bool:
        return self._resident is None

    def context(self, *, internal: Buffer | None = None, shapes: int | Mapping[str, Sequence[int]] = 0) -> Context:
        """A new user of the model, with inputs and outputs of its own.

        :param internal: internal memory to use, of at least ``internal_size`` bytes; contexts that get the same buffer run in turn
        :param shapes: the shape set to begin with, by index or by the shape of each input
        """
        return Context(self, internal=internal, shapes=shapes)

    def close(self) -> None:
        """Make no more contexts. The memory is given back when the last context is closed."""
        self._resident = None

    def _require(self) -> Resident:
        resident = self._resident
        if resident is None:
            raise DeviceClosed("the loaded model was closed", hint="load it again")
        return resident

    def __repr__(self) -> str:
        resident = self._resident
        return "<LoadedModel, closed>" if resident is None else f"<LoadedModel {resident.model.name or 'without a name'}>"


def _attach(model: Model, weights: Buffer) -> Model:
    """The model on weights that are in memory already; rejected if they are another network's."""
    if model.weightless:
        return modelfile.attach_weights(model, weights.view())
    encoded = modelfile.encode(model, remove_weight=True)
    return modelfile.decode(encoded.header, weights.view())


# Real time: a job keeps its cores for as long as the chip would.
#
# A run is computed as fast as the host can, and then waits until the predicted time has passed; the cores stay occupied. What
# follows on a core without a pause begins, for the clock, when the job before it should have ended, so that the small delay with
# which a host wakes a thread does not add up: a thousand jobs of 2 ms on one core take two seconds.
#
# Concurrency: the end of the last job of each core, and the numbers, belong to the clock and are protected by its lock, which is
# never held while anything waits. Waiting ends early when the job is cancelled or out of time.


_SAME_BREATH = 0.001
"""A job that begins this many seconds after the one before it should have ended follows it without a pause."""

_SHARE_OF_A_JOB = 0.5
"""... or this share of the job's own time, where that is more."""


@dataclass(frozen=True)
class RealTimeReport:
    """How well the host kept the chip's time.

    :ivar jobs: that were run in real time
    :ivar late: of them, those for which the host took longer than the chip would have
    :ivar predicted: seconds that the chip would have taken
    :ivar spent: seconds that the jobs took
    :ivar overshoot: the longest delay after the predicted end, in seconds, of a job that was not late
    """

    jobs: int
    late: int
    predicted: float
    spent: float
    overshoot: float

    def __str__(self) -> str:
        if not self.jobs:
            return "no job has run in real time"
        text = f"{self.jobs} jobs, {self.spent:.3f} s where the chip takes {self.predicted:.3f} s"
        return f"{text}; the host was too slow for {self.late} of them" if self.late else text


def speed_of(given: float | bool | str | None) -> float | None:
    """The speed that was asked for: 1 is the chip's, 2 twice as fast, None does not wait at all.

    Without a word from the caller the variable ``ANYNPU_REALTIME`` decides.

    >>> speed_of(True), speed_of(0.5), speed_of("off")
    (1.0, 0.5, None)
    """
    if given is None:
        given = os.environ.get("ANYNPU_REALTIME", "")
    if isinstance(given, str):
        text = given.strip().lower()
        if text in ("", "0", "off", "no", "false"):
            return None
        if text in ("1", "on", "yes", "true"):
            return 1.0
        try:
            given = float(text)
        except ValueError:
            raise _no_speed(text) from None
    if given is False:
        return None
    if not 1e-6 <= float(given) <= 1e6:
        raise _no_speed(str(given))
    return float(given)


def _no_speed(text: str) -> DeviceError:
    return DeviceError(
        f"'{text}' is no speed for real time", hint="use 1 for the chip's own speed, 2 for twice as fast, 0 for off"
    )


class RealTimeClock:
    """Makes the jobs of one device take their time.

    :param cores: of the chip
    :param speed: 1 is the chip's own
    """

    def __init__(self, cores: int, speed: float = 1.0) -> None:
        self.speed = speed
        self._lock = threading.Lock()
        self._free_at = [0.0] * cores
        self._jobs = self._late = 0
        self._predicted = self._spent = self._overshoot = 0.0

    def begin(self, cores: tuple[int, ...], predicted_us: float) -> float:
        """A job of this length starts on these cores now; gives the time at which it should end."""
        duration = predicted_us / 1e6 / self.speed
        now = time.monotonic()
        with self._lock:
            free = max((self._free_at[core] for core in cores), default=0.0)
            follows = now - free <= max(_SAME_BREATH, _SHARE_OF_A_JOB * duration)
            start = free if free <= now and follows else now
            return start + duration

    def finish(self, cores: tuple[int, ...], predicted_us: float, started: float, ends: float, control: RunControl) -> None:
        """Wait until *ends*; raises if the job is cancelled or out of time while it waits."""
        computed = time.monotonic()
        remaining = ends - computed
        if remaining > 0:
            _wait(remaining, control)
        now = time.monotonic()
        late = remaining <= 0
        with self._lock:
            for core in cores:
                self._free_at[core] = now if late else ends
            self._jobs += 1
            self._late += late
            self._predicted += predicted_us / 1e6 / self.speed
            self._spent += now - started
            if not late:
                self._overshoot = max(self._overshoot, now - ends)

    def report(self) -> RealTimeReport:
        """The numbers so far."""
        with self._lock:
            return RealTimeReport(self._jobs, self._late, self._predicted, self._spent, self._overshoot)


def _wait(seconds: float, control: RunControl) -> None:
    limit = control.remaining
    woken = threading.Event()
    with control.watching(woken.set):
        woken.wait(seconds if limit is None else min(seconds, limit))
    control.check()


class Device:
    """A software NPU.

    :param chip: name in the catalogue
    :param memory_limit: the most bytes of device memory, as on a board with little of it; None for no limit
    :param host_threads: host threads that a run uses, integer and float layers alike; if not given, one, or as many as the job
        occupies cores (and the machine has processors), and besides, except in real time, the processors of the machine on which
        nothing else runs, shared equally by the runs of this process
    :param engine: what executes layers: ``"native"`` (compiled kernels; the default), ``"reference"`` (numpy, slow, the same bytes), or an
        engine of your own. The environment variable ``ANYNPU_ENGINE`` takes the place of the default
    :param board: name of a board whose cores all processes that name it share; the environment variable ``ANYNPU_BOARD`` by default
    :param realtime: True lets every job take as long as on the chip, a number that many times faster; by default the variable
        ``ANYNPU_REALTIME`` decides, and without it jobs run as fast as the host can
    :param timing: how fast the board is, where ``anynpu calibrate`` fitted one: a profile, or its file; by default the variable
        ``ANYNPU_TIMING`` names the file, which counts for the chip that it is about

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
        timing: TimingProfile | str | Path | None = None,
    ) -> None:
        self.chip = chips.get(chip)
        self.timing = _timing_of(self.chip, timing)
        """What predictions rest on; None: what is known of the chip."""
        speed = speed_of(realtime)
        self.engine: Engine = choose_engine(engine, threads=host_threads, idle=speed is None)
        self.clock = None if speed is None else RealTimeClock(self.chip.cores, speed)
        """Makes jobs take the chip's time; None where they do not."""
        injector = faults.active()
        self.faults = None if injector is None else FaultyJobs(injector, self.chip.cores)
        """Makes jobs fail by a plan; None where there is none."""
        self.memory = MemoryPool(memory_limit if injector is None else injector.memory_limit(memory_limit))
        board = board or os.environ.get("ANYNPU_BOARD")
        status = _status_of(self.chip, board, speed)
        self.scheduler = CoreScheduler(self.chip.cores, _shared_cores(board, self.chip), status)
        self._workers = WorkerPool(self.chip.cores, f"anynpu {self.chip.name}")
        self._lock = threading.Lock()
        self.closed = False
        self._models: weakref.WeakSet[LoadedModel] = weakref.WeakSet()
        self._predictions: weakref.WeakKeyDictionary[Program, dict[tuple[int, int], Prediction]] = weakref.WeakKeyDictionary()
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    @property
    def cores(self) -> int:
        """How many cores the chip has."""
        return self.chip.cores

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
            known[key] = predict(program, self.chip, cores=cores, sram_bytes=sram_bytes, profile=self.timing)
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

        :param model: a compiled model, or its file as a path or as bytes; for a file of the vendor's own, its anynpu model
          beside it is loaded
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
        """Close *member* together with the device; rejected if that has happened already."""
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
    ) -> DeviceJob[list[Array]]:
        """Queue a run and return at once; parameters as in :meth:`Context.run`.

        Jobs of one context run one after the other; jobs of different contexts run at the same time where there are cores for them. The
        arrays must not change before the job has finished.
        """
        if context._device is not self:
            raise DeviceError("the context belongs to another device", hint="submit it to the device that loaded its model")
        return self.start(
            lambda lease: context._run(lease, inputs, layout, dequantize),
            mask=mask,
            priority=priority,
            control=RunControl(timeout),
            exclusive=context.exclusive,
        )

    def start(
        self,
        work: Callable[[Lease], ResultT],
        *,
        mask: CoreMask | int | Iterable[int] | None = None,
        priority: int = 0,
        control: RunControl,
        exclusive: Iterable[Hashable] = (),
    ) -> DeviceJob[ResultT]:
        """Call *work* in a thread of the device once the job has its cores and the *exclusive* things; returns at once."""
        self.require_open()
        job = DeviceJob(work, control)
        job.enqueue(self.scheduler, self._workers, mask, priority, exclusive)
        return job

    def require_open(self) -> None:
        """Raise if the device was closed."""
        if self.closed:
            raise DeviceClosed(f"the device ({self}) was closed", hint="open a new one")

    def close(self, *, finish: bool = False) -> None:
        """Close the device and all that is in it; calling it again does nothing.

        New work is rejected from now on. Jobs that wait are denied and jobs that run stop between two layers, both with
        :class:`DeviceClosed`; with *finish* all of them are finished first. When this returns, no job runs, the threads have ended, and
        contexts, models and buffers of the device are closed.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
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


def _timing_of(chip: chips.Chip, given: TimingProfile | str | Path | None) -> TimingProfile | None:
    """The profile that was given, or that the environment names; the latter only if it is one of this chip."""
    named = os.environ.get("ANYNPU_TIMING") if given is None else None
    if isinstance(given, TimingProfile):
        profile = given
    elif given is not None or named:
        profile = read_board(given or named or "")
    else:
        return None
    if profile.chip == chip.name:
        return profile
    if named:
        return None
    raise DeviceError(f"the profile is of a board with {profile.chip}, this device is {chip.name}", hint="leave the profile out")


def _status_of(chip: chips.Chip, board: str | None, speed: float | None) -> Callable[[], StatusFile | None] | None:
    """What opens the status file. The import is here, not at the first run: a child that is forked while a thread imports a module can
    never import it."""
    try:
        from .board import open_status
    except ImportError:  # no file locks, no shared folder: not on every system
        return None
    return functools.partial(open_status, chip.name, chip.cores, board=board or "", realtime=speed)


def _shared_cores(board: str | None, chip: chips.Chip) -> SharedCores | None:
    if not board:
        return None
    from .board import SharedCores  # file locks: not on every system

    return SharedCores(board, chip.name, chip.cores)
