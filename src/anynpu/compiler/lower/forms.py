"""Which integer form a node has, if any: the first decision of the compiler.

A node without an integer form is computed in float. So are cheap nodes (element-wise, data movement) that read a float result: going
through int8 in between would only cost accuracy.
"""

from __future__ import annotations

import enum

import numpy as np

from ..graph import Graph, Node
from ..passes.simplify import pad_amounts, pad_value, shuffle_groups
from .attributes import resize_indices, resize_scales, slice_bounds, window_of
from .functions import scalar_operand, unary_function


class Form(enum.Enum):
    """How integers compute a node."""

    CONV = enum.auto()
    CONV_TRANSPOSE = enum.auto()
    DENSE = enum.auto()
    BIAS = enum.auto()  # an Add that belongs to the matmul before it
    MATMUL = enum.auto()
    BINARY = enum.auto()
    FUNCTION = enum.auto()  # of one tensor: a table, or part of one
    PRELU = enum.auto()
    CONCAT = enum.auto()
    SLICE = enum.auto()
    PAD = enum.auto()
    POOL = enum.auto()
    RESIZE = enum.auto()
    TRANSPOSE = enum.auto()
    RESHAPE = enum.auto()


_CHEAP = {
    Form.MATMUL,
    Form.BINARY,
    Form.FUNCTION,
    Form.CONCAT,
    Form.SLICE,
    Form.PAD,
    Form.TRANSPOSE,
    Form.RESHAPE,
}
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_JUMPS = ("Ceil", "Floor", "Round", "Sign")
_COORDINATES = "coordinate_transformation_mode"


def forms_of(graph: Graph) -> dict[int, Form]:
    """The form of every node that is computed in integers, by ``id(node)``."""
    producers, consumers = graph.producers(), graph.consumers()
    forms: dict[int, Form] = {}
    for node in graph.nodes:
        form = form_of(graph, node, producers, consumers)
        if form is None:
            continue
        if is_cheap(node, form) and any(
            _is_float_result(name, producers, forms) for name in node.inputs if name not in graph.constants
        ):
            continue
        forms[id(node)] = form
    _release_leading(graph, forms, producers, consumers)
    return forms


def is_cheap(node: Node, form: Form | None) -> bool:
    """Whether a node of this form costs so little that it follows what it reads: float stays float."""
    return form in _CHEAP or (form is Form.POOL and "Max" in node.op)


def _is_float_result(name: str, producers: dict[str, Node], forms: dict[int, Form]) -> bool:
    maker = producers.get(name)
    return maker is not None and id(maker) not in forms


def _release_leading(graph: Graph, forms: dict[int, Form], producers: dict[str, Node], consumers: dict[str, list[Node]]) -> None:
    """Cheap nodes between an input of the model and a float node gain nothing from integers."""
    for node in reversed(graph.nodes):
        if not is_cheap(node, forms.get(id(node))):
            continue
        readers = [reader for name in node.outputs for reader in consumers.get(name, ())]
        before = [name for name in node.inputs if name and name not in graph.constants]
        leads = all(name in graph.inputs or _is_float_result(name, producers, forms) for name in before)
        if leads and readers and all(id(reader) not in forms for reader in readers):
            del forms[id(node)]


def _jumps(node: Node) -> bool:
    """Whether a function jumps: a number beside the jump and its code may lie on two sides of it, so an input is not rounded before."""
    return not node.domain and (node.op in _JUMPS or (node.op == "ThresholdedRelu" and node.attribute("alpha", 1.0) != 0.0))


def before_jumps(graph: Graph, forms: dict[int, Form]) -> set[str]:
    """Inputs of the model that only float nodes read, and that a jump is decided by."""
    producers, consumers = graph.producers(), graph.consumers()
    waiting = [node.inputs[0] for node in graph.nodes if _jumps(node) and id(node) not in forms]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        maker = producers.get(name)
        if name not in seen and maker is not None and id(maker) not in forms:
            waiting += maker.inputs
        seen.add(name)
    return {name for name in seen.intersection(graph.inputs) if all(id(reader) not in forms for reader in consumers[name])}


_MASKING = {"Add", "And", "Cast", "Div", "Equal", "Expand", "Greater", "Identity", "Less", "Mul", "Neg", "Not", "Or", "Reshape"}
_MASKING |= {"Slice", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where"}
_TO_SOFTMAX = {"Add", "Clip", "Div", "Identity", "Max", "Min", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_MAX_STEPS = 64


def _adds_mask(graph: Graph, node: Node, data: list[str], producers: dict[str, Node], consumers: dict[str, list[Node]]) -> bool:
    """Whether an Add before a Softmax adds what comes from an input of the model: a mask of far values, such as -1e9.

    With the mask's range one code would be larger than all scores, so the sum is float.
    """
    if not any(_comes_from_inputs(graph, name, producers) for name in data):
        return False
    waiting, seen = [node], {id(node)}
    while waiting and len(seen) < _MAX_STEPS:
        for reader in (reader for name in waiting.pop().outputs for reader in consumers.get(name, ())):
            if reader.op in ("Softmax", "LogSoftmax"):
                return True
            if reader.op in _TO_SOFTMAX and id(reader) not in seen:
                seen.add(id(reader))
                waiting.append(reader)
    return False


def _comes_from_inputs(graph: Graph, name: str, producers: dict[str, Node]) -> bool:
    """Whether only element-wise nodes and data movement lie between a tensor and inputs of the model."""
    waiting, seen = [name], set()
    while waiting:
        tensor = waiting.pop()
        if not tensor or tensor in seen or tensor in graph.constants or tensor in graph.inputs:
            continue
        seen.add(tensor)
        maker = producers.get(tensor)
        if maker is None or maker.op not in _MASKING or len(seen) > _MAX_STEPS:
            return False
        waiting += maker.inputs
    return True


def form_of(graph: Graph, node: Node, producers: dict[str, Node], consumers: dict[str, list[Node]]) -> Form | None:
    """The form of a node on its own, whatever computes what it reads; None where integers cannot compute it."""
    data = [name for name in node.inputs if name and name not in graph.constants]
    if node.domain or not data or not all(graph.is_float(name) for name in (*data, *filter(None, node.outputs))):
        return None
    rank = graph.rank(data[0])
    if node.op in ("Conv", "ConvTranspose"):
        return _convolution(graph, node, rank)
    if node.op == "Gemm":
        return _gemm(graph, node, data)
    if node.op == "MatMul":
        return _matrix_product(graph, node, data, rank)
    if node.op == "PRelu":
        return _prelu(graph, node, producers, consumers)
    if node.op in ("Concat", "Slice", "Split", "Pad"):
        return _movement(graph, node, data)
    if node.op in ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"):
        return _pooling(graph, node, rank, consumers)
    if node.op in ("Resize", "Upsample"):
        return _resize(graph, node, rank)
    if node.op == "Transpose" or (node.op in ("DepthToSpace", "SpaceToDepth") and rank == 4):
        return Form.TRANSPOSE
    if node.op == "Gather" and shuffle_groups(graph, node) is not None:
        return Form.TRANSPOSE
    if node.op in _RESHAPES:
        return Form.RESHAPE
    if node.op == "Add" and _adds_mask(graph, node, data, producers, consumers):
        return None
    return _elementwise(graph, node, data, producers, consumers)


def _convolution(graph: Graph, node: Node, rank: int) -> Form | None:
    bias = len(node.inputs) > 2 and bool(node.inputs[2]) and node.inputs[2] not in graph.constants
    if node.inputs[1] not in graph.constants or bias:
        return None
    form = Form.CONV if node.op == "Conv" else Form.CONV_TRANSPOSE
    return form if rank in (3, 4) and window_of(graph, node).is_moderate else None


def _gemm(graph: Graph, node: Node, data: list[str]) -> Form | None:
    """Dense where it was normalized: no attributes left, and a bias by output unit."""
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    fits = bias is None or bias.shape == graph.shapes[node.outputs[0]][1:]
    return Form.DENSE if data == node.inputs[:1] and fits and not node.attributes else None


def _matrix_product(graph: Graph, node: Node, data: list[str], rank: int) -> Form | None:
    weights = graph.constant(node.inputs[1])
    if weights is not None:
        return Form.DENSE if weights.ndim == 2 and rank >= 2 else None
    return Form.MATMUL if len(data) == 2 and rank >= 2 and graph.rank(data[1]) == rank else None


def _prelu(graph: Graph, node: Node, producers: dict[str, Node], consumers: dict[str, list[Node]]) -> Form | None:
    data = node.inputs[0]
    maker = producers.get(data)
    slope = graph.constant(node.inputs[1])
    if slope is None or not np.all(np.isfinite(slope)) or maker is None or maker.op not in ("Conv", "ConvTranspose"):
        return None
    if len(consumers[data]) > 1 or graph.is_visible(data):
        return None
    channels = graph.shapes[node.inputs[0]][1]
    return Form.PRELU if slope.size in (1, channels) and _is_channel_vector(slope.shape, graph.rank(node.inputs[0])) else None


def _is_channel_vector(shape: tuple[int, ...], rank: int) -> bool:
    full = (1,) * (rank - len(shape)) + shape
    return len(full) == rank and all(extent == 1 for axis, extent in enumerate(full) if axis != 1)


def _movement(graph: Graph, node: Node, data: list[str]) -> Form | None:
    if node.op == "Concat":
        return Form.CONCAT if len(data) == len(node.inputs) else None
    if node.op == "Pad":
        amounts = pad_amounts(graph, node)
        mode = node.attribute("mode", "constant")
        # any other number than zero may lie outside of what the quantized values of the input can state
        known = amounts is not None and min(amounts, default=0) >= 0 and (mode != "constant" or pad_value(graph, node) == 0.0)
        return Form.PAD if known and mode in ("constant", "reflect", "edge") else None
    if len(data) != 1 or any(step < 1 for _, steps in slice_bounds(graph, node) for step in steps):
        return None
    return Form.SLICE


def _pooling(graph: Graph, node: Node, rank: int, consumers: dict[str, list[Node]]) -> Form | None:
    if rank not in (3, 4) or len([name for name in node.outputs if name and (name in consumers or name in graph.outputs)]) > 1:
        return None
    window = window_of(graph, node)
    if not window.is_moderate:
        return None
    if node.op == "AveragePool":
        # what the rounded-up part of a window counts differs between frameworks
        declared = node.attribute("pads", [0] * (2 * (rank - 2)))[rank - 2 :]
        rounded_up = any(have > said for have, said in zip(window.pads[6 - rank :], declared, strict=True))
        if node.attribute("count_include_pad", 0) and rounded_up:
            return None
        if any(extent != 1 for extent in window.dilations):
            return None
    return Form.POOL


def _resize(graph: Graph, node: Node, rank: int) -> Form | None:
    mode = node.attribute("mode", "nearest")
    if (
        rank not in (3, 4)
        or mode not in ("nearest", "linear")
        or node.attribute("antialias", 0)
        or node.attribute("exclude_outside", 0)
    ):
        return None
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    source, result = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    if source[:2] != result[:2] or any(name and name not in graph.constants for name in node.inputs[1:]):
        return None
    scales = resize_scales(graph, node)
    transformation, nearest = resize_modes(graph, node)
    tables = (resize_indices(mode, source[axis], result[axis], scales[axis], transformation, nearest) for axis in range(2, rank))
    return Form.RESIZE if all(table is not None for table in tables) else None


def resize_modes(graph: Graph, node: Node) -> tuple[str, str]:
    """Coordinate transformation and nearest mode; before opset 11 there was but one of each."""
    if node.op == "Upsample" or graph.opset < 11:
        return "asymmetric", "simple"
    return node.attribute(_COORDINATES, "half_pixel"), node.attribute("nearest_mode", "round_prefer_floor")


def _elementwise(
    graph: Graph, node: Node, data: list[str], producers: dict[str, Node], consumers: dict[str, list[Node]]
) -> Form | None:
    if unary_function(graph, node) is not None and data == node.inputs[:1]:
        return None if _jumps(node) and _comes_from_inputs(graph, data[0], producers) else Form.FUNCTION
    if scalar_operand(graph, node) is not None:
        return Form.FUNCTION
    if node.op in _BINARY and len(data) == 2:
        return Form.BINARY
    if node.op == "Add" and len(data) == 1 and is_dense_bias(graph, node, producers, consumers):
        return Form.BIAS
    return None


def is_dense_bias(graph: Graph, node: Node, producers: dict[str, Node], consumers: dict[str, list[Node]]) -> bool:
    """Whether an Add of a constant vector belongs to the matmul that it follows."""
    data = next(name for name in node.inputs if name not in graph.constants)
    value = graph.constants[next(name for name in node.inputs if name in graph.constants)]
    maker = producers.get(data)
    return (
        maker is not None
        and maker.op == "MatMul"
        and maker.inputs[1] in graph.constants
        and graph.constants[maker.inputs[1]].ndim == 2
        and value.size == graph.shapes[data][-1]
        and value.shape[-1:] == (value.size,)
        and len(consumers.get(data, ())) == 1
        and not graph.is_visible(data)
        and bool(np.all(np.isfinite(value)))
    )
