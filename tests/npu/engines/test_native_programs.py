"""Whole programs in the native engine: every tensor as in the reference engine."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiler.onnx_builders import feeds
from real_models import RealModels

import anynpu
from anynpu.cli.demo.pages import page
from anynpu.npu import Device, LayerTime, RunControl
from anynpu.npu.engines.base import ReferenceEngine
from anynpu.npu.engines.native import NativeEngine, NativeExecutable
from anynpu.npu.engines.native_levels import available
from anynpu.npu.engines.native_memory import SLACK
from anynpu.npu.engines.preparation import Preparation
from anynpu.program import Float, Model, Program, convert
from anynpu.tensor import TensorSpec

from .ingredients import Array
from .nets import NETS

LEVELS = list(available())


def arrays_of(program: Program, values: dict[str, Array]) -> dict[str, Array]:
    """Memory for every tensor that is not inside a segment of float layers, each at a place of its own: nothing is overwritten later."""
    names = {*program.inputs, *program.outputs}
    for layer in program.layers:
        if not isinstance(layer.op, Float):
            names.update(layer.inputs, layer.outputs)
    for stretch in program.float_stretches():
        names.update(stretch.inputs, stretch.outputs)
    arrays: dict[str, Array] = {}

    def place(name: str) -> Array:
        spec = program.tensors[name]
        if name in program.views:
            return place(program.views[name]).reshape(-1).view(spec.dtype.storage).reshape(spec.memory_shape)
        if name not in arrays:
            room = np.full(spec.nbytes + SLACK, 85, np.uint8)  # as the compiler leaves it after every tensor
            arrays[name] = room[: spec.nbytes].view(spec.dtype.storage).reshape(spec.memory_shape)
        return arrays[name]

    found = {name: place(name) for name in names}
    for name, value in values.items():
        found[name][...] = value
    return found


def codes_of(program: Program, model: Model, sample: dict[str, Array]) -> dict[str, Array]:
    """The inputs as the program takes them."""
    codes = {}
    for name, value in sample.items():
        spec = program.tensors[name]
        given = TensorSpec(name, spec.shape, spec.dtype if value.dtype != np.float32 else anynpu.tensor.DType.FLOAT32)
        codes[name] = convert.convert(value, given, spec, preprocess=model.preprocess.get(name))
    return codes


def compare_all(model: Model, sample: dict[str, Array], levels: list[str] = LEVELS) -> int:
    """Run a model in both engines and compare every tensor; returns how many elements were compared."""
    program = model.programs[0]
    codes = codes_of(program, model, sample)
    wanted = arrays_of(program, codes)
    ReferenceEngine().prepare(program).bind(wanted).run(RunControl())
    compared = 0
    for level in levels:
        given = arrays_of(program, codes)
        NativeEngine(isa=level, native_floats=False).prepare(program).bind(given).run(RunControl())
        for layer in program.layers:
            for name in layer.outputs:
                if name in wanted:
                    assert given[name].tobytes() == wanted[name].tobytes(), f"'{name}' of layer '{layer.name}' at {level}"
                    compared += wanted[name].size
    assert compared > 0
    return compared


FORMATS = [("rk3588", "w8a8"), ("rv1106", "w16a16"), *(("t527", dtype) for dtype in ("w8a8", "i8", "i8dfp", "w16a16"))]


@pytest.mark.parametrize(("chip", "dtype"), FORMATS)
@pytest.mark.parametrize("net", sorted(NETS))
def test_every_tensor_of_small_networks(net: str, chip: str, dtype: str) -> None:
    proto = NETS[net]()
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, chip, dataset=samples[:2], dtype=dtype)
    assert compare_all(model, samples[2]) > 20_000


@pytest.mark.parametrize("net", sorted(NETS))
def test_bfloat16_in_both_engines(net: str) -> None:
    proto = NETS[net]()
    (sample,) = feeds(proto, 1)
    model = anynpu.compile(proto, "t527", dtype="bf16")
    assert compare_all(model, sample, LEVELS[:1]) > 0


def picture(shape: tuple[int, int, int], seed: int) -> Array:
    """Smooth noise, as an image has it; text for detection, whose answer is one value everywhere without it."""
    rng = np.random.default_rng(seed)
    if shape[1:] == (160, 192):
        text = page(seed)[100:260, 60:252].transpose(2, 0, 1)
        return ((text[None] / 255.0 - 0.5) / 0.25).astype(np.float32)
    coarse = rng.uniform(-1.5, 1.5, (shape[0], shape[1] // 8, shape[2] // 8))
    fine = np.repeat(np.repeat(coarse, 8, axis=1), 8, axis=2) + rng.normal(0, 0.2, shape)
    return fine[None].astype(np.float32)


@pytest.mark.full
def test_every_tensor_of_text_detection(real_models: RealModels) -> None:
    model = compiled(real_models.detection, (3, 160, 192))
    assert compare_all(model, {"x": picture((3, 160, 192), 9)}) > 1_000_000


def test_every_tensor_of_text_classification(real_models: RealModels) -> None:
    model = compiled(real_models.classification, (3, 48, 192))
    assert compare_all(model, {"x": picture((3, 48, 192), 9)}) > 100_000


@pytest.mark.full
def test_every_tensor_of_orientation(real_models: RealModels) -> None:
    model = compiled(real_models.orientation, (3, 224, 224))
    assert compare_all(model, {"x": picture((3, 224, 224), 9)}, LEVELS[:1]) > 1_000_000


@functools.cache
def compiled(path: Path, shape: tuple[int, int, int]) -> Model:
    """A network for rk3588, once for all tests; of integers alone, whatever the evaluate would state of random images."""
    samples = [{"x": picture(shape, seed)} for seed in range(2)]
    return anynpu.compile(path, "rk3588", dataset=samples, shapes={"x": (1, *shape)}, without=("float16",))


@pytest.fixture
def detection(real_models: RealModels) -> Model:
    return compiled(real_models.detection, (3, 160, 192))


@pytest.mark.full
def test_all_of_detection_is_native(detection: Model) -> None:
    program = detection.programs[0]
    executable = NativeEngine().prepare(program)
    assert isinstance(executable, NativeExecutable)
    assert sorted(executable.kernels) == list(range(len(program.layers)))


def test_two_contexts_on_two_threads(detection: Model) -> None:
    pictures = [picture((3, 160, 192), seed) for seed in (20, 21)]
    with Device("rk3588") as device, device.load(detection) as loaded:
        alone = [loaded.context().run({"x": image})[0] for image in pictures]
        assert not np.array_equal(alone[0], alone[1])
        results: dict[int, list[Array]] = {}
        contexts = [loaded.context() for _ in pictures]

        def run(number: int) -> None:
            results[number] = [contexts[number].run({"x": pictures[number]})[0] for _ in range(3)]

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, wanted in enumerate(alone):
            assert all(np.array_equal(result, wanted) for result in results[number])


def test_weights_are_packed_once(detection: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    before = NativeEngine.prepare

    def prepare(self: NativeEngine, program: Program, preparation: Preparation | None = None) -> Any:
        prepared.append(program)
        return before(self, program, preparation)

    monkeypatch.setattr(NativeEngine, "prepare", prepare)
    with Device("rk3588") as device, device.load(detection) as loaded:
        for _ in range(3):
            loaded.context().run({"x": picture((3, 160, 192), 1)})
    assert len(prepared) == 1


def test_the_clock_has_every_layer(detection: Model) -> None:
    with Device("rk3588") as device, device.load(detection) as loaded, loaded.context() as context:
        context.write("x", picture((3, 160, 192), 1))
        times = context.execute(profile=True)
        assert [entry.layer for entry in times] == list(range(len(context.program.layers)))
        assert all(entry.ns > 0 for entry in times)
        seen: list[int] = []
        one_by_one = context.execute(profile=True, between=seen.append)
        assert seen == [entry.layer for entry in one_by_one] == [entry.layer for entry in times]


def test_a_layer_of_several_outputs_has_one_time() -> None:
    proto = NETS["yolo"]()
    samples = feeds(proto, 2)
    model = anynpu.compile(proto, "rk3588", dataset=samples[:1])
    with Device("rk3588") as device, device.load(model) as loaded, loaded.context() as context:
        context.write("images", samples[1]["images"])
        times: list[LayerTime] = context.execute(profile=True)
        layers = [entry.layer for entry in times]
        assert layers == sorted(set(layers))
        split = next(index for index, layer in enumerate(context.program.layers) if len(layer.outputs) == 2)
        assert split in layers
