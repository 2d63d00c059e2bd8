"""Weights and internal memory of real networks: shared, supplied by the caller, and saved without weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from real_models import RealModels

import anynpu
from anynpu.errors import ModelError
from anynpu.npu.engines.reference import execute_layer
from anynpu.npu.memory import Buffer
from anynpu.program import Float, Program

from .conftest import Compiled
from .light import blurred_noise, with_random_weights
from .networks import EACH, HELD_OUT, INPUT, NETWORKS, Image

Compile = Callable[[str], Compiled]
Arrays = dict[str, np.ndarray]


def codes(device: anynpu.Device, model: anynpu.Model | Path, image: Image, **options: object) -> bytes:
    """The outputs of a model as it stores them."""
    with device.load(model, **options) as loaded, loaded.context() as context:  # type: ignore[arg-type]
        return b"".join(output.tobytes() for output in context.run({INPUT: image[None]}, layout="nhwc", dequantize=False))


@pytest.mark.full
def test_a_second_context_adds_no_weights(compiled: Compile) -> None:
    made = compiled("detection")
    image = made.network.picture(HELD_OUT)[None]
    with anynpu.Device("rk3588") as device, device.load(made.model) as loaded:
        first = loaded.context()
        before = first.run({INPUT: image}, layout="nhwc")
        one = device.memory_usage()
        second = loaded.context()
        after = second.run({INPUT: image}, layout="nhwc")
        two = device.memory_usage()
        np.testing.assert_array_equal(before[0], after[0])
        assert one.weights == two.weights == loaded.weights.size
        assert two.internal == 2 * one.internal == 2 * loaded.internal_size
        assert two.io == 2 * one.io
        # one address for both: what is on the account is what is used
        stored = loaded.programs[0].layers[0].op.weights  # type: ignore[union-attr]
        assert np.shares_memory(stored, loaded.weights.array())


@pytest.mark.full
def test_a_second_context_adds_less_than_a_tenth_where_weights_dominate(real_models: RealModels) -> None:
    source = with_random_weights(real_models.light["resnet50"], seed=1)
    samples = [blurred_noise((1, 3, 224, 224), 0)]
    model = anynpu.compile(source, "rk3588", dataset=samples)
    with anynpu.Device("rk3588") as device, device.load(model) as loaded:
        first = loaded.context()
        first.run(samples)
        one = device.memory_usage().total
        second = loaded.context()
        second.run(samples)
        assert device.memory_usage().total - one < 0.1 * one


def independent_results(program: Program, inputs: Arrays) -> Arrays:
    """Every tensor of an integer program, each in memory of its own: no memory plan is involved."""
    arrays = dict(inputs)
    for name, spec in program.tensors.items():
        if name not in arrays and name not in program.views:
            arrays[name] = np.zeros(spec.memory_shape, spec.dtype.storage)
    for name, owner in program.views.items():
        arrays[name] = arrays[owner].reshape(program.tensors[name].memory_shape)
    for layer in program.layers:
        assert not isinstance(layer.op, Float)
        execute_layer(program, layer, arrays)
    return arrays


def run_in_memory_of_the_caller(made: Compiled, image: Image, pattern: int) -> tuple[Arrays, Arrays, bytes]:
    """Run in a buffer full of *pattern*; gives each tensor's region just after its layer, the inputs, and what lies behind the plan."""
    guard = 4096
    seen: Arrays = {}
    with anynpu.Device("rk3588") as device, device.load(made.model) as loaded:
        memory = np.full(loaded.internal_size + guard, pattern, np.uint8)
        context = loaded.context(internal=Buffer.from_address(memory.ctypes.data, memory.size, keep_alive=memory))
        program = context.program

        def after_layer(index: int) -> None:
            for name in program.layers[index].outputs:
                owner = program.views.get(name, name)
                spec = program.tensors[name]
                if owner in program.memory.offsets:
                    begin = program.memory.offsets[owner]
                    region = memory[begin : begin + spec.nbytes]
                    seen[name] = region.copy().view(spec.dtype.storage).reshape(spec.memory_shape)

        context.write(INPUT, image[None], layout="nhwc")
        context.execute(between=lambda index: after_layer(index - 1) if index else None)
        after_layer(len(program.layers) - 1)
        inputs = {INPUT: context.input_buffer(INPUT).tensor(program.tensors[INPUT]).copy()}
        for name in program.outputs:
            seen[name] = context.output_buffer(name).tensor(program.tensors[name]).copy()
        usage = device.memory_usage()
        io = sum(-(-spec.nbytes // 64) * 64 for spec in (*program.input_specs, *program.output_specs))
        assert usage.internal == 0
        assert usage.total == loaded.weights.size + io
        return seen, inputs, memory[loaded.internal_size :].tobytes()


@pytest.mark.full
def test_intermediates_are_in_the_memory_of_the_caller(compiled: Compile) -> None:
    made = compiled("detection")
    image = made.network.picture(HELD_OUT)
    program = made.model.programs[0]
    seen, inputs, behind = run_in_memory_of_the_caller(made, image, 0xA5)
    assert behind == b"\xa5" * len(behind)
    assert set(seen) >= set(program.memory.offsets)
    expected = independent_results(program, inputs)
    for name, region in seen.items():
        np.testing.assert_array_equal(region, expected[name], err_msg=name)
        assert not (region.view(np.uint8) == 0xA5).all()
    again, _, _ = run_in_memory_of_the_caller(made, image, 0x3C)
    for name, region in again.items():
        np.testing.assert_array_equal(region, seen[name], err_msg=name)


@pytest.mark.parametrize("name", EACH)
def test_a_saved_model_gives_the_same_bytes(compiled: Compile, tmp_path: Path, name: str) -> None:
    made = compiled(name)
    image = made.network.picture(HELD_OUT)
    path = made.model.save(tmp_path / "model.rknn")
    with anynpu.Device("rk3588") as device:
        expected = codes(device, made.model, image)
        assert codes(device, path, image) == expected
    with anynpu.Device("rk3588") as another:
        assert codes(another, path, image) == expected


@pytest.mark.parametrize("name", EACH)
def test_a_model_without_weights_runs_on_those_of_another(compiled: Compile, tmp_path: Path, name: str) -> None:
    made = compiled(name)
    image = made.network.picture(HELD_OUT)
    whole = made.model.save(tmp_path / "whole.rknn")
    bare = made.model.save(tmp_path / "bare.rknn", remove_weight=True)
    with anynpu.Device("rk3588") as device, device.load(whole) as loaded:
        assert whole.stat().st_size - bare.stat().st_size >= 0.9 * loaded.weights.size
        before = device.memory_usage()
        assert codes(device, bare, image, weights_from=loaded) == codes(device, whole, image)
        assert device.memory_usage().weights == before.weights
        with pytest.raises(ModelError, match="without its weights"):
            device.load(bare)


def test_a_float16_model_survives_saving(paths: dict[str, Path], tmp_path: Path) -> None:
    network = NETWORKS["classification"]
    model = network.compile(paths["classification"], "rk3588", "fp16")
    image = network.picture(HELD_OUT)
    with anynpu.Device("rk3588") as device:
        assert codes(device, model.save(tmp_path / "model.rknn"), image) == codes(device, model, image)
