"""Quantized models round where their QuantizeLinear nodes stand, and as onnxruntime's integer kernels do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import anynpu
from anynpu._util import optional as _optional
from anynpu.compiler.graph import Graph, Node
from anynpu.compiler.importers.quantized_models import QdqWeights
from anynpu.compiler.lower.steps import Activation
from anynpu.compiler.quantize.given_scales import product_multiplier, rounded_table
from anynpu.program import Float
from anynpu.tensor import Affine

from . import qdq_models
from .onnx_builders import Net
from .qdq_models import SCHEMES
from .running import run_fp32, run_model

Array = npt.NDArray[Any]
SHAPE = (1, 3, 16, 16)


def feeds(count: int, seed: int) -> list[dict[str, Array]]:
    random = np.random.default_rng(seed)
    return [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(count)]


def scale_and_shift() -> Net:
    """As in PP-OCRv4: a convolution, a factor, a summand, and a hard swish of single operators."""
    net = Net()
    x = net.conv(net.input("x", SHAPE), 8, pads=[1, 1, 1, 1])
    shifted = net.op("Add", net.op("Mul", x, net.constant([0.7])), net.constant([0.3]))
    gate = net.op("Clip", net.op("Add", shifted, net.constant(3.0)), net.constant(0.0), net.constant(6.0))
    swish = net.op("Div", net.op("Mul", shifted, gate), net.constant(6.0))
    net.output(net.conv(swish, 4, 1, cin=8))
    return net


def transposed_with_normalisation() -> Net:
    net = Net()
    x = net.conv(net.input("x", SHAPE), 4, 1)
    larger = net.op("ConvTranspose", x, net.weights(4, 6, 2, 2, scale=0.3), strides=[2, 2])
    shifted = net.op("Add", larger, net.weights(1, 6, 1, 1))
    net.output(net.op("Relu", net.batch_norm(shifted, 6)))
    return net


def slice_of_concat() -> Net:
    net = Net()
    x = net.input("x", SHAPE)
    small, large = net.conv(x, 4, 1), net.op("Mul", net.conv(x, 4, 1), net.constant(50.0))
    joined = net.op("Concat", small, large, axis=1)
    starts, ends, axes = net.constant([0]), net.constant([4]), net.constant([1])
    net.output(net.conv(net.op("Slice", joined, starts, ends, axes), 4, 1, cin=4))
    return net


def product_with_bias() -> Net:
    net = Net()
    rows = net.op("Reshape", net.conv(net.input("x", SHAPE), 8, 1), net.constant([1, 8, 256]))
    product = net.op("MatMul", net.op("Transpose", rows, perm=[0, 2, 1]), net.weights(8, 6, scale=0.3))
    net.output(net.op("Relu", net.op("Add", product, net.weights(6))))
    return net


def leak_by_channel() -> Net:
    net = Net()
    x = net.conv(net.input("x", SHAPE), 6, 1)
    net.output(net.conv(net.op("PRelu", x, net.weights(6, 1, 1, scale=0.2)), 4, 1, cin=6))
    return net


def two_operands() -> Net:
    """Sums and products of two tensors, sigmoids and a pooling, as in YOLOX."""
    net = Net()
    x = net.conv(net.input("x", SHAPE), 8, pads=[1, 1, 1, 1])
    swish = net.op("Mul", x, net.op("Sigmoid", x))
    summed = net.op("Add", swish, net.conv(swish, 8, 3, cin=8, group=8, pads=[1, 1, 1, 1]))
    pooled = net.op("MaxPool", summed, kernel_shape=[2, 2], strides=[2, 2])
    net.output(net.op("Concat", pooled, net.conv(pooled, 8, 1, cin=8), axis=1))
    return net


def quantised(network: onnx.ModelProto, folder: Path, scheme: str) -> onnx.ModelProto:
    return qdq_models.quantised(network, folder, scheme, feeds(4, 1))


def run_integers(model: onnx.ModelProto, samples: list[dict[str, Array]]) -> list[list[Array]]:
    """What onnxruntime's integer kernels make of a model, also where its activations are signed."""
    runtime = _optional.onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(sample)) for sample in samples]


def steps(model: Any, wanted: list[list[Array]], given: list[list[Array]]) -> Array:
    found = []
    for expected, results in zip(wanted, given, strict=True):
        for spec, one, other in zip(model.programs[0].output_specs, expected, results, strict=True):
            found.append(np.abs(np.rint((np.asarray(other).reshape(one.shape) - one) / spec.quantization.scale)).ravel())
    return np.concatenate(found)


CASES = [(network, scheme) for network in (scale_and_shift, two_operands) for scheme in SCHEMES]
CASES += [
    (network, scheme)
    for network in (transposed_with_normalisation, slice_of_concat, product_with_bias, leak_by_channel)
    for scheme in ("asymmetric per channel", "symmetric per tensor")
]
SUMMANDS_BY_CHANNEL = (transposed_with_normalisation, product_with_bias)
"""A summand per channel is the bias of a convolution with the weight 1, in units of a 255th of the input's step."""


@pytest.mark.parametrize(("network", "scheme"), CASES, ids=[f"{network.__name__}, {scheme}" for network, scheme in CASES])
def test_every_rounding_is_where_the_model_has_it(tmp_path: Path, network: Callable[[], Net], scheme: str) -> None:
    model = quantised(network().proto(), tmp_path, scheme)
    compiled = anynpu.compile(model, "rk3588", arithmetic="simulator")
    assert not [layer.name for layer in compiled.programs[0].layers if isinstance(layer.op, Float)]
    samples = feeds(2, 7)
    given = run_model(compiled, samples)
    # a code or two of float32 sums depend on their order, and integer kernels of processors without VNNI saturate
    difference = min((steps(compiled, run(model, samples), given) for run in (run_integers, run_fp32)), key=np.count_nonzero)
    assert difference.max() <= (1 if network in SUMMANDS_BY_CHANNEL else 0)
    assert (difference == 0).mean() >= 0.995


def test_the_chip_rounds_there_too(tmp_path: Path) -> None:
    model = quantised(scale_and_shift().proto(), tmp_path, "asymmetric per channel")
    compiled = anynpu.compile(model, "rk3588")
    assert [layer.kind for layer in compiled.programs[0].layers] == ["Conv", "Mul", "Add", "Add", "Mul", "Div", "Conv"]
    difference = steps(compiled, run_fp32(model, feeds(2, 7)), run_model(compiled, feeds(2, 7)))
    assert (difference <= 1).mean() >= 0.999


def test_what_only_moves_codes_is_no_rounding(tmp_path: Path) -> None:
    """The nodes of a channel shuffle have one scale: they stay one layer."""
    net = Net()
    x = net.conv(net.input("x", SHAPE), 8, 1)
    apart = net.op("Reshape", x, net.constant([1, 2, 4, 16, 16]))
    turned = net.op("Transpose", apart, perm=[0, 2, 1, 3, 4])
    net.output(net.conv(net.op("Reshape", turned, net.constant([1, 8, 16, 16])), 4, 1, cin=8))
    model = quantised(net.proto(), tmp_path, "asymmetric per tensor")
    kinds = [layer.kind for layer in anynpu.compile(model, "rk3588").programs[0].layers]
    assert len(kinds) == 3, kinds


def kernel(op: str, scales: list[float], zeros: list[int], constant: int, dtype: Any) -> Array:
    """What onnxruntime's own kernel makes of all quantized values and a constant."""
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    given = [array(np.float32(value), f"s{index}") for index, value in enumerate(scales)]
    given += [array(np.asarray(value, dtype), f"z{index}") for index, value in enumerate(zeros)]
    given.append(array(np.asarray(constant, dtype), "b"))
    node = helper.make_node(op, ["a", "s0", "z0", "b", "s1", "z1", "s2", "z2"], ["y"], domain="com.microsoft")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [[helper.make_tensor_value_info(name, kind, [256])] for name in "ay"]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "net", *ends, given), opset_imports=imports, ir_version=8)
    session = _optional.onnxruntime().InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    limits = np.iinfo(dtype)
    result: Array = session.run(None, {"a": np.arange(limits.min, limits.max + 1).astype(dtype)})[0]
    return result


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_tables_are_those_of_the_kernels(op: str, dtype: Any) -> None:
    random = np.random.default_rng(3)
    limits, shift = np.iinfo(dtype), 128 if dtype is np.uint8 else 0
    node = Node(op, ["x", "c"], ["y"])
    graph = Graph([node], ["x"], ["y"], {"c": np.zeros(1, np.float32)}, {}, {}, {})
    for case in range(24):
        scales = [float(np.float32(value)) for value in random.uniform(0.001, 0.1, 3)]
        if case % 2:  # many values between two quantized values
            scales = [scales[0], scales[0] * float(random.choice([0.5, 1.0, 2.0])), scales[0] * 2.0]
        zeros = [int(value) for value in random.integers(limits.min, limits.max + 1, 3)]
        code = int(random.integers(limits.min, limits.max + 1))
        constant = QdqWeights(np.array(code - shift, np.int8), np.float32([scales[1]]), np.array([zeros[1] - shift]), 0, shift)
        source, target = (Affine.per_tensor(scales[index], zeros[index] - shift) for index in (0, 2))
        table = rounded_table(graph, Activation(lambda x: x, op, (node,)), source, target, {"c": constant})
        wanted = kernel(f"QLinear{op}", scales, zeros, code, dtype).astype(np.int64) - shift
        # a table begins with the code that has the bits of 0
        found = table[0][np.arange(-128, 128).astype(np.int8).view(np.uint8)]
        assert np.array_equal(found, wanted), case


def test_multipliers_are_rounded_after_each_operation() -> None:
    random = np.random.default_rng(1)
    source, weights, result = (random.uniform(0.001, 0.1, 1000).astype(np.float32) for _ in range(3))
    found = product_multiplier(source, weights, result)
    assert found.dtype == np.float32
    assert np.array_equal(found, (source * weights) / result)
    once = (source.astype(np.float64) * weights / result).astype(np.float32)
    assert not np.array_equal(found, once)
