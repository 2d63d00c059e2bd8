"""The texts that boards print about the time of a run: the vendor's tables of layers and what benchmark programs say.

Known are the table of ``RKNN_QUERY_PERF_DETAIL`` and of ``eval_perf`` (runtimes 1.x and 2.x), the short form of ``eval_perf``, the last
line of the vendor's benchmark program, and what the VIPLite runner prints. Of several times in a text the last one of the most exact kind
counts.

>>> read_perf_text("Avg Time 12.50ms, Avg FPS = 80.000").milliseconds
12.5
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import CalibrationError

__all__ = ["MeasuredLayer", "PerfText", "read_perf_text"]

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
    """What a text says.

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
    """The time of one run in a board's text; refused where there is none, or where it is a prediction of anynpu's own."""
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
    """The rows of the table whose time can be told: the first plain number behind the cycles."""
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
