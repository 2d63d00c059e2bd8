"""The int8 networks beside their float32 originals, on images that calibration has not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anynpu.cli.demo.detection import cosine
from anynpu.cli.demo.pages import Grain, page
from anynpu.compiler.quantize.metrics import margin

from .conftest import Compiled
from .networks import HELD_OUT, NETWORKS, Image, run_float, run_on_device, scattered_page

Compile = Callable[[str], Compiled]


def classes(network: Compiled, images: list[Image]) -> tuple[list[int], list[int]]:
    """What the float32 network and the int8 network make of each image."""
    expected = [int(run_float(network.path, network.network, image).argmax()) for image in images]
    return expected, [int(output.argmax()) for output in run_on_device(network.model, images)]


def agreements(expected: list[int], found: list[int]) -> int:
    return sum(a == b for a, b in zip(expected, found, strict=True))


@pytest.mark.full
def test_detection_on_printed_pages(compiled: Compile) -> None:
    made = compiled("detection")
    images = made.network.pictures(8, HELD_OUT)
    expected = [run_float(made.path, made.network, image) for image in images]
    cosines = [cosine(*pair) for pair in zip(expected, run_on_device(made.model, images), strict=True)]
    assert np.mean(cosines) >= 0.985
    assert min(cosines) >= 0.96
    assert all((output > 0.3).mean() > 0.01 for output in expected)  # there is text, and the float32 model finds it


def grey_page(seed: int) -> Image:
    """A page on which the float32 network itself is unstable: half a gray level of noise takes it to a cosine of 0.87."""
    return page(seed, grain=Grain.GREY)


@pytest.mark.full
@pytest.mark.parametrize("picture", [scattered_page, grey_page])
def test_detection_on_other_pages(paths: dict[str, Path], picture: Callable[[int], Image]) -> None:
    network = NETWORKS["detection"]
    model = network.compile(paths["detection"], "rk3588", samples=[picture(seed) for seed in range(16)])
    images = [picture(HELD_OUT + number) for number in range(6)]
    expected = [run_float(paths["detection"], network, image) for image in images]
    cosines = [cosine(*pair) for pair in zip(expected, run_on_device(model, images), strict=True)]
    assert np.mean(cosines) >= 0.985
    assert min(cosines) >= 0.96


def test_classification_of_lines(classification: Compiled) -> None:
    expected, found = classes(classification, classification.network.pictures(40, HELD_OUT))
    assert agreements(expected, found) >= 38
    assert expected.count(0) == expected.count(1) == 20  # the float32 model reports upright from upside down


def test_classification_keeps_its_margin(classification: Compiled) -> None:
    """Two classes: a cosine would state nothing."""
    made = classification
    images = made.network.pictures(20, HELD_OUT)
    kept = [
        margin([run_float(made.path, made.network, image)], [given])
        for image, given in zip(images, run_on_device(made.model, images), strict=True)
    ]
    assert np.mean(kept) >= 0.95
    assert min(kept) > 0.0


@pytest.mark.full
def test_orientation_of_pages(compiled: Compile) -> None:
    made = compiled("orientation")
    expected, found = classes(made, made.network.pictures(40, HELD_OUT))
    assert agreements(expected, found) >= 39
    assert [expected.count(quarter) for quarter in range(4)] == [10] * 4


@pytest.mark.full
def test_recognition_of_characters(compiled: Compile) -> None:
    made = compiled("recognition")
    images = made.network.pictures(16, HELD_OUT)
    expected = np.concatenate([run_float(made.path, made.network, image).argmax(-1).ravel() for image in images])
    found = np.concatenate([output.argmax(-1).ravel() for output in run_on_device(made.model, images)])
    read = expected > 0  # zero is the blank between characters
    assert read.mean() > 0.3
    assert (expected == found).mean() >= 0.9
    assert (expected == found)[read].mean() >= 0.9
