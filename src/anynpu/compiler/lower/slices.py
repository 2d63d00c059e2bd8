"""Slice and Split in one form: where each output starts, and its stride, by axis."""

from __future__ import annotations

from ..graph import Graph, Node

__all__ = ["slice_bounds"]


def slice_bounds(graph: Graph, node: Node) -> list[tuple[list[int], list[int]]]:
    """For each output: start and step by logical axis. Extents are those of the outputs."""
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
