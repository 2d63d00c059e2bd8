"""The end of a model that the host computes, beside the file of the compiled model.

A compiled model ends where operators begin whose results have as many elements as the data states, such as NonMaxSuppression.
What follows is an ONNX model of its own, ``yolo.tail.onnx`` beside ``yolo.rknn``, which onnxruntime computes. The compiler
writes it, sessions run it.

Such a file may come from a stranger, as the model may, and onnxruntime does what an ONNX file states: it reads the files that it names, and
a loop ends when the file likes. So a tail is first held against what the compiler writes, and onnxruntime gets what was looked at.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._util.optional import max_tensor_bytes, onnx, onnxruntime, ort_session
from .._util.types import Array
from ..errors import CompileError, DeviceError, DeviceTimeout, FeedNameError
from ..tensor import DType, TensorSpec

ORDER = "anynpu.outputs"
"""The entry of a tail's metadata that names the outputs of the whole model in their order, one per line."""

MAX_NODES = 10_000
"""Operators of a tail, with those of its branches; one has some dozens."""

MAX_ELEMENTS = 1 << 26
"""Of one constant of a tail."""

MAX_PROPAGATED = 32
"""Elements of a one-dimensional tensor whose values shape inference follows: twice the 16 numbers of a Pad with eight axes."""

_MAX_ROUNDS = 32
_PROPAGATING = frozenset(("Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"))
"""Operators through which onnx follows values. It allocates about 100 bytes for each element of a one-dimensional tensor that they read."""
_FUNCTIONS = frozenset(("GreaterOrEqual", "GroupNormalization", "LessOrEqual", "MeanVarianceNormalization"))
"""Operators whose shapes onnx infers from a function body, which may contain the operators above."""
_SIZES_ALONE = frozenset(("Shape", "Size"))
"""Operators that read the shape of their input and not its values."""

_MAX_DEPTH = 8
_DOMAINS = ("", "ai.onnx")
_BRANCH = "If"
"""The one operator of a tail that holds graphs: each of them runs once at most."""

_TYPES: Mapping[str, DType] = {
    "tensor(float)": DType.FLOAT32,
    "tensor(float16)": DType.FLOAT16,
    "tensor(int64)": DType.INT64,
    "tensor(int32)": DType.INT32,
    "tensor(bool)": DType.BOOL,
    "tensor(uint8)": DType.UINT8,
    "tensor(int8)": DType.INT8,
}


def tail_path(path: str | os.PathLike[str]) -> Path:
    """Where the tail of a model file lies.

    >>> tail_path("yolo.rknn").name
    'yolo.tail.onnx'
    """
    return Path(path).with_suffix(".tail.onnx")


def checked_tail(data: bytes) -> bytes:
    """A tail as onnxruntime may have it; rejected if it has what no compiler of ours would write.

    That is: tensors that lie in files or elsewhere in memory, functions, loops, operators of others than ONNX.

    :raises CompileError: it has, or it is no ONNX model
    """
    from google.protobuf.message import DecodeError

    proto = onnx().ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError):
        raise CompileError(
            "this is no post-processing file of a model: it is not an ONNX file", hint="compile the model again"
        ) from None
    _require(not proto.functions and not proto.training_info, "it has functions")
    nodes = 0
    for graph in _graphs(proto.graph, 0):
        nodes += len(graph.node)
        _require(nodes <= MAX_NODES, f"it has more than {MAX_NODES} operators")
        _require(not graph.sparse_initializer, "it has sparse tensors")
        for tensor in _tensors(graph):
            inside = tensor.data_location == tensor.DEFAULT and not tensor.external_data
            _require(inside, f"its tensor '{tensor.name!s:.80}' lies elsewhere")
            _require(0 <= _elements(tensor.dims) <= MAX_ELEMENTS, f"its tensor '{tensor.name!s:.80}' is too large")
    _check_sizes(proto)
    proto.DiscardUnknownFields()  # what this reader does not know, another may
    return bytes(proto.SerializeToString())


def _check_sizes(proto: Any) -> None:
    """Reject tensors that take seconds to fill: onnxruntime cannot be stopped inside an operator."""
    limit = max_tensor_bytes()

    def check(inferred: Any) -> None:
        for graph in _graphs(inferred.graph, 0):
            for value in (*graph.input, *graph.value_info, *graph.output):
                elements = math.prod(entry.dim_value for entry in value.type.tensor_type.shape.dim if entry.dim_value > 0)
                _require(4 * elements <= limit, f"its tensor '{value.name!s:.80}' takes more than {limit >> 20} MB")

    try:
        infer_shapes(proto, check)
        if any(node.op_type == _BRANCH for node in proto.graph.node):
            infer_shapes(_flattened(proto), check)  # onnx follows no values from outside into a branch
    except CompileError:
        raise
    except Exception as error:  # raised from C++ with several types
        text = str(error).strip().partition("\n")[0][:400]
        raise CompileError(f"this is no post-processing file of a model: {text}", hint="compile the model again") from None


def _flattened(proto: Any) -> Any:
    """The model with the operators of all branches in one graph, for shape inference alone: it computes something else."""
    flat = onnx().ModelProto()
    flat.CopyFrom(proto)
    del flat.graph.node[:]
    count = 0

    def spread(graph: Any, names: Mapping[str, str]) -> None:
        nonlocal count
        for node in graph.node:
            branches = [entry.g for entry in node.attribute if entry.HasField("g")]
            for branch in branches:
                count += 1
                made = [*(tensor.name for tensor in branch.initializer), *(name for each in branch.node for name in each.output)]
                inner = {**names, **{name: f"{name}/{count}" for name in made if name}}
                for tensor in branch.initializer:
                    flat.graph.initializer.add().CopyFrom(tensor)
                    flat.graph.initializer[-1].name = inner[tensor.name]
                spread(branch, inner)
            if not branches:
                copy = flat.graph.node.add()
                copy.CopyFrom(node)
                for ends in (copy.input, copy.output):
                    ends[:] = [names.get(name, name) for name in ends]
                continue
            # what reads the result of a branch reads that of the last one
            last = {
                name: inner.get(value.name, value.name) for name, value in zip(node.output, branches[-1].output, strict=False)
            }
            for name, source in last.items():
                flat.graph.node.add(op_type="Identity", input=[source], output=[names.get(name, name)])

    spread(proto.graph, {})
    return flat


def infer_shapes(proto: Any, check: Callable[[Any], None]) -> Any:
    """The model with the shapes that onnx infers, also from values where they are those of small tensors.

    With ``data_prop``, onnx keeps an entry for each element of a one-dimensional tensor, so a few nodes can take all memory. It therefore
    runs without the nodes that read a tensor of more than :data:`MAX_PROPAGATED` elements, or one whose rank or size is not inferred yet.
    Their shapes are inferred without values, which may allow more nodes in the next round.

    :param check: called with each inferred model; raises for tensors that are too large
    """
    package = onnx()

    def inferred(model: Any, values: bool) -> Any:
        found = package.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=values)
        check(found)
        return found

    known = inferred(proto, False)
    for _ in range(_MAX_ROUNDS):
        shapes = _known_shapes(known.graph)
        if all(None not in shapes.get(name, (None,)) for node in known.graph.node for name in node.output if name):
            break
        nodes = [node for node in known.graph.node if not _expands(node, shapes)]
        whole = len(nodes) == len(known.graph.node)
        part = known
        if not whole:
            part = package.ModelProto()
            part.CopyFrom(known)
            del part.graph.node[:]
            part.graph.node.extend(nodes)
        learned = inferred(part, True)
        if whole:
            return learned
        del known.graph.value_info[:], known.graph.output[:]
        known.graph.value_info.extend(learned.graph.value_info)
        known.graph.output.extend(learned.graph.output)
        known = inferred(known, False)
        if _known_shapes(known.graph) == shapes:
            break
    return known


def _known_shapes(graph: Any) -> dict[str, tuple[int | None, ...]]:
    """Shapes by name, None for dimensions that are not known; tensors of unknown rank are missing."""
    found: dict[str, tuple[int | None, ...]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            found[value.name] = tuple(entry.dim_value if entry.HasField("dim_value") else None for entry in kind.shape.dim)
    found.update({tensor.name: tuple(tensor.dims) for tensor in graph.initializer})
    return found


def _expands(node: Any, shapes: Mapping[str, tuple[int | None, ...]]) -> bool:
    """Whether following values through a node may take much memory."""
    if (node.domain in _DOMAINS and node.op_type not in _PROPAGATING | _FUNCTIONS) or node.op_type in _SIZES_ALONE:
        return False
    for name in node.input:
        shape = shapes.get(name, (None,)) if name else ()
        if len(shape) == 1 and (shape[0] is None or shape[0] > MAX_PROPAGATED):
            return True
    return False


def _graphs(graph: Any, depth: int) -> Iterator[Any]:
    """The graph and those of its branches."""
    _require(depth <= _MAX_DEPTH, "it has branches in branches")
    yield graph
    for node in graph.node:
        _require(node.domain in _DOMAINS, f"'{node.op_type!s:.80}' is no operator of ONNX")
        for entry in node.attribute:
            _require(not entry.HasField("sparse_tensor") and not entry.sparse_tensors, "it has sparse tensors")
            held = [*([entry.g] if entry.HasField("g") else ()), *entry.graphs]
            _require(not held or node.op_type == _BRANCH, f"'{node.op_type!s:.80}' may run for ever")
            for inner in held:
                yield from _graphs(inner, depth + 1)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for entry in node.attribute:
            yield from ([entry.t] if entry.HasField("t") else ())
            yield from entry.tensors


def _elements(dims: Iterable[int]) -> int:
    extents = list(dims)
    return -1 if len(extents) > 64 or any(extent < 0 for extent in extents) else math.prod(extents)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise CompileError(
            f"this is no post-processing file of a model: {reason}", hint="compile the model again; do not trust the file"
        )


class Tail:
    """The last operators of a model, computed on the host by onnxruntime. Several threads may run it at once.

    :param model: the path of a ``.tail.onnx`` or of the compiled model beside it; its bytes; or a compiled model that has a tail
    :ivar inputs: what it reads, by name: outputs of the compiled model
    :ivar outputs: what it makes
    :ivar order: the outputs that the ONNX model had, in their order; those that are not in *outputs* the compiled model makes itself

    >>> tail = Tail("yolo.rknn")                                                 # doctest: +SKIP
    >>> (selected,) = tail.run({"boxes": boxes, "scores": scores})               # doctest: +SKIP
    """

    def __init__(self, model: Any) -> None:
        runtime = onnxruntime()
        data = getattr(model, "tail", model)
        if not isinstance(data, bytes):
            path = Path(data)
            path = path if path.name.endswith(".tail.onnx") else tail_path(path)
            if not path.is_file():
                raise CompileError(f"there is no file {path}", hint="compile writes it next to a model with host post-processing")
            data = path.read_bytes()
        data = checked_tail(data)
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        # there is nothing to find on the disk: should something be missed above, this is an empty file
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        try:
            self._session = ort_session(data, options)
        except Exception as error:  # onnxruntime's exception classes are private
            text = str(error).strip().partition("\n")[0][:400]
            raise CompileError(f"this is no post-processing file of a model: {text}", hint="compile the model again") from error
        for entry in (*self._session.get_inputs(), *self._session.get_outputs()):
            _require(
                entry.type.startswith("tensor(") and entry.type != "tensor(string)", f"'{entry.name:.80}' is {entry.type:.80}"
            )
        self.inputs = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs = tuple(entry.name for entry in self._session.get_outputs())
        entries = self._session.get_modelmeta().custom_metadata_map
        self.order = tuple(entries[ORDER].split("\n")) if entries.get(ORDER) else self.outputs
        self._kinds = {entry.name: _TYPES.get(entry.type, DType.FLOAT32) for entry in self._session.get_inputs()}
        self._specs = {
            entry.name: TensorSpec(
                entry.name,
                tuple(extent if isinstance(extent, int) else -1 for extent in entry.shape),
                _TYPES.get(entry.type, DType.FLOAT32),
            )
            for entry in self._session.get_outputs()
        }

    def spec(self, name: str) -> TensorSpec:
        """What is known of an output; a size of -1 depends on the data."""
        return self._specs[name]

    def input_type(self, name: str) -> np.dtype[Any]:
        """The type in which it reads an output of the compiled model."""
        found: np.dtype[Any] = np.dtype(self._kinds[name].storage)
        return found

    def run(
        self, values: Mapping[str, npt.ArrayLike], outputs: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[Array]:
        """The outputs of the whole model, from outputs of the compiled one by name.

        :param outputs: those wanted, in this order; all of the tail's own if not given
        :param timeout: seconds after which it stops, between two operators
        :raises DeviceTimeout: it took longer
        """
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise FeedNameError(
                f"host post-processing reads '{missing[0]}', which is not given", hint=f"it reads: {', '.join(self.inputs)}"
            )
        feed = {name: np.ascontiguousarray(values[name], self.input_type(name)) for name in self.inputs}
        made = dict(zip(self.outputs, self._computed(feed, timeout), strict=True))
        found = []
        for name in outputs or self.outputs:
            if name not in made and name not in values:
                raise FeedNameError(
                    f"there is no output '{name}'", hint=f"the host post-processing makes: {', '.join(self.outputs)}"
                )
            found.append(made[name] if name in made else np.asarray(values[name]))
        return found

    def _computed(self, feed: Mapping[str, Array], timeout: float | None) -> list[Array]:
        options = onnxruntime().RunOptions()
        options.log_severity_level = 4
        late = threading.Event()

        def stop() -> None:
            late.set()
            options.terminate = True

        timer = None if timeout is None else threading.Timer(timeout, stop)
        if timer is not None:
            timer.start()
        try:
            return list(self._session.run(None, feed, options))
        except Exception as error:  # onnxruntime's exception classes are private
            if late.is_set():
                raise DeviceTimeout(
                    f"the host post-processing did not finish within {timeout:g} s", hint="give it more time"
                ) from None
            raise DeviceError(
                f"the host post-processing failed in onnxruntime: {str(error).strip()[:400]}", hint="compile the model again"
            ) from None
        finally:
            if timer is not None:
                timer.cancel()
