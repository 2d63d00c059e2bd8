"""The modelled clock: how long a program takes on the chip, layer by layer.

The time of a task is the largest of four bounds, plus what slow operators and the CPU add::

    task  = max(MACs / rate, look-ups * lookup, bytes / bandwidth, operator, floor) + slow elements * slow + CPU
    CPU   = hand-over + elements * cpu + MACs / CPU rate
    layer = the sum of its tasks                    (:mod:`anynpu.chips.timing.layers` counts them)
    model = scale * sum of the layers + offset      (scale 1 and offset 0 unless a board was calibrated)

The parameters of a chip are in :mod:`anynpu.chips.timing.parameters`. Everything here is a pure function of immutable data: a
:class:`Prediction` can be made once per loaded program and shared by all threads.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..._util.types import Floats
from ...errors import DeviceError
from ...program import Layer, Placement, Program
from .. import Chip
from .layers import LayerWork, ProgramWork, Task, peak_macs, relative_rate, work_of
from .parameters import FloatParameters, TimingParameters, TimingProfile, timing_profile

# How far a prediction can be trusted: a level with its reason, and a range that holds four of five networks of its kind.
#
# The widths come from left-out errors: each published network was predicted by a fit that had not seen it, and the networks were sorted by
# what decides how well they are predicted. ``tools/timing_fit.py`` prints them, and how many left-out points the ranges hold.


class Kind(enum.Enum):
    """Networks that are predicted about equally well. The value is half the width of their 80 % range, as a logarithm."""

    INT8 = 0.052
    SMALL_LAYERS = 0.30  # many layers that take no longer than a layer has to
    INT8_CPU = 0.15  # int8, and a good part of it on the CPU
    FLOAT16 = 0.26
    FLOAT16_CPU = 0.22


_RELATIVE = 0.15
_UNCALIBRATED = 0.69
_SEVERAL_CORES = 0.25
_SRAM = 0.15
_REPORTED = 0.36
"""What is added in quadrature where the numbers are of something else."""

_LARGE_CPU_SHARE = 0.1
_MAIN_CPU_SHARE = 0.4
_SOME_FLOOR_SHARE = 0.15
_LARGE_FLOOR_SHARE = 0.6
_LARGE_PRODUCT_SHARE = 0.2


@dataclass(frozen=True)
class Confidence:
    """How far a prediction can be trusted.

    :ivar level: ``calibrated``, ``extrapolated`` or ``uncalibrated``
    :ivar reason: why it is not calibrated
    :ivar error: median relative error in cross-validation, where the parameters were fitted
    :ivar spread: half the width of the range that holds four of five like networks, as a logarithm; 0: not known
    """

    level: str
    reason: str = ""
    error: float | None = None
    spread: float = 0.0

    def __str__(self) -> str:
        if self.level == "calibrated" and self.error is not None:
            return f"calibrated (median error {100 * self.error:.0f} %)"
        return f"{self.level}: {self.reason}" if self.reason else self.level

    def range(self, value: float) -> tuple[float, float]:
        """The range around a predicted value that holds four of five like networks.

        >>> low, high = Confidence("calibrated", spread=0.05).range(100.0)
        >>> round(low), round(high)
        (95, 105)
        """
        return value * math.exp(-self.spread), value * math.exp(self.spread)


def kind_of(prediction: Prediction) -> Kind:
    """What kind of network a prediction is about."""
    if prediction.dtype == "float16":
        return Kind.FLOAT16_CPU if prediction.cpu_share > _MAIN_CPU_SHARE else Kind.FLOAT16
    if prediction.floor_share > _SOME_FLOOR_SHARE:
        return Kind.SMALL_LAYERS
    return Kind.INT8_CPU if prediction.cpu_share > _MAIN_CPU_SHARE else Kind.INT8


def assess(prediction: Prediction) -> Confidence:
    """The confidence of a prediction."""
    profile = prediction.profile
    spread = _spread(prediction)
    if not profile.calibrated:
        level = "extrapolated" if profile.relative else "uncalibrated"
        return Confidence(level, profile.source if profile.relative or profile.models else "", None, spread)
    error = profile.median_error
    if prediction.dtype == "float16" and profile.float_error is not None:
        error = profile.float_error
    reason = _doubt(prediction)
    return Confidence("extrapolated" if reason else "calibrated", reason, error, spread)


def _spread(prediction: Prediction) -> float:
    profile = prediction.profile
    parts = [kind_of(prediction).value]
    if profile.relative:
        parts.append(_RELATIVE)
    elif not profile.calibrated:
        parts.append(_REPORTED if profile.models else _UNCALIBRATED)
    elif profile.median_error is not None:
        parts.append(profile.median_error)
    if prediction.cores > 1:
        parts.append(_SEVERAL_CORES)
    if prediction.sram_bytes:
        parts.append(_SRAM)
    return math.hypot(*parts)


def _doubt(prediction: Prediction) -> str:
    """Why a fitted profile does not state enough about this program; empty if it does."""
    if prediction.dtype not in ("int8", "float16"):
        return f"the numbers are those of int8 and float16 models, not {prediction.dtype}"
    if prediction.dtype == "float16" and prediction.profile.float_error is None:
        return "the numbers are those of int8 models, not float16"
    if prediction.sram_bytes:
        return "no numbers with SRAM are published"
    if prediction.cores > 1:
        return "one job on several cores: few numbers are published"
    latency = prediction.latency_us
    if not any(layer.time_us for layer in prediction.layers):
        return "no layer takes any time"
    if prediction.cpu_share > _LARGE_CPU_SHARE:
        kinds = dict.fromkeys(layer.kind for layer in prediction.layers if layer.bound.value == "cpu")
        return f"{', '.join(list(kinds)[:2])} on the CPU"
    if prediction.floor_share > _LARGE_FLOOR_SHARE:
        return "most layers are so small that their overhead counts"
    names = ("LSTM", "GRU") if prediction.dtype == "float16" else ("MatMul", "Gemm", "LSTM", "GRU")
    products = sum(layer.time_us for layer in prediction.layers if layer.does in names)
    if products > _LARGE_PRODUCT_SHARE * latency:
        return "recurrent layers were not measured" if len(names) == 2 else "matmuls and recurrent layers were not measured"
    return ""


CONTENTION = 0.25
"""How much longer memory takes for each further core that is busy; two pinned contexts were reported to reach 1.78 times one."""


SCATTER_FLOORS = 0.28e-3
"""What an element costs that a Reshape tears out of its block of channels, in floors: 6.4 ns in a public log of RK3588's layers."""


class Bound(str, enum.Enum):
    """What decides how long a layer takes."""

    COMPUTE = "compute"
    LOOKUP = "look-up"
    MEMORY = "memory"
    FLOOR = "floor"
    OPERATOR = "operator"  # a slow operator: Softmax, Transpose, a reduction
    CPU = "cpu"
    NONE = "none"  # the layer is fused to another one, or only an address


_BOUNDS = (Bound.COMPUTE, Bound.LOOKUP, Bound.MEMORY, Bound.FLOOR, Bound.OPERATOR, Bound.CPU)


@dataclass(frozen=True)
class LayerPrediction:
    """One layer on the chip.

    :ivar ddr_cycles: NPU cycles that its memory traffic takes
    :ivar npu_cycles: cycles of the MAC array; as in the vendor's tables, look-ups are not in them
    :ivar mac_share: multiply-accumulates in relation to the peak of all cores that work on it
    :ivar core_shares: how much of the work each core of the job does
    :ivar does: what it mainly does, by the name of an operator
    """

    name: str
    kind: str
    time_us: float
    bound: Bound
    npu_cycles: int
    ddr_cycles: int
    read_bytes: int
    written_bytes: int
    mac_share: float
    core_shares: tuple[float, ...]
    does: str = ""

    @property
    def total_cycles(self) -> int:
        """The larger of the two, as the vendor's tables have it."""
        return max(self.npu_cycles, self.ddr_cycles)


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """A program on a chip.

    :ivar overhead_us: time of a run that belongs to no layer; 0 unless a board was calibrated
    """

    chip: Chip
    dtype: str
    cores: int
    layers: tuple[LayerPrediction, ...]
    overhead_us: float
    weight_bytes: int
    memory_bytes: int
    confidence: Confidence
    profile: TimingProfile
    work: ProgramWork
    sram_bytes: int = 0

    def __repr__(self) -> str:
        return f"Prediction({self.chip.name}, {self.dtype}, {len(self.layers)} layers, {self.latency_us:.0f} us)"

    @cached_property
    def latency_us(self) -> float:
        """The time of one run."""
        return sum(layer.time_us for layer in self.layers) + self.overhead_us

    @property
    def cpu_share(self) -> float:
        """The part of the latency that CPU layers take."""
        spent = sum(layer.time_us for layer in self.layers if layer.bound is Bound.CPU)
        return spent / self.latency_us if spent else 0.0

    @property
    def floor_share(self) -> float:
        """The part of the latency that is spent in layers which take no longer than any layer has to."""
        return self.by_bound().get(Bound.FLOOR, 0.0) / self.latency_us if self.latency_us else 0.0

    @property
    def range_us(self) -> tuple[float, float]:
        """The range of the latency that holds four of five like networks."""
        return self.confidence.range(self.latency_us)

    @property
    def npu_cycles(self) -> int:
        return sum(layer.npu_cycles for layer in self.layers)

    @property
    def ddr_cycles(self) -> int:
        return sum(layer.ddr_cycles for layer in self.layers)

    @property
    def read_bytes(self) -> int:
        return sum(layer.read_bytes for layer in self.layers)

    @property
    def written_bytes(self) -> int:
        return sum(layer.written_bytes for layer in self.layers)

    @property
    def mac_share(self) -> float:
        """Multiply-accumulates in relation to the peak of the job's cores."""
        peak = peak_macs(self.chip, self.dtype) * self.chip.clock_hz / 1e6 * self.cores
        return sum(layer.macs for layer in self.work.layers) / (self.latency_us * peak) if self.latency_us else 0.0

    def by_bound(self) -> dict[Bound, float]:
        """Microseconds of the layers that each bound rules."""
        times: dict[Bound, float] = {}
        for layer in self.layers:
            times[layer.bound] = times.get(layer.bound, 0.0) + layer.time_us
        return times

    def busy_us(self, cores: int) -> float:
        """The time of one run while *cores* cores are busy with jobs of their own: they share the memory."""
        if cores == 1:
            return self.latency_us
        if cores not in self._busy:
            slowed = predict_work(self.work, self.chip, self.profile, sram_bytes=self.sram_bytes, busy=cores)
            self._busy[cores] = slowed.latency_us
        return self._busy[cores]

    @cached_property
    def _busy(self) -> dict[int, float]:
        return {}

    def batch_us(self, batch: int, cores: int) -> float:
        """The time of a run whose *batch* entries are shared among *cores* cores (``rknn_set_batch_core_num``).

        The program is that of the whole batch.
        """
        cores = _checked_cores(self.chip, min(cores, batch))
        return self.busy_us(cores) * -(-batch // cores) / batch


class TaskTable:
    """The tasks of a program as arrays: what a fit evaluates many times.

    :ivar layer: index of the layer that each task belongs to
    """

    def __init__(self, work: ProgramWork, rate: float, sram_bytes: int = 0) -> None:
        tasks = [task for layer in work.layers for task in layer.tasks]
        self.layer = np.array([index for index, layer in enumerate(work.layers) for _ in layer.tasks], np.intp)
        self.macs = np.array([task.macs for task in tasks], np.float64) / rate
        self.atoms = np.array([task.atoms for task in tasks], np.float64)
        self.own_weights = work.own_weights
        self.weights = np.array([0.0 if task.slow or task.cpu else task.weights for task in tasks], np.float64)
        self.bytes = np.array([_ddr_bytes(task, sram_bytes) for task in tasks], np.float64)
        self.slow = _column(tasks, "slow")
        self.cpu = _column(tasks, "cpu")
        self.calls = _column(tasks, "calls")
        self.cpu_macs = _column(tasks, "cpu_macs")
        self.normalised = _column(tasks, "normalised")
        self.moved = _column(tasks, "moved")
        self.scattered = _column(tasks, "scattered")
        self.heads = _column(tasks, "heads")
        self.scores = _column(tasks, "scores")

    def bounds(self, parameters: TimingParameters, floats: FloatParameters, *, memory: float = 1.0) -> Floats:
        """Nanoseconds by bound (compute, look-up, memory, floor, operator) and task; *memory* segments the memory's time."""
        weights = floats.weight_bytes_per_ns if self.own_weights else parameters.bytes_per_ns
        traffic = self.bytes / parameters.bytes_per_ns + self.weights / weights
        scores = self.heads * floats.head_ns + self.scores * floats.score_ns
        compute = self.macs / parameters.macs_per_ns
        operator = self.normalised * floats.norm_ns + self.moved * floats.move_ns + np.where(scores > 0, scores + compute, 0.0)
        operator += self.scattered * (SCATTER_FLOORS * parameters.floor_ns)
        floor = np.where((self.calls > 0), 0.0, parameters.floor_ns)
        return np.stack([compute, self.atoms * parameters.lookup_ns, traffic * memory, floor, operator])

    def extra(self, parameters: TimingParameters, floats: FloatParameters) -> Floats:
        """Nanoseconds that slow operators and the CPU add to each task."""
        element = np.where(self.calls > 0, floats.cpu_ns, parameters.cpu_ns)
        cpu = self.cpu * element + self.calls * floats.handover_ns + self.cpu_macs / floats.cpu_macs_per_ns
        return np.stack([self.slow * parameters.slow_ns, cpu])


def predict(
    program: Program,
    chip: Chip,
    *,
    cores: int = 1,
    profile: TimingProfile | None = None,
    sram_bytes: int = 0,
) -> Prediction:
    """How long *program* takes on *chip*.

    :param cores: cores that one job is given (a core mask of several); only some operators are shared among them
    :param profile: of a calibrated board; the chip's own if not given
    :param sram_bytes: on-chip memory that intermediate tensors may use

    >>> prediction = predict(model.programs[0], chips.get("rk3588"))    # doctest: +SKIP
    >>> prediction.latency_us, prediction.layers[0].bound                # doctest: +SKIP
    """
    return predict_work(work_of(program, chip), chip, profile, cores=cores, sram_bytes=sram_bytes)


def predict_work(
    work: ProgramWork,
    chip: Chip,
    profile: TimingProfile | None = None,
    *,
    cores: int = 1,
    sram_bytes: int = 0,
    busy: int | None = None,
) -> Prediction:
    """As :func:`predict`, for work that was counted before. *busy* is the number of cores that use the memory."""
    profile = profile or timing_profile(chip)
    cores = _checked_cores(chip, cores)
    parameters = profile.parameters
    table = TaskTable(work, relative_rate(chip, work.dtype), sram_bytes)
    stretched = 1.0 + CONTENTION * (max(busy or cores, 1) - 1)
    floats = profile.floats
    bounds = table.bounds(parameters, floats, memory=1.0 + CONTENTION * ((busy or 1) - 1))
    shared = _shared(table.bounds(parameters, floats, memory=stretched), cores, parameters) if cores > 1 else None
    extra = table.extra(parameters, floats)
    layers: list[LayerPrediction] = []
    first = 0
    for layer in work.layers:
        last = first + len(layer.tasks)
        alone, added = bounds[:, first:last], extra[:, first:last]
        splits = layer.splits and shared is not None and shared[first:last].sum() < alone.max(axis=0).sum()
        times = shared[first:last] if splits and shared is not None else alone.max(axis=0, initial=0.0)
        spent = (times.sum() + added.sum()) * parameters.scale / 1000.0
        layers.append(_layer(layer, chip, work.dtype, parameters, spent, _ruling(alone, added), cores if splits else 1, cores))
        first = last
    # A negative offset was fitted to models of some size: a tiny one still takes time, and so does a run of nothing.
    spent_us = sum(layer.time_us for layer in layers)
    offset = max(parameters.offset_ns / 1000.0, -0.5 * spent_us if spent_us else parameters.floor_ns / 1000.0)
    made = Prediction(
        chip,
        work.dtype,
        cores,
        tuple(layers),
        offset,
        work.weight_bytes,
        work.memory_bytes,
        Confidence("uncalibrated"),
        profile,
        work,
        sram_bytes,
    )
    return replace(made, confidence=assess(made))


def fps(prediction: Prediction, cores: int | None = None) -> float:
    """Runs in a second on *cores* cores (all of the chip's by default), each with a context of its own."""
    cores = _checked_cores(prediction.chip, prediction.chip.cores if cores is None else cores)
    return cores * 1e6 / prediction.busy_us(cores)


def _checked_cores(chip: Chip, cores: int) -> int:
    if not 1 <= cores <= chip.cores:
        raise DeviceError(f"{chip.name} has {chip.cores} cores, not {cores}", hint=f"use 1 to {chip.cores}")
    return cores


def _column(tasks: list[Task], name: str) -> Floats:
    return np.array([getattr(task, name) for task in tasks], np.float64)


def _ddr_bytes(task: Task, sram_bytes: int) -> float:
    """Bytes that go to memory outside the chip: activations that fit the SRAM together stay inside.

    The time of slow operators and of CPU layers, by element, has their traffic in it.
    """
    if task.slow or task.cpu:
        return 0.0
    activations = task.read + task.written
    return task.again if 0 < activations <= sram_bytes else task.again + activations


def _shared(bounds: Floats, cores: int, parameters: TimingParameters) -> Floats:
    """Nanoseconds by task where the cores share it; they wait for each other once, which takes a floor."""
    divided = np.delete(bounds, 3, axis=0) / cores
    return np.asarray(np.maximum(divided.max(axis=0, initial=0.0), bounds[3]) + parameters.floor_ns, np.float64)


def _ruling(bounds: Floats, extra: Floats) -> Bound:
    """What most of a layer's time is spent on."""
    if not bounds.shape[1]:
        return Bound.NONE
    spent = np.zeros(len(_BOUNDS))
    np.add.at(spent, bounds.argmax(axis=0), bounds.max(axis=0))
    spent[4:] += extra.sum(axis=1)
    if spent[5]:
        return Bound.CPU
    return _BOUNDS[int(spent.argmax())]


def _layer(
    layer: LayerWork,
    chip: Chip,
    dtype: str,
    parameters: TimingParameters,
    time_us: float,
    bound: Bound,
    sharing: int,
    cores: int,
) -> LayerPrediction:
    peak = peak_macs(chip, dtype)
    gigahertz = chip.clock_hz / 1e9
    read = sum(task.read + task.weights + task.again for task in layer.tasks)
    written = sum(task.written for task in layer.tasks)
    available = time_us * 1000.0 * gigahertz * peak * sharing
    working = layer.tasks and bound is not Bound.CPU
    return LayerPrediction(
        name=layer.name,
        kind=layer.kind,
        does=layer.does,
        time_us=float(time_us),
        bound=bound,
        npu_cycles=round(sum(task.macs for task in layer.tasks) / peak),
        ddr_cycles=round((read + written) / parameters.bytes_per_ns * gigahertz),
        read_bytes=round(read),
        written_bytes=round(written),
        mac_share=min(layer.macs / available, 1.0) if available else 0.0,
        core_shares=tuple(1.0 / sharing if working and core < sharing else 0.0 for core in range(cores)),
    )


# What layers on the board's CPU cost, in words, and what would keep them on the NPU.


_SHARE = 0.05
_MAX_LINES = 3


def cpu_costs(program: Program, prediction: Prediction) -> list[str]:
    """A sentence for each layer on the CPU that takes a good part of the time, the most costly first."""
    total = prediction.latency_us
    found = [
        (predicted.time_us, layer)
        for layer, predicted in zip(program.layers, prediction.layers, strict=True)
        if layer.placement is Placement.CPU and predicted.time_us > _SHARE * total
    ]
    found.sort(key=lambda entry: -entry[0])
    lines = []
    for spent, layer in found[:_MAX_LINES]:
        text = f"{layer.name}: this {_words(layer)} on the CPU takes {_ms(spent)} of {_ms(total)} ms"
        way = _way_out(layer)
        reason = f" ({layer.reason})" if layer.reason else ""
        lines.append(f"{text}{reason}" + (f"; {way}" if way else ""))
    return lines


def _ms(microseconds: float) -> str:
    value = microseconds / 1000.0
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _words(layer: Layer) -> str:
    names = {"Conv": "convolution", "ConvTranspose": "transposed convolution", "MatMul": "product", "Gemm": "product"}
    return names.get(layer.does, layer.does)


def _way_out(layer: Layer) -> str:
    """What would keep the layer on the NPU; empty where nothing is known."""
    limit = re.search(r"kernel \d+ is outside 1-(\d+)", layer.reason)
    if limit is None:
        return ""
    if layer.does == "Conv":
        return f"a kernel of {limit[1]} or two convolutions would keep it on the NPU"
    return f"a kernel of {limit[1]} at most, or two layers one after the other, would keep it on the NPU"
