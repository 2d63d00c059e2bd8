"""A model that was trained on BGR takes RGB: the channels of its input come in reverse order, and the first weights are turned for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..graph import Graph, Node
from ..lower.attributes import slice_bounds
from ..lower.functions import scalar_operand, unary_function
from .simplify import pad_amounts, simplify

Order = npt.NDArray[np.int64]

_BY_CHANNEL = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "Resize", "Upsample")
_SPLIT_COUNTS = 18
"""From this operator set on, Split states into how many parts."""


def reverse_channels(graph: Graph, name: str) -> dict[str, Order]:
    """Let the model take the channels of input *name* in reverse order (RGB where it was trained on BGR).

    The order is followed to the convolutions that it reaches, whose weights it goes into. Where it reaches something else, a Concat of the
    channels is put behind the input.

    :returns: the tensors before these convolutions, and which channel each of their channels was before
    """
    walk = _Walk(graph, name)
    if walk.run():
        for change in walk.changes:
            change()
        return walk.orders
    channels = graph.shapes[name][1]
    swapped = graph.free_name(f"{name}.reversed")
    _add_tensor(graph, swapped, graph.shapes[name])
    graph.rename_input(name, swapped)
    parts = []
    for channel in range(channels):
        parts.append(graph.free_name(f"{name}.channel{channel}"))
        _add_tensor(graph, parts[-1], (graph.shapes[name][0], 1, *graph.shapes[name][2:]))
    attributes = {"axis": 1, "num_outputs": channels} if graph.opset >= _SPLIT_COUNTS else {"axis": 1}
    graph.nodes[:0] = [
        Node("Split", [name], parts, attributes, f"{swapped}.split"),
        Node("Concat", parts[::-1], [swapped], {"axis": 1}, swapped),
    ]
    return {name: np.arange(channels)[::-1].copy()}


def channel_orders(graph: Graph, names: Iterable[str]) -> dict[str, Order]:
    """The tensors whose channels a model compiled from *graph* has in another order, as :func:`reverse_channels` gives them.

    :param graph: as it was imported; it stays as it is
    :param names: the inputs whose channels are reversed
    """
    names = list(names)
    if not names:
        return {}
    nodes = [
        replace(node, inputs=list(node.inputs), outputs=list(node.outputs), attributes=dict(node.attributes))
        for node in graph.nodes
    ]
    compiled = replace(graph, nodes=nodes, constants=dict(graph.constants), shapes=dict(graph.shapes), dtypes=dict(graph.dtypes))
    simplify(compiled)
    orders: dict[str, Order] = {}
    for name in names:
        for tensor, order in reverse_channels(compiled, name).items():
            orders[tensor] = orders[tensor][order] if tensor in orders else order
    return orders


def _add_tensor(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    graph.shapes[name], graph.dtypes[name] = tuple(shape), np.dtype(np.float32)


class _Walk:
    """Follows channels that come in another order through the graph.

    :ivar orders: by tensor, the channel of before that comes at each place
    :ivar changes: what has to be done to the weights that they reach
    """

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph = graph
        self.orders: dict[str, Order] = {name: np.arange(graph.shapes[name][1])[::-1].copy()}
        self.changes: list[Callable[[], None]] = []

    def run(self) -> bool:
        """Whether all ends are convolutions."""
        for node in self._graph.nodes:
            if any(name in self.orders for name in node.inputs) and not self._follow(node):
                return False
        return not any(name in self.orders for name in self._graph.outputs)

    def _follow(self, node: Node) -> bool:
        order = self.orders.get(node.inputs[0])
        if node.op == "Concat":
            return self._concat(node)
        if order is None:
            return False
        if node.op == "Conv":
            return self._convolution(node, order)
        if node.op == "SpaceToDepth":
            blocks = int(node.attribute("blocksize")) ** 2
            order = np.concatenate([block * len(order) + order for block in range(blocks)])
        elif not self._keeps_channels(node):
            return False
        self.orders.update(dict.fromkeys(filter(None, node.outputs), order))
        return True

    def _keeps_channels(self, node: Node) -> bool:
        graph = self._graph
        if node.op in _BY_CHANNEL:
            return graph.shapes[node.inputs[0]][1] == graph.shapes[node.outputs[0]][1] and not any(node.outputs[1:])
        if node.op in ("Slice", "Split"):
            channels = graph.shapes[node.inputs[0]][1]
            whole = all(graph.shapes[name][1] == channels for name in filter(None, node.outputs))
            return whole and all(start[1] == 0 and step[1] == 1 for start, step in slice_bounds(graph, node))
        if node.op == "Pad":
            amounts = pad_amounts(graph, node)
            rank = graph.rank(node.inputs[0])
            return amounts is not None and not amounts[1] and not amounts[1 + rank]
        return unary_function(graph, node) is not None or scalar_operand(graph, node) is not None

    def _concat(self, node: Node) -> bool:
        axis = int(node.attribute("axis", 1)) % self._graph.rank(node.inputs[0])
        orders = [self.orders.get(name, np.arange(self._graph.shapes[name][1])) for name in node.inputs]
        if axis == 1:
            starts = np.cumsum([0, *map(len, orders)])
            made = np.concatenate([start + order for start, order in zip(starts, orders, strict=False)])
        else:
            made = orders[0]
            if not all(np.array_equal(order, made) for order in orders):
                return False
        self.orders[node.outputs[0]] = made
        return True

    def _convolution(self, node: Node, order: Order) -> bool:
        graph = self._graph
        weights = graph.constant(node.inputs[1])
        bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        if weights is None:
            return False
        groups = int(node.attribute("group", 1))
        if groups == 1:
            self.changes.append(lambda: self._take(node, 1, weights[:, order]))
            return True
        if groups != len(order) or len(weights) != groups or (bias is None and len(node.inputs) > 2 and node.inputs[2]):
            return False
        self.changes.append(lambda: self._take(node, 1, weights[order]))
        if bias is not None:
            self.changes.append(lambda: self._take(node, 2, bias[order]))
        self.orders[node.outputs[0]] = order
        return True

    def _take(self, node: Node, position: int, value: npt.NDArray[np.float32]) -> None:
        node.inputs[position] = self._graph.add_constant(f"{node.inputs[position]}.reversed", np.ascontiguousarray(value))
