"""The workbench: one network and its samples, on which recipes are tried, judged and priced.

Samples are split: every third is kept apart and judges, the others are what weights are fitted to. Perturbed copies of the former judge,
too, since a few samples do not show every range that a tensor can have. The float network's answers for those that judge are computed
once. For one thread at a time; it holds the samples in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np

from ..._util.progress import Progress, tell
from ..._util.types import Array
from ...chips import Chip
from ...program import Preprocess
from ...tensor import Quantization
from ..graph import Graph
from ..lower.emit import KnownOperators
from ..lower.formats import Format
from ..lower.lower import lower
from ..lower.steps import Step
from .calibrate import CalibratedRanges, Calibration, FloatModel
from .calibration_cache import LIVE, MAX_SAMPLES, Remembered, fitting_count, kept_apart, others
from .channel_groups import GroupChoice, choose_groups
from .config import Recipe
from .metrics import Metric, cosine, metric_of, worst_channel
from .perturbation import KINDS, perturbed
from .reconstruction import FEWEST_SAMPLES, FloatAnswers, refit
from .simulate import KnownWeights, QuantizedWeights, Simulation
from .tensor_scales import Clips, assign_quantization
from .threads import in_order, thread_count

__all__ = ["GROUP_BUDGET", "Score", "Trial", "Workbench", "with_floats", "within_budget"]

Sample = Mapping[str, Array]

GROUP_BUDGET = 0.25
"""By how much of the predicted time groups of channels may slow a network down."""

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
"""What is left of a channel's cosine, and of a metric, below which nobody sees a difference."""


@dataclass(frozen=True)
class Score:
    """How a quantised network did on the samples that judge.

    :ivar value: the mean of the metric
    :ivar cosine: the mean cosine
    :ivar worst: the cosine of the worst sample
    :ivar cosines: the cosine of each sample
    :ivar by_cosine: whether the metric is the cosine
    :ivar channel: the cosine of the worst channel of any sample's outputs; nan where it was not looked at
    :ivar left_out: samples that did not judge, as the others had decided; *worst* is then that of the others
    """

    value: float
    cosine: float
    worst: float
    cosines: tuple[float, ...] = ()
    by_cosine: bool = False
    channel: float = math.nan
    left_out: int = 0

    def beats(self, other: Score) -> bool:
        """Whether it is better: not at the cost of the worst sample; then by the metric, and where that cannot tell, by the cosine.

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
        """Whether nobody would see what a better one does better: in no sample, in no channel of an output, and not by the metric."""
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
        return f"{self.value:.4f}, worst cosine {self.worst:.4f}"


@dataclass(frozen=True, eq=False)
class Trial:
    """A network, quantised by a recipe.

    :ivar groups: tensors with groups of channels, and why
    :ivar refined: refitted weights, by the result of their step
    :ivar notes: what was done and why, a line for each step
    :ivar floats: tensors that are never rounded to codes: what makes them and what reads them is in float16
    :ivar cheaper: tensors with groups of channels that float16 is predicted to take less time for
    :ivar score: how it did on the samples that judge, where that decided
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

    :param kind: how numbers are held; codes of 8 bits
    :param samples: normalised samples; read at most once, when they are needed
    :param metric: a function of (expected outputs, given outputs), or the name of one; chosen by the shape of the outputs by default
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
        self.metric_name, self._metric = metric_of(metric, [graph.shapes[name] for name in graph.outputs])

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
        """Whether the quantised network can be run here: custom operators cannot."""
        return not any(node.custom for node in self.graph.nodes)

    @property
    def fitting(self) -> list[Sample]:
        """The samples that weights are fitted to."""
        return others(self._samples)

    @property
    def kept_apart(self) -> list[Sample]:
        """The samples that were kept apart; all where there are too few to keep some apart."""
        return kept_apart(self._samples)

    @cached_property
    def judging(self) -> list[Sample]:
        """The samples that were kept apart, and perturbed copies of them: two of each, fewer where there are many samples."""
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
        return [*known, *([np.asarray(values[name]) for name in self.graph.outputs] for values in found)]

    @property
    def _threads(self) -> int:
        """How many samples are judged at a time."""
        largest = max(4 * math.prod(self.graph.shapes[name]) for name in (*self.graph.inputs, *self.graph.producers()))
        return min(thread_count(LIVE * largest), len(self.judging))

    @cached_property
    def _float_answers(self) -> FloatAnswers:
        return self._remembered.answers() if self._remembered else FloatAnswers()

    def with_graph(self, graph: Graph) -> Workbench:
        """A workbench for the same network with other weights, judged by the answers of this one's float network."""
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
        """The network quantised by all steps of a recipe but the re-fit."""
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
            self._ranges_of(recipe),
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
        """The trial's recipe with some tensors in float16, not fitted."""
        floats = trial.floats | tensors
        return replace(self.quantized(trial.recipe, with_floats(trial.steps, floats)), floats=floats)

    def refitted(self, trial: Trial) -> Trial:
        """The trial with fitted weights, if the samples that judge agree that it is better."""
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
        """Which samples judge, in words."""
        apart = len(self.kept_apart)
        copies = len(self.judging) - apart
        return f"{apart} samples kept apart" + (f" and {copies} perturbed copies" if copies else "")

    def fitted(self, trial: Trial) -> Trial:
        """The trial with fitted weights, not judged; without them and with a note where weights cannot be fitted."""
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
        """How a trial does on the samples that judge.

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
                given[index], cosines[index] = outputs, cosine(self._expected[index], outputs)
                tell(self._progress, "judging", len(given), len(order))
                if rival is not None and rival.is_safe_from(cosines.values()):
                    # what other threads have done by now must not show, or results would depend on them
                    order = order[: len(given)]
                    break
        judged = sorted(given)
        for index in judged:
            self._worst_yet[index] = min(self._worst_yet.get(index, 1.0), cosines[index])
        found = tuple(cosines[index] for index in judged)
        by_cosine = self._metric is cosine
        values = found if by_cosine else [float(self._metric(self._expected[index], given[index])) for index in judged]
        left_out = len(self.judging) - len(judged)
        channel = math.nan
        if not left_out and min(found) > 1.0 - _SEEN:
            channel = min(worst_channel(self._expected[index], given[index]) for index in judged)
        return Score(float(np.mean(values)), float(np.mean(found)), min(found), found, by_cosine, channel, left_out)

    def cosine_of(self, trial: Trial, codes: Mapping[str, Quantization]) -> float:
        """The mean cosine where nothing but the tensors of *codes* is rounded; on two samples, as there are many tensors."""
        simulation = Simulation(self.graph, trial.steps, codes, weights=False)
        pairs = zip(self._expected[:2], self.judging[:2], strict=True)
        return float(np.mean([cosine(expected, simulation.run(sample)) for expected, sample in pairs]))

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
