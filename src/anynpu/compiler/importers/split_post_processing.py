"""The end of a model that no NPU can run: operators whose result has a shape that depends on the data, and all that follows them.

Detectors are often exported with NonMaxSuppression. Such a tail is taken off: the compiled model ends in the tensors that the tail reads
(boxes and scores), and the tail is an ONNX model of its own, which the host computes: :class:`anynpu.modelfile.post_processing.Tail`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._util.optional import onnx
from ..._util.output_files import write_output
from ...modelfile import CompiledModel
from ...modelfile.post_processing import ORDER, tail_path
from ..custom_operators import DOMAIN as CUSTOM_DOMAIN

KEEP, CUT = "keep", "cut"

SHAPE_FROM_DATA = frozenset(("NonZero", "NonMaxSuppression", "Compress", "Unique", "StringNormalizer", "TfIdfVectorizer"))
"""Operators of ONNX whose result has as many elements as the data states."""

_NETWORK = ("Conv", "ConvTranspose", "Gemm", "LSTM", "GRU", "RNN", "Attention", "QLinearConv", "ConvInteger")
"""What a tail does not have: with it, the data-dependent operator stands in the middle of the network."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelWithTail(CompiledModel):
    """A compiled model whose last operators run on the host.

    :ivar tail: these operators as an ONNX model; :class:`anynpu.modelfile.post_processing.Tail` runs them

    >>> model = anynpu.compile("yolo-nms.onnx", target="rk3588", dtype="fp16")    # doctest: +SKIP
    >>> model.save("yolo.rknn")                                                  # doctest: +SKIP
    """

    tail: bytes = b""

    def save(self, path: str | os.PathLike[str], *, remove_weight: bool = False) -> Path:
        """Write the model file, and the tail beside it (:func:`tail_path`); the path of the first is returned."""
        written = super().save(path, remove_weight=remove_weight)
        write_output(tail_path(written), self.tail)
        return written


def split_tail(proto: Any) -> tuple[Any, bytes, str]:
    """A checked model without its tail, the tail as an ONNX file, and what to state about it; empty ones where there is none.

    The model that is given stays as it is. What stands in the middle of a network is no tail: the importer rejects it.
    """
    graph = proto.graph
    start = _data_dependent(graph)
    if not start:
        return proto, b"", ""
    nodes = _following(graph, start)
    if any(node.op_type in _NETWORK for node in nodes) or any(node.domain == CUSTOM_DOMAIN for node in nodes):
        return proto, b"", ""
    fixed = _from_constants(graph)
    made_here = {name for node in nodes for name in node.output}
    fixed_nodes = [node for node in graph.node if set(node.output) & fixed and node not in nodes]
    read = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in made_here))
    constants = {tensor.name for tensor in graph.initializer}
    border = [name for name in read if name not in fixed and name not in constants]
    types = _types(proto, border)
    inputs = {value.name for value in graph.input}
    # what the tail reads of the model's inputs goes through the device: a session knows what the device gives, and nothing else
    copies = {name: f"{name}.copy" for name in border if name in inputs}
    border = [copies.get(name, name) for name in border]
    types.update({new: _named(types[old], new) for old, new in copies.items()})
    nodes, following = [_reading(node, copies) for node in nodes], nodes
    outputs = [value for value in graph.output if value.name in made_here]
    whole = [*fixed_nodes, *nodes]
    tail = _model(proto, whole, [types[name] for name in border], outputs, f"{graph.name}.tail")
    tail.metadata_props.add(key=ORDER, value="\n".join(value.name for value in graph.output))
    kept = [value for value in graph.output if value.name not in made_here]
    rest = [node for node in graph.node if node not in following]
    rest += [onnx().helper.make_node("Identity", [old], [new]) for old, new in copies.items()]
    known = {value.name for value in kept}
    ends = [*kept, *(types[name] for name in border if name not in known)]
    head = _model(proto, rest, list(graph.input), ends, graph.name, whole=True)
    text = (
        f"{_listed(node.op_type for node in start)} at the end runs on the host: the model ends in "
        f"{_listed(value.name for value in ends)}, and sessions compute {_listed(value.name for value in outputs)} from that"
    )
    return head, tail.SerializeToString(), text


def _data_dependent(graph: Any) -> list[Any]:
    """Nodes whose result has a shape that depends on the data; what is computed from constants does not."""
    fixed = _from_constants(graph, shapes=True)
    return [
        node
        for node in graph.node
        if node.op_type in SHAPE_FROM_DATA and node.domain in ("", "ai.onnx") and not set(node.output) <= fixed
    ]


def _from_constants(graph: Any, *, shapes: bool = False) -> set[str]:
    """Tensors that depend on constants alone, or with *shapes* on constants and shapes."""
    known = {tensor.name for tensor in graph.initializer}
    found: set[str] = set()
    for node in graph.node:
        if all(not name or name in known for name in node.input) or (shapes and node.op_type in ("Shape", "Size")):
            known.update(node.output)
            found.update(node.output)
    return found


def _following(graph: Any, start: Sequence[Any]) -> list[Any]:
    """The nodes of *start* and all that depend on them, in order."""
    behind: set[str] = set()
    found = []
    for node in graph.node:
        if node in start or not behind.isdisjoint(node.input):
            found.append(node)
            behind.update(node.output)
    return found


def _types(proto: Any, names: Iterable[str]) -> dict[str, Any]:
    """What is known of the types of tensors."""
    package = onnx()
    try:
        inferred = package.shape_inference.infer_shapes(proto)
    except Exception:  # raised from C++ with several types; the importer states what is wrong with the model
        inferred = proto
    known = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)}
    real = package.TensorProto.FLOAT
    return {
        name: known[name]
        if name in known and known[name].type.tensor_type.elem_type
        else package.helper.make_tensor_value_info(name, real, None)
        for name in names
    }


def _named(value: Any, name: str) -> Any:
    copy = type(value)()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _reading(node: Any, names: Mapping[str, str]) -> Any:
    """The node, reading tensors under their new names."""
    if names.keys().isdisjoint(node.input):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    return copy


def _model(
    proto: Any, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], name: str, *, whole: bool = False
) -> Any:
    helper = onnx().helper
    read = {entry for node in nodes for entry in node.input}
    tensors = [tensor for tensor in proto.graph.initializer if whole or tensor.name in read]
    made = helper.make_model(helper.make_graph(nodes, name, inputs, outputs, tensors))
    if whole:
        copy = type(proto)()
        copy.CopyFrom(proto)
        copy.graph.CopyFrom(made.graph)
        return copy
    del made.opset_import[:]
    made.opset_import.extend(proto.opset_import)
    made.ir_version = max(4, min(int(proto.ir_version), 10))
    return made


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(f"'{name}'" for name in names))
