"""Trained classifiers in the formats of Allwinner's chips: the class of the float32 model, the same bytes everywhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import anynpu
from anynpu import modelfile
from anynpu.npu.engines.base import Engine, ReferenceEngine
from anynpu.npu.engines.native import NativeEngine
from anynpu.tensor import DType, DynamicFixedPoint

from .networks import HELD_OUT, INPUT, NETWORKS, Floats, Image, Network, run_float, run_on_device

CHIPS = ("v853", "t527", "a733")
CASES = [
    *(("classification", dtype) for dtype in ("uint8", "int8", "int16", "float16")),
    *(("orientation", dtype) for dtype in ("int16", "float16")),
]
CLEAR = 0.5
"""Difference of the two largest probabilities of the float32 model; a smaller one may turn with any rounding."""


def worn(network: Network, seed: int) -> Image:
    """An image with little contrast and much noise, which brings the float32 model near its limits."""
    rng = np.random.default_rng((0xFA, seed))
    image = network.picture(HELD_OUT + seed).astype(np.float64)
    image = (image - image.mean()) * rng.uniform(0.25, 1.0) + rng.uniform(60.0, 200.0)
    image += rng.normal(0.0, rng.uniform(2.0, 30.0), image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


@cache
def pictures(name: str) -> tuple[Image, ...]:
    network = NETWORKS[name]
    return (*network.pictures(8, HELD_OUT + 100), *(worn(network, seed) for seed in range(32)))


@cache
def expected(name: str, path: Path) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Class of each image in float32, and whether it is clear."""
    outputs = np.stack([run_float(path, NETWORKS[name], image).ravel() for image in pictures(name)])
    ranked = np.sort(outputs, axis=1)
    return outputs.argmax(axis=1), ranked[:, -1] - ranked[:, -2] > CLEAR


@cache
def compiled(path: Path, name: str, chip: str, dtype: str) -> anynpu.Model:
    network = NETWORKS[name]
    dataset = None if dtype == "float16" else network.pictures(16)
    return anynpu.compile(
        path, chip, dataset=dataset, mean=network.mean, std=network.std, dtype=dtype, shapes={INPUT: network.shape}
    )


@pytest.fixture(scope="module")
def quick_model(paths: dict[str, Path]) -> anynpu.Model:
    """What the quick tests share; it is compiled before the first of them, and not charged to it."""
    return compiled(paths["classification"], "classification", "t527", "int8")


def grid() -> list[Any]:
    """Every chip with every case; one of them is quick."""
    quick = ("t527", "classification", "int8")
    cases = [(chip, *case) for chip in CHIPS for case in CASES]
    return [pytest.param(*case, marks=() if case == quick else pytest.mark.full) for case in cases]


@pytest.mark.usefixtures("quick_model")
@pytest.mark.parametrize(("chip", "name", "dtype"), grid())
def test_the_class_is_that_of_float32(paths: dict[str, Path], tmp_path: Path, chip: str, name: str, dtype: str) -> None:
    model = compiled(paths[name], name, chip, dtype)
    path = model.save(tmp_path / "model.nb")
    assert path.read_bytes()[:4] == b"VPMN"
    found = run_on_device(model, pictures(name))
    classes, clear = expected(name, paths[name])
    assert clear.sum() >= 30
    assert len(set(classes[clear])) == len(found[0].ravel())  # the images are of every class
    agree = np.array([output.argmax() for output in found]) == classes
    assert agree[clear].mean() >= 0.95
    again = run_on_device(anynpu.load(path), pictures(name)[:2])
    assert [output.tobytes() for output in again] == [output.tobytes() for output in found[:2]]


def run_on(engine: Engine, model: anynpu.Model, image: Image) -> Floats:
    with anynpu.Device(model.chip, engine=engine) as device, device.load(model) as loaded, loaded.context() as context:
        return context.run({INPUT: image[None]}, layout="nhwc")[0]


@pytest.mark.parametrize(
    "dtype", ["int8", *(pytest.param(other, marks=pytest.mark.full) for other in ("uint8", "int8_dfp", "int16"))]
)
@pytest.mark.usefixtures("quick_model")
def test_both_engines_give_the_same_bytes(paths: dict[str, Path], dtype: str) -> None:
    model = compiled(paths["classification"], "classification", "t527", dtype)
    image = pictures("classification")[0]
    engines = NativeEngine(native_floats=False), ReferenceEngine()  # onnxruntime computes the Softmax for both
    native, reference = (run_on(engine, model, image) for engine in engines)
    assert native.tobytes() == reference.tobytes()
    assert native.std() > 0.1


@pytest.mark.parametrize("name", ["classification", pytest.param("orientation", marks=pytest.mark.full)])
def test_bfloat16_keeps_the_class(paths: dict[str, Path], name: str) -> None:
    network = NETWORKS[name]
    model = anynpu.compile(
        paths[name], "a733", mean=network.mean, std=network.std, dtype="bfloat16", shapes={INPUT: network.shape}
    )
    assert [spec.dtype for spec in (*model.inputs, *model.outputs)] == [DType.BFLOAT16] * 2
    found = np.array([output.argmax() for output in run_on_device(model, pictures(name))])
    classes, clear = expected(name, paths[name])
    assert (found == classes)[clear].mean() >= 0.95


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8_dfp", "int16"])
def test_all_tensors_of_a_network_are_fixed_point(paths: dict[str, Path], dtype: str) -> None:
    model = compiled(paths["orientation"], "orientation", "v853", dtype)
    codes = [spec for spec in model.programs[0].tensors.values() if spec.quantization is not None]
    assert len(codes) == 40
    assert all(isinstance(spec.quantization, DynamicFixedPoint) for spec in codes)


def test_a_file_reads_back_as_it_was(quick_model: anynpu.Model) -> None:
    data = modelfile.to_bytes(quick_model)
    assert modelfile.to_bytes(modelfile.read(data)) == data
