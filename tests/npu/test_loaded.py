"""Models in device memory: one copy of the weights, where the caller wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anynpu import modelfile
from anynpu.errors import DeviceClosed, DeviceMemoryError, ModelError, ModelFormatError
from anynpu.modelfile import to_bytes, weight_size
from anynpu.npu import Buffer, Device
from anynpu.program import Dense
from anynpu.tensor import DType

from .builders import GatedEngine, Thread, dense_chain, dense_values, float_model, image_model, shape_sets


@pytest.fixture
def device() -> Iterator[Device]:
    with Device("rk3588") as device:
        yield device


def codes(width: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, (1, width), np.int8)


def test_contexts_share_the_weights(device: Device) -> None:
    loaded = device.load(dense_chain(3, width=256))
    before = device.memory_usage().total
    first = loaded.context()
    first.run([codes(256)])
    one = device.memory_usage().total
    second = loaded.context()
    second.run([codes(256)])
    two = device.memory_usage().total
    assert before == weight_size(dense_chain(3, width=256)) > 3 * 256 * 256
    assert (two - one) < 0.1 * one
    assert device.memory_usage().weights == before


def test_programs_are_prepared_once_and_only_when_used() -> None:
    engine = GatedEngine()
    engine.gate.set()
    with Device("rk3588", engine=engine) as device:
        loaded = device.load(dense_chain())
        contexts = [loaded.context() for _ in range(4)]
        assert engine.prepared == 0
        for thread in [Thread(context.execute) for context in contexts]:
            thread.finish()
        assert engine.prepared == 1


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_weights_in_memory_of_the_caller_are_really_used(engine: str) -> None:
    model = dense_chain()
    with Device("rk3588", engine=engine) as device, Buffer.allocate(weight_size(model)) as weights:
        loaded = device.load(model, weights=weights)
        assert device.memory_usage().weights == 0
        op = loaded.programs[0].layers[-1].op
        assert isinstance(op, Dense)
        place = op.weights.ctypes.data - weights.address
        assert 0 <= place < weights.size
        x = codes()
        right = dense_values(model, x)["y"]
        weights.view()[place] ^= 0x7F  # before the first run, when an engine may pack them
        (changed,) = loaded.context().run([x], dequantize=False)
        assert right[0, 0] != changed[0, 0]
        assert right[0, 1:].tolist() == changed[0, 1:].tolist()
        loaded.close()
        assert not weights.closed, "what the caller supplied is his to close"


def test_memory_that_does_not_hold_the_weights(device: Device) -> None:
    model = dense_chain()
    with Buffer.allocate(weight_size(model) - 1) as small, pytest.raises(DeviceMemoryError, match=str(weight_size(model))):
        device.load(model, weights=small)


def test_a_model_without_weights_takes_them_from_another(device: Device) -> None:
    model = dense_chain(3, width=64)
    bare = to_bytes(model, remove_weight=True)
    with pytest.raises(ModelError, match="without its weights") as caught:
        device.load(bare)
    assert "weights_from" in caught.value.hint
    full = device.load(model)
    used = device.memory_usage().weights
    other = device.load(bare, weights_from=full)
    buffered = device.load(bare, weights=full.weights)
    twin = device.load(model, weights_from=full)
    assert device.memory_usage().weights == used
    x = codes(64)
    expected = dense_values(model, x)["y"]
    full.close()
    for loaded in (other, buffered, twin):
        np.testing.assert_array_equal(loaded.context().run([x], dequantize=False)[0], expected)
    del full, loaded
    for loaded in (other, buffered, twin):
        loaded.close()
    assert device.memory_usage().weights == 0


def test_the_weights_of_another_model_are_refused(device: Device) -> None:
    loaded = device.load(dense_chain(seed=1))
    for model in (dense_chain(seed=2), to_bytes(dense_chain(seed=2), remove_weight=True)):
        with pytest.raises(ModelFormatError, match="not the weights"):
            device.load(model, weights_from=loaded)
    with pytest.raises(DeviceMemoryError, match="exclude each other"):
        device.load(dense_chain(seed=1), weights_from=loaded, weights=loaded.weights)


def test_from_a_file_and_from_bytes(device: Device, tmp_path: Path) -> None:
    model = dense_chain()
    x = codes()
    expected = dense_values(model, x)["y"]
    path = modelfile.write(model, tmp_path / "chain.rknn")
    for source in (path, str(path), path.read_bytes()):
        np.testing.assert_array_equal(device.load(source).context().run([x], dequantize=False)[0], expected)


def test_closing_a_model_leaves_its_contexts(device: Device) -> None:
    loaded = device.load(dense_chain())
    context = loaded.context()
    loaded.close()
    loaded.close()
    assert device.memory_usage().weights > 0
    context.run([codes()])
    for use in (loaded.context, lambda: loaded.model, lambda: loaded.weights, lambda: loaded.internal_size):
        with pytest.raises(DeviceClosed, match="loaded model"):
            use()
    context.close()
    assert device.memory_usage().total == 0


def test_a_forgotten_model_gives_its_memory_back(device: Device) -> None:
    device.load(dense_chain())
    assert device.memory_usage().total == 0


def test_what_a_model_says_about_itself(device: Device) -> None:
    loaded = device.load(shape_sets((4, 6), (2, 2)))
    assert [spec.name for spec in loaded.inputs + loaded.outputs] == ["images", "y"]
    assert len(loaded.programs) == 2
    assert repr(loaded) == "<LoadedModel image>"
    assert loaded.device is device


def test_models_that_do_not_fit_the_memory_of_the_device() -> None:
    model = dense_chain(3, width=64)
    with Device("rk3588", memory_limit=weight_size(model) + 100) as device:
        loaded = device.load(model)
        with pytest.raises(DeviceMemoryError, match="internal memory do not fit"):
            loaded.context()
        with pytest.raises(DeviceMemoryError, match="weights memory do not fit"):
            device.load(image_model())
        loaded.close()
        device.load(image_model()).context().run([np.zeros((1, 3, 4, 6), np.uint8)])


def test_weights_of_a_float_layer_are_on_the_account(device: Device) -> None:
    weights = np.ones((64, 64), np.float16)
    loaded = device.load(float_model(weights, held=DType.FLOAT16))
    assert device.memory_usage().weights == weights.nbytes
    assert loaded.context().run([np.ones((1, 64), np.float32)])[0].tolist() == [[64.0] * 64]
