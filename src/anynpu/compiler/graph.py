"""The compiler's view of an ONNX graph: nodes, constants, and a fixed shape and type for every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._util.optional import onnx
from .._util.types import Array

CUSTOM = "Custom"
"""What stands in ``Node.op`` of every custom operator: no rule for an operator of ONNX is meant for it, even if it has that one's name."""


@dataclass(eq=False)
class Node:
    """One ONNX operator. An absent optional input is the empty string.

    :ivar custom: the type of a custom operator, whose attributes are those of :class:`anynpu.program.Custom`; else empty
    :ivar rewritten: the compiler put it in the place of a reduction or of arithmetic with constants
    :ivar apart: its result has quantized values: it is folded into no other node, and fused to none before it
    """

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    custom: str = ""
    rewritten: bool = False
    apart: bool = False

    @property
    def label(self) -> str:
        """What errors and layer tables call it."""
        return self.name or self.outputs[0]

    def attribute(self, key: str, default: Any = None) -> Any:
        """An attribute, or *default*; strings arrive as text."""
        value = self.attributes.get(key, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


@dataclass(eq=False)
class Graph:
    """Nodes in topological order, with every shape known.

    :ivar coded: inputs and outputs of the model that are quantized values, whatever computes them
    :ivar rounded: tensors that a quantized model rounds to quantized values: what makes them and what reads them stay two nodes
    """

    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]
    constants: dict[str, Array]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype[Any]]
    opsets: dict[str, int]
    ir_version: int = 8
    source_nodes: int = 0
    coded: frozenset[str] = frozenset()
    rounded: frozenset[str] = frozenset()

    @property
    def opset(self) -> int:
        return self.opsets.get("", 1)

    def producers(self) -> dict[str, Node]:
        """Which node makes each tensor."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """Which nodes read each tensor; a node that reads it twice is there twice."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    readers.setdefault(name, []).append(node)
        return readers

    def constant(self, name: str) -> Array | None:
        """The value of a constant tensor, or None."""
        return self.constants.get(name)

    def number(self, name: str) -> float | None:
        """The value of a constant tensor of one element, or None."""
        value = self.constants.get(name)
        return float(value.reshape(())) if value is not None and value.size == 1 else None

    def is_visible(self, name: str) -> bool:
        """Whether a tensor has to exist: as an output of the model, or since a quantized model rounds it."""
        return name in self.outputs or name in self.rounded

    def rank(self, name: str) -> int:
        return len(self.shapes[name])

    def is_float(self, name: str) -> bool:
        return self.dtypes[name] == np.float32

    def free_name(self, name: str) -> str:
        """*name*, or with a number after it where there is such a tensor already."""
        free, count = name, 0
        while free in self.shapes:
            count += 1
            free = f"{name}.{count}"
        return free

    def add_constant(self, name: str, value: Array) -> str:
        """Add a constant under a name that is still free, and return that name."""
        free = self.free_name(name)
        self.constants[free] = value
        self.shapes[free] = tuple(value.shape)
        self.dtypes[free] = value.dtype
        return free

    def remove_unused(self) -> None:
        """Drop nodes whose results are not read, and the constants of such nodes."""
        needed = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if any(output in needed for output in node.outputs):
                kept.append(node)
                needed.update(name for name in node.inputs if name)
        self.nodes = kept[::-1]
        self.constants = {name: value for name, value in self.constants.items() if name in needed}

    def rename_input(self, old: str, new: str) -> None:
        """Let every reader of *old* read *new*."""
        for node in self.nodes:
            node.inputs = [new if name == old else name for name in node.inputs]


def element_type(dtype: np.dtype[Any]) -> int:
    """The ONNX number of a numpy type."""
    helper = onnx().helper
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def external_tensor(name: str, value: Array) -> Any:
    """A constant without its data: the caller that makes a session of the model passes the data by name."""
    package = onnx()
    proto = package.TensorProto(name=name, data_type=element_type(value.dtype), dims=value.shape)
    proto.data_location = package.TensorProto.EXTERNAL
    for key, text in (("location", "weights"), ("offset", "0"), ("length", str(value.nbytes))):
        proto.external_data.add(key=key, value=text)
    return proto


def _node_proto(node: Node) -> Any:
    package = onnx()
    proto = package.helper.make_node(node.op, node.inputs, node.outputs, name=node.name or None, domain=node.domain or None)
    for key, value in node.attributes.items():
        kind = package.AttributeProto.INTS if value == [] else None  # the type of an empty list cannot be determined from it
        proto.attribute.append(package.helper.make_attribute(key, value, attr_type=kind))
    return proto


def to_onnx(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Iterable[str],
    outputs: Iterable[str],
    *,
    initializer: Callable[[str, Array], Any] | None = None,
    name: str = "anynpu",
) -> Any:
    """An ONNX model of some nodes of *graph*; tensors keep their names.

    *initializer* turns a constant into a TensorProto (None to leave it out); by default its value is stored inline.
    """
    helper, numpy_helper = onnx().helper, onnx().numpy_helper
    protos = [_node_proto(node) for node in nodes]
    used: dict[str, None] = {name: None for node in nodes for name in node.inputs if name in graph.constants}
    tensors = []
    for constant in used:
        value = graph.constants[constant]
        proto = initializer(constant, value) if initializer else numpy_helper.from_array(value, constant)
        if proto is not None:
            tensors.append(proto)

    def info(tensor: str) -> Any:
        return helper.make_tensor_value_info(tensor, element_type(graph.dtypes[tensor]), graph.shapes[tensor])

    made = helper.make_graph(protos, name, [info(tensor) for tensor in inputs], [info(tensor) for tensor in outputs], tensors)
    imports = [helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    return helper.make_model(made, opset_imports=imports, ir_version=max(graph.ir_version, 4))
