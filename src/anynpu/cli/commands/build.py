"""``anynpu build``: the vendor model for a board, and the anynpu model that agrees with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...compiler import CompileOptions
from ...compiler.board import build, find_toolkit
from ...compiler.board.build import ACUITY_SCRIPT, COMMANDS
from ...compiler.board.environment import TIME_LIMIT
from ..helpers.child_processes import orderly_end
from ..helpers.console import print_json, progress_bar, results, size_text
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, dtype_name, read_inputs

__all__ = ["command"]

_OPTIONS = (
    "dataset",
    "mean",
    "std",
    "channel_order",
    "dtype",
    "shapes",
    "batch",
    "accuracy",
    "calibration_limit",
    "hybrid",
    "custom_string",
    "name",
)


@with_flags(CompileOptions, only=_OPTIONS, callbacks={"dtype": dtype_name})
def command(
    model: OnnxArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.", file_okay=False)],
    given: dict[str, Any],
    target: TargetOption = DEFAULT_CHIP,
    toolkit: Annotated[
        Path | None,
        typer.Option(
            "--toolkit", metavar="PATH", help="An environment with rknn-toolkit2: its folder, or its Python.", exists=True
        ),
    ] = None,
    no_toolkit: Annotated[
        bool, typer.Option("--no-toolkit", help="Write what another machine needs, even where a toolkit is installed.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1.0, metavar="SECONDS", help="What the toolkit may take.")
    ] = TIME_LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Build the vendor model for a board, and the anynpu model that agrees with it.

    Both have the same scales and the same weights. The file for the board is made by Rockchip's toolkit, in a process of its own;
    'anynpu toolkit install' installs it. Without a toolkit, a folder with a script for another machine is written instead. So it is for
    Allwinner's chips: the folder has what VeriSilicon's ACUITY needs.

    \b
    Example:
      anynpu build yolo.onnx -o out/ --target rk3588 --dataset street/ --std 255,255,255
    """
    found = None if no_toolkit else find_toolkit(toolkit)
    options = CompileOptions(**read_inputs(model, given, "build"))
    console = results()
    output.mkdir(parents=True, exist_ok=True)
    with orderly_end(), progress_bar(f"building {model.stem} for {target}") as progress:
        built = build(model, output, target, options, found, time_limit=time_limit, progress=progress)
    if as_json:
        paths = {"file": built.rknn, "twin": built.twin, "by_hash": built.by_hash, "job": built.job}
        print_json({**{key: None if path is None else str(path) for key, path in paths.items()}, "notes": list(built.notes)})
        return
    for note in built.notes:
        console.print(f"  {note}")
    for path in filter(None, (built.rknn, built.twin)):
        console.print(f"wrote {path} ({size_text(path.stat().st_size)})")
    if built.by_hash is not None:
        console.print(f"the twin also lies in {built.by_hash.parent}, under the hash of {built.rknn and built.rknn.name}")
        return
    stem = built.twin.stem
    if (built.job / COMMANDS).is_file():
        console.print(f"on a machine with VeriSilicon's ACUITY, copy {built.job} and run there:")
        console.print(f"  ./{COMMANDS}")
        console.print(f"then put {stem}.nb beside {built.twin.name}")
        return
    console.print(f"no rknn-toolkit2 is installed here. On a machine that has it, copy {built.job} and run there:")
    console.print(f"  python {ACUITY_SCRIPT}")
    console.print(f"then put {stem}.rknn beside {built.twin.name}; 'anynpu toolkit install' installs the toolkit here")
