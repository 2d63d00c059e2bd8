"""Scales that a quantised model brings along, kept: no calibration data is needed, and nothing is fitted."""

from __future__ import annotations

from ...errors import CalibrationError
from ...tensor import Affine, Quantization
from ..graph import Graph
from ..lower.steps import Step
from ..toolkit.quantizer import GivenRanges
from .tensor_scales import keeps_scale

__all__ = ["KeptRanges", "kept_quantization"]


class KeptRanges:
    """Asked for a tensor whose scale the model does not say: there is no way to know it without data."""

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        raise CalibrationError(
            "the model has scales of its own, but not for this tensor",
            tensor=name,
            hint="pass calibration data (dataset=..., --dataset FOLDER): then all scales are found anew; or compile with dtype fp16",
        )


def kept_quantization(ranges: GivenRanges, graph: Graph, steps: list[Step]) -> dict[str, Quantization]:
    """The quantisation of the tensors of *graph* that the model has scales for.

    Layers that only move codes have one scale on both sides: that of their input, or of their result where the input has none.
    """
    known = {*graph.inputs, *(name for node in graph.nodes for name in node.outputs)}
    result: dict[str, Quantization] = {
        name: Affine.per_tensor(scale, zero) for name, (scale, zero) in ranges.items() if name in known
    }
    moving = [step for step in steps if not step.is_float and keeps_scale(step)]
    for step in reversed(moving):
        if step.inputs[0] not in result and step.outputs[0] in result:
            result[step.inputs[0]] = result[step.outputs[0]]
    for step in moving:
        if step.inputs[0] in result:
            result.update(dict.fromkeys(step.outputs, result[step.inputs[0]]))
    return result
