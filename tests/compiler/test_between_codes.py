"""Answers that are decided between two quantized values: what a jump or a minimum reads of the model's inputs stays real in an
int8 model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import anynpu
from anynpu._util.types import Array
from anynpu.compiler import CompileOptions
from anynpu.tensor import DType

from .onnx_builders import Net
from .running import run_fp32, run_model

Data = list[dict[str, Array]]


def jumping(net: Net, x: str, op: str) -> str:
    return net.op(op, x, **({"alpha": 2.0} if op == "ThresholdedRelu" else {}))


def beside_a_convolution(op: str, before: Callable[[Net, str], str] = lambda net, x: x) -> onnx.ModelProto:
    """A jump of one input, and a convolution of another, whose results are outputs."""
    net = Net(15)
    net.output(jumping(net, before(net, net.input("positions", (1, 3, 8, 8))), op))
    net.output(net.op("Relu", net.conv(net.input("picture", (1, 3, 8, 8)), 8)))
    return net.proto()


def halves(count: int) -> Data:
    """Whole and half numbers from -3 to 3, which no step of eight bits over -3.1 to 3.4 meets."""
    random = np.random.default_rng(2)
    found = []
    for _ in range(count):
        positions = (random.integers(-6, 7, (1, 3, 8, 8)) / 2).astype(np.float32)
        positions[0, 0, 0, :2] = -3.1, 3.4
        found.append({"positions": positions, "picture": random.standard_normal((1, 3, 8, 8)).astype(np.float32)})
    return found


@pytest.mark.parametrize("op", ["Ceil", "Floor", "Round", "Sign", "ThresholdedRelu"])
@pytest.mark.parametrize("before", [lambda net, x: x, lambda net, x: net.op("Transpose", x, perm=[0, 1, 3, 2])])
def test_a_jump_is_decided_by_the_number_that_was_given(op: str, before: Callable[[Net, str], str]) -> None:
    proto, data = beside_a_convolution(op, before), halves(3)
    model = anynpu.compile(proto, dataset=data)
    types = {spec.name: spec.dtype for spec in model.inputs}
    assert types == {"positions": DType.FLOAT16, "picture": DType.INT8}
    for given, wanted in zip(run_model(model, data), run_fp32(proto, data), strict=True):
        assert np.abs(given[0] - wanted[0]).max() < 0.02  # one code of the result


def test_a_jump_behind_a_convolution_is_part_of_it() -> None:
    """What it reads was never more than a sum of quantized values."""
    net = Net(15)
    net.output(jumping(net, net.conv(net.input("picture", (1, 3, 8, 8)), 8), "ThresholdedRelu"))
    data = [{"picture": entry["picture"]} for entry in halves(3)]
    model = anynpu.compile(net.proto(), dataset=data)
    assert [layer.kind for layer in model.programs[0].layers] == ["ConvThresholdedRelu"]
    assert model.inputs[0].dtype is DType.INT8


def least(shape: tuple[int, ...], low: float, high: float) -> tuple[onnx.ModelProto, Data]:
    """The least number of each row, for numbers from *low* to *high*."""
    net = Net(15)
    net.output(net.op("ReduceMin", net.input("x", shape), axes=[2], keepdims=0))
    random = np.random.default_rng(4)
    return net.proto(), [{"x": random.uniform(low, high, shape).astype(np.float32)} for _ in range(3)]


@pytest.mark.parametrize(("low", "kind"), [(0.3, DType.FLOAT16), (-40.0, DType.INT8)])
def test_a_least_number_that_is_a_few_codes_is_found_among_real_numbers(low: float, kind: DType) -> None:
    """Numbers up to 60 have a code every 0.24; the least of two hundred positive ones is less than 2."""
    proto, data = least((1, 4, 200), low, 60.0)
    model = anynpu.compile(proto, dataset=data)
    assert model.inputs[0].dtype is kind
    for (given,), (wanted,) in zip(run_model(model, data), run_fp32(proto, data), strict=True):
        assert np.abs(given - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize(("proto", "data"), [least((1, 4, 200), 0.3, 60.0), (beside_a_convolution("Round"), halves(3))])
def test_the_toolkit_chooses_its_own_ends(proto: onnx.ModelProto, data: Data) -> None:
    """Its ranges are for all tensors: nothing stays real that it would not leave so."""
    model = anynpu.compile(proto, options=CompileOptions(dataset=data, quantizer="vendor"))
    assert {spec.dtype for spec in model.inputs} == {DType.INT8}
