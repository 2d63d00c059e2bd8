"""Board profiles: what ``anynpu calibrate`` writes and ``--board FILE`` reads. JSON, checked on reading."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..._util.output_files import write_output
from ...errors import ModelFormatError
from .. import get
from .parameters import FloatParameters, TimingParameters, TimingProfile, timing_profile

_FORMAT = "anynpu board profile"
_VERSION = 1
_MAX_FILE = 1 << 20
_MAY_BE_ZERO_OR_LESS = {"offset_ns"}


def write_board(profile: TimingProfile, path: str | Path) -> Path:
    """Write a profile and return its path."""
    data = {"format": _FORMAT, "version": _VERSION, **asdict(profile)}
    return write_output(path, json.dumps(data, indent=2) + "\n")


def read_board(path: str | Path) -> TimingProfile:
    """The profile in a file.

    >>> read_board("desk.json").chip    # doctest: +SKIP
    'rk3588'
    """
    source = Path(path)
    if source.stat().st_size > _MAX_FILE:
        raise _wrong(source, "it is too large")
    try:
        data = json.loads(source.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _wrong(source, "it is not JSON") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise _wrong(source, "it does not state that it is one")
    if data.get("version") != _VERSION:
        raise ModelFormatError(
            f"{source.name} is a board profile of version {data.get('version')!r}, this is version {_VERSION}",
            hint="calibrate the board again with this version of anynpu",
        )
    chip = get(data.get("chip", "")).name
    numbers = data.get("parameters")
    if not isinstance(numbers, dict):
        raise _wrong(source, "it has no parameters")
    return TimingProfile(
        chip=chip,
        parameters=_parameters(source, numbers),
        calibrated=True,
        source=_text(data, "source"),
        sdk=_text(data, "sdk"),
        models=data["models"] if isinstance(data.get("models"), int) else 0,
        median_error=_error(data, "median_error"),
        worst_error=_error(data, "worst_error"),
        float_numbers=_floats(source, chip, data.get("float_numbers")),
        float_error=_error(data, "float_error"),
    )


def _floats(source: Path, chip: str, numbers: Any) -> FloatParameters | None:
    """The numbers of float16 layers; those of the chip in a file that has none."""
    if numbers is None:
        return timing_profile(get(chip)).float_numbers
    if not isinstance(numbers, dict):
        raise _wrong(source, "its float_numbers are none")
    values: dict[str, float] = {}
    for entry in fields(FloatParameters):
        value = numbers.get(entry.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise _wrong(source, f"float number {entry.name} is not one")
        if value == 0 and entry.name.endswith("_per_ns"):
            raise _wrong(source, f"float number {entry.name} is zero")
        values[entry.name] = float(value)
    return FloatParameters(**values)


def _parameters(source: Path, numbers: dict[str, Any]) -> TimingParameters:
    values: dict[str, float] = {}
    for entry in fields(TimingParameters):
        value = numbers.get(entry.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise _wrong(source, f"parameter {entry.name} is not a number")
        if value <= 0 and entry.name not in _MAY_BE_ZERO_OR_LESS:
            raise _wrong(source, f"parameter {entry.name} is {value}, not above zero")
        values[entry.name] = float(value)
    return TimingParameters(**values)


def _text(data: dict[str, Any], key: str) -> str:
    return data[key] if isinstance(data.get(key), str) else ""


def _error(data: dict[str, Any], key: str) -> float | None:
    value = data.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _wrong(source: Path, why: str) -> ModelFormatError:
    return ModelFormatError(f"{source.name} is not a board profile: {why}", hint="'anynpu calibrate' writes one")
