"""Trained networks on every family and generation of chips."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_models import RealModels

import anynpu
from anynpu import chips
from anynpu.cli.demo.detection import cosine

from .networks import HELD_OUT, NETWORKS, run_float, run_on_device

ONE_OF_EACH_GENERATION = ("rk3588", "rk3576", "rk3566", "rk3562", "rv1106", "rv1103b", "v853", "t527", "a733")
EVERY_CHIP = chips.names()
QUICK_CHIPS = ("rk3588", "rk3566", "rv1106", "v853", "t527")


def on_each(chosen: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Every network on every chip; quick are the smallest on a few chips, and all of them on rk3588."""

    def is_quick(chip: str, name: str) -> bool:
        return (name in ("classification", "squeezenet") and chip in QUICK_CHIPS) or chip == "rk3588"

    pairs = [(chip, name) for chip in chosen for name in names]
    return [pytest.param(*pair, marks=() if is_quick(*pair) else pytest.mark.full) for pair in pairs]


NEVER_BOTH = ("rk3576", "rk3566", "rk3562", "rv1106", "rv1103b")
"""Chips on which one of the two large networks is compiled to int8, each in its turn; a network takes seconds, and they are much alike."""


def compiled_on_each(chosen: Iterable[str], spared: Iterable[tuple[str, str]] = ()) -> list[Any]:
    """Every network on every chip, without the *spared* pairs; quick is the smallest, on a few chips."""
    pairs = [(chip, name) for chip in chosen for name in NETWORKS if (chip, name) not in set(spared)]
    quick = [(chip, "classification") for chip in QUICK_CHIPS]
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.full) for pair in pairs]


SPARED = [(chip, ("recognition", "detection")[number % 2]) for number, chip in enumerate(NEVER_BOTH)]


@pytest.mark.parametrize(("chip", "name"), compiled_on_each(ONE_OF_EACH_GENERATION, SPARED))
def test_a_network_compiles_to_int8_and_runs(paths: dict[str, Path], chip: str, name: str) -> None:
    network = NETWORKS[name]
    # one scale for all weights of a layer, as uint8 has it on a VIP, is not enough for the recognizer
    dtype = "int8" if chips.get(chip).family == "vip" and name == "recognition" else "w8a8"
    model = network.compile(paths[name], chip, dtype, samples=network.pictures(4))
    image = network.picture(HELD_OUT)
    (output,) = run_on_device(model, [image])
    expected = run_float(paths[name], network, image)
    assert output.shape == expected.shape
    # four images state little about ranges: accuracy is measured elsewhere, this only reports a result from noise
    assert cosine(expected, output) > 0.9


@pytest.mark.parametrize(
    ("chip", "name"), compiled_on_each(chip for chip in ONE_OF_EACH_GENERATION if "fp16" in chips.get(chip).quantized_types)
)
def test_a_network_compiles_to_float16_and_runs(paths: dict[str, Path], chip: str, name: str) -> None:
    network = NETWORKS[name]
    model = network.compile(paths[name], chip, "fp16")
    image = network.picture(HELD_OUT)
    (output,) = run_on_device(model, [image])
    expected = run_float(paths[name], network, image)
    assert output.shape == expected.shape
    assert cosine(expected, output) > 0.9999
    assert np.abs(output - expected).max() < 0.05  # of probabilities; the detector's edges are steep


@pytest.mark.parametrize(("chip", "name"), on_each(EVERY_CHIP, NETWORKS))
def test_check_reports_a_network_on_every_chip(paths: dict[str, Path], chip: str, name: str) -> None:
    network = NETWORKS[name]
    report = anynpu.check(paths[name], chip, shapes={"x": network.shape})
    assert report.chip == chip
    assert report.on_npu + len(report.on_cpu) == len(report.layers)
    assert all(layer.reason for layer in report.on_cpu)
    assert not any(layer.reason for layer in report.layers if layer.placement == "npu")
    assert report.macs > 1_000_000
    assert report.weight_bytes > 100_000
    assert sum(layer.macs for layer in report.on_cpu) < report.macs / 10  # what costs most runs where it should


@pytest.mark.parametrize(("chip", "name"), on_each(EVERY_CHIP, ["shufflenet", "squeezenet"]))
def test_check_reports_an_architecture_on_every_chip(real_models: RealModels, chip: str, name: str) -> None:
    report = anynpu.check(real_models.light[name], chip)
    assert report.chip == chip
    assert all(layer.reason for layer in report.on_cpu)
    assert report.on_npu > 30


@pytest.mark.full
def test_check_and_compile_agree_about_detection(paths: dict[str, Path]) -> None:
    network = NETWORKS["detection"]
    checked = anynpu.check(paths["detection"], "rk3588", shapes={"x": network.shape})
    made = network.compile(paths["detection"], "rk3588", samples=network.pictures(1), channel_groups=1)
    layers = made.programs[0].layers
    assert [layer.kind for layer in checked.layers] == [layer.kind for layer in layers]
    assert [layer.macs for layer in checked.layers] == [layer.macs for layer in layers]


def test_detection_is_fused_into_few_layers(paths: dict[str, Path]) -> None:
    report = anynpu.check(paths["detection"], "rk3588", shapes={"x": NETWORKS["detection"].shape})
    assert report.nodes >= 328
    assert len(report.layers) <= 115
    assert len(report.on_cpu) <= 5
