"""Scales that a quantised model brings along (:mod:`anynpu.compiler.importers.qdq`), kept through compilation.

Layers are computed in integers where all of their tensors have a scale; others are float, or get their scales from calibration data where
there is some. Weights keep their codes: they are recognised by their values, since folding may have renamed or transposed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..._util.types import Array
from ...program.arithmetic import WeightScales
from ...tensor import Quantization
from ..graph import Graph
from ..importers.qdq import QdqWeights
from ..lower.forms import Form
from ..lower.steps import Step
from .tensor_scales import keeps_scale

__all__ = ["KeptScales", "kept_codes", "kept_weights", "only_known", "spread"]

_WEIGHTED = {Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE}


@dataclass(frozen=True, eq=False)
class KeptScales:
    """Scale and zero point of weights by output channel, which give the codes that a quantised model had."""

    scales: Array
    zeros: Array


def kept_codes(weights: Array, kept: KeptScales) -> tuple[Array, Array, Array]:
    """Codes, scales and zero points of weights whose first axis is the output channel."""
    shape = (-1, *(1,) * (weights.ndim - 1))
    scales = np.broadcast_to(kept.scales, len(weights)).astype(np.float32)
    zeros = np.broadcast_to(kept.zeros, len(weights)).astype(np.int32)
    codes = np.rint(weights.astype(np.float64) / scales.reshape(shape).astype(np.float64)) + zeros.reshape(shape)
    return np.clip(codes, -128, 127).astype(np.int8), scales, zeros


def kept_weights(
    graph: Graph, steps: Iterable[Step], weights: Mapping[str, QdqWeights], sharing: WeightScales
) -> dict[str, KeptScales]:
    """The scales of all steps whose weights still are those of the quantised model, by the result of the step."""
    known = [entry for entry in weights.values() if entry.codes.dtype == np.int8 and entry.codes.ndim > 1]
    result: dict[str, KeptScales] = {}
    for step in steps:
        if step.is_float or step.form not in _WEIGHTED:
            continue
        stored = graph.constants[step.node.inputs[1]]
        channels = graph.shapes[step.outputs[0]][-1 if step.form is Form.DENSE else 1]
        for entry in known:
            if entry.codes.size != stored.size or entry.scales.size not in (1, channels):
                continue
            if entry.scales.size > 1 and not sharing.by_channel:
                continue
            if _same(entry.values, stored):
                result[step.outputs[0]] = KeptScales(entry.scales, entry.zeros)
                break
    return result


def _same(values: Array, stored: Array) -> bool:
    if values.shape == stored.shape:
        return bool(np.array_equal(values, stored))
    return values.ndim == stored.ndim == 2 and values.T.shape == stored.shape and bool(np.array_equal(values.T, stored))


def spread(graph: Graph, steps: Sequence[Step], given: dict[str, Quantization]) -> dict[str, Quantization]:
    """Give a scale to tensors that have none beside those that have one, where steps only move codes; in place, and returned.

    What is moved to several places gets a scale from there if all have the same: otherwise it would be rounded twice.
    """
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)

    def shared(name: str) -> Quantization | None:
        """The one scale that all steps that read a tensor move it to."""
        if name in graph.outputs or any(step.is_float or not keeps_scale(step) for step in readers[name]):
            return None
        scales = {given.get(result) for step in readers[name] for result in step.outputs}
        return scales.pop() if len(scales) == 1 else None

    for order in (steps, steps[::-1], steps):
        for step in order:
            if step.is_float or not keeps_scale(step):
                continue
            source = step.inputs[0]
            if source not in given:
                scale = shared(source)
                if scale is not None:
                    given[source] = scale
            if source in given:
                for result in step.outputs:
                    given.setdefault(result, given[source])
    return given


def only_known(graph: Graph, steps: Sequence[Step], given: Mapping[str, Quantization]) -> tuple[Graph, list[Step]]:
    """The graph and its steps with everything in float whose scales are not known."""

    def known(step: Step) -> bool:
        names = [*step.reads, *step.outputs]
        if step.rounds_before_activation:
            names.append(step.before_activation)
        return all(name in given for name in names)

    made = [step if step.is_float or known(step) else replace(step, is_float=True) for step in steps]
    return replace(graph, coded=frozenset(name for name in graph.coded if name in given)), made
