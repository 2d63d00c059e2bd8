"""Operators that onnxruntime's optimizers write (SkipLayerNormalization, Attention, FusedConv, MatMulNBits), as operators of ONNX."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import AnynpuError, CompileError, UnsupportedOperatorError

# A graph of ONNX in which operators of onnxruntime are written plainly: what all of them need for it.


_SAME_RANK = {"Add", "Cast", "Gelu", "Identity", "LayerNormalization", "MatMul", "MatMulNBits", "Relu", "Softmax"}
"""Operators whose result has as many axes as their first input, as networks write them."""
_OF_THREE = {
    "Attention",
    "EmbedLayerNormalization",
    "GroupQueryAttention",
    "MultiHeadAttention",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}
_MAX_STEPS = 64


class RuntimeNode:
    """An operator of onnxruntime: its inputs and outputs by place, empty where there is none, and its attributes."""

    def __init__(self, proto: Any) -> None:
        helper = onnx().helper
        self._proto = proto
        self._attributes = {entry.name: helper.get_attribute_value(entry) for entry in proto.attribute}

    @property
    def name(self) -> str:
        """What parts are named after."""
        return str(self._proto.name or self._proto.output[0])

    def input(self, index: int) -> str:
        return str(self._proto.input[index]) if index < len(self._proto.input) else ""

    def output(self, index: int) -> str:
        return str(self._proto.output[index]) if index < len(self._proto.output) else ""

    def given(self, *names: str) -> dict[str, Any]:
        """The attributes of these names that it has."""
        return {name: self._attributes[name] for name in names if name in self._attributes}

    def number(self, name: str, usual: float) -> float:
        return float(self._attributes.get(name, usual))

    def whole(self, name: str, usual: int) -> int:
        return int(self._attributes.get(name, usual))

    def numbers(self, name: str) -> list[float]:
        return [float(value) for value in self._attributes.get(name, ())]

    def text(self, name: str, usual: str) -> str:
        value = self._attributes.get(name, usual)
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def refused(self, why: str) -> UnsupportedOperatorError:
        """An error that states what is in the way."""
        return UnsupportedOperatorError(
            f"this form of onnxruntime's operator has no plain form here: {why}",
            node=self._proto.name,
            operator=self._proto.op_type,
            hint="compile the model as it was before onnxruntime optimized it",
        )

    @property
    def outputs(self) -> list[str]:
        """The names of its results by place."""
        return list(self._proto.output)


class Writer:
    """Takes the nodes of a graph in order, and makes others in place of some.

    :ivar lengths: tensors that hold how many keys of each row count
    :ivar masks: what is added to scores, by the mask that it is made of and the number for keys that do not count
    """

    def __init__(self, graph: Any, opset: int) -> None:
        self.opset = opset
        self.lengths: set[str] = set()
        self.masks: dict[tuple[str, float], str] = {}
        self._graph = graph
        self._nodes: list[Any] = []
        self._stored = {entry.name: entry for entry in graph.initializer}
        self._ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.value_info)
            if value.type.tensor_type.HasField("shape")
        }
        self._makers = {name: node for node in graph.node for name in node.output}
        self._unpacked: set[str] = set()
        self._read = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)} | set(self._stored)
        self._stem = ""
        self._numbers = itertools.count()

    def keep(self, node: Any) -> None:
        """A node that stays."""
        self._nodes.append(node)

    def entered(self, node: Any) -> RuntimeNode:
        """The node that is written plainly next."""
        entry = RuntimeNode(node)
        self._stem = entry.name
        return entry

    def _free(self, part: str) -> str:
        while (name := f"{self._stem}.{part}{next(self._numbers)}") in self._taken:
            pass
        self._taken.add(name)
        return name

    def node(self, op: str, inputs: Sequence[str], result: str = "", **attributes: Any) -> str:
        """Add a node of ONNX's own with one result; the name of it."""
        made = result or self._free(op)
        self._nodes.append(onnx().helper.make_node(op, list(inputs), [made], name=made, **attributes))
        return made

    def split(self, source: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Parts of a tensor along an axis."""
        names = [self._free("part") for _ in sizes]
        extents = {"split": list(sizes)} if self.opset < 13 else {}
        inputs = [source] if extents else [source, self.whole(sizes)]
        self._nodes.append(onnx().helper.make_node("Split", inputs, names, name=names[0], axis=axis, **extents))
        return names

    def constant(self, values: Array) -> str:
        name = self._free("value")
        self._graph.initializer.append(onnx().numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def whole(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def value(self, name: str) -> Array | None:
        """What a constant holds; None where it is none, or its values are elsewhere."""
        entry = self._stored.get(name)
        if entry is None or entry.data_location == onnx().TensorProto.EXTERNAL:
            return None
        found: Array = onnx().numpy_helper.to_array(entry)
        return found

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a constant; None where it is none."""
        entry = self._stored.get(name)
        return None if entry is None else tuple(entry.dims)

    def unpacked(self, name: str) -> Array | None:
        """What a constant holds that is not needed any more once its numbers are written in another way."""
        self._unpacked.add(name)
        return self.value(name)

    def rank(self, name: str, depth: int = 0) -> int | None:
        """The number of axes of a tensor, where the model or the nodes before it report."""
        if name in self._stored:
            return len(self._stored[name].dims)
        maker = self._makers.get(name)
        if name in self._ranks or maker is None or not maker.input or depth > _MAX_STEPS:
            return self._ranks.get(name)
        if maker.op_type in _OF_THREE:
            return 3
        if maker.op_type == "Gather" and len(maker.input) == 2:
            table, places = (self.rank(entry, depth + 1) for entry in maker.input)
            return None if table is None or places is None else table + places - 1
        return self.rank(maker.input[0], depth + 1) if maker.op_type in _SAME_RANK else None

    def is_read(self, name: str) -> bool:
        """Whether a result is there, and a node or the caller reads it."""
        return bool(name) and name in self._read

    def only_outputs(self, node: RuntimeNode, *places: int) -> None:
        """Reject an operator of which results at other places are read."""
        for index, name in enumerate(node.outputs):
            if index not in places and self.is_read(name):
                raise node.refused(f"its result '{name}' is read")

    def mean(self, source: str) -> str:
        """The mean over the last axis, which stays with one entry."""
        if self.opset >= 18:
            return self.node("ReduceMean", [source, self.whole([-1])], keepdims=1)
        return self.node("ReduceMean", [source], axes=[-1], keepdims=1)

    def total(self, source: str) -> str:
        """The sum over the last axis, which goes."""
        if self.opset >= 13:
            return self.node("ReduceSum", [source, self.whole([-1])], keepdims=0)
        return self.node("ReduceSum", [source], axes=[-1], keepdims=0)

    def unsqueezed(self, source: str, axes: Sequence[int]) -> str:
        if self.opset >= 13:
            return self.node("Unsqueeze", [source, self.whole(axes)])
        return self.node("Unsqueeze", [source], axes=list(axes))

    def length(self, source: str, axis: int) -> str:
        """The size of one axis, as a list of one number."""
        return self.node("Gather", [self.node("Shape", [source]), self.whole([axis])])

    def counted(self, length: str) -> str:
        """0, 1, 2, ... below a length, which is a list of one number."""
        ends = [
            self.constant(np.array(0, np.int64)),
            self.node("Reshape", [length, self.whole([])]),
            self.constant(np.array(1, np.int64)),
        ]
        return self.node("Range", ends)

    def finish(self) -> None:
        """Let the graph have these nodes."""
        copies = [type(node).FromString(node.SerializeToString()) for node in self._nodes]
        del self._graph.node[:]
        self._graph.node.extend(copies)
        gone = self._unpacked - {name for node in copies for name in node.input} - {entry.name for entry in self._graph.output}
        if gone:
            kept = [entry for entry in self._graph.initializer if entry.name not in gone]
            stored = [type(entry).FromString(entry.SerializeToString()) for entry in kept]
            del self._graph.initializer[:]
            self._graph.initializer.extend(stored)


# Attention as onnxruntime writes it in one node, as the products and the softmax that it is.


_MAX_HEADS = 1 << 16
_FAR = -10000.0
"""What is added to the score of a key that does not count, unless the node states otherwise."""


def attention(write: Writer, node: RuntimeNode) -> None:
    """Attention: queries, keys and values from one product with constant weights."""
    _refuse(write, node, 4)
    projected = _projected(write, node.input(0), node.input(1), node.input(2))
    parts = write.split(projected, _sizes(write, node, node.input(1)), -1)
    causal = node.whole("unidirectional", 0) == 1
    _attended(write, node, parts, mask=node.input(3), bias=node.input(5), causal=causal, source=node.input(0))


def quantized_attention(write: Writer, node: RuntimeNode) -> None:
    """QAttention: the same on quantized values, whose scales are inputs."""
    _refuse(write, node, 8)
    source = write.node("DequantizeLinear", [node.input(0), node.input(3), *_zero(node, 6)])
    axis: dict[str, Any] = {"axis": 1} if write.opset >= 13 else {}  # before, there is one scale for all
    weights = write.node("DequantizeLinear", [node.input(1), node.input(4), *_zero(node, 7)], **axis)
    projected = _projected(write, source, weights, node.input(2))
    parts = write.split(projected, _sizes(write, node, node.input(1)), -1)
    causal = node.whole("unidirectional", 0) == 1
    _attended(write, node, parts, mask=node.input(5), bias="", causal=causal, source=node.input(0))


def multi_head_attention(write: Writer, node: RuntimeNode) -> None:
    """MultiHeadAttention: queries, keys and values are there already, of three axes each."""
    if not all(node.input(index) and write.rank(node.input(index)) == 3 for index in range(3)):
        raise node.refused("queries, keys and values are packed, or split into heads")
    _refuse(write, node, 6, 7)
    parts = [node.input(index) for index in range(3)]
    if node.input(3):
        total = write.value(node.input(3))
        if total is None or total.size % 3:
            raise node.refused("its bias is computed")
        parts = [
            write.node("Add", [part, write.constant(piece)]) for part, piece in zip(parts, total.reshape(3, -1), strict=True)
        ]
    causal = node.whole("unidirectional", 0) == 1
    _attended(write, node, parts, mask=node.input(4), bias=node.input(5), causal=causal, source=node.input(0))


def _zero(node: RuntimeNode, index: int) -> list[str]:
    return [node.input(index)] if node.input(index) else []


def _refuse(write: Writer, node: RuntimeNode, *past: int) -> None:
    """Reject what has no plain form; *past* are the places of keys and values of earlier runs."""
    write.only_outputs(node, 0)
    if any(node.input(index) for index in past):
        raise node.refused("it continues from keys and values of earlier runs")
    if node.whole("do_rotary", 0):
        raise node.refused("it turns queries and keys")


def _projected(write: Writer, source: str, weights: str, bias: str) -> str:
    product = write.node("MatMul", [source, weights])
    return write.node("Add", [product, bias]) if bias else product


def _sizes(write: Writer, node: RuntimeNode, weights: str) -> list[int]:
    """The widths of queries, keys and values."""
    given = [int(size) for size in node.numbers("qkv_hidden_sizes")]
    if given:
        return given
    shape = write.shape(weights)
    if shape is None or len(shape) != 2 or shape[1] % 3:
        raise node.refused("its weights are computed")
    return [shape[1] // 3] * 3


def _attended(write: Writer, node: RuntimeNode, parts: Sequence[str], *, mask: str, bias: str, causal: bool, source: str) -> None:
    """Scores, softmax and the sum of values, for each head.

    :param source: a tensor whose second axis counts the queries
    """
    heads = node.whole("num_heads", 0)
    if heads < 1:
        raise node.refused("the number of its heads is not given")
    by_head = write.whole([0, 0, heads, -1])
    queries, keys, values = (write.node("Reshape", [part, by_head]) for part in parts)
    queries = write.node("Transpose", [queries], perm=[0, 2, 1, 3])
    turned = write.node("Transpose", [keys], perm=[0, 2, 3, 1])
    values = write.node("Transpose", [values], perm=[0, 2, 1, 3])
    scores = _scored(write, node, queries, turned)
    if bias:
        scores = write.node("Add", [scores, bias])
    if mask:
        far = node.number("mask_filter_value", _FAR)
        key = mask, far
        if key not in write.masks:  # all layers of a network have the same
            counts = _counting(write, node, mask, parts[1])
            write.masks[key] = write.node("Where", [counts, write.number(0.0), write.number(far)])
        scores = write.node("Add", [scores, write.masks[key]])
    if causal:
        places = write.counted(write.length(source, 1))
        later = write.node("Less", [write.unsqueezed(places, [1]), write.unsqueezed(places, [0])])
        scores = write.node("Add", [scores, write.node("Where", [later, write.number(_FAR), write.number(0.0)])])
    _mix(write, node, scores, values)


def _scored(write: Writer, node: RuntimeNode, queries: str, turned: str) -> str:
    """Products of queries and keys by the scale of the node, or of their width."""
    scores, scale = write.node("MatMul", [queries, turned]), node.number("scale", 0.0)
    if scale:
        return write.node("Mul", [scores, write.number(scale)])
    width = write.node("Cast", [write.length(queries, 3)], to=onnx().TensorProto.FLOAT)
    return write.node("Div", [scores, write.node("Sqrt", [width])])


def _counting(write: Writer, node: RuntimeNode, mask: str, keys: str) -> str:
    """Which keys count, as truth values that fit the scores: [batch, 1, 1 or queries, keys]."""
    rank = 1 if mask in write.lengths else write.rank(mask)
    if rank == 1:  # how many of the first keys count
        places = write.unsqueezed(write.counted(write.length(keys, 1)), [0])
        lengths = write.node("Cast", [mask], to=onnx().TensorProto.INT64)
        counts = write.node("Less", [places, write.unsqueezed(lengths, [1])])
        return write.unsqueezed(counts, [1, 2])
    if rank not in (None, 2, 3):
        raise node.refused(f"its mask has {rank} axes")
    counts = write.node("Cast", [mask], to=onnx().TensorProto.BOOL)
    return write.unsqueezed(counts, [1] if rank == 3 else [1, 2])


# Positions as angles by which pairs of values are turned, and attention whose queries share keys.


def rotary_embedding(write: Writer, node: RuntimeNode) -> None:
    """RotaryEmbedding: each position turns pairs of values by its own angles."""
    source, rank, tables = node.input(0), write.rank(node.input(0)), (node.input(2), node.input(3))
    if rank not in (3, 4):
        raise node.refused("its input has neither three nor four axes")
    if node.whole("is_packed_batching", 0) or node.number("scale", 1.0) != 1.0:
        raise node.refused("its batches are packed, or it is scaled")
    places, ranked = node.input(1), write.rank(node.input(1))
    axis = 2 if rank == 4 else 1  # of the positions: [batch, heads, positions, values] or [batch, positions, heads * values]
    if ranked == 1:  # the first position
        places = write.unsqueezed(write.node("Add", [write.counted(write.length(source, axis)), places]), [0])
    elif ranked != 2:
        raise node.refused("its positions have neither one nor two axes")
    if rank == 4:
        _rotated(write, node, source, places, axis, tables, node.output(0))
        return
    heads = node.whole("num_heads", 0)
    by_head = write.node(
        "Reshape", [source, write.whole([0, 0, heads, -1] if heads else [0, 0, -1, 2 * _pairs(write, node, tables[0])])]
    )
    write.node("Reshape", [_rotated(write, node, by_head, places, axis, tables), write.whole([0, 0, -1])], node.output(0))


def _pairs(write: Writer, node: RuntimeNode, cosines: str) -> int:
    """How many pairs of values are turned."""
    shape = write.shape(cosines)
    if shape is None or len(shape) != 2:
        raise node.refused("its angles are computed")
    return shape[1]


def _rotated(
    write: Writer, node: RuntimeNode, source: str, places: str, axis: int, tables: tuple[str, str], result: str = ""
) -> str:
    """A tensor of four axes with its pairs turned.

    :param places: positions of each row, [batch, positions]
    :param axis: that of the positions in *source*
    :param tables: cosines and sines, [positions, pairs]
    """
    pairs, width = _pairs(write, node, tables[0]), node.whole("rotary_embedding_dim", 0)
    if width not in (0, 2 * pairs):
        raise node.refused(f"{width} values are turned, and it has angles for {2 * pairs}")
    cosine, sine = (write.unsqueezed(write.node("Gather", [table, places]), [3 - axis]) for table in tables)
    interleaved = node.whole("interleaved", 0) or node.whole("rotary_interleaved", 0)
    order = np.arange(2 * pairs).reshape(pairs, 2).T if interleaved else np.arange(2 * pairs).reshape(2, pairs)
    first, second = (write.node("Gather", [source, write.whole(each.tolist())], axis=3) for each in order)
    parts = [
        write.node("Sub", [write.node("Mul", [first, cosine]), write.node("Mul", [second, sine])]),
        write.node("Add", [write.node("Mul", [second, cosine]), write.node("Mul", [first, sine])]),
    ]
    if interleaved:
        together = write.node("Concat", parts, axis=3)
        parts = [write.node("Gather", [together, write.whole(np.argsort(order.reshape(-1)).tolist())], axis=3)]
    if width:
        ends = [write.whole([number]) for number in (width, np.iinfo(np.int64).max, 3)]
        parts.append(write.node("Slice", [source, *ends]))
    return write.node("Concat", parts, result, axis=3)


def group_query_attention(write: Writer, node: RuntimeNode) -> None:
    """GroupQueryAttention: groups of queries share keys and values, which follow those of earlier runs.

    All earlier keys count, as where they grow by each run. A buffer that is longer than what it holds has no plain form.
    """
    heads, shared = node.whole("num_heads", 0), node.whole("kv_num_heads", 0)
    if shared < 1 or not 0 < heads <= _MAX_HEADS or heads % shared:
        raise node.refused(f"{heads} heads of queries and {shared} of keys")
    if not node.input(5):
        raise node.refused("it does not state how many keys count")
    if node.input(10) or node.input(11) or node.whole("smooth_softmax", 0) == 1 or node.number("softcap", 0.0):
        raise node.refused("it has a bias or a sink, or limits its scores")
    write.only_outputs(node, 0, 1, 2)
    queries, keys, values = (write.node("Transpose", [part], perm=[0, 2, 1, 3]) for part in _by_head(write, node, heads, shared))
    places = write.counted(write.length(queries, 2))
    if node.input(3):
        places = write.node("Add", [places, write.length(node.input(3), 2)])
    if node.whole("do_rotary", 0):
        rows = node.input(9) or write.unsqueezed(places, [0])
        queries, keys = (_rotated(write, node, part, rows, 2, (node.input(7), node.input(8))) for part in (queries, keys))
    kept = [_continued(write, node, part, place) for place, part in ((1, keys), (2, values))]
    repeated = write.whole(np.repeat(np.arange(shared), heads // shared).tolist())
    keys, values = (write.node("Gather", [part, repeated], axis=1) for part in kept)
    scores = _scored(write, node, queries, write.node("Transpose", [keys], perm=[0, 1, 3, 2]))
    _mix(write, node, _limited(write, node, scores, write.unsqueezed(places, [1]), keys), values)


def _by_head(write: Writer, node: RuntimeNode, heads: int, shared: int) -> list[str]:
    """Queries, keys and values, [batch, positions, heads, values]."""
    if node.input(1):
        counts = (heads, shared, shared)
        return [write.node("Reshape", [node.input(index), write.whole([0, 0, count, -1])]) for index, count in enumerate(counts)]
    packed = write.node("Reshape", [node.input(0), write.whole([0, 0, heads + 2 * shared, -1])])
    return write.split(packed, [heads, shared, shared], 2)


def _continued(write: Writer, node: RuntimeNode, part: str, place: int) -> str:
    """Keys or values after those of earlier runs, which the model may give to the next one."""
    past, result = node.input(2 + place), node.output(place)
    if past:
        return write.node("Concat", [past, part], result, axis=2)
    return write.node("Identity", [part], result) if result else part


def _limited(write: Writer, node: RuntimeNode, scores: str, places: str, keys: str) -> str:
    """Scores without those of later keys, of keys before the window, and of keys that do not count.

    :param places: of the queries, [positions, 1]
    """
    others = write.unsqueezed(write.counted(write.length(keys, 2)), [0])
    hidden = [write.node("Less", [places, others])]
    window = node.whole("local_window_size", -1)
    if window > 0:
        hidden.append(write.node("Less", [others, write.node("Add", [places, write.whole([1 - window])])]))
    lengths = write.node("Cast", [node.input(5)], to=onnx().TensorProto.INT64)  # one less than how many count
    hidden.append(write.unsqueezed(write.node("Less", [write.unsqueezed(lengths, [1]), others]), [1, 2]))
    for each in hidden:
        scores = write.node("Add", [scores, write.node("Where", [each, write.number(_FAR), write.number(0.0)])])
    return scores


def _mix(write: Writer, node: RuntimeNode, scores: str, values: str) -> None:
    """The values, weighted by the softmax of the scores."""
    shares = write.node("Softmax", [scores], axis=-1) if write.opset >= 13 else write.node("Softmax", [scores], axis=3)
    mixed = write.node("Transpose", [write.node("MatMul", [shares, values])], perm=[0, 2, 1, 3])
    write.node("Reshape", [mixed, write.whole([0, 0, -1])], node.output(0))


# Weights that onnxruntime packs in blocks of a few bits each, as the real numbers that they stand for.


_BITS = (2, 4, 8)
_HALF_FP4 = (0.0, 0.0052083333, 2.0 / 3.0, 1.0, 1.0 / 3.0, 0.5, 1.0 / 6.0, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The sixteen numbers of a type are between -1 and 1; each block has one factor for them."""


def matmul_blocks(write: Writer, node: RuntimeNode) -> None:
    """MatMulNBits: a product with weights of a few bits, each block of which has a scale and perhaps a zero point."""
    rows, columns, bits, block = (node.whole(name, 0) for name in ("K", "N", "bits", "block_size"))
    packed, scales = write.unpacked(node.input(1)), write.unpacked(node.input(2))
    if packed is None or scales is None:
        raise node.refused("its weights are computed, or not there")
    if bits not in _BITS or block < 1 or rows < 1 or columns < 1:
        raise node.refused(f"weights of {bits} bits in blocks of {block}")
    blocks = -(-rows // block)
    codes = _unpacked(packed, bits, columns * blocks * block).reshape(columns, blocks * block)[:, :rows]
    group = write.unpacked(node.input(4)) if node.input(4) else np.arange(rows) // block
    if group is None or group.shape != (rows,) or group.min() < 0 or group.max() >= blocks:
        raise node.refused("the order of its blocks is computed, or fits nothing")
    factors = _checked(scales.astype(np.float32), columns * blocks).reshape(columns, blocks)
    zeros = _zeros(write, node, node.input(3), bits, columns, blocks)
    weights = (codes.astype(np.float32) - zeros[:, group]) * factors[:, group]
    product = write.node("MatMul", [node.input(0), write.constant(weights.T)], "" if node.input(5) else node.output(0))
    if node.input(5):
        write.node("Add", [product, node.input(5)], node.output(0))


def matmul_tables(write: Writer, node: RuntimeNode) -> None:
    """MatMulBnb4: a product with weights that are places in a table of sixteen numbers."""
    rows, columns, block, kind = (node.whole(name, 0) for name in ("K", "N", "block_size", "quant_type"))
    packed, largest = write.unpacked(node.input(1)), write.unpacked(node.input(2))
    if packed is None or largest is None:
        raise node.refused("its weights are computed, or not there")
    if kind not in (0, 1) or block < 1 or rows < 1 or columns < 1:
        raise node.refused(f"weights of kind {kind} in blocks of {block}")
    table = np.array(_NF4 if kind else (*_HALF_FP4, *(-value for value in _HALF_FP4)), np.float32)
    data = packed.reshape(-1).view(np.uint8)
    count = rows * columns
    places = _checked(np.stack([data >> 4, data & 15], axis=1).reshape(-1), count + count % 2)[:count]
    factors = _checked(largest.astype(np.float32).reshape(-1), -(-count // block))
    weights = (table[places] * np.repeat(factors, block)[:count]).reshape(columns, rows)
    write.node("MatMul", [node.input(0), write.constant(weights.T)], node.output(0))


def gather_blocks(write: Writer, node: RuntimeNode) -> None:
    """GatherBlockQuantized: rows of a table of a few bits."""
    table, scales = write.unpacked(node.input(0)), write.unpacked(node.input(2))
    bits, block, along = node.whole("bits", 4), node.whole("block_size", 128), node.whole("quantize_axis", 1)
    if table is None or scales is None or table.ndim != 2 or along % 2 != 1 or node.whole("gather_axis", 0) % 2 or block < 1:
        raise node.refused("its table is computed, or is not one of rows")
    packed = table.dtype == np.uint8 and bits in (2, 4)
    columns = table.shape[1] * (8 // bits) if packed else table.shape[1]
    codes = _unpacked(table, bits, len(table) * columns).reshape(len(table), columns) if packed else table.astype(np.int64)
    blocks = -(-columns // block)
    group = np.arange(columns) // block
    factors = _checked(scales.astype(np.float32), len(table) * blocks).reshape(len(table), blocks)
    middle = 0 if table.dtype.name.startswith("int") else 1 << (bits - 1)
    if node.input(3):
        given = write.unpacked(node.input(3))
        if given is None:
            raise node.refused("its zero points are computed")
        zeros = _unpacked(given, bits, -1).reshape(len(table), -1)[:, :blocks] if packed else given.reshape(len(table), blocks)
    else:
        zeros = np.full((len(table), blocks), middle)
    values = (codes.astype(np.float32) - zeros.astype(np.float32)[:, group]) * factors[:, group]
    write.node("Gather", [write.constant(values), node.input(1)], node.output(0), axis=0)


def _zeros(write: Writer, node: RuntimeNode, name: str, bits: int, columns: int, blocks: int) -> Array:
    if not name:
        return np.full((columns, blocks), float(1 << (bits - 1)), np.float32)
    given = write.unpacked(name)
    if given is None:
        raise node.refused("its zero points are computed")
    if given.dtype.kind == "f":
        return _checked(given.astype(np.float32), columns * blocks).reshape(columns, blocks)
    per_byte = 8 // bits
    found: Array = _unpacked(given, bits, columns * -(-blocks // per_byte) * per_byte).reshape(columns, -1)[:, :blocks]
    return found.astype(np.float32)


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Quantized values of a few bits, the lowest of a byte first.

    :param count: how many there have to be; -1: as many as there are
    """
    data = packed.reshape(-1).view(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: Array = ((data[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)
    return codes if count < 0 else _checked(codes, count)


def _checked(values: Array, count: int) -> Array:
    if values.size != count:
        raise ValueError(f"{values.size} numbers where {count} belong")
    return values


_MICROSOFT, _BLOCKED = "com.microsoft", "com.microsoft.nchwc"
_OWN = ("", "ai.onnx")
_USUAL = 17
"""The operator set of what is written, where a model uses none of ONNX's."""
_ACTIVATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Relu": ("Relu", ()),
    "Tanh": ("Tanh", ()),
    "Sigmoid": ("Sigmoid", ()),
    "LeakyRelu": ("LeakyRelu", ("alpha",)),
    "HardSigmoid": ("HardSigmoid", ("alpha", "beta")),
}
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _normalized(write: Writer, source: str, scale: str, shift: str, epsilon: float, result: str) -> None:
    """A normalization over the last axis, as the operator set of the model can state it."""
    if write.opset >= 17:
        write.node("LayerNormalization", [source, scale, *([shift] if shift else [])], result, axis=-1, epsilon=epsilon)
        return
    centred = write.node("Sub", [source, write.mean(source)])
    spread = write.node("Sqrt", [write.node("Add", [write.mean(write.node("Mul", [centred, centred])), write.number(epsilon)])])
    scaled = write.node("Mul", [write.node("Div", [centred, spread]), scale], "" if shift else result)
    if shift:
        write.node("Add", [scaled, shift], result)


def _root_mean_square(write: Writer, source: str, scale: str, epsilon: float, result: str) -> None:
    squares = write.node("Add", [write.mean(write.node("Mul", [source, source])), write.number(epsilon)])
    write.node("Mul", [write.node("Div", [source, write.node("Sqrt", [squares])]), scale], result)


def _summed(write: Writer, node: RuntimeNode, bias: int) -> str:
    """The input of a normalization with a residual; the model may read the sum as well."""
    write.only_outputs(node, 0, 3)
    shown = node.output(3)
    if not node.input(bias):
        return write.node("Add", [node.input(0), node.input(1)], shown)
    return write.node("Add", [write.node("Add", [node.input(0), node.input(1)]), node.input(bias)], shown)


def _skip_layer_normalization(write: Writer, node: RuntimeNode) -> None:
    _normalized(write, _summed(write, node, 4), node.input(2), node.input(3), node.number("epsilon", 1e-12), node.output(0))


def _skip_simplified(write: Writer, node: RuntimeNode) -> None:
    _root_mean_square(write, _summed(write, node, 3), node.input(2), node.number("epsilon", 1e-12), node.output(0))


def _simplified(write: Writer, node: RuntimeNode) -> None:
    write.only_outputs(node, 0)
    if node.whole("axis", -1) != -1:
        raise node.refused("it normalizes another axis than the last")
    _root_mean_square(write, node.input(0), node.input(1), node.number("epsilon", 1e-5), node.output(0))


def _layer_normalization(write: Writer, node: RuntimeNode) -> None:
    """onnxruntime has it for older operator sets than ONNX."""
    write.only_outputs(node, 0)
    if node.whole("axis", -1) != -1:
        raise node.refused("it normalizes another axis than the last")
    _normalized(write, node.input(0), node.input(1), node.input(2), node.number("epsilon", 1e-5), node.output(0))


def _embed_layer_normalization(write: Writer, node: RuntimeNode) -> None:
    words = write.node("Gather", [node.input(2), node.input(0)])
    if node.input(8):
        places = write.node("Gather", [node.input(3), node.input(8)])
    else:
        count = write.length(node.input(0), 1)
        places = write.node("Slice", [node.input(3), write.whole([0]), count, write.whole([0])])
    total = write.node("Add", [words, places])
    if node.input(4):
        total = write.node("Add", [total, write.node("Gather", [node.input(4), node.input(1)])])
    if write.is_read(node.output(2)):
        write.node("Identity", [total], node.output(2))
    _normalized(write, total, node.input(5), node.input(6), node.number("epsilon", 1e-12), node.output(0))
    if write.is_read(node.output(1)):
        if not node.input(7):
            raise node.refused("its lengths are read, and it has no mask")
        write.node("Cast", [write.total(node.input(7))], node.output(1), to=onnx().TensorProto.INT32)
        write.lengths.add(node.output(1))


def _gelu(write: Writer, node: RuntimeNode) -> None:
    _error_function_gelu(write, node.input(0), node.output(0))


def _bias_gelu(write: Writer, node: RuntimeNode) -> None:
    _error_function_gelu(write, write.node("Add", [node.input(0), node.input(1)]), node.output(0))


def _error_function_gelu(write: Writer, source: str, result: str) -> None:
    if write.opset >= 20:
        write.node("Gelu", [source], result)
        return
    share = write.node("Erf", [write.node("Div", [source, write.number(math.sqrt(2.0))])])
    write.node("Mul", [write.node("Mul", [source, write.node("Add", [share, write.number(1.0)])]), write.number(0.5)], result)


def _fast_gelu(write: Writer, node: RuntimeNode) -> None:
    source = write.node("Add", [node.input(0), node.input(1)]) if node.input(1) else node.input(0)
    if write.opset >= 20:
        write.node("Gelu", [source], node.output(0), approximate="tanh")
        return
    cube = write.node("Mul", [write.node("Mul", [write.node("Mul", [source, source]), source]), write.number(0.044715)])
    inner = write.node("Mul", [write.node("Add", [source, cube]), write.number(math.sqrt(2.0 / math.pi))])
    share = write.node("Add", [write.node("Tanh", [inner]), write.number(1.0)])
    write.node("Mul", [write.node("Mul", [source, share]), write.number(0.5)], node.output(0))


def _quick_gelu(write: Writer, node: RuntimeNode) -> None:
    source = node.input(0)
    gate = write.node("Sigmoid", [write.node("Mul", [source, write.number(node.number("alpha", 1.702))])])
    write.node("Mul", [source, gate], node.output(0))


def _fused_conv(write: Writer, node: RuntimeNode) -> None:
    """A convolution with a residual and an activation: it would be float as it stands, whatever the model's type."""
    kind = node.text("activation", "")
    added, active = bool(node.input(3)), bool(kind)
    inputs = [node.input(index) for index in range(3 if node.input(2) else 2)]
    last = write.node("Conv", inputs, "" if added or active else node.output(0), **node.given(*_CONV))
    if added:
        last = write.node("Add", [last, node.input(3)], "" if active else node.output(0))
    if not active:
        return
    parameters = node.numbers("activation_params")
    if kind == "Clip" and len(parameters) == 2:
        write.node("Clip", [last, *(write.number(value) for value in parameters)], node.output(0))
    elif kind in _ACTIVATIONS and len(parameters) >= len(_ACTIVATIONS[kind][1]):
        op, names = _ACTIVATIONS[kind]
        write.node(op, [last], node.output(0), **dict(zip(names, parameters, strict=False)))
    else:
        raise node.refused(f"its activation '{kind}' is not known")


def _bias_add(write: Writer, node: RuntimeNode) -> None:
    write.node("Add", [write.node("Add", [node.input(0), node.input(1)]), node.input(2)], node.output(0))


_PLAIN: Mapping[tuple[str, str], Callable[[Writer, RuntimeNode], None]] = {
    ("", "SimplifiedLayerNormalization"): _simplified,
    (_MICROSOFT, "SkipLayerNormalization"): _skip_layer_normalization,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_simplified,
    (_MICROSOFT, "SimplifiedLayerNormalization"): _simplified,
    (_MICROSOFT, "EmbedLayerNormalization"): _embed_layer_normalization,
    (_MICROSOFT, "Gelu"): _gelu,
    (_MICROSOFT, "BiasGelu"): _bias_gelu,
    (_MICROSOFT, "FastGelu"): _fast_gelu,
    (_MICROSOFT, "QuickGelu"): _quick_gelu,
    (_MICROSOFT, "FusedConv"): _fused_conv,
    (_MICROSOFT, "BiasAdd"): _bias_add,
    (_MICROSOFT, "Attention"): attention,
    (_MICROSOFT, "MultiHeadAttention"): multi_head_attention,
    (_MICROSOFT, "QAttention"): quantized_attention,
    (_MICROSOFT, "RotaryEmbedding"): rotary_embedding,
    (_MICROSOFT, "GroupQueryAttention"): group_query_attention,
    (_MICROSOFT, "MatMulNBits"): matmul_blocks,
    (_MICROSOFT, "MatMulBnb4"): matmul_tables,
    (_MICROSOFT, "GatherBlockQuantized"): gather_blocks,
}


def write_plainly(proto: Any, own: Collection[str] = ()) -> None:
    """Write onnxruntime's operators as ONNX's, in place; those whose names are in *own* are the caller's.

    :raises CompileError: one of them is written in a way that has no plain form
    """
    graph = proto.graph
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    opset = versions.get("", versions.get("ai.onnx", _USUAL))
    table = dict(_PLAIN)
    if opset < 17:
        table["", "LayerNormalization"] = _layer_normalization
    known = [(("" if node.domain in _OWN else node.domain), node.op_type) for node in graph.node]
    blocked = next((node for node in graph.node if node.domain == _BLOCKED), None)
    if blocked is not None:
        raise UnsupportedOperatorError(
            "the model was optimized for the processor of the machine that saved it",
            node=blocked.name,
            operator=f"{_BLOCKED}.{blocked.op_type}",
            hint="compile the model as it was before onnxruntime optimized it, or save it with the level ORT_ENABLE_EXTENDED",
        )
    if not any(key in table and key[1] not in own for key in known):
        return
    write = Writer(graph, opset)
    for key, node in zip(known, list(graph.node), strict=True):
        if key not in table or key[1] in own:
            write.keep(node)
            continue
        try:
            table[key](write, write.entered(node))
        except AnynpuError:
            raise
        except (IndexError, TypeError, ValueError, KeyError) as error:
            raise CompileError(
                f"an operator of onnxruntime makes no sense: {error}",
                node=node.name,
                operator=node.op_type,
                hint="export and optimize the model again",
            ) from error
    write.finish()
    if "" not in versions and "ai.onnx" not in versions:
        proto.opset_import.append(onnx().helper.make_opsetid("", _USUAL))
