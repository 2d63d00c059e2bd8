"""Networks whose numbers are tiny, as those of untrained weights are: right in int8, and reported where float16 cannot hold them."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import onnx
import pytest

import anynpu
from anynpu._util.types import Array
from anynpu.compiler.quantize.metrics import cosine
from anynpu.program.arithmetic import affine_from_range
from anynpu.tensor import DType

from .onnx_builders import Net
from .running import run_fp32, run_model


def shrinking(factor: float) -> onnx.ModelProto:
    """Two convolutions, each of which makes numbers *factor* times as large."""
    net = Net(13)
    y = net.op("Relu", net.conv(net.input("x", (1, 3, 12, 12)), 16, pads=[1, 1, 1, 1]))
    y = net.op("Mul", y, net.constant(np.float32(factor)))
    y = net.conv(y, 8, cin=16, bias=False)
    net.output(net.op("Mul", y, net.constant(np.float32(factor))))
    return net.proto()


def samples(count: int) -> list[dict[str, Array]]:
    random = np.random.default_rng(5)
    return [{"x": random.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("factor", [1e-3, 3e-6])
def test_int8_of_tiny_numbers(factor: float) -> None:
    proto, data = shrinking(factor), samples(6)
    model = anynpu.compile(proto, dataset=data[:5])
    (wanted,), (given,) = run_fp32(proto, data[5:])[0], run_model(model, data[5:])[0]
    assert 0 < np.abs(wanted).max() < 10 * factor**2
    assert cosine([wanted], [given]) > 0.999


def test_scale_of_a_tiny_range() -> None:
    assert affine_from_range(-1e-12, 1.55e-12).scales[0] == pytest.approx(1e-14)
    assert affine_from_range(0.0, 0.0).scales[0] == pytest.approx(1e-9)


@pytest.mark.parametrize("given", [False, True])
def test_float16_tells_of_outputs_that_it_cannot_hold(caplog: pytest.LogCaptureFixture, given: bool) -> None:
    proto = shrinking(3e-6)
    with caplog.at_level(logging.WARNING, "anynpu"):
        model = anynpu.compile(proto, dtype="fp16", dataset=samples(2) if given else None)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"output '{model.outputs[0].name}' is at most ")
    assert ("the given data" if given else "random inputs") in line
    assert "all of it is 0" in line
    (found,) = run_model(model, samples(1))[0]
    assert not found.any()


def test_float16_is_silent_where_numbers_fit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anynpu"):
        anynpu.compile(shrinking(0.1), dtype="fp16")
    assert not caplog.records


def test_int8_that_loses_the_answers_says_so(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(13)
    y = net.op("Exp", net.op("Mul", net.conv(net.input("x", (1, 3, 12, 12)), 8), net.constant(np.float32(2.0))))
    net.output(net.op("Sin", net.op("Mul", net.conv(y, 8, cin=8), net.constant(np.float32(5.0)))))
    with caplog.at_level(logging.WARNING, "anynpu"):
        anynpu.compile(net.proto(), dataset=samples(6))
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("int8 keeps cosine ") for line in lines)


def faint_swish(size: float) -> onnx.ModelProto:
    """A Swish whose argument has about this size, between two convolutions."""
    net = Net(13)
    x = net.op("Conv", net.input("x", (1, 3, 12, 12)), net.weights(16, 3, 3, 3, scale=size / 5))
    y = net.op("Mul", x, net.op("Sigmoid", x))
    net.output(net.op("Conv", y, net.weights(8, 16, 3, 3, scale=1 / size)))
    return net.proto()


def cosine_on(proto: onnx.ModelProto, data: list[dict[str, Array]], **options: Any) -> tuple[float, anynpu.CompiledModel]:
    """Of int8 on the last two samples, which calibration does not see."""
    model = anynpu.compile(proto, "rk3588", dataset=data[:-2], **options)
    wanted, given = ([entry[0] for entry in side] for side in (run_fp32(proto, data[-2:]), run_model(model, data[-2:])))
    return cosine(wanted, given), model


def test_activations_that_the_chips_table_loses_are_in_float16(caplog: pytest.LogCaptureFixture) -> None:
    """MobileViT with random weights had a cosine of 0.1, and the compiler believed in 0.98: what it evaluates by knew no tables."""
    proto, data = faint_swish(2e-4), samples(10)
    with caplog.at_level(logging.WARNING, "anynpu"):
        found, model = cosine_on(proto, data)
    assert not caplog.records
    assert found > 0.99
    assert model.outputs[0].dtype is DType.INT8
    assert "float16 Mul_2, not fitted, cosine 0.99" in model.provenance["accuracy"]
    with caplog.at_level(logging.WARNING, "anynpu"):
        lost, other = cosine_on(proto, data, without=["float16"])
    assert lost < 0.95
    (judged,) = re.findall(r"not fitted, cosine ([\d.]+),", other.provenance["accuracy"])
    assert float(judged) < 0.95  # the evaluate sees it, too
    assert "too small for the chip's table" in caplog.text


def test_nothing_is_in_float16_where_the_table_is_fine() -> None:
    found, model = cosine_on(faint_swish(1.0), samples(10))
    assert found > 0.99
    assert "float16" not in model.provenance["accuracy"]
