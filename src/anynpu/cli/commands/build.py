"""``anynpu build``: the vendor model for a board, and the anynpu model that agrees with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..._util.progress import Progress
from ...analysis.compare import CompiledSubject, compare, dataset_samples
from ...compiler import CompileOptions
from ...compiler.board import build, find_toolkit
from ...compiler.board.build import COMMANDS, FINAL_RANGES, SCRIPT, Built
from ...compiler.board.environment import TIME_LIMIT
from ...compiler.board.simulator import simulator_twin
from ...modelfile import read
from ..helpers.child_processes import orderly_end
from ..helpers.console import print_json, progress_bar, results, size_text
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, dtype_name, read_inputs

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
    "arithmetic",
)


@with_flags(CompileOptions, only=_OPTIONS, callbacks={"dtype": dtype_name})
def command(
    model: OnnxArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.", file_okay=False)],
    given: dict[str, Any],
    target: TargetOption = DEFAULT_CHIP,
    toolkit: Annotated[
        Path | None,
        typer.Option("--toolkit", metavar="PATH", help="Environment of rknn-toolkit2: its folder or its Python.", exists=True),
    ] = None,
    no_toolkit: Annotated[
        bool,
        typer.Option("--no-toolkit", help="Write the build folder for another machine, even if a toolkit is installed here."),
    ] = False,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1.0, metavar="SECONDS", help="Time limit of the toolkit, in seconds.")
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
    with orderly_end(_INTERRUPTED), progress_bar(f"building {model.stem} for {target}") as progress:
        built = build(model, output, target, options, found, time_limit=time_limit, progress=progress)
        notes = [*built.notes, *_roundings(built, progress)]
    if as_json:
        paths = {"file": built.rknn, "twin": built.twin, "by_hash": built.by_hash, "job": built.job}
        print_json({**{key: None if path is None else str(path) for key, path in paths.items()}, "notes": notes})
        return
    for note in notes:
        console.print(f"  {note}")
    for path in filter(None, (built.rknn, built.twin)):
        console.print(f"wrote {path} ({size_text(path.stat().st_size)})")
    if built.by_hash is not None:
        console.print(f"the anynpu model is also in {built.by_hash.parent}, under the hash of {built.rknn and built.rknn.name}")
        return
    stem = built.twin.stem
    if (built.job / COMMANDS).is_file():
        console.print(f"on a machine with VeriSilicon's ACUITY, copy {built.job} and run there:")
        console.print(f"  ./{COMMANDS}")
        console.print(f"then put {stem}.nb beside {built.twin.name}")
        return
    console.print("--no-toolkit: no vendor model was built." if no_toolkit else "no rknn-toolkit2 is installed here.")
    console.print(f"On a machine that has rknn-toolkit2, copy {built.job} and run there:")
    console.print(f"  python {SCRIPT}")
    installs = "" if no_toolkit else "; 'anynpu toolkit install' installs the toolkit here"
    console.print(f"then put {stem}.rknn next to {built.twin.name}{installs}")


_INTERRUPTED = "interrupted: an earlier build stays complete; run the command again"
_JUDGES = 4


def _roundings(built: Built, progress: Progress | None) -> list[str]:
    """How many output values are the same by the chip's rounding and by the simulator's, on some of the calibration samples."""
    if built.rknn is None or not (built.job / FINAL_RANGES).is_file():
        return []
    chip, simulator = (CompiledSubject(simulator_twin(built.job, rule), rule) for rule in ("chip", "simulator"))
    samples = dataset_samples(built.job / "dataset.txt", chip.inputs, _JUDGES)
    found = compare(simulator, chip, samples, alone=False, progress=progress)
    shares = ", ".join(f"{entry.tensor} {100 * (1 - entry.so_far.differing):.1f} %" for entry in found.output_layers)
    own = "simulator" if read(built.twin).arithmetic == "simulator" else "chip"
    return [
        f"equal output values by chip and simulator rounding, {found.samples} calibration samples: {shares}",
        f"a board follows the chip's rounding, rknn-toolkit2's simulator its own; the anynpu model follows: {own} (--arithmetic)",
    ]
