"""``anynpu calibrate``: fit the timing model to measured models."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ... import chips
from ...chips.timing.board import write_board
from ...chips.timing.calibration import Fit, Measurement, fit, read_perf_text
from ...chips.timing.layers import ProgramWork, work_of
from ...chips.timing.parameters import TimingProfile, derived_parameters, timing_profile
from ...errors import CalibrationError
from ..helpers.console import ProgressFunction, plain_table, print_json, progress_bar, results
from ..helpers.models import TimedModel
from ..helpers.options import JsonOption, TargetOption

# What ``anynpu calibrate`` reads: CSV files with one measured model per line, and the texts that boards print.


_MODEL = ("model", "graph", "path", "file")
_MILLISECONDS = ("ms", "measured_ms", "latency_ms")
_FPS = ("fps", "measured_fps", "published_fps")
_LOG = ("log", "perf")
_CHIP = ("chip", "target")
_TYPES = {
    "": "w8a8",
    "int8": "w8a8",
    "i8": "w8a8",
    "w8a8": "w8a8",
    "fp16": "fp16",
    "float16": "fp16",
    "w16a16": "w16a16",
    "int16": "w16a16",
}
_MAX_ROWS = 10_000
_EXAMPLE = "the first line names the columns: model,ms (or fps, or log) and, if wanted, dtype, cores, chip"


@dataclass(frozen=True)
class Row:
    """One line.

    :ivar chip: the catalogue's name; empty where the file does not state
    """

    model: Path
    milliseconds: float
    dtype: str = "w8a8"
    cores: int = 1
    chip: str = ""


def read_rows(path: Path, folder: Path | None = None) -> list[Row]:
    """The measurements of a file; models are looked for in *folder*, or beside the file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(path, csv.DictReader(file), folder or path.parent))
    except (UnicodeDecodeError, csv.Error) as error:
        raise CalibrationError(f"{path.name} is not a CSV file: {error}", hint=_EXAMPLE) from error
    if not rows:
        raise CalibrationError(f"{path.name} has no measurements", hint=_EXAMPLE)
    return rows


def read_logs(pairs: Sequence[str]) -> list[Row]:
    """The measurements of ``MODEL=TEXT`` pairs: a model, and a file with what the board printed when it ran."""
    rows = []
    for pair in pairs:
        model, _, text = pair.rpartition("=")
        if not model or not text:
            raise CalibrationError(f"'{pair}' does not name a model and a text", hint="write --log yolov8n.onnx=perf.txt")
        rows.append(_logged(Path(model), Path(text), ""))
    return rows


def _logged(model: Path, text: Path, dtype: str) -> Row:
    try:
        read = read_perf_text(text.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise CalibrationError(f"{text.name} cannot be read: {error.strerror}", hint="check the path") from error
    except CalibrationError as error:
        raise CalibrationError(f"{text.name}: {error.message}", hint=error.hint) from error
    return Row(model, read.milliseconds, dtype or read.dtype or "w8a8")


def _rows(path: Path, reader: csv.DictReader[str], folder: Path) -> Iterator[Row]:
    columns = {(name or "").strip().lower(): name for name in reader.fieldnames or ()}

    def column(names: tuple[str, ...]) -> str | None:
        return next((columns[name] for name in names if name in columns), None)

    model, milliseconds, rate, log = column(_MODEL), column(_MILLISECONDS), column(_FPS), column(_LOG)
    if model is None or (milliseconds is None and rate is None and log is None):
        raise CalibrationError(f"{path.name} has no column for the {'model' if model is None else 'time'}", hint=_EXAMPLE)
    dtype, cores, chip = column(("dtype",)), column(("cores",)), column(_CHIP)
    for line, entry in enumerate(reader, 2):
        where = f"{path.name}, line {line}"
        if line > _MAX_ROWS:
            raise CalibrationError(f"{path.name} has more than {_MAX_ROWS} lines", hint="calibrate with two to twenty models")
        values = {name: (entry.get(name) or "").strip() for name in (model, milliseconds, rate, log, dtype, cores, chip) if name}
        if not any(values.values()):
            continue
        taken = values[milliseconds] if milliseconds else ""
        kind = _TYPES.get(values[dtype].lower() if dtype else "")
        if log and values[log] and not taken:
            logged = _logged(folder / values[model], folder / values[log], kind or "" if dtype and values[dtype] else "")
            time, kind = logged.milliseconds, logged.dtype if kind is not None else None
        else:
            time = _positive(taken, where) if taken else 1000.0 / _positive(values[rate] if rate else "", where)
        if kind is None:
            raise CalibrationError(f"{where}: there is no type {values[dtype or '']!r}", hint="write int8, fp16 or int16")
        yield Row(
            folder / values[model],
            time,
            kind,
            _count(values[cores], where) if cores and values[cores] else 1,
            chips.get(values[chip]).name if chip and values[chip] else "",
        )


def _positive(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise CalibrationError(f"{where}: {text!r} is not a positive number", hint="give milliseconds, or frames per second")
    return value


def _count(text: str, where: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise CalibrationError(f"{where}: {text!r} is not a number of cores", hint="give 1, 2 or 3")
    return int(text)


_OUTLIER = 0.15


def command(
    target: TargetOption,
    measured: Annotated[
        Path | None,
        typer.Argument(
            metavar="MEASURED.csv",
            help="One line per model: model,ms or model,fps or model,log; also dtype, cores, chip.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log", metavar="MODEL=TEXT", help="A model and the performance log that the board printed for it. Repeat for more."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The profile to write (JSON).", dir_okay=False)
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="FOLDER", help="Where the models are.", exists=True, file_okay=False),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from the hardware's published numbers, not from the chip's calibrated profile.")
    ] = False,
    sdk: Annotated[
        str, typer.Option("--sdk", metavar="VERSION", help="Version of the vendor's software that was measured.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Fit the timing model to measured models.

    Times come from a CSV file, or straight from what a board printed: the vendor's table of layers (PERF_DETAIL, eval_perf), its
    benchmark program, the VIPLite runner. Two to nine models give a board's scale and offset against its chip; ten and more int8
    models give all six parameters. The errors of models that were left out of the fit are printed. Other commands use the profile
    with --board FILE.

    \b
    Example:
      anynpu calibrate measured.csv --target rk3588 -o desk.json
      anynpu calibrate --log yolo.onnx=perf.txt --log resnet.onnx=perf2.txt --target rk3588 -o desk.json
      anynpu predict yolo.onnx --board desk.json
    """
    chip = chips.get(target)
    if measured is None and not log:
        raise typer.BadParameter("give a CSV file, or --log MODEL=TEXT", param_hint="'MEASURED.csv'")
    given = [*(read_rows(measured, models) if measured is not None else ()), *read_logs(log or ())]
    rows = [row for row in given if row.chip in ("", chip.name)]
    origin = measured.name if measured is not None else "performance logs"
    if not rows:
        raise CalibrationError(f"{origin} has no measurements of {chip.name}", hint="name the chip that was measured")
    known = timing_profile(chip)
    start = derived_parameters(chip) if fresh else known.parameters
    with progress_bar(f"reading {len(rows)} models") as progress:
        entries = _measurements(rows, chip, progress)
    fitted = fit(entries, chip, start)
    profile = TimingProfile(
        chip.name,
        fitted.parameters,
        True,
        f"{len(fitted.left_out)} models of {origin}, {fitted.form}",
        sdk,
        len(fitted.left_out),
        fitted.median_error,
        fitted.worst_error,
        {name: round(error, 3) for name, error in fitted.left_out.items() if abs(error) > _OUTLIER},
        float_numbers=known.float_numbers,
        float_error=known.float_error,
    )
    if output is not None:
        write_board(profile, output)
    if as_json:
        print_json(_as_json(profile, fitted, entries))
    else:
        _print(profile, fitted, entries, output)


def _measurements(rows: list[Row], chip: chips.Chip, progress: ProgressFunction) -> list[Measurement]:
    known: dict[Path, TimedModel] = {}
    entries: list[Measurement] = []
    names: set[str] = set()
    for index, row in enumerate(rows):
        progress(row.model.name, index, len(rows))
        if row.cores > chip.cores:
            raise CalibrationError(
                f"{row.model.name}: {chip.name} has {chip.cores} cores, not {row.cores}", hint="check the file"
            )
        if row.model not in known:
            known[row.model] = TimedModel(row.model)
        work: ProgramWork = work_of(known[row.model].program(chip, row.dtype), chip)
        name = row.model.stem if row.model.stem not in names else f"{row.model.stem} ({len(names) + 1})"
        names.add(name)
        entries.append(Measurement(name, work, row.milliseconds, row.cores))
    return entries


def _as_json(profile: TimingProfile, fitted: Fit, entries: list[Measurement]) -> dict[str, object]:
    from dataclasses import asdict

    return {
        **asdict(profile),
        "form": fitted.form,
        "measured": [
            {
                "model": entry.name,
                "dtype": entry.work.dtype,
                "measured_ms": entry.milliseconds,
                "error": fitted.errors[entry.name],
                "error_left_out": fitted.left_out.get(entry.name),
            }
            for entry in entries
        ],
    }


def _print(profile: TimingProfile, fitted: Fit, entries: list[Measurement], output: Path | None) -> None:
    console = results()
    table = plain_table("model", "type", "measured", "fitted", "left out", right=("measured", "fitted", "left out"))
    for entry in entries:
        table.add_row(
            entry.name,
            entry.work.dtype,
            f"{entry.milliseconds:.2f} ms",
            _percent(fitted.errors[entry.name]),
            _percent(fitted.left_out.get(entry.name)),
        )
    console.print(table)
    console.print()
    numbers = profile.parameters
    if fitted.form == "full":
        console.print(
            f"{profile.chip}: {numbers.macs_per_ns:.1f} MAC/ns   {numbers.bytes_per_ns:.2f} GB/s   "
            f"look-up {numbers.lookup_ns:.2f} ns   floor {numbers.floor_ns / 1000:.1f} us   "
            f"slow {numbers.slow_ns:.3f} ns   CPU {numbers.cpu_ns:.3f} ns"
        )
    else:
        console.print(f"{profile.chip}: {numbers.scale:.3f} * predicted {numbers.offset_ns / 1e6:+.2f} ms")
    console.print(f"left out one by one: median error {fitted.median_error:.1%}, largest {fitted.worst_error:.1%}")
    if output is not None:
        console.print(f"wrote {output}")


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"
