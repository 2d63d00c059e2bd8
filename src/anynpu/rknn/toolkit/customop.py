"""Custom operators as the vendor's toolkit has them: an object with ``op_type``, ``shape_infer`` and ``compute``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import rknn
from ...compiler import CustomOperator
from ...errors import ParameterError

__all__ = ["Node", "for_compiler", "for_runtime", "get_node_attr", "require_custom_op"]


class Node:
    """The node that functions of an operator are given; :func:`get_node_attr` reads it."""

    def __init__(self, op_type: str, read: Callable[[str, Any], Any]) -> None:
        self.op_type = op_type
        self._read = read

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the ONNX node."""
        return self._read(name, default)


def get_node_attr(node: Node, name: str, default: Any = None) -> Any:
    """An attribute of the node that ``shape_infer`` and ``compute`` are called with."""
    return node.attribute(name, default)


def require_custom_op(given: Any) -> str:
    """The type of an operator, if the object is one."""
    op_type = getattr(given, "op_type", None)
    if not isinstance(op_type, str) or not op_type or not callable(getattr(given, "shape_infer", None)):
        raise ParameterError(
            f"{type(given).__name__} describes no custom operator", hint="it needs op_type, shape_infer() and compute()"
        )
    return op_type


def for_compiler(given: Any) -> CustomOperator:
    """What the compiler has to know about it."""

    def node(attributes: Mapping[str, Any]) -> Node:
        return Node(given.op_type, attributes.get)

    def shapes(inputs: list[tuple[int, ...]], attributes: Mapping[str, Any]) -> list[list[int]]:
        found, _ = given.shape_infer(node(attributes), [list(shape) for shape in inputs], ["float32"] * len(inputs))
        return [list(shape) for shape in found]

    def compute(arrays: list[Any], attributes: Mapping[str, Any]) -> list[Any]:
        return list(given.compute(node(attributes), arrays))

    return CustomOperator(shapes, compute if callable(getattr(given, "compute", None)) else None)


def for_runtime(given: Any) -> rknn.CustomOperator:
    """The operator for a context."""

    def compute(call: rknn.OperatorCall) -> None:
        results = given.compute(Node(given.op_type, call.attr), [tensor.array for tensor in call.inputs])
        for tensor, result in zip(call.outputs, results, strict=True):
            np.copyto(tensor.array, np.asarray(result).reshape(tensor.array.shape), casting="unsafe")

    return rknn.CustomOperator(given.op_type, compute)
