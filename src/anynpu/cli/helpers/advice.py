"""What a user can change in a model so that a layer does not go to the CPU."""

from __future__ import annotations

import re

from ...reports import Report

__all__ = ["advice_lines"]

_ADVICE: tuple[tuple[str, str, str], ...] = (
    # operators of the layer, its reason, what to do
    (
        r"^Transpose",
        r"height x width",
        "export the model so that it ends before it, and transpose in your program; or keep height x width small. Taking it apart does "
        "not help on the board: users report that the vendor's toolkit joins the parts again. RK3576 has no such limit",
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
    (
        r"^(Reduce|ArgMax|ArgMin|TopK)",
        r"is not an operator",
        "a mean or sum over height and width as GlobalAveragePool, or over channels as a 1x1 convolution; the best class of an output in "
        "your program",
    ),
    (r"^Gather", r"is not an operator", "slices with fixed places (x[:, 2:4]) instead of indices"),
    (
        r"^Softmax",
        r"axis",
        "let it go over the channels or the last axis, or take it into your program at the end",
    ),
    (r"^(Resize|Upsample)", r"factor|mode", "whole factors of 2 to 8 with mode nearest or linear, or a transposed convolution"),
    (r"^(Conv|ConvTranspose)", r"kernel|stride|dilation|pad", "two smaller convolutions, one after the other"),
    (r"^(MaxPool|AveragePool|GlobalAveragePool)", r"kernel|stride|exceeds", "several smaller poolings, one after the other"),
    (r"", r"has no float16", "operators with an integer form; 'anynpu check' with --dtype int8 shows which layers stay float"),
)


def advice_lines(report: Report) -> list[str]:
    """For each kind of layer on the CPU, once: what would avoid it, where something is known."""
    lines: dict[str, None] = {}
    for layer in report.on_cpu:
        for operators, reason, text in _ADVICE:
            if re.search(operators, layer.kind) and re.search(reason, layer.reason):
                lines[f"{layer.kind}: {text}"] = None
                break
    return list(lines)
