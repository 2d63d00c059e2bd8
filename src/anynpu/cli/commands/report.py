"""``anynpu report``: one page to decide with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..._util.output_files import write_output
from ...analysis.report import SAMPLES, Decision, decide, decision_data, decision_page
from ...compiler import CompileOptions
from ..helpers.console import plain_table, print_json, progress_bar, results, size_text
from ..helpers.flags import with_flags
from ..helpers.options import JsonOption, OnnxArgument, dtype_name, read_inputs
from ..helpers.predict_output import TargetsOption, chips_of, range_text, rate_text, time_text


@with_flags(
    CompileOptions,
    only=("dataset", "dtype", "mean", "std", "channel_order", "shapes", "batch", "calibration_limit", "accuracy"),
    callbacks={"dtype": dtype_name},
)
def command(
    model: OnnxArgument,
    given: dict[str, Any],
    target: TargetsOption = "all",
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts and the network.", dir_okay=False)
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples that the accuracy is measured on.")] = SAMPLES,
    as_json: JsonOption = False,
) -> None:
    """Report on a model for a decision: all chips side by side, with time, memory and accuracy.

    Times are predicted. With --dataset the model is compiled for one chip of each vendor and compared with the float model.

    \b
    Example:
      anynpu report yolo.onnx --html report.html
      anynpu report yolo.onnx --dataset street/ --std 255,255,255 --html report.html
      anynpu report yolo.onnx --target rk3588,rk3566,t527 --json
    """
    options = read_inputs(model, given, "a report")
    with progress_bar(f"reporting on {model.stem}") as progress:
        made = decide(model, chips_of(target), samples=samples, progress=progress, **options)
    if html is not None:
        write_output(html, decision_page(made))
    if as_json:
        print_json(decision_data(made))
        return
    console = results()
    console.print(decision_table(made))
    for entry in made.accuracy.values():
        console.print(
            f"accuracy of int8, {entry.vendor}: cosine {entry.cosine:.4f}, {entry.snr:.1f} dB, "
            f"measured on {entry.chip.name} with {entry.comparison.samples} samples"
        )
    if html is not None:
        console.print(f"wrote {html}")


def decision_table(decision: Decision) -> Any:
    """One row per chip, the fastest first."""
    values = ("one core", "80 % range", "per second", "float16", "memory", "on CPU")
    table = plain_table("chip", *values, "note", right=values)
    for entry in decision.taking:
        profile = entry.profile
        assert profile is not None
        on_cpu = sum(not layer.on_npu for layer in profile.layers)
        table.add_row(
            entry.chip.name,
            time_text(profile.latency_us),
            range_text(*profile.prediction.range_us),
            rate_text(entry.fps),
            "-" if entry.float16_us is None else time_text(entry.float16_us),
            size_text(entry.memory_bytes),
            f"{on_cpu} ({100 * profile.prediction.cpu_share:.0f} %)" if on_cpu else "0",
            str(profile.prediction.confidence),
        )
    for entry in decision.chips:
        if not entry.takes:
            reason = entry.refusal or f"does not fit: {size_text(entry.memory_bytes)}"
            table.add_row(entry.chip.name, *["-"] * len(values), reason)
    return table
