"""Fitting the timing model to measured latencies, and how well that predicts a model it has not seen.

Few measurements only report a board's *scale* and *offset* against a chip; from :data:`FULL_FORM` int8 models on, the six parameters are
fitted. The error that is made small is that of the logarithm, with little weight on single models that do not fit at all. Small steps
away from the starting parameters are preferred, so that what the measurements do not state stays as it was.

All functions are pure and deterministic; nothing is random.

The texts that boards print about the time of a run: the vendor's tables of layers and what benchmark programs state.

Known are the table of ``RKNN_QUERY_PERF_DETAIL`` and of ``eval_perf`` (runtimes 1.x and 2.x), the short form of ``eval_perf``, the last
line of the vendor's benchmark program, and what the VIPLite runner prints. Of several times in a text the last one of the most exact kind
counts.

>>> read_perf_text("Avg Time 12.50ms, Avg FPS = 80.000").milliseconds
12.5
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..._util.types import Floats
from ...errors import CalibrationError
from .. import Chip
from .layers import ProgramWork, relative_rate
from .model import SCATTER_FLOORS, TaskTable, predict_work
from .parameters import TimingParameters, timing_profile

_MAX_TEXT = 16 << 20
_PATTERNS = (
    (re.compile(r"^\s*Total Operator Elapsed(?: Per Frame)? Time\(us\):\s*([\d.]+)", re.MULTILINE), 1e-3),
    (re.compile(r"^\s*Total Time\(us\):\s*([\d.]+)", re.MULTILINE), 1e-3),
    (re.compile(r"\bAvg Time[ =:]*([\d.]+)\s*ms", re.IGNORECASE), 1.0),
    (re.compile(r"\bprofile inference time[ =:]*([\d.]+)\s*us", re.IGNORECASE), 1e-3),
    (re.compile(r"\brun_duration[ =:]*([\d.]+)", re.IGNORECASE), 1e-3),
)
"""What gives the time of one run, and its unit in milliseconds; the most exact first."""

_OURS = re.compile(r"^Predicted for \S+, not measured", re.MULTILINE)
_ROW = re.compile(
    r"^\s*\d+\s+(\S+)\s+(INT8|UINT8|INT16|FLOAT16|FLOAT|INT4|UNKNOWN|INT64|BOOL)\s+(NPU|CPU|GPU)\s+(.*)$", re.MULTILINE
)


@dataclass(frozen=True)
class MeasuredLayer:
    """A row of a table of layers."""

    operator: str
    dtype: str
    target: str
    microseconds: float


@dataclass(frozen=True)
class PerfText:
    """What a text states.

    :ivar milliseconds: of one run
    :ivar dtype: what most layers compute in, as the compiler names it; empty where the text has no layers
    :ivar layers: rows of its table
    """

    milliseconds: float
    dtype: str = ""
    layers: tuple[MeasuredLayer, ...] = ()

    @property
    def cpu_share(self) -> float:
        """The part of the layers' time that is spent on the CPU."""
        total = sum(layer.microseconds for layer in self.layers)
        return sum(layer.microseconds for layer in self.layers if layer.target == "CPU") / total if total else 0.0


def read_perf_text(text: str) -> PerfText:
    """The time of one run in a board's text; rejected where there is none, or where it is a prediction of anynpu's own."""
    if len(text) > _MAX_TEXT:
        raise CalibrationError("the text of the board is too long", hint="keep the table of one run")
    if _OURS.search(text):
        raise CalibrationError("the text is a prediction of anynpu, not a measurement", hint="take the text from a board")
    for pattern, unit in _PATTERNS:
        found = pattern.findall(text)
        milliseconds = _number(found[-1]) * unit if found else math.nan
        if milliseconds > 0:
            layers = _layers(text)
            return PerfText(milliseconds, _dtype(layers), layers)
    raise CalibrationError(
        "the text has no time of a run",
        hint="give what rknn_query(PERF_DETAIL), eval_perf, the vendor's benchmark or the VIPLite runner printed",
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _layers(text: str) -> tuple[MeasuredLayer, ...]:
    """The rows of the table whose time can be determined: the first plain number behind the cycles."""
    found = []
    for operator, dtype, target, rest in _ROW.findall(text):
        cells = rest.split()
        cycles = next((index for index, cell in enumerate(cells) if re.fullmatch(r"\d+/\d+/\d+", cell)), None)
        if cycles is None or cycles + 1 >= len(cells) or operator in ("InputOperator", "OutputOperator"):
            continue
        microseconds = _number(cells[cycles + 1])
        if microseconds >= 0:
            found.append(MeasuredLayer(operator, dtype, target, microseconds))
    return tuple(found)


def _dtype(layers: Sequence[MeasuredLayer]) -> str:
    spent: dict[str, float] = {}
    names = {"INT8": "w8a8", "UINT8": "w8a8", "INT16": "w16a16", "FLOAT16": "fp16", "FLOAT": "fp16"}
    for layer in layers:
        if layer.target == "NPU" and layer.dtype in names:
            spent[names[layer.dtype]] = spent.get(names[layer.dtype], 0.0) + layer.microseconds
    return max(spent, key=lambda name: spent[name]) if spent else ""


FULL_FORM = 10
"""Measured int8 models from which on all six parameters are fitted."""

_FITTED = tuple(entry.name for entry in fields(TimingParameters))[:6]
_TOLERANCE = 0.05
"""Relative error beyond which a model begins to count as one that does not fit."""

_TETHER = 5e-4
"""Weight of the distance to the starting parameters, squared and in logarithms."""

_FIRST_STEP = 0.4
_LAST_STEP = 1e-3
_MAX_ROUNDS = 200


@dataclass(frozen=True)
class Measurement:
    """A model and what it took.

    :ivar cores: cores that one run had
    """

    name: str
    work: ProgramWork
    milliseconds: float
    cores: int = 1


@dataclass(frozen=True)
class Fit:
    """Fitted parameters and their errors.

    :ivar form: ``full`` or ``scale and offset``
    :ivar errors: relative error of each measurement with all of them known
    :ivar left_out: relative error of each measurement of the fit when it was not known; float16 models and runs on several cores are no
        part of a full fit
    """

    parameters: TimingParameters
    form: str
    errors: dict[str, float]
    left_out: dict[str, float]

    @property
    def median_error(self) -> float:
        """Median of the errors of models that were left out."""
        return statistics.median(abs(error) for error in self.left_out.values())

    @property
    def worst_error(self) -> float:
        return max(abs(error) for error in self.left_out.values())


def fit(measurements: Sequence[Measurement], chip: Chip, start: TimingParameters | None = None) -> Fit:
    """Fit *chip*, or a board with that chip, to measurements.

    :param start: parameters to begin with; the chip's own if not given
    """
    if not measurements:
        raise CalibrationError("there are no measurements", hint="measure two models at least")
    begin = start or timing_profile(chip).parameters
    known = _full_rows(measurements)
    form = "full"
    if len(known) < FULL_FORM:
        known, form = list(measurements), "scale and offset"
    solve = _solver(form, chip, begin)
    parameters = solve(known)
    errors = {entry.name: _error(entry, chip, parameters) for entry in measurements}
    return Fit(parameters, form, errors, cross_validate(known, chip, solve, begin))


def cross_validate(
    measurements: Sequence[Measurement],
    chip: Chip,
    solve: Callable[[Sequence[Measurement]], TimingParameters],
    alone: TimingParameters,
) -> dict[str, float]:
    """The error of each measurement when the others were fitted; *alone* are the parameters where there are no others."""
    errors = {}
    for index, entry in enumerate(measurements):
        others = [*measurements[:index], *measurements[index + 1 :]]
        errors[entry.name] = _error(entry, chip, solve(others) if others else alone)
    return errors


def _full_rows(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [entry for entry in measurements if entry.work.dtype == "int8" and entry.cores == 1]


def _error(entry: Measurement, chip: Chip, parameters: TimingParameters) -> float:
    return _milliseconds(entry, chip, parameters) / entry.milliseconds - 1.0


def _milliseconds(entry: Measurement, chip: Chip, parameters: TimingParameters) -> float:
    profile = replace(timing_profile(chip), parameters=parameters)
    return predict_work(entry.work, chip, profile, cores=entry.cores).latency_us / 1000.0


def _solver(form: str, chip: Chip, begin: TimingParameters) -> Callable[[Sequence[Measurement]], TimingParameters]:
    if form == "full":
        return lambda measurements: fit_parameters(measurements, chip, begin)
    return lambda measurements: _fit_line(measurements, chip, begin)


def _fit_line(measurements: Sequence[Measurement], chip: Chip, begin: TimingParameters) -> TimingParameters:
    """Scale and offset by iteratively reweighted least squares of relative errors; one measurement only gives a scale."""
    plain = replace(begin, scale=1.0, offset_ns=0.0)
    predicted = np.array([_milliseconds(entry, chip, plain) for entry in measurements])
    measured = np.array([entry.milliseconds for entry in measurements])
    ratio = float(np.exp(np.median(np.log(measured / predicted))))
    spread = predicted.max() / predicted.min()
    if len(measurements) < 2 or spread < 1.2:  # models that take equally long do not report the two apart
        return replace(plain, scale=ratio)
    weights = np.ones(len(measured))
    scale, offset = ratio, 0.0
    for _ in range(30):
        rows = np.stack([predicted, np.ones_like(predicted)], axis=1) * (weights / measured)[:, None]
        solution, *_ = np.linalg.lstsq(rows, weights, rcond=None)
        scale, offset = float(solution[0]), float(solution[1])
        errors = (scale * predicted + offset) / measured - 1.0
        weights = 1.0 / np.sqrt(1.0 + (errors / _TOLERANCE) ** 2)
    if scale <= 0 or min(scale * predicted + offset) <= 0:
        return replace(plain, scale=ratio)
    return replace(plain, scale=scale, offset_ns=offset * 1e6)


def fit_parameters(measurements: Sequence[Measurement], chip: Chip, begin: TimingParameters) -> TimingParameters:
    """All six parameters, by a search along each of them in logarithms."""
    joined = _Joined([TaskTable(entry.work, relative_rate(chip, entry.work.dtype)) for entry in measurements])
    measured = np.log([entry.milliseconds * 1e6 for entry in measurements])
    origin = np.log([getattr(begin, name) for name in _FITTED])

    def loss(point: Floats) -> float:
        errors = np.log(joined.totals_ns(_parameters(point))) - measured
        away = float(np.mean((point - origin) ** 2))
        return float(np.mean(np.log1p((errors / _TOLERANCE) ** 2))) * _TOLERANCE + _TETHER * away

    return _parameters(_descend(loss, origin))


def _parameters(point: Floats) -> TimingParameters:
    return TimingParameters(**dict(zip(_FITTED, np.exp(point).tolist(), strict=True)))


def _descend(loss: Callable[[Floats], float], start: Floats) -> Floats:
    """The point of least loss that steps along single axes reach, from several starting widths."""
    point: Floats = start.copy()
    best = loss(start)
    for width in (_FIRST_STEP, _FIRST_STEP / 4, _FIRST_STEP):
        steps = np.full(len(point), width)
        for _ in range(_MAX_ROUNDS):
            for axis in range(len(point)):
                for sign in (1.0, -1.0):
                    candidate = point.copy()
                    candidate[axis] += sign * steps[axis]
                    value = loss(candidate)
                    if value < best - 1e-10:
                        point, best = candidate, value
                        steps[axis] *= 1.5
                        break
                else:
                    steps[axis] *= 0.5
            if steps.max() < _LAST_STEP:
                break
    return point


class _Joined:
    """The tasks of several programs in one table, with a sum for each program."""

    def __init__(self, tables: Sequence[TaskTable]) -> None:
        self._starts = np.cumsum([0, *(len(table.macs) for table in tables[:-1])])
        self._slow = np.array([table.slow.sum() for table in tables])
        self._cpu = np.array([table.cpu.sum() for table in tables])
        self._macs = np.concatenate([table.macs for table in tables])
        self._atoms = np.concatenate([table.atoms for table in tables])
        self._bytes = np.concatenate([table.bytes + table.weights for table in tables])
        self._scattered = np.concatenate([table.scattered for table in tables])

    def totals_ns(self, parameters: TimingParameters) -> Floats:
        """Nanoseconds of each program."""
        times = np.maximum(self._macs / parameters.macs_per_ns, self._atoms * parameters.lookup_ns)
        np.maximum(times, self._bytes / parameters.bytes_per_ns, out=times)
        np.maximum(times, self._scattered * (SCATTER_FLOORS * parameters.floor_ns), out=times)
        np.maximum(times, parameters.floor_ns, out=times)
        sums = np.add.reduceat(times, self._starts)
        return np.asarray(sums + self._slow * parameters.slow_ns + self._cpu * parameters.cpu_ns, np.float64)
