"""FusedMatMul of onnxruntime, a product with turned operands and a factor, as Transpose, MatMul and Mul: those have integer forms."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node

__all__ = ["plain_products"]

_OP, _DOMAIN = "FusedMatMul", "com.microsoft"


def plain_products(graph: Graph) -> None:
    """Write every such product plainly, in place; the shapes of its operands are known. One that turns batches stays."""
    nodes: list[Node] = []
    for node in graph.nodes:
        turned = any(node.attribute(name, 0) for name in ("transBatchA", "transBatchB"))
        if node.op == _OP and node.domain == _DOMAIN and not turned and all(graph.rank(name) > 1 for name in node.inputs[:2]):
            nodes += _plain(graph, node)
        else:
            nodes.append(node)
    graph.nodes = nodes


def _plain(graph: Graph, node: Node) -> list[Node]:
    made: list[Node] = []
    operands = []
    for name, key in zip(node.inputs, ("transA", "transB"), strict=False):
        if node.attribute(key, 0):
            name = _turned(graph, name, made)
        operands.append(name)
    result, factor = node.outputs[0], float(node.attribute("alpha", 1.0))
    if factor == 1.0:
        return [*made, Node("MatMul", operands, [result], {}, node.name)]
    product = graph.free_name(f"{result}.product")
    graph.shapes[product], graph.dtypes[product] = graph.shapes[result], graph.dtypes[result]
    number = graph.add_constant(f"{result}.factor", np.array(factor, graph.dtypes[result]))
    return [
        *made,
        Node("MatMul", operands, [product], {}, node.name),
        Node("Mul", [product, number], [result], {}, f"{node.label}.alpha"),
    ]


def _turned(graph: Graph, name: str, made: list[Node]) -> str:
    stored = graph.constant(name)
    if stored is not None:
        return graph.add_constant(f"{name}.turned", np.ascontiguousarray(np.swapaxes(stored, -1, -2)))
    rank = graph.rank(name)
    result = graph.free_name(f"{name}.turned")
    perm = [*range(rank - 2), rank - 1, rank - 2]
    graph.shapes[result], graph.dtypes[result] = tuple(graph.shapes[name][axis] for axis in perm), graph.dtypes[name]
    made.append(Node("Transpose", [name], [result], {"perm": perm}, f"{result}.Transpose"))
    return result
