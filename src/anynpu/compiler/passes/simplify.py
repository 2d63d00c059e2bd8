"""Rewrites of the graph that change no result: what a chip folds into its weights is folded here.

Afterwards there is no BatchNormalization, Dropout, Identity or Sum; constant scales and shifts per channel sit in the weights of the
convolution before them or are a 1x1 depthwise convolution of their own; padding is explicit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..._util.types import Array
from ..graph import Graph, Node
from ..lower.attributes import slice_bounds

_LINEAR = ("Conv", "ConvTranspose", "Gemm")
_GEMM_WITHOUT_BIAS = 11
"""From this operator set on, Gemm need not have a bias."""
_MOST_PADS = 15
"""Pads of a convolution that chips have: beyond that a Pad layer stays on the NPU, where the convolution would go to the CPU."""

_LOWEST = -1e30
"""What is not above this is meant as minus infinity."""


def simplify(graph: Graph) -> None:
    """Apply all rewrites, in place."""
    with np.errstate(all="ignore"):  # constants that are not finite stay so; who needs finite ones states it
        for rewrite in _REWRITES:
            _apply(graph, rewrite)
    graph.remove_unused()


def _apply(graph: Graph, rewrite: Callable[[Graph, Node, _Links], bool]) -> None:
    links = _Links(graph)
    for node in graph.nodes:
        if not links.is_gone(node):
            rewrite(graph, node, links)
    links.finish()


class _Links:
    """Producers and consumers, which follow the changes that are made here: going through all nodes after each would take for ever.

    Nodes of the graph are not taken out and put in before the end. Constants that a node reads may be changed in the node itself.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self._instead: dict[int, list[Node]] = {}

    def only_reader(self, name: str) -> Node | None:
        """The one node that reads a tensor, if it is one and the tensor need not exist."""
        readers = self.consumers.get(name, [])
        return readers[0] if len(readers) == 1 and not self._graph.is_visible(name) else None

    def read(self, node: Node, inputs: list[str]) -> None:
        """Let a node read other tensors."""
        for name in node.inputs:
            readers = self.consumers.get(name, [])
            if node in readers:
                readers.remove(node)
                if not readers:
                    del self.consumers[name]
        node.inputs = inputs
        for name in filter(None, inputs):
            self.consumers.setdefault(name, []).append(node)

    def make(self, node: Node, outputs: list[str]) -> None:
        """Let a node make tensors of other names."""
        for name in node.outputs:
            if self.producers.get(name) is node:
                del self.producers[name]
        node.outputs = outputs
        self.producers.update(dict.fromkeys(filter(None, outputs), node))

    def rename(self, old: str, new: str) -> None:
        """Let every reader of *old* read *new*."""
        readers = self.consumers.pop(old, [])
        for node in readers:
            node.inputs = [new if name == old else name for name in node.inputs]
        if readers:
            self.consumers.setdefault(new, []).extend(readers)

    def replace(self, node: Node, *made: Node) -> None:
        """Put other nodes, or none, in the place of a node; it may be one of them."""
        if node not in made:
            self.read(node, [])
            for name in node.outputs:
                if self.producers.get(name) is node:
                    del self.producers[name]
        for entry in made:
            if entry is not node:
                self.producers.update(dict.fromkeys(filter(None, entry.outputs), entry))
                for name in filter(None, entry.inputs):
                    self.consumers.setdefault(name, []).append(entry)
        self._instead[id(node)] = list(made)

    def is_gone(self, node: Node) -> bool:
        """Whether a node was taken out."""
        return id(node) in self._instead and node not in self._instead[id(node)]

    def finish(self) -> None:
        """Let the graph have the nodes that it should have."""
        if self._instead:
            self._graph.nodes = [made for node in self._graph.nodes for made in self._instead.get(id(node), (node,))]


def _drop(graph: Graph, node: Node, links: _Links) -> bool:
    """Let the readers of a node that does nothing read its input."""
    source, result = node.inputs[0], node.outputs[0]
    if result not in graph.outputs:
        links.replace(node)
        links.rename(result, source)
        return True
    maker = links.producers.get(source)
    if maker is None or source in graph.outputs:
        return False  # the output is an input or another output: the copy is real
    links.replace(node)
    links.make(maker, [result if name == source else name for name in maker.outputs])
    links.rename(source, result)
    return True


def _remove_identity(graph: Graph, node: Node, links: _Links) -> bool:
    same_cast = node.op == "Cast" and graph.dtypes[node.inputs[0]] == graph.dtypes[node.outputs[0]]
    dropout = node.op == "Dropout" and all(name not in links.consumers for name in node.outputs[1:])
    if node.op == "Identity" and node.outputs[0] in graph.rounded:
        return False  # another scale
    if node.op == "Identity" or same_cast or dropout:
        return _drop(graph, node, links)
    return False


def _sum_to_adds(graph: Graph, node: Node, links: _Links) -> bool:
    if node.op not in ("Sum", "Max", "Min") or len(node.inputs) == 2:
        return False
    if len(node.inputs) == 1:
        node.op, node.attributes = "Identity", {}
        return _drop(graph, node, links)
    operator = "Add" if node.op == "Sum" else node.op
    left, made = node.inputs[0], []
    for index, right in enumerate(node.inputs[1:], 1):
        last = index == len(node.inputs) - 1
        name = node.outputs[0] if last else graph.free_name(f"{node.outputs[0]}.part{index}")
        graph.shapes[name] = tuple(np.broadcast_shapes(graph.shapes[left], graph.shapes[right]))
        graph.dtypes[name] = graph.dtypes[left]
        made.append(Node(operator, [left, right], [name], {}, f"{node.label}.{index}" if not last else node.name))
        left = name
    links.replace(node, *made)
    return True


def _slice_of_concat(graph: Graph, node: Node, links: _Links) -> bool:
    """A slice inside one input of a Concat is a slice of that input, or the input itself: it need not have the range of the others.

    Exports of detectors join boxes and scores, and then take them apart again to scale the boxes.
    """
    maker = links.producers.get(node.inputs[0]) if node.op == "Slice" else None
    if maker is None or maker.op != "Concat" or 0 in graph.shapes[node.outputs[0]] or node.inputs[0] in graph.rounded:
        return False
    result = graph.shapes[node.outputs[0]]
    axis = int(maker.attribute("axis", 0)) % len(result)
    ((start, strides),) = slice_bounds(graph, node)
    offset = 0
    for source in maker.inputs:
        extent = graph.shapes[source][axis]
        if offset <= start[axis] and start[axis] + result[axis] <= offset + extent:
            break
        offset += extent
    else:
        return False
    if set(strides) != {1} or source in graph.constants:
        return False
    start[axis] -= offset
    if graph.shapes[source] == result:
        node.op, node.attributes = "Identity", {}
        links.read(node, [source])
        _drop(graph, node, links)
        return True
    ends = [first + extent for first, extent in zip(start, result, strict=True)]
    axes = list(range(len(result)))
    if "starts" in node.attributes:
        node.attributes = {"starts": start, "ends": ends, "axes": axes}
        links.read(node, [source])
    else:
        values = (("starts", start), ("ends", ends), ("axes", axes))
        constants = (graph.add_constant(f"{node.outputs[0]}.{name}", np.array(value, np.int64)) for name, value in values)
        links.read(node, [source, *constants])
    return True


def _rename_sum(graph: Graph, node: Node, links: _Links) -> bool:
    if node.op != "Sum":
        return False
    node.op = "Add"
    return True


def _explicit_padding(graph: Graph, node: Node, links: _Links) -> bool:
    if node.op not in ("Conv", "ConvTranspose", "MaxPool", "AveragePool"):
        return False
    mode = node.attribute("auto_pad", "NOTSET")
    node.attributes.pop("auto_pad", None)
    spatial = len(graph.shapes[node.inputs[0]]) - 2
    if node.op in ("Conv", "ConvTranspose") and "kernel_shape" not in node.attributes and node.inputs[1] in graph.shapes:
        node.attributes["kernel_shape"] = list(graph.shapes[node.inputs[1]][2:])
    if mode in ("NOTSET", "VALID"):
        if mode == "VALID":
            node.attributes["pads"] = [0] * (2 * spatial)
        if node.op == "ConvTranspose" and "output_shape" in node.attributes:
            _pads_of_output(graph, node, spatial, upper=False)
        return False
    if node.op == "ConvTranspose":
        _pads_of_output(graph, node, spatial, upper=mode == "SAME_UPPER")
        return False
    kernel, strides, dilations = _window(node, spatial)
    source, result = graph.shapes[node.inputs[0]][2:], graph.shapes[node.outputs[0]][2:]
    before, after = [], []
    for axis in range(spatial):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        total = max(0, (result[axis] - 1) * strides[axis] + reach - source[axis])
        small = total // 2
        before.append(small if mode == "SAME_UPPER" else total - small)
        after.append(total - before[-1])
    node.attributes["pads"] = before + after
    return False


def _pads_of_output(graph: Graph, node: Node, spatial: int, *, upper: bool) -> None:
    """Pads of a transposed convolution whose output size was asked for."""
    kernel, strides, dilations = _window(node, spatial)
    source, result = graph.shapes[node.inputs[0]][2:], graph.shapes[node.outputs[0]][2:]
    extra = list(node.attribute("output_padding", [0] * spatial))
    before, after = [], []
    for axis in range(spatial):
        natural = strides[axis] * (source[axis] - 1) + extra[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        if natural < result[axis]:  # what was asked for is larger: the rest is padding of the result
            extra[axis] += result[axis] - natural
        total = max(0, natural - result[axis])
        half = total // 2
        before.append(half if upper else total - half)
        after.append(total - before[-1])
    node.attributes["pads"] = before + after
    if any(extra):
        node.attributes["output_padding"] = extra
    node.attributes.pop("output_shape", None)


def _window(node: Node, spatial: int) -> tuple[list[int], list[int], list[int]]:
    kernel = list(node.attribute("kernel_shape", [1] * spatial))
    return kernel, list(node.attribute("strides", [1] * spatial)), list(node.attribute("dilations", [1] * spatial))


def _drop_indices(graph: Graph, node: Node, links: _Links) -> bool:
    """The places of the largest values, where no output asks for them."""
    if node.op == "MaxPool" and all(name not in links.consumers and name not in graph.outputs for name in node.outputs[1:]):
        node.outputs = node.outputs[:1]
    return False


def _mean_to_pool(graph: Graph, node: Node, links: _Links) -> bool:
    """ReduceMean over all spatial axes is global average pooling."""
    if node.op != "ReduceMean" or graph.rank(node.inputs[0]) != 4 or not graph.is_float(node.inputs[0]):
        return False
    axes = node.attribute("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1] in graph.constants:
        axes = graph.constants[node.inputs[1]].tolist()
    if axes is None or sorted(axis % 4 for axis in axes) != [2, 3] or not node.attribute("keepdims", 1):
        return False
    node.op, node.attributes, node.inputs = "GlobalAveragePool", {}, node.inputs[:1]
    return True


def _fold_pad(graph: Graph, node: Node, links: _Links) -> bool:
    """Zero padding before a convolution belongs to the convolution, padding below every value to the max pooling that follows."""
    if node.op != "Pad" or node.attribute("mode", "constant") != "constant":
        return False
    pads, value = pad_amounts(graph, node), pad_value(graph, node)
    reader = links.only_reader(node.outputs[0])
    if pads is None or value is None or reader is None or reader.inputs[0] != node.outputs[0]:
        return False
    lowest = reader.op == "MaxPool" and value <= _LOWEST and not reader.attribute("ceil_mode", 0)
    if not lowest and (reader.op != "Conv" or value != 0.0):
        return False
    rank = graph.rank(node.inputs[0])
    before, after = pads[:rank], pads[rank:]
    if any(before[:2]) or any(after[:2]) or min(pads) < 0:
        return False
    spatial = rank - 2
    own = list(reader.attribute("pads", [0] * (2 * spatial)))
    total = [have + more for have, more in zip(own, [*before[2:], *after[2:]], strict=True)]
    if lowest and any(pad >= extent for pad, extent in zip(total, 2 * list(reader.attribute("kernel_shape")), strict=True)):
        return False  # a window of padding alone
    if max(total, default=0) > _MOST_PADS:
        return False
    reader.attributes["pads"] = total
    links.read(reader, [node.inputs[0], *reader.inputs[1:]])
    links.replace(node)
    return True


def pad_amounts(graph: Graph, node: Node) -> list[int] | None:
    """What a Pad node adds: before for each axis, then after for each axis. None where it is not constant."""
    rank = graph.rank(node.inputs[0])
    if "pads" in node.attributes:
        amounts = [int(value) for value in node.attributes["pads"]]
    elif len(node.inputs) > 1 and node.inputs[1] in graph.constants:
        amounts = [int(value) for value in graph.constants[node.inputs[1]]]
    else:
        return None
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = graph.constant(node.inputs[3])
        if axes is None:
            return None
        full = [0] * (2 * rank)
        for index, axis in enumerate(axes):
            full[int(axis) % rank] = amounts[index]
            full[int(axis) % rank + rank] = amounts[index + len(axes)]
        return full
    return amounts


def pad_value(graph: Graph, node: Node) -> float | None:
    """The constant that a Pad node fills with, or None where it is computed."""
    if len(node.inputs) > 2 and node.inputs[2]:
        value = graph.constant(node.inputs[2])
        return None if value is None else float(value.reshape(-1)[0])
    return float(node.attribute("value", 0.0))


def channel_affine(graph: Graph, node: Node) -> tuple[str, Array, Array] | None:
    """The data input, scale and shift (per channel, or one number) of a node that is x * scale + shift, or None."""
    if node.op not in ("BatchNormalization", "Mul", "Add", "Sub", "Div") or not graph.is_float(node.outputs[0]):
        return None
    if node.op == "BatchNormalization":
        parameters = [graph.constant(name) for name in node.inputs[1:5]]
        if any(value is None for value in parameters) or any(name for name in node.outputs[1:]):
            return None
        gamma, beta, mean, variance = (np.asarray(value, np.float64) for value in parameters)
        scale = gamma / np.sqrt(variance + node.attribute("epsilon", 1e-5))
        return node.inputs[0], scale, beta - mean * scale
    left, right = (graph.constant(name) for name in node.inputs)
    if (left is None) == (right is None) or (node.op == "Div" and right is None):
        return None
    data = node.inputs[0] if right is not None else node.inputs[1]
    vector = _by_channel(left if right is None else right, graph.shapes[data], graph.shapes[node.outputs[0]])
    if vector is None:
        return None
    one, zero = np.ones_like(vector), np.zeros_like(vector)
    if node.op == "Mul":
        return data, vector, zero
    if node.op == "Div":
        return (data, 1.0 / vector, zero) if np.all(vector != 0) else None
    if node.op == "Add":
        return data, one, vector
    return (data, one, -vector) if right is not None else (data, -one, vector)


def _by_channel(value: Array | None, shape: tuple[int, ...], result: tuple[int, ...]) -> Array | None:
    """A constant that differs at most along axis 1, as a vector of 1 or C numbers."""
    if value is None or shape != result or len(shape) < 2:
        return None
    if value.size == 1:
        return np.asarray(value, np.float64).reshape(1)
    if value.ndim > len(shape):
        return None
    full = (1,) * (len(shape) - value.ndim) + value.shape
    if full[1] != shape[1] or any(extent != 1 for axis, extent in enumerate(full) if axis != 1):
        return None
    return np.asarray(value, np.float64).reshape(-1)


def _fold_affine(graph: Graph, node: Node, links: _Links) -> bool:
    """A scale and shift after a convolution goes into its weights and bias."""
    affine = channel_affine(graph, node)
    if affine is None or node.apart:
        return False
    data, scale, shift = affine
    maker = links.producers.get(data)
    if maker is None or maker.apart or maker.op not in _LINEAR or links.only_reader(data) is not node:
        return False
    weights = graph.constant(maker.inputs[1])
    bias = graph.constant(maker.inputs[2]) if len(maker.inputs) > 2 and maker.inputs[2] else None
    if weights is None or (bias is None and len(maker.inputs) > 2 and maker.inputs[2]):
        return False
    if maker.op == "Gemm" and not _normalise_gemm(graph, maker):
        return False
    weights = graph.constants[maker.inputs[1]]
    bias = graph.constant(maker.inputs[2]) if len(maker.inputs) > 2 and maker.inputs[2] else None
    channels = graph.shapes[data][1]
    scale = np.broadcast_to(scale, channels)
    folded = _scaled(weights.astype(np.float64), scale, maker)
    old = np.zeros(channels) if bias is None else np.broadcast_to(bias.astype(np.float64).reshape(-1), channels)
    new_bias = (old * scale + shift).astype(np.float32)
    maker.inputs = [
        maker.inputs[0],
        graph.add_constant(f"{maker.inputs[1]}.folded", folded.astype(np.float32)),
        graph.add_constant(f"{node.outputs[0]}.bias", new_bias),
    ]
    result = node.outputs[0]
    links.replace(node)
    links.make(maker, [result, *maker.outputs[1:]])
    return True


def _scaled(weights: Array, scale: Array, node: Node) -> Array:
    if node.op == "Conv":
        return weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
    if node.op == "Gemm":
        return weights * scale  # [K, N] after normalization
    groups = int(node.attribute("group", 1))
    grouped = weights.reshape(groups, -1, *weights.shape[1:])  # groups, in / g, out / g, kernel
    by_group = scale.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))
    result: Array = (grouped * by_group).reshape(weights.shape)
    return result


def _normalise_gemm(graph: Graph, node: Node) -> bool:
    """Rewrite Gemm to alpha = beta = 1, B as [K, N] and C as [N]; False where it cannot be."""
    weights = graph.constant(node.inputs[1])
    if weights is None or node.attribute("transA", 0):
        return False
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if bias is None and len(node.inputs) > 2 and node.inputs[2]:
        return False
    plain = weights.T if node.attribute("transB", 0) else weights
    units = plain.shape[1]
    if bias is not None and (bias.size not in (1, units) or (bias.ndim == 2 and bias.shape[0] != 1)):
        return False
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    changed = alpha != 1.0 or node.attribute("transB", 0)
    if changed:
        # a transposed view stays one: these are the largest weights of many models, and what reads them wants [N, K] again
        node.inputs[1] = graph.add_constant(f"{node.inputs[1]}.plain", plain if alpha == 1.0 else plain * np.float32(alpha))
    if bias is not None and (beta != 1.0 or bias.shape != (units,)):
        full = np.broadcast_to(bias.reshape(-1) * np.float32(beta), (units,)).astype(np.float32)
        node.inputs[2] = graph.add_constant(f"{node.inputs[2]}.plain", full)
    node.attributes = {}
    return True


def _gemm(graph: Graph, node: Node, links: _Links) -> bool:
    if node.op == "Gemm":
        _normalise_gemm(graph, node)
    return False


def _matmul_to_gemm(graph: Graph, node: Node, links: _Links) -> bool:
    """A matmul with constant weights on rows is a Gemm, which can take a bias."""
    if node.op != "MatMul" or graph.rank(node.inputs[0]) != 2 or not graph.is_float(node.inputs[0]):
        return False
    weights = graph.constant(node.inputs[1])
    if weights is None or weights.ndim != 2:
        return False
    node.op, node.attributes = "Gemm", {}
    if graph.opset < _GEMM_WITHOUT_BIAS:
        node.inputs.append(graph.add_constant(f"{node.outputs[0]}.bias", np.zeros(weights.shape[1], weights.dtype)))
    return True


def _affine_to_depthwise(graph: Graph, node: Node, links: _Links) -> bool:
    """A scale and shift per channel with no convolution before it becomes a 1x1 depthwise convolution."""
    affine = channel_affine(graph, node)
    if affine is None:
        return False
    data, scale, shift = affine
    shape = graph.shapes[data]
    if len(shape) not in (3, 4) or not graph.is_float(data) or (scale.size == 1 and node.op != "BatchNormalization"):
        return False
    channels = shape[1]
    kernel = [1] * (len(shape) - 2)
    weights = np.broadcast_to(scale, channels).astype(np.float32).reshape(channels, 1, *kernel)
    bias = np.broadcast_to(shift, channels).astype(np.float32)
    node.op = "Conv"
    node.inputs = [
        data,
        graph.add_constant(f"{node.outputs[0]}.scale", np.ascontiguousarray(weights)),
        graph.add_constant(f"{node.outputs[0]}.shift", np.ascontiguousarray(bias)),
    ]
    node.outputs = node.outputs[:1]
    node.attributes = {"group": channels, "kernel_shape": kernel}
    return True


def _affine(graph: Graph, node: Node, links: _Links) -> bool:
    return _fold_affine(graph, node, links) or _affine_to_depthwise(graph, node, links)


def _channel_shuffle(graph: Graph, node: Node, links: _Links) -> bool:
    """Reshape, Transpose, Reshape that only reorders channels is a Gather over the channels."""
    if node.op != "Reshape" or not graph.is_float(node.inputs[0]):
        return False
    turn = links.only_reader(node.outputs[0])
    last = links.only_reader(turn.outputs[0]) if turn is not None and turn.op == "Transpose" else None
    if turn is None or last is None or last.op != "Reshape":
        return False
    outer, inner = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    split = len(outer) == 4 and len(inner) == 5 and inner[0] == outer[0] and inner[3:] == outer[2:]
    if not split or list(turn.attribute("perm", [])) != [0, 2, 1, 3, 4] or graph.shapes[last.outputs[0]] != outer:
        return False
    order = np.arange(outer[1], dtype=np.int64).reshape(inner[1], inner[2]).T.reshape(-1)
    last.op, last.attributes = "Gather", {"axis": 1}
    source = node.inputs[0]
    links.replace(node)
    links.replace(turn)
    links.read(last, [source, graph.add_constant(f"{last.outputs[0]}.order", np.ascontiguousarray(order))])
    return True


def shuffle_groups(graph: Graph, node: Node) -> int | None:
    """The number of groups of a Gather that is a channel shuffle, or None."""
    order = graph.constant(node.inputs[1]) if node.op == "Gather" and int(node.attribute("axis", 0)) == 1 else None
    channels = graph.shapes[node.inputs[0]][1] if graph.rank(node.inputs[0]) == 4 else 0
    if order is None or order.shape != (channels,) or channels < 2 or order[1] <= 0 or channels % int(order[1]):
        return None
    groups = channels // int(order[1])
    expected = np.arange(channels).reshape(groups, -1).T.reshape(-1)
    return groups if np.array_equal(order, expected) else None


def _prelu_on_conv(graph: Graph, node: Node, links: _Links) -> bool:
    """A PRelu that follows no convolution gets one that does nothing, so that it can be its epilogue."""
    if node.op != "PRelu" or graph.rank(node.inputs[0]) != 4 or graph.constant(node.inputs[1]) is None:
        return False
    if not graph.is_float(node.inputs[0]):
        return False
    maker = links.producers.get(node.inputs[0])
    if maker is not None and maker.op in ("Conv", "ConvTranspose") and links.only_reader(node.inputs[0]) is node:
        return False
    channels = graph.shapes[node.inputs[0]][1]
    through = graph.free_name(f"{node.outputs[0]}.through")
    graph.shapes[through], graph.dtypes[through] = graph.shapes[node.inputs[0]], graph.dtypes[node.inputs[0]]
    ones = graph.add_constant(f"{through}.ones", np.ones((channels, 1, 1, 1), np.float32))
    conv = Node("Conv", [node.inputs[0], ones], [through], {"group": channels, "kernel_shape": [1, 1]}, f"{node.label}.through")
    links.replace(node, conv, node)
    links.read(node, [through, *node.inputs[1:]])
    return True


_REWRITES: tuple[Callable[[Graph, Node, _Links], bool], ...] = (
    _remove_identity,
    _slice_of_concat,
    _sum_to_adds,
    _rename_sum,
    _explicit_padding,
    _drop_indices,
    _mean_to_pool,
    _fold_pad,
    _gemm,
    _matmul_to_gemm,
    _affine,
    _prelu_on_conv,
    _channel_shuffle,
)
