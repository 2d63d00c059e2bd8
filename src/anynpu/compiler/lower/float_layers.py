"""Float layers: the nodes of a float step as typed operators, with constants in the type that the chip holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError, UnsupportedOperatorError
from ...program import FLOAT_OPERATORS, Constant, Float, FloatAttribute, FloatOp, Weights, immediate
from ...program.convert import float32_to_bfloat16
from ...program.float_operators import IMMEDIATE_TYPES, MAX_IMMEDIATE, AttributeRule
from ...tensor import DType
from ..graph import Graph, Node, element_type
from ..quantize.representable import ADDING, HALF_MAX
from .steps import Step

# Float nodes of any ONNX operator set in the one form that layer programs have: that of operator set 21.
#
# Each function gives the node as one node or a few of the newer form. What was an attribute and is an input now becomes a
# constant.


class Additions:
    """Constants and tensors that nodes need besides those of the graph."""

    def __init__(self, graph: Graph) -> None:
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}
        self._graph = graph

    def constant(self, node: Node, what: str, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant, and return its name."""
        name = f"{node.outputs[0]}@{what}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def tensor(self, node: Node, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
        """Add a tensor that lies between two nodes, and return its name."""
        name = f"{node.outputs[0]}@{what}"
        self.shapes[name], self.dtypes[name] = shape, dtype
        return name


def modern(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """The nodes of operator set 21 that compute what *node* computes in the graph's operator set."""
    change = _CHANGES.get(node.op) if not node.domain else None
    copy = replace(node, inputs=list(node.inputs), outputs=list(node.outputs), attributes=dict(node.attributes))
    return change(graph, copy, more) if change else [copy]


def _inputs_of(*names: str) -> Callable[[Graph, Node, Additions], list[Node]]:
    """A change of operators whose attributes *names* became inputs, in this order after the first one."""

    def change(graph: Graph, node: Node, more: Additions) -> list[Node]:
        if not any(name in node.attributes for name in names):
            return [node]
        kind = graph.dtypes[node.inputs[0]]
        node.inputs = node.inputs[:1]
        for name in names:
            value = node.attributes.pop(name, None)
            dtype = kind if name in ("min", "max", "value") else np.int64
            node.inputs.append("" if value is None else more.constant(node, name, value, dtype))
        while not node.inputs[-1]:
            node.inputs.pop()
        return [node]

    return change


def _topk(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if "k" in node.attributes:
        node.inputs.append(more.constant(node, "k", [node.attributes.pop("k")]))
    return [node]


def _split(graph: Graph, node: Node, more: Additions) -> list[Node]:
    (node,) = _inputs_of("split")(graph, node, more)
    if len(node.inputs) < 2 or not node.inputs[1]:
        node.inputs = node.inputs[:1]
        node.attributes["num_outputs"] = len(node.outputs)
    return [node]


def _softmax(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """Before operator set 13 it went over all axes from the given one to the last."""
    if graph.opset >= 13:
        return [node]
    shape, kind = graph.shapes[node.inputs[0]], graph.dtypes[node.inputs[0]]
    axis = int(node.attribute("axis", 1)) % max(1, len(shape))
    if math.prod(shape[axis + 1 :]) == 1:
        node.attributes["axis"] = axis
        return [node]
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    before, after = more.tensor(node, "rows", rows, kind), more.tensor(node, "shares", rows, kind)
    return [
        Node("Reshape", [node.inputs[0], more.constant(node, "matrix", rows)], [before]),
        Node(node.op, [before], [after], {"axis": -1}, node.name),
        Node("Reshape", [after, more.constant(node, "whole", shape)], node.outputs),
    ]


def _resize(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """Until operator set 10 there was one way to find the places, and nearest ones lay above them where an image became smaller."""
    if node.op == "Resize" and graph.opset > 10:
        unused = [name for name in node.inputs if name in graph.constants and not graph.constants[name].size]
        node.inputs = ["" if name in unused else name for name in node.inputs]
        return [node]
    scales = node.attributes.pop("scales", None)
    scales = graph.constants.get(node.inputs[1]) if scales is None and len(node.inputs) > 1 else scales
    if scales is None:
        raise _refused(node, "its scales are computed")
    factors = np.asarray(scales, np.float32)
    mode = {"bilinear": "linear"}.get(node.attribute("mode", "nearest"), node.attribute("mode", "nearest"))
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    smaller, larger = np.minimum(factors, 1), np.maximum(factors, 1)
    source, made = node.inputs[0], []
    if mode == "nearest" and (smaller < 1).any():
        attributes["nearest_mode"] = "ceil"
        if (larger > 1).any():
            shape = tuple(math.floor(extent * scale) for extent, scale in zip(graph.shapes[source], smaller, strict=True))
            part = more.tensor(node, "smaller", shape, graph.dtypes[source])
            first = more.constant(node, "factors", smaller, np.float32)
            made.append(Node("Resize", [source, "", first], [part], dict(attributes)))
            source, factors, attributes["nearest_mode"] = part, larger, "floor"
    made.append(
        Node("Resize", [source, "", more.constant(node, "scales", factors, np.float32)], node.outputs, attributes, node.name)
    )
    return made


def _dropout(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 12:
        node.attributes, node.inputs = {}, node.inputs[:1]
    return [node]


def _batch_normalization(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 14:
        node.outputs = node.outputs[:1]
        node.attributes.pop("spatial", None)
    return [node]


def _scatter(graph: Graph, node: Node, more: Additions) -> list[Node]:
    node.op = "ScatterElements"
    return [node]


def _grid_sample(graph: Graph, node: Node, more: Additions) -> list[Node]:
    mode = node.attribute("mode", "linear")
    node.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [node]


def _roi_align(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 16:
        node.attributes["coordinate_transformation_mode"] = "output_half_pixel"
    return [node]


def _dft(graph: Graph, node: Node, more: Additions) -> list[Node]:
    if graph.opset < 20:
        axis = more.constant(node, "axis", node.attributes.pop("axis", 1))
        node.inputs = [node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else "", axis]
    return [node]


def _group_normalization(graph: Graph, node: Node, more: Additions) -> list[Node]:
    """Before operator set 21 there was one scale for each group, not for each channel."""
    if graph.opset < 21:
        channels = graph.shapes[node.inputs[0]][1] // int(node.attribute("num_groups"))
        for place, what in ((1, "scale"), (2, "bias")):
            value = graph.constants.get(node.inputs[place])
            if value is None:
                raise _refused(node, f"its {what} is computed")
            node.inputs[place] = more.constant(node, what, np.repeat(value, channels), value.dtype)
    return [node]


def _refused(node: Node, why: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(why, node=node.label, operator=node.op, hint="export the model with a newer operator set")


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_CHANGES: dict[str, Callable[[Graph, Node, Additions], list[Node]]] = {
    **{f"Reduce{name}": _inputs_of("axes") for name in _REDUCTIONS},
    "BatchNormalization": _batch_normalization,
    "Clip": _inputs_of("min", "max"),
    "DFT": _dft,
    "Dropout": _dropout,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_normalization,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "Pad": _inputs_of("pads", "value"),
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Scatter": _scatter,
    "Slice": _inputs_of("starts", "ends", "axes"),
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _inputs_of("axes"),
    "TopK": _topk,
    "Unsqueeze": _inputs_of("axes"),
    "Upsample": _resize,
}


_KINDS = {"int": int, "float": float, "str": str}
_HALVES = ("float16", "bfloat16")
_log = logging.getLogger("anynpu.compiler")


def weight_bytes(op: Float) -> int:
    """Bytes of weight memory that a float layer needs."""
    return sum(constant.value.nbytes for constant in op.constants.values() if isinstance(constant, Weights))


@dataclass
class FloatEmitter:
    """Builds the float layers of one program.

    :ivar half: what the NPU holds float weights in
    :ivar outline: shapes of weights without their values
    :ivar near_the_end: results that may be beyond float16, and are cast to it
    """

    graph: Graph
    half: DType
    outline: bool = False
    near_the_end: AbstractSet[str] = frozenset()

    def __post_init__(self) -> None:
        self._position = {id(node): index for index, node in enumerate(self.graph.nodes)}

    def operator(
        self, step: Step, names: Mapping[str, str], rounded: AbstractSet[str], compute: DType
    ) -> tuple[Float, dict[str, tuple[tuple[int, ...], np.dtype[Any]]]]:
        """The operator of a float step, and the tensors between its operators.

        :param names: the program's name of each graph tensor that goes in or out
        :param rounded: constants that the NPU reads
        """
        more = Additions(self.graph)
        made = {name for node in step.nodes for name in node.outputs}
        widened: dict[str, str] = {}
        operators: list[FloatOp] = []
        inner: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        constants: dict[str, Constant] = {}
        for original in sorted({id(node): node for node in step.nodes}.values(), key=lambda node: self._position[id(node)]):
            for node in modern(self.graph, original, more):
                inputs = []
                for name in node.inputs:
                    value = more.constants.get(name, self.graph.constants.get(name))
                    known = names.get(name, name)
                    if name and value is not None:
                        constants[name] = self._constant(name, value, rounded, node)
                    if name and name not in made and name not in more.shapes:
                        kind = self.graph.dtypes[name] if value is None else value.dtype
                        if kind.name in _HALVES or (value is None and kind == np.float64):
                            # real numbers enter as float32, but the model computes in another type here
                            if name not in widened:
                                widened[name] = f"{known}@{kind.name}"
                                inner[widened[name]] = (tuple(self.graph.shapes[name]), kind)
                                operators.append(FloatOp("Cast", (known,), (widened[name],), {"to": element_type(kind)}))
                            known = widened[name]
                    inputs.append(known)
                outputs = []
                for name in node.outputs:
                    outputs.append(names.get(name, name))
                    if name and name not in names:
                        shape = more.shapes.get(name, self.graph.shapes.get(name))
                        inner[name] = (
                            tuple(shape or ()),
                            more.dtypes.get(name, self.graph.dtypes.get(name, np.dtype(np.float32))),
                        )
                operators.append(self._typed(node, original, inputs, outputs))
        if compute is DType.FLOAT16:
            operators = self._through_half(step, operators, names, inner)
        return Float(tuple(operators), constants, compute), inner

    def _through_half(
        self,
        step: Step,
        operators: list[FloatOp],
        names: Mapping[str, str],
        inner: dict[str, tuple[tuple[int, ...], np.dtype[Any]]],
    ) -> list[FloatOp]:
        """The operators with the step's results cast to float16 and back, where they may be beyond it."""
        for name in step.outputs:
            if name not in self.near_the_end:
                continue
            known = names.get(name, name)
            wide, half = f"{known}@wide", f"{known}@half"
            shape = tuple(self.graph.shapes[name])
            inner |= {wide: (shape, np.dtype(np.float32)), half: (shape, np.dtype(np.float16))}
            operators = [
                replace(
                    op,
                    inputs=tuple(wide if entry == known else entry for entry in op.inputs),
                    outputs=tuple(wide if entry == known else entry for entry in op.outputs),
                )
                for op in operators
            ]
            operators.append(FloatOp("Cast", (wide,), (half,), {"to": element_type(np.dtype(np.float16))}))
            operators.append(FloatOp("Cast", (half,), (known,), {"to": element_type(np.dtype(np.float32))}))
        return operators

    def _typed(self, node: Node, original: Node, inputs: Sequence[str], outputs: Sequence[str]) -> FloatOp:
        operator = f"{node.domain}.{node.op}" if node.domain else node.op
        signature = FLOAT_OPERATORS.get(operator)
        if signature is None:
            own = f"compile it as a custom operator: custom_ops=['{node.op}'], or --custom-op {node.op}"
            before = "compile the model as it was before onnxruntime optimized it, or "
            raise UnsupportedOperatorError(
                "there is no float operator of this name",
                node=original.label,
                operator=operator,
                hint=before + own if node.domain.startswith("com.microsoft") else own,
            )
        attributes: dict[str, FloatAttribute] = {}
        for key in node.attributes:
            rule = signature.attributes.get(key)
            value = node.attribute(key)
            if rule is not None:
                attributes[key] = _attribute(rule, value)
            elif not self._is_default(node, key, value):
                raise UnsupportedOperatorError(
                    f"its attribute '{key}' has no meaning here",
                    node=original.label,
                    operator=operator,
                    hint="export the model again, with an older operator set",
                )
        return FloatOp(operator, tuple(inputs), tuple(outputs), attributes)

    def _is_default(self, node: Node, key: str, value: Any) -> bool:
        """Whether an attribute that the table does not have states what would be without it."""
        package = onnx()
        schema = package.defs.get_schema(node.op, self.graph.opset, node.domain)
        declared = schema.attributes.get(key)
        default = package.helper.get_attribute_value(declared.default_value) if declared and declared.default_value.name else None
        return bool((default.decode() if isinstance(default, bytes) else default) == value)

    def _constant(self, name: str, value: Array, rounded: AbstractSet[str], node: Node) -> Constant:
        kind = value.dtype.name
        if kind not in IMMEDIATE_TYPES:
            raise CompileError(f"a constant has the type {kind}", tensor=name, hint="export the model with plain numbers")
        if value.nbytes < MAX_IMMEDIATE:
            return immediate(value.view(np.uint16) if kind == "bfloat16" else value, kind)
        bfloat16 = kind == "bfloat16"
        held: Array = value
        if kind == "float32" and name in rounded:
            bfloat16 = self.half is DType.BFLOAT16
            if self.outline:
                held = np.broadcast_to(np.zeros((), self.half.storage), value.shape)
            elif bfloat16:
                held = float32_to_bfloat16(np.ascontiguousarray(value))
            else:
                held = _half(name, value, node)
        elif bfloat16:
            held = value.view(np.uint16)
        return Weights(held if self.outline else np.ascontiguousarray(held), bfloat16)


def _half(name: str, value: Array, node: Node) -> Array:
    """Numbers as float16. What is added (a mask of -1e9) may as well end at its limit; weights beyond it are infinite, as on the chip."""
    with np.errstate(over="ignore"):
        held = np.asarray(value, np.float16)
    beyond = np.isinf(held) & np.isfinite(value)
    if not beyond.any():
        return held
    if node.op in ADDING:
        return np.where(beyond, np.sign(value) * np.float16(HALF_MAX), held).astype(np.float16)
    _log.warning(
        "the constant '%s' of '%s' reaches %g, and float16 ends at 65504: it is infinite on the chip, and so are results or NaN; "
        "scale it down, or compile to int8 or bfloat16",
        name,
        node.label,
        float(np.abs(np.where(beyond, value, 0)).max()),
    )
    return held


def _attribute(rule: AttributeRule, value: Any) -> FloatAttribute:
    """An attribute of the kind that the table states."""
    kind = _KINDS[rule.kind.removesuffix("s") if rule.kind not in _KINDS else rule.kind]

    def one(item: Any) -> Any:
        return kind(item.decode("utf-8", "replace") if isinstance(item, bytes) else item)

    return one(value) if rule.kind in _KINDS else tuple(one(item) for item in value)
