"""``anynpu predict``: predict latency without hardware."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from xml.sax.saxutils import escape

import typer
from rich.table import Table

from ... import chips
from ..._util.output_files import write_output
from ...chips import Chip
from ...chips.timing import Bound, Prediction, fps, predict
from ...chips.timing.board import read_board
from ...chips.timing.matmul import parse_types
from ...chips.timing.model import cpu_costs
from ...chips.timing.parameters import TimingProfile
from ...errors import AnynpuError, CompileError
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
from ..helpers.predict_output import matmul_json, matmul_table, parse_extents, products, range_text, rate_text, time_text

# Charts as SVG text, without a plotting library.


_COLOURS = {
    Bound.COMPUTE: "#00796b",
    Bound.LOOKUP: "#f9a825",
    Bound.MEMORY: "#1565c0",
    Bound.FLOOR: "#90a4ae",
    Bound.OPERATOR: "#6a1b9a",
    Bound.CPU: "#c62828",
}
_WORDS = {Bound.OPERATOR: "slow operators", Bound.FLOOR: "small layers", Bound.CPU: "CPU layers", Bound.LOOKUP: "look-up tables"}
_LEFT, _RIGHT, _TOP, _ROW, _BAR, _WIDTH = 90, 190, 84, 26, 16, 960


def prediction_chart(title: str, predictions: Sequence[Prediction]) -> str:
    """A bar for each chip: its latency, in parts by what rules the layers; fastest first."""
    ordered = sorted(predictions, key=lambda entry: entry.latency_us)
    height = _TOP + _ROW * len(ordered) + 34
    longest = max((entry.latency_us for entry in ordered), default=1.0)
    plot_width = _WIDTH - _LEFT - _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold" fill="#212121">{escape(title)}</text>',
    ]
    parts += _legend([bound for bound in _COLOURS if any(entry.by_bound().get(bound) for entry in ordered)])
    parts += _axis(longest, plot_width, height)
    for index, entry in enumerate(ordered):
        parts += _bar(entry, _TOP + index * _ROW, plot_width / longest)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(bounds: Sequence[Bound]) -> list[str]:
    parts = []
    x = 16
    for bound in bounds:
        words = _WORDS.get(bound, bound.value)
        parts.append(f'<rect x="{x}" y="42" width="12" height="12" fill="{_COLOURS[bound]}"/>')
        parts.append(f'<text x="{x + 18}" y="52" fill="#424242">{words}</text>')
        x += 40 + 7 * len(words)
    return parts


def _axis(longest: float, width: float, height: int) -> list[str]:
    parts = []
    step = _tick(longest / 1000.0)
    count = int(longest / 1000.0 / step)
    for index in range(count + 1):
        x = _LEFT + index * step * 1000.0 / longest * width
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 26}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" fill="#616161">{index * step:g} ms</text>')
    return parts


def _bar(entry: Prediction, y: float, per_us: float) -> list[str]:
    middle = y + _BAR - 4
    parts = [f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end" fill="#212121">{escape(entry.chip.name)}</text>']
    x = float(_LEFT)
    faint = ' fill-opacity="0.55"' if entry.confidence.level == "uncalibrated" else ""
    times = entry.by_bound()
    for bound, colour in _COLOURS.items():
        width = times.get(bound, 0.0) * per_us
        if width > 0:
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"{faint}/>')
            x += width
    label = f"{entry.latency_us / 1000:.1f} ms, {entry.confidence.level}"
    parts.append(f'<text x="{x + 6:.1f}" y="{middle}" fill="#424242">{label}</text>')
    return parts


def _tick(longest: float) -> float:
    """A round distance that divides an axis into four to ten parts.

    >>> _tick(97.0), _tick(3.0)
    (20.0, 0.5)
    """
    size = 10.0 ** len(str(int(longest)))
    while longest / size < 4:
        for factor in (2.0, 2.5, 2.0):
            size /= factor
            if longest / size >= 4:
                break
    return size


_USABLE_MEMORY = 0.9
"""The share of the memory in a chip's package that a model can have at the very most; the rest is the system's."""


class TimedPrecision(str, enum.Enum):
    """What a model computes in."""

    INT8 = "int8"
    FP16 = "fp16"
    INT16 = "int16"
    W8A8 = "w8a8"

    @property
    def compiler_name(self) -> str:
        return {"int8": "w8a8", "int16": "w16a16"}.get(self.value, self.value)


class MatrixLayout(str, enum.Enum):
    """How A and C of a product lie in memory."""

    NATIVE = "native"
    NORMAL = "normal"


@dataclass(frozen=True)
class _Row:
    """A chip, and its prediction or why there is none."""

    chip: Chip
    prediction: Prediction | None = None
    reason: str = ""
    memory_bytes: int | None = None
    advice: tuple[str, ...] = ()


def _optional_target(value: str | None) -> str | None:
    return None if value is None else chip_or_all(value)


def command(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="An ONNX model, or a compiled one.", exists=True, dir_okay=False, readable=True),
    ] = None,
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
    cores: Annotated[
        int, typer.Option("--cores", min=1, max=3, metavar="N", help="Cores per run, at most those that the chip has.")
    ] = 1,
    matmul: Annotated[
        str | None, typer.Option("--matmul", metavar="MxKxN", help="A matmul instead of a model, such as 1x4096x4096.")
    ] = None,
    types: Annotated[
        str, typer.Option("--types", metavar="A*B->C", help="Data types of --matmul, as A*B->C.")
    ] = "int8*int8->int32",
    layout: Annotated[
        MatrixLayout, typer.Option("--layout", help="Memory layout of A and C for --matmul.")
    ] = MatrixLayout.NATIVE,
    board: BoardOption = None,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    layers: LayersOption = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the latencies.", dir_okay=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict how long a model takes on a chip.

    Latency on one core with the range that holds four of five like networks, frames per second on one and on all cores, memory, and how
    far to trust it. The weights of an ONNX model may be stripped: shapes and types are enough. Instead of a model: a call of the matmul
    API (--matmul).

    \b
    Example:
      anynpu predict yolo.onnx --target all
      anynpu predict yolo.rknn --layers
      anynpu predict yolo.onnx --board desk.json --json
      anynpu predict --matmul 1x4096x4096 --types "int8*int8->int32" --target rk3588
    """
    _one_subject(model, matmul)
    if matmul is not None:
        _print_product(matmul, types, layout, target, as_json=as_json)
        return
    assert model is not None
    shapes = parse_shapes(shape)
    if isinstance(shapes, list):
        raise typer.BadParameter("a prediction has one shape for each input; run it again for another", param_hint="'--shape'")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter(f"{plot.name}: plots are SVG images; name it .svg", param_hint="'--plot'")
    profile = read_board(board) if board is not None else None
    subject = TimedModel(model, shapes=shapes, batch=batch)
    wanted = subject.dtype(dtype.compiler_name if dtype is not None else None)
    rows = [_row(subject, chip, wanted, profile, cores) for chip in _asked_chips(subject, target, profile)]
    if layers and len(rows) > 1:
        raise typer.BadParameter("the list of layers needs one chip, not all of them", param_hint="'--layers'")
    if all(row.prediction is None for row in rows):
        raise CompileError(f"{model.name} cannot run: {rows[0].chip.name}: {rows[0].reason}", hint="choose another chip or type")
    words = {"w8a8": "int8", "w16a16": "int16"}.get(wanted, wanted)
    if plot is not None:
        made = [row.prediction for row in rows if row.prediction is not None]
        write_output(plot, prediction_chart(f"{model.name}, {words}: one run on one core", made))
    if as_json:
        print_json({"model": model.name, "dtype": words, "predictions": [_row_json(row) for row in rows]})
        return
    console = results()
    console.print(_chip_table(rows, "one core" if cores == 1 else f"{cores} cores"))
    _print_notes(rows)
    if layers and rows[0].prediction is not None:
        console.print()
        console.print(_layer_table(rows[0].prediction))


def _one_subject(model: Path | None, matmul: str | None) -> None:
    if model is None and matmul is None:
        raise typer.BadParameter("give a model or --matmul MxKxN", param_hint="'MODEL'")
    if model is not None and matmul is not None:
        raise typer.BadParameter("MODEL and --matmul are too much for one prediction; give one of them", param_hint="'--matmul'")


def _named_chips(target: str | None) -> list[Chip]:
    return list(chips.all_chips()) if target in (None, ALL_CHIPS) else [chips.get(str(target))]


def _print_product(text: str, types: str, layout: MatrixLayout, target: str | None, *, as_json: bool) -> None:
    extents, kinds = parse_extents(text), parse_types(types)
    asked = _named_chips(target)
    rows = products(asked, extents, kinds, layout.value)
    if not rows:
        raise CompileError(f"{asked[0].name} has no matmul calls", hint="choose another chip, or --target all")
    if as_json:
        print_json({"matmul": list(extents), "types": str(kinds), "layout": layout.value, "predictions": matmul_json(rows)})
        return
    results().print(matmul_table(rows, extents))


def _print_notes(rows: list[_Row]) -> None:
    """Costly layers on the CPU, for the first chip that has any."""
    console = results()
    for row in rows:
        if row.advice:
            console.print()
            for line in row.advice:
                console.print(f"{row.chip.name}: {line}", markup=False, highlight=False)
            break


def _asked_chips(subject: TimedModel, target: str | None, profile: TimingProfile | None) -> list[Chip]:
    if profile is not None:
        if target not in (None, profile.chip):
            raise typer.BadParameter(f"the board has a {profile.chip}; leave the target out", param_hint="'--target'")
        return [chips.get(profile.chip)]
    if target is None and subject.compiled is not None:
        return [chips.get(subject.compiled.chip)]
    return _named_chips(target)


def _row(subject: TimedModel, chip: Chip, dtype: str, profile: TimingProfile | None, cores: int = 1) -> _Row:
    try:
        program = subject.program(chip, dtype)
    except AnynpuError as refusal:
        return _Row(chip, reason=refusal.message)
    prediction = predict(program, chip, profile=profile, cores=min(cores, chip.cores))
    compiled = subject.compiled
    if compiled is not None and compiled.chip != chip.name and prediction.confidence.level == "calibrated":
        doubt = replace(prediction.confidence, level="extrapolated", reason=f"it was compiled for {compiled.chip}")
        prediction = replace(prediction, confidence=doubt)
    usable = None if chip.dram_bytes is None else int(chip.dram_bytes * _USABLE_MEMORY)
    if usable is not None and prediction.memory_bytes > usable:
        needed, available = size_text(prediction.memory_bytes), size_text(usable)
        return _Row(chip, reason=f"does not fit: {needed} needed, {available} available", memory_bytes=prediction.memory_bytes)
    advice = tuple(cpu_costs(program, prediction))
    return _Row(chip, prediction, "", prediction.memory_bytes, advice)


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
        **({"cores": prediction.cores} if prediction.cores > 1 else {}),
        "latency_ms_range": [round(value / 1000.0, 4) for value in prediction.range_us],
        **({"advice": list(row.advice)} if row.advice else {}),
    }


def _chip_table(rows: list[_Row], title: str = "one core") -> Table:
    values = (title, "80 % range", "fps", "all cores", "memory", "CPU layers")
    table = plain_table("chip", *values, "confidence", right=values)
    for row in rows:
        prediction = row.prediction
        if prediction is None:
            memory = "" if row.memory_bytes is None else size_text(row.memory_bytes)
            table.add_row(row.chip.name, "-", "", "", "", memory, "", row.reason)
            continue
        about = "~" if prediction.confidence.level == "uncalibrated" else ""
        table.add_row(
            row.chip.name,
            f"{about}{time_text(prediction.latency_us)}",
            range_text(*prediction.range_us),
            f"{about}{rate_text(fps(prediction, 1))}",
            f"{about}{rate_text(fps(prediction))} fps",
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
            time_text(layer.time_us),
            layer.bound.value,
            numbers(layer.npu_cycles),
            numbers(layer.ddr_cycles),
            f"{100 * layer.mac_share:.0f} %",
            size_text(layer.read_bytes),
            size_text(layer.written_bytes),
        )
    return table
