"""The recipe's result in ONNX's own form: QuantizeLinear and DequantizeLinear after every tensor that has codes, weights as codes.

Such a model runs in onnxruntime, can be given to other toolkits, and compiles here without calibration data, with its scales kept
(:mod:`anynpu.compiler.importers.qdq` is the way back).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError
from ..toolkit.export import Handover
from ..toolkit.quantizer import toolkit_weights

__all__ = ["scales_of", "to_qdq"]

_OPSET = 13
"""The first in which the scales of a constant can differ by channel."""

_INT8 = (-128, 127)


def to_qdq(handed: Handover) -> Any:
    """The model of a handover with its ranges and weights as QuantizeLinear and DequantizeLinear."""
    return _Writer(_modern(handed.model), handed).run()


def scales_of(handed: Handover) -> dict[str, tuple[float, int]]:
    """Scale and zero point of every tensor that has codes, as ``compile(ranges=...)`` takes them."""
    return {name: _scale(low, high) for name, (low, high) in handed.ranges.items()}


def _scale(low: float, high: float) -> tuple[float, int]:
    scale = (high - low) / (_INT8[1] - _INT8[0])
    return scale, int(np.clip(np.rint(_INT8[0] - low / scale), *_INT8))


def _modern(proto: Any) -> Any:
    package = onnx()
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    if versions.get("", 0) >= _OPSET:
        copy = type(proto)()
        copy.CopyFrom(proto)
        return copy
    from onnx import version_converter

    try:
        return version_converter.convert_version(proto, _OPSET)
    except (RuntimeError, ValueError, IndexError, package.checker.ValidationError) as error:
        raise CompileError(
            f"the model has opset {versions.get('', 0)}, and its operators cannot be converted to {_OPSET}: {error}",
            hint="export it from its framework with opset 13 or later",
        ) from error


def _weight_axis(node: Any, weights: Array) -> int | None:
    """The axis of the output channels in a node's weights; None if they have none of their own."""
    values = {entry.name: entry.i for entry in node.attribute}
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if values.get("group", 1) == 1 else None
    if node.op_type == "Gemm" and weights.ndim == 2:
        return 0 if values.get("transB", 0) else 1
    return 1 if node.op_type == "MatMul" and weights.ndim == 2 else None


class _Writer:
    def __init__(self, proto: Any, handed: Handover) -> None:
        self._proto, self._handed = proto, handed
        self._helper, self._arrays = onnx().helper, onnx().numpy_helper
        self._constants: dict[str, Array] = {entry.name: self._arrays.to_array(entry) for entry in proto.graph.initializer}
        self._added: dict[str, Array] = {}
        self._read_as: dict[str, str] = {}

    def run(self) -> Any:
        graph = self._proto.graph
        outputs = {entry.name for entry in graph.output}
        nodes: list[Any] = []
        for entry in graph.input:
            nodes += self._pair(entry.name, entry.name, f"{entry.name}.rounded")
        for node in graph.node:
            nodes += self._weights(node)
            for index, name in enumerate(node.input):
                node.input[index] = self._read_as.get(name, name)
            nodes.append(node)
            for index, name in enumerate(node.output):
                if name in self._handed.ranges and name in outputs:
                    node.output[index] = f"{name}.float"
                    nodes += self._pair(name, node.output[index], name)
                else:
                    nodes += self._pair(name, name, f"{name}.rounded")
        del graph.node[:]
        graph.node.extend(nodes)
        used = {name for node in nodes for name in node.input} | outputs
        kept = [entry for entry in graph.initializer if entry.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.initializer.extend(self._arrays.from_array(value, name) for name, value in self._added.items())
        return self._proto

    def _pair(self, name: str, source: str, result: str) -> list[Any]:
        """The two nodes that round *source* to the codes of the tensor *name*; none if it has no codes."""
        if name not in self._handed.ranges:
            return []
        scale, zero = _scale(*self._handed.ranges[name])
        self._added[f"{name}.scale"], self._added[f"{name}.zero"] = np.array(scale, np.float32), np.array(zero, np.int8)
        if result != name:
            self._read_as[name] = result
        return self._nodes(name, source, result, axis=None)

    def _nodes(self, name: str, source: str, result: str, *, axis: int | None, codes: str = "") -> list[Any]:
        facts = {} if axis is None else {"axis": axis}
        ends = [f"{name}.scale", f"{name}.zero"]
        made = []
        if not codes:
            codes = f"{name}.codes"
            made.append(self._helper.make_node("QuantizeLinear", [source, *ends], [codes], **facts))
        made.append(self._helper.make_node("DequantizeLinear", [codes, *ends], [result], **facts))
        return made

    def _weights(self, node: Any) -> list[Any]:
        """Weights of an integer operator as codes, and the node that reads them; none if they stay as they are."""
        name = node.input[1] if len(node.input) > 1 else ""
        values = self._constants.get(name)
        if values is None or values.dtype != np.float32 or name in self._read_as or node.input[0] not in self._read_as:
            return []
        axis = _weight_axis(node, values)
        if axis is None:
            return []
        codes, scales, zeros = toolkit_weights(np.moveaxis(values, axis, 0))
        self._added[f"{name}.codes"] = np.ascontiguousarray(np.moveaxis(codes, 0, axis), np.int8)
        self._added[f"{name}.scale"], self._added[f"{name}.zero"] = scales.astype(np.float32), zeros.astype(np.int8)
        self._read_as[name] = f"{name}.rounded"
        return self._nodes(name, "", self._read_as[name], axis=axis, codes=f"{name}.codes")
