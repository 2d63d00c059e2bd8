"""How much a command states: ``-q`` and ``-v``, which every command has.

``-q`` leaves out progress and notes, ``-v`` adds the log of the package and, after an error, where it came from. One command runs in a
process at a time, so the choice is kept in this module; :func:`reset` undoes it.
"""

from __future__ import annotations

import difflib
import enum
import functools
import inspect
import logging
import os
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..._util.output_files import check_output, check_suffix
from ...errors import OutputFileError

# What is checked of a command's arguments before it begins, for all commands at one place.


_SHOWN = 4


class CheckedCommand(TyperCommand):
    """A command whose complaints about arguments state what to do."""

    def __init__(self, *arguments: Any, **facts: Any) -> None:
        super().__init__(*arguments, **facts)
        for parameter in self.params:
            if not {"--target", "--chip"}.isdisjoint(parameter.opts):
                taken = {name for other in self.params if other is not parameter for name in other.opts}
                names = (*parameter.opts, "--target", "--chip", *({"-t"} - taken))
                parameter.opts = list(dict.fromkeys(names))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left."""
        self._reject_options_as_values(ctx, args)
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            raise _better(error, ctx) from None

    def _reject_options_as_values(self, ctx: Any, args: list[str]) -> None:
        """Raise where an option takes the next option as its value, because its own was forgotten."""
        parameters: list[Any] = self.params
        options = {name: parameter for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
        position = 0
        while position < len(args) and args[position] != "--":
            name, has_value, value = args[position].partition("=")
            parameter = options.get(name)
            if parameter is None:
                if not name.startswith("-") and not ctx.allow_interspersed_args:
                    return  # what follows belongs to the program
            elif parameter.param_type_name == "option" and not parameter.is_flag:
                if not has_value:
                    position += 1
                    value = args[position] if position < len(args) else ""
                if value.startswith("--") or value in options:
                    raise typer.BadParameter(
                        f"needs a value, and got {value!r}; a file of that name is written ./{value}", ctx=ctx, param=parameter
                    )
            position += 1


_VALUE_ERROR = "Value error, "
_UNREADABLE = re.compile(r"Input should be a valid (\w+), unable to parse string as an? \w+")


def _better(error: typer.BadParameter, ctx: Any) -> typer.BadParameter:
    if getattr(error.param, "name", "") == "target" and type(error).__name__ == "MissingParameter":
        from ...chips import names

        known = f"{', '.join(names())}{', or all' if 'all' in str(getattr(error.param, 'metavar', '')) else ''}"
        return typer.BadParameter(f"name a chip; the chips:  {known}", ctx=ctx, param=error.param)
    text = str(error.message)
    found = re.search(r"'([^']+)' is a directory", text)
    if found is not None:
        return typer.BadParameter(_instead_of(Path(found[1])), ctx=ctx, param=error.param)
    found = re.search(r"'([^']+)' does not exist", text)
    if found is not None:
        return typer.BadParameter(f"{text.rstrip('.')}{_near(Path(found[1]))}", ctx=ctx, param=error.param)
    found = _UNREADABLE.fullmatch(text)
    if found is not None:
        kind = {"integer": "an integer", "number": "a number"}.get(found[1], f"a {found[1]}")
        return typer.BadParameter(f"takes {kind}", ctx=ctx, param=error.param)
    if text.startswith(_VALUE_ERROR):
        return typer.BadParameter(text.removeprefix(_VALUE_ERROR), ctx=ctx, param=error.param)
    return error


def _near(path: Path) -> str:
    """What to do about a path that does not exist: names like it, or the part of it that is missing."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent}"
    there = sorted(entry.name for entry in path.parent.iterdir()) if os.access(path.parent, os.R_OK) else []
    names = difflib.get_close_matches(path.name, there, n=2)
    names += [name for name in there if name not in names and name.startswith(path.stem + ".")]
    if not names:
        return "; check the path"
    return f"; did you mean {' or '.join(str(path.parent / name) for name in names[:2])}?"


def _instead_of(folder: Path) -> str:
    suffixes = _model_suffixes()
    models = sorted(str(path) for path in folder.iterdir() if path.suffix in suffixes) if os.access(folder, os.R_OK) else []
    if not models:
        return f"{folder} is a folder without models; name a file"
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    return f"{folder} is a folder; name a file in it: {', '.join(models[:_SHOWN])}{more}"


def check_outputs(parameters: Iterable[inspect.Parameter], given: Mapping[str, Any]) -> None:
    """Reject files and folders to write that cannot be written, before the work."""
    outputs: dict[str, tuple[Path, Any]] = {}
    for parameter in parameters:
        value = given.get(parameter.name)
        for facts in typing.get_args(parameter.annotation)[1:]:
            if isinstance(value, Path) and not getattr(facts, "exists", True) and facts.file_okay != facts.dir_okay:
                outputs[parameter.name] = value, facts
    inputs = [path for name, value in given.items() if name not in outputs for path in named_files(value)]
    for name, (path, facts) in outputs.items():
        hint = f"'{_name(facts, name)}'"
        _check_output(path, hint, is_file=facts.file_okay)
        try:
            if facts.file_okay:
                check_output(path, inputs)
            if not path.is_dir() and not str(facts.metavar).endswith(".onnx"):
                check_suffix(path)
        except OutputFileError as error:
            raise typer.BadParameter(f"{error.message}; {error.hint}", param_hint=hint) from None
        if not facts.file_okay and path.suffix.lower() in _model_suffixes() and not path.is_dir():
            raise typer.BadParameter(
                f"this command writes a folder, and {path} is the name of a model; name a folder, such as out/", param_hint=hint
            )


def named_files(value: Any) -> list[str]:
    """The paths that a value of the command line may name: ``FILE``, ``NAME=FILE``, or several of them."""
    if isinstance(value, list | tuple):
        return [path for entry in value for path in named_files(entry)]
    if not isinstance(value, str | Path) or isinstance(value, enum.Enum):
        return []
    text = str(value)
    return [text, text.partition("=")[2]] if "=" in text else [text]


def _model_suffixes() -> set[str]:
    from ...modelfile.stand_ins import TWIN_SUFFIX
    from ...vendors import registry

    return {".onnx", TWIN_SUFFIX, *(suffix for vendor in registry.all_vendors() for suffix in vendor.suffixes)}


def _name(facts: Any, name: str) -> str:
    # In an annotation the first name of an option stands where its default would.
    names = (getattr(facts, "default", None), *(getattr(facts, "param_decls", None) or ()))
    return next((text for text in names if isinstance(text, str) and text.startswith("--")), f"--{name}")


def _check_output(path: Path, hint: str, *, is_file: bool) -> None:
    folder = path.parent
    if is_file and not folder.is_dir():
        raise typer.BadParameter(
            f"there is no folder {folder} to write {path.name} into; make it with: mkdir -p {folder}", param_hint=hint
        )
    place = path if path.exists() else _existing(folder)
    if not os.access(place, os.W_OK):
        raise typer.BadParameter(f"{place} may not be written to; name another place", param_hint=hint)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes: results and errors only.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Print the log too, and where an error came from.")]

_chosen = {"quiet": False, "verbose": False}
_attached: list[logging.Handler] = []


def is_quiet() -> bool:
    """Whether ``-q`` was given."""
    return _chosen["quiet"]


def is_verbose() -> bool:
    """Whether ``-v`` was given."""
    return _chosen["verbose"]


def level() -> int:
    """The level of the log that fits."""
    return logging.WARNING if _chosen["quiet"] else logging.DEBUG if _chosen["verbose"] else logging.INFO


def reset() -> None:
    """As before any command."""
    _chosen.update(quiet=False, verbose=False)
    reset_log()


def reset_log() -> None:
    """Take away what was attached."""
    logger = logging.getLogger("anynpu")
    while _attached:
        logger.removeHandler(_attached.pop())
        logger.setLevel(logging.NOTSET)


def attach(handler: logging.Handler) -> None:
    """Let the log of the package go to *handler* until the end of the command, as much of it as was asked for."""
    logger = logging.getLogger("anynpu")
    logger.addHandler(handler)
    logger.setLevel(level())
    _attached.append(handler)


def explain(error: Exception) -> None:
    """Where an error came from, if ``-v`` was given."""
    if _chosen["verbose"]:
        sys.stderr.write("".join(traceback.format_exception(error)))


def with_verbosity(function: Callable[..., None]) -> Callable[..., None]:
    """A command with ``-q`` and ``-v``, unless it has options of these names itself."""
    signature = inspect.signature(function, eval_str=True)
    if {"quiet", "verbose"} & set(signature.parameters):
        return function
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=False)
        for name, kind in (("quiet", QuietOption), ("verbose", VerboseOption))
    ]

    @functools.wraps(function)
    def command(**everything: Any) -> None:
        _chosen.update(quiet=everything.pop("quiet"), verbose=everything.pop("verbose"))
        if _chosen["verbose"]:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
            attach(handler)
        check_outputs(own, everything)
        function(**everything)

    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *more)}
    return command
