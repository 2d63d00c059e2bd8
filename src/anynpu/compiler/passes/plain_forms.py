"""Nodes that integers compute once they are written in another way, such as a product with a constant on its left.

Each function adds nodes that compute the same, or says that it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..._util.types import Array
from ..graph import Graph, Node

__all__ = ["PLAIN_FORMS", "Builder"]

_LARGEST = 1e20


@dataclass
class Builder:
    """New nodes in order, with shapes for what they make."""

    graph: Graph
    label: str
    nodes: list[Node] = field(default_factory=list)

    def node(
        self,
        op: str,
        inputs: list[str],
        shape: Sequence[int],
        attributes: dict[str, object] | None = None,
        *,
        named: bool = False,
    ) -> str:
        """Add a node and return the name of its result. The one that is *named* has the label of what is replaced."""
        part = f"{self.label}.{len(self.nodes)}"
        name = self.graph.free_name(f"{part}.{op}")
        self.graph.shapes[name], self.graph.dtypes[name] = tuple(shape), np.dtype(np.float32)
        label = self.label if named else part
        self.nodes.append(Node(op, inputs, [name], dict(attributes or {}), label, rewritten=True))
        return name

    def reshape(self, source: str, shape: Sequence[int]) -> str:
        if self.graph.shapes[source] == tuple(shape):
            return source
        extents = self.graph.add_constant(f"{source}.shape", np.array(shape, np.int64))
        return self.node("Reshape", [source, extents], shape)

    def transpose(self, source: str, perm: Sequence[int]) -> str:
        if list(perm) == sorted(perm):
            return source
        shape = self.graph.shapes[source]
        return self.node("Transpose", [source], [shape[axis] for axis in perm], {"perm": list(perm)})

    def ending_in(self, name: str) -> list[Node]:
        """The nodes, the last of which makes the tensor *name*."""
        self.nodes[-1].outputs = [name]
        return self.nodes


def _known(graph: Graph, name: str) -> Array | None:
    """A constant of numbers that have codes."""
    value = graph.constant(name)
    return value if value is not None and value.size and np.abs(value).max() < _LARGEST else None


def _matmul(build: Builder, node: Node) -> bool:
    """A product with constants: a vector, a matrix with axes of extent 1 before it, a matrix on the left."""
    graph = build.graph
    left, right = node.inputs
    result = graph.shapes[node.outputs[0]]
    weights, before = _known(graph, right), _known(graph, left)
    if weights is not None and left not in graph.constants and graph.rank(left) >= 2:
        matrix = (
            weights.reshape(-1, 1) if weights.ndim == 1 else weights.reshape(weights.shape[-2:]) if _is_matrix(weights) else None
        )
        if matrix is None or weights.ndim == 2:
            return False
        build.reshape(_product(build, left, matrix), result)
        return True
    if before is None or right in graph.constants or graph.rank(right) < 2 or before.ndim < 2 or not _is_matrix(before):
        return False
    axes = list(range(graph.rank(right)))
    turned = [*axes[:-2], axes[-1], axes[-2]]
    made = _product(build, build.transpose(right, turned), before.reshape(before.shape[-2:]).T)
    build.reshape(build.transpose(made, turned), result)
    return True


def _is_matrix(value: Array) -> bool:
    return math.prod(value.shape[:-2]) == 1


def _product(build: Builder, rows: str, matrix: Array) -> str:
    weights = build.graph.add_constant(f"{rows}.weights", np.ascontiguousarray(matrix))
    return build.node("MatMul", [rows, weights], (*build.graph.shapes[rows][:-1], matrix.shape[1]), named=True)


def _gemm(build: Builder, node: Node) -> bool:
    """A Gemm whose first factor is transposed, or whose addend differs from row to row."""
    graph = build.graph
    weights = _known(graph, node.inputs[1])
    added = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = _known(graph, added) if added else None
    if weights is None or node.inputs[0] in graph.constants or (added and bias is None):
        return False
    plain = (weights.T if node.attribute("transB", 0) else weights) * np.float32(node.attribute("alpha", 1.0))
    rows = build.transpose(node.inputs[0], [1, 0]) if node.attribute("transA", 0) else node.inputs[0]
    made = _product(build, rows, plain)
    if bias is not None:
        value = graph.add_constant(f"{added}.scaled", bias * np.float32(node.attribute("beta", 1.0)))
        build.node("Add", [made, value], graph.shapes[made])
    return True


def _prelu(build: Builder, node: Node) -> bool:
    """A PRelu of rows, or of lines: behind a convolution of images that does nothing."""
    graph = build.graph
    slope = _known(graph, node.inputs[1])
    shape = graph.shapes[node.inputs[0]]
    if slope is None or len(shape) not in (2, 3) or slope.ndim > len(shape) or node.inputs[0] in graph.constants:
        return False
    full: Array = slope.reshape((1,) * (len(shape) - slope.ndim) + slope.shape)
    if any(extent != 1 for axis, extent in enumerate(full.shape) if axis != 1) or shape != graph.shapes[node.outputs[0]]:
        return False
    image = build.reshape(node.inputs[0], (*shape[:2], 1, *(shape[2:] or (1,))))
    ones = graph.add_constant(f"{node.outputs[0]}.ones", np.ones((shape[1], 1, 1, 1), np.float32))
    attributes = {"group": shape[1], "kernel_shape": [1, 1]}
    through = build.node("Conv", [image, ones], graph.shapes[image], attributes)
    slopes = graph.add_constant(f"{node.inputs[1]}.channels", full.reshape(-1, 1, 1).astype(np.float32))
    build.reshape(build.node("PRelu", [through, slopes], graph.shapes[image], named=True), shape)
    return True


def _bounded(build: Builder, node: Node) -> bool:
    """The larger or smaller of a tensor and constants c: relu(x - c) + c, or c - relu(c - x)."""
    graph = build.graph
    if len(node.inputs) != 2:
        return False
    data = [name for name in node.inputs if name not in graph.constants]
    shape = graph.shapes[node.outputs[0]]
    if len(data) != 1 or graph.shapes[data[0]] != shape:
        return False
    bound = next(name for name in node.inputs if name != data[0])
    if _known(graph, bound) is None:
        return False
    largest = node.op == "Max"
    apart = build.node("Sub", [data[0], bound] if largest else [bound, data[0]], shape)
    kept = build.node("Relu", [apart], shape, named=True)
    build.node("Add" if largest else "Sub", [kept, bound] if largest else [bound, kept], shape)
    return True


PLAIN_FORMS: Mapping[str, Callable[[Builder, Node], bool]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "PRelu": _prelu,
    "Max": _bounded,
    "Min": _bounded,
}
"""By operator; they are asked where the node has no form of its own."""
