"""Models that are quantized already: their float meaning is recovered and quantized again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import anynpu
from anynpu.errors import CompileError
from anynpu.program import Float

from .onnx_builders import Array, Net, feeds
from .running import run_fp32, run_model

BOTH = pytest.mark.parametrize("dtype", ["fp16", "w8a8"])


class Quantized(Net):
    """A network in which tensors are quantized values."""

    def scale(self, value: float) -> str:
        return self.constant(np.float32(value))

    def zero(self, value: int = 0, dtype: Any = np.uint8) -> str:
        return self.constant(np.array(value, dtype))

    def codes(self, *shape: int) -> str:
        """Weights as int8, so small that no processor of onnxruntime's loses sums of two products in 16 bits."""
        return self.constant(self.random.integers(-60, 60, shape).astype(np.int8))


def compare(net: Net, dtype: str, *, kinds: list[str], tolerance: float = 0.03) -> None:
    """The compiled model gives what the quantized one gives, in layers of these kinds, none of which works on the model's own
    quantized values."""
    proto = net.proto()
    samples = feeds(proto, 4)
    model = anynpu.compile(proto, "rk3588", dtype=dtype, dataset=samples, algorithm="minmax")
    layers = model.programs[0].layers
    assert [layer.kind for layer in layers] == kinds
    if dtype == "w8a8":
        assert not any(isinstance(layer.op, Float) for layer in layers)
    wanted, given = (np.stack([entry[0] for entry in side]) for side in (run_fp32(proto, samples), run_model(model, samples)))
    assert np.abs(wanted - given).max() <= tolerance * np.abs(wanted).max()


@BOTH
def test_quantize_and_dequantize_around_a_convolution(dtype: str) -> None:
    net = Quantized()

    def around(x: str, scale: float, zero: int) -> str:
        parameters = net.scale(scale), net.zero(zero)
        return net.op("DequantizeLinear", net.op("QuantizeLinear", x, *parameters), *parameters)

    weights = net.op("DequantizeLinear", net.codes(4, 3, 3, 3), net.constant(np.full(4, 0.006, np.float32)), axis=0)
    first = around(
        net.op("Conv", around(net.input("x", (1, 3, 6, 6)), 2 / 255, 128), weights), 4 / 255, 0
    )  # no negative quantized values: a Relu
    net.output(around(net.op("Conv", first, net.weights(2, 4, 1, 1, scale=0.3)), 4 / 255, 128))
    compare(net, dtype, kinds=["ConvClip", "Conv"], tolerance=0.04)


@BOTH
def test_operators_on_codes(dtype: str) -> None:
    net = Quantized()
    microsoft: dict[str, Any] = {"domain": "com.microsoft"}
    net.opsets["com.microsoft"] = 1
    start = net.scale(2 / 255), net.zero(128)
    x = net.op("QuantizeLinear", net.input("x", (1, 3, 6, 6)), *start)
    middle = net.scale(4 / 255), net.zero(0)
    weights = net.codes(4, 3, 3, 3), net.constant(np.full(4, 0.002, np.float32)), net.constant(np.zeros(4, np.int8))
    bias = net.constant(np.array([100, -200, 300, 0], np.int32))
    conv = net.op("QLinearConv", x, *start, *weights, *middle, bias)
    pooled = net.op("MaxPool", conv, kernel_shape=[2, 2], strides=[2, 2])
    added = net.op("QLinearAdd", pooled, *middle, pooled, *middle, *middle, **microsoft)
    flat = net.op("Flatten", added)
    product = net.op("QLinearMatMul", flat, *middle, net.codes(16, 5), net.scale(0.002), net.zero(0, np.int8), *start)
    net.output(net.op("DequantizeLinear", product, *start))
    proto = net.proto()
    samples = feeds(proto, 4)
    model = anynpu.compile(proto, "rk3588", dtype=dtype, dataset=samples, algorithm="minmax")
    names = {name for layer in model.programs[0].layers if isinstance(layer.op, Float) for name in layer.op.names}
    assert not any(name.startswith(("QLinear", "Quantize", "Dequantize")) for name in names), names
    if dtype == "w8a8":
        assert not names
    wanted, given = (np.stack([entry[0] for entry in side]) for side in (run_fp32(proto, samples), run_model(model, samples)))
    # the last quantized values end at 1.0 and -1.0, beyond which the float model goes on: what an output may be is no part of its meaning
    inside = np.abs(wanted) < 0.95
    assert inside.sum() > 10
    assert np.abs(wanted - given)[inside].max() <= 0.05


def block_on_codes() -> onnx.ModelProto:
    """A part of a detector as the format QOperator has it: quantized values that are taken apart, joined, enlarged and padded."""
    net = Quantized()
    net.opsets["com.microsoft"] = 1
    microsoft: dict[str, Any] = {"domain": "com.microsoft"}
    start, middle, shares = ((net.scale(scale), net.zero(zero)) for scale, zero in ((2 / 255, 128), (4 / 255, 120), (1 / 255, 0)))
    x = net.op("QuantizeLinear", net.input("x", (1, 3, 6, 6)), *start)
    scales = net.constant(net.random.uniform(0.002, 0.006, 4).astype(np.float32))
    weights = net.codes(4, 3, 3, 3), scales, net.constant(np.zeros(4, np.int8))
    conv = net.op("QLinearConv", x, *start, *weights, *middle, net.constant(np.array([100, -200, 300, 0], np.int32)))
    left, right = net.ops("Split", conv, count=2, axis=1)
    gate = net.op("QLinearSigmoid", left, *middle, *shares, **microsoft)
    gated = net.op("QLinearMul", gate, *shares, right, *middle, *middle, **microsoft)
    joined = net.op("QLinearConcat", *middle, gated, *middle, right, *middle, axis=1, **microsoft)
    large = net.op("Resize", joined, net.constant(np.zeros(0, np.float32)), net.constant([1.0, 1.0, 2.0, 2.0]), mode="nearest")
    padded = net.op("Pad", large, net.constant([0, 0, 1, 1, 0, 0, 1, 1]), net.zero(120))
    net.output(net.op("DequantizeLinear", padded, *middle))
    return net.proto()


@BOTH
def test_codes_that_are_taken_apart_and_joined(dtype: str) -> None:
    """Behind the Split of a YOLO in the format QOperator nothing was understood, and it was rejected."""
    proto = block_on_codes()
    samples = feeds(proto, 4)
    model = anynpu.compile(proto, "rk3588", dtype=dtype, dataset=samples, algorithm="minmax")
    if dtype == "w8a8":
        assert not any(isinstance(layer.op, Float) for layer in model.programs[0].layers)
    for (wanted,), (given,) in zip(run_fp32(proto, samples), run_model(model, samples), strict=True):
        assert np.abs(wanted - given).max() <= 1.5 * 4 / 255


@pytest.mark.parametrize("opset", [11, 13])
def test_operators_on_codes_keep_their_scales(opset: int) -> None:
    """Without data, as models with pairs of QuantizeLinear and DequantizeLinear do; quantized values are onnxruntime's within one step.

    Operator set 11 has no scales per channel for DequantizeLinear, but has them for QLinearConv.
    """
    proto = block_on_codes()
    if opset < 13:
        proto.opset_import[0].version = opset
        proto.ir_version = 6
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, "rk3588", arithmetic="simulator")
    assert not any(isinstance(layer.op, Float) for layer in model.programs[0].layers)
    half = anynpu.compile(proto, "rk3588", dtype="fp16")
    step = 4 / 255
    for (wanted,), (given,), (close,) in zip(
        run_fp32(proto, samples), run_model(model, samples), run_model(half, samples), strict=True
    ):
        steps = np.rint(np.abs(wanted - given) / step)
        assert steps.max() <= 1
        assert (steps == 0).mean() > 0.98
        assert np.abs(wanted - close).max() <= 2 * step


@BOTH
def test_a_table_of_codes(dtype: str) -> None:
    """Dynamic quantization has embeddings as quantized values, of which Gather takes some: a layer on the CPU stayed."""
    net = Quantized()
    words = net.op("Gather", net.codes(50, 8), net.input("words", (1, 6), np.int64))
    real = net.op("DequantizeLinear", words, net.scale(0.01), net.zero(0, np.int8))
    net.output(net.op("MatMul", real, net.weights(8, 4)))
    proto = net.proto()
    samples = [{"words": np.random.default_rng(seed).integers(0, 50, (1, 6))} for seed in range(3)]
    model = anynpu.compile(proto, "rk3588", dtype=dtype, dataset=samples, algorithm="minmax")
    assert "DequantizeLinear" not in [layer.kind for layer in model.programs[0].layers]
    for (wanted,), (given,) in zip(run_fp32(proto, samples), run_model(model, samples), strict=True):
        assert np.abs(wanted - given).max() <= 0.03 * np.abs(wanted).max()
    with pytest.raises(CompileError, match="needs calibration data"):
        anynpu.compile(proto, "rk3588")


@pytest.mark.parametrize("per_channel", [False, True])
def test_an_lstm_whose_weights_are_codes(per_channel: bool) -> None:
    """What quantize_dynamic makes of an LSTM."""
    net = Quantized(14)
    net.opsets["com.microsoft"] = 1
    inputs = [net.input("x", (5, 1, 8)), net.codes(1, 8, 64), net.codes(1, 16, 64), net.weights(1, 128, scale=0.1), *[""] * 4]
    for _ in range(2):
        shape = (1, 64) if per_channel else (1,)
        scales = net.random.uniform(0.004, 0.006, shape).astype(np.float32)
        inputs += [net.constant(scales), net.constant(np.zeros(shape, np.int8))]
    net.nodes.append(helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=16))
    net.output("y")
    proto = net.proto()
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, "rk3588", dtype="fp16")
    for (wanted,), (given,) in zip(run_fp32(proto, samples), run_model(model, samples), strict=True):
        assert np.abs(wanted - given).max() <= 0.02 * np.abs(wanted).max()


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24),
    reason="onnxruntime before 1.24, which is compared with, has no ConvInteger for signed weights",
)
@BOTH
def test_weights_of_integers_with_dynamic_scales(dtype: str) -> None:
    net = Quantized()

    def product(x: str, operator: str, weights: str, scale: float, **attributes: Any) -> str:
        codes, found, zero = net.ops("DynamicQuantizeLinear", x, count=3)
        whole = net.op("Cast", net.op(operator, codes, weights, zero, **attributes), to=onnx.TensorProto.FLOAT)
        return net.op("Mul", whole, net.op("Mul", found, net.scale(scale)))

    first = net.op("Relu", product(net.input("x", (1, 3, 6, 6)), "ConvInteger", net.codes(4, 3, 3, 3), 0.002))
    net.output(product(net.op("Flatten", first), "MatMulInteger", net.codes(64, 5), 0.001))
    compare(net, dtype, kinds=["ConvRelu", "Gemm"] if dtype == "w8a8" else ["ConvRelu", "Flatten", "Gemm"])


def test_outputs_that_are_codes_stay_codes() -> None:
    net = Quantized()
    ends = net.scale(2 / 255), net.zero(128)
    x = net.op("QuantizeLinear", net.input("x", (1, 3, 6, 6)), *ends)
    weights = net.codes(4, 3, 3, 3), net.scale(0.002), net.zero(0, np.int8)
    net.output(net.op("QLinearConv", x, *ends, *weights, net.scale(4 / 255), net.zero(100)))
    proto = net.proto()
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, "rk3588", dtype="fp16")
    for (wanted,), (given,) in zip(run_fp32(proto, samples), run_model(model, samples), strict=True):
        assert given.dtype == np.uint8
        difference: Array = np.abs(wanted.astype(int) - given.astype(int))
        assert difference.max() <= 1

    with pytest.raises(CompileError, match="an output of the model is quantized values") as caught:
        anynpu.compile(proto, "rk3588")
    assert "float inputs and outputs" in caught.value.hint


def test_scales_of_float16() -> None:
    """A float16 model with pairs keeps its scales: weights and activations had different types on the way."""
    net = Quantized(19)
    ends = net.constant(np.array(1 / 64, np.float16)), net.zero(0, np.int8)
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", net.input("x", (1, 3, 6, 6), np.float16), *ends), *ends)
    conv = net.op("Conv", x, net.op("DequantizeLinear", net.codes(4, 3, 3, 3), *ends))
    last = net.constant(np.array(1 / 8, np.float16)), ends[1]
    net.output(net.op("DequantizeLinear", net.op("QuantizeLinear", conv, *last), *last))
    proto = net.proto()
    model = anynpu.compile(proto, "rk3588")
    assert not any(isinstance(layer.op, Float) for layer in model.programs[0].layers)
    samples = feeds(proto, 3)
    for (wanted,), (given,) in zip(run_fp32(proto, samples), run_model(model, samples), strict=True):
        assert np.abs(wanted.astype(np.float32) - given).max() <= 1 / 8


def test_int8_of_a_quantised_model_needs_data_like_any_other() -> None:
    net = Quantized()
    ends = net.scale(2 / 255), net.zero(128)
    net.output(net.op("DequantizeLinear", net.op("QuantizeLinear", net.input("x", (1, 4)), *ends), *ends))
    with pytest.raises(CompileError, match="needs calibration data"):
        anynpu.compile(net.proto(), "rk3588")


@pytest.mark.parametrize("inputs", [1, 2, 4])
def test_operators_without_their_inputs_are_refused(inputs: int) -> None:
    net = Quantized()
    net.opsets["com.microsoft"] = 1
    ends = net.scale(2 / 255), net.zero(128)
    x = net.op("QuantizeLinear", net.input("x", (1, 4)), *ends)
    net.output(net.op("QLinearAdd", *[x, *ends, x][:inputs], domain="com.microsoft"))
    with pytest.raises(CompileError):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")


def test_scales_that_fit_nothing_are_refused() -> None:
    net = Quantized()
    ends = net.scale(2 / 255), net.zero(128)
    x = net.op("QuantizeLinear", net.input("x", (1, 3, 6, 6)), *ends)
    weights = net.codes(4, 3, 3, 3), net.constant(np.ones(7, np.float32)), net.zero(0, np.int8)
    net.output(net.op("QLinearConv", x, *ends, *weights, *ends))
    with pytest.raises(CompileError, match="makes no sense"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")
