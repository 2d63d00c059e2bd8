"""``anynpu compile``: ONNX in, a model file for one chip out."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import anynpu

from ... import chips
from ..._util.options import read_table
from ..._util.output_files import check_output, write_output
from ...compiler import CompileOptions
from ...compiler.importers.split_post_processing import ModelWithTail
from ...modelfile.post_processing import tail_path
from ...program import Model
from ...program.report import report
from ...vendors import registry
from ..helpers.compile_summary import brief, story, story_json, verdict
from ..helpers.console import print_json, progress_bar, results, size_text, warn
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, dtype_name, dtype_words, read_inputs
from ..helpers.summary import shape_text, summary_line
from ..helpers.verbosity import is_quiet, is_verbose

# Configs as files: the flags of a command, to be repeated and kept beside the model.
#
# A config names flags without their dashes, and may leave out any of them; what the command line gives counts more. Paths are relative to
# the file, so that a folder with a config and its images can be moved::
#
#     target = "rk3588"
#     dataset = "street"
#     std = "255,255,255"


_NOT_IN_A_RECIPE = frozenset({"help", "recipe", "save_recipe", "as_json", "quiet", "verbose", "output", "remove_weight"})
"""What states where results go and how they are shown, and not how the model is made."""

_PATHS = frozenset(name for name, entry in CompileOptions.options().items() if entry.kind == Path | None)
_GIVEN = ("COMMANDLINE", "DEFAULT_MAP")
_HINT = 'a config file has one line per flag, without the dashes, such as: std = "255,255,255"'


def _flags(context: typer.Context) -> dict[str, Any]:
    """The flags that a config may name, as it writes them."""
    options = (
        entry for entry in context.command.params if entry.param_type_name == "option" and entry.name not in _NOT_IN_A_RECIPE
    )
    return {max(entry.opts, key=len).lstrip("-"): entry for entry in options}


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the flags of a config the defaults of this call."""
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
    """Write the flags that this call was given, by the command line or by another config, to a file in the form of its suffix."""
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
        help="Config file with flags, such as --save-recipe writes. Flags on the command line take precedence.",
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


@with_flags(CompileOptions, callbacks={"dtype": dtype_name})
def command(
    context: typer.Context,
    model: OnnxArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The model file to write.", dir_okay=False)],
    given: dict[str, Any],
    target: TargetOption = DEFAULT_CHIP,
    remove_weight: Annotated[bool, typer.Option("--remove-weight", help="Leave the weights out of the file.")] = False,
    as_json: JsonOption = False,
    recipe: RecipeOption = None,
    save_recipe: SaveRecipeOption = None,
) -> None:
    """Compile an ONNX model into an anynpu model for one chip.

    \b
    Example:
      anynpu compile yolo.onnx -o yolo.rknn --target rk3588 \\
          --dataset street/ --std 255,255,255
      anynpu compile yolo.onnx -o yolo.rknn --target rk3588 --dtype fp16
      anynpu compile yolo.onnx -o yolo.rknn --target rk3588 \\
          --dataset street/ --std 255,255,255 --accuracy best --metric detections
      anynpu compile yolo.onnx -o yolo.nb --target t527 --dtype uint8 \\
          --dataset street/ --std 255,255,255 --preprocess rgb
      anynpu compile yolo.onnx -o yolo.rknn -c yolo.toml
    """
    _check_extension(output, target)
    with progress_bar(f"compiling {model.stem} for {target} ({dtype_words(given['dtype'], target)})") as progress:
        options = CompileOptions(**read_inputs(model, given))
        compiled = anynpu.compile(model, target, options, progress=progress)
    if isinstance(compiled, ModelWithTail):
        check_output(tail_path(output), [model])
    path = compiled.save(output, remove_weight=remove_weight)
    if save_recipe is not None:
        write_recipe(context, save_recipe)
    if as_json:
        reports = [report(compiled, index).to_json() for index in range(len(compiled.programs))]
        facts = {"path": str(path), "bytes": path.stat().st_size, "chip": compiled.chip, "dtype": compiled.dtype}
        judged = {"preprocessing": compiled.provenance.get("preprocessing", "")}
        print_json({**facts, **story_json(compiled), **judged, "programs": reports})
        return
    console = results()
    if not is_quiet():
        console.print(verdict(compiled))
        console.print(f"runs on the software NPU (anynpu run {path}); 'anynpu build' makes the file for a board")
        _print_summary(console, compiled)
    console.print(f"wrote {path} ({size_text(path.stat().st_size)})")
    if save_recipe is not None:
        console.print(f"wrote {save_recipe}, to be repeated with -c {save_recipe}")
    if isinstance(compiled, ModelWithTail):
        end = tail_path(path)
        console.print(f"wrote {end} ({size_text(end.stat().st_size)}), the host post-processing; keep it next to the model")


def _check_extension(output: Path, target: str) -> None:
    """Warn about the extension of another vendor's models."""
    own = registry.of_chip(chips.get(target))
    for vendor in registry.all_vendors():
        if vendor is not own and output.suffix.lower() in vendor.suffixes:
            warn(f"{output.suffix} is the extension of models for {vendor.title}; for {target} use {own.suffixes[0]}")


def _print_summary(console: Console, compiled: Model) -> None:
    for index, program in enumerate(compiled.programs):
        if len(compiled.programs) > 1:
            console.print(f"  shape set {index}: {', '.join(f'{s.name} {shape_text(s.shape)}' for s in program.input_specs)}")
        console.print(summary_line(report(compiled, index)))
    for line in story(compiled) if is_verbose() else brief(story(compiled)):
        console.print(line)
