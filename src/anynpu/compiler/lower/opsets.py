"""Float nodes of any ONNX operator set in the one form that layer programs have: that of operator set 21.

Each function gives the node as one node or a few of the newer form. What was an attribute and is an input now becomes a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import UnsupportedOperatorError
from ..graph import Graph, Node

__all__ = ["Additions", "modern"]


class Additions:
    """Constants and tensors that nodes need besides those of the graph."""

    def __init__(self, graph: Graph) -> None:
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self._graph = graph

    def constant(self, node: Node, what: str, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant, and return its name."""
        name = f"{node.outputs[0]}@{what}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def tensor(self, node: Node, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        """Add a tensor that lies between two nodes, and return its name."""
        name = f"{node.outputs[0]}@{what}"
        self.shapes[name], self.dtypes[name] = shape, dtype
        return name


def modern(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """The nodes of operator set 21 that compute what *node* computes in the graph's operator set."""
    change = _CHANGES.get(node.op) if not node.domain else None
    copy = replace(node, inputs=list(node.inputs), outputs=list(node.outputs), attributes=dict(node.attributes))
    return change(graph, copy, more) if change else [copy]


def _inputs_of(*names: str) -> Callable[[Graph, Node, Additions], list[Node]]:
    """A change of operators whose attributes *names* became inputs, in this order after the first one."""

    def change(graph: Graph, node: Node, more: Additions) -> list[Node]:
        if not any(name in node.attributes for name in names):
            return [node]
        kind = graph.dtypes[node.inputs[0]]
        node.inputs = node.inputs[:1]
        for name in names:
            value = node.attributes.pop(name, None)
            dtype = kind if name in ("min", "max", "value") else np.int64
            node.inputs.append("" if value is None else more.constant(node, name, value, dtype))
        while not node.inputs[-1]:
            node.inputs.pop()
        return [node]

    return change


def _topk(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if "k" in node.attributes:
        node.inputs.append(more.constant(node, "k", [node.attributes.pop("k")]))
    return [node]


def _split(graph: Graph, node: Node, more: Additions) -> list[Node]:
    (node,) = _inputs_of("split")(graph, node, more)
    if len(node.inputs) < 2 or not node.inputs[1]:
        node.inputs = node.inputs[:1]
        node.attributes["num_outputs"] = len(node.outputs)
    return [node]


def _softmax(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """Before operator set 13 it went over all axes from the given one to the last."""
    if graph.opset >= 13:
        return [node]
    shape, kind = graph.shapes[node.inputs[0]], graph.dtypes[node.inputs[0]]
    axis = int(node.attribute("axis", 1)) % max(1, len(shape))
    if math.prod(shape[axis + 1 :]) == 1:
        node.attributes["axis"] = axis
        return [node]
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    before, after = more.tensor(node, "rows", rows, kind), more.tensor(node, "shares", rows, kind)
    return [
        Node("Reshape", [node.inputs[0], more.constant(node, "matrix", rows)], [before]),
        Node(node.op, [before], [after], {"axis": -1}, node.name),
        Node("Reshape", [after, more.constant(node, "whole", shape)], node.outputs),
    ]


def _resize(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """Until operator set 10 there was one way to find the places, and nearest ones lay above them where a picture became smaller."""
    if node.op == "Resize" and graph.opset > 10:
        unused = [name for name in node.inputs if name in graph.constants and not graph.constants[name].size]
        node.inputs = ["" if name in unused else name for name in node.inputs]
        return [node]
    scales = node.attributes.pop("scales", None)
    scales = graph.constants.get(node.inputs[1]) if scales is None and len(node.inputs) > 1 else scales
    if scales is None:
        raise _refused(node, "its scales are computed")
    factors = np.asarray(scales, np.float32)
    mode = {"bilinear": "linear"}.get(node.attribute("mode", "nearest"), node.attribute("mode", "nearest"))
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    smaller, larger = np.minimum(factors, 1), np.maximum(factors, 1)
    source, made = node.inputs[0], []
    if mode == "nearest" and (smaller < 1).any():
        attributes["nearest_mode"] = "ceil"
        if (larger > 1).any():
            shape = tuple(math.floor(extent * scale) for extent, scale in zip(graph.shapes[source], smaller, strict=True))
            part = more.tensor(node, "smaller", shape, graph.dtypes[source])
            first = more.constant(node, "factors", smaller, np.float32)
            made.append(Node("Resize", [source, "", first], [part], dict(attributes)))
            source, factors, attributes["nearest_mode"] = part, larger, "floor"
    made.append(
        Node("Resize", [source, "", more.constant(node, "scales", factors, np.float32)], node.outputs, attributes, node.name)
    )
    return made


def _dropout(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 12:
        node.attributes, node.inputs = {}, node.inputs[:1]
    return [node]


def _batch_normalization(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 14:
        node.outputs = node.outputs[:1]
        node.attributes.pop("spatial", None)
    return [node]


def _scatter(graph: Graph, node: Node, more: Additions) -> list[Node]:
    node.op = "ScatterElements"
    return [node]


def _grid_sample(graph: Graph, node: Node, more: Additions) -> list[Node]:
    mode = node.attribute("mode", "linear")
    node.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [node]


def _roi_align(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 16:
        node.attributes["coordinate_transformation_mode"] = "output_half_pixel"
    return [node]


def _dft(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 20:
        axis = more.constant(node, "axis", node.attributes.pop("axis", 1))
        node.inputs = [node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else "", axis]
    return [node]


def _group_normalization(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """Before operator set 21 there was one scale for each group, not for each channel."""
    if graph.opset < 21:
        channels = graph.shapes[node.inputs[0]][1] // int(node.attribute("num_groups"))
        for place, what in ((1, "scale"), (2, "bias")):
            value = graph.constants.get(node.inputs[place])
            if value is None:
                raise _refused(node, f"its {what} is computed")
            node.inputs[place] = more.constant(node, what, np.repeat(value, channels), value.dtype)
    return [node]


def _refused(node: Node, why: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(why, node=node.label, operator=node.op, hint="export the model with a newer operator set")


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_CHANGES: dict[str, Callable[[Graph, Node, Additions], list[Node]]] = {
    **{f"Reduce{name}": _inputs_of("axes") for name in _REDUCTIONS},
    "BatchNormalization": _batch_normalization,
    "Clip": _inputs_of("min", "max"),
    "DFT": _dft,
    "Dropout": _dropout,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_normalization,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "Pad": _inputs_of("pads", "value"),
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Scatter": _scatter,
    "Slice": _inputs_of("starts", "ends", "axes"),
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _inputs_of("axes"),
    "TopK": _topk,
    "Unsqueeze": _inputs_of("axes"),
    "Upsample": _resize,
}
