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

from ..progress import Progress, tell
from .recipe import Recipe
from .steps import Step
from .workbench import Score, Trial, Workbench, with_floats, within_budget

__all__ = ["run_recipe"]


_RANGES = (("percentile", 99.99), ("percentile", 99.999), ("minmax", 99.99), ("percentile", 99.95))
_GROUPS = (4, 2, 1)
_TELLS = {"cosine": 0.02}
"""Differences below this say nothing about what a network is for; for other metrics that is half a percent."""

_OTHERWISE = 0.005
_GOOD = 0.99
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
    if best and first.can_judge:
        chosen = _search(first, plans[0], recipe, time_budget, progress)
    else:
        chosen = first.quantized(recipe, plans[0])
        chosen = first.refitted(chosen) if recipe.refit else chosen
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
    finalists = [winner, *(other for _, other, _ in affordable if other.recipe == start and other is not winner)]
    plain, trial, score = _final(bench, finalists)
    lines.append(f"chosen: {trial.recipe}, {bench.metric_name} {score}")
    tell(progress, "trying recipes", len(recipes) + 1, total)
    if score.value < _GOOD and bench.chip.float16:
        trial = _floats(bench, plain, (trial, score), time_budget, progress, (len(recipes) + 1, total))
    return replace(trial, notes=(*lines, *trial.notes))


def _final(bench: Workbench, finalists: Sequence[Trial]) -> tuple[Trial, Trial, Score]:
    """The best of the finalists before and after its re-fit, and its score."""
    results = []
    for plain in finalists:
        fitted = bench.refitted(plain) if plain.recipe.refit else plain
        results.append((plain, fitted, bench.score(fitted)))
    best = results[0]
    for other in results[1:]:
        if other[2].beats(best[2]):
            best = other
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
        floats = trial.floats | {name}
        other = replace(bench.quantized(trial.recipe, with_floats(trial.steps, floats)), floats=floats)
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
        if score.value >= _GOOD:
            break
    if not trial.floats:
        return replace(rival[0], notes=(*rival[0].notes, *notes))
    fitted = bench.refitted(trial) if trial.recipe.refit else trial
    after = bench.score(fitted)
    if after.beats(rival[1]):
        kept = [note for note in fitted.notes if not note.startswith("refit")]
        last = [note for note in fitted.notes if note.startswith("refit")]
        return replace(fitted, notes=(*kept, *notes, *last))
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
