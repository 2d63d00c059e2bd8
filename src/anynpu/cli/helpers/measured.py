"""What ``anynpu calibrate`` reads: CSV files with one measured model per line, and the texts that boards print."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import chips
from ...chips.timing.calibration import read_perf_text
from ...errors import CalibrationError

__all__ = ["Row", "read_logs", "read_rows"]

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

    :ivar chip: the catalogue's name; empty where the file does not say
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
