"""``anynpu check``: what a chip would do with a model, without compiling it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from ... import chips
from ...chips.timing import predict
from ...chips.timing.model import cpu_costs
from ...compiler import CompileOptions, ModelCheck
from ...errors import AnynpuError
from ...program.report import Report
from ..helpers.advice import advice_lines
from ..helpers.console import numbers, plain_table, print_json, results, size_text
from ..helpers.flags import with_flags
from ..helpers.options import (
    ALL_CHIPS,
    DEFAULT_CHIP,
    JsonOption,
    LayersOption,
    OnnxArgument,
    TargetOrAllOption,
    dtype_name,
    dtype_words,
    read_inputs,
)
from ..helpers.summary import cpu_table, layer_table, reasons_text, summary_line

__all__ = ["command"]


@with_flags(CompileOptions, only=("dtype", "shapes", "batch", "custom_ops", "trust"), callbacks={"dtype": dtype_name})
def command(
    model: OnnxArgument,
    given: dict[str, Any],
    target: TargetOrAllOption = DEFAULT_CHIP,
    layers: LayersOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what runs on the NPU of a chip.

    Lists the layers that fall back to the CPU, and why. Needs no calibration data.

    \b
    Example:
      anynpu check yolo.onnx --target rk3588
      anynpu check yolo.onnx --target all --json
    """
    options = read_inputs(model, given, "a check")
    dtype = options.pop("dtype")
    subject = ModelCheck(model, **options)

    def checked(chip: str) -> Report:
        return subject.report(chip, dtype=dtype)

    if target == ALL_CHIPS:
        if layers:
            raise typer.BadParameter("the list of layers needs one chip, not all of them", param_hint="'--layers'")
        _all_chips(checked, as_json=as_json)
        return
    report = checked(target)
    if as_json:
        print_json({**report.to_json(), "advice": advice_lines(report)})
        return
    console = results()
    console.print(f"{model.name} on {target} ({dtype_words(dtype, target)}): {report.nodes} nodes, {numbers(report.macs)} MACs")
    console.print(summary_line(report))
    if layers:
        console.print()
        console.print(layer_table(report))
    elif report.on_cpu:
        console.print()
        console.print(cpu_table(report))
    if report.on_cpu:
        for line in _costs(subject, target, dtype):
            console.print(f"{target}: {line}", markup=False, highlight=False)
        for line in advice_lines(report):
            console.print(f"to avoid it: {line}", markup=False, highlight=False)


def _costs(subject: ModelCheck, target: str, dtype: str) -> list[str]:
    """What the layers on the CPU cost, where that is much of a run."""
    chip = chips.get(target)
    program = subject.program(target, dtype=dtype)
    return cpu_costs(program, predict(program, chip))


def _all_chips(checked: Callable[[str], Report], *, as_json: bool) -> None:
    """One row a chip. A chip that cannot take the model says why; it is a failure only if no chip can."""
    counts = ("layers", "on CPU", "MACs", "weights", "internal")
    table = plain_table("chip", *counts, "note", right=counts)
    data: list[dict[str, Any]] = []
    error: AnynpuError | None = None
    accepted = 0
    for chip in chips.names():
        try:
            report = checked(chip)
        except AnynpuError as refusal:
            error = refusal
            data.append({"chip": chip, "error": refusal.message, "hint": refusal.hint})
            table.add_row(chip, "-", "-", "-", "-", "-", refusal.message)
            continue
        accepted += 1
        data.append(report.to_json())
        table.add_row(
            chip,
            str(len(report.layers)),
            str(len(report.on_cpu)),
            numbers(report.macs),
            size_text(report.weight_bytes),
            size_text(report.internal_bytes),
            reasons_text(report),
        )
    if not accepted and error is not None:
        raise error
    if as_json:
        print_json(data)
    else:
        results().print(table)
