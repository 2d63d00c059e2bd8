"""ONNX models as they come: from a file, bytes, a ModelProto or another framework, checked, with one clear error for what is wrong."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ...errors import CompileError
from ...modelfile.recognize import name_content
from ...vendors import registry
from ..custom_operators import CustomOperators, mark_custom
from . import as_onnx, takes_examples
from .bounds import check_bounds
from .contrib_operators import write_plainly
from .external_weights import checked_form
from .stripped_weights import is_stripped

__all__ = ["check_onnx", "first_line", "input_names", "load_onnx", "read_onnx"]


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
    :param shapes: of inputs, for a model that does not say them itself
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
    """Raise a CompileError for what is wrong with a model; initialisers that are also inputs become constants."""
    checker = onnx().checker
    _check_text(proto.graph)
    _inline_functions(proto, custom_ops)
    write_plainly(proto, set(custom_ops))
    _group_norm_by_group(proto)
    mark_custom(proto, custom_ops)
    names = [initializer.name for initializer in proto.graph.initializer]
    if proto.ir_version >= 4:
        # Initialisers that are also inputs are overridable; here they are constants, or nothing could be folded.
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

    ONNX has withdrawn that form, so that its checker and onnxruntime refuse it, but exporters have written it.
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
    """The first line of what an error says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__
