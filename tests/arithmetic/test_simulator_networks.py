"""The simulators' rule on sums of integers: an activation after a convolution works on the unrounded sum, in float, with one rounding.

So it is for models with custom operators, and for those that are brought from the chip's rule to this one. All others are computed as the
toolkit's simulator does it (tests/compiler/test_toolkit_simulation.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anynpu
from anynpu.compiler import pipeline as driver
from anynpu.errors import AnynpuError
from anynpu.program import Conv, Epilogue, Model, Staircase
from anynpu.program.arithmetic.thresholds import climb, staircase_of

from . import chip_oracle as chip
from .chip_families import Net, convolution, image
from .chip_oracle import F
from .test_chip_networks import LEVELS, feeds, run


@pytest.fixture(autouse=True)
def integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "sums_in_float32", lambda _: False)


SMOOTH = [name for name in chip.FUNCTIONS if name != "HardSigmoid"]


def compiled(net: Net, output: str, **options: object) -> Model:
    return anynpu.compile(
        net.model(output),
        "rk3588",
        dataset=[feeds(net)],
        quantizer="vendor",
        arithmetic="simulator",
        ranges=net.ranges,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("activation", "kind"), [*((name, kind) for name in SMOOTH for kind in ("dense", "grouped")), ("Elu", "depthwise")]
)
def test_activations_take_the_unrounded_sum(activation: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine gives the quantized values of a slow oracle in Python's floats; after a depthwise convolution only Elu does so."""
    for seed in range(2):
        net = Net(np.random.default_rng((SMOOTH.index(activation), seed)), curves="simulated")
        output = convolution(net, image(net, 6), kind, activation)
        model = compiled(net, output)
        (layer,) = model.programs[0].layers
        assert isinstance(layer.op, Conv)
        assert isinstance(layer.op.epilogue, Epilogue)
        assert len(layer.op.epilogue.staircases) == 1
        path = model.save(tmp_path / "model.rknn")
        wanted = net.tensors[output].values.astype(np.int8)
        for level in LEVELS:
            assert np.array_equal(run(path, net, level, monkeypatch), wanted), f"seed {seed} at level {level}"


def test_a_hard_sigmoid_takes_a_code() -> None:
    """As the toolkit's simulator was seen to have it."""
    net = Net(np.random.default_rng(0), curves="simulated")
    output = convolution(net, image(net), "dense", "HardSigmoid")
    (layer,) = compiled(net, output).programs[0].layers
    assert layer.op.epilogue.table is not None  # type: ignore[union-attr]
    assert not layer.op.epilogue.staircases  # type: ignore[union-attr]


def test_groups_of_channels_have_a_staircase_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All levels give the bytes of the reference engine."""
    net = Net(np.random.default_rng(5), curves="simulated")
    output = convolution(net, image(net, 6), "dense", "Swish")
    model = compiled(net, output)
    program = model.programs[0]
    layer = program.layers[0]
    assert isinstance(layer.op, Conv)
    stage = layer.op.epilogue
    assert isinstance(stage, Epilogue)
    stairs, channels = stage.staircases[0], len(layer.op.weights)
    flat = Staircase(np.zeros(1, np.float32), np.array([-3, 4], np.int8))
    groups = replace(stage, staircases=(stairs, flat), staircase_groups=(channels - 1, 1)) if channels > 1 else stage
    changed = replace(program, layers=(replace(layer, op=replace(layer.op, epilogue=groups)),))
    path = replace(model, programs=(changed,)).save(tmp_path / "model.rknn")
    results = [run(path, net, level, monkeypatch) for level in LEVELS]
    assert set(np.unique(results[0][-1])) <= {-3, 4}
    assert np.array_equal(results[0][:-1], run(model.save(tmp_path / "one.rknn"), net, "reference", monkeypatch)[:-1])
    for result in results[1:]:
        assert np.array_equal(result, results[0])


@pytest.mark.parametrize(
    "broken",
    [
        Staircase(np.zeros(0, np.float32), np.zeros(1, np.int8)),
        Staircase(np.array([1, 1], np.float32), np.zeros(3, np.int8)),
        Staircase(np.array([0, np.inf], np.float32), np.zeros(3, np.int8)),
        Staircase(np.array([0, 1], np.float32), np.zeros(2, np.int8)),
        Staircase(np.array([0, 1], np.float64), np.zeros(3, np.int8)),
        Staircase(np.array([0, 1], np.float32), np.zeros(3, np.int16)),
    ],
)
def test_a_file_with_a_broken_staircase_is_refused(broken: Staircase, tmp_path: Path) -> None:
    net = Net(np.random.default_rng(1), curves="simulated")
    model = compiled(net, convolution(net, image(net), "dense", "Tanh"))
    layer = model.programs[0].layers[0]
    stage = replace(layer.op.epilogue, staircases=(broken,))  # type: ignore[union-attr]
    program = replace(model.programs[0], layers=(replace(layer, op=replace(layer.op, epilogue=stage)),))  # type: ignore[type-var]
    with pytest.raises(AnynpuError, match=r"staircase|edges"):
        anynpu.load(replace(model, programs=(program,)).save(tmp_path / "model.rknn"))


@pytest.mark.parametrize("scale", [1e-4, 0.01, 0.2])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_edges_are_where_the_code_changes(name: str, scale: float) -> None:
    """At an edge and just below it, and at numbers between: the code that the function has there."""
    function = chip.FUNCTIONS[name]
    stairs = staircase_of(lambda x: np.vectorize(function, otypes=[float])(x), scale, -20, 32 + 1024 * scale, np.dtype(np.int8))
    below = np.nextafter(stairs.edges, F(-np.inf))
    places = np.concatenate([stairs.edges, below, np.linspace(-20, 20, 101, dtype=F)])
    wanted = [chip.clip8(round(function(float(x)) / scale) - 20) for x in places]
    assert climb((stairs,), (), places[:, None])[:, 0].tolist() == wanted
    assert (stairs.codes[1:] != stairs.codes[:-1]).all()
