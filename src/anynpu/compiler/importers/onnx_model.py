"""ONNX models from a file, bytes, a ModelProto or another framework: read once, within limits, and checked."""

from __future__ import annotations

import importlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError
from ...modelfile.recognize import name_content
from ...vendors import registry
from ..custom_operators import CustomOperators, mark_custom
from ..graph import external_tensor
from . import as_onnx, takes_examples
from .contrib_operators import write_plainly

# How much an ONNX model may ask for, before any library looks at it.
#
# A file of two kilobytes can stand for more work than a machine will ever do: functions that call functions, subgraphs in
# subgraphs, tensors of which only the shape is written down. Libraries expand all that without asking, so it is counted here
# first, without expanding it. The bounds are far above what networks for these chips have.


MAX_NODES = 100_000
"""Nodes, those in functions counted at every place that calls them."""
MAX_TENSORS = 500_000
"""Inputs and outputs of nodes, counted in the same way."""
MAX_OUTPUTS = 4096
"""Outputs of one node: onnxruntime's time grows with their square."""
MAX_DEPTH = 64
"""Subgraphs inside subgraphs, and functions that call functions."""
MAX_FUNCTIONS = 20_000
MAX_NAME = 65_536
"""Characters of a name or another text."""
MAX_CONSTANT = 1 << 30
"""Elements of one constant, and of all that are written down by less than their values (sparse ones)."""

_HINT = "export the model again; no chip of the catalogue can run one of that size"

Key = tuple[str, str]
Size = tuple[int, int, int]
"""Nodes, tensors, and how deep functions call functions."""


def check_bounds(proto: Any, *, complete: bool = True) -> None:
    """Reject a model that stands for too much; reads each part of the file once.

    :param complete: the model must hold its weights: what still lies elsewhere is rejected, because a library that is handed the model
        would read whatever file or memory it names
    """
    _Count(proto, complete).check()


class _Count:
    """Adds up what a model stands for.

    Sizes of functions are found once each, callees first, so that the work is that of reading the file.
    """

    def __init__(self, proto: Any, complete: bool = True) -> None:
        self._proto = proto
        self._complete = complete
        self._sparse = 0
        self._functions: dict[Key, Any] = {}
        self._sizes: dict[Key, Size] = {}

    def check(self) -> None:
        functions = self._proto.functions
        _require(len(functions) <= MAX_FUNCTIONS, f"{len(functions)} functions", MAX_FUNCTIONS)
        for function in functions:
            self._functions[_domain(function.domain), function.name] = function
        for key in self._functions:
            self._size_of(key, ())
        self._graph(self._proto.graph, 0, ())

    def _size_of(self, key: Key, callers: tuple[Key, ...]) -> Size:
        """What a call of a function stands for."""
        if key in self._sizes:
            return self._sizes[key]
        if key in callers:
            raise CompileError(f"the function '{key[1][:80]}' of the model calls itself", hint="export the model again")
        _require(len(callers) <= MAX_DEPTH, "functions that call functions", MAX_DEPTH)
        nodes, tensors, depth = self._nodes(self._functions[key].node, 0, (*callers, key))
        _require(depth < MAX_DEPTH, "functions that call functions", MAX_DEPTH)
        size = self._sizes[key] = (nodes, tensors, depth + 1)
        return size

    def _graph(self, graph: Any, depth: int, callers: tuple[Key, ...]) -> Size:
        _require(depth <= MAX_DEPTH, "graphs inside graphs", MAX_DEPTH)
        for tensor in graph.initializer:
            self._constant(tensor)
        for sparse in graph.sparse_initializer:
            self._sparse_constant(sparse)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _text(value.name)
        return self._nodes(graph.node, depth, callers)

    def _nodes(self, nodes: Iterable[Any], depth: int, callers: tuple[Key, ...]) -> Size:
        count, tensors, calls = 0, 0, 0
        for node in nodes:
            key = (_domain(node.domain), node.op_type)
            for text in (node.name, *node.input, *node.output):
                _text(text)
            _require(len(node.output) <= MAX_OUTPUTS, "outputs of one node", MAX_OUTPUTS)
            parts = [self._attribute(attribute, depth, callers) for attribute in node.attribute]
            if key in self._functions:
                parts.append(self._size_of(key, callers))
            count += 1 + sum(part[0] for part in parts)
            tensors += len(node.input) + len(node.output) + sum(part[1] for part in parts)
            calls = max(calls, *(part[2] for part in parts), 0)
            _require(count <= MAX_NODES, "nodes, with those of its functions", MAX_NODES)
            _require(tensors <= MAX_TENSORS, "tensors, with those of its functions", MAX_TENSORS)
        return count, tensors, calls

    def _attribute(self, attribute: Any, depth: int, callers: tuple[Key, ...]) -> Size:
        graphs = [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]
        sizes = [self._graph(graph, depth + 1, callers) for graph in graphs]
        for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
            self._constant(tensor)
        for sparse in (*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ()), *attribute.sparse_tensors):
            self._sparse_constant(sparse)
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes), max((size[2] for size in sizes), default=0)

    def _constant(self, tensor: Any) -> None:
        _text(tensor.name)
        if self._complete and tensor.data_location == tensor.EXTERNAL:
            raise CompileError(
                f"the weights '{tensor.name}' lie in another file, which only a model that is a file itself can name",
                hint="pass the path of the .onnx file, with its data files in the same folder",
            )
        elements = _elements(tensor.dims)
        _require(elements <= MAX_CONSTANT, "elements in one constant", MAX_CONSTANT)

    def _sparse_constant(self, sparse: Any) -> None:
        self._constant(sparse.values)
        self._constant(sparse.indices)
        self._sparse += _elements(sparse.dims)
        _require(self._sparse <= MAX_CONSTANT, "elements in its sparse constants", MAX_CONSTANT)


def _elements(dims: Iterable[int]) -> int:
    extents = list(dims)
    if len(extents) > 64 or any(extent < 0 for extent in extents):
        raise CompileError(f"a constant has the shape {extents[:8]}", hint="export the model again")
    return math.prod(extents)


def _domain(name: str) -> str:
    """ONNX's own domain has two names."""
    return "" if name == "ai.onnx" else name


def _text(text: Any) -> None:
    if len(text) > MAX_NAME:
        raise CompileError(f"a name of the model has {len(text)} characters; at most {MAX_NAME} are possible", hint=_HINT)


def _require(condition: bool, what: str, most: int) -> None:
    if not condition:
        raise CompileError(f"the model has too much: more than {most} {what}", hint=_HINT)


# Large weights beside the model instead of in it: every copy of a protobuf message, and every session made of its bytes, copies
# them.


LARGE_BYTES = 1 << 16
"""Weights from this size on lie beside the model."""

_KINDS = frozenset(("float32", "float64", "float16", "int8", "uint8", "int32", "int64"))
_CONTROL = frozenset(("If", "Loop", "Scan"))


def detach(proto: Any) -> tuple[Any, dict[str, Array]]:
    """A copy of a model without the values of its large real constants, and these values by name.

    A model with control flow or sequences stays whole: conditions, lengths and positions may be computed from any constant.
    """
    if any(node.op_type in _CONTROL or "Sequence" in node.op_type for node in proto.graph.node):
        return proto, {}
    large = {tensor.name: tensor for tensor in proto.graph.initializer if _is_large(tensor)}
    if not large:
        return proto, {}
    values = {name: np.asarray(onnx().numpy_helper.to_array(tensor)) for name, tensor in large.items()}
    light = _without_constants(proto)
    for tensor in proto.graph.initializer:
        known = values.get(tensor.name)
        light.graph.initializer.append(tensor if known is None else external_tensor(tensor.name, known))
    return light, values


def checked_form(proto: Any) -> tuple[Any, list[Any]]:
    """What a checker needs to see: a model whose large constants are inputs, and those constants, each to be checked on its own."""
    large = [tensor for tensor in proto.graph.initializer if _is_large(tensor)]
    names = {tensor.name for tensor in large}
    if len(names) < len(large):
        return proto, []  # two of one name: the checker must report it
    light = _without_constants(proto)
    light.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name not in names)
    known = {value.name for value in proto.graph.input}
    make = onnx().helper.make_tensor_value_info
    light.graph.input.extend(
        make(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in large if tensor.name not in known
    )
    return light, large


def _is_large(tensor: Any) -> bool:
    """Whether a constant is made of many real numbers, which lie in the message as bytes; as many as its shape states."""
    types = onnx().TensorProto
    sizes = {types.FLOAT: 4, types.DOUBLE: 8, types.FLOAT16: 2}
    size = sizes.get(tensor.data_type, 0)
    if not size or not tensor.HasField("raw_data"):
        return False
    expected = size
    for extent in tensor.dims:
        expected *= extent
    return bool(expected >= LARGE_BYTES and len(tensor.raw_data) == expected)


def _without_constants(proto: Any) -> Any:
    """A copy of a model without its initializers."""
    light = type(proto)()
    _copy_fields(proto, light, "graph")
    _copy_fields(proto.graph, light.graph, "initializer")
    light.graph.SetInParent()
    return light


def _copy_fields(source: Any, target: Any, left_out: str) -> None:
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, bytes) and field.type == field.TYPE_STRING:
            target.MergeFromString(_as_written(field.number, value))  # text that is not UTF-8 cannot be set, only read
        elif isinstance(value, (str, bytes, int, float)):
            setattr(target, field.name, value)
        elif hasattr(value, "ListFields"):
            getattr(target, field.name).CopyFrom(value)
        else:
            getattr(target, field.name).extend(value)


def _as_written(number: int, text: bytes) -> bytes:
    """A field of text as it lies in a message."""
    size, length = [], len(text)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    key = number << 3 | 2
    assert key < 0x80, "fields of models and graphs have small numbers"
    return bytes([key, *size, length]) + text


class HandedConstants:
    """Constants that a session of onnxruntime reads where they lie in memory, instead of from the bytes of its model."""

    def __init__(self) -> None:
        self._large: dict[str, Array] = {}

    @property
    def nbytes(self) -> int:
        """What is handed over."""
        return sum(value.nbytes for value in self._large.values())

    def initializer(self, name: str, value: Array) -> Any:
        """The constant for the model: with its values where it is small."""
        if value.nbytes < LARGE_BYTES or value.dtype.name not in _KINDS:
            return onnx().numpy_helper.from_array(value, name)
        self._large[name] = np.ascontiguousarray(value)
        return external_tensor(name, value)

    def give(self, options: Any, runtime: Any) -> None:
        """Hand the large ones over with the options of a session."""
        if self._large:
            values = [runtime.OrtValue.ortvalue_from_numpy(value) for value in self._large.values()]
            options.add_external_initializers(list(self._large), values)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)


# Constants without values: what remains of a model whose weights were stripped.


_MAX_ELEMENTS = 1 << 30


def is_stripped(tensor: Any) -> bool:
    """Whether a constant has a shape but no values."""
    if math.prod(tensor.dims) == 0 or tensor.external_data or tensor.string_data:
        return False
    return not (
        tensor.raw_data or tensor.float_data or tensor.int32_data or tensor.int64_data or tensor.double_data or tensor.uint64_data
    )


def stand_in(tensor: Any) -> npt.NDArray[Any]:
    """Values for a stripped constant: positive, and small enough for a deep network to stay finite."""
    dtype = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if dtype.kind != "f":
        raise CompileError(
            f"a constant of type {dtype.name} has no values, and shapes may depend on it",
            tensor=tensor.name,
            hint="strip floating-point weights only",
        )
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    if count > _MAX_ELEMENTS:
        raise CompileError(
            f"the shape {list(shape)} is more than {_MAX_ELEMENTS} elements", tensor=tensor.name, hint="export it again"
        )
    value = 0.5 / max(math.prod(shape[1:]), 1) if len(shape) > 1 else 0.5
    return np.broadcast_to(np.asarray(value, dtype), shape)  # takes no memory


_OLDEST = 7
"""The oldest operator set that is understood. Models of older ones are taken if their operators have not changed until then."""

MAX_FILE = (1 << 31) - 1
"""Bytes of one file: no more can be read as protobuf, and a file with holes costs nothing to make."""


def load_onnx(
    model: Any,
    custom_ops: CustomOperators = (),
    *,
    shapes: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    trust: bool = False,
) -> Any:
    """A checked ModelProto from a path, bytes or a ModelProto (which is copied: the caller's stays as it is), or from a model of
    another framework.

    :param custom_ops: operators that are custom ones, besides those of domains that are not known
    :param shapes: of inputs, for a model that does not state them itself
    :param example_inputs: what a module of PyTorch is called with
    :param trust: files of PyTorch, Keras and TensorFlow are loaded as they are, in this process
    """
    proto = read_onnx(model, shapes=shapes, example_inputs=example_inputs, trust=trust)
    stripped = next((tensor.name for tensor in proto.graph.initializer if is_stripped(tensor)), None)
    if stripped is not None:
        raise CompileError(
            "the model's weights were stripped: a constant has a shape but no values",
            tensor=stripped,
            hint="take the complete model; 'anynpu predict' needs shapes only",
        )
    check_onnx(proto, custom_ops)
    return proto


def read_onnx(
    model: Any,
    *,
    external: bool = True,
    shapes: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    trust: bool = False,
) -> Any:
    """A ModelProto that was not checked yet; with *external*, weights that lie in other files are read."""
    package = onnx()
    if example_inputs is not None and not takes_examples(model):
        raise CompileError(
            "example_inputs are for models of PyTorch, and this is none",
            hint="leave them out; shapes={'x': [1, 3, 224, 224]} chooses the shapes of a model's inputs",
        )
    if isinstance(model, package.ModelProto):
        proto = package.ModelProto()
        proto.CopyFrom(model)
    elif (converted := as_onnx(model, shapes, example_inputs, trust=trust)) is not None:
        proto = converted
    elif isinstance(model, (bytes, bytearray, memoryview)):
        proto = _parse(bytes(model), "the model given as bytes")
    elif isinstance(model, (str, Path)):
        proto = _load_file(Path(model), external=external)
    else:
        raise CompileError(
            f"a model is a path, bytes, an onnx.ModelProto or a module of PyTorch, not {type(model).__name__}",
            hint="pass the path of the .onnx file",
        )
    check_bounds(proto, complete=external)
    return proto


def _load_file(path: Path, *, external: bool) -> Any:
    if path.is_dir():
        raise CompileError(f"{path} is a folder, not an ONNX model", hint="pass the path of the .onnx file")
    if not path.exists():
        raise CompileError(f"there is no file {path}", hint="check the path of the .onnx file")
    size = path.stat().st_size
    if size > MAX_FILE:
        raise CompileError(
            f"{path} has {size} bytes, and an ONNX file ends at {MAX_FILE}",
            hint="if it is an ONNX model at all, export it with its weights in a file of their own (external data)",
        )
    proto = _parse(path.read_bytes(), str(path))
    check_bounds(proto, complete=False)
    if not external:
        return proto
    try:
        onnx().external_data_helper.load_external_data_for_model(proto, str(path.parent))
    except (OSError, ValueError, onnx().checker.ValidationError) as error:
        raise CompileError(
            f"the weights of {path} that lie in other files cannot be read: {first_line(error)}",
            hint="keep the .onnx file and its data files in one folder",
        ) from error
    return proto


def _parse(data: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError

    if registry.of_file(data[:16]) is not None:
        raise CompileError(
            f"{what} is already compiled", hint="compile takes the .onnx file; look at this one with 'anynpu inspect'"
        )
    other = name_content(data)
    if other is not None:
        raise CompileError(f"{what} is {other[0]}, not an ONNX model", hint=other[1])
    proto = onnx().ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise CompileError(f"{what} is not an ONNX model, or is damaged", hint="export the model to ONNX again") from error
    if not proto.graph.node and not proto.graph.output:
        raise CompileError(f"{what} holds no graph", hint="export the model to ONNX again")
    return proto


def check_onnx(proto: Any, custom_ops: CustomOperators = ()) -> None:
    """Raise a CompileError for what is wrong with a model; initializers that are also inputs become constants."""
    checker = onnx().checker
    _check_text(proto.graph)
    _inline_functions(proto, custom_ops)
    write_plainly(proto, set(custom_ops))
    _group_norm_by_group(proto)
    mark_custom(proto, custom_ops)
    names = [initializer.name for initializer in proto.graph.initializer]
    if proto.ir_version >= 4:
        # Initializers that are also inputs are overridable; here they are constants, or nothing could be folded.
        constants = set(names)
        kept = [value for value in proto.graph.input if value.name not in constants]
        del proto.graph.input[:]
        proto.graph.input.extend(kept)
    incomplete = [value for value in proto.graph.output if _lacks_shape(value)]
    for value in incomplete:  # some exporters leave it out; the checker wants one, the compiler does not
        value.type.tensor_type.elem_type = onnx().TensorProto.FLOAT
        value.type.tensor_type.shape.SetInParent()
    form, large = checked_form(proto)
    try:
        checker.check_model(form)
        for tensor in large:
            checker.check_tensor(tensor)
    except Exception as error:  # the checker raises ValidationError, but also RuntimeError and TypeError from its C++ side
        text = first_line(error)
        unknown = re.search(r"No Op registered for (\S+)", text)
        hint = "export the model to ONNX again"
        if unknown:
            hint = f"if it is an operator of your own: custom_ops=['{unknown[1]}'], or --custom-op {unknown[1]}"
        raise CompileError(f"the ONNX model is not valid: {text}", hint=hint) from error
    for value in incomplete:
        value.ClearField("type")
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx", 0))
    if version < _OLDEST:
        if not _same_in_the_oldest(proto.graph, version):
            raise CompileError(
                f"the model uses ONNX opset {version}; {_OLDEST} is the oldest that is understood",
                hint="export it again with opset 11 or later",
            )
        for entry in proto.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = _OLDEST


def _same_in_the_oldest(graph: Any, version: int) -> bool:
    """Whether all operators of a graph mean the same in the oldest operator set that is understood."""
    defs = onnx().defs
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or any(entry.HasField("g") or entry.graphs for entry in node.attribute):
            return False
        versions = [defs.get_schema(node.op_type, number, "").since_version for number in (version, _OLDEST)]
        if versions[0] != versions[1]:
            return False
    return True


def _inline_functions(proto: Any, custom_ops: CustomOperators) -> None:
    """Put the bodies of functions that the model brings along where they are called; one that the caller computes stays a call."""
    kept = [function for function in proto.functions if function.name not in custom_ops]
    if len(kept) < len(proto.functions):
        copies = [type(function).FromString(function.SerializeToString()) for function in kept]
        del proto.functions[:]
        proto.functions.extend(copies)
    if not proto.functions:
        return
    try:
        inlined = importlib.import_module("onnx.inliner").inline_local_functions(proto)
    except Exception as error:  # raised from C++ with several types
        raise CompileError(
            f"the functions of the model cannot be put in place: {first_line(error)}", hint="export the model to ONNX again"
        ) from error
    proto.CopyFrom(inlined)


def _group_norm_by_group(proto: Any) -> None:
    """GroupNormalization before operator set 21 has a scale for each group: it is the InstanceNormalization of its groups.

    ONNX has withdrawn that form, so that its checker and onnxruntime reject it, but exporters have written it.
    """
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    old = [node for node in proto.graph.node if node.op_type == "GroupNormalization" and node.domain in ("", "ai.onnx")]
    if not old or versions.get("", versions.get("ai.onnx", 0)) >= 21 or any(len(node.input) != 3 for node in old):
        return
    helper = onnx().helper
    nodes = []
    for node in proto.graph.node:
        if node not in old:
            nodes.append(node)
            continue
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        name = node.output[0]
        split, extents, normal, groups = (f"{name}.{part}" for part in ("split", "extents", "normal", "groups"))
        rows = onnx().numpy_helper.from_array(np.array([0, int(attributes.get("num_groups", 1)), -1], np.int64), groups)
        proto.graph.initializer.append(rows)
        nodes += [
            helper.make_node("Reshape", [node.input[0], groups], [split]),
            helper.make_node(
                "InstanceNormalization",
                [split, *node.input[1:]],
                [normal],
                name=node.name,
                epsilon=float(attributes.get("epsilon", 1e-5)),
            ),
            helper.make_node("Shape", [node.input[0]], [extents]),
            helper.make_node("Reshape", [normal, extents], [name]),
        ]
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def _check_text(graph: Any) -> None:
    # protobuf hands out bytes for a text that is not UTF-8
    texts = [text for node in graph.node for text in (node.name, node.op_type, node.domain, *node.input, *node.output)]
    texts += [entry.name for node in graph.node for entry in node.attribute]
    texts += [value.name for values in (graph.input, graph.output, graph.initializer) for value in values]
    for text in texts:
        if isinstance(text, bytes):
            raise CompileError(f"a name of the model is not text: {text[:80]!r}", hint="export the model to ONNX again")


def _lacks_shape(value: Any) -> bool:
    return value.type.WhichOneof("value") in (None, "tensor_type") and not value.type.tensor_type.HasField("shape")


def input_names(proto: Any) -> list[str]:
    """The inputs that a caller supplies."""
    constants = {initializer.name for initializer in proto.graph.initializer}
    return [value.name for value in proto.graph.input if value.name not in constants]


def first_line(error: BaseException) -> str:
    """The first line of what an error states."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__
