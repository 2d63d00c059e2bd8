"""Float layers: the nodes of a float step as typed operators, with constants in the type that the chip holds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
from ..quantize.float16_overflow import ADDING, HALF_MAX
from .opsets import Additions, modern
from .steps import Step

__all__ = ["FloatEmitter", "weight_bytes"]


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
        """Whether an attribute that the table does not have says what would be without it."""
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
    """An attribute of the kind that the table says."""
    kind = _KINDS[rule.kind.removesuffix("s") if rule.kind not in _KINDS else rule.kind]

    def one(item: Any) -> Any:
        return kind(item.decode("utf-8", "replace") if isinstance(item, bytes) else item)

    return one(value) if rule.kind in _KINDS else tuple(one(item) for item in value)
