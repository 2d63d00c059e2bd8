"""Windows of convolutions and poolings, and the index tables of a resize, read from ONNX attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..program import RESIZE_BITS
from .graph import Graph, Node

__all__ = ["Window", "resize_indices", "resize_scales", "window_of"]


@dataclass(frozen=True)
class Window:
    """Kernel, stride, padding and dilation in two dimensions; a one-dimensional window has height 1."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int = 1
    ceil_mode: bool = False


def window_of(graph: Graph, node: Node) -> Window:
    """The window of a Conv, ConvTranspose, MaxPool, AveragePool or global pooling node of rank 3 or 4."""
    shape = graph.shapes[node.inputs[0]]
    spatial = len(shape) - 2
    if node.op.startswith("Global"):
        kernel = list(shape[2:])
        return Window(_two(kernel), (1, 1), (0, 0, 0, 0), (1, 1))
    kernel = list(node.attribute("kernel_shape", []))
    if not kernel:
        kernel = list(graph.shapes[node.inputs[1]][2:])
    strides = list(node.attribute("strides", [1] * spatial))
    dilations = list(node.attribute("dilations", [1] * spatial))
    pads = list(node.attribute("pads", [0] * (2 * spatial)))
    ceil_mode = bool(node.attribute("ceil_mode", 0))
    if node.op in ("MaxPool", "AveragePool"):
        pads = _reach_output(shape[2:], graph.shapes[node.outputs[0]][2:], kernel, strides, dilations, pads)
    before, after = pads[:spatial], pads[spatial:]
    top, left = _two(before, 0)
    bottom, right = _two(after, 0)
    return Window(
        _two(kernel), _two(strides), (top, left, bottom, right), _two(dilations), int(node.attribute("group", 1)), ceil_mode
    )


def _reach_output(
    source: tuple[int, ...], result: tuple[int, ...], kernel: list[int], strides: list[int], dilations: list[int], pads: list[int]
) -> list[int]:
    """Pads at the end such that the plain formula gives the output extent (ceil_mode rounds up, some exporters leave a rest)."""
    spatial = len(source)
    after = []
    for axis in range(spatial):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        after.append(max(0, (result[axis] - 1) * strides[axis] + reach - source[axis] - pads[axis]))
    return [*pads[:spatial], *after]


def _two(values: list[int], missing: int = 1) -> tuple[int, int]:
    return (missing, int(values[0])) if len(values) == 1 else (int(values[0]), int(values[1]))


def resize_scales(graph: Graph, node: Node) -> list[float]:
    """Scale by axis of a Resize or Upsample node."""
    source, result = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    given: list[float] | None = None
    if "scales" in node.attributes:
        given = list(node.attributes["scales"])
    else:
        index = 1 if node.op == "Upsample" or graph.opset < 11 else 2
        if len(node.inputs) > index and node.inputs[index]:
            value = graph.constant(node.inputs[index])
            if value is not None and value.size == len(source):
                given = [float(entry) for entry in value]
    return given or [out / into for into, out in zip(source, result, strict=True)]


def resize_indices(
    kind: str, into: int, out: int, scale: float, transformation: str, nearest_mode: str
) -> npt.NDArray[np.int32] | None:
    """int32[out, 3]: first index, second index, weight of the second in units of 2**-11. None for an unknown transformation."""
    position = np.arange(out, dtype=np.float64)
    if transformation in ("half_pixel", "half_pixel_symmetric"):
        source = (position + 0.5) / scale - 0.5
        if transformation == "half_pixel_symmetric":
            adjustment = out / (scale * into)
            source += (into / 2.0) * (1.0 - adjustment)
    elif transformation == "pytorch_half_pixel":
        source = (position + 0.5) / scale - 0.5 if out > 1 else np.zeros(out)
    elif transformation == "asymmetric":
        source = position / scale
    elif transformation == "align_corners":
        source = position * ((into - 1) / (out - 1)) if out > 1 else np.zeros(out)
    else:
        return None
    table = np.zeros((out, 3), np.int32)
    if kind == "nearest":
        rounded = _nearest(source, nearest_mode)
        if rounded is None:
            return None
        table[:, 0] = table[:, 1] = np.clip(rounded, 0, into - 1)
        return table
    source = np.clip(source, 0.0, into - 1)
    first = np.floor(source)
    table[:, 0] = first
    table[:, 1] = np.minimum(first + 1, into - 1)
    table[:, 2] = np.rint((source - first) * (1 << RESIZE_BITS))
    return table


def _nearest(source: npt.NDArray[np.float64], mode: str) -> npt.NDArray[np.float64] | None:
    if mode == "floor":
        # a quotient such as 2.9999999996 stands for 3: exporters' scales are float32
        return np.floor(source + 1e-6)
    if mode == "ceil":
        return np.ceil(source - 1e-6)
    if mode == "round_prefer_floor":
        return np.ceil(source - 0.5 - 1e-9)
    if mode == "round_prefer_ceil":
        return np.floor(source + 0.5 + 1e-9)
    return None


def is_whole(number: float) -> bool:
    """Whether a scale is an integer, as far as float32 can tell."""
    return math.isclose(number, round(number), rel_tol=1e-6)
