"""The end of a model that no NPU can run: operators whose result has a shape that depends on the data, and all that follows them.

Detectors are often exported with NonMaxSuppression. Such a tail is taken off: the compiled model ends in the tensors that the tail reads
(boxes and scores), and the tail is an ONNX model of its own, which the host computes with onnxruntime: :class:`Tail`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._optional import onnx, onnxruntime
from ..errors import CompileError, FeedNameError
from ..modelfile import CompiledModel
from ..types import Array
from .custom import DOMAIN as CUSTOM_DOMAIN
from .onnx_model import first_line

__all__ = ["CUT", "KEEP", "SHAPE_FROM_DATA", "ModelWithTail", "Tail", "split_tail", "tail_path"]

KEEP, CUT = "keep", "cut"

SHAPE_FROM_DATA = frozenset(("NonZero", "NonMaxSuppression", "Compress", "Unique", "StringNormalizer", "TfIdfVectorizer"))
"""Operators of ONNX whose result has as many elements as the data says."""

_NETWORK = ("Conv", "ConvTranspose", "Gemm", "LSTM", "GRU", "RNN", "Attention", "QLinearConv", "ConvInteger")
"""What a tail does not have: with it, the data-dependent operator stands in the middle of the network."""


def tail_path(path: str | os.PathLike[str]) -> Path:
    """Where the tail of a model file lies.

    >>> tail_path("yolo.rknn").name
    'yolo.tail.onnx'
    """
    return Path(path).with_suffix(".tail.onnx")


@dataclass(frozen=True, eq=False)
class ModelWithTail(CompiledModel):
    """A compiled model whose last operators run on the host.

    :ivar tail: these operators as an ONNX model; :class:`Tail` runs them

    >>> model = anynpu.compile("yolo-nms.onnx", target="rk3588", dtype="fp16")    # doctest: +SKIP
    >>> model.save("yolo.rknn")                                                  # doctest: +SKIP
    """

    tail: bytes = b""

    def save(self, path: str | os.PathLike[str], *, remove_weight: bool = False) -> Path:
        """Write the model file, and the tail beside it (:func:`tail_path`); the path of the first is returned."""
        written = super().save(path, remove_weight=remove_weight)
        tail_path(written).write_bytes(self.tail)
        return written


class Tail:
    """The last operators of a model, computed on the host by onnxruntime.

    :param model: the path of a ``.tail.onnx`` or of the compiled model beside it; its bytes; or a compiled model that has a tail
    :ivar inputs: what it reads, by name: outputs of the compiled model
    :ivar outputs: what it makes: the outputs that the ONNX model had

    >>> tail = Tail("yolo.rknn")                                                 # doctest: +SKIP
    >>> (selected,) = tail.run(dict(zip(names, session.run(None, feed))))        # doctest: +SKIP
    """

    def __init__(self, model: str | os.PathLike[str] | bytes | ModelWithTail) -> None:
        runtime = onnxruntime()
        if isinstance(model, ModelWithTail):
            data = model.tail
        elif isinstance(model, bytes):
            data = model
        else:
            path = Path(model)
            path = path if path.name.endswith(".tail.onnx") else tail_path(path)
            if not path.is_file():
                raise CompileError(f"there is no file {path}", hint="compile writes it beside a model that has a tail")
            data = path.read_bytes()
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exception classes are private
            raise CompileError(f"this is no tail of a model: {first_line(error)}", hint="compile the model again") from error
        self.inputs = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs = tuple(entry.name for entry in self._session.get_outputs())
        self._types: dict[str, np.dtype[Any]] = {
            entry.name: _TYPES.get(entry.type, np.dtype(np.float32)) for entry in self._session.get_inputs()
        }

    def run(self, values: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None) -> list[Array]:
        """The outputs of the whole model, from outputs of the compiled one by name (others may be among them).

        :param outputs: those wanted, in this order; all of the tail's if not given. One that the compiled model makes itself is passed on
        """
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise FeedNameError(f"the tail reads '{missing[0]}', which is not given", hint=f"it reads: {', '.join(self.inputs)}")
        feed = {name: np.asarray(values[name], self._types[name]) for name in self.inputs}
        made = dict(zip(self.outputs, self._session.run(None, feed), strict=True))
        given = {name: np.asarray(value) for name, value in values.items() if name not in made} if outputs else {}
        try:
            return [{**given, **made}[name] for name in (outputs or self.outputs)]
        except KeyError as error:
            raise FeedNameError(f"there is no output {error}", hint=f"the tail makes: {', '.join(self.outputs)}") from None


_TYPES: Mapping[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(bool)": np.dtype(np.bool_),
    "tensor(uint8)": np.dtype(np.uint8),
}


def split_tail(proto: Any) -> tuple[Any, bytes, str]:
    """A checked model without its tail, the tail as an ONNX file, and what to say about it; empty ones where there is none.

    The model that is given stays as it is. What stands in the middle of a network is no tail: the importer refuses it.
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
    inputs = {value.name for value in graph.input}
    if all(name in inputs for name in border):
        return proto, b"", ""  # nothing of it would be left for an NPU
    types = _types(proto, border)
    outputs = [value for value in graph.output if value.name in made_here]
    whole = [*fixed_nodes, *nodes]
    tail = _model(proto, whole, [types[name] for name in border], outputs, f"{graph.name}.tail")
    kept = [value for value in graph.output if value.name not in made_here]
    rest = [node for node in graph.node if node not in nodes]
    known = {value.name for value in kept}
    ends = [*kept, *(types[name] for name in border if name not in known and name not in inputs)]
    head = _model(proto, rest, list(graph.input), ends, graph.name, whole=True)
    text = (
        f"{_listed(node.op_type for node in start)} at the end runs on the host: the model ends in "
        f"{_listed(value.name for value in ends)}, and anynpu.compiler.Tail computes {_listed(value.name for value in outputs)}"
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
    inferred = package.shape_inference.infer_shapes(proto)
    known = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)}
    real = package.TensorProto.FLOAT
    return {
        name: known[name]
        if name in known and known[name].type.tensor_type.elem_type
        else package.helper.make_tensor_value_info(name, real, None)
        for name in names
    }


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
