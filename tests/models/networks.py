"""The trained networks of these tests: how their inputs are made, and how they are compiled and run in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

import anynpu
from anynpu._util import optional as _optional
from anynpu.cli.demo.detection import MEAN, STD
from anynpu.cli.demo.pages import page, text_line

Image = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

INPUT = "x"  # all four call it that
HELD_OUT = 10_000  # calibration takes seeds from 0 up, measurements from here

_CENTRED = (127.5, 127.5, 127.5)


@dataclass(frozen=True)
class Network:
    """A trained network and its images.

    :ivar picture: an RGB image of the right size from a seed
    """

    name: str
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    picture: Callable[[int], Image]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, 3, self.height, self.width

    def pictures(self, count: int, first: int = 0) -> list[Image]:
        return [self.picture(seed) for seed in range(first, first + count)]

    def compile(self, path: Path, chip: str, dtype: str = "w8a8", samples: Sequence[Image] = (), **options: Any) -> anynpu.Model:
        """The network on *chip*; calibrated with *samples* where that is needed."""
        dataset = None if dtype == "fp16" else list(samples)
        return anynpu.compile(
            path, chip, dataset=dataset, mean=self.mean, std=self.std, dtype=dtype, shapes={INPUT: self.shape}, **options
        )

    def normalized(self, image: Image) -> Floats:
        """What the float32 model takes for an image."""
        values = (image.astype(np.float32) - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def scattered_page(seed: int) -> Image:
    """Random strings of several sizes and colors all over noisy paper: less orderly than a printed page."""
    rng = np.random.default_rng((0x5CA7, seed))
    image = np.full((480, 480, 3), rng.integers(200, 256, 3), np.uint8)
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    for _ in range(int(rng.integers(10, 25))):
        text = "".join(rng.choice(letters, int(rng.integers(3, 14))))
        place = int(rng.integers(0, 360)), int(rng.integers(20, 470))
        color = tuple(int(value) for value in rng.integers(0, 150, 3))
        thickness = int(rng.integers(1, 3))
        cv2.putText(image, text, place, cv2.FONT_HERSHEY_SIMPLEX, float(rng.uniform(0.4, 1.4)), color, thickness, cv2.LINE_AA)
    return np.clip(np.rint(image + rng.normal(0.0, 4.0, image.shape)), 0, 255).astype(np.uint8)


def _long_line(seed: int) -> Image:
    """A line of text of 48 x 320 pixels: one of 192, and as much of the next as fits."""
    return np.hstack([text_line(2 * seed), text_line(2 * seed + 1)[:, :128]])


def _turned_page(seed: int) -> Image:
    """A page of 224 x 224 pixels; of four seeds in a row each is turned by another quarter."""
    small = cv2.resize(page(seed), (224, 224), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(np.rot90(small, seed % 4))


def _turned_line(seed: int) -> Image:
    """A line of text; every other one is upside down."""
    return text_line(seed, flipped=seed % 2 == 1)


NETWORKS = {
    network.name: network
    for network in (
        Network("detection", 480, 480, MEAN, STD, page),
        Network("recognition", 48, 320, _CENTRED, _CENTRED, _long_line),
        Network("classification", 48, 192, _CENTRED, _CENTRED, _turned_line),
        Network("orientation", 224, 224, MEAN, STD, _turned_page),
    )
}

EACH = [pytest.param(name, marks=() if name == "classification" else pytest.mark.full) for name in NETWORKS]
"""Their names for tests that compile them; the smallest is quick."""


@cache
def float_session(path: Path) -> Any:
    """The model in onnxruntime, in float32."""
    runtime = _optional.onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_float(path: Path, network: Network, image: Image) -> Floats:
    """The only output of the float32 model for an image."""
    (output,) = float_session(path).run(None, {INPUT: network.normalized(image)})
    result: Floats = output
    return result


def run_on_device(model: anynpu.Model, images: Sequence[Image]) -> list[Floats]:
    """The only output of a compiled model for each image."""
    with anynpu.Device(model.chip) as device, device.load(model) as loaded, loaded.context() as context:
        return [context.run({INPUT: image[None]}, layout="nhwc")[0] for image in images]
