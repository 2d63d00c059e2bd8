"""Real numbers of a model in one type: float16, bfloat16 and float64 become float32 at import.

Everything behind the import (fusion, calibration, integer forms) knows float32 alone; a chip holds float16 or codes, whatever the
exporter chose. What depends on no input is computed in the model's own types first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ...errors import UnsupportedOperatorError
from ..graph import Graph, Node, element_type

__all__ = ["OTHER_REALS", "has_other_reals", "keep_bits", "widen", "without_castlike"]

OTHER_REALS = frozenset(("float16", "bfloat16", "float64"))
"""The types that become float32."""

_TYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype", "RandomNormal": "dtype", "RandomUniform": "dtype", "Bernoulli": "dtype"}
_TYPE_ATTRIBUTES |= {"RandomNormalLike": "dtype", "RandomUniformLike": "dtype", "QuantizeLinear": "output_dtype"}
_TYPE_ATTRIBUTES |= {f"{name}Window": "output_datatype" for name in ("Blackman", "Hamming", "Hann")}
_FLOAT = np.dtype(np.float32)


def has_other_reals(graph: Graph) -> bool:
    """Whether a constant or a tensor of a known type is a real number, but not float32."""
    kinds = {value.dtype.name for value in graph.constants.values()} | {dtype.name for dtype in graph.dtypes.values()}
    return not kinds.isdisjoint(OTHER_REALS)


def widen(graph: Graph, kinds: Set[str] = OTHER_REALS) -> None:
    """Let the graph compute in float32 what it computes in one of *kinds*, in place."""
    if "bfloat16" in kinds:
        _refuse_bits(graph)
    for name, value in graph.constants.items():
        if value.dtype.name in kinds:
            with np.errstate(over="ignore"):
                graph.constants[name] = value.astype(np.float32)
    for name, dtype in graph.dtypes.items():
        if dtype.name in kinds:
            graph.dtypes[name] = _FLOAT
    numbers = _numbers(kinds)
    for node in graph.nodes:
        _widen_attributes(node, numbers)


def _refuse_bits(graph: Graph) -> None:
    """What is bfloat16 becomes float32 before the types of all tensors are known, and with it the bits are lost."""
    kinds = {dtype.name for dtype in graph.dtypes.values()}
    node = next((node for node in graph.nodes if node.op == "BitCast" and not node.domain), None)
    if node is not None and "bfloat16" in kinds:
        raise UnsupportedOperatorError(
            "a model with bfloat16 numbers asks for the bits of numbers",
            node=node.label,
            operator=node.op,
            hint="export the model in float32 or float16",
        )


def keep_bits(graph: Graph) -> None:
    """BitCast reads the bits of its input's own type: let a widened input have that type again, in place.

    Which type that was, the number of bits of the result says.
    """
    nodes = []
    for node in graph.nodes:
        if node.op == "BitCast" and not node.domain and graph.dtypes[node.inputs[0]] == _FLOAT:
            size = graph.dtypes[node.outputs[0]].itemsize
            kind = np.dtype({2: np.float16, 8: np.float64}.get(size, np.float32))
            if kind != _FLOAT and graph.dtypes[node.outputs[0]].kind in "iu":
                name = graph.free_name(f"{node.inputs[0]}.{kind.name}")
                nodes.append(Node("Cast", [node.inputs[0]], [name], {"to": element_type(kind)}))
                graph.shapes[name], graph.dtypes[name] = graph.shapes[node.inputs[0]], kind
                node.inputs = [name]
        nodes.append(node)
    graph.nodes = nodes


def _numbers(kinds: Set[str]) -> set[int]:
    """ONNX's numbers of types."""
    types = onnx().TensorProto
    known = {"float16": types.FLOAT16, "bfloat16": types.BFLOAT16, "float64": types.DOUBLE}
    return {int(known[kind]) for kind in kinds}


def _widen_attributes(node: Node, numbers: Set[int]) -> None:
    key = _TYPE_ATTRIBUTES.get(node.op) if not node.domain else None
    if key is not None and node.attributes.get(key) in numbers:
        node.attributes[key] = element_type(_FLOAT)
    value: Any = node.attributes.get("value")
    if node.op == "ConstantOfShape" and value is not None and value.data_type in numbers:
        numpy_helper = onnx().numpy_helper
        node.attributes["value"] = numpy_helper.from_array(np.asarray(numpy_helper.to_array(value), np.float32), value.name)


def without_castlike(graph: Graph) -> None:
    """CastLike reads its second input for the type alone: it becomes a Cast, in place. The type of every tensor is known."""
    for node in graph.nodes:
        if node.op == "CastLike" and not node.domain:
            kept = {key: value for key, value in node.attributes.items() if key in ("saturate", "round_mode")}
            node.op, node.attributes = "Cast", {"to": element_type(graph.dtypes[node.inputs[1]]), **kept}
            node.inputs = node.inputs[:1]
