"""Attributes of ONNX nodes as numbers: windows of convolutions and poolings, index tables of Resize, Slice and Split."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...modelfile.operator_rules import MAX_PAD_BEYOND
from ...program import RESIZE_BITS
from ..graph import Graph, Node

# Windows of convolutions and poolings, and the index tables of a resize, read from ONNX attributes.


_MAX_VALUE = 1 << 20
_TIE = 1e-6
"""How far from a half still counts as a half."""


@dataclass(frozen=True)
class Window:
    """Kernel, stride, padding and dilation in two dimensions; a one-dimensional window has height 1."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    groups: int = 1
    ceil_mode: bool = False

    @property
    def is_moderate(self) -> bool:
        """Whether its numbers are such as an image can have; a stride beyond the image means nothing, and may be anything."""
        reach = [(kernel - 1) * dilation for kernel, dilation in zip(self.kernel, self.dilations, strict=True)]
        near = all(pad <= most + MAX_PAD_BEYOND for pad, most in zip(self.pads, reach * 2, strict=True))
        return near and max(*self.kernel, *self.strides, *self.pads, *self.dilations) <= _MAX_VALUE


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
    """Pads at the end such that the plain formula gives the output size (ceil_mode rounds up, some exporters leave a rest)."""
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
            if value is not None and value.size:
                given = [1.0] * len(source)
                for axis, scale in zip(node.attribute("axes", range(len(source))), value, strict=True):
                    given[axis] = float(scale)
    return given or [out / into for into, out in zip(source, result, strict=True)]


def resize_indices(
    kind: str, into: int, out: int, scale: float, transformation: str, nearest_mode: str
) -> npt.NDArray[np.int32] | None:
    """int32[out, 3]: first index, second index, weight of the second in units of 2**-11. None for an unknown transformation."""
    # in float32, as runtimes compute it: what is a tie there must be one here
    position, factor = np.arange(out, dtype=np.float32), np.float32(scale)
    half = np.float32(0.5)
    if transformation == "half_pixel" or (transformation == "pytorch_half_pixel" and out > 1):
        source = (position + half) / factor - half
    elif transformation == "half_pixel_symmetric":
        source = np.float32(into / 2.0 * (1.0 - out / (scale * into))) + (position + half) / factor - half
    elif transformation == "asymmetric":
        source = position / factor
    elif transformation == "align_corners" and out > 1:
        source = position * np.float32(into - 1) / np.float32(out - 1)
    elif transformation in ("pytorch_half_pixel", "align_corners"):
        source = np.zeros(out, np.float32)
    else:
        return None
    table = np.zeros((out, 3), np.int32)
    if kind == "nearest":
        rounded = _nearest(source, nearest_mode, scale)
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


def _nearest(source: npt.NDArray[np.float32], mode: str, scale: float) -> npt.NDArray[Any] | None:
    if mode == "floor" or (mode == "simple" and scale >= 1.0):  # simple: the only mode before opset 11
        return np.floor(source)
    if mode in ("ceil", "simple"):
        return np.ceil(source)
    if mode == "round_prefer_floor":
        return np.ceil(source.astype(np.float64) - 0.5 - _TIE)
    if mode == "round_prefer_ceil":
        return np.floor(source.astype(np.float64) + 0.5 + _TIE)
    return None


def is_whole(number: float) -> bool:
    """Whether a scale is an integer, where float32 can report."""
    return math.isclose(number, round(number), rel_tol=1e-6)


# Slice and Split in one form: where each output starts, and its stride, by axis.


def slice_bounds(graph: Graph, node: Node) -> list[tuple[list[int], list[int]]]:
    """For each output: start and step by logical axis. Sizes are those of the outputs."""
    shape = graph.shapes[node.inputs[0]]
    if node.op == "Split":
        axis = int(node.attribute("axis", 0)) % len(shape)
        bounds, offset = [], 0
        for name in filter(None, node.outputs):
            start = [0] * len(shape)
            start[axis] = offset
            bounds.append((start, [1] * len(shape)))
            offset += graph.shapes[name][axis]
        return bounds
    starts, axes, steps = _slice_arguments(graph, node)
    first, stride = [0] * len(shape), [1] * len(shape)
    for begin, axis, step in zip(starts, axes, steps, strict=True):
        extent = shape[axis]
        first[axis % len(shape)] = min(max(begin + extent if begin < 0 else begin, 0), extent - 1)
        stride[axis % len(shape)] = step
    return [(first, stride)]


def _slice_arguments(graph: Graph, node: Node) -> tuple[list[int], list[int], list[int]]:
    if "starts" in node.attributes:
        starts = list(node.attributes["starts"])
        return starts, list(node.attribute("axes", range(len(starts)))), [1] * len(starts)
    values = [graph.constant(name) if name else None for name in [*node.inputs[1:], "", "", ""]]
    starts = [int(value) for value in values[0]] if values[0] is not None else []
    axes = [int(value) for value in values[2]] if values[2] is not None else list(range(len(starts)))
    steps = [int(value) for value in values[3]] if values[3] is not None else [1] * len(starts)
    return starts, axes, steps
