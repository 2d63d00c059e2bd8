"""Layers of programs through command streams, against the native engine."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from anynpu._util.types import Array
from anynpu.npu import NativeEngine, RunControl, rocket
from anynpu.npu.rocket import layouts
from anynpu.npu.rocket.executor import EngineName
from anynpu.npu.rocket.lower import Lowered, Unsupported, lower
from anynpu.npu.rocket.plan import Addresses
from anynpu.npu.rocket.stream import task_size
from anynpu.program import Conv, FixedPoint, Program
from anynpu.tensor import round_up

from .cases import KINDS, random_program

BASE = 0x2000_0000
QUICK, ALL = 15, int(os.environ.get("ANYNPU_ENGINE_CASES", "500"))


def through_streams(lowered: Lowered, arrays: dict[str, Array], engine: EngineName) -> tuple[Array, int]:
    """The output of a layer by its command stream, and the number of tasks."""
    conv = lowered.convolution
    if conv.raw_input:
        source = np.zeros((conv.height, conv.raw_width), np.uint8)
        source[:, : conv.width] = arrays["x"][0, ..., 0].view(np.uint8) ^ 0x80
    else:
        source = layouts.pack_features(arrays["x"][0], 77)
    plane = layouts.plane_bytes(conv.out_height, conv.out_width)
    parts = [source, np.full(layouts.atoms(conv.out_channels) * plane, 99, np.uint8), lowered.weights, lowered.bias]
    if "a" in arrays:
        parts.append(layouts.pack_features(arrays["a"][0], 55))
    places, end = [], BASE
    for part in parts:
        places.append(end)
        end = round_up(end + part.nbytes, 4096)
    where = Addresses(places[0], places[1], places[2], places[3], end, places[4] if "a" in arrays else 0)
    words, tasks = rocket.write(conv, where)
    memory = np.zeros(round_up(end - BASE + words.nbytes, 4096), np.uint8)
    for place, part in zip([*places, end], [*parts, words], strict=True):
        memory[place - BASE : place - BASE + part.nbytes] = np.ascontiguousarray(part).view(np.uint8).reshape(-1)
    count, size = task_size(conv.tables)
    rocket.execute(memory, BASE, [[end + size * index, count] for index in range(tasks)], engine=engine)
    result = layouts.unpack_features(memory[places[1] - BASE :], conv.out_height, conv.out_width, conv.out_channels)
    if lowered.table is not None:
        result = lowered.table[result.view(np.uint8)]
    return result, tasks


def run(program: Program, arrays: dict[str, Array]) -> Array:
    """The output by the native engine."""
    held = {name: arrays.get(name, np.zeros(spec.memory_shape, np.int8)) for name, spec in program.tensors.items()}
    NativeEngine(threads=1).prepare(program).bind(held).run(RunControl())
    return held["y"][0]


def compare(kind: str, count: int, seed: int) -> None:
    random = np.random.default_rng([seed, KINDS.index(kind)])
    compared = sliced = 0
    for index in range(count):
        program = random_program(kind, random)
        arrays = {name: random.integers(-128, 128, program.tensors[name].memory_shape).astype(np.int8) for name in program.inputs}
        (lowered,) = lower(program.layers[0], program.tensors)
        engine: EngineName = "native" if index % 3 or (kind == "slices" and index % 30) else "reference"
        result, tasks = through_streams(lowered, arrays, engine)
        np.testing.assert_array_equal(result, run(program, arrays), err_msg=f"{kind} {index} by {engine}")
        compared += 1
        sliced += tasks > 1
    assert compared == count
    assert sliced > count // 2 or kind != "slices"


@pytest.mark.parametrize("kind", KINDS)
def test_random_layers_give_the_bytes_of_the_native_engine(kind: str) -> None:
    compare(kind, 3 if kind == "slices" else QUICK, 0)


def test_a_layer_without_a_stream_has_a_reason() -> None:
    program = random_program("dense", np.random.default_rng(5))
    (layer,) = program.layers
    op = layer.op
    assert isinstance(op, Conv)
    assert isinstance(op.epilogue, FixedPoint)
    several = replace(op.epilogue, multiplier=np.arange(len(op.bias), dtype=np.int32))
    for changed, reason in (
        (replace(op, dilations=(2, 2)), "dilation"),
        (replace(op, groups=2), "groups of channels"),
        (replace(op, strides=(9, 1)), "steps of the stride|cut off"),
        (replace(op, epilogue=several), "several output scales in a plane"),
        (replace(op, weight_zero=np.array([300], np.int32)), "weight zero point"),
        (replace(op, bias=np.full(len(op.bias), (1 << 31) - 1, np.int64)), "beyond 32 bits"),
        (replace(op, epilogue=replace(op.epilogue, slope=np.array([1], np.int32))), "slope"),
    ):
        with pytest.raises(Unsupported, match=reason):
            lower(replace(layer, op=changed), program.tensors)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_layers_give_the_bytes_of_the_native_engine(kind: str) -> None:
    compare(kind, ALL, 1)
