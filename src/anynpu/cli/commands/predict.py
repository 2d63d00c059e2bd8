"""``anynpu predict``: how long a model takes on chips that are not there."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ... import chips
from ...chips import Chip
from ...chips.timing import TimingProfile
from ...errors import AnynpuError, CompileError
from ...timing import Bound, Confidence, Prediction, fps, predict
from ...timing.board import read_board
from ..helpers.console import numbers, plain_table, print_json, results, size_text
from ..helpers.models import TimedModel
from ..helpers.options import (
    ALL_CHIPS,
    BatchOption,
    BoardOption,
    JsonOption,
    LayersOption,
    ShapeOption,
    chip_or_all,
    parse_shapes,
)
from ..helpers.plots import prediction_chart

__all__ = ["command"]

_USABLE_MEMORY = 0.9
"""The share of the memory in a chip's package that a model can have at the very most; the rest is the system's."""


class TimedPrecision(str, enum.Enum):
    """What a model computes in."""

    INT8 = "int8"
    FP16 = "fp16"
    INT16 = "int16"

    @property
    def compiler_name(self) -> str:
        return {"int8": "w8a8", "fp16": "fp16", "int16": "w16a16"}[self.value]


@dataclass(frozen=True)
class _Row:
    """A chip, and its prediction or why there is none."""

    chip: Chip
    prediction: Prediction | None = None
    reason: str = ""
    memory_bytes: int | None = None


def _optional_target(value: str | None) -> str | None:
    return None if value is None else chip_or_all(value)


def command(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An ONNX model, or a compiled one.", exists=True, dir_okay=False, readable=True),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="CHIP|all",
            help="The chip, or all of them; all by default, for a compiled model its own.",
            callback=_optional_target,
        ),
    ] = None,
    dtype: Annotated[TimedPrecision | None, typer.Option("--dtype", help="int8 by default.")] = None,
    board: BoardOption = None,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    layers: LayersOption = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the latencies.", dir_okay=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict how long a model takes on a chip.

    Latency on one core, frames per second on one and on all cores, memory, and how far to trust it. The weights of an ONNX model may be
    stripped: shapes and types are enough.

    \b
    Example:
      anynpu predict yolo.onnx --target all
      anynpu predict yolo.rknn --layers
      anynpu predict yolo.onnx --board desk.json --json
    """
    shapes = parse_shapes(shape)
    if isinstance(shapes, list):
        raise typer.BadParameter("a prediction has one shape for each input; run it again for another", param_hint="'--shape'")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{plot.name}: plots are SVG pictures; name it .svg", param_hint="'--plot'")
    profile = read_board(board) if board is not None else None
    subject = TimedModel(model, shapes=shapes, batch=batch)
    wanted = subject.dtype(dtype.compiler_name if dtype is not None else None)
    rows = [_row(subject, chip, wanted, profile) for chip in _asked_chips(subject, target, profile)]
    if layers and len(rows) > 1:
        raise typer.BadParameter("the list of layers needs one chip, not all of them", param_hint="'--layers'")
    if all(row.prediction is None for row in rows):
        raise CompileError(f"{model.name} cannot run: {rows[0].chip.name}: {rows[0].reason}", hint="choose another chip or type")
    words = {entry.compiler_name: entry.value for entry in TimedPrecision}.get(wanted, wanted)
    if plot is not None:
        made = [row.prediction for row in rows if row.prediction is not None]
        plot.write_text(prediction_chart(f"{model.name}, {words}: one run on one core", made), encoding="utf-8")
    if as_json:
        print_json({"model": model.name, "dtype": words, "predictions": [_row_json(row) for row in rows]})
        return
    console = results()
    console.print(_chip_table(rows))
    if layers and rows[0].prediction is not None:
        console.print()
        console.print(_layer_table(rows[0].prediction))


def _asked_chips(subject: TimedModel, target: str | None, profile: TimingProfile | None) -> list[Chip]:
    if profile is not None:
        if target not in (None, profile.chip):
            raise typer.BadParameter(f"the board has a {profile.chip}; leave the target out", param_hint="'--target'")
        return [chips.get(profile.chip)]
    if target is None and subject.compiled is not None:
        return [chips.get(subject.compiled.chip)]
    return list(chips.all_chips()) if target in (None, ALL_CHIPS) else [chips.get(str(target))]


def _row(subject: TimedModel, chip: Chip, dtype: str, profile: TimingProfile | None) -> _Row:
    try:
        program = subject.program(chip, dtype)
    except AnynpuError as refusal:
        return _Row(chip, reason=refusal.message)
    prediction = predict(program, chip, profile=profile)
    compiled = subject.compiled
    if compiled is not None and compiled.chip != chip.name and prediction.confidence.level == "calibrated":
        doubt = Confidence("extrapolated", f"it was compiled for {compiled.chip}", prediction.confidence.error)
        prediction = replace(prediction, confidence=doubt)
    usable = None if chip.dram_bytes is None else int(chip.dram_bytes * _USABLE_MEMORY)
    if usable is not None and prediction.memory_bytes > usable:
        needed, available = size_text(prediction.memory_bytes), size_text(usable)
        return _Row(chip, reason=f"does not fit: {needed} needed, {available} available", memory_bytes=prediction.memory_bytes)
    return _Row(chip, prediction, memory_bytes=prediction.memory_bytes)


def _row_json(row: _Row) -> dict[str, Any]:
    prediction = row.prediction
    if prediction is None:
        empty = dict.fromkeys(("latency_ms", "fps_one_core", "fps_all_cores"))
        memory = {"memory_bytes": row.memory_bytes, "cpu_share": None, "confidence": "uncalibrated"}
        return {"chip": row.chip.name, **empty, **memory, "reason": row.reason}
    return {
        "chip": row.chip.name,
        "latency_ms": round(prediction.latency_us / 1000.0, 4),
        "fps_one_core": round(fps(prediction, 1), 3),
        "fps_all_cores": round(fps(prediction), 3),
        "memory_bytes": prediction.memory_bytes,
        "cpu_share": round(prediction.cpu_share, 4),
        "confidence": prediction.confidence.level,
    }


def _chip_table(rows: list[_Row]) -> Table:
    values = ("one core", "fps", "all cores", "memory", "CPU layers")
    table = plain_table("chip", *values, "confidence", right=values)
    for row in rows:
        prediction = row.prediction
        if prediction is None:
            memory = "" if row.memory_bytes is None else size_text(row.memory_bytes)
            table.add_row(row.chip.name, "-", "", "", memory, "", row.reason)
            continue
        about = "~" if prediction.confidence.level == "uncalibrated" else ""
        table.add_row(
            row.chip.name,
            f"{about}{_time(prediction.latency_us)}",
            f"{about}{_rate(fps(prediction, 1))}",
            f"{about}{_rate(fps(prediction))} fps",
            size_text(prediction.memory_bytes),
            f"{100 * prediction.cpu_share:.0f} %",
            str(prediction.confidence),
        )
    return table


def _layer_table(prediction: Prediction) -> Table:
    counts = ("#", "time", "NPU cycles", "DDR cycles", "MAC", "read", "write")
    table = plain_table("#", "layer", "operator", "time", "bound", *counts[2:], right=counts)
    for index, layer in enumerate(prediction.layers):
        if layer.bound is Bound.NONE:
            table.add_row(str(index), layer.name, layer.kind, "-", "fused")
            continue
        table.add_row(
            str(index),
            layer.name,
            layer.kind,
            _time(layer.time_us),
            layer.bound.value,
            numbers(layer.npu_cycles),
            numbers(layer.ddr_cycles),
            f"{100 * layer.mac_share:.0f} %",
            size_text(layer.read_bytes),
            size_text(layer.written_bytes),
        )
    return table


def _time(microseconds: float) -> str:
    """A time for reading.

    >>> _time(13_612.0), _time(23.4)
    ('13.6 ms', '23 us')
    """
    if microseconds < 1000.0:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1000:.2f} ms" if microseconds < 10_000 else f"{microseconds / 1000:.1f} ms"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
