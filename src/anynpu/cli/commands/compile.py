"""``anynpu compile``: ONNX in, a model file for one chip out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import anynpu

from ... import chips
from ..._util.output_files import check_output
from ...compiler import CompileOptions
from ...compiler.importers.split_post_processing import ModelWithTail
from ...modelfile.post_processing import tail_path
from ...program import Model
from ...program.report import report
from ...vendors import registry
from ..helpers.compile_summary import brief, story, story_json, verdict
from ..helpers.config_file import RecipeOption, SaveRecipeOption, write_recipe
from ..helpers.console import print_json, progress_bar, results, size_text, warn
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, dtype_name, dtype_words, read_inputs
from ..helpers.summary import shape_text, summary_line
from ..helpers.verbosity import is_quiet, is_verbose

__all__ = ["command"]


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
        console.print(f"wrote {end} ({size_text(end.stat().st_size)}), the end that the host computes; keep it beside the model")


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
