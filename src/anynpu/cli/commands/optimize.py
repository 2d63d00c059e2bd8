"""``anynpu optimize``: the same model, written so that any quantizer keeps more of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..._util.output_files import write_output
from ...compiler import CompileOptions, optimize
from ..helpers.console import print_json, progress_bar, results
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, read_inputs


@with_flags(CompileOptions, only=("dataset", "mean", "std", "shapes", "batch", "calibration_limit"), required=("dataset",))
def command(
    model: OnnxArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.onnx", help="The ONNX model to write.", dir_okay=False)],
    given: dict[str, Any],
    target: TargetOption = DEFAULT_CHIP,
    channel_groups: Annotated[int, typer.Option(min=1, help="Maximum channel groups per tensor.")] = 4,
    split_outputs: Annotated[
        bool, typer.Option("--split-outputs", help="Make several outputs of one that concatenates tensors.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rewrite a model for any int8 quantizer.

    The function stays the same, and the difference in float32 is measured. Tensors whose channels differ widely in range are
    split, so that each part gets a scale of its own, also from the vendor's toolkit. Slices of an image that are joined for a
    convolution (Focus) become one convolution. Each is kept only where it helps under the rules of Rockchip's toolkit.

    \b
    Example:
      anynpu optimize yolo.onnx -o better.onnx --dataset street/ --std 255,255,255
    """
    with progress_bar(f"looking at {model.stem}") as progress:
        better = optimize(
            model,
            target,
            channel_groups=channel_groups,
            split_outputs=split_outputs,
            **read_inputs(model, given, "optimize"),
            progress=progress,
        )
    write_output(output, better.model.SerializeToString())
    if as_json:
        groups = {name: {"groups": count, "noise_divided_by": gain} for name, (count, gain) in better.groups.items()}
        errors = {"max_error": better.largest_error, "relative_error": better.relative_error}
        print_json({"path": str(output), "groups": groups, "stems": list(better.stems), "nodes": list(better.nodes), **errors})
        return
    console = results()
    for name, (count, gain) in better.groups.items():
        console.print(f"  split {name} into {count} groups: noise 1/{gain:.0f} with two of them")
    for name in better.stems:
        console.print(f"  made slices, Concat and convolution one convolution: {name}")
    if not better.groups:
        console.print("  no tensor gains from being split")
    if better.note:
        console.print(f"  evaluated: {better.note}")
    console.print(f"  nodes {better.nodes[0]} -> {better.nodes[1]}")
    console.print(
        f"  difference in float32: {better.largest_error:.2g} at most, {better.relative_error:.2g} of the largest value"
    )
    console.print(f"wrote {output}")
