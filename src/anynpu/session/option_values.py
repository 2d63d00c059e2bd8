"""Readers of a session's options: each takes the option's name and what a user wrote, and refuses what does not fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from ..errors import OptionError

__all__ = ["TP_MASKS", "choice", "flag", "output_type", "paths", "positive", "schedule", "tp_mode"]

TP_MASKS = {"auto": 0, "all": 0xFFFF, "0": 1, "1": 2, "2": 4, "0,1": 3, "0,1,2": 7}

_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
_INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
_OUTPUT_TYPES = ("float32", "float16", "float64", *_INTEGERS, "bool")


def choice(choices: Mapping[str, str]) -> Callable[[str, Any], str]:
    """A reader of one of *choices*, which maps what may be written to what it means."""

    def parse(key: str, value: Any) -> str:
        name = value.strip().lower() if isinstance(value, str) else value
        if name not in choices:
            raise OptionError(f"Unknown {key}: {value!r}", hint=f"use one of: {', '.join(choices)}")
        return choices[name]

    return parse


def tp_mode(key: str, value: Any) -> str:
    """Which cores work on a request together."""
    if not isinstance(value, str) or value not in TP_MASKS:
        raise OptionError(f"Unknown {key}: {value!r}", hint=f"use one of: {', '.join(map(repr, TP_MASKS))}")
    return value


def positive(key: str, value: Any) -> int:
    """A whole number above 0."""
    number = _integer(key, value)
    if number <= 0:
        raise OptionError(f"{key} must be greater than 0, got {number}", hint="leave it out for the default")
    return number


def _integer(key: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str | np.integer):
            raise ValueError
        return int(value)
    except ValueError:
        raise OptionError(f"{key} must be a whole number, got {value!r}", hint="pass an int, or a string with one") from None


def flag(key: str, value: Any) -> bool:
    """True or false, also as text or number."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    text = str(value).strip().lower() if isinstance(value, int | str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise OptionError(f"{key} must be true or false, got {value!r}", hint=f"use one of: {', '.join((*_TRUE, *_FALSE))}")


def schedule(key: str, value: Any) -> tuple[int, ...]:
    """Cores in turn, from a list, a text or one number."""
    parts: list[Any]
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
    elif isinstance(value, Sequence | np.ndarray):
        parts = list(value)
    else:
        parts = [value]
    if not parts:
        raise OptionError("the schedule is empty", hint="name at least one core, for example [0, 1, 2]")
    cores = tuple(_integer(key, part) for part in parts)
    if min(cores) < 0:
        raise OptionError(f"{key} has core {min(cores)}: cores count from 0", hint="for example [0, 1, 2]")
    return cores


def paths(key: str, value: Any) -> tuple[str, ...]:
    """One path or several."""
    entries = [value] if isinstance(value, str | PathLike) else value
    if not isinstance(entries, Sequence) or not all(isinstance(entry, str | PathLike) for entry in entries):
        raise OptionError(f"{key} must be a path or a sequence of paths, got {value!r}", hint="pass the plugins' file names")
    return tuple(os.fspath(entry) for entry in entries)


def output_type(key: str, value: Any) -> str | dict[str, str]:
    """One type for all outputs, or types by output name."""
    if isinstance(value, Mapping):
        return {str(name): _type_name(key, kind) for name, kind in value.items()}
    return _type_name(key, value)


def _type_name(key: str, value: Any) -> str:
    if value == "model":
        return "model"
    try:
        name = str(np.dtype(value).name)
    except TypeError:
        name = ""
    if name not in _OUTPUT_TYPES:
        raise OptionError(
            f"unknown {key}: {value!r}", hint=f"use one of: model, {', '.join(_OUTPUT_TYPES)}, or these by output name"
        )
    return name
