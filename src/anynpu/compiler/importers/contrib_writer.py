"""A graph of ONNX in which operators of onnxruntime are written plainly: what all of them need for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import UnsupportedOperatorError

__all__ = ["RuntimeNode", "Writer"]

_SAME_RANK = {"Add", "Cast", "Gelu", "Identity", "LayerNormalization", "MatMul", "MatMulNBits", "Relu", "Softmax"}
"""Operators whose result has as many axes as their first input, as networks write them."""
_OF_THREE = {
    "Attention",
    "EmbedLayerNormalization",
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
        """An error that says what is in the way."""
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
        """The number of axes of a tensor, where the model or the nodes before it tell."""
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
        """Refuse an operator of which results at other places are read."""
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
        """The extent of one axis, as a list of one number."""
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
