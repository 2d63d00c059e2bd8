"""From a TFLite file to ONNX, in memory: real numbers throughout, with the scales of the file as annotations.

The result computes what the file means: weights are real numbers, codes are those that they stand for. Scale and zero point of every tensor
that has codes stand in ONNX's own place for them, the quantisation annotations of the graph, as int8 has them.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ...._util.optional import onnx
from ....errors import AnynpuError, CompileError, ModelFormatError
from ..annotations import KnownScales, annotate
from .builder import NCHW, OPSET, PLAIN, Builder
from .elementwise import AGNOSTIC
from .model import TfliteModel, TfliteOperator, read_tflite
from .plain import PLAIN_RULES
from .windows import SPATIAL

__all__ = ["tflite_to_onnx"]

_log = logging.getLogger("anynpu.compiler")

_TAILS = {"TFLite_Detection_PostProcess"}
"""Operators at the end of a detector that no NPU can run; what they read becomes the result."""

_RULES = {**SPATIAL, **AGNOSTIC, **PLAIN_RULES}
_IR_VERSION = 8

_TWO = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", "ADD", "SUB", "MUL", "DIV", "PRELU", "GATHER", "SPLIT"),
    *("MAXIMUM", "MINIMUM", "POW", "LESS", "GREATER", "EQUAL", "NOT_EQUAL", "LESS_EQUAL", "GREATER_EQUAL", "LOGICAL_AND"),
    *("LOGICAL_OR", "SQUARED_DIFFERENCE", "FLOOR_DIV", "EMBEDDING_LOOKUP"),
)
_INPUTS = {**dict.fromkeys(_TWO, 2), "TRANSPOSE_CONV": 3, "SELECT": 3, "SELECT_V2": 3}
"""How many inputs an operator has at least."""


def tflite_to_onnx(data: bytes, name: str = "") -> Any:
    """The ONNX model of a TFLite file. Inputs that are pictures are NCHW; outputs have the axes of the file."""
    try:
        return _converted(_without_tail(read_tflite(data)), name)
    except AnynpuError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:  # shapes and options that contradict each other
        raise ModelFormatError(
            f"the TFLite file is damaged: its operators do not fit their tensors ({str(error)[:200]})",
            hint="convert the model again",
        ) from error


def _converted(model: TfliteModel, name: str) -> Any:
    builder = Builder(model)
    helper = onnx().helper
    inputs = []
    for index in dict.fromkeys(model.inputs):
        if model.tensors[index].is_constant:
            continue
        entry, shape = builder.give_input(index, NCHW if _is_picture(builder, index) else PLAIN)
        inputs.append(helper.make_tensor_value_info(entry, _kind(model, index), shape))
    for operator in model.operators:
        if id(operator) not in builder.done:
            _convert(builder, operator)
    outputs = []
    for index in dict.fromkeys(model.outputs):
        made, target = builder.read(index), model.tensors[index].name
        if made != target:
            builder.node("Identity", [made], [target])
            if made in builder.ranges:
                builder.ranges.setdefault(target, builder.ranges[made])
        outputs.append(helper.make_tensor_value_info(target, _kind(model, index), model.tensors[index].shape))
    graph = helper.make_graph(builder.nodes, name or "tflite", inputs, outputs, builder.initializers)
    annotate(graph, KnownScales(builder.ranges, builder.weights))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
    proto.producer_name = "TFLite"
    proto.doc_string = model.description
    return proto


def _convert(builder: Builder, operator: TfliteOperator) -> None:
    rule = _RULES.get(operator.kind)
    if rule is None:
        raise builder.refusal(operator, f"TFLite's operator {operator.kind} is not understood")
    least = _INPUTS.get(operator.kind, 1)
    if len(operator.inputs) < least or any(index < 0 for index in operator.inputs[:least]):
        raise builder.refusal(operator, f"it has {len(operator.inputs)} inputs")
    rule(builder, operator)


def _kind(model: TfliteModel, index: int) -> int:
    return int(onnx().helper.np_dtype_to_tensor_dtype(np.dtype(model.tensors[index].dtype)))


def _is_picture(builder: Builder, index: int) -> bool:
    """Whether an input of four axes comes to an operator with windows before its axes matter."""
    waiting, seen = [index], set()
    while waiting:
        current = waiting.pop()
        if current in seen or builder.rank(current) != 4:
            continue
        seen.add(current)
        for reader in builder.readers.get(current, []):
            if reader.kind in SPATIAL:
                return True
            if reader.kind in AGNOSTIC:
                waiting += reader.outputs
    return False


def _without_tail(model: TfliteModel) -> TfliteModel:
    """The network before an operator that finishes detections: its inputs become results."""
    last = model.operators[-1] if model.operators else None
    if last is None or last.kind not in _TAILS:
        if not model.operators:
            raise CompileError("the TFLite model has no operators", hint="convert the model again")
        return model
    outputs = tuple(index for index in last.inputs if index >= 0 and not model.tensors[index].is_constant)
    names = ", ".join(f"'{model.tensors[index].name}'" for index in outputs)
    _log.warning(
        "%s runs on no NPU: the model ends before it, with the outputs %s; do the rest in your program", last.kind, names
    )
    return TfliteModel(model.description, model.tensors, model.operators[:-1], model.inputs, outputs)
