"""Random networks by operator family, from ONNX to bytes: every engine at every level equals an oracle that shares nothing with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu.npu.engines.native_levels import available
from anynpu.program import Conv, Model

from . import chip_oracle as chip
from .chip_families import FAMILIES, Net, network
from .chip_oracle import Array, Codes, F
from .engines import use_engine

CASES = int(os.environ.get("ANYNPU_CHIP_CASES", "6"))
"""Networks of each family; `make soak` asks for more."""

LEVELS = ("reference", *available())


def feeds(net: Net) -> dict[str, Array]:
    """Numbers that become the quantized values of the network's inputs."""
    found = {}
    for name in net.inputs:
        codes = net.tensors[name]
        found[name] = ((codes.values - codes.zero).astype(F) * F(codes.scale))[None]
    return found


def compiled(net: Net, output: str, path: Path, **options: Any) -> Path:
    model = anynpu.compile(
        net.model(output), dataset=[feeds(net)], quantizer="vendor", arithmetic="chip", ranges=net.ranges, **options
    )
    return model.save(path)


def run(path: Path, net: Net, level: str, monkeypatch: pytest.MonkeyPatch) -> Array:
    """The quantized values that an engine gives."""
    with monkeypatch.context() as changed:
        use_engine(level, changed)
        with anynpu.InferenceSession(path, provider_options={"output_type": "model"}) as session:
            (codes,) = session.run(None, feeds(net))
    assert codes.dtype == np.int8
    return np.asarray(codes[0])


@pytest.mark.parametrize("family", list(FAMILIES))
def test_random_networks_give_the_bytes_of_the_oracle(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    for seed in range(CASES):
        net, output = network(family, seed)
        wanted = net.tensors[output].values.astype(np.int8)
        seen.update(wanted.ravel().tolist())
        path = compiled(net, output, tmp_path / "model.rknn")
        for level in LEVELS:
            assert np.array_equal(run(path, net, level, monkeypatch), wanted), f"seed {seed} at level {level}"
    assert len(seen) > 20


@pytest.mark.parametrize("size", [(3, 5), (7, 7), (8, 8), (16, 9), (20, 3), (50, 8)])
def test_a_global_average_is_computed_in_stages(size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the vendor splits it; the ranges between stages come from calibration."""
    net = Net(np.random.default_rng(size))
    x = net.input((2, *size))
    codes = net.tensors[x]
    codes.values[1] = np.minimum(codes.values[1] + 60, 127)
    mean = (codes.values - codes.zero).astype(float).mean((1, 2)) * codes.scale
    low, high = min(*mean, 0.0), max(*mean, 0.0)
    net.tensors["t0"] = Codes(np.zeros((2, 1, 1), object), float(F((high - low) / 240)), round(-120 - low * 240 / (high - low)))
    net.plain("GlobalAveragePool", [x])
    path = compiled(net, "t0", tmp_path / "model.rknn")
    layers = [layer for layer in anynpu.load(path).programs[0].layers if isinstance(layer.op, Conv)]
    assert len(layers) == (1 if max(size) <= 7 else 2 if max(size) <= 49 else 3)
    tensors = anynpu.load(path).programs[0].tensors
    stages = [tensors[layer.outputs[0]].quantization for layer in layers]
    wanted = chip.global_average(codes, [(stage.scale, stage.zero_point) for stage in stages if stage is not None])
    for level in LEVELS:
        assert np.array_equal(run(path, net, level, monkeypatch), wanted.values.astype(np.int8)), level
    assert np.abs((wanted.values.ravel() - wanted.zero).astype(float) * wanted.scale - mean).max() < 2.5 * max(
        stage.scale for stage in stages if stage is not None
    )


def test_the_stages_that_the_vendors_program_has(tmp_path: Path) -> None:
    """8 x 8 pixels: 7 x 7, stride 7, padding 3, then 2 x 2. The weights are those of rknn-toolkit2 2.5.0: 1/8 in both."""
    net = Net(np.random.default_rng(0))
    x = net.input((3, 8, 8))
    net.tensors["t0"] = Codes(np.zeros((3, 1, 1), object), net.tensors[x].scale, net.tensors[x].zero)
    net.plain("GlobalAveragePool", [x])
    model: Model = anynpu.load(compiled(net, "t0", tmp_path / "model.rknn"))
    first, second = (layer.op for layer in model.programs[0].layers)
    assert isinstance(first, Conv)
    assert isinstance(second, Conv)
    assert (first.weights.shape, first.strides, first.pads, first.groups) == ((3, 7, 7, 1), (7, 7), (3, 3, 3, 3), 3)
    assert (second.weights.shape, second.strides, second.pads) == ((3, 2, 2, 1), (2, 2), (0, 0, 0, 0))


def test_a_division_is_stored_as_codes(tmp_path: Path) -> None:
    """It is computed on the CPU of the board, which is said."""
    net, output = network("div", 0)
    program = anynpu.load(compiled(net, output, tmp_path / "model.rknn")).programs[0]
    assert program.tensors[output].dtype.value == "int8"
    (division,) = (layer for layer in program.layers if layer.operator == "Div")
    assert division.placement.value == "cpu"
    assert "CPU" in division.reason
