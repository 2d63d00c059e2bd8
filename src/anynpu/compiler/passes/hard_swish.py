"""HardSwish that an exporter wrote as ``x * clip(x + 3, 0, 6) / 6``, written so that it stays one function.

Where three or more parts of a Concat end with the same division, Rockchip's toolkit takes it behind the Concat, and what is left of the
function is computed operator by operator, in codes (:mod:`anynpu.compiler.toolkit.concats`). With a product as its last operator it stays
whole: seen in graphs that the toolkit wrote.
"""

from __future__ import annotations

from ..graph import Graph, Node
from ..lower.functions import clip_bounds

__all__ = ["write_hard_swish_as_gate"]


def write_hard_swish_as_gate(graph: Graph) -> int:
    """Rewrite such functions in place as ``x * HardSigmoid(x)``; how many there were."""
    count = 0
    for node in list(graph.nodes):
        source = _source(graph, node)
        if source:
            gate = graph.free_name(f"{node.outputs[0]}/gate")
            graph.shapes[gate], graph.dtypes[gate] = graph.shapes[source], graph.dtypes[source]
            place = next(index for index, entry in enumerate(graph.nodes) if entry is node)
            product = Node("Mul", [source, gate], list(node.outputs), {}, node.name)
            graph.nodes[place : place + 1] = [
                Node("HardSigmoid", [source], [gate], {"alpha": 1.0 / 6.0, "beta": 0.5}, gate),
                product,
            ]
            count += 1
    if count:
        graph.remove_unused()
    return count


def _source(graph: Graph, div: Node) -> str:
    """The argument of the HardSwish that a node ends; empty where it ends none."""
    makers = graph.producers()
    product = makers.get(div.inputs[0]) if div.op == "Div" and not div.domain and graph.number(div.inputs[1]) == 6 else None
    if product is None or product.op != "Mul" or product.domain or len(graph.consumers()[product.outputs[0]]) > 1:
        return ""
    for source, other in (product.inputs, product.inputs[::-1]):
        clip = makers.get(other)
        if clip is None or clip.domain or clip.op != "Clip" or clip_bounds(graph, clip) != (0.0, 6.0):
            continue
        add = makers.get(clip.inputs[0])
        if add is None or add.op != "Add" or add.domain or source not in add.inputs:
            continue
        number = add.inputs[1 - add.inputs.index(source)]
        if graph.number(number) == 3 and graph.shapes[source] == graph.shapes[div.outputs[0]]:
            return source
    return ""
