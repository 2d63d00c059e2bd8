"""What the quantizer's quantization config does for a network that one scale for each tensor would spoil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from diseased_network import STEM, diseased_network, diseased_samples

import anynpu
from anynpu import chips
from anynpu.chips.timing import predict
from anynpu.compiler import METRICS, STEPS
from anynpu.compiler.graph import Graph
from anynpu.compiler.lower.lower import lower
from anynpu.compiler.quantize import search
from anynpu.compiler.quantize import search as workbench
from anynpu.compiler.quantize.channel_groups import Grouping
from anynpu.compiler.quantize.config import Recipe
from anynpu.compiler.quantize.metrics import cosine, detections, map_overlap, margin, metric_of, top1, worst_channel
from anynpu.compiler.quantize.model_samples import Study, open_study
from anynpu.compiler.quantize.search import GROUP_BUDGET, Score, Workbench, run_recipe, within_budget
from anynpu.compiler.quantize.simulate import Simulation
from anynpu.errors import CompileError
from anynpu.npu.engines.native import NativeEngine
from anynpu.program import Conv, Float, Model
from anynpu.tensor import Affine

from .onnx_builders import Net
from .running import run_fp32, run_model

Array = npt.NDArray[Any]

CALIBRATION = diseased_samples(12)
HELD_OUT = diseased_samples(8, 1000)
PLAIN = {"accuracy": "fast", "algorithm": "minmax", "without": ("groups", "clip")}


@pytest.fixture(scope="module")
def network() -> onnx.ModelProto:
    return diseased_network()


@pytest.fixture(scope="module")
def expected(network: onnx.ModelProto) -> list[list[Array]]:
    return run_fp32(network, HELD_OUT)


@pytest.fixture(scope="module")
def default(network: onnx.ModelProto) -> Model:
    return anynpu.compile(network, "rk3588", dataset=CALIBRATION)


@pytest.fixture(scope="module")
def study(network: onnx.ModelProto) -> Study:
    return open_study(network, dataset=CALIBRATION)


def explained(expected: list[list[Array]], given: list[list[Array]]) -> float:
    """The share of the output's variance over the image that is still there."""
    shares = []
    for (first,), (second,) in zip(expected, given, strict=True):
        moving = first - first.mean(axis=(2, 3), keepdims=True)
        shares.append(1.0 - float(((first - second) ** 2).sum() / (moving**2).sum()))
    return float(np.mean(shares))


def quality(model: Model, expected: list[list[Array]]) -> float:
    return explained(expected, run_model(model, HELD_OUT))


def test_the_default_recipe_rescues_what_min_max_loses(
    network: onnx.ModelProto, default: Model, expected: list[list[Array]]
) -> None:
    plain = anynpu.compile(network, "rk3588", dataset=CALIBRATION, **PLAIN)
    assert quality(plain, expected) <= 0.6  # tables that see the unrounded sum save a little of it
    assert quality(default, expected) >= 0.95


def test_best_is_at_least_as_good_and_says_what_each_step_bought(
    network: onnx.ModelProto, default: Model, expected: list[list[Array]]
) -> None:
    stages: list[str] = []
    model = anynpu.compile(
        network, "rk3588", dataset=CALIBRATION, accuracy="best", progress=lambda stage, done, total: stages.append(stage)
    )
    assert quality(model, expected) >= quality(default, expected)
    notes = model.provenance["accuracy"].split("; ")
    assert sum(note.startswith("tried: ") for note in notes) == 12
    assert sum(note.startswith("chosen: ") for note in notes) == 1
    assert "trying configs" in stages


def test_float16_layers_come_one_by_one_where_groups_are_left_out(network: onnx.ModelProto, expected: list[list[Array]]) -> None:
    options: dict[str, Any] = {"dataset": CALIBRATION, "without": ("groups", "refit")}
    plain = anynpu.compile(network, "rk3588", accuracy="fast", **options)
    best = anynpu.compile(network, "rk3588", accuracy="best", **options)
    assert any(isinstance(layer.op, Float) for layer in best.programs[0].layers)
    assert quality(best, expected) > 0.95 > quality(plain, expected)
    assert f"float16: {STEM}, " in best.provenance["accuracy"]
    assert "ms predicted" in best.provenance["accuracy"]


def test_a_chip_without_float16_gets_none(network: onnx.ModelProto) -> None:
    model = anynpu.compile(network, "rv1106", dataset=CALIBRATION, accuracy="best", without=("groups", "refit"))
    assert not any(isinstance(layer.op, Float) for layer in model.programs[0].layers)


def test_float16_takes_the_place_of_groups_where_it_is_better_for_less_time(
    study: Study, network: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_GOOD", 2.0)  # groups alone would be good enough for this network
    bench = study.bench
    grouped = bench.quantized(Recipe(), study.steps)
    assert grouped.cheaper == {STEM}
    (chosen,) = run_recipe([bench], [study.steps], Recipe(), best=False, time_budget=0.0)
    assert STEM in chosen.floats
    assert not chosen.groups
    assert bench.time_us(chosen) <= bench.time_us(grouped)
    assert bench.score(chosen).beats(bench.score(bench.fitted(grouped)))
    assert any(f"float16 {STEM}" in note or f" {STEM}," in note for note in chosen.notes if note.startswith("tried: "))
    (whole,) = run_recipe([bench], [study.steps], Recipe(float16=False), best=False, time_budget=0.0)
    assert not whole.floats
    assert STEM in whole.groups
    without = open_study(network, "rv1106", dataset=CALIBRATION)
    assert not without.bench.quantized(Recipe(), without.steps).cheaper
    (other,) = run_recipe([without.bench], [without.steps], Recipe(), best=False, time_budget=0.0)
    assert STEM in other.groups
    assert not other.floats


def test_groups_that_are_good_enough_stay_int8(default: Model) -> None:
    assert not any(isinstance(layer.op, Float) for layer in default.programs[0].layers)


@pytest.mark.parametrize(("chip", "dtype"), [("t527", "uint8"), ("t527", "int8"), ("v853", "int8_dfp")])
def test_formats_without_groups_are_fitted_too(
    network: onnx.ModelProto, expected: list[list[Array]], chip: str, dtype: str
) -> None:
    fast, fitted = (
        anynpu.compile(network, chip, dtype=dtype, dataset=CALIBRATION, accuracy=accuracy) for accuracy in ("fast", "default")
    )
    assert "refit: 3 convolutions" in fitted.provenance["accuracy"]
    assert quality(fitted, expected) > quality(fast, expected) + 0.02


@pytest.mark.parametrize(
    "step", [step for step in STEPS if step not in ("mixed", "float16")]
)  # which this network has no need of
def test_each_step_can_be_left_out_alone(network: onnx.ModelProto, default: Model, step: str) -> None:
    model = anynpu.compile(network, "rk3588", dataset=CALIBRATION, percentile=99.9, without=[step])
    whole = anynpu.compile(network, "rk3588", dataset=CALIBRATION, percentile=99.9)
    assert _constants(model) != _constants(whole)
    assert ("refit:" in model.provenance["accuracy"]) == (step != "refit")
    assert ("groups:" in model.provenance["accuracy"]) == (step != "groups")


def _constants(model: Model) -> list[object]:
    program = model.programs[0]
    weights = [layer.op.weights.tobytes() for layer in program.layers if isinstance(layer.op, Conv)]
    return [*weights, *(spec.quantization for spec in program.tensors.values()), *_tables(model)]


def _tables(model: Model) -> list[bytes]:
    tables = (layer.op.epilogue for layer in model.programs[0].layers if isinstance(layer.op, Conv))
    return [b"" if entry.table is None else entry.table.tobytes() + entry.multiplier.tobytes() for entry in tables]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accuracy": "perfect"}, "there is no accuracy 'perfect'"),
        ({"without": ["luck"]}, "there is no step 'luck'"),
        ({"metric": "feeling"}, "there is no metric 'feeling'"),
    ],
)
def test_unknown_choices_are_refused(network: onnx.ModelProto, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        anynpu.compile(network, "rk3588", dataset=CALIBRATION, **options)


def test_the_file_records_what_was_done_and_why(default: Model) -> None:
    text = default.provenance["accuracy"]
    assert "ranges: percentile 99.99" in text
    assert f"groups: {STEM} in 2, noise 1/" in text
    assert "% time" in text
    assert "held out" in text


def test_few_samples_are_not_fitted_to(network: onnx.ModelProto) -> None:
    model = anynpu.compile(network, "rk3588", dataset=CALIBRATION[:5])
    assert "refit: left out, 5 samples are fewer than 8" in model.provenance["accuracy"]


@pytest.mark.parametrize(("channel", "fitted"), [(0.9999, False), (0.9, True)])
def test_what_is_right_in_each_channel_is_not_fitted(monkeypatch: pytest.MonkeyPatch, channel: float, fitted: bool) -> None:
    """The cosine of all is right for both; where one channel is lost, a fit may help."""
    net = Net()
    net.output(net.conv(net.op("Relu", net.conv(net.input("x", (1, 3, 16, 16)), 4)), 4, kernel=1, cin=4))
    samples = [np.random.default_rng(seed).random((1, 3, 16, 16), np.float32) for seed in range(8)]
    monkeypatch.setattr(workbench, "worst_channel", lambda expected, given: channel)
    text = anynpu.compile(net.proto(), "rk3588", dataset=samples).provenance["accuracy"]
    assert "refit: " in text
    assert ("refit: left out, the outputs are right" in text) != fitted


def test_the_worst_channel_is_found_among_larger_ones() -> None:
    boxes = np.zeros((1, 6, 10), np.float32)
    boxes[0, :4], boxes[0, 4, 3] = 300.0, 0.9
    lost = boxes.copy()
    lost[0, 4, 3] = 0.0
    assert cosine([boxes], [lost]) > 0.99999
    assert worst_channel([boxes], [lost]) == worst_channel([boxes.swapaxes(1, 2)], [lost.swapaxes(1, 2)]) == 0.0
    assert worst_channel([boxes], [boxes]) == pytest.approx(1.0)
    assert worst_channel([np.array([[3.0, 4.0]])], [np.array([[6.0, 8.0]])]) == pytest.approx(1.0)
    assert worst_channel([np.array([[3.0, 4.0]])], [np.array([[np.nan, 8.0]])]) != 1.0
    assert worst_channel([], []) == 1.0


def test_a_fit_that_does_not_help_is_not_kept(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores state that fitted weights are worse: the trial comes back as it was, with a note."""
    bench = study.bench
    trial = bench.quantized(Recipe(), study.steps)
    monkeypatch.setattr(Workbench, "score", lambda self, entry: Score(0.5 if entry.refined else 0.6, 0.9, 0.9))
    after = bench.refitted(trial)
    assert after.refined == {}
    assert after.notes[-1].startswith("refit: not kept, cosine 0.6000")


def test_a_metric_of_the_caller_decides(study: Study) -> None:
    """A metric that only likes few quantized values wins over cosine."""
    asked: list[int] = []

    def coarse(wanted: list[Array], given: list[Array]) -> float:
        asked.append(len(given))
        return -float(len(np.unique(given[0])))

    bench = Workbench(
        study.bench.graph, chips.get("rk3588"), study.bench.calibration, CALIBRATION, study.bench.kind, metric=coarse
    )
    (chosen,) = run_recipe([bench], [study.steps], Recipe(refit=False), best=True, time_budget=1.0)
    tried = [bench.score(bench.quantized(Recipe(groups=count), study.steps)).value for count in (1, 2, 4)]
    assert asked
    assert bench.score(chosen).value >= max(tried)


def test_a_better_mean_does_not_excuse_a_worse_worst_sample() -> None:
    before = Score(0.95, 0.95, 0.94)
    assert Score(0.97, 0.97, 0.945).beats(before)
    assert not Score(0.97, 0.97, 0.90).beats(before)
    assert Score(0.951, 0.96, 0.94).beats(before)  # the metric cannot report, the cosine can
    assert not Score(0.951, 0.94, 0.94).beats(before)


def test_the_simulation_gives_the_codes_of_the_engine(network: onnx.ModelProto, default: Model, study: Study) -> None:
    """Sums in float32 instead of integers: nearly all quantized values are equal, none is more than a few steps off."""
    bench = study.bench
    trial = bench.refitted(bench.quantized(Recipe(), study.steps))
    assert trial.refined
    simulation = Simulation(bench.graph, trial.steps, trial.quantization, refined=trial.refined, sharing=bench.kind.weights)
    scale = default.outputs[0].quantization
    assert isinstance(scale, Affine)
    assert scale == trial.quantization["y"]
    (result,) = zip(*run_model(default, HELD_OUT[:3]), strict=True)
    for sample, given in zip(HELD_OUT[:3], result, strict=True):
        steps = np.abs(simulation.run(sample)[0] - given) / scale.scale
        # the float sums of another processor are rounded otherwise, which moves single quantized values: the limits leave space
        # for some dozen
        assert steps.max() < 5.5
        assert (steps < 1.5).mean() > 0.98
        assert (steps < 0.5).mean() > 0.85


def test_grouped_layers_are_what_the_hardware_can_do(default: Model) -> None:
    program, block = default.programs[0], chips.get("rk3588").channel_block["int8"]
    grouped = [spec for spec in program.tensors.values() if spec.quantization and not spec.quantization.is_per_tensor]
    assert [spec.name for spec in grouped] == [STEM]
    readers = {name: layer for layer in program.layers for name in layer.inputs}
    for spec in program.tensors.values():
        quantization = spec.quantization
        assert isinstance(quantization, Affine)
        assert all(np.float32(scale) == scale and scale > 0 for scale in quantization.scales)
        assert all(-128 <= zero <= 127 for zero in quantization.zero_points)
    for layer in program.layers:
        assert isinstance(layer.op, Conv)
        assert layer.op.weights.dtype == np.int8
        assert layer.op.bias.dtype == np.int32
        assert np.all((layer.op.weight_zero >= -128) & (layer.op.weight_zero <= 127))
        epilogue, result = layer.op.epilogue, program.tensors[layer.outputs[0]]
        if epilogue.table is not None:
            sizes = getattr(result.quantization, "group_sizes", ())
            assert epilogue.table.shape == (max(len(sizes), 1), 256)
            assert epilogue.table_groups == sizes
    for spec in grouped:
        reader = readers[spec.name].op
        assert isinstance(reader, Conv)
        depthwise = reader.groups == spec.channels
        assert depthwise or not any(reader.pads)  # a chip pads with one zero point
        assert isinstance(spec.quantization, Affine)
        pairs = set(zip(spec.quantization.scales, spec.quantization.zero_points, strict=True))
        assert len(pairs) <= 2
        assert spec.channels <= block  # wider tensors have groups of whole blocks, see below


def test_groups_of_wide_tensors_fill_whole_blocks() -> None:
    from anynpu.compiler.quantize.channel_groups import _noise

    rng = np.random.default_rng(2)
    high = np.concatenate([rng.uniform(0.5, 1.0, 37), rng.uniform(500.0, 1000.0, 27)])[rng.permutation(64)]
    free = Grouping(_noise(np.zeros(64), high, np.ones(64), 2)[1])
    aligned = Grouping(_noise(np.zeros(64), high, np.ones(64), 2, 16)[1])
    assert sorted(np.bincount(free.group_of).tolist()) == [27, 37]
    assert all(size % 16 == 0 for size in np.bincount(aligned.group_of))


def test_the_engine_computes_grouped_and_fitted_layers_exactly(default: Model) -> None:
    with anynpu.Device("rk3588", engine=NativeEngine()) as device, device.load(default).context() as context:
        native = [context.run(dict(sample)) for sample in HELD_OUT[:2]]
    from anynpu.npu import ReferenceEngine

    with anynpu.Device("rk3588", engine=ReferenceEngine()) as device, device.load(default).context() as context:
        exact = [context.run(dict(sample)) for sample in HELD_OUT[:2]]
    for one, other in zip(native, exact, strict=True):
        np.testing.assert_array_equal(one[0], other[0])


def test_groups_and_float16_cost_predicted_time(network: onnx.ModelProto) -> None:
    chip = chips.get("rk3588")
    options: dict[str, Any] = {"dataset": CALIBRATION[:4], "shapes": {"x": (1, 3, 32, 32)}}
    one = anynpu.compile(network, "rk3588", channel_groups=1, **options)
    two = anynpu.compile(network, "rk3588", channel_groups=2, **options)
    half = anynpu.compile(network, "rk3588", channel_groups=1, hybrid=[STEM], **options)
    times = [predict(model.programs[0], chip) for model in (one, two, half)]
    assert times[1].latency_us > times[0].latency_us
    stem = [next(layer for layer in prediction.layers if layer.does == "Conv") for prediction in times]
    assert stem[1].time_us == pytest.approx(2 * stem[0].time_us)  # a pass for each table
    assert stem[2].npu_cycles > stem[0].npu_cycles
    assert stem[2].written_bytes == 2 * stem[0].written_bytes


def test_groups_stay_within_their_budget(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every group doubled the time, there would be none, and the notes would report it."""
    bench = study.bench
    plain = bench.time_us(bench.quantized(Recipe(groups=1), study.steps))

    def dear(self: Workbench, trial: Any) -> float:
        grouped = any(not entry.is_per_tensor for entry in trial.quantization.values())
        return 1000.0 * plain * (2.0 if grouped else 1.0)

    monkeypatch.setattr(Workbench, "time_us", dear)
    trial = bench.quantized(Recipe(groups=4), study.steps)
    assert trial.groups == {}
    assert f"groups: not {STEM} in 2" in trial.notes[-1]


def test_the_time_of_a_trial_does_not_depend_on_those_before_it(study: Study) -> None:
    """Operators of other trials are used again only where scales are the same."""
    bench = study.bench
    trials = [bench.quantized(Recipe(groups=count), study.steps) for count in (1, 4, 2)]
    for trial in (*trials, trials[0]):
        alone = lower(bench.graph, trial.steps, bench.chip, trial.quantization, bench.kind, outline=True)
        assert bench.time_us(trial) == predict(alone, bench.chip).latency_us


@pytest.mark.parametrize("threads", [1, 3])
def test_judging_ends_where_a_trial_cannot_win_any_more(study: Study, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(workbench, "thread_count", lambda *_: threads)
    bench = study.bench
    good = bench.quantized(Recipe(), study.steps)
    bad = bench.quantized(Recipe(algorithm="minmax", groups=1, clip=False), study.steps)
    best, whole = bench.score(good), bench.score(bad)
    short = bench.score(bad, best)
    assert whole.worst < best.hopeless_below  # or the network does not show it
    assert short.left_out == len(bench.judging) - len(short.cosines) > 0
    assert short.worst < best.hopeless_below
    assert not short.beats(best)
    assert not whole.beats(best)
    assert best.beats(short)
    assert best.beats(whole)
    assert "not finished" in str(short)
    again = bench.score(good, whole)  # a winner is evaluated by all
    assert again.left_out == 0
    assert again.cosines == pytest.approx(best.cosines, abs=1e-5)


def test_judging_begins_with_what_the_rival_is_worst_at(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of threads: notes are part of the file."""
    bench = study.bench
    monkeypatch.setattr(bench, "_worst_yet", {})
    best = bench.score(bench.quantized(Recipe(), study.steps))
    bad = bench.quantized(Recipe(algorithm="minmax", groups=1, clip=False), study.steps)
    found = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(workbench, "thread_count", lambda *_, count=threads: count)
        found.append(bench.with_graph(bench.graph).score(bad, best))
    for score in found[1:]:
        assert score.left_out == found[0].left_out
        assert score.cosines == pytest.approx(found[0].cosines, abs=1e-5)
    worst = min(range(len(best.cosines)), key=best.cosines.__getitem__)
    assert min(abs(bench.score(bad).cosines[worst] - seen) for seen in found[0].cosines) < 1e-5


def test_judging_goes_on_with_what_any_trial_was_worst_at(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that is bad at one sample alone is found out by that sample if another one was bad at it, too."""
    bench, best = study.bench, study.bench.score(study.bench.quantized(Recipe(), study.steps))
    bad = bench.quantized(Recipe(algorithm="minmax", groups=1, clip=False), study.steps)
    last = max(range(len(best.cosines)), key=best.cosines.__getitem__)
    monkeypatch.setattr(workbench, "thread_count", lambda *_: 1)
    monkeypatch.setattr(bench, "_worst_yet", {last: 0.1})
    score = bench.score(bad, best)
    assert score.left_out == len(best.cosines) - 1
    assert score.cosines == pytest.approx([bench.score(bad).cosines[last]], abs=1e-5)


def test_what_is_safe_from_some_cosines_is_not_beaten_whatever_the_others_are() -> None:
    """The mean of the samples that are left cannot make up for more than what the rival has lost on them."""
    rng = np.random.default_rng(3)

    def scored(cosines: Array) -> Score:
        mean, worst = float(np.mean(cosines)), float(min(cosines))
        return Score(mean, mean, worst, tuple(cosines), by_cosine=True)

    early = 0
    for _ in range(1000):
        rival = scored(1.0 - 0.03 * rng.random(6))
        seen = 1.0 - 0.06 * rng.random(3)
        if rival.is_safe_from(list(seen)):
            early += min(seen) >= rival.hopeless_below
            assert not scored(np.concatenate([seen, np.ones(3)])).beats(rival)
            assert rival.beats(scored(np.concatenate([seen, np.ones(3)])))
    assert early > 5
    assert not scored(np.full(4, 0.9)).is_safe_from([0.95, 0.95])
    other_metric = Score(0.7, 0.99, 0.98, (0.98, 1.0))
    assert not other_metric.is_safe_from([0.9799])
    assert other_metric.is_safe_from([0.96])


def test_copies_make_up_for_few_samples_and_some_are_always_there(study: Study) -> None:
    for count, copies in ((8, 4), (16, 3), (24, 2)):
        bench = replace_samples(study.bench, count)
        assert len(bench.judging) - len(bench.kept_apart) == copies


def replace_samples(bench: Workbench, count: int) -> Workbench:
    other = bench.with_graph(bench.graph)
    del other.__dict__["judging"]
    other.__dict__["_samples"] = [bench._samples[index % len(bench._samples)] for index in range(count)]
    return other


def test_a_budget_leaves_room_for_a_few_short_layers() -> None:
    assert within_budget(10_000.0 * (1 + GROUP_BUDGET), 10_000.0, GROUP_BUDGET)
    assert not within_budget(10_000.0 * (1 + GROUP_BUDGET) + 1, 10_000.0, GROUP_BUDGET)
    assert within_budget(100.0, 50.0, 0.0)


def test_several_shapes_share_the_fitted_weights() -> None:
    network = diseased_network()
    for value in (*network.graph.input, *network.graph.output):
        for axis in value.type.tensor_type.shape.dim[2:]:
            axis.dim_param = "side" if value.name == "x" else "half"
    model = anynpu.compile(network, "rk3588", dataset=CALIBRATION, shapes=[{"x": (1, 3, 32, 32)}, {"x": (1, 3, 48, 48)}])
    first, second = ([layer.op for layer in program.layers if isinstance(layer.op, Conv)] for program in model.programs)
    assert "refit: 3 convolutions" in model.provenance["accuracy"]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.bias, other.bias)


def test_metrics_know_equal_from_different() -> None:
    rows = np.array([[3.0, 1.0, 0.0], [0.0, 1.0, 0.5]])
    assert cosine([rows], [rows]) == pytest.approx(1.0)
    assert top1([rows], [rows]) == margin([rows], [rows]) == 1.0
    swapped = rows[:, [1, 0, 2]]
    assert top1([rows], [swapped]) == 0.0
    assert margin([rows], [swapped]) == -1.0
    maps = np.array([0.0, 0.5, 0.9, 0.1])
    assert map_overlap([maps], [maps]) == 1.0
    assert map_overlap([maps], [np.array([0.0, 0.5, 0.1, 0.1])]) == 0.5
    assert map_overlap([np.zeros(4)], [np.zeros(4)]) == 1.0


@pytest.mark.parametrize("columns", [False, True])
def test_detections_are_kept_or_lost(columns: bool) -> None:
    """Three boxes of which one loses its score and one moves away."""
    boxes = np.zeros((40, 4 + 1 + 3))
    boxes[:3, :4] = [[10, 10, 8, 8], [40, 40, 8, 8], [80, 80, 8, 8]]
    boxes[:3, 4] = 0.9
    boxes[:3, 5] = 0.9
    worse = boxes.copy()
    worse[1, 5] = 0.1
    worse[2, 0] += 7.0

    def output(rows: Array) -> list[Array]:
        return [np.delete(rows, 4, axis=1).T[None] if columns else rows[None]]

    assert detections(output(boxes), output(boxes)) == 1.0
    assert detections(output(boxes), output(worse)) == pytest.approx(2 * 1 / (3 + 2))


def test_detections_of_something_else_are_refused() -> None:
    with pytest.raises(CompileError, match="takes one output"):
        detections([np.zeros((1, 3))], [np.zeros((1, 3))])


def test_the_shape_of_the_output_chooses_the_metric() -> None:
    assert metric_of(None, [(1, 4)])[0] == "margin"
    assert metric_of(None, [(1, 4, 8, 8)])[0] == "cosine"
    assert metric_of("map", [(1, 4)]) == ("map", METRICS["map"])


def test_graph_is_left_as_it_was_by_trials(study: Study) -> None:
    graph = study.bench.graph
    assert isinstance(graph, Graph)
    before = {name: value.copy() for name, value in graph.constants.items()}
    study.bench.refitted(study.bench.quantized(replace(Recipe(), groups=4), study.steps))
    assert set(before) == set(graph.constants)
    for name, value in before.items():
        np.testing.assert_array_equal(value, graph.constants[name])
