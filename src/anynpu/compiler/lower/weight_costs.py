"""What layers cost in weight bytes and multiply-accumulates."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ...program import Curve, Pool
from ..graph import Graph
from .steps import Step

__all__ = ["constant_bytes", "float_macs"]


def constant_bytes(op: Any) -> int:
    """Bytes of all arrays of an operator, but for what a chip holds in memory of its own: tables, and factors of an average."""
    if isinstance(op, Curve):
        return 0
    if isinstance(op, Pool):
        return constant_bytes(op.epilogue)
    if isinstance(op, np.ndarray):
        return int(op.nbytes)
    if isinstance(op, tuple):
        return sum(map(constant_bytes, op))
    return sum(constant_bytes(getattr(op, name)) for name in _FIELDS[type(op)])


class _Fields(dict[type, tuple[str, ...]]):
    """The names of what a dataclass has, looked up once; nothing for any other type."""

    def __missing__(self, kind: type) -> tuple[str, ...]:
        self[kind] = tuple(entry.name for entry in fields(kind)) if is_dataclass(kind) else ()
        return self[kind]


_FIELDS = _Fields()


def float_macs(graph: Graph, step: Step) -> int:
    """Multiply-accumulates of a float step; element-wise work does not count."""
    total = 0
    for node in step.nodes:
        result = graph.shapes[node.outputs[0]]
        if node.op == "Conv":
            total += math.prod(result) * math.prod(graph.shapes[node.inputs[1]][1:])
        elif node.op == "ConvTranspose":
            source = graph.shapes[node.inputs[0]]
            total += math.prod(source) // source[1] * math.prod(graph.shapes[node.inputs[1]])
        elif node.op in ("MatMul", "Gemm"):
            total += math.prod(result) * graph.shapes[node.inputs[0]][-1]
        elif node.op in ("LSTM", "GRU"):
            steps, batch = graph.shapes[node.inputs[0]][:2]
            total += steps * batch * sum(math.prod(graph.shapes[name]) for name in node.inputs[1:3])
    return total
