"""Calibration keeps what the search for a quantization config needs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from diseased_network import diseased_network, diseased_samples

import anynpu
from anynpu.compiler.lower.steps import Step
from anynpu.compiler.quantize import calibrate, search, simulate
from anynpu.compiler.quantize.config import Recipe
from anynpu.compiler.quantize.model_samples import Study, open_study
from anynpu.compiler.quantize.search import Remembered, Score, Trial, Workbench, kept_apart, others, remember

Array = npt.NDArray[Any]

SAMPLES = diseased_samples(9)


@pytest.fixture(scope="module")
def study() -> Study:
    return open_study(diseased_network(), dataset=SAMPLES)


def watched(study: Study, announced: int = len(SAMPLES)) -> Workbench:
    """The study's workbench, as if calibration had remembered the samples."""
    bench = study.bench
    memory = remember(bench.graph, study.steps, announced)
    assert memory is not None
    model = calibrate.FloatModel(bench.graph, memory.names, {})
    for sample in study.data:
        memory.see(sample, model.run(sample))
    seen = replace(bench.calibration, watched=memory)
    return Workbench(bench.graph, bench.chip, seen, iter(()), bench.kind, bench.preprocess)


def test_no_sample_runs_twice_in_the_float_network(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[bytes] = Counter()
    run = calibrate.FloatModel.run

    def counted(self: calibrate.FloatModel, sample: Mapping[str, Array]) -> Mapping[str, Array]:
        runs[np.asarray(sample["x"]).tobytes()] += 1
        return run(self, sample)

    monkeypatch.setattr(calibrate.FloatModel, "run", counted)
    model = anynpu.compile(diseased_network(), "rk3588", dataset=list(SAMPLES))
    assert "refit: 3 convolutions" in model.provenance["accuracy"]
    assert max(runs.values()) == 1
    assert len(runs) > len(SAMPLES)  # perturbed copies


def test_weights_are_fitted_to_what_was_remembered_as_to_what_is_computed_anew(study: Study) -> None:
    first, second = study.bench, watched(study)
    trial = first.quantized(Recipe(), study.steps)
    for one, other in zip(first._expected, second._expected, strict=True):
        np.testing.assert_allclose(one[0], other[0], atol=1e-5)
    computed, remembered = first.fitted(trial).refined, second.fitted(trial).refined
    assert computed.keys() == remembered.keys() != set()
    for name in computed:
        assert np.mean(computed[name].codes != remembered[name].codes) < 0.01  # sums of the float network are rounded otherwise
        np.testing.assert_allclose(computed[name].bias, remembered[name].bias, rtol=1e-3, atol=1e-3)


def test_other_samples_than_announced_are_computed_anew(study: Study) -> None:
    bench = watched(study, announced=20)
    trial = bench.quantized(Recipe(), study.steps)
    assert bench.fitted(trial).refined.keys() == study.bench.fitted(trial).refined.keys() != set()


@pytest.mark.parametrize("count", [None, 7])
def test_nothing_is_remembered_where_nothing_is_fitted(study: Study, count: int | None) -> None:
    assert remember(study.bench.graph, study.steps, count) is None


def test_samples_are_kept_apart_or_fitted_to() -> None:
    for count in range(1, 30):
        samples = list(range(count))
        if count > 2:
            assert sorted([*kept_apart(samples), *others(samples)]) == samples
        else:
            assert kept_apart(samples) == samples


@pytest.mark.parametrize(("behind", "fits"), [(0.90, 1), (0.925, 2)])
def test_a_second_fit_is_tried_only_where_it_can_catch_up(
    study: Study, monkeypatch: pytest.MonkeyPatch, behind: float, fits: int
) -> None:
    """Without groups the worst sample is worse, by more than twice what fitting gains, or by less."""
    fitted: list[Trial] = []

    def score(self: Workbench, trial: Trial, rival: Score | None = None) -> Score:
        worst = (0.93 if trial.recipe.groups > 1 else behind) + (0.005 if trial.refined else 0.0)
        return Score(worst, worst, worst, (worst,), by_cosine=True)

    def fit(self: Workbench, trial: Trial) -> Trial:
        fitted.append(trial)
        return replace(trial, refined={"x": None})  # type: ignore[dict-item]

    monkeypatch.setattr(Workbench, "score", score)
    monkeypatch.setattr(Workbench, "fitted", fit)
    trial = search._never_worse(study.bench, study.steps, Recipe())
    assert trial.refined
    assert trial.recipe.groups > 1
    assert len(fitted) == fits
    assert isinstance(trial.score, Score)


def stub(monkeypatch: pytest.MonkeyPatch, trials: list[Trial], scores: dict[str, Score]) -> None:
    """Let the *scores* be those of the grouped, the fitted and the plain trial; all that are scored or fitted are noted in *trials*."""

    def score(self: Workbench, trial: Trial, rival: Score | None = None) -> Score:
        trials.append(trial)
        return scores["fitted" if trial.refined else trial.recipe.algorithm]

    def fit(self: Workbench, trial: Trial) -> Trial:
        fitted = replace(trial, refined={"x": None})  # type: ignore[dict-item]
        trials.append(fitted)
        return fitted

    monkeypatch.setattr(Workbench, "score", score)
    monkeypatch.setattr(Workbench, "fitted", fit)


def of_metric(value: float, worst: float = 0.99) -> Score:
    return Score(value, worst, worst, (worst,))


@pytest.mark.parametrize(("after", "fits"), [(0.94, 2), (0.80, 1)])
def test_whole_ranges_are_fitted_only_where_the_first_fit_did_no_harm(
    study: Study, monkeypatch: pytest.MonkeyPatch, after: float, fits: int
) -> None:
    trials: list[Trial] = []
    stub(monkeypatch, trials, {"percentile": of_metric(0.95), "fitted": of_metric(after), "minmax": of_metric(0.97)})
    trial = search._never_worse(study.bench, study.steps, Recipe(groups=1))
    assert trial.recipe.algorithm == "minmax"
    assert not trial.refined
    assert len({id(entry) for entry in trials if entry.refined}) == fits


@pytest.mark.parametrize(("worst", "tried"), [(0.99995, False), (0.9997, True)])
def test_whole_ranges_are_not_tried_where_there_is_nothing_to_gain(
    study: Study, monkeypatch: pytest.MonkeyPatch, worst: float, tried: bool
) -> None:
    trials: list[Trial] = []
    found = Score(worst, worst, worst, (worst,), by_cosine=True, channel=0.9996)
    stub(monkeypatch, trials, {"percentile": found, "minmax": found})
    trial = search._never_worse(study.bench, study.steps, Recipe(groups=1))
    assert ("minmax" in {entry.recipe.algorithm for entry in trials}) is tried
    assert ("plain min/max: left out" in " ".join(trial.notes)) is not tried
    assert trial.score == found


def test_weights_are_rounded_once_for_all_trials(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded: Counter[str] = Counter()
    whole = simulate._plainly_rounded

    def counted(step: Step, *given: Any) -> Array:
        rounded[step.outputs[0]] += 1
        return whole(step, *given)

    monkeypatch.setattr(simulate, "_plainly_rounded", counted)
    bench = study.bench.with_graph(study.bench.graph)
    plain = bench.quantized(Recipe(groups=1), study.steps)
    first = bench.score(plain)
    bench.score(bench.quantized(Recipe(algorithm="minmax", groups=1), study.steps))
    bench.fitted(plain)
    assert set(rounded.values()) == {1}
    assert first == bench.with_graph(bench.graph).score(plain)
    assert set(rounded.values()) == {2}  # another network has other weights
    monkeypatch.setattr(simulate, "_KNOWN_BYTES", 0)
    assert first == bench.with_graph(bench.graph).score(plain)


def test_a_workbench_of_another_network_does_not_use_it(study: Study) -> None:
    bench = watched(study)
    assert isinstance(bench.calibration.watched, Remembered)
    other = bench.with_graph(replace(bench.graph))
    assert other._remembered is None
