"""Re-fit: weights and biases that answer what the layers before them have already lost.

Convolution by convolution, in the order of execution, the weights are refitted by least squares: on the *rounded* input they shall give
what the float network gives there. Then they are rounded one column after the other, each making up for what the columns before it have
lost, and the bias takes what is left of the mean. Convolutions that end in an output keep their weights: there the background of a
picture outnumbers what the network is for, and a fit to it loses detections.

Nothing is fitted to labels, and nothing but weights and biases changes: the layers cost what they cost before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..._util.progress import Progress, tell
from ..._util.types import Array
from ...program.arithmetic import WeightScales
from ...tensor import Quantization
from ..graph import Graph, Node
from ..lower.forms import Form
from ..lower.steps import Step
from ..lower.windows import window_of
from .blas import one_blas_thread
from .calibrate import FloatModel
from .channel_groups import is_depthwise
from .least_squares import at_positions, channel_columns_of, columns_of, fit_dense, fit_depthwise
from .simulate import (
    KnownWeights,
    QuantizedWeights,
    Rewriter,
    column_ratio,
    least_scale,
    session_of,
    simulated_weights,
    step_of_node,
)
from .tensor_scales import head_tensors
from .threads import in_order, thread_count

__all__ = ["FEWEST_SAMPLES", "MAX_KEPT", "FloatAnswers", "Target", "refit", "targets_of"]

Sample = Mapping[str, Array]

FEWEST_SAMPLES = 8
"""With fewer samples a fit learns the samples instead of the layer."""

_MAX_COLUMNS = 1200
_FEWEST_ROWS = 4000
_FEWEST_BY_CHANNEL = 1500
"""Positions for the few weights that a depthwise convolution has for a channel."""

_ROWS_PER_COLUMN = 4
_MAX_BIAS = 2.0**30
MAX_KEPT = 1 << 28
"""Bytes of the float network's answers that are kept for another re-fit."""


@dataclass(frozen=True, eq=False)
class Target:
    """A convolution to fit, and the positions of its output that are looked at, sample by sample."""

    step: Step
    positions: list[npt.NDArray[np.int64]]

    @property
    def node(self) -> Node:
        return self.step.node


def refit(
    graph: Graph,
    steps: Sequence[Step],
    quantization: Mapping[str, Quantization],
    samples: Sequence[Sample],
    progress: Progress | None = None,
    sharing: WeightScales = WeightScales.CHANNEL,
    answers: FloatAnswers | None = None,
    known: KnownWeights | None = None,
) -> dict[str, QuantizedWeights]:
    """Weights and biases fitted to normalised *samples*, by the result of their step; *sharing* says how weights share scales.

    :param answers: what is known from an earlier re-fit of the same network to the same samples
    :param known: rounded weights of the network
    """
    targets = targets_of(graph, steps, len(samples))
    if not targets:
        return {}
    wanted = (answers or FloatAnswers()).of(graph, targets, samples)
    walk = _Walk(graph, steps, quantization, samples, sharing, known)
    fitted: dict[str, QuantizedWeights] = {}
    by_node = {id(target.node): target for target in targets}
    for node in graph.nodes:
        target = by_node.get(id(node))
        if target is None:
            walk.add(node)
            continue
        inputs = walk.values(node.inputs[0])
        with one_blas_thread():
            made = _fit(graph, target, quantization, inputs, wanted.pop(node.outputs[0]), sharing)
        fitted[target.step.outputs[0]] = made
        walk.add(node, made)
        tell(progress, "fitting", len(fitted), len(targets))
    return fitted


def targets_of(graph: Graph, steps: Sequence[Step], samples: int) -> list[Target]:
    """The convolutions to fit to a number of samples. The positions of each are its own, whatever others are fitted."""
    heads = head_tensors(graph, list(steps))
    found = []
    for number, step in enumerate(steps):
        if step.form is not Form.CONV or step.is_float or step.outputs[0] in heads or graph.rank(step.node.inputs[0]) != 4:
            continue
        if step.node.rewritten:
            continue  # its weights are exact
        weights = graph.constants[step.node.inputs[1]]
        depthwise = is_depthwise(graph, step)
        fits = depthwise or int(step.node.attribute("group", 1)) == 1
        if not fits or weights[0].size > _MAX_COLUMNS:
            continue
        count, _, height, width = graph.shapes[step.node.outputs[0]]
        pixels = count * height * width
        fewest = _FEWEST_BY_CHANNEL if depthwise else _FEWEST_ROWS
        rows = -(-max(fewest, _ROWS_PER_COLUMN * weights[0].size) // max(samples, 1))
        rng = np.random.default_rng(number)
        taken = [np.sort(rng.choice(pixels, rows, replace=False)) if pixels > rows else np.arange(pixels) for _ in range(samples)]
        if sum(map(len, taken)) > 2 * weights[0].size:
            found.append(Target(step, taken))
    return found


class FloatAnswers:
    """What the float network gives at the positions of targets, computed once for all re-fits that look at the same positions."""

    def __init__(self, known: Mapping[str, tuple[Target, Array]] | None = None) -> None:
        self._known = dict(known or {})

    def of(self, graph: Graph, targets: Sequence[Target], samples: Sequence[Sample]) -> dict[str, Array]:
        """The answers by the result of each target's node: [channels, positions]. The caller may take them out of the dict."""
        if not all(self._has(target) for target in targets):
            found = _float_results(graph, targets, samples)
            self._known = {target.node.outputs[0]: (target, found[target.node.outputs[0]]) for target in targets}
        result = {target.node.outputs[0]: self._known[target.node.outputs[0]][1] for target in targets}
        if sum(array.nbytes for array in result.values()) > MAX_KEPT:
            self._known = {}
        return result

    def _has(self, target: Target) -> bool:
        known = self._known.get(target.node.outputs[0])
        if known is None or len(known[0].positions) != len(target.positions):
            return False
        return all(np.array_equal(one, other) for one, other in zip(known[0].positions, target.positions, strict=True))


def _float_results(graph: Graph, targets: Sequence[Target], samples: Sequence[Sample]) -> dict[str, Array]:
    """What the float network gives at the positions of each target: [channels, positions]."""
    names = [target.node.outputs[0] for target in targets]
    threads = thread_count(sum(4 * math.prod(graph.shapes[name]) for name in names))
    model = FloatModel(graph, names, {}, threads=threads)

    def answers(numbered: tuple[int, Sample]) -> list[Array]:
        index, sample = numbered
        values = model.run(sample)
        return [at_positions(values[name], target.positions[index]) for name, target in zip(names, targets, strict=True)]

    parts = list(in_order(answers, enumerate(samples), threads))
    return {name: np.concatenate([part[index] for part in parts], axis=1) for index, name in enumerate(names)}


class _Walk:
    """The rounded network, executed piece by piece over all samples; only what later nodes read is kept."""

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        quantization: Mapping[str, Quantization],
        samples: Sequence[Sample],
        sharing: WeightScales,
        known: KnownWeights | None,
    ) -> None:
        self._graph = graph
        self._quantization = quantization
        self._steps = step_of_node(steps)
        self._made_float = {name for step in steps if step.is_float for name in step.outputs}
        self._rounded = simulated_weights(graph, steps, quantization, {}, sharing, known)
        self._rewriter = Rewriter(graph, quantization)
        self._pending: list[Node] = [
            node for name in graph.inputs if name in quantization for node in self._rewriter.rounding(name)
        ]
        self._environments: list[dict[str, Array]] = [
            {name: np.asarray(sample[name]) for name in graph.inputs} for sample in samples
        ]
        self._left: dict[str, int] = {}
        for node in graph.nodes:
            for name in self._reads(node):
                self._left[name] = self._left.get(name, 0) + 1

    def _reads(self, node: Node) -> list[str]:
        step = self._steps.get(id(node))
        inputs = self._rewriter.reads(node, self._made_float, in_float=step is not None and step.is_float)
        return self._rewriter.within_table(step, node, inputs)

    def add(self, node: Node, fitted: QuantizedWeights | None = None) -> None:
        """Let a node run with the next piece, with *fitted* weights where there are such."""
        step = self._steps.get(id(node))
        inputs = self._reads(node)
        for name in inputs:
            self._left[name] -= 1
        if step is not None and step.node is node and step.outputs[0] in self._rounded:
            changed = self._rounded[step.outputs[0]]
            if fitted is not None:
                one = {step.outputs[0]: fitted}
                changed = simulated_weights(self._graph, [step], self._quantization, one)[step.outputs[0]]
            inputs = self._rewriter.with_weights(step, inputs, *changed)
        self._pending += self._rewriter.rewritten(step, node, inputs)
        for name in node.outputs:
            if name in self._quantization:
                self._pending += self._rewriter.rounding(name)

    def values(self, name: str) -> list[Array]:
        """A tensor, rounded, for each sample. Everything that was added runs first."""
        wanted = self._rewriter.rounded(name) if name in self._quantization else name
        if wanted not in self._environments[0]:
            self._flush(wanted)
        return [environment[wanted] for environment in self._environments]

    def _flush(self, wanted: str) -> None:
        made = {name for node in self._pending for name in node.outputs}
        constants = {**self._graph.constants, **self._rewriter.constants}
        inputs = [
            name
            for name in dict.fromkeys(name for node in self._pending for name in node.inputs)
            if name and name not in made and name not in constants
        ]
        outputs = [name for name in made if name == wanted or self._left.get(name, 0) > 0]
        threads = min(thread_count(), len(self._environments))
        session = session_of(self._graph, self._pending, self._rewriter.constants, inputs, outputs, threads=threads)

        def advance(environment: dict[str, Array]) -> None:
            results = session.run(outputs, {name: environment[name] for name in inputs})
            environment.update(zip(outputs, results, strict=True))
            for name in [name for name in environment if self._left.get(name, 0) <= 0 and name != wanted]:
                del environment[name]

        for _ in in_order(advance, self._environments, threads):
            pass
        self._pending = []


def _fit(
    graph: Graph,
    target: Target,
    quantization: Mapping[str, Quantization],
    inputs: list[Array],
    wanted: Array,
    sharing: WeightScales,
) -> QuantizedWeights:
    step, node = target.step, target.node
    weights = graph.constants[node.inputs[1]].astype(np.float64)
    bias = np.zeros(len(weights))
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = graph.constants[node.inputs[2]].astype(np.float64).reshape(-1)
    _, _, height, width = graph.shapes[node.outputs[0]]
    window, depthwise = window_of(graph, node), is_depthwise(graph, step)
    source = quantization[step.inputs[0]].expand(graph.shapes[step.inputs[0]][1])[0].astype(np.float64)
    scale = source if depthwise else np.full(1, source.max())
    ratio = column_ratio(graph, step, quantization)
    if ratio is not None:  # never of a depthwise convolution
        weights = weights * ratio[None, :, None, None]
    smallest = np.maximum(np.abs(bias) / (scale * _MAX_BIAS), max(1e-9, least_scale(step, weights, scale, quantization)))
    if depthwise:

        def gathered(channels: slice) -> Array:
            return channel_columns_of(window, (height, width), [sample[:, channels] for sample in inputs], target.positions)

        codes, scales, zeros, offset = fit_depthwise(gathered, wanted, weights, smallest, sharing)
    else:
        columns = columns_of(window, (height, width), inputs, target.positions)
        if ratio is not None:
            columns /= ratio.astype(np.float32)[:, None]
        codes, scales, zeros, offset = fit_dense(columns, wanted, weights, smallest, sharing)
    return QuantizedWeights(codes.reshape(weights.shape), scales, zeros, offset)
