"""Re-fit: weights and biases that answer what the layers before them have already lost.

Convolution by convolution, in the order of execution, the weights are refitted by least squares: on the *rounded* input they shall give
what the float network gives there. Then they are rounded one column after the other, each making up for what the columns before it have
lost, and the bias takes what is left of the mean. Convolutions that end in an output keep their weights: there the background of a
picture outnumbers what the network is for, and a fit to it loses detections.

Nothing is fitted to labels, and nothing but weights and biases changes: the layers cost what they cost before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arithmetic import WeightScales, quantize_weights
from ..progress import Progress, tell
from ..tensor import Quantization
from ..types import Array, Floats
from .calibrate import FloatModel
from .forms import Form
from .graph import Graph, Node
from .groups import is_depthwise
from .quantize import head_tensors
from .simulate import QuantizedWeights, Rewriter, column_ratio, session_of, simulated_weights, step_of_node
from .steps import Step
from .windows import window_of

__all__ = ["FEWEST_SAMPLES", "refit"]

Sample = Mapping[str, Array]

FEWEST_SAMPLES = 8
"""With fewer samples a fit learns the samples instead of the layer."""

_RIDGE = 0.05
"""How strongly weights are held where they are, in relation to the mean energy of an input."""

_MAX_COLUMNS = 1200
_FEWEST_ROWS = 4000
_ROWS_PER_COLUMN = 6
_BLOCK = 64
_ROUNDS = 2
_MAX_BIAS = 2.0**30
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class _Target:
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
) -> dict[str, QuantizedWeights]:
    """Weights and biases fitted to normalised *samples*, by the result of their step; *sharing* says how weights share scales."""
    targets = _targets(graph, steps, len(samples))
    wanted = _float_results(graph, targets, samples)
    walk = _Walk(graph, steps, quantization, samples, sharing)
    fitted: dict[str, QuantizedWeights] = {}
    by_node = {id(target.node): target for target in targets}
    for node in graph.nodes:
        target = by_node.get(id(node))
        if target is None:
            walk.add(node)
            continue
        inputs = walk.values(node.inputs[0])
        made = _fit(graph, target, quantization, inputs, wanted.pop(node.outputs[0]), sharing)
        fitted[target.step.outputs[0]] = made
        walk.add(node, made)
        tell(progress, "fitting", len(fitted), len(targets))
    return fitted


def _targets(graph: Graph, steps: Sequence[Step], samples: int) -> list[_Target]:
    heads = head_tensors(graph, list(steps))
    rng = np.random.default_rng(0)
    found = []
    for step in steps:
        if step.form is not Form.CONV or step.is_float or step.outputs[0] in heads or graph.rank(step.node.inputs[0]) != 4:
            continue
        if step.node.rewritten:
            continue  # its weights are exact
        weights = graph.constants[step.node.inputs[1]]
        fits = is_depthwise(graph, step) or int(step.node.attribute("group", 1)) == 1
        if not fits or weights[0].size > _MAX_COLUMNS:
            continue
        count, _, height, width = graph.shapes[step.node.outputs[0]]
        pixels = count * height * width
        rows = -(-max(_FEWEST_ROWS, _ROWS_PER_COLUMN * weights[0].size) // max(samples, 1))
        taken = [rng.choice(pixels, rows, replace=False) if pixels > rows else np.arange(pixels) for _ in range(samples)]
        if sum(map(len, taken)) > 2 * weights[0].size:
            found.append(_Target(step, taken))
    return found


def _float_results(graph: Graph, targets: Sequence[_Target], samples: Sequence[Sample]) -> dict[str, Array]:
    """What the float network gives at the positions of each target: [positions, channels]."""
    names = [target.node.outputs[0] for target in targets]
    model = FloatModel(graph, names, {})
    found: dict[str, list[Array]] = {name: [] for name in names}
    for index, sample in enumerate(samples):
        values = model.run(sample)
        for name, target in zip(names, targets, strict=True):
            rows = np.moveaxis(values[name], 1, -1).reshape(-1, values[name].shape[1])
            found[name].append(rows[target.positions[index]])
    return {name: np.concatenate(parts) for name, parts in found.items()}


class _Walk:
    """The rounded network, executed piece by piece over all samples; only what later nodes read is kept."""

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        quantization: Mapping[str, Quantization],
        samples: Sequence[Sample],
        sharing: WeightScales,
    ) -> None:
        self._graph = graph
        self._quantization = quantization
        self._steps = step_of_node(steps)
        self._made_float = {name for step in steps if step.is_float for name in step.outputs}
        self._rounded = simulated_weights(graph, steps, quantization, {}, sharing)
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
        session = session_of(self._graph, self._pending, self._rewriter.constants, inputs, outputs)
        for environment in self._environments:
            results = session.run(outputs, {name: environment[name] for name in inputs})
            environment.update(zip(outputs, results, strict=True))
            for name in [name for name in environment if self._left.get(name, 0) <= 0 and name != wanted]:
                del environment[name]
        self._pending = []


def _fit(
    graph: Graph,
    target: _Target,
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
    pieces = [_columns(graph, step, value, taken) for value, taken in zip(inputs, target.positions, strict=True)]
    columns = np.concatenate(pieces)  # [rows, Cin, kernel]
    depthwise = is_depthwise(graph, step)
    ratio = column_ratio(graph, step, quantization)
    if ratio is not None:
        columns /= ratio.astype(np.float32)[None, :, None]
        weights = weights * ratio[None, :, None, None]
    source = quantization[step.inputs[0]].expand(graph.shapes[step.inputs[0]][1])[0].astype(np.float64)
    scale = source if depthwise else np.full(1, source.max())
    smallest = np.maximum(np.abs(bias) / (scale * _MAX_BIAS), 1e-9)
    fit = _fit_depthwise if depthwise else _fit_dense
    codes, scales, zeros, offset = fit(columns, wanted.astype(np.float64), weights, smallest, sharing)
    return QuantizedWeights(codes.reshape(weights.shape), scales, zeros, offset)


def _columns(graph: Graph, step: Step, values: Array, positions: npt.NDArray[np.int64]) -> Array:
    """What the convolution sees at some positions of its output: [positions, Cin, kernel]."""
    window = window_of(graph, step.node)
    _, _, height, width = graph.shapes[step.node.outputs[0]]
    top, left, bottom, right = window.pads
    padded = np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)))
    image, rest = np.divmod(positions, height * width)
    row, column = np.divmod(rest, width)
    kernel = window.kernel
    result = np.empty((len(positions), values.shape[1], kernel[0] * kernel[1]), np.float32)
    for index in range(kernel[0] * kernel[1]):
        down, across = divmod(index, kernel[1])
        rows = row * window.strides[0] + down * window.dilations[0]
        columns = column * window.strides[1] + across * window.dilations[1]
        result[:, :, index] = padded[image, :, rows, columns]
    return result


def _fit_dense(
    columns: Array, wanted: Floats, weights: Floats, smallest: Floats, sharing: WeightScales
) -> tuple[Array, Array, Array, Floats]:
    flat = columns.reshape(len(columns), -1)
    mean, target_mean = flat.mean(axis=0, dtype=np.float64), wanted.mean(axis=0)
    centred = flat - mean.astype(np.float32)
    start = weights.reshape(len(weights), -1)
    energy = (centred.T @ centred).astype(np.float64) / len(flat)
    energy[np.diag_indices_from(energy)] += _RIDGE * np.trace(energy) / len(energy) + _TINY
    missing = (wanted - target_mean).astype(np.float32) - centred @ start.T.astype(np.float32)
    step = np.linalg.solve(energy, (centred.T @ missing).astype(np.float64) / len(flat)).T
    better = start + step
    codes, scales, zeros = quantize_weights(better, smallest_scale=smallest, scales=sharing)
    size, zero = scales.astype(np.float64), zeros.astype(np.float64)
    chosen = (codes - zero[:, None]) * size[:, None]
    _round_columns(better, chosen, energy, size, zero)
    offset = target_mean - chosen @ mean
    return np.rint(chosen / size[:, None] + zero[:, None]).astype(np.int8), scales, zeros, offset


def _round_columns(better: Floats, chosen: Floats, energy: Floats, size: Floats, zero: Floats) -> None:
    """Move each column of *chosen* to the codes that make up best for what the other columns lose; in place.

    Columns are taken in blocks: inside a block each sees at once what the one before it did, the others are told once a block.
    """
    gradient = (better - chosen) @ energy
    diagonal = np.diag(energy)
    for _ in range(_ROUNDS):
        changed = False
        for start in range(0, len(energy), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(energy)))
            local = gradient[:, block].copy()
            differences = np.zeros_like(local)
            for index in range(local.shape[1]):
                column = start + index
                ideal = chosen[:, column] + local[:, index] / diagonal[column]
                moved = (np.clip(np.rint(ideal / size) + zero, -128, 127) - zero) * size
                difference = chosen[:, column] - moved
                if np.any(difference):
                    local += difference[:, None] * energy[column, block][None]
                    differences[:, index] = difference
                    chosen[:, column] = moved
                    changed = True
            gradient += differences @ energy[block]
        if not changed:
            break


def _fit_depthwise(
    columns: Array, wanted: Floats, weights: Floats, smallest: Floats, sharing: WeightScales
) -> tuple[Array, Array, Array, Floats]:
    mean, target_mean = columns.mean(axis=0, dtype=np.float64), wanted.mean(axis=0)
    centred = np.ascontiguousarray((columns - mean.astype(np.float32)).transpose(1, 2, 0))  # [C, kernel, rows]
    start = weights.reshape(len(weights), -1)
    taps = start.shape[1]
    energy = (centred @ centred.transpose(0, 2, 1)).astype(np.float64) / centred.shape[2]
    held = _RIDGE * np.trace(energy, axis1=1, axis2=2) / taps + _TINY
    energy += held[:, None, None] * np.eye(taps)
    predicted = (start.astype(np.float32)[:, None, :] @ centred)[:, 0]
    missing = (wanted - target_mean).T.astype(np.float32) - predicted
    right = (centred @ missing[:, :, None]).astype(np.float64) / centred.shape[2]
    better = start + np.linalg.solve(energy, right)[:, :, 0]
    codes, scales, zeros = quantize_weights(better, smallest_scale=smallest, scales=sharing)
    size, zero = scales.astype(np.float64), zeros.astype(np.float64)
    chosen = (codes - zero[:, None]) * size[:, None]
    for _ in range(_ROUNDS):
        for index in range(taps):
            gradient = ((better - chosen) * energy[:, index]).sum(axis=1)
            ideal = chosen[:, index] + gradient / energy[:, index, index]
            chosen[:, index] = (np.clip(np.rint(ideal / size) + zero, -128, 127) - zero) * size
    offset = target_mean - (chosen * mean).sum(axis=1)
    return np.rint(chosen / size[:, None] + zero[:, None]).astype(np.int8), scales, zeros, offset
