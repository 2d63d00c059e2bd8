"""Weight reconstruction: weights by least squares with error-compensating rounding, for inputs as earlier quantized layers give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.progress import Progress, tell
from ..._util.types import Array, Floats
from ...program.arithmetic import WeightScales, quantize_weights
from ...tensor import Quantization
from ..graph import Graph, Node
from ..lower.attributes import Window, window_of
from ..lower.forms import Form
from ..lower.steps import Step
from .calibrate import FloatModel
from .channel_groups import is_depthwise
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
from .threads import in_order, one_blas_thread, thread_count

# The arithmetic of the re-fit: weights by least squares, rounded one column after the other so that each makes up for those
# before it.


Positions = npt.NDArray[np.int64]
Fitted = tuple[Array, Array, Array, Floats]
"""Quantized values, scales, zero points and bias."""

_RIDGES = (0.05, 0.25, 1.0, 4.0)
"""How strongly weights may be held where they are, in relation to the mean energy of an input."""

_FITTED, _JUDGING = 2, 3
"""Two thirds of the positions try how strongly, and the others, which are those of other samples, evaluate."""

_TELLING = 48
"""Outputs that report how strongly weights are held."""

_BLOCK = 64
_STRIPE = 4 * _BLOCK
_LARGE = 2 * _BLOCK
_ROUNDS = 2
_WORTH_THREADS = 1 << 19
"""Numbers that are moved, or products, from which on a second thread pays."""

_CACHED = 1 << 19
"""Numbers of a depthwise convolution that are worked on together."""

_TINY = 1e-12


def at_positions(values: Array, positions: Positions) -> Array:
    """A tensor [N, C, H, W] at some positions of N, H and W: [C, positions]."""
    batch, channels = values.shape[:2]
    if batch == 1:
        result: Array = values.reshape(channels, -1).take(positions, axis=1)
        return result
    planes = values.reshape(batch, channels, -1)
    image, place = np.divmod(positions, planes.shape[2])
    gathered: Array = planes[image, :, place].T
    return gathered


def columns_of(window: Window, extent: tuple[int, int], values: Sequence[Array], positions: Sequence[Positions]) -> Array:
    """What a convolution sees at some positions of its output of height and width *extent*, over all samples: [positions, Cin, kernel]."""
    return _columns(window, extent, values, positions, by_channel=False)


def channel_columns_of(window: Window, extent: tuple[int, int], values: Sequence[Array], positions: Sequence[Positions]) -> Array:
    """As :func:`columns_of`, in the order of a depthwise convolution: [Cin, kernel, positions]."""
    return _columns(window, extent, values, positions, by_channel=True)


def _columns(
    window: Window, extent: tuple[int, int], values: Sequence[Array], positions: Sequence[Positions], *, by_channel: bool
) -> Array:
    _, channels, high, wide = values[0].shape
    taps = window.kernel[0] * window.kernel[1]
    ends = np.cumsum([len(taken) for taken in positions])
    count = int(ends[-1])
    result = np.empty((channels, taps, count) if by_channel else (count, channels, taps), np.float32)
    shape = ffi.new(
        "struct anynpu_window *",
        (channels, high, wide, *extent, window.kernel, window.strides, window.dilations, window.pads[:2]),
    )

    def fill(part: tuple[int, Array, Positions]) -> None:
        end, sample, taken = part
        source = np.ascontiguousarray(sample, np.float32)
        places = np.ascontiguousarray(taken, np.int64)
        given = (shape, _pointer("float", source), _pointer("int64_t", places), len(places))
        start = end - len(places)
        if by_channel:
            scratch = np.empty((len(places) + 1) * taps, np.int64)
            target = _pointer("float", result) + start
            lib.anynpu_channel_columns_f32(*given, _pointer("int64_t", scratch), count, target)
        else:
            scratch = np.empty(taps, np.int64)
            lib.anynpu_columns_f32(*given, _pointer("int64_t", scratch), _pointer("float", result) + start * channels * taps)

    threads = 1 if by_channel else _threads_for(result.size)
    for _ in in_order(fill, zip(ends.tolist(), values, positions, strict=True), threads):
        pass
    return result


def _pointer(kind: str, array: Array) -> Any:
    return ffi.cast(f"{kind} *", array.ctypes.data)


def _doubles(array: Floats) -> Any:
    return _pointer("double", array)


def _threads_for(work: int) -> int:
    """Threads for a piece of work: one where it is done sooner than others would have started."""
    return thread_count() if work > _WORTH_THREADS else 1


def fit_dense(columns: Array, wanted: Array, weights: Floats, smallest: Floats, sharing: WeightScales) -> Fitted:
    """Weights [Cout, Cin * kernel] of a convolution that must give *wanted*, [Cout, positions].

    :param columns: [positions, Cin, kernel]; they are changed
    :param smallest: least scale per output channel
    """
    # one position after the other, in this order of the products: another one rounds otherwise, which changes quantized values
    # of later layers
    flat = columns.reshape(len(columns), -1)
    rows = np.ascontiguousarray(wanted.T).astype(np.float64)
    mean, target_mean = flat.mean(axis=0, dtype=np.float64), rows.mean(axis=0)
    flat -= mean.astype(np.float32)
    start = weights.reshape(len(weights), -1)
    missing = (rows - target_mean).astype(np.float32) - flat @ start.T.astype(np.float32)
    seen = [(flat[part], missing[part]) for part in _parts(len(flat))]
    parts = in_order(lambda pair: ((pair[0].T @ pair[0])[None], (pair[0].T @ pair[1])[None]), seen, _threads_for(flat.size))
    energy, step = _held(list(parts), len(flat), missing.var(axis=0)[None])
    energy, better = energy[0], start + step[0].T
    codes, scales, zeros = quantize_weights(better, smallest_scale=smallest, scales=sharing)
    size, zero = scales.astype(np.float64), zeros.astype(np.float64)
    chosen = (codes - zero[:, None]) * size[:, None]
    chosen = _round_columns(better, chosen, energy, size, zero)
    offset = target_mean - chosen @ mean
    return np.rint(chosen / size[:, None] + zero[:, None]).astype(np.int8), scales, zeros, offset


def _parts(count: int) -> tuple[slice, slice]:
    """The positions that weights are tried on, and those that evaluate."""
    cut = _FITTED * count // _JUDGING
    return slice(0, cut), slice(cut, count)


def _held(parts: Sequence[tuple[Array, Array]], count: int, variance: Array) -> tuple[Floats, Floats]:
    """The energy of the inputs with what holds weights where they are, and the best change of the weights; for a number of layers at once.

    How strongly weights are held is what does best on positions of other samples: where inputs have lost much, weights have to move far;
    where they have lost little, moving fits them to the samples.

    :param parts: products of the inputs [layers, inputs, inputs] and of inputs and what is missing [layers, inputs, outputs], of both parts
    :param count: positions of both together
    :param variance: of what is missing, [layers, outputs]
    """
    (tried, aim), (other, its) = (tuple(product.astype(np.float64) / count for product in part) for part in parts)
    inputs = np.arange(tried.shape[1])

    def held(energy: Array, ridge: float) -> Array:
        result: Array = energy.copy()
        result[:, inputs, inputs] += (ridge * np.trace(energy, axis1=1, axis2=2) / len(inputs) + _TINY)[:, None]
        return result

    # float32 is enough to report them apart: what holds the weights keeps the condition below 20 for each input; and so are some outputs
    some = np.arange(0, aim.shape[2], -(-aim.shape[2] // _TELLING))
    share = 1.0 / (variance[:, some] + _TINY)
    narrow: list[Array] = [array.astype(np.float32) for array in (tried, aim[:, :, some], other, 2.0 * its[:, :, some], share)]

    def loss(ridge: float) -> float:
        step = _solved(held(narrow[0], ridge), narrow[1])
        lost = ((narrow[2] @ step - narrow[3]) * step).sum(axis=1)
        return float((lost * narrow[4]).sum(dtype=np.float64))

    energy, best = tried + other, _least(loss, _threads_for(tried.size * len(inputs)))
    stiff = held(energy, best)
    return stiff, _solved(stiff, aim + its)


def _solved(matrices: Array, right: Array) -> Array:
    """The solutions of positive definite systems [layers, inputs, inputs], in their own precision: numpy's are in float64 throughout.

    A large one is eliminated block by block, of which only what lies right of the diagonal is looked at: most of it are products, which
    take less time than numpy's way.
    """
    size = matrices.shape[1]
    if len(matrices) > 1 or size < _LARGE:
        result: Array = np.linalg.solve(matrices, right)
        return result
    rest = np.concatenate([matrices[0], right[0]], axis=1)
    kept: list[tuple[slice, Array]] = []
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        row = rest[start:end, end:]
        part = np.linalg.inv(rest[start:end, start:end]) @ row
        for first in range(end, size, _STRIPE):
            last = min(first + _STRIPE, size)
            rest[first:last, first:] -= row[:, first - end : last - end].T @ part[:, first - end :]
        kept.append((slice(start, end), part))
    solution = np.empty_like(right)
    for block, part in reversed(kept):
        behind = size - block.stop
        solution[0, block] = part[:, behind:] - part[:, :behind] @ solution[0, block.stop :]
    return solution


def _least(loss: Callable[[float], float], threads: int = 1) -> float:
    """The ridge with the least loss, found by going downhill from the middle: each loss is one solution, and has one valley."""
    middle = (len(_RIDGES) - 1) // 2
    first = _RIDGES[middle : middle + 2]  # needed whichever way is down
    known = dict(zip(first, in_order(loss, first, min(threads, len(first))), strict=True))
    best, least = _RIDGES[middle], known[_RIDGES[middle]]
    for side in (_RIDGES[middle + 1 :], _RIDGES[:middle][::-1]):
        for ridge in side:
            lost = known[ridge] if ridge in known else loss(ridge)
            if lost >= least:
                break
            best, least = ridge, lost
        if best != _RIDGES[middle]:
            break
    return best


def _round_columns(better: Floats, start: Floats, energy: Floats, size: Floats, zero: Floats) -> Floats:
    """*start* with each column moved to the quantized values that make up best for what the other columns lose.

    Columns are taken in blocks: inside a block each sees at once what the one before it did, the others once per block. Here a
    column lies in memory as a row.
    """
    energy, size = np.ascontiguousarray(energy, np.float64), np.ascontiguousarray(size, np.float64)
    gradient = np.ascontiguousarray(((better - start) @ energy).T)
    chosen = np.array(start.T, np.float64, order="C")
    lowest, highest = (-128.0 - zero) * size, (127.0 - zero) * size
    for _ in range(_ROUNDS):
        changed = False
        for first in range(0, len(energy), _BLOCK):
            block = slice(first, min(first + _BLOCK, len(energy)))
            local = gradient[block].copy()
            differences = np.empty_like(local)
            changed |= bool(
                lib.anynpu_round_columns_f64(
                    len(local),
                    len(size),
                    _doubles(energy) + first * (len(energy) + 1),
                    len(energy),
                    _doubles(size),
                    _doubles(lowest),
                    _doubles(highest),
                    _doubles(local),
                    _doubles(chosen) + first * len(size),
                    _doubles(differences),
                )
            )
            gradient += energy[:, block] @ differences
        if not changed:
            break
    result: Floats = chosen.T
    return result


def fit_depthwise(
    columns: Callable[[slice], Array], wanted: Array, weights: Floats, smallest: Floats, sharing: WeightScales
) -> Fitted:
    """As :func:`fit_dense` for a depthwise convolution, each channel on its own.

    :param columns: what gives the columns of some channels, [channels, kernel, positions]; they are changed
    """
    count = wanted.shape[1]
    start = weights.reshape(len(weights), -1)
    taps = start.shape[1]
    target_mean = wanted.mean(axis=1, dtype=np.float64)

    def sums(channels: slice) -> tuple[Array, ...]:
        """Means, what is missing, and the products of both parts; of few channels at a time, so that they stay in the cache."""
        seen = columns(channels)
        mean = seen.mean(axis=2, dtype=np.float64)
        seen -= mean.astype(np.float32)[:, :, None]
        predicted = (start[channels].astype(np.float32)[:, None, :] @ seen)[:, 0]
        missing = (wanted[channels] - target_mean[channels, None]).astype(np.float32) - predicted
        found = [mean, missing.var(axis=1)[:, None]]
        for part in _parts(count):
            one = seen[:, :, part]
            found += [one @ one.transpose(0, 2, 1), one @ missing[:, part, None]]
        return tuple(found)

    together = max(_CACHED // (taps * max(count, 1)), 1)
    pieces = [slice(first, min(first + together, len(start))) for first in range(0, len(start), together)]
    found = list(in_order(sums, pieces, _threads_for(len(start) * taps * count)))
    mean, variance, *products = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    energy, step = _held([(products[0], products[1]), (products[2], products[3])], count, variance)
    better = start + step[:, :, 0]
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
"""Bytes of the float network's answers that are kept for another weight reconstruction."""


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
    """Weights and biases fitted to normalized *samples*, by the result of their step; *sharing* states how weights share scales.

    :param answers: what is known from an earlier weight reconstruction of the same network to the same samples
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
    """What the float network gives at the positions of targets, computed once for all reconstructions that look at the same positions."""

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
