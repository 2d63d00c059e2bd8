"""A report as text: the summary line, the CPU layers with their reasons, and the table of all layers."""

from __future__ import annotations

from rich.table import Table

from ...program.report import Report
from .console import numbers, plain_table, size_text

_REASONS_SHOWN = 2


def reasons_text(report: Report) -> str:
    """Why layers are on the CPU: ``Softmax: axis 2 is not 1 or 3; Gather and 2 others: ... (x7)``."""
    kinds: dict[str, list[str]] = {}
    for layer in report.on_cpu:
        kinds.setdefault(layer.reason, []).append(layer.kind)
    texts = []
    for reason, operators in list(kinds.items())[:_REASONS_SHOWN]:
        first, *others = dict.fromkeys(operators)
        who = first if not others else f"{first} and {len(others)} other{'s' if len(others) > 1 else ''}"
        text = reason if reason.startswith(who) else f"{who}: {reason}"
        texts.append(text if len(operators) == 1 else f"{text} (x{len(operators)})")
    return "; ".join(texts) + ("; ..." if len(kinds) > _REASONS_SHOWN else "")


def layers_text(report: Report) -> str:
    """``layers 74 on NPU, 3 on CPU (Softmax: axis 2 is not 1 or 3)``."""
    reasons = f" ({reasons_text(report)})" if report.on_cpu else ""
    return f"layers {report.on_npu} on NPU, {len(report.on_cpu)} on CPU{reasons}"


def summary_line(report: Report) -> str:
    """What a compiled model needs, in one line."""
    return f"  {layers_text(report)}   weights {size_text(report.weight_bytes)}   internal {size_text(report.internal_bytes)}"


def cpu_table(report: Report) -> Table:
    """The layers that fall back to the CPU, each with its reason."""
    table = plain_table("CPU layer", "operator", "reason")
    for layer in report.on_cpu:
        table.add_row(layer.name, layer.kind, layer.reason)
    return table


def layer_table(report: Report) -> Table:
    """All layers of one shape set."""
    counts = ("#", "MACs", "weights", "read", "write")
    table = plain_table(
        "#", "layer", "operator", "on", "type", "output", "MACs", "weights", "read", "write", "reason", right=counts
    )
    for layer in report.layers:
        table.add_row(
            str(layer.index),
            layer.name,
            layer.kind,
            layer.placement.upper(),
            layer.dtype,
            " ".join(shape_text(shape) for shape in layer.output_shapes),
            numbers(layer.macs),
            size_text(layer.weight_bytes),
            size_text(layer.read_bytes),
            size_text(layer.write_bytes),
            layer.reason,
        )
    return table


def shape_text(shape: tuple[int | str, ...]) -> str:
    """``1x3x480x480``; ``scalar`` without axes.

    >>> shape_text((1, 3, 480, 480)), shape_text(())
    ('1x3x480x480', 'scalar')
    """
    return "x".join(str(extent) for extent in shape) or "scalar"
