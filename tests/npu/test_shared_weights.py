"""Layers that use the same stored weights share what the engines make of them, and what cannot be shared is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import ProgramBuilder, epilogue

from anynpu import modelfile
from anynpu.errors import DeviceMemoryError
from anynpu.npu import Device
from anynpu.npu.engines import preparation
from anynpu.program import Conv, ConvTranspose, Float, FloatOp, Model, Weights
from anynpu.tensor import DType

SIDE = 256
LAYERS = 12


def convolutions(layers: int = LAYERS, *, same_zero: bool = True) -> Model:
    """A chain of 1x1 convolutions that all have the same weights, and an epilogue each."""
    b = ProgramBuilder()
    weights = b.codes(SIDE, 1, 1, SIDE)
    name = b.tensor("x", (1, SIDE, 2, 2))
    for index in range(layers):
        zero = np.full(SIDE, 0 if same_zero else index, np.int32)
        made = Conv(
            weights=weights,
            weight_zero=zero,
            bias=np.full(SIDE, index, np.int32),
            epilogue=epilogue(SIDE, zero_point=np.full(SIDE, index, np.int32)),
        )
        after = b.tensor(f"y{index}", (1, SIDE, 2, 2))
        b.layer(made, [name], [after])
        name = after
    return Model("rk3588", "w8a8", (b.program(["x"], [name]),))


def transposed(layers: int = LAYERS) -> Model:
    """Transposed convolutions with the same weights, side by side."""
    b = ProgramBuilder()
    arrays = b.conv(SIDE, 2, SIDE)
    b.tensor("x", (1, SIDE, 2, 2))
    outputs = []
    for index in range(layers):
        outputs.append(b.tensor(f"y{index}", (1, SIDE, 4, 4)))
        b.layer(ConvTranspose(**arrays, strides=(2, 2)), ["x"], [outputs[-1]])
    return Model("rk3588", "w8a8", (b.program(["x"], outputs),))


def products(layers: int = LAYERS, op: str = "Neg") -> Model:
    """Float layers that multiply by the same float16 matrix; *op* decides whether C runs them."""
    b = ProgramBuilder()
    # small weights: a chain that amplifies would amplify rounding too
    matrix = Weights(np.random.default_rng(1).normal(0, 0.05, (SIDE, SIDE)).astype(np.float16))
    name = b.tensor("x", (1, SIDE), DType.FLOAT16)
    for index in range(layers):
        inner, after = b.tensor(f"inner{index}", (1, SIDE), DType.FLOAT32), b.tensor(f"y{index}", (1, SIDE), DType.FLOAT16)
        operators = (FloatOp("MatMul", (name, "w"), (inner,)), FloatOp(op, (inner,), (after,)))
        b.layer(Float(operators, {"w": matrix}, DType.FLOAT16), [name], [after])
        name = after
    return Model("rk3588", "fp16", (b.program(["x"], [name]),))


def taken(model: Model, engine: str) -> int:
    """Bytes that preparing a model from its file took."""
    with Device(model.chip, engine=engine) as device:
        loaded = device.load(modelfile.to_bytes(model))
        resident = loaded._require()
        resident.executable(0)
        return resident._preparation.taken


@pytest.mark.parametrize("make", [convolutions, transposed, products], ids=["conv", "transposed", "float"])
def test_weights_are_prepared_once(make: Callable[[int], Model]) -> None:
    """Another layer costs its constants, not the weights again."""
    few, many = taken(make(2), "native"), taken(make(2 + LAYERS), "native")
    per_layer = (many - few) / LAYERS
    weights = make(1).programs[0].layers[0].op
    size = weights.constants["w"].value.size if isinstance(weights, Float) else weights.weights.size
    assert few >= size
    assert per_layer < size / 2, "the layers keep weights of their own"


@pytest.mark.parametrize("make", [convolutions, transposed, products], ids=["conv", "transposed", "float"])
def test_results_are_the_same(make: Callable[[], Model]) -> None:
    model = make()
    results = []
    for engine in ("native", "reference"):
        with Device(model.chip, engine=engine) as device:
            context = device.load(modelfile.to_bytes(model)).context()
            shape = context.inputs[0].shape
            results.append(context.run({"x": np.random.default_rng(3).normal(size=shape).astype(np.float32)}, dequantize=True))
    for first, second in zip(*results, strict=True):
        assert np.allclose(first, second, rtol=1e-2, atol=1e-2)


def test_other_zero_points_are_other_weights() -> None:
    """Where a kernel packs the differences to the zero point, they are part of what is packed."""
    model = convolutions(3, same_zero=False)
    results = []
    for engine in ("native", "reference"):
        with Device(model.chip, engine=engine) as device:
            context = device.load(modelfile.to_bytes(model)).context()
            results.append(context.run({"x": np.ones((1, SIDE, 2, 2), np.float32)}, dequantize=False)[0])
    assert np.array_equal(*results)


def test_programs_share_too() -> None:
    one = convolutions()
    both = Model("rk3588", "w8a8", (one.programs[0], one.programs[0]))
    with Device("rk3588", engine="native") as device:
        resident = device.load(modelfile.to_bytes(both))._require()
        resident.executable(0)
        first = resident._preparation.taken
        resident.executable(1)
        assert resident._preparation.taken - first <= first - SIDE * SIDE


def test_onnxruntime_packs_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It packs a weight for each node that reads it: not where that exceeds what the model may take. The results are the same."""
    model = products(LAYERS, "Sin")
    x = np.random.default_rng(3).normal(size=(1, SIDE)).astype(np.float32)

    def run() -> tuple[Any, int]:
        with Device(model.chip, engine="reference") as device:
            loaded = device.load(modelfile.to_bytes(model))
            return loaded.context().run({"x": x})[0], loaded._require()._preparation.taken

    free, room = run()
    monkeypatch.setattr(preparation, "ROOM", room - SIDE * SIDE * 4 - preparation.GROWTH * SIDE * SIDE * 2)
    bounded, taken = run()
    assert taken < room
    assert np.allclose(free, bounded, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "engine"),
    [(convolutions(40), "native"), (products(40), "native"), (products(40, "Sin"), "native"), (products(40), "reference")],
    ids=["constants", "float", "onnxruntime", "sessions"],
)
def test_what_cannot_be_shared_is_bounded(model: Model, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that would take much memory is rejected before it is taken, with a message."""
    monkeypatch.setattr(preparation, "ROOM", 1 << 10)
    monkeypatch.setattr(preparation, "GROWTH", 1)
    with Device(model.chip, engine=engine) as device:
        context = device.load(modelfile.to_bytes(model)).context()
        inputs: Any = {spec.name: np.zeros(spec.shape, np.float32) for spec in context.inputs}
        with pytest.raises(DeviceMemoryError, match="preparing the model") as caught:
            context.run(inputs)
    assert caught.value.hint
