"""Recipes as files: the flags of a command, to be repeated and kept beside the model.

A recipe names flags without their dashes, and may leave out any of them; what the command line gives counts more. Paths are relative to
the file, so that a folder with a recipe and its pictures can be moved::

    target = "rk3588"
    dataset = "street"
    std = "255,255,255"
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..._util.options import read_table
from ..._util.output_files import write_output
from ...compiler import CompileOptions

__all__ = ["RecipeOption", "SaveRecipeOption", "write_recipe"]

_NOT_IN_A_RECIPE = frozenset({"help", "recipe", "save_recipe", "as_json", "quiet", "verbose", "output", "remove_weight"})
"""What says where results go and how they are shown, and not how the model is made."""

_PATHS = frozenset(name for name, entry in CompileOptions.options().items() if entry.kind == Path | None)
_GIVEN = ("COMMANDLINE", "DEFAULT_MAP")
_HINT = 'a recipe has a line for each flag without its dashes, such as: std = "255,255,255"'


def _flags(context: typer.Context) -> dict[str, Any]:
    """The flags that a recipe may name, as it writes them."""
    options = (
        entry for entry in context.command.params if entry.param_type_name == "option" and entry.name not in _NOT_IN_A_RECIPE
    )
    return {max(entry.opts, key=len).lstrip("-"): entry for entry in options}


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the flags of a recipe the defaults of this call."""
    if path is None or context.resilient_parsing:
        return path
    flags = _flags(context)
    defaults: dict[str, Any] = {}
    for name, value in read_table(path, "recipe", hint=_HINT).items():
        entry = flags.get(name.replace("_", "-"))
        if entry is None:
            near = difflib.get_close_matches(name, flags, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise typer.BadParameter(
                f"{path} has '{name}', which is no flag of this command; {guess}There are: {', '.join(flags)}"
            )
        defaults[entry.name] = _value(entry, name, value, path)
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def _value(entry: Any, name: str, value: Any, path: Path) -> Any:
    """A value as the command line takes it: numbers have commas between them, and several texts are a flag that is repeated."""
    if isinstance(value, Mapping):
        raise typer.BadParameter(f"'{name}' of {path} is a table; {_HINT}")
    repeated = entry.multiple and isinstance(value, list) and any(isinstance(part, str) for part in value)
    if isinstance(value, list) and not repeated:
        value = ",".join(str(part) for part in value)
    if entry.multiple:
        return [str(part) for part in (value if repeated else [value])]
    if entry.name in _PATHS:
        return os.path.join(path.parent, str(value))
    return value if isinstance(value, bool) else str(value)


def write_recipe(context: typer.Context, path: Path) -> None:
    """Write the flags that this call was given, by the command line or by another recipe, to a file in the form of its suffix."""
    given: dict[str, Any] = {}
    for name, entry in _flags(context).items():
        source = context.get_parameter_source(entry.name)
        if source is not None and source.name in _GIVEN:
            value = context.params[entry.name]
            # older versions of typer have a path as text here
            given[name] = _plain(Path(value) if entry.name in _PATHS else value, path)
    if path.suffix == ".json":
        text = json.dumps(given, indent=1, ensure_ascii=False) + "\n"
    else:  # texts, numbers, truths and lists of texts are written in TOML as in JSON
        text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in given.items())
    write_output(path, text)


def _plain(value: Any, path: Path) -> Any:
    if isinstance(value, Path):
        return os.path.relpath(value, path.parent)
    if isinstance(value, (list, tuple)):
        return [str(part) for part in value]
    return getattr(value, "value", value)


RecipeOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="RECIPE.toml",
        help="A file with flags, such as a former --save-recipe wrote; flags that are given count more.",
        callback=_read,
        is_eager=True,
        exists=True,
        dir_okay=False,
    ),
]
SaveRecipeOption = Annotated[
    Path | None,
    typer.Option("--save-recipe", metavar="RECIPE.toml", help="Write the flags of this call to a file.", dir_okay=False),
]
