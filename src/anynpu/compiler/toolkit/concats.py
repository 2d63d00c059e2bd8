"""What Rockchip's toolkit takes behind a Concat: ``quantizer="vendor"``.

Where each of three or more parts of a Concat ends with the same function, the toolkit computes it once, of the whole, and goes on with
what is before it: an activation, or the same number added, subtracted, multiplied or divided by. What stands right behind a convolution
stays there. A quotient that is multiplied again is one product, and a factor goes into the convolution that alone reads it.

An activation that an exporter wrote as several operators (``x * clip(x + 3, 0, 6) / 6``) loses its last one by that. It is then no
activation any more, and each operator that is left is a layer with codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Graph, Node

__all__ = ["functions_behind_concats"]

_FEWEST = 3
_CONVOLUTIONS = ("Conv", "ConvTranspose", "Gemm")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_FACTORS = ("Mul", "Div")
_ACTIVATIONS = ("Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
_LEFT = (*_ARITHMETIC, "Clip")


def functions_behind_concats(graph: Graph) -> set[str]:
    """Move what all parts of a Concat have in common behind it; gives the results that are made there by that."""
    moved: set[str] = set()
    for concat in [node for node in graph.nodes if node.op == "Concat" and not node.domain and len(node.inputs) >= _FEWEST]:
        chain: list[Node] = []
        while (ends := _common(graph, concat)) is not None:
            chain.insert(0, _behind(graph, concat, ends))
        if chain:
            _keep_apart(graph, concat)
            result = _connect(graph, concat, _with_joined_factors(graph, chain))
            moved.add(result)
    return moved


def _common(graph: Graph, concat: Node) -> list[Node] | None:
    """The last operators of all parts, if they are the same function of tensors that no convolution makes."""
    makers, readers = graph.producers(), graph.consumers()
    ends: list[Node] = []
    kinds: list[Any] = []
    for name in concat.inputs:
        node = makers.get(name)
        alone = len(readers.get(name, ())) == 1 and name not in graph.outputs
        position = -1 if node is None or not alone or not graph.is_float(name) else _data(graph, node)
        if node is None or position < 0:
            return None
        before = makers.get(node.inputs[position])
        if before is None or before.op in _CONVOLUTIONS:
            return None
        numbers = [None if index == position else graph.number(other) for index, other in enumerate(node.inputs)]
        ends.append(node)
        kinds.append((node.op, numbers, node.attributes))
    return ends if all(kind == kinds[0] for kind in kinds) else None


def _data(graph: Graph, node: Node) -> int:
    """Which operand a function of one tensor takes; -1 where the node is none, or has other numbers than single ones."""
    if node.domain or node.op not in (*_ARITHMETIC, *_ACTIVATIONS) or len(node.outputs) != 1:
        return -1
    data = [index for index, name in enumerate(node.inputs) if name and name not in graph.constants]
    single = all(graph.number(name) is not None for index, name in enumerate(node.inputs) if name and index not in data)
    if len(data) != 1 or not single or (node.op == "Div" and data[0] != 0):
        return -1
    return data[0] if graph.shapes[node.inputs[data[0]]] == graph.shapes[node.outputs[0]] else -1


def _behind(graph: Graph, concat: Node, ends: list[Node]) -> Node:
    """The operator that takes the place of *ends*, without what it reads; the Concat joins what they read."""
    positions = [_data(graph, node) for node in ends]
    first, gone = ends[0], {id(node) for node in ends}
    concat.inputs = [node.inputs[position] for node, position in zip(ends, positions, strict=True)]
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    inputs = [_HERE if index == positions[0] else name for index, name in enumerate(first.inputs)]
    return Node(first.op, inputs, [f"{first.outputs[0]}-split"], dict(first.attributes), first.name, apart=True)


_HERE = "@here"
"""Stands for what an operator behind a Concat reads."""


def _keep_apart(graph: Graph, concat: Node) -> None:
    """What is left of functions before the Concat has codes after each operator, where the function is of more than one of them."""
    makers, readers = graph.producers(), graph.consumers()
    waiting = list(concat.inputs)
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or node.op not in _LEFT or node.domain or node.apart:
            continue
        data = [name for name in node.inputs if name and name not in graph.constants]
        behind = any(name in makers and makers[name].op in _LEFT for name in data)
        branch = len(data) == 1 and len(readers[data[0]]) > 1
        node.apart = behind or branch
        waiting += data


def _with_joined_factors(graph: Graph, chain: list[Node]) -> list[Node]:
    """The chain with one product for neighbouring products and quotients."""
    made: list[Node] = []
    for node in chain:
        if node.op not in _FACTORS or not made or made[-1].op not in _FACTORS:
            made.append(node)
            continue
        factor = _factor(graph, made.pop()) * _factor(graph, node)
        name = graph.add_constant(f"{node.outputs[0]}.factor", np.array(factor, np.float32))
        made.append(Node("Mul", [name, _HERE], list(node.outputs), {}, node.name, apart=True))
    return made


def _factor(graph: Graph, node: Node) -> np.float32:
    value = float(next(graph.constants[name] for name in node.inputs if name != _HERE).reshape(()))
    factor: np.float32 = np.float32(1.0 / value if node.op == "Div" else value)
    return factor


def _connect(graph: Graph, concat: Node, chain: list[Node]) -> str:
    """Put *chain* behind the Concat, with the names of the toolkit's configuration; gives the last one."""
    result = concat.outputs[0]
    shape, dtype = graph.shapes[result], graph.dtypes[result]
    concat.outputs = [graph.free_name(f"{concat.inputs[0]}_concat")]
    source = concat.outputs[0]
    graph.shapes[source], graph.dtypes[source] = shape, dtype
    if [node.op for node in chain[-1:]] == ["Mul"] and _fold_factor(graph, result, _factor(graph, chain[-1])):
        chain = chain[:-1]
    for node in chain:
        last = node is chain[-1] and result in graph.outputs
        node.inputs = [source if name == _HERE else name for name in node.inputs]
        source = result if last else graph.free_name(node.outputs[0])
        node.outputs = [source]
        graph.shapes[source], graph.dtypes[source] = shape, dtype
    if source != result:
        graph.rename_input(result, source)
    place = next(index for index, node in enumerate(graph.nodes) if node is concat)
    graph.nodes[place + 1 : place + 1] = chain
    return source


def _fold_factor(graph: Graph, name: str, factor: np.float32) -> bool:
    """Put a factor into the weights of the convolution that alone reads a tensor, if there is one."""
    readers = graph.consumers().get(name, [])
    weights = graph.constant(readers[0].inputs[1]) if len(readers) == 1 and readers[0].op == "Conv" else None
    if weights is None or readers[0].domain or readers[0].inputs[0] != name or name in graph.outputs:
        return False
    readers[0].inputs[1] = graph.add_constant(f"{readers[0].outputs[0]}.scaled", (weights * factor).astype(np.float32))
    return True
