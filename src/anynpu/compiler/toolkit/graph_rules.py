"""What Rockchip's toolkit makes of a graph before it quantizes: ``quantizer="vendor"``.

* A function that all parts of a Concat end with is computed behind it (:mod:`anynpu.compiler.toolkit.graph_rules`).
* A constant that is added to the result of a transposed convolution stays an operator of its own, and so does a normalization after it.
* A factor before a fully connected layer goes into its weights.
* Two convolutions of one input whose results are added are one convolution.
* Channels that are put into another order, or some of them left out, are part of the convolution before, if nothing else reads that one.
  Otherwise they are a convolution with ones for weights. After a Concat, where it is not split, it goes into the convolutions that read
  it, where nothing else does.
* A convolution that only Split and Slice nodes over channels read becomes one convolution per part.
* A convolution that alone reads a Concat becomes one convolution per part, computed as soon as the part is there, and their sums, where
  the parts do not fit the chip's blocks of channels, or where the results of all parts are smaller than the Concat.
* A global average becomes a depthwise convolution with equal weights. What is larger than 7 x 7 is computed in stages, each with a range of
  its own.

docs/validation.md states which of this was measured and which is inferred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..._util.types import Array
from ..graph import Graph, Node
from ..lower.attributes import slice_bounds
from ..lower.forms import Form
from ..passes.simplify import simplify

# What Rockchip's toolkit takes behind a Concat: ``quantizer="vendor"``.
#
# Where each of three or more parts of a Concat ends with the same function, the toolkit computes it once, of the whole, and
# goes on with what is before it: an activation, or the same number added, subtracted, multiplied or divided by. What stands
# right behind a convolution stays there. A quotient that is multiplied again is one product, and a factor goes into the
# convolution that alone reads it.
#
# An activation that an exporter wrote as several operators (``x * clip(x + 3, 0, 6) / 6``) loses its last one by that. It is
# then no activation any more, and each operator that is left is a layer with quantized values.


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
            _keep_functions_apart(graph, concat)
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


def _keep_functions_apart(graph: Graph, concat: Node) -> None:
    """What is left of functions before the Concat has quantized values after each operator, where the function is of more than
    one of them."""
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
    """The chain with one product for neighboring products and quotients."""
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


_SHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_MAX_WINDOW = 7
_BLOCK = 8
"""Channels that a part of a Concat must be a multiple of."""


def simplify_as_toolkit(graph: Graph) -> None:
    """Simplify a graph in place, with the toolkit's rewrites and without those that it does not do."""
    moved = functions_behind_concats(graph)
    _keep_apart(graph)
    simplify(graph)
    _fold_factors(graph)
    _merge_sums(graph)
    selections = _split_results(graph, _select_results(graph, _select_channels(graph)))
    _split_concats(graph)
    _fold_selections(graph, [node for node in selections if node.inputs[0] not in moved])
    _split_concats(graph)  # what a selection went into may alone read a Concat
    _stage_averages(graph)
    graph.remove_unused()


def is_float_result(graph: Graph, name: str, forms: Mapping[int, Form]) -> bool:
    """Whether an output of the model is float16 in the toolkit's files: a Softmax makes it, or another shape of it."""
    makers = graph.producers()
    while (maker := makers.get(name)) is not None and maker.op in (*_SHAPES, "Transpose"):
        name = maker.inputs[0]
    return maker is not None and maker.op == "Softmax" and id(maker) not in forms


def _keep_apart(graph: Graph) -> None:
    makers = graph.producers()
    for node in graph.nodes:
        data = [name for name in node.inputs if name not in graph.constants]
        maker = makers.get(data[0]) if node.op in ("Add", "Sub", "Mul", "Div") and len(data) == 1 else None
        node.apart |= maker is not None and maker.op == "ConvTranspose"


# a factor before a matmul


def _fold_factors(graph: Graph) -> None:
    """Put a factor into the weights of what alone reads its result, as exports have it between a classifier and its Dropout."""
    for mul in list(graph.nodes):
        data = [name for name in mul.inputs if name not in graph.constants]
        if mul.op != "Mul" or mul.domain or len(data) != 1 or graph.shapes[mul.outputs[0]] != graph.shapes[data[0]]:
            continue
        factor = next(graph.constants[name] for name in mul.inputs if name in graph.constants)
        reader = _only_product(graph, mul.outputs[0])
        if factor.size != 1 or reader is None or _gates_itself(graph, data[0]):
            continue
        weights = (graph.constants[reader.inputs[1]] * factor.reshape(())).astype(np.float32)
        reader.inputs[1] = graph.add_constant(f"{reader.outputs[0]}.scaled", weights)
        graph.nodes.remove(mul)
        for node in graph.nodes:
            node.inputs = [data[0] if name == mul.outputs[0] else name for name in node.inputs]


def _gates_itself(graph: Graph, name: str) -> bool:
    """Whether a tensor is another one times a function of that one, as in Gelu and HardSwish, which a factor after it is part of."""
    makers = graph.producers()
    product = makers.get(name)
    if product is None or product.op != "Mul" or any(entry in graph.constants for entry in product.inputs):
        return False
    for gate, other in (product.inputs, product.inputs[::-1]):
        while (maker := makers.get(gate)) is not None and gate != other:
            data = [entry for entry in maker.inputs if entry and entry not in graph.constants]
            if len(data) != 1 or graph.shapes[data[0]] != graph.shapes[gate]:
                break
            gate = data[0]
        if gate == other:
            return True
    return False


def _only_product(graph: Graph, name: str) -> Node | None:
    """The matmul with constant weights that alone reads a tensor, or another shape of it."""
    readers = graph.consumers()
    while name not in graph.outputs and len(using := readers.get(name, [])) == 1:
        reader = using[0]
        if reader.op in _SHAPES and reader.inputs[0] == name:
            name = reader.outputs[0]
            continue
        product = reader.op in ("Gemm", "MatMul") and not reader.domain and reader.inputs[0] == name
        return reader if product and reader.inputs[1] in graph.constants else None
    return None


# two convolutions of one input


def _merge_sums(graph: Graph) -> None:
    for add in list(graph.nodes):
        if add.op != "Add" or len(set(add.inputs)) != 2:
            continue
        makers, readers = graph.producers(), graph.consumers()
        convs = [makers.get(name) for name in add.inputs]
        alone = all(len(readers[name]) == 1 and name not in graph.outputs for name in add.inputs)
        first, second = convs
        if first is None or second is None or not alone:
            continue
        merged = _merged(graph, first, second, add)
        if merged is not None:
            graph.nodes = [merged if node is add else node for node in graph.nodes if node is not first and node is not second]


def _merged(graph: Graph, first: Node, second: Node, add: Node) -> Node | None:
    """One convolution for the sum of two, or None where there is none."""
    pair = (first, second)
    if any(node.op != "Conv" or node.domain or node.inputs[1] not in graph.constants for node in pair):
        return None
    if first.inputs[0] != second.inputs[0] or graph.rank(first.inputs[0]) != 4 or len({_steps_of(node) for node in pair}) != 1:
        return None
    small, large = sorted(pair, key=lambda node: graph.constants[node.inputs[1]].size)
    weights, extra = graph.constants[large.inputs[1]], graph.constants[small.inputs[1]]
    shift = [big - own for big, own in zip(_pads_of(large)[:2], _pads_of(small)[:2], strict=True)]
    room = [big - own for big, own in zip(weights.shape[2:], extra.shape[2:], strict=True)]
    fits = all(0 <= offset <= rest for offset, rest in zip(shift, room, strict=True))
    if weights.shape[:2] != extra.shape[:2] or not fits or (any(room) and large.attribute("dilations", [1, 1]) != [1, 1]):
        return None
    total = weights.astype(np.float32).copy()
    rows, columns = (slice(offset, offset + extent) for offset, extent in zip(shift, extra.shape[2:], strict=True))
    total[:, :, rows, columns] += extra
    biases = [graph.constant(node.inputs[2]) for node in pair if len(node.inputs) > 2 and node.inputs[2]]
    if any(bias is None for bias in biases):
        return None
    result = add.outputs[0]
    inputs = [large.inputs[0], graph.add_constant(f"{result}.merged", total)]
    if biases:
        bias = np.zeros(len(total), np.float32)
        for part in biases:
            bias = bias + np.asarray(part, np.float32)
        inputs.append(graph.add_constant(f"{result}.bias", bias))
    return replace(large, inputs=inputs, outputs=[result], name=large.name)


def _steps_of(node: Node) -> tuple[object, ...]:
    return (
        *node.attribute("strides", [1, 1]),
        *node.attribute("dilations", [1, 1]),
        int(node.attribute("group", 1)),
    )


def _pads_of(node: Node) -> list[int]:
    return list(node.attribute("pads", [0] * 4))


# some channels, in another order


def _select_channels(graph: Graph) -> list[Node]:
    made = {id(node): _selection(graph, node) for node in graph.nodes}
    graph.nodes = [made[id(node)] or node for node in graph.nodes]
    return [node for node in made.values() if node is not None]


def _fold_selections(graph: Graph, selections: list[Node]) -> None:
    """Put a selection of a Concat that was not split into the weights of the convolutions that read it, where nothing else does."""
    for node in selections:
        readers, maker = graph.consumers().get(node.outputs[0], []), graph.producers().get(node.inputs[0])
        if maker is None or maker.op != "Concat":
            continue
        if not any(entry is node for entry in graph.nodes) or not readers or node.outputs[0] in graph.outputs:
            continue
        if not all(_takes_selection(graph, reader, node.outputs[0]) for reader in readers):
            continue
        ones = graph.constants[node.inputs[1]]
        for reader in readers:
            weights = graph.constants[reader.inputs[1]]
            changed = np.einsum("oc...,ci->oi...", weights, ones[:, :, 0, 0]).astype(weights.dtype)
            name = graph.add_constant(f"{reader.outputs[0]}.selected", np.ascontiguousarray(changed))
            reader.inputs[:2] = [node.inputs[0], name]
        graph.nodes = [entry for entry in graph.nodes if entry is not node]


def _takes_selection(graph: Graph, reader: Node, name: str) -> bool:
    dense = reader.op == "Conv" and not reader.domain and int(reader.attribute("group", 1)) == 1
    return dense and reader.inputs[0] == name and graph.constant(reader.inputs[1]) is not None


def _selection(graph: Graph, node: Node) -> Node | None:
    """The convolution that takes the channels of a Gather; None where it is no such Gather."""
    if node.op != "Gather" or node.domain or graph.rank(node.inputs[0]) != 4 or not graph.is_float(node.inputs[0]):
        return None
    indices, count = graph.constant(node.inputs[1]), graph.shapes[node.inputs[0]][1]
    if indices is None or indices.ndim != 1 or int(node.attribute("axis", 0)) % 4 != 1:
        return None
    ones = np.zeros((len(indices), count, 1, 1), np.float32)
    ones[np.arange(len(indices)), indices % count] = 1.0
    weights = graph.add_constant(f"{node.outputs[0]}.channels", ones)
    return Node("Conv", [node.inputs[0], weights], list(node.outputs), {"kernel_shape": [1, 1]}, node.name)


def _select_results(graph: Graph, selections: list[Node]) -> list[Node]:
    """Let convolutions that only a selection reads make no other channels, and those in its order; gives the selections that are left."""
    left = []
    for node in selections:
        conv, readers = graph.producers().get(node.inputs[0]), graph.consumers()[node.inputs[0]]
        if conv is None or len(readers) > 1 or not _has_rows(graph, conv):
            left.append(node)
            continue
        rows = graph.constants[node.inputs[1]][:, :, 0, 0].argmax(axis=1)
        made = _rows(graph, conv, node.outputs[0], rows)
        graph.nodes = [made if entry is conv else entry for entry in graph.nodes if entry is not node]
    return left


def with_selected_results(graph: Graph) -> Graph:
    """The graph without selections of the channels of a convolution: the convolution makes these channels.

    For the toolkit: rknn-toolkit2 2.5.0 itself reorders the weights of a grouped convolution, but not the inputs of its groups.
    """
    graph = replace(
        graph,
        nodes=list(graph.nodes),
        constants=dict(graph.constants),
        shapes=dict(graph.shapes),
        dtypes=dict(graph.dtypes),
    )
    made = [(node, _selection(graph, node)) for node in graph.nodes]
    originals = {id(selection): node for node, selection in made if selection is not None}
    graph.nodes = [selection or node for node, selection in made]
    _select_results(graph, [selection for _, selection in made if selection is not None])
    graph.nodes = [originals.get(id(node), node) for node in graph.nodes]
    graph.remove_unused()
    return graph


def _has_rows(graph: Graph, conv: Node) -> bool:
    """Whether nothing stands against a convolution with some of the channels of this one."""
    bias = len(conv.inputs) < 3 or not conv.inputs[2] or conv.inputs[2] in graph.constants
    constant = conv.op == "Conv" and not conv.domain and conv.inputs[1] in graph.constants
    return constant and bias and not graph.is_visible(conv.outputs[0]) and graph.rank(conv.inputs[0]) == 4


def _rows(graph: Graph, conv: Node, name: str, rows: Any) -> Node:
    """A convolution without groups that makes the channels *rows* of another one, as the tensor *name*."""
    weights = _dense(graph.constants[conv.inputs[1]], int(conv.attribute("group", 1)))
    inputs = [conv.inputs[0], graph.add_constant(f"{name}.weights", np.ascontiguousarray(weights[rows]))]
    if conv.inputs[2:] and conv.inputs[2]:
        inputs.append(graph.add_constant(f"{name}.bias", np.ascontiguousarray(graph.constants[conv.inputs[2]][rows])))
    attributes = {key: value for key, value in conv.attributes.items() if key != "group"}
    return Node("Conv", inputs, [name], attributes, f"{conv.label}.{name}")


# a convolution whose channels are split


def _split_results(graph: Graph, selections: list[Node]) -> list[Node]:
    """Make one convolution per part of a convolution that only Split and Slice nodes over channels read.

    :param selections: convolutions that select channels
    :returns: these, and the parts of those that were split in their place
    """
    found = list(selections)
    for conv in list(graph.nodes):
        readers = graph.consumers().get(conv.outputs[0], [])
        if not readers or not _has_parts(graph, conv, readers):
            continue
        parts = [part for reader in readers for part in _parts_of_result(graph, conv, reader)]
        gone = {id(conv), *map(id, readers)}
        place = next(index for index, node in enumerate(graph.nodes) if node is conv)
        kept = [[node for node in nodes if id(node) not in gone] for nodes in (graph.nodes[:place], graph.nodes[place:])]
        graph.nodes = [*kept[0], *parts, *kept[1]]
        if any(node is conv for node in found):
            found = [*(node for node in found if node is not conv), *parts]
    return found


def _has_parts(graph: Graph, conv: Node, readers: list[Node]) -> bool:
    if not _has_rows(graph, conv):
        return False
    depthwise = int(conv.attribute("group", 1)) == graph.shapes[conv.inputs[0]][1] > 1
    return not depthwise and all(_is_channel_part(graph, reader, conv.outputs[0]) for reader in readers)


def _is_channel_part(graph: Graph, node: Node, source: str) -> bool:
    """Whether a node takes channels in a row out of *source*."""
    if node.op not in ("Split", "Slice") or node.domain or node.inputs[0] != source:
        return False
    whole = graph.shapes[source]
    for name, (_, steps) in zip(filter(None, node.outputs), slice_bounds(graph, node), strict=True):
        shape = graph.shapes[name]
        if shape[0] != whole[0] or shape[2:] != whole[2:] or any(step != 1 for step in steps):
            return False
    return True


def _dense(weights: Array, group: int) -> Array:
    """Weights of a grouped convolution as those of one without groups."""
    outputs, inputs = len(weights) // group, weights.shape[1]
    dense = np.zeros((len(weights), inputs * group, *weights.shape[2:]), weights.dtype)
    for index in range(group):
        rows, columns = (slice(index * size, (index + 1) * size) for size in (outputs, inputs))
        dense[rows, columns] = weights[rows]
    return dense


def _parts_of_result(graph: Graph, conv: Node, reader: Node) -> list[Node]:
    """A convolution for each result of a Split or Slice."""
    bounds = zip(filter(None, reader.outputs), slice_bounds(graph, reader), strict=True)
    return [_rows(graph, conv, name, slice(starts[1], starts[1] + graph.shapes[name][1])) for name, (starts, _) in bounds]


# Concat before a convolution


def _split_concats(graph: Graph) -> None:
    """Make one convolution per part of a Concat. Each stands where its part is made, and their sums where the convolution stood."""
    makers = graph.producers()
    after: dict[int, list[Node]] = {}
    first: list[Node] = []
    nodes: list[Node] = []
    for node in graph.nodes:
        concat = makers.get(node.inputs[0]) if node.op == "Conv" and not node.domain else None
        if concat is None or not _is_split(graph, node, concat):
            nodes.append(node)
            continue
        parts, sums = _parts(graph, node, concat)
        for part in parts:
            maker = makers.get(part.inputs[0])
            (first if maker is None else after.setdefault(id(maker), [])).append(part)
        nodes += sums
    graph.nodes = first + [entry for node in nodes for entry in (node, *after.get(id(node), ()))]


def _is_split(graph: Graph, conv: Node, concat: Node) -> bool:
    weights = graph.constant(conv.inputs[1])
    bias = len(conv.inputs) < 3 or not conv.inputs[2] or conv.inputs[2] in graph.constants
    if concat.op != "Concat" or len(concat.inputs) < 2 or weights is None or not bias or int(conv.attribute("group", 1)) != 1:
        return False
    rank = graph.rank(conv.inputs[0])
    known = all(name not in graph.constants and graph.is_float(name) for name in concat.inputs)
    if rank != 4 or int(concat.attribute("axis", 1)) % rank != 1 or not known:
        return False
    sizes = [graph.shapes[name][1] for name in concat.inputs]
    alone = len(graph.consumers()[conv.inputs[0]]) == 1 and conv.inputs[0] not in graph.outputs
    saves = len(sizes) * weights.shape[0] < sum(sizes)  # the results of all parts are smaller than what they are made of
    return alone and (saves or any(size % _BLOCK for size in sizes))


def _parts(graph: Graph, conv: Node, concat: Node) -> tuple[list[Node], list[Node]]:
    """A convolution per part, the last with the bias, and their sums; named as the toolkit's configuration names them.

    Of the first two parts the one that is computed later has int8 values of its own. Every other part is added unrounded: its convolution
    has the sum so far as second operand.
    """
    result, weights = conv.outputs[0], graph.constants[conv.inputs[1]]
    shape, dtype = graph.shapes[result], graph.dtypes[result]
    parts: list[Node] = []
    first = 0
    for number, source in enumerate(concat.inputs):
        last = first + graph.shapes[source][1]
        name = graph.free_name(f"{source}_conv")
        graph.shapes[name], graph.dtypes[name] = shape, dtype
        columns = graph.add_constant(f"{name}.weights", np.ascontiguousarray(weights[:, first:last]))
        bias = conv.inputs[2:] if number == len(concat.inputs) - 1 else []
        parts.append(Node("Conv", [source, columns, *bias], [name], dict(conv.attributes), "" if number else conv.name))
        first = last
    sums, total = [], parts[0].outputs[0]
    for part in parts[1:]:
        name = result if part is parts[-1] else graph.free_name(f"{total}_add")
        graph.shapes[name], graph.dtypes[name] = shape, dtype
        sums.append(Node("Add", [total, part.outputs[0]], [name]))
        total = name
    return parts, sums


# global averages


def _stage_averages(graph: Graph) -> None:
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _stages(graph, node) if _is_global_average(graph, node) else [node]
    graph.nodes = nodes


def _is_global_average(graph: Graph, node: Node) -> bool:
    if node.domain or graph.rank(node.inputs[0]) != 4 or not graph.is_float(node.inputs[0]):
        return False
    if node.op != "ReduceMean":
        return node.op == "GlobalAveragePool"
    axes = node.attribute("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1] in graph.constants:
        axes = graph.constants[node.inputs[1]].reshape(-1).tolist()
    return axes is not None and sorted(int(axis) % 4 for axis in axes) == [2, 3]


def _stages(graph: Graph, node: Node) -> list[Node]:
    """The mean of all pixels: sums of windows, each with the same weight, whose power by the number of stages is one over all pixels.

    Results between the stages have the names of the toolkit's configuration.
    """
    made: list[Node] = []
    result = node.outputs[0]
    name, (count, channels, *spatial) = node.inputs[0], graph.shapes[node.inputs[0]]
    shaped = len(graph.shapes[result]) == 4  # a ReduceMean may drop the axes it has reduced
    stages, extents = 1, spatial
    while max(extents) > _MAX_WINDOW:
        stages, extents = stages + 1, [-(-extent // _MAX_WINDOW) for extent in extents]
    value = np.float32(math.prod(spatial) ** (-1 / stages))
    while True:
        kernel = [min(extent, _MAX_WINDOW) for extent in spatial]
        windows = [-(-extent // size) for extent, size in zip(spatial, kernel, strict=True)]
        missing = [number * size - extent for number, size, extent in zip(windows, kernel, spatial, strict=True)]
        before = [extent // 2 for extent in missing]
        last = math.prod(windows) == 1
        name_of_stage = f"{result}.mean" if last else f"{node.label}_2conv{len(made)}"
        output = result if last and shaped else graph.free_name(name_of_stage)
        weights = graph.add_constant(f"{output}.weights", np.full((channels, 1, *kernel), value, np.float32))
        attributes = {
            "group": channels,
            "kernel_shape": kernel,
            "strides": kernel,
            "pads": [*before, *(extent - half for extent, half in zip(missing, before, strict=True))],
        }
        graph.shapes[output], graph.dtypes[output] = (count, channels, *windows), np.dtype(np.float32)
        made.append(Node("Conv", [name, weights], [output], attributes, node.name if last else output))
        if last and not shaped:
            target = graph.add_constant(f"{result}.shape", np.array(graph.shapes[result], np.int64))
            made.append(Node("Reshape", [output, target], [result], {}, f"{node.label}.shape"))
        if last:
            return made
        name, spatial = output, windows
