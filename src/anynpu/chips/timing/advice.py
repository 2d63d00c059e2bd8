"""What layers on the board's CPU cost, in words, and what would keep them on the NPU."""

from __future__ import annotations

import re

from ...program import Layer, Placement, Program
from .model import Prediction

__all__ = ["cpu_costs"]

_SHARE = 0.05
_MAX_LINES = 3


def cpu_costs(program: Program, prediction: Prediction) -> list[str]:
    """A sentence for each layer on the CPU that takes a good part of the time, the most costly first."""
    total = prediction.latency_us
    found = [
        (predicted.time_us, layer)
        for layer, predicted in zip(program.layers, prediction.layers, strict=True)
        if layer.placement is Placement.CPU and predicted.time_us > _SHARE * total
    ]
    found.sort(key=lambda entry: -entry[0])
    lines = []
    for spent, layer in found[:_MAX_LINES]:
        text = f"{layer.name}: this {_words(layer)} on the CPU takes {_ms(spent)} of {_ms(total)} ms"
        way = _way_out(layer)
        reason = f" ({layer.reason})" if layer.reason else ""
        lines.append(f"{text}{reason}" + (f"; {way}" if way else ""))
    return lines


def _ms(microseconds: float) -> str:
    value = microseconds / 1000.0
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _words(layer: Layer) -> str:
    names = {"Conv": "convolution", "ConvTranspose": "transposed convolution", "MatMul": "product", "Gemm": "product"}
    return names.get(layer.does, layer.does)


def _way_out(layer: Layer) -> str:
    """What would keep the layer on the NPU; empty where nothing is known."""
    limit = re.search(r"kernel \d+ is outside 1-(\d+)", layer.reason)
    if limit is None:
        return ""
    if layer.does == "Conv":
        return f"a kernel of {limit[1]} or two convolutions would keep it on the NPU"
    return f"a kernel of {limit[1]} at most, or two layers one after the other, would keep it on the NPU"
