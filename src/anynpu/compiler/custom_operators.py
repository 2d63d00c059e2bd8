"""Custom operators: nodes that the program's user computes, when the model runs and when it is calibrated."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._util.optional import onnx
from .._util.types import Array
from ..errors import CalibrationError, CompileError
from ..program import AttributeValue
from .graph import CUSTOM, Graph, Node

Attributes = Mapping[str, AttributeValue]
ShapeFunction = Callable[[list[tuple[int, ...]], Attributes], Sequence[Sequence[int]]]
ComputeFunction = Callable[[list[Array], Attributes], Sequence[Array]]

DOMAIN = "anynpu.custom"
"""Where nodes are put while the file is read: ONNX checks nothing about domains that it does not know."""

_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft")
MAX_TENSOR = 1 << 30
MAX_AXES = 8


@dataclass(frozen=True)
class CustomOperator:
    """What the compiler has to know about a custom operator.

    :ivar shapes: called with the shapes of all inputs and the attributes, gives the shape of each output; without it the shapes are those
        that the ONNX file states
    :ivar compute: called with all inputs as arrays and the attributes, gives the outputs; needed where integer layers come after it, whose
        ranges calibration has to see

    >>> softmax = CustomOperator(
    ...     shapes=lambda inputs, attributes: inputs[:1],
    ...     compute=lambda arrays, attributes: [np.exp(arrays[0]) / np.exp(arrays[0]).sum(int(attributes["axis"]), keepdims=True)],
    ... )
    >>> softmax.shapes([(1, 4)], {})
    [(1, 4)]
    """

    shapes: ShapeFunction | None = None
    compute: ComputeFunction | None = None


CustomOperators = Sequence[str] | Mapping[str, Any]
"""Names of operators; or a mapping from name to a :class:`CustomOperator`, a function that gives shapes, or None."""

CustomTable = Mapping[str, CustomOperator]


def custom_table(given: CustomOperators) -> CustomTable:
    """What a caller said about custom operators, by name."""
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, Mapping):
        given = dict.fromkeys(given)
    for name in given:
        if not isinstance(name, str) or not name:
            raise CompileError(f"custom_ops names operators, got {name!r}", hint="for example custom_ops=['cstSoftmax']")
    return {name: _operator(name, value) for name, value in given.items()}


def _operator(name: str, value: Any) -> CustomOperator:
    if value is None or isinstance(value, CustomOperator):
        return value or CustomOperator()
    shapes, compute = getattr(value, "shapes", None), getattr(value, "compute", None)
    if callable(shapes) or callable(compute):
        return CustomOperator(shapes if callable(shapes) else None, compute if callable(compute) else None)
    if callable(value):
        return CustomOperator(value)
    raise CompileError(
        f"custom operator '{name}' is described by a {type(value).__name__}",
        operator=name,
        hint="give anynpu.compiler.CustomOperator(shapes=..., compute=...), a function of (input_shapes, attributes), or None",
    )


def foreign_operators(proto: Any) -> list[str]:
    """Types of the nodes of an ONNX model whose domains ONNX does not know, sorted."""
    functions = {(entry.domain, entry.name) for entry in proto.functions}
    return sorted({str(node.op_type) for node in proto.graph.node if _is_foreign(node, functions)})


def _is_foreign(node: Any, functions: set[tuple[str, str]]) -> bool:
    return node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions


def mark_custom(proto: Any, given: CustomOperators) -> None:
    """Put every custom node of an ONNX model into a domain of its own: those named, and those of domains that ONNX does not know."""
    names = set(custom_table(given))
    functions = {(entry.domain, entry.name) for entry in proto.functions}
    found: set[str] = set()
    for node in proto.graph.node:
        if _is_foreign(node, functions) or node.op_type in names:
            node.domain = DOMAIN
            found.add(node.op_type)
    if not isinstance(given, Mapping) and names - found:
        missing = min(names - found)
        operators = sorted({str(node.op_type) for node in proto.graph.node})
        near = difflib.get_close_matches(missing, operators, n=1)
        guess = f"did you mean '{near[0]}'? " if near else ""
        raise CompileError(
            f"the model has no operator '{missing}' to compile as a custom one",
            operator=missing,
            hint=f"{guess}It has: {', '.join(operators)}",
        )
    if found:
        used = {node.domain for node in proto.graph.node}
        kept = [entry for entry in proto.opset_import if entry.domain in _KNOWN_DOMAINS or entry.domain in used]
        del proto.opset_import[:]
        proto.opset_import.extend(kept)
        if not any(entry.domain == DOMAIN for entry in kept):
            proto.opset_import.add(domain=DOMAIN, version=1)


def custom_node(proto: Any, read: Callable[[Any], Array]) -> Node:
    """The node of a custom operator.

    :param read: gives the array of a TensorProto
    """
    attributes = {str(entry.name): _attribute(proto, entry, read) for entry in proto.attribute}
    inputs, outputs = _ports(proto, "input"), _ports(proto, "output")
    return Node(CUSTOM, inputs, outputs, attributes, proto.name, DOMAIN, str(proto.op_type))


def _ports(proto: Any, what: str) -> list[str]:
    names = list(getattr(proto, what))
    while names and not names[-1]:
        names.pop()
    if "" in names or (what == "output" and not names):
        raise CompileError(
            f"a custom operator has all its {what}s: only the last ones may be left out",
            node=proto.name,
            operator=proto.op_type,
            hint=f"give {what} {names.index('') if names else 0} of the node a name",
        )
    return names


def _attribute(node: Any, entry: Any, read: Callable[[Any], Array]) -> AttributeValue:
    kinds = onnx().AttributeProto
    if entry.type in (kinds.INT, kinds.INTS):
        return np.array(entry.i if entry.type == kinds.INT else list(entry.ints), np.int64)
    if entry.type in (kinds.FLOAT, kinds.FLOATS):
        return np.array(entry.f if entry.type == kinds.FLOAT else list(entry.floats), np.float32)
    if entry.type == kinds.STRING:
        return _text(entry.s)
    if entry.type == kinds.STRINGS:
        texts = [_text(value) for value in entry.strings]
        if all(isinstance(text, str) for text in texts):
            return tuple(str(text) for text in texts)
    elif entry.type == kinds.TENSOR:
        array = read(entry.t)
        if array.dtype.name in _STORED:
            return np.ascontiguousarray(array).reshape(array.shape)
    raise CompileError(
        f"attribute '{entry.name}' is neither numbers, text nor a tensor of numbers",
        node=node.name,
        operator=node.op_type,
        hint="a custom operator takes ints, floats, strings and tensors as attributes",
    )


_STORED = frozenset(
    ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bool")
)


def _text(value: bytes) -> str | Array:
    """Text, or the bytes of what is none."""
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return np.array(list(value), np.uint8)


class Declarations:
    """Shapes and types that an ONNX file states for its tensors. Axes by name have the size of the input axis of that name."""

    def __init__(self, proto: Any) -> None:
        values = (
            *proto.graph.value_info,
            *proto.graph.output,
            *proto.graph.input,
        )  # the last word on an input has the input itself
        types = {str(value.name): value.type.tensor_type for value in values if value.type.HasField("tensor_type")}
        self._kinds = {name: int(kind.elem_type) for name, kind in types.items()}
        self._shapes = {
            name: [_extent(axis) for axis in kind.shape.dim] for name, kind in types.items() if kind.HasField("shape")
        }
        self._named: dict[str, int] = {}
        self._holds = True

    def fix(self, inputs: Mapping[str, tuple[int, ...]]) -> None:
        """Learn what the inputs really are. If one is not what the file states, what it states of other tensors does not hold either."""
        for name, shape in inputs.items():
            for stated, extent in zip(self._shapes.get(name, ()), shape, strict=True):
                if isinstance(stated, str):
                    self._holds &= self._named.setdefault(stated, extent) == extent
                elif stated is not None:
                    self._holds &= stated == extent

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, if the file states it."""
        stated = self._shapes.get(name)
        if stated is None or not self._holds:
            return None
        extents = [self._named.get(extent) if isinstance(extent, str) else extent for extent in stated]
        return tuple(extent for extent in extents if extent) if all(extents) else None

    def dtype(self, name: str) -> np.dtype[Any]:
        """The type of a tensor; float32 where the file does not state."""
        kind = self._kinds.get(name, 0)
        try:
            known: np.dtype[Any] = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(kind) if kind else np.float32)
        except KeyError:
            raise CompileError(f"a tensor has the unknown type {kind}", tensor=name, hint="export the model again") from None
        return known


def _extent(axis: Any) -> int | str | None:
    if axis.HasField("dim_value"):
        return int(axis.dim_value) if axis.dim_value > 0 else None
    return str(axis.dim_param) or None


def infer_custom(graph: Graph, node: Node, table: CustomTable, declared: Declarations) -> None:
    """Enter shape and type of the outputs of a custom node, whose inputs are known."""
    operator = table.get(node.custom, CustomOperator())
    if operator.shapes is not None:
        shapes = _asked(graph, node, operator.shapes)
    else:
        stated = {name: declared.shape(name) for name in node.outputs}
        for name, shape in stated.items():
            if shape is None:
                raise CompileError(
                    "the shape of an output of a custom operator is not known",
                    node=node.label,
                    operator=node.custom,
                    tensor=name,
                    hint=f"give a function: custom_ops={{'{node.custom}': lambda input_shapes, attributes: [input_shapes[0]]}}; "
                    "or state the shape in the ONNX file (value_info, or the model's outputs)",
                )
        shapes = [shape for shape in stated.values() if shape is not None]
    for name, shape in zip(node.outputs, shapes, strict=True):
        if math.prod(shape) > MAX_TENSOR or len(shape) > MAX_AXES:
            raise CompileError(
                f"a tensor has the shape {list(shape)}, more than {MAX_TENSOR} elements or {MAX_AXES} axes",
                node=node.label,
                operator=node.custom,
                tensor=name,
                hint="choose smaller input shapes",
            )
        graph.shapes[name] = shape
        graph.dtypes[name] = declared.dtype(name)


def _asked(graph: Graph, node: Node, function: ShapeFunction) -> list[tuple[int, ...]]:
    given = [graph.shapes[name] for name in node.inputs]
    hint = f"the function takes (input_shapes, attributes) and gives a list of {len(node.outputs)} shapes of positive integers"
    try:
        shapes = [tuple(int(extent) for extent in shape) for shape in function(given, node.attributes)]
    except Exception as error:  # the caller's own code: it may raise anything
        raise CompileError(
            f"the shape function of a custom operator failed for {given}: {type(error).__name__}: {error}",
            node=node.label,
            operator=node.custom,
            hint=hint,
        ) from error
    if len(shapes) != len(node.outputs) or any(extent < 1 for shape in shapes for extent in shape):
        raise CompileError(
            f"the shape function of a custom operator gave {shapes}", node=node.label, operator=node.custom, hint=hint
        )
    return shapes


def compute_custom(graph: Graph, node: Node, table: CustomTable, inputs: list[Array]) -> list[Array]:
    """The outputs of a custom node for one calibration sample."""
    compute = table.get(node.custom, CustomOperator()).compute
    assert compute is not None  # calibrate has looked
    try:
        results = [np.asarray(result) for result in compute(inputs, node.attributes)]
    except Exception as error:  # the caller's own code: it may raise anything
        raise CalibrationError(
            f"a custom operator failed: {type(error).__name__}: {error}",
            node=node.label,
            operator=node.custom,
            hint="its compute= takes (inputs, attributes) and gives a list of arrays",
        ) from error
    wanted, given = [graph.shapes[name] for name in node.outputs], [result.shape for result in results]
    if wanted != given:
        raise CalibrationError(
            f"a custom operator gave arrays of {given}; its outputs are {wanted}",
            node=node.label,
            operator=node.custom,
            hint="make shapes= and compute= agree",
        )
    return [result.astype(graph.dtypes[name], copy=False) for name, result in zip(node.outputs, results, strict=True)]
