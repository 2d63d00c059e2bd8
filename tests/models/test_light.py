"""Well-known architectures, from AlexNet to DenseNet, as float16 and as int8."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from real_models import LIGHT_MODELS, RealModels

import anynpu
from anynpu._util import optional as _optional

from .light import Floats, blurred_noise, input_of, with_random_weights

LARGEST = {"bvlc_alexnet": "w8a8", "vgg19": "w8a8", "zfnet512": "fp16"}
"""They are nothing but larger: for each, one type is enough."""
BEYOND_HALVES = {"inception_v1", "resnet50", "squeezenet", "zfnet512"}
"""All their weights are equal, so that sums grow to 1e9 and beyond, which float16 does not hold."""
WITHOUT_THE_LARGEST = sorted(set(LIGHT_MODELS) - set(LARGEST))


def run_float(model: Path | bytes, name: str, values: Floats) -> Floats:
    """The only output of the float32 model; its session, which may hold gigabytes, is not kept."""
    runtime = _optional.onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {name: values})
    result: Floats = output
    return result


def run_on_device(model: anynpu.Model, values: Floats) -> Floats:
    with anynpu.Device(model.chip) as device, device.load(model) as loaded, loaded.context() as context:
        (output,) = context.run([values])
        return output


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, dtype) for name in WITHOUT_THE_LARGEST for dtype in ("fp16", "w8a8")), *LARGEST.items()]
)
def test_an_architecture_as_it_is(real_models: RealModels, name: str, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    path = real_models.light[name]
    input_name, shape = input_of(onnx.load(path))
    rng = np.random.default_rng(11)
    samples = [rng.random(shape, np.float32) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(path, "rk3588", dataset=None if dtype == "fp16" else samples, dtype=dtype)
    output = run_on_device(model, samples[0])
    lost = dtype == "fp16" and name in BEYOND_HALVES
    assert ("float16 ends at 65504" in caplog.text) == lost
    if lost:  # infinite inside, as on a chip, and infinite values have no softmax
        assert np.isnan(output).all()
        return
    expected = run_float(path, input_name, samples[0])
    assert output.shape == expected.shape
    # all weights are equal, and so are all answers: float16 holds each to a thousandth, int8 in a quantized value of its own
    np.testing.assert_allclose(output, expected, rtol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("name", WITHOUT_THE_LARGEST)
def test_an_architecture_with_random_weights(real_models: RealModels, name: str) -> None:
    source = with_random_weights(real_models.light[name], seed=1)
    input_name, shape = input_of(source)
    samples = [blurred_noise(shape, seed) for seed in range(5)]
    expected = run_float(source.SerializeToString(), input_name, samples[-1]).ravel()
    spread = expected.std()
    half = run_on_device(anynpu.compile(source, "rk3588", dtype="fp16"), samples[-1]).ravel()
    assert np.abs(half - expected).max() < 0.01 * spread
    codes = run_on_device(anynpu.compile(source, "rk3588", dataset=samples[:-1]), samples[-1]).ravel()
    assert np.corrcoef(codes, expected)[0, 1] > 0.99
    assert np.abs(codes - expected).max() < 0.5 * spread


def test_values_beyond_float16_reach_a_softmax(real_models: RealModels) -> None:
    path = real_models.light["squeezenet"]  # its logits are near 1e10
    _, shape = input_of(onnx.load(path))
    sample = np.random.default_rng(2).random(shape, np.float32)
    model = anynpu.compile(path, "rk3588", dataset=[sample])
    program = model.programs[0]
    (entering,) = program.float_stretches()[-1].inputs
    assert program.tensors[entering].dtype.value == "float32"
    assert np.isfinite(run_on_device(model, sample)).all()
