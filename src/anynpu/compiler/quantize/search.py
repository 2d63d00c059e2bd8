"""The search for a network's quantization config: candidates are applied, evaluated on held-out samples, and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ..._util.progress import Progress, tell
from ..._util.types import Array
from ...chips import Chip
from ...program import Preprocess
from ...tensor import Quantization
from ...vendors import Format
from ..graph import Graph
from ..lower.emit import KnownOperators
from ..lower.lower import lower
from ..lower.steps import Step
from .calibrate import CalibratedRanges, Calibration, FloatModel
from .channel_groups import GroupChoice, choose_groups
from .config import Recipe
from .lint import LOST, MixedOutput, few_values
from .metrics import FINER, Metric, cosine, metric_of, worst_channel
from .reconstruction import FEWEST_SAMPLES, MAX_KEPT, FloatAnswers, Target, at_positions, refit, targets_of
from .simulate import KnownWeights, QuantizedWeights, Simulation
from .tensor_scales import Clips, FlooredRanges, assign_quantization, head_products, head_tensors, quantized_tensors
from .threads import in_order, one_blas_thread, thread_count

# What calibration sees and the search for a quantization config needs again, so that no sample is read and run twice.
#
# Of the first samples, every third is held out and evaluates: the float network's answers for it are kept. The others are what
# weights are fitted to: what the convolutions give is kept for them, at the positions that are looked at.


Item = TypeVar("Item")

MAX_SAMPLES = 24
"""Samples that weights are fitted to or that evaluate."""

LIVE = 6
"""Tensors of the largest size that are alive at a time, in a usual network."""

_EVERY = 3
_FIT_BYTES = 1 << 31


def kept_apart(samples: Sequence[Item]) -> list[Item]:
    """Every third of the *samples*, which evaluate; all where there are too few to keep some apart."""
    return list(samples[_EVERY - 1 :: _EVERY] or samples)


def others(samples: Sequence[Item]) -> list[Item]:
    """The *samples* that weights are fitted to.

    >>> others(range(8)), kept_apart(range(8))
    ([0, 1, 3, 4, 6, 7], [2, 5])
    """
    return [sample for index, sample in enumerate(samples) if index % _EVERY != _EVERY - 1]


def fitting_count(graph: Graph, names: Iterable[str]) -> int:
    """How many samples fit into memory where the tensors *names* are rounded."""
    return _FIT_BYTES // (LIVE * max(4 * math.prod(graph.shapes[name]) for name in names))


class Remembered:
    """The first samples of a calibration and the float network's answers to them.

    :ivar samples: normalized
    :ivar outputs: of the samples that were held out
    """

    def __init__(self, graph: Graph, targets: Sequence[Target], count: int) -> None:
        self.graph = graph
        self.samples: list[Sample] = []
        self.outputs: list[list[Array]] = []
        self._targets = targets
        self._apart = set(kept_apart(range(count)))
        self._fitted = {index: number for number, index in enumerate(others(range(count)))}
        self._parts: dict[str, list[Array]] = {target.node.outputs[0]: [] for target in targets}

    @property
    def names(self) -> list[str]:
        """The tensors that are looked at."""
        return [*self._parts, *self.graph.outputs]

    def see(self, sample: Sample, values: Mapping[str, Array]) -> None:
        """Take what is needed of the next sample."""
        index = len(self.samples)
        if index >= MAX_SAMPLES:
            return
        self.samples.append(sample)
        if index in self._apart:
            self.outputs.append([np.array(values[name]) for name in self.graph.outputs])
            return
        number = self._fitted.get(index, -1)
        for target in self._targets:
            name = target.node.outputs[0]
            if 0 <= number < len(target.positions):
                self._parts[name].append(at_positions(values[name], target.positions[number]))

    def answers(self) -> FloatAnswers:
        """What the float network gives at the positions of convolutions; none where there were other samples than announced."""
        complete = all(len(self._parts[target.node.outputs[0]]) == len(target.positions) for target in self._targets)
        found = {name: np.concatenate(self._parts.pop(name), axis=1) for name in list(self._parts) if complete}
        return FloatAnswers(
            {target.node.outputs[0]: (target, found[target.node.outputs[0]]) for target in self._targets if found}
        )


def remember(graph: Graph, steps: list[Step], count: int | None) -> Remembered | None:
    """What is to be remembered of a calibration with *count* samples; None where weights will not be fitted."""
    if count is None or count < FEWEST_SAMPLES or any(node.custom for node in graph.nodes):
        return None
    count = min(count, MAX_SAMPLES)
    fitted = others(range(count))[: fitting_count(graph, quantized_tensors(graph, steps))]
    targets = targets_of(graph, steps, len(fitted))
    size = sum(4 * graph.shapes[target.node.outputs[0]][1] * sum(map(len, target.positions)) for target in targets)
    return Remembered(graph, targets if size <= MAX_KEPT else (), count)


# Perturbed copies of samples, to evaluate a quantized network on more than the samples themselves.
#
# An image comes again with grain, out of focus, darker or brighter, or shifted by a few pixels. What a camera can do to a
# image can move a tensor beyond the range that was seen in calibration; a quantization config that only just fits the samples shows it
# here.


Change = Callable[[Array, Array, Array, np.random.Generator], Array]

_CHANNELS = (1, 3, 4)
_SMALLEST = 8
_GRAIN = 0.04
_FACTORS = (0.65, 1.35)
_SHIFT = 0.03


def _grain(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    result: Array = picture + (high - low) * random.normal(0.0, _GRAIN, picture.shape).astype(np.float32)
    return result


def _blur(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    for axis in (2, 3, 2, 3):
        ends = [(1, 1) if index == axis else (0, 0) for index in range(4)]
        wide = np.pad(picture, ends, mode="edge")
        size = picture.shape[axis]
        picture = np.asarray(sum(np.take(wide, range(start, start + size), axis) for start in range(3)) / 3.0)
    return picture


def _light(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    result: Array = low + (picture - low) * _FACTORS[int(random.integers(len(_FACTORS)))]
    return result


def _shift(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    for axis in (2, 3):
        size = picture.shape[axis]
        by = max(round(_SHIFT * size), 1) * int(random.choice((-1, 1)))
        picture = np.take(picture, np.clip(np.arange(size) + by, 0, size - 1), axis)
    return picture


KINDS: dict[str, Change] = {"light": _light, "grain": _grain, "shift": _shift, "blur": _blur}
"""What can happen to an image, by name."""


def perturbed(sample: Sample, kind: str, preprocess: Mapping[str, Preprocess], seed: int) -> dict[str, Array] | None:
    """A copy of a normalized sample with its images changed; None where it has no image. The same *seed* gives the same copy.

    >>> picture = {"x": np.full((1, 3, 8, 8), 0.5, np.float32)}
    >>> round(float(perturbed(picture, "light", {"x": Preprocess((0.0,) * 3, (255.0,) * 3)}, 0)["x"].max()), 3)
    0.675
    """
    random = np.random.default_rng(seed)
    result: dict[str, Array] = dict(sample)
    found = False
    for name, values in sample.items():
        if not _is_picture(values):
            continue
        low, high = _ends(values, preprocess.get(name))
        changed = KINDS[kind](values.astype(np.float32), low, high, random)
        result[name] = np.clip(changed, np.minimum(low, high), np.maximum(low, high)).astype(values.dtype)
        found = True
    return result if found else None


def _is_picture(values: Array) -> bool:
    if values.ndim != 4 or values.dtype.kind != "f" or values.shape[1] not in _CHANNELS or min(values.shape[2:]) < _SMALLEST:
        return False
    return bool(np.isfinite(values).all())  # else it is a mask


def _ends(values: Array, preprocess: Preprocess | None) -> tuple[Array, Array]:
    """What black and white are, per channel: the ends of a byte where the normalization is known, else those of the sample."""
    if preprocess is not None:
        mean, std = (np.asarray(entry, np.float32).reshape(1, -1, 1, 1) for entry in (preprocess.mean, preprocess.std))
        return (0.0 - mean) / std, (255.0 - mean) / std
    return tuple(np.asarray(end, np.float32).reshape(1, 1, 1, 1) for end in (values.min(), values.max()))  # type: ignore[return-value]


# The workbench: one network and its samples, on which quantization configs are tried, evaluated and priced.
#
# Samples are split: every third is held out and evaluates, the others are what weights are fitted to. Perturbed copies of the
# former evaluate, too, since a few samples do not show every range that a tensor can have. The float network's answers for those
# that evaluate are computed once. For one thread at a time; it holds the samples in memory.


Sample = Mapping[str, Array]

GROUP_BUDGET = 0.25
"""By how much of the predicted time groups of channels may slow a network down."""

FLOAT_BUDGET = 0.1
"""By how much of the predicted time float16 layers may slow a network down by default."""

_SLACK_US = 200.0
_FREE = 0.0005
_FEWEST_FITTED = 5
_ENOUGH_JUDGING = 8
_FEWEST_COPIES = 2
_TIE = 0.002
_WORSE_AT_MOST = 0.01
_TELLS_WORST = 0.005
_ROUNDING = 1e-6
_SEEN = 0.0005
"""What is left of a channel's cosine, and of a metric, below which a difference is not visible."""


@dataclass(frozen=True)
class Score:
    """How a quantized network did on the samples that evaluate.

    :ivar value: the mean of the metric, or of what reports finer than it: choices are made by this
    :ivar cosine: the mean cosine
    :ivar worst: the cosine of the worst sample
    :ivar cosines: the cosine of each sample
    :ivar by_cosine: whether the metric is the cosine
    :ivar channel: the cosine of the worst channel of any sample's outputs; nan where it was not looked at
    :ivar left_out: samples that did not evaluate, as the others had decided; *worst* is then that of the others
    :ivar shown: the mean of the metric itself, where *value* is something finer
    :ivar outputs: the mean cosine of each output
    """

    value: float
    cosine: float
    worst: float
    cosines: tuple[float, ...] = ()
    by_cosine: bool = False
    channel: float = math.nan
    left_out: int = 0
    shown: float | None = None
    outputs: tuple[float, ...] = ()

    @property
    def metric(self) -> float:
        """The mean of the metric itself."""
        return self.value if self.shown is None else self.shown

    def beats(self, other: Score) -> bool:
        """Whether it is better: not at the cost of the worst sample; then by the metric, and where that cannot report, by the cosine.

        Where the metric is the cosine, the worst sample decides before the mean does. One that is not finished had lost by then.
        """
        if self.left_out or other.left_out:
            return not self.left_out
        if self.worst < other.worst - _WORSE_AT_MOST:
            return False
        if self.by_cosine and abs(self.worst - other.worst) > _TELLS_WORST:
            return self.worst > other.worst
        if abs(self.value - other.value) > _TIE:
            return self.value > other.value
        return self.cosine > other.cosine

    def harms(self, other: Score) -> bool:
        """Whether some sample is clearly worse than with *other*."""
        return any(mine < its - _WORSE_AT_MOST for mine, its in zip(self.cosines, other.cosines, strict=True))

    @property
    def is_perfect(self) -> bool:
        """Whether a better one would make no visible difference: in no sample, in no channel of an output, and not by the metric."""
        return not self.left_out and self.channel > 1.0 - _SEEN and (self.by_cosine or self.value > 1.0 - _SEEN)

    @property
    def hopeless_below(self) -> float:
        """The cosine of one sample below which another score cannot be better than this one, whatever its other samples are."""
        return self.worst - (_TELLS_WORST if self.by_cosine else _WORSE_AT_MOST)

    def is_safe_from(self, cosines: Collection[float]) -> bool:
        """Whether no score with these *cosines* of some samples can be better than this one, whatever those of the others are."""
        worst = min(cosines)
        if worst < self.hopeless_below:
            return True
        if not self.by_cosine or self.left_out or not worst <= self.worst + _TELLS_WORST:
            return False  # the mean alone does not decide
        return sum(cosines) + len(self.cosines) - len(cosines) < sum(self.cosines) - _ROUNDING

    def __str__(self) -> str:
        if self.left_out:
            return f"not finished, worst cosine {self.worst:.4f}"
        return f"{self.metric:.4f}, worst cosine {self.worst:.4f}"


@dataclass(frozen=True, eq=False)
class Trial:
    """A network, quantized by a quantization config.

    :ivar groups: tensors with groups of channels, and why
    :ivar refined: reconstructed weights, by the result of their step
    :ivar notes: what was done and why, a line for each step
    :ivar floats: tensors that are never rounded to quantized values: what makes them and what reads them is in float16
    :ivar cheaper: tensors with groups of channels that float16 is predicted to take less time for
    :ivar score: how it did on the samples that evaluate, where that decided
    """

    recipe: Recipe
    steps: list[Step]
    quantization: dict[str, Quantization]
    groups: Mapping[str, GroupChoice] = field(default_factory=dict)
    refined: Mapping[str, QuantizedWeights] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    floats: frozenset[str] = frozenset()
    cheaper: frozenset[str] = frozenset()
    score: Score | None = None


class Workbench:
    """One network in int8 and all that is known about it.

    :param kind: how numbers are held; quantized values of 8 bits
    :param samples: normalized samples; read at most once, when they are needed
    :param metric: a function of (expected outputs, given outputs), or the name of one; chosen by the outputs by default
    :ivar floors: below which values of a tensor do not matter, see :func:`~anynpu.compiler.quantize.lint.score_floors`
    """

    def __init__(
        self,
        graph: Graph,
        chip: Chip,
        calibration: Calibration,
        samples: Iterable[Sample],
        kind: Format,
        preprocess: Mapping[str, Preprocess] | None = None,
        *,
        metric: str | Metric | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.graph = graph
        self.chip = chip
        self.calibration = calibration
        self.kind = kind
        self.preprocess: Mapping[str, Preprocess] = preprocess or {}
        self._source = samples
        self._progress = progress
        self._ranges: dict[tuple[str, float], CalibratedRanges] = {}
        self._clips = Clips()
        self._operators: KnownOperators = {}
        self._weights: KnownWeights = {}
        self._worst_yet: dict[int, float] = {}
        self._wanted = metric
        self.floors: Mapping[str, float] = {}

    def _compared(self, outputs: Sequence[Array]) -> list[Array]:
        """Outputs as they are compared: of scores, what is above their floor."""
        return [
            np.maximum(values - self.floors[name], 0.0) if name in self.floors else values
            for name, values in zip(self.graph.outputs, outputs, strict=True)
        ]

    @cached_property
    def _judge(self) -> tuple[str, Metric]:
        expected = self._expected if self._wanted is None and self.can_judge else ()
        return metric_of(self._wanted, [self.graph.shapes[name] for name in self.graph.outputs], expected)

    @property
    def metric_name(self) -> str:
        """What trials are compared by; without the caller's choice, what the float network's outputs are decides."""
        return self._judge[0]

    @cached_property
    def _samples(self) -> list[Sample]:
        known = self._remembered
        return list(islice(self._source, MAX_SAMPLES)) if known is None else known.samples

    @property
    def _remembered(self) -> Remembered | None:
        """What calibration has kept of this network's samples."""
        watched = self.calibration.watched
        return watched if isinstance(watched, Remembered) and watched.graph is self.graph else None

    @property
    def can_judge(self) -> bool:
        """Whether the quantized network can be run here: custom operators cannot."""
        return not any(node.custom for node in self.graph.nodes)

    @property
    def fitting(self) -> list[Sample]:
        """The samples that weights are fitted to."""
        return others(self._samples)

    @property
    def kept_apart(self) -> list[Sample]:
        """The samples that were held out; all where there are too few to keep some apart."""
        return kept_apart(self._samples)

    @cached_property
    def judging(self) -> list[Sample]:
        """The samples that were held out, and perturbed copies of them: two of each, fewer where there are many samples."""
        apart = self.kept_apart
        copies = min(2 * len(apart), max(_ENOUGH_JUDGING - len(apart), _FEWEST_COPIES))
        kinds = list(KINDS)
        made = (
            perturbed(apart[index % len(apart)], kinds[sum(divmod(index, len(apart))) % len(kinds)], self.preprocess, index)
            for index in range(copies)
        )
        return [*apart, *(sample for sample in made if sample is not None)]

    @cached_property
    def _expected(self) -> list[list[Array]]:
        threads = self._threads
        model = FloatModel(self.graph, list(self.graph.outputs), {}, threads=threads)
        known = self._remembered.outputs if self._remembered else []
        found = in_order(model.run, self.judging[len(known) :], threads)
        made = [[np.asarray(values[name]) for name in self.graph.outputs] for values in found]
        return [self._compared(outputs) for outputs in (*known, *made)]

    @property
    def _threads(self) -> int:
        """How many samples are evaluated at a time."""
        largest = max(4 * math.prod(self.graph.shapes[name]) for name in (*self.graph.inputs, *self.graph.producers()))
        return min(thread_count(LIVE * largest), len(self.judging))

    @cached_property
    def _float_answers(self) -> FloatAnswers:
        return self._remembered.answers() if self._remembered else FloatAnswers()

    def with_graph(self, graph: Graph) -> Workbench:
        """A workbench for the same network with other weights, evaluated by the answers of this one's float network."""
        other = copy(self)
        other.__dict__["_expected"] = self._expected
        other.__dict__["judging"] = self.judging
        other.__dict__.pop("_float_answers", None)
        other._operators = {}
        other._weights = {}
        other._worst_yet = dict(self._worst_yet)
        other.graph = graph
        return other

    def quantized(self, recipe: Recipe, steps: list[Step]) -> Trial:
        """The network quantized by all steps of a quantization config but weight reconstruction."""
        choices: dict[str, GroupChoice] = {}
        if recipe.groups > 1:
            block = self.chip.channel_block.get("int8", 1)
            choices = choose_groups(self.graph, steps, self.calibration.channels, recipe.groups, block)
        notes = [f"ranges: {recipe.algorithm}" + (f" {recipe.percentile:g}" if recipe.algorithm == "percentile" else "")]
        if not choices:
            return Trial(recipe, steps, self._quantization(recipe, steps, {}), {}, {}, tuple(notes))
        plain = self.time_us(Trial(recipe, steps, self._quantization(recipe, steps, {})))
        taken: dict[str, GroupChoice] = {}
        cheaper: set[str] = set()
        spent = plain
        for name, choice in choices.items():  # the largest gain first
            while True:
                quantization = self._quantization(recipe, steps, {**taken, name: choice})
                time = self.time_us(Trial(recipe, steps, quantization))
                fits = within_budget(time, plain, GROUP_BUDGET)
                if fits or choice.count <= 2:
                    break
                choice = choice.with_fewer()
            why = f"{name} in {choice.count}, noise 1/{choice.gain:.0f}, {_share(time - spent, plain)} time"
            if not fits:
                notes.append(f"groups: not {why}")
                continue
            # what costs nothing cannot be had for less
            added = self._added_by_float16(recipe, steps, name, plain) if time - spent > _FREE * plain else None
            if added is not None and added < time - spent:
                cheaper.add(name)
                why += f" (float16: {_share(added, plain)})"
            notes.append(f"groups: {why}")
            taken[name], spent = choice, time
        quantization = self._quantization(recipe, steps, taken)
        return Trial(recipe, steps, quantization, taken, {}, tuple(notes), cheaper=frozenset(cheaper))

    def _quantization(self, recipe: Recipe, steps: list[Step], groups: Mapping[str, GroupChoice]) -> dict[str, Quantization]:
        return assign_quantization(
            self.graph,
            steps,
            FlooredRanges(self._ranges_of(recipe), self.floors) if recipe.clip else self._ranges_of(recipe),
            self.kind,
            self.preprocess,
            {name: choice.grouping for name, choice in groups.items()},
            self.calibration.channels,
            exact_heads=recipe.heads,
            clip=recipe.clip,
            clips=self._clips,
        )

    def _ranges_of(self, recipe: Recipe) -> CalibratedRanges:
        key = (recipe.algorithm, recipe.percentile)
        if key not in self._ranges:
            self._ranges[key] = CalibratedRanges(self.calibration.observer, *key)
        return self._ranges[key]

    def _added_by_float16(self, recipe: Recipe, steps: list[Step], name: str, plain: float) -> float | None:
        """What float16 is predicted to add to the time *plain* for a tensor instead of groups; None where the chip has none."""
        if not self.chip.float16:
            return None
        halves = with_floats(steps, {name})
        return self.time_us(Trial(recipe, halves, self._quantization(recipe, halves, {}))) - plain

    def in_float16(self, trial: Trial, tensors: Set[str]) -> Trial:
        """The trial's quantization config with some tensors in float16, not fitted."""
        floats = trial.floats | tensors
        return replace(self.quantized(trial.recipe, with_floats(trial.steps, floats)), floats=floats)

    def parted(self, recipe: Recipe, steps: list[Step], mixed: Sequence[MixedOutput]) -> tuple[set[str], float, float]:
        """The tensors to keep in float so that each part of the *mixed* outputs has a scale of its own, and the predicted times
        without and with that.

        Where float16 takes little time, what lies between the network's last products and the joint is float16, too, and so are those.
        """

        def time(tensors: Set[str]) -> float:
            halves = with_floats(steps, tensors)
            return self.time_us(Trial(recipe, halves, self._quantization(recipe, halves, {})))

        before = time(set())
        joints = {name for joint in mixed for name in joint.tensors}
        heads = head_tensors(self.graph, steps, [joint.output for joint in mixed])
        tried = [heads, heads - head_products(steps)] if self.chip.float16 and recipe.float16 else []
        for tensors in tried:
            after = time(tensors | joints)
            if after <= before * (1.0 + FLOAT_BUDGET):
                return tensors | joints, before, after
        return joints, before, time(joints)

    def refitted(self, trial: Trial) -> Trial:
        """The trial with fitted weights, if the samples that evaluate agree that it is better."""
        better = self.fitted(trial)
        if not better.refined:
            return better
        before, after = self.score(trial), self.score(better)
        text = f"{self.metric_name} {before} -> {after} on {self.judges}"
        if after.beats(before):
            return _noted(better, f"refit: {len(better.refined)} convolutions, {text}")
        return _noted(trial, f"refit: not kept, {text}")

    @property
    def judges(self) -> str:
        """Which samples evaluate, in words."""
        apart = len(self.kept_apart)
        copies = len(self.judging) - apart
        return f"{apart} samples held out" + (f" and {copies} perturbed copies" if copies else "")

    def fitted(self, trial: Trial) -> Trial:
        """The trial with fitted weights, not evaluated; without them and with a note where weights cannot be fitted."""
        if not self.can_judge:
            return _noted(trial, "refit: left out, a custom operator stands in the network")
        if len(self._samples) < FEWEST_SAMPLES:
            return _noted(trial, f"refit: left out, {len(self._samples)} samples are fewer than {FEWEST_SAMPLES}")
        fitting = self.fitting[: fitting_count(self.graph, trial.quantization)]
        if len(fitting) < _FEWEST_FITTED:
            return _noted(trial, "refit: left out, tensors are so large that only a few samples fit into memory")
        refined = refit(
            self.graph,
            trial.steps,
            trial.quantization,
            fitting,
            self._progress,
            self.kind.weights,
            self._float_answers,
            self._weights,
        )
        return replace(trial, refined=refined) if refined else _noted(trial, "refit: left out, no convolution to fit")

    def score(self, trial: Trial, rival: Score | None = None) -> Score:
        """How a trial does on the samples that evaluate.

        With a *rival* it ends as soon as the trial cannot beat it any more. Samples that any trial was worst at come first.
        """
        threads = self._threads
        simulation = Simulation(
            self.graph,
            trial.steps,
            trial.quantization,
            refined=trial.refined,
            sharing=self.kind.weights,
            threads=threads,
            known=self._weights,
        )
        order = list(range(len(self.judging)))
        if rival is not None:
            order.sort(key=lambda index: self._worst_yet.get(index, 1.0))
        given: dict[int, list[Array]] = {}
        cosines: dict[int, float] = {}
        while len(given) < len(order):
            # of a rival the first one mostly decides, and the others would run for nothing
            together = threads if given or rival is None else 1
            some = order[len(given) : len(given) + together]
            for index, outputs in zip(some, in_order(simulation.run, [self.judging[i] for i in some], threads), strict=True):
                given[index] = self._compared(outputs)
                cosines[index] = cosine(self._expected[index], given[index])
                tell(self._progress, "judging", len(given), len(order))
                if rival is not None and rival.is_safe_from(cosines.values()):
                    # what other threads have done by now must not show, or results would depend on them
                    order = order[: len(given)]
                    break
        judged = sorted(given)
        for index in judged:
            self._worst_yet[index] = min(self._worst_yet.get(index, 1.0), cosines[index])
        found = tuple(cosines[index] for index in judged)
        metric = self._judge[1]
        by_cosine = metric is cosine
        pairs = [(self._expected[index], given[index]) for index in judged]
        finer = FINER.get(metric, metric)
        values = found if by_cosine else [float(finer(*pair)) for pair in pairs]
        shown = None if finer is metric else float(np.mean([metric(*pair) for pair in pairs]))
        left_out = len(self.judging) - len(judged)
        channel = math.nan
        if not left_out and min(found) > 1.0 - _SEEN:
            channel = min(worst_channel(*pair) for pair in pairs)
        by_output = tuple(
            float(np.mean([cosine([expected[index]], [its[index]]) for expected, its in pairs]))
            for index in range(len(self.graph.outputs))
        )
        return Score(
            float(np.mean(values)), float(np.mean(found)), min(found), found, by_cosine, channel, left_out, shown, by_output
        )

    def cosine_of(self, trial: Trial, codes: Mapping[str, Quantization]) -> float:
        """The mean cosine where nothing but the tensors of *codes* is rounded; on two samples, as there are many tensors."""
        simulation = Simulation(self.graph, trial.steps, codes, weights=False)
        pairs = zip(self._expected[:2], self.judging[:2], strict=True)
        return float(np.mean([cosine(expected, self._compared(simulation.run(sample))) for expected, sample in pairs]))

    def time_us(self, trial: Trial) -> float:
        """What the chip is predicted to take, with one core."""
        from ...chips.timing import predict

        program = lower(self.graph, trial.steps, self.chip, trial.quantization, self.kind, outline=True, known=self._operators)
        return predict(program, self.chip).latency_us


def with_floats(steps: Sequence[Step], tensors: Set[str]) -> list[Step]:
    """The steps, with those in float that make or read one of the *tensors*: only then is it never rounded to a code."""
    return [replace(step, is_float=step.is_float or not tensors.isdisjoint((*step.reads, *step.outputs))) for step in steps]


def within_budget(time_us: float, plain_us: float, budget: float) -> bool:
    """Whether a time is at most the share *budget* above a plain one; what a few layers take just to start is always allowed."""
    return time_us <= plain_us + max(budget * plain_us, _SLACK_US)


def _share(difference: float, whole: float) -> str:
    return f"{100.0 * difference / whole:+.1f} %" if whole else "+0.0 %"


def _noted(trial: Trial, note: str) -> Trial:
    return replace(trial, notes=(*trial.notes, note))


def accuracy_text(trials: Sequence[Trial]) -> str:
    """What was done and why, for the model file."""
    return "; ".join(dict.fromkeys(note for trial in trials for note in trial.notes))


_RANGES = (("percentile", 99.99), ("percentile", 99.999), ("minmax", 99.99), ("percentile", 99.95))
_WIDER = (("percentile", 99.999), ("minmax", 99.99))
_GROUPS = (4, 2, 1)
_TELLS = {"cosine": 0.02}
"""Differences below this state nothing about what a network is for; for other metrics that is half a percent."""

_OTHERWISE = 0.005
_GOOD = 0.99
"""The metric at which the default keeps its groups."""

_VERY_GOOD = 0.998
"""The metric at which ``best`` tries no float16 layers any more."""

_AS_GOOD_AS_FLOAT = 0.9999
"""The worst cosine of perfect outputs at which whole ranges are not tried any more."""

_GOOD_ENOUGH = 0.95
"""The worst cosine at which the default tries no second weight reconstruction."""

_HARMED = 0.05
"""Weight reconstruction that makes the metric worse by this much has met what no other ranges make good."""

_PLAIN: dict[str, Any] = {"algorithm": "minmax", "groups": 1, "clip": False, "refit": False}
_MAX_FLOATS = 12


def run_recipe(
    benches: Sequence[Workbench],
    plans: Sequence[list[Step]],
    recipe: Recipe,
    *,
    best: bool,
    time_budget: float,
    progress: Progress | None = None,
) -> list[Trial]:
    """The networks of all shape sets, quantized. Choices are made on the first one; the others follow."""
    first = benches[0]
    with one_blas_thread():
        if best and first.can_judge:
            chosen = _search(first, plans[0], recipe, time_budget, progress)
        elif first.can_judge and recipe.refit:
            chosen = _never_worse(first, plans[0], recipe)
        else:
            chosen = first.quantized(recipe, plans[0])
    trials = [chosen]
    for bench, steps in zip(benches[1:], plans[1:], strict=True):
        other = bench.quantized(chosen.recipe, with_floats(steps, chosen.floats))
        same = {
            step.outputs[0]
            for step in other.steps
            if not step.is_float and step.inputs and other.quantization[step.inputs[0]] == chosen.quantization.get(step.inputs[0])
        }
        refined = {name: made for name, made in chosen.refined.items() if name in same}
        trials.append(replace(other, refined=refined))
    return trials


def _never_worse(bench: Workbench, steps: list[Step], recipe: Recipe) -> Trial:
    """The quantization config, without its groups where they do not help or where float16 does better for the same time, with
    its weight reconstruction where that helps; or the plain quantization config where none of it does."""
    trials = [bench.quantized(recipe, steps)]
    if trials[0].groups:
        trials.append(bench.quantized(replace(recipe, groups=1), steps))
    first = (trials[0], bench.score(trials[0]))
    if bench.metric_name == "detections" and (recipe.algorithm, recipe.percentile) == (Recipe.algorithm, Recipe.percentile):
        # scores are sparse: the few large values that a percentile cuts off may be the detections
        trials += [bench.quantized(replace(recipe, algorithm=how, percentile=share), steps) for how, share in _WIDER]
    if first[1].value < _GOOD:
        trials += [*_instead_of_groups(bench, trials[0]), *_instead_of_tables(bench, trials[0])]
    scored = [first]
    for trial in trials[1:]:
        scored.append((trial, bench.score(trial, first[1])))
        first = scored[-1] if scored[-1][1].beats(first[1]) else first
    order = [first, *(entry for entry in scored[:2] if entry is not first)][:2]
    notes = [f"tried: {_named(trial)}, not fitted, {bench.metric_name} {score}" for trial, score in scored]
    best, gained, harmed = first, 0.0, False
    for number, (trial, score) in enumerate(order):
        if number and (best[1].worst >= _GOOD_ENOUGH or score.worst + 2.0 * gained < best[1].hopeless_below):
            break  # fitting takes long, and there is little left to gain, or too much to make up for
        if best[1].is_perfect:
            notes.append("refit: left out, the outputs are right without it, each channel of them")
            break
        fitted = bench.fitted(trial)
        if not fitted.refined:
            best = (replace(best[0], notes=(*best[0].notes, *fitted.notes[len(trial.notes) :])), best[1])
            break
        after = bench.score(fitted, best[1])
        kept = after.beats(best[1])
        gained = max(after.worst - score.worst, 0.0)
        harmed = harmed or (not after.left_out and after.value < score.value - _HARMED)
        text = f"{bench.metric_name} {score} -> {after} on {bench.judges}"
        done = f"{len(fitted.refined)} convolutions, {text}" if kept else f"not kept, {text}"
        notes.append(f"refit: {done}" + (f" ({_named(trial)})" if len(trials) > 1 else ""))
        best = (fitted, after) if kept else best
    return _or_plain(bench, steps, (replace(best[0], notes=(*best[0].notes, *notes)), best[1]), fit=not harmed)


def _instead_of_groups(bench: Workbench, grouped: Trial) -> list[Trial]:
    """A trial with float16 instead of groups where that is predicted to take less time."""
    if not grouped.cheaper or not grouped.recipe.float16:
        return []
    limit = bench.time_us(grouped)
    half = bench.in_float16(grouped, grouped.cheaper)
    # what is saved may go into the layers behind
    behind = {name for step in grouped.steps if not grouped.cheaper.isdisjoint(step.reads) for name in step.outputs}
    wider = bench.in_float16(half, behind - set(bench.graph.outputs))
    return [trial for trial in (wider, half) if bench.time_us(trial) <= limit]


def _instead_of_tables(bench: Workbench, trial: Trial) -> list[Trial]:
    """Trials with float16 where results are so small that the chip's tables have few values for them, whatever the scale of a tensor.

    One keeps those in float16 that are lost; the other all that suffer, if it takes little more time.
    """
    if not bench.chip.float16 or not trial.recipe.float16:
        return []
    coarse = {step.outputs[0]: values for step, values in few_values(trial.steps, bench.calibration.observer)}
    lost = {name for name, values in coarse.items() if values < LOST} - set(bench.graph.outputs)
    if not lost:
        return []
    wider = bench.in_float16(trial, coarse.keys() - set(bench.graph.outputs))
    trials = [wider] if within_budget(bench.time_us(wider), bench.time_us(trial), GROUP_BUDGET) else []
    return [*trials, bench.in_float16(trial, lost)]


def _named(trial: Trial) -> str:
    return f"{trial.recipe}" + (f", float16 {' '.join(sorted(trial.floats))}" if trial.floats else "")


def _or_plain(bench: Workbench, steps: list[Step], best: tuple[Trial, Score], *, fit: bool) -> Trial:
    """The better one of a trial and the plain quantization config: whole ranges, no groups; with weight reconstruction where
    that may help and does."""
    trial, score = best
    if (trial.recipe.algorithm, trial.recipe.percentile) != (Recipe.algorithm, Recipe.percentile):
        return replace(trial, score=score)  # the caller has named the ranges
    if score.is_perfect and score.worst > _AS_GOOD_AS_FLOAT:
        return replace(trial, notes=(*trial.notes, "plain min/max: left out, there is nothing left to gain"), score=score)
    plain = bench.quantized(replace(trial.recipe, **_PLAIN), steps)
    its = bench.score(plain, score if score.by_cosine else None)  # by another metric, how it does on each sample may matter
    notes = [*trial.notes, f"plain min/max: {bench.metric_name} {its}"]
    if not its.beats(score) and (score.beats(its) or not score.harms(its)):
        return replace(trial, notes=tuple(notes), score=score)
    fitted = plain if its.is_perfect or not fit else bench.fitted(plain)
    after = bench.score(fitted) if fitted.refined else its
    if fitted.refined and after.beats(its):
        notes.append(f"chosen: min/max with weight reconstruction, {bench.metric_name} {after}")
        return replace(fitted, recipe=replace(plain.recipe, refit=True), notes=tuple(notes), score=after)
    return replace(plain, notes=(*notes, "chosen: plain min/max, as no step makes it better"), score=its)


def _search(bench: Workbench, steps: list[Step], start: Recipe, time_budget: float, progress: Progress | None) -> Trial:
    recipes = _recipes(start)
    total = len(recipes) + 1 + _MAX_FLOATS
    scored: list[tuple[Score, Trial, float]] = []
    for index, recipe in enumerate(recipes):
        trial = bench.quantized(recipe, steps)
        scored.append((bench.score(trial), trial, bench.time_us(trial)))
        tell(progress, "trying configs", index + 1, total)
    quickest = min(time for _, _, time in scored)
    affordable = [entry for entry in scored if within_budget(entry[2], quickest, time_budget)]
    best = max(score.value for score, _, _ in affordable)
    tells = _TELLS.get(bench.metric_name, _OTHERWISE)
    winner = next(entry[1] for entry in affordable if entry[0].value >= best - tells)
    lines = [f"tried: {other.recipe}, {bench.metric_name} {result}, {time / 1000:.2f} ms" for result, other, time in scored]
    plain, trial, score = _final(bench, winner, steps, start)
    lines.append(f"chosen: {_named(trial)}, {bench.metric_name} {score}")
    tell(progress, "trying configs", len(recipes) + 1, total)
    if score.value < _VERY_GOOD and bench.chip.float16 and start.float16:
        trial = _floats(bench, plain, (trial, score), time_budget, progress, (len(recipes) + 1, total))
    return replace(trial, notes=(*lines, *trial.notes), score=trial.score or score)


def _final(bench: Workbench, winner: Trial, steps: list[Step], start: Recipe) -> tuple[Trial, Trial, Score]:
    """The winner or what the default would have taken, the better one after weight reconstruction: without it, with it, and its score."""
    fitted = bench.refitted(winner) if winner.recipe.refit else winner
    best = (winner, fitted, bench.score(fitted))
    if start.refit:
        usual = _never_worse(bench, steps, start)
        score = bench.score(usual)
        if score.beats(best[2]):
            best = (replace(usual, refined={}), usual, score)
    return best


def _recipes(start: Recipe) -> list[Recipe]:
    """What is tried, in the order of preference; what the caller has switched off stays off."""
    groups = _GROUPS if start.groups > 1 else (1,)
    ranges = _RANGES if start.algorithm == "percentile" else ((start.algorithm, start.percentile), *_RANGES)
    tried = [
        replace(start, algorithm=algorithm, percentile=percentile, groups=count)
        for algorithm, percentile in ranges
        for count in groups
    ]
    return list(dict.fromkeys(tried))


def _floats(
    bench: Workbench,
    plain: Trial,
    rival: tuple[Trial, Score],
    time_budget: float,
    progress: Progress | None,
    stage: tuple[int, int],
) -> Trial:
    """Tensors kept in float16, as long as each makes the result better and there is time left for it; then weight reconstruction.

    Weights that were fitted to rounded inputs do not suit float16 ones, so the choice is made without them. *rival* is the result without
    float16, which stays if it is better.
    """
    whole = spent = bench.time_us(plain)
    trial, score = plain, bench.score(plain)
    notes: list[str] = []
    for index, name in enumerate(_by_sensitivity(bench, plain)[:_MAX_FLOATS]):
        tell(progress, "trying float16", stage[0] + index, stage[1])
        other = bench.in_float16(trial, {name})
        time = bench.time_us(other)
        if not within_budget(time, whole, time_budget):
            notes.append(f"float16: not {name}, {time / 1000:.2f} ms predicted is beyond the budget")
            continue
        after = bench.score(other)
        text = f"{name}, {bench.metric_name} {score} -> {after}, {spent / 1000:.2f} -> {time / 1000:.2f} ms predicted"
        if not after.beats(score):
            notes.append(f"float16: not {text}")
            continue
        notes.append(f"float16: {text}")
        trial, score, spent = other, after, time
        if score.value >= _VERY_GOOD:
            break
    if trial is plain:
        return replace(rival[0], notes=(*rival[0].notes, *notes))
    fitted = bench.refitted(trial) if trial.recipe.refit else trial
    after = bench.score(fitted)
    if after.beats(rival[1]):
        kept = [note for note in fitted.notes if not note.startswith("refit")]
        last = [note for note in fitted.notes if note.startswith("refit")]
        return replace(fitted, notes=(*kept, *notes, *last), score=after)
    notes.append(f"float16: not kept, {bench.metric_name} {rival[1]} -> {after}")
    return replace(rival[0], notes=(*rival[0].notes, *notes))


def _by_sensitivity(bench: Workbench, trial: Trial) -> list[str]:
    """Results of integer steps, those first whose rounding alone costs most."""
    losses: dict[str, float] = {}
    for step in trial.steps:
        name = step.outputs[0]
        if step.is_float or name not in trial.quantization or name in bench.graph.outputs:
            continue
        codes = {key: trial.quantization[key] for key in (step.before_activation, name) if key in trial.quantization}
        losses[name] = 1.0 - bench.cosine_of(trial, codes)
    return sorted(losses, key=lambda name: -losses[name])
