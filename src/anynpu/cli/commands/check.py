"""``anynpu check``: what a chip would do with a model, without compiling it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer

from ... import chips
from ...chips.timing import predict
from ...chips.timing.model import cpu_costs
from ...compiler import CompileOptions, ModelCheck
from ...errors import AnynpuError
from ...program.report import Report
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

# What a user can change in a model so that a layer does not go to the CPU.


_ADVICE: tuple[tuple[str, str, str], ...] = (
    # operators of the layer, its reason, what to do
    (
        r"^Transpose",
        r"height x width",
        "export the model so that it ends before it, and transpose in your program; or keep height x width within the limit (a smaller "
        "image). Taking it apart does not help on the board: users report that the vendor's toolkit joins the parts again. RK3576 has "
        "no such limit",
    ),
    (
        r"^(Where|Equal|Less|Greater|And|Or|Not)",
        r"is not an operator",
        "let the program make the mask: an input of 0 and 1 that is multiplied, or of 0 and -10000 that is added before a softmax",
    ),
    (
        r"^Cast",
        r"is not an operator",
        "feed the input in the type that the network computes in",
    ),
    (r"^ReduceL2", r"is not an operator", "torch.sqrt((x * x).sum(...)) instead of x.norm(...): a product, ReduceSum and Sqrt"),
    (r"^ReduceL1", r"is not an operator", "x.abs().sum(...) instead of the norm: Abs and ReduceSum"),
    (r"^ReduceSumSquare", r"is not an operator", "(x * x).sum(...): a product and ReduceSum"),
    (r"^ReduceLogSum", r"is not an operator", "ReduceSum and Log, after Exp where the operator has one"),
    (
        r"^(Reduce|ArgMax|ArgMin|TopK)",
        r"is not an operator",
        "a mean or sum over height and width as GlobalAveragePool, or over channels as a 1x1 convolution; the best class of an output in "
        "your program",
    ),
    (r"^Gather", r"is not an operator", "slices with fixed places (x[:, 2:4]) instead of indices"),
    (r"^LogSoftmax", r"is not an operator", "Softmax and Log; or Softmax alone, if only the order of the classes matters"),
    (r"^Tile", r"is not an operator", "Concat of the same tensor, or Expand along an axis of size 1"),
    (
        r"^CumSum",
        r"is not an operator",
        "a product with a constant triangular matrix of ones; where it counts words, make the positions an input (position_ids)",
    ),
    (r"^Einsum", r"is not an operator", "torch.matmul, with permute and reshape around it, instead of torch.einsum"),
    (
        r"^Softmax",
        r"axis",
        "let it go over the channels or the last axis, or take it into your program at the end",
    ),
    (
        r"^(Resize|Upsample)",
        r"factor|mode",
        "whole factors of 2 to 8 with mode nearest or linear, two in a row for a larger one, or a transposed convolution",
    ),
    (
        r"^Conv(?!Transpose)",
        r"stride",
        "where the kernel is as large as the stride (patches): SpaceToDepth by 2 or 4 before it, and kernel and stride smaller by as much, "
        "with the same weights in another order; elsewhere two smaller convolutions, one after the other",
    ),
    (
        r"^Conv(?!Transpose)",
        r"depthwise kernel",
        "where there are few channels, a dense convolution (kernels up to 31) whose weights are the depthwise ones on its diagonal; "
        "elsewhere smaller kernels, one after the other",
    ),
    (r"^Conv(?!Transpose)", r"\bpad\b", "a Pad layer before it (torch's F.pad), and the convolution without pads"),
    (r"^Conv(?!Transpose)", r"dilation", "a smaller dilation, or several convolutions with a small one, one after the other"),
    (r"^Conv(?!Transpose)", r"kernel", "two smaller convolutions, one after the other"),
    (r"^ConvTranspose", r"group", "Split, a transposed convolution for each group, and Concat"),
    (r"^ConvTranspose", r"kernel|stride", "Resize and a convolution after it, or two transposed convolutions of smaller stride"),
    (r"^(Conv|MaxPool|AveragePool)", r"dimensional", "fewer dimensions: depth or time as channels, or as batch"),
    (
        r"^(MaxPool|AveragePool)",
        r"ceil_mode",
        "ceil_mode=False, and a padding at the end that gives the same size (pads=[0, 0, 1, 1]; in torch F.pad before it)",
    ),
    (r"^(MaxPool|AveragePool)", r"channels", "Split, a pooling for each part, and Concat"),
    (r"^(MaxPool|AveragePool|GlobalAveragePool)", r"kernel|stride|exceeds", "several smaller poolings, one after the other"),
    (r"^(MatMul|Gemm)", r"inner axis", "two products of half the inner axis each, and their sum"),
    (r"^LSTM", r"size", "a smaller state, or several layers of it beside each other"),
    (
        r"",
        r"is not an operator",
        "let your program compute it: end the model before it (torch: return what it reads), or make its result an input",
    ),
    (r"", r"has no float16", "operators with an integer form; 'anynpu check' with --dtype int8 shows which layers stay float"),
)


def advice_lines(report: Report) -> list[str]:
    """What would avoid the layers on the CPU, where something is known: each advice once, with the kinds of layers that it is for."""
    kinds: dict[str, dict[str, None]] = {}
    for layer in report.on_cpu:
        for operators, reason, text in _ADVICE:
            if re.search(operators, layer.kind) and re.search(reason, layer.reason):
                kinds.setdefault(text, {})[layer.kind] = None
                break
    return [f"{', '.join(names)}: {text}" for text, names in kinds.items()]


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
    """One row a chip. A chip that cannot take the model states why; it is a failure only if no chip can."""
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
