"""Integer forms for nodes that have none of their own: reductions, and arithmetic with constants that differ from place to place.

A detector ends in such nodes (sums of scores, grids, strides), and an int8 model has to stay int8 there. Each becomes what integers compute
already: a sum or a mean is a convolution with equal weights, a matmul or a pooling; ``x * a + b`` with constants a and b of any
shape is a depthwise convolution, once the axes along which a and b differ are the channels.

Other nodes only have to be written otherwise (:mod:`anynpu.compiler.passes.integer_forms`).

What belongs to a normalization (a mean that is subtracted, a sum that divides) stays float: eight bits are too few for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..._util.types import Array
from ..graph import Graph, Node
from ..lower.forms import Form, form_of, forms_of, is_cheap

# Nodes that integers compute once they are written in another way, such as a product with a constant on its left.
#
# Each function adds nodes that compute the same, or states that it cannot.


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
    """A constant of numbers that have quantized values."""
    value = graph.constant(name)
    return value if value is not None and value.size and np.abs(value).max() < _LARGEST else None


def _matmul(build: Builder, node: Node) -> bool:
    """A product with constants: a vector, a matrix with axes of size 1 before it, a matrix on the left."""
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


_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Identity")
_NORMALISING = ("Sqrt", "Reciprocal", "Pow", "Log", "Exp", "ReduceMean", "ReduceSum", "Div")
_BOUNDING = ("Clip", "Max", "Add", "Mul")
_LARGEST = 1e20


def integer_graph(graph: Graph, steepest: float = math.inf) -> Graph:
    """A copy of a simplified graph in which reductions and constants have integer forms, where those are good for something.

    :param steepest: the largest slope of a PRelu or LeakyRelu that one layer can have; steeper ones become several in a row
    """
    nodes = [replace(node, inputs=list(node.inputs), outputs=list(node.outputs)) for node in graph.nodes]
    copy = replace(
        graph,
        nodes=nodes,
        constants=dict(graph.constants),
        shapes=dict(graph.shapes),
        dtypes=dict(graph.dtypes),
        coded=graph.coded,
    )
    _Rewriting(copy).run()
    if math.isfinite(steepest):
        _split_slopes(copy, steepest)
    copy.remove_unused()
    return copy


def _split_slopes(graph: Graph, steepest: float) -> None:
    """Write PRelu and LeakyRelu beyond *steepest* as several in a row, whose slopes multiply to the original ones."""
    forms = forms_of(graph)
    for node in list(graph.nodes):
        slope = _slope_of(graph, node) if id(node) in forms else None
        if slope is None or not (np.abs(slope) > steepest).any():
            continue
        shape, data = graph.shapes[node.inputs[0]], node.inputs[0]
        build = Builder(graph, node.label)
        last = False
        while not last:
            # all but the last of the slopes are positive: what is negative stays so up to there
            steep = np.abs(slope) > steepest
            now = np.where(steep, np.float32(steepest), slope).astype(np.float32)
            slope = np.where(steep, slope / np.float32(steepest), np.float32(1.0)).astype(np.float32)
            last = not steep.any()
            if node.op == "LeakyRelu":
                data = build.node("LeakyRelu", [data], shape, {"alpha": float(now[0])}, named=last)
                continue
            if data != node.inputs[0]:
                ones = graph.add_constant(f"{data}.ones", np.ones((shape[1], *[1] * (len(shape) - 1)), np.float32))
                data = build.node("Conv", [data, ones], shape, {"group": shape[1], "kernel_shape": [1] * (len(shape) - 2)})
            data = build.node("PRelu", [data, graph.add_constant(f"{node.inputs[1]}.part", now)], shape, named=last)
        place = next(index for index, entry in enumerate(graph.nodes) if entry is node)
        graph.nodes[place : place + 1] = build.ending_in(node.outputs[0])


def _slope_of(graph: Graph, node: Node) -> Array | None:
    """The slopes of a PRelu or LeakyRelu; None for other nodes, and where they are no numbers."""
    if node.domain or node.op not in ("PRelu", "LeakyRelu"):
        return None
    slope = np.array([node.attribute("alpha", 0.01)], np.float32) if node.op == "LeakyRelu" else graph.constant(node.inputs[1])
    return slope if slope is not None and np.isfinite(slope).all() else None


@dataclass(eq=False)
class _Affine:
    """``x * scale + shift``, element by element.

    :ivar nodes: what it was made of, in order
    """

    data: str
    scale: Array
    shift: Array
    nodes: list[Node] = field(default_factory=list)


class _Rewriting:
    """One walk through the graph in the order of execution, in which every node is given a form or replaced."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._forms: dict[int, Form] = {}
        self._gone: set[int] = set()

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if id(node) in self._gone or self._settle(node) or not self._reads_integers(node):
                continue
            made = self._reduction(node) or self._constants(node) or self._plain_form(node)
            for entry in made or ():
                if not self._settle(entry):
                    for part in self._constants(entry) or ():
                        self._settle(part)

    def _settle(self, node: Node) -> bool:
        """Whether a node is computed in integers as it is."""
        form = form_of(self._graph, node, self._producers, self._consumers)
        if form is None or (is_cheap(node, form) and not self._reads_integers(node)):
            return False
        self._forms[id(node)] = form
        return True

    def _reads_integers(self, node: Node) -> bool:
        data = [name for name in node.inputs if name and name not in self._graph.constants]
        makers = [self._producers.get(name) for name in data]
        return bool(data) and all(maker is None or id(maker) in self._forms for maker in makers)

    def _replace(self, old: Sequence[Node], made: list[Node]) -> list[Node]:
        """Put *made* where the last of the *old* nodes stood."""
        nodes = self._graph.nodes
        last = next(index for index, node in enumerate(nodes) if node is old[-1])
        nodes[last : last + 1] = made
        self._gone |= {id(node) for node in old}
        self._graph.nodes = [node for node in nodes if id(node) not in self._gone]
        self._producers, self._consumers = self._graph.producers(), self._graph.consumers()
        return made

    # reductions

    def _reduction(self, node: Node) -> list[Node] | None:
        graph = self._graph
        if node.op not in _REDUCTIONS or node.domain or not graph.is_float(node.inputs[0]):
            return None
        axes = _axes(graph, node)
        shape = graph.shapes[node.inputs[0]]
        if not axes or math.prod(shape) == 0 or self._normalises(node):
            return None
        build = Builder(graph, node.label)
        if node.op == "ReduceMin":
            turned = build.node("Neg", [node.inputs[0]], shape)
            build.node("Neg", [_reduced(build, turned, shape, axes, "Max", node.outputs[0])], graph.shapes[node.outputs[0]])
        else:
            _reduced(build, node.inputs[0], shape, axes, node.op.removeprefix("Reduce"), node.outputs[0])
        return self._replace([node], build.ending_in(node.outputs[0]))

    def _normalises(self, node: Node) -> bool:
        """Whether a reduction is part of a normalization: its result is subtracted, divides, or goes through a root or a logarithm."""
        maker = self._producers.get(node.inputs[0])
        if maker is not None and maker.op in ("Exp", "Pow"):
            return True
        waiting = [node.outputs[0]]
        while waiting:
            name = waiting.pop()
            for reader in self._consumers.get(name, ()):
                others = [entry for entry in reader.inputs if entry and entry != name and entry not in self._graph.constants]
                if reader.op in _NORMALISING or (reader.op == "Sub" and others):
                    return True
                if reader.op in _RESHAPES or (reader.op in _BOUNDING and not others):
                    waiting += reader.outputs
        return False

    # constants

    def _constants(self, node: Node) -> list[Node] | None:
        affine = self._affine(node)
        if affine is None or not self._is_wanted(affine.nodes[-1].outputs[0]):
            return None
        result = affine.nodes[-1].outputs[0]
        build = Builder(self._graph, affine.nodes[-1].label)
        _depthwise(build, affine, self._graph.shapes[result])
        return self._replace(affine.nodes, build.ending_in(result))

    # what only has another form

    def _plain_form(self, node: Node) -> list[Node] | None:
        rewrite = PLAIN_FORMS.get(node.op)
        if rewrite is None or node.domain or not self._graph.is_float(node.outputs[0]) or not self._is_wanted(node.outputs[0]):
            return None
        build = Builder(self._graph, node.label)
        return self._replace([node], build.ending_in(node.outputs[0])) if rewrite(build, node) else None

    def _affine(self, node: Node) -> _Affine | None:
        """The chain of arithmetic with constants that begins with *node*, if that is one with a constant of more than one number."""
        step = _affine_of(self._graph, node)
        if step is None or step.scale.size == step.shift.size == 1:
            return None
        step = self._with_maker(step)
        while True:
            result = step.nodes[-1].outputs[0]
            readers = self._consumers.get(result, [])
            if len(readers) != 1 or self._graph.is_visible(result):
                return step
            after = _affine_of(self._graph, readers[0]) or _pointwise(self._graph, readers[0])
            joined = None if after is None else _joined(step, after)
            if joined is None:
                return step
            step = joined

    def _with_maker(self, step: _Affine) -> _Affine:
        """The chain with the scale and shift per channel before it, which simplification has made a convolution of its own."""
        maker = self._producers.get(step.data)
        before = None if maker is None else _pointwise(self._graph, maker)
        alone = len(self._consumers.get(step.data, ())) == 1 and not self._graph.is_visible(step.data)
        return (_joined(before, step) if before is not None and alone else None) or step

    def _is_wanted(self, name: str) -> bool:
        """Whether no reader of a tensor has to compute in float."""
        return all(
            form_of(self._graph, reader, self._producers, self._consumers) is not None
            or _affine_of(self._graph, reader) is not None
            or (reader.op in _REDUCTIONS and not self._normalises(reader))
            for reader in self._consumers.get(name, ())
        )


def _axes(graph: Graph, node: Node) -> list[int]:
    """The axes of a reduction in order; empty where they are not known."""
    rank = graph.rank(node.inputs[0])
    axes = node.attribute("axes")
    if axes is None and len(node.inputs) > 1 and node.inputs[1]:
        value = graph.constant(node.inputs[1])
        if value is None:
            return []
        axes = value.reshape(-1).tolist()
    if not axes:
        return [] if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({int(axis) % rank for axis in axes})


def _reduced(build: Builder, source: str, shape: tuple[int, ...], axes: list[int], kind: str, result: str) -> str:
    """Reduce *axes* of *source* by Sum, Mean or Max, to the shape of the tensor *result*."""
    wanted = build.graph.shapes[result]
    count = math.prod(shape[axis] for axis in axes)
    if len(shape) == 4 and axes == [1] and kind != "Max":
        weights = np.full((1, count, 1, 1), 1.0 if kind == "Sum" else 1.0 / count, np.float32)
        made = build.node(
            "Conv",
            [source, build.graph.add_constant(f"{result}.weights", weights)],
            (shape[0], 1, *shape[2:]),
            {"kernel_shape": [1, 1]},
            named=True,
        )
        return build.reshape(made, wanted)
    if len(shape) == 4 and set(axes) <= {2, 3}:
        return _pooled(build, source, shape, axes, kind, wanted)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    rows = math.prod(shape[axis] for axis in kept)
    turned = build.transpose(source, [*kept, *axes])
    if kind == "Max":
        image = build.reshape(turned, (1, 1, rows, count))
        pooled = build.node("MaxPool", [image], (1, 1, rows, 1), {"kernel_shape": [1, count]}, named=True)
        return build.reshape(pooled, wanted)
    weights = np.full((count, 1), 1.0 if kind == "Sum" else 1.0 / count, np.float32)
    matrix = build.reshape(turned, (rows, count))
    inputs = [matrix, build.graph.add_constant(f"{result}.weights", weights)]
    return build.reshape(build.node("MatMul", inputs, (rows, 1), named=True), wanted)


def _pooled(build: Builder, source: str, shape: tuple[int, ...], axes: list[int], kind: str, wanted: tuple[int, ...]) -> str:
    """Reduce one or both axes of an image."""
    kernel = [shape[axis] if axis in axes else 1 for axis in (2, 3)]
    extents = [1 if axis in axes else shape[axis] for axis in (2, 3)]
    operator = "MaxPool" if kind == "Max" else "AveragePool"
    made = build.node(operator, [source], (*shape[:2], *extents), {"kernel_shape": kernel}, named=True)
    if kind == "Sum":
        count = build.graph.add_constant(f"{made}.count", np.array(math.prod(kernel), np.float32))
        made = build.node("Mul", [made, count], build.graph.shapes[made])
    return build.reshape(made, wanted)


def _affine_of(graph: Graph, node: Node) -> _Affine | None:
    """A node that is ``x * scale + shift`` with finite constants and keeps the shape of x, or None."""
    if node.op not in _ARITHMETIC or node.domain or len(node.inputs) != 2 or not graph.is_float(node.outputs[0]):
        return None
    left, right = (graph.constant(name) for name in node.inputs)
    if (left is None) == (right is None) or (node.op == "Div" and right is None):
        return None
    data = node.inputs[0] if right is not None else node.inputs[1]
    value = np.asarray(left if right is None else right, np.float64)
    shape = graph.shapes[data]
    if shape != graph.shapes[node.outputs[0]] or value.ndim > len(shape) or math.prod(shape) == 0:
        return None
    value = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if node.op == "Div":
        if not np.all(value):
            return None
        value = 1.0 / value
    if not np.abs(value).max(initial=np.inf if not value.size else 0.0) < _LARGEST:
        return None
    one, zero = np.ones((1,) * len(shape)), np.zeros((1,) * len(shape))
    if node.op in ("Mul", "Div"):
        return _Affine(data, value, zero, [node])
    if node.op == "Add":
        return _Affine(data, one, value, [node])
    return _Affine(data, one, -value, [node]) if right is not None else _Affine(data, -one, value, [node])


def _pointwise(graph: Graph, node: Node) -> _Affine | None:
    """A depthwise convolution of one element, which is a scale and a shift per channel; None for any other node."""
    if node.op != "Conv" or node.domain or node.rewritten or node.apart:
        return None
    weights = graph.constant(node.inputs[1])
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    shape = graph.shapes[node.inputs[0]]
    groups = int(node.attribute("group", 1))
    if weights is None or weights.size != groups or groups != shape[1] or shape != graph.shapes[node.outputs[0]]:
        return None
    if bias is None and len(node.inputs) > 2 and node.inputs[2]:
        return None
    full = (1, groups, *(1,) * (len(shape) - 2))
    shift = np.zeros(groups) if bias is None else bias
    scale, shift = (np.asarray(value, np.float64).reshape(full) for value in (weights, shift))
    finite = np.abs(scale).max() < _LARGEST and np.abs(shift).max() < _LARGEST
    return _Affine(node.inputs[0], scale, shift, [node]) if finite else None


def _joined(first: _Affine, second: _Affine) -> _Affine | None:
    """One after the other, as one; None where numbers get too large."""
    scale, shift = first.scale * second.scale, first.shift * second.scale + second.shift
    if not (np.abs(scale).max() < _LARGEST and np.abs(shift).max() < _LARGEST):
        return None
    return _Affine(first.data, scale, shift, [*first.nodes, *second.nodes])


def _depthwise(build: Builder, affine: _Affine, shape: tuple[int, ...]) -> None:
    """The depthwise convolution that is ``x * scale + shift``: axes along which the constants differ become channels, others pixels."""
    rank = len(shape)
    varying = [axis for axis in range(rank) if affine.scale.shape[axis] > 1 or affine.shift.shape[axis] > 1]
    first = 0 if 0 in varying or rank < 2 else 1  # the batch stays the batch where it can
    others = [axis for axis in range(first, rank) if axis not in varying]
    perm = [*range(first), *varying, *others]
    extents = [1] * rank
    for axis in varying:
        extents[axis] = shape[axis]
    channels = math.prod(extents)
    batch = math.prod(shape[:first])
    turned = build.transpose(affine.data, perm)
    image = build.reshape(turned, (batch, channels, math.prod(shape[axis] for axis in others)))
    weights = np.broadcast_to(affine.scale, extents).astype(np.float32).reshape(channels, 1, 1)
    bias = np.broadcast_to(affine.shift, extents).astype(np.float32).reshape(channels)
    result = affine.nodes[-1].outputs[0]
    inputs = [
        image,
        build.graph.add_constant(f"{result}.scale", np.ascontiguousarray(weights)),
        build.graph.add_constant(f"{result}.shift", np.ascontiguousarray(bias)),
    ]
    made = build.node("Conv", inputs, build.graph.shapes[image], {"group": channels, "kernel_shape": [1]}, named=True)
    back = [perm.index(axis) for axis in range(rank)]
    build.transpose(build.reshape(made, [shape[axis] for axis in perm]), back)
