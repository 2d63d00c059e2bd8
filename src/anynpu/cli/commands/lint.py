"""``anynpu lint``: what in a model is known to suffer from int8."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...compiler import CompileOptions, lint
from ..helpers.console import plain_table, print_json, progress_bar, results
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, read_inputs


@with_flags(
    CompileOptions,
    only=("dataset", "mean", "std", "channel_order", "shapes", "batch", "calibration_limit"),
    required=("dataset",),
)
def command(
    model: OnnxArgument,
    given: dict[str, Any],
    target: TargetOption = DEFAULT_CHIP,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if anything but notes is found.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find int8 accuracy risks.

    Runs the calibration data through the float model and names the tensors that are known to suffer, with the numbers and
    the remedy.

    \b
    Example:
      anynpu lint yolo.onnx --dataset street/ --std 255,255,255
      anynpu lint yolo.onnx --dataset street/ --std 255,255,255 --strict --json
    """
    with progress_bar(f"looking at {model.stem}") as progress:
        findings = lint(model, target, **read_inputs(model, given, "lint"), progress=progress)
    if as_json:
        print_json([finding.to_json() for finding in findings])
    elif findings:
        table = plain_table("", "rule", "tensor", "what", "remedy")
        for finding in findings:
            table.add_row(finding.severity, finding.rule, finding.tensor, finding.text, finding.remedy)
        results().print(table)
    else:
        results().print("nothing found")
    if strict and any(finding.severity != "note" for finding in findings):
        raise typer.Exit(1)
