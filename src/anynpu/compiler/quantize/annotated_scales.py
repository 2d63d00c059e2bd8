"""Models whose scales stand beside them (:mod:`anynpu.compiler.importers.annotations`), as a full-integer TFLite file brings them.

Taken like a model with QuantizeLinear nodes, every tensor that has a scale is rounded to its codes, as the interpreter of such a file does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ..importers import known_scales
from ..importers.qdq import MOVES, Qdq, QdqWeights

__all__ = ["as_qdq"]


def as_qdq(proto: Any) -> Qdq:
    """The model with the scales that it is annotated with, and the codes of its weights; without annotations just the model."""
    known = known_scales(proto)
    if not known.ranges:
        return Qdq(proto)
    makers = {name: node for node in proto.graph.node for name in node.output}
    read = {makers[name].input[1]: name for name in known.weights if name in makers and len(makers[name].input) > 1}
    stored = {entry.name: entry for entry in proto.graph.initializer if entry.name in read}
    weights = {}
    for name, entry in stored.items():
        node = makers[read[name]]
        made = _codes(onnx().numpy_helper.to_array(entry), known.weights[read[name]], _output_axis(node, len(entry.dims)))
        if made is not None:
            weights[name] = made

    def moves(name: str) -> bool:
        maker = makers.get(name)
        return maker is not None and maker.op_type in MOVES and known.ranges.get(maker.input[0]) == known.ranges[name]

    return Qdq(proto, known.ranges, weights, frozenset(name for name in known.ranges if not moves(name)))


def _output_axis(node: Any, rank: int) -> int:
    """The axis of a node's weights that counts the output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    turned = any(entry.name == "transB" and entry.i for entry in node.attribute)
    return 0 if turned else rank - 1


def _codes(values: Array, scales: Array, axis: int) -> QdqWeights | None:
    """The codes that weights were; None where they were none of eight bits with these scales."""
    if scales.size not in (1, values.shape[axis]):
        return None
    shape = [1] * values.ndim
    shape[axis] = -1
    codes = np.rint(values.astype(np.float64) / (scales.reshape(shape) if scales.size > 1 else scales.reshape(()))).astype(
        np.int64
    )
    if codes.size and (codes.min() < -128 or codes.max() > 127):
        return None
    made = QdqWeights(codes.astype(np.int8), scales.astype(np.float32), np.zeros(scales.size, np.int64), axis)
    return made if np.array_equal(made.values, values) else None
