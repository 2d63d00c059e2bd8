"""The flags of a command from a table of options (:mod:`anynpu._util.options`)."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from ..._util.options import TABLE, Option, OptionTable

# Sizes of memory as a user writes them, which includes the way we print them.


_UNITS = {"b": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10}


def megabytes(text: str) -> float:
    """A size in megabytes, which have 1024 * 1024 bytes: a plain number is one already, others name their unit.

    >>> megabytes("64"), megabytes("64.0 MB"), megabytes("512kB"), megabytes("2 GiB"), megabytes("1048576 B")
    (64.0, 64.0, 0.5, 2048.0, 1.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:(b)|([kmg])(?:i?b)?)?\s*", str(text), re.IGNORECASE)
    if not found:
        raise typer.BadParameter(f"{text!r} is not a size; write it like 64, '64 MB' or 2GB")
    number, plain, prefix = found.groups()
    size = float(number) * _UNITS[(plain or prefix or "m").lower()]
    if not 0 < size < math.inf:
        raise typer.BadParameter(f"a size must be more than 0, got {text}")
    return size


def with_flags(
    table: type[OptionTable],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    required: Collection[str] = (),
    callbacks: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every option of *table* that has one; it gets what was given as the dict ``given``, by option.

    :param only: the options that this command has; all if not given
    :param without: options that this command does not have
    :param required: options that must be given
    :param callbacks: what checks the value of an option before the command runs
    """
    known = {name: entry for name, entry in table.options().items() if entry.flag is not None}
    entries = {name: entry for name, entry in known.items() if name in (only or known) and name not in without}
    defaults = {field.name: field.default for field in dataclasses.fields(table)}  # type: ignore[arg-type]
    checks = callbacks or {}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "given"]
        flags = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=_annotation(name, entry, checks.get(name)),
                default=inspect.Parameter.empty if name in required else _shown_default(entry, defaults[name]),
            )
            for name, entry in entries.items()
        ]

        @functools.wraps(function)
        def command(**everything: Any) -> None:
            given = {name: _value(entry, everything.pop(name)) for name, entry in entries.items()}
            function(**everything, given=given)

        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = signature.replace(parameters=[*keywords, *flags])  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*keywords, *flags)}
        return command

    return decorate


def _annotation(name: str, entry: Option, check: Callable[[Any], Any] | None) -> Any:
    kind = entry.kind
    if entry.choices:
        members = {choice.upper(): choice for choice in entry.choices}
        choices = enum.Enum(name, members, type=str)  # type: ignore[misc]
        kind = choices | None
    facts: dict[str, Any] = {"help": _sentence(entry), "callback": check}
    if entry.metavar:
        facts["metavar"] = entry.metavar
    if entry.minimum is not None:
        facts["min"] = entry.minimum
    if entry.metavar == "MB":
        facts.pop("min", None)  # the table checks it, in its own unit
        facts["parser"] = megabytes
    return Annotated[kind, typer.Option(entry.flag, **{**facts, **entry.facts})]


def _sentence(entry: Option) -> str:
    text = "; ".join(filter(None, (entry.doc[0].upper() + entry.doc[1:], entry.command)))
    return f"{text}. Repeat for more." if entry.kind == list[str] | None else f"{text}."


def _shown_default(entry: Option, default: Any) -> Any:
    if entry.flag_default is not TABLE:
        return entry.flag_default
    return None if isinstance(default, (tuple, Mapping)) else default


def _value(entry: Option, value: Any) -> Any:
    """What the table takes for what the command line gave."""
    if isinstance(value, enum.Enum):
        value = value.value
    if entry.read is not None:
        return entry.read(value)
    return tuple(value or ()) if entry.kind == list[str] | None else value
