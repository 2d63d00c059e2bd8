"""Options as one table: a dataclass whose fields state what each option means, takes and is called.

From a table come the typed object, the keyword form of a function, both docstrings, the checks, the flags of the command line
(:mod:`anynpu.cli.helpers.flags`) and the tables of the documentation (``tools/options_page.py``).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..errors import AnynpuError, OptionError, OptionTypeError

TableT = TypeVar("TableT", bound="OptionTable")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

TABLE: Any = object()
"""The default of the command line is that of the table."""

_METADATA = "anynpu option"
_WIDTH = 136
_SHOWN = 60


@dataclass(frozen=True)
class Option:
    """What one option means, takes and is called.

    :ivar doc: its meaning in one sentence, for docstrings, help texts and pages
    :ivar python: what holds besides for callers in Python
    :ivar command: what holds besides on the command line
    :ivar see: what pages state besides, with links
    :ivar choices: the values that there are; empty: any
    :ivar minimum: the smallest number; None: any
    :ivar takes: what it takes, in words, and whether a value is that; by default what its annotation states
    :ivar flag: on the command line; None: there is none
    :ivar kind: what the command line takes
    :ivar metavar: what stands for the value in help texts
    :ivar flag_default: on the command line, where that is not the table's own
    :ivar read: makes the table's value from that of the command line
    :ivar facts: further arguments of ``typer.Option``
    :ivar parse: makes the table's value from the name and what a user wrote in a dictionary
    :ivar aliases: other names that a dictionary may use
    :ivar written: the default as a user would write it, where that differs from the table's own
    """

    doc: str
    python: str = ""
    command: str = ""
    see: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    takes: tuple[str, Callable[[Any], bool]] | None = None
    flag: str | None = None
    kind: Any = str
    metavar: str = ""
    flag_default: Any = TABLE
    read: Callable[[Any], Any] | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parse: Callable[[str, Any], Any] | None = None
    aliases: tuple[str, ...] = ()
    written: Any = TABLE


def same_as(table: type[OptionTable], name: str, **changes: Any) -> Any:
    """A field that another table has as well, with the same default and meaning."""
    (default,) = (field.default for field in dataclasses.fields(table) if field.name == name)  # type: ignore[arg-type]
    entry = dataclasses.replace(table.options()[name], **changes)
    return dataclasses.field(default=default, metadata={_METADATA: entry})


def option(default: Any, doc: str, *, repr: bool = True, **facts: Any) -> Any:
    """A field of a table; further arguments as for :class:`Option`."""
    return dataclasses.field(default=default, repr=repr, metadata={_METADATA: Option(doc, **facts)})


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether a value is an integer; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _are_strings(value: Any) -> bool:
    listed = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    return listed and all(isinstance(entry, str) for entry in value)


_PLAIN: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a string", lambda value: isinstance(value, str)),
    "int": ("an integer", is_whole),
    "float": ("a number", is_number),
    "bool": ("True, False", lambda value: isinstance(value, bool)),
    "None": ("None", lambda value: value is None),
    "Path": ("a path", lambda value: isinstance(value, str | Path)),
    "Sequence[str]": ("a list of strings", _are_strings),
    "tuple[str, ...]": ("a list of strings", _are_strings),
}
"""What annotations of tables stand for."""


def _plain(annotation: Any) -> tuple[str, Callable[[Any], bool]] | None:
    """What an annotation takes, if that is plain."""
    parts = str(annotation).split(" | ")
    if not all(part in _PLAIN for part in parts):
        return None
    kinds = [_PLAIN[part] for part in parts]
    words = ", ".join(words for words, _ in kinds)
    head, comma, last = words.rpartition(", ")
    return f"{head} or {last}" if comma else words, lambda value: any(fits(value) for _, fits in kinds)


class OptionTable:
    """The base of tables, which are frozen dataclasses. A value of a wrong type, none of the choices, or too small is rejected."""

    error: ClassVar[type[AnynpuError]] = OptionError
    """What a wrong option raises."""

    type_error: ClassVar[type[AnynpuError]] = OptionTypeError
    """What an unknown option, or a value of a wrong type, raises."""

    def __post_init__(self) -> None:
        annotations = {field.name: field.type for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        for name, entry in self.options().items():
            value = getattr(self, name)
            takes = entry.takes or _plain(annotations[name])
            if takes is not None and not takes[1](value):
                hint = f"choose one of: {', '.join(entry.choices)}" if entry.choices else f"{name}: {entry.doc}"
                raise self.type_error(f"{name} takes {takes[0]}, got {_shown(value)}", hint=hint)
            if entry.choices and isinstance(value, str) and value not in entry.choices:
                raise self.error(f"there is no {name} '{value}'", hint=f"choose one of: {', '.join(entry.choices)}")
            if entry.minimum is not None and value is not None and not value >= entry.minimum:
                raise self.error(f"{name} must be at least {entry.minimum:g}, got {value}", hint="leave it out for the default")

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options by name, in order."""
        entries = {field.name: field.metadata.get(_METADATA) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return {name: entry for name, entry in entries.items() if entry is not None}

    @classmethod
    def written(cls) -> dict[str, Any]:
        """The defaults as a user would write them, by name."""
        fields = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return {name: fields[name] if entry.written is TABLE else entry.written for name, entry in cls.options().items()}

    @classmethod
    def merged(cls: type[TableT], options: TableT | None, changes: Mapping[str, Any]) -> TableT:
        """*options*, or the defaults, with changes by keyword."""
        known = cls.options()
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                guess = f"; did you mean {near[0]}?" if near else ""
                raise cls.type_error(f"there is no option {name!r}{guess}", hint=f"there are: {', '.join(known)}")
        if options is not None and not isinstance(options, cls):
            raise cls.type_error(f"options takes a {cls.__name__}, got {_shown(options)}", hint="pass options by keyword instead")
        return cls(**changes) if options is None else dataclasses.replace(options, **changes)  # type: ignore[type-var]


def _shown(value: Any) -> str:
    """A value of a wrong type, short enough for a sentence."""
    text = repr(value)
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} ({type(value).__name__})"


def _described(table: type[OptionTable], role: str) -> str:
    lines = []
    for name, entry in table.options().items():
        choices = f" ({', '.join(f'``{choice}``' for choice in entry.choices)})" if entry.choices else ""
        doc = entry.doc.replace("`", "``")  # Markdown's code, as docstrings write it
        text = f":{role} {name}: {doc}{choices}{f'; {entry.python}' if entry.python else ''}"
        lines.append(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False))
    return "\n".join(lines)


def documented(table: type[TableT]) -> type[TableT]:
    """Give a table a docstring with all of its options."""
    table.__doc__ = f"{inspect.cleandoc(table.__doc__ or '')}\n\n{inspect.cleandoc(_described(table, 'ivar'))}\n"
    return table


def keyword_form(table: type[OptionTable], types: Mapping[str, Any] | None = None) -> Callable[[FunctionT], FunctionT]:
    """Show the options of *table* in signature and docstring of a function that takes them as ``**changes``.

    :param types: what callers may pass, by option, where that is more than the table holds
    """

    def decorate(function: FunctionT) -> FunctionT:
        signature = inspect.signature(function)
        own = [entry for entry in signature.parameters.values() if entry.kind is not inspect.Parameter.VAR_KEYWORD]
        annotations = {**{field.name: field.type for field in dataclasses.fields(table)}, **(types or {})}  # type: ignore[arg-type]
        shown = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotations[name])
            for name, default in table.written().items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        text = inspect.cleandoc(function.__doc__ or "")
        head, mark, examples = text.partition("\n>>> ")
        function.__doc__ = f"{head.rstrip()}\n{inspect.cleandoc(_described(table, 'param'))}\n{mark}{examples}"
        return function

    return decorate


MAX_TEXT = 1 << 20
"""Characters of a file with options."""

_KEY = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"""(?<![\w"'.-]){_KEY}(?:[ \t]*\.[ \t]*{_KEY}){{32}}""")
"""A name of 32 parts. Python's reader of TOML takes time by the cube of their number: minutes for some kilobytes."""


def read_table(path: str | Path, what: str, *, hint: str) -> dict[str, Any]:
    """What a user wrote into a file: TOML, or JSON where the name ends in ``.json``.

    :param what: the file is, in messages
    :param hint: how such a file looks
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the {what} {path} cannot be read: {error}", hint="give the path of a TOML or JSON file") from error
    if len(text) > MAX_TEXT or _LONG_KEY.search(text):
        raise OptionError(f"the {what} {path} is too large, or has tables in tables without an end", hint=hint)
    try:
        entries = json.loads(text) if str(path).endswith(".json") else _toml(text, what)
    except (ValueError, RecursionError) as error:  # both decoders raise the first, and the second for what is nested too deep
        raise OptionError(f"the {what} {path} cannot be read: {error}", hint=hint) from error
    if not isinstance(entries, dict):
        raise OptionError(f"the {what} {path} is no table", hint=hint)
    return entries


def _toml(text: str, what: str) -> Any:
    try:
        parser = importlib.import_module("tomllib")
    except ModuleNotFoundError:
        raise OptionError(
            f"a {what} in TOML needs Python 3.11", hint="write it as JSON, in a file with the suffix .json"
        ) from None
    return parser.loads(text)
