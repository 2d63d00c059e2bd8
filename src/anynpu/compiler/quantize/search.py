"""Which recipe a network gets: the one that was asked for, or the best of several, with float16 layers where they pay.

``best`` first tries ranges and numbers of groups against each other without a re-fit. Those that are predicted to take more time than the
budget allows are dropped, then losers by the metric. Among those that it cannot tell apart (cosine cannot, below 0.02) the order of the
list decides, in which the recipe that did best over many networks comes first. The winner and the recipe that was asked for are fitted, and
the better one stays. If it is not good yet and the chip has float16, tensors are kept in float16
one after the other, those first whose rounding alone costs most, until the result is good or the budget of predicted time is spent; with
them the weights are fitted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..._util.progress import Progress, tell
from ..lower.steps import Step
from .blas import one_blas_thread
from .config import Recipe
from .evaluation import GROUP_BUDGET, Score, Trial, Workbench, with_floats, within_budget
from .lint import LOST, few_values

__all__ = ["run_recipe"]


_RANGES = (("percentile", 99.99), ("percentile", 99.999), ("minmax", 99.99), ("percentile", 99.95))
_GROUPS = (4, 2, 1)
_TELLS = {"cosine": 0.02}
"""Differences below this say nothing about what a network is for; for other metrics that is half a percent."""

_OTHERWISE = 0.005
_GOOD = 0.99
"""The metric at which the default keeps its groups."""

_VERY_GOOD = 0.998
"""The metric at which ``best`` tries no float16 layers any more."""

_AS_GOOD_AS_FLOAT = 0.9999
"""The worst cosine of perfect outputs at which whole ranges are not tried any more."""

_GOOD_ENOUGH = 0.95
"""The worst cosine at which the default tries no second re-fit."""

_HARMED = 0.05
"""A re-fit that makes the metric worse by this much has met what no other ranges make good."""

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
    """The networks of all shape sets, quantised. Choices are made on the first one; the others follow."""
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
    """The recipe, without its groups where they do not help or where float16 does better for the same time, with its re-fit where that
    helps; or the plain recipe where none of it does."""
    trials = [bench.quantized(recipe, steps)]
    if trials[0].groups:
        trials.append(bench.quantized(replace(recipe, groups=1), steps))
    first = (trials[0], bench.score(trials[0]))
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
    """The better one of a trial and the plain recipe: whole ranges, no groups; with a re-fit where that may help and does."""
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
        notes.append(f"chosen: min/max with a refit, {bench.metric_name} {after}")
        return replace(fitted, recipe=replace(plain.recipe, refit=True), notes=tuple(notes), score=after)
    return replace(plain, notes=(*notes, "chosen: plain min/max, as no step makes it better"), score=its)


def _search(bench: Workbench, steps: list[Step], start: Recipe, time_budget: float, progress: Progress | None) -> Trial:
    recipes = _recipes(start)
    total = len(recipes) + 1 + _MAX_FLOATS
    scored: list[tuple[Score, Trial, float]] = []
    for index, recipe in enumerate(recipes):
        trial = bench.quantized(recipe, steps)
        scored.append((bench.score(trial), trial, bench.time_us(trial)))
        tell(progress, "trying recipes", index + 1, total)
    quickest = min(time for _, _, time in scored)
    affordable = [entry for entry in scored if within_budget(entry[2], quickest, time_budget)]
    best = max(score.value for score, _, _ in affordable)
    tells = _TELLS.get(bench.metric_name, _OTHERWISE)
    winner = next(entry[1] for entry in affordable if entry[0].value >= best - tells)
    lines = [f"tried: {other.recipe}, {bench.metric_name} {result}, {time / 1000:.2f} ms" for result, other, time in scored]
    plain, trial, score = _final(bench, winner, steps, start)
    lines.append(f"chosen: {_named(trial)}, {bench.metric_name} {score}")
    tell(progress, "trying recipes", len(recipes) + 1, total)
    if score.value < _VERY_GOOD and bench.chip.float16 and start.float16:
        trial = _floats(bench, plain, (trial, score), time_budget, progress, (len(recipes) + 1, total))
    return replace(trial, notes=(*lines, *trial.notes), score=trial.score or score)


def _final(bench: Workbench, winner: Trial, steps: list[Step], start: Recipe) -> tuple[Trial, Trial, Score]:
    """The winner or what the default would have taken, the better one after its re-fit: without that, with it, and its score."""
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
    """Tensors kept in float16, as long as each makes the result better and there is time left for it; then the re-fit.

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
