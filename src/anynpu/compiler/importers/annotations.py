"""Scales that a model brings along, in ONNX's own place for them: the quantisation annotations of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array

__all__ = ["KnownScales", "annotate", "known_scales"]

_SCALE, _ZERO, _WEIGHTS = "SCALE_TENSOR", "ZERO_POINT_TENSOR", "WEIGHT_SCALE_TENSOR"


@dataclass(frozen=True, eq=False)
class KnownScales:
    """What is known of a quantised network.

    :ivar ranges: scale and int8 zero point of tensors
    :ivar weights: scales of the weights, one or by output channel, by the tensor that their node makes
    """

    ranges: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)


def annotate(graph: Any, scales: KnownScales) -> None:
    """Write scales into an ONNX graph; they become constants of it."""
    entries: dict[str, dict[str, Any]] = {}
    for name, (scale, zero) in scales.ranges.items():
        entries.setdefault(name, {}).update({_SCALE: np.float32(scale), _ZERO: np.int8(zero)})
    for name, values in scales.weights.items():
        entries.setdefault(name, {})[_WEIGHTS] = np.asarray(values, np.float32)
    helper = onnx().numpy_helper
    for index, (name, entry) in enumerate(entries.items()):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        for key, value in entry.items():
            constant = f"anynpu.{key.lower()}.{index}"
            graph.initializer.append(helper.from_array(np.asarray(value), constant))
            annotation.quant_parameter_tensor_names.add(key=key, value=constant)


def known_scales(proto: Any) -> KnownScales:
    """The scales with which an ONNX model is annotated: those of tensors that have just one, and those of weights."""
    annotations = proto.graph.quantization_annotation
    if not annotations:
        return KnownScales()
    wanted = {entry.value for annotation in annotations for entry in annotation.quant_parameter_tensor_names}
    helper = onnx().numpy_helper
    values = {tensor.name: helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name in wanted}
    ranges: dict[str, tuple[float, int]] = {}
    weights: dict[str, Array] = {}
    for annotation in annotations:
        names = {entry.key: entry.value for entry in annotation.quant_parameter_tensor_names}
        scale, zero, by_channel = (values.get(names.get(key, "")) for key in (_SCALE, _ZERO, _WEIGHTS))
        if by_channel is not None and _sound(by_channel):
            weights[annotation.tensor_name] = by_channel.reshape(-1)
        if scale is None or scale.size != 1 or not _sound(scale) or (zero is not None and zero.size != 1):
            continue
        code = 0 if zero is None else int(zero.reshape(-1)[0]) - (128 if zero.dtype == np.uint8 else 0)
        if -128 <= code <= 127:
            ranges[annotation.tensor_name] = float(scale.reshape(-1)[0]), code
    return KnownScales(ranges, weights)


def _sound(scales: Array) -> bool:
    return scales.dtype.kind == "f" and bool(np.all(np.isfinite(scales) & (scales > 0)))
