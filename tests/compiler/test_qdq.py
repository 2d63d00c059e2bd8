"""Models that are quantized already keep their scales and their weights' quantized values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import anynpu
from anynpu.compiler.importers.quantized_models import split_qdq
from anynpu.errors import CompileError
from anynpu.program import Conv, Dense
from anynpu.tensor import DType

from . import qdq_models
from .onnx_builders import Net
from .qdq_models import SCHEMES
from .running import run_fp32, run_model

Array = npt.NDArray[Any]

SHAPE = (1, 3, 12, 12)


def samples(count: int, seed: int = 5) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.normal(size=SHAPE).astype(np.float32) for _ in range(count)]


def feeds(count: int, seed: int) -> list[dict[str, Array]]:
    return [{"x": sample} for sample in samples(count, seed)]


def network() -> onnx.ModelProto:
    """Convolutions of all kinds, a residual, pooling, a Concat and a matmul."""
    net = Net()
    first = net.op("Relu", net.conv(net.input("x", SHAPE), 8, pads=[1, 1, 1, 1]))
    depthwise = net.op("Relu", net.conv(first, 8, cin=8, group=8, pads=[1, 1, 1, 1]))
    summed = net.op("Add", net.conv(depthwise, 8, 1, cin=8), first)
    pooled = net.op("MaxPool", summed, kernel_shape=[2, 2], strides=[2, 2])
    joined = net.op("Concat", pooled, net.conv(pooled, 4, 1, cin=8), axis=1)
    flat = net.op("Flatten", net.op("GlobalAveragePool", joined))
    net.output(net.op("Gemm", flat, net.weights(12, 5, scale=0.3), net.weights(5)))
    net.output(joined)
    return net.proto()


def quantised(tmp_path: Path, scheme: str, operators: list[str] | None = None) -> onnx.ModelProto:
    return qdq_models.quantised(network(), tmp_path, scheme, [{"x": sample} for sample in samples(6)], operators)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_codes_are_those_of_onnxruntime_within_one_step(tmp_path: Path, scheme: str) -> None:
    model = quantised(tmp_path, scheme)
    compiled = anynpu.compile(model, "rk3588")
    program = compiled.programs[0]
    assert not [layer.name for layer in program.layers if any(program.tensors[name].dtype.is_float for name in layer.outputs)]
    steps: list[Array] = []
    for expected, given in zip(run_fp32(model, feeds(8, 77)), run_model(compiled, feeds(8, 77)), strict=True):
        for spec, wanted, found in zip(program.output_specs, expected, given, strict=True):
            assert spec.quantization is not None
            steps.append(np.abs(np.rint((np.asarray(found).reshape(wanted.shape) - wanted) / spec.quantization.scale)).ravel())
    difference = np.concatenate(steps)
    assert (difference <= 1).mean() >= 0.999
    assert (difference == 0).mean() >= 0.9


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scales_and_weights_are_kept(tmp_path: Path, scheme: str) -> None:
    model = quantised(tmp_path, scheme)
    parts = split_qdq(model)
    program = anynpu.compile(model, "rk3588").programs[0]
    kept = [name for name in parts.ranges if name in program.tensors]
    assert len(kept) >= 6
    for name in kept:
        quantization = program.tensors[name].quantization
        assert quantization is not None, name
        assert (np.float32(quantization.scale), quantization.zero_point) == (
            np.float32(parts.ranges[name][0]),
            parts.ranges[name][1],
        )
    theirs = {entry.codes.tobytes() for entry in parts.weights.values()} | {
        entry.codes.T.tobytes() for entry in parts.weights.values()
    }
    ours = [layer.op for layer in program.layers if isinstance(layer.op, (Conv, Dense))]
    codes = [np.ascontiguousarray(op.weights.transpose(0, 3, 1, 2) if op.weights.ndim == 4 else op.weights) for op in ours]
    assert sum(array.tobytes() in theirs or array.T.tobytes() in theirs for array in codes) >= 5


def test_what_has_no_scale_is_float(tmp_path: Path) -> None:
    """Only convolutions are quantized: what lies between them stays float, and a dataset is not needed."""
    model = quantised(tmp_path, "symmetric per tensor", ["Conv"])
    compiled = anynpu.compile(model, "rk3588")
    kinds = {program.dtype for program in compiled.programs[0].tensors.values()}
    assert DType.INT8 in kinds
    assert any(kind.is_float for kind in kinds)
    expected, given = run_fp32(model, feeds(2, 5)), run_model(compiled, feeds(2, 5))
    for wanted, found in zip(expected[0], given[0], strict=True):
        assert np.abs(np.asarray(found).reshape(wanted.shape) - wanted).max() < 0.1 * np.abs(wanted).max()


def test_a_float_model_still_needs_data(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="needs calibration data"):
        anynpu.compile(network(), "rk3588")


HOSTILE: dict[str, tuple[Any, Any, int]] = {
    "too few scales": ([0.01] * 7, [0] * 7, 0),
    "too many scales": ([0.01] * 9, [0] * 9, 0),
    "no scales": ([], [], 0),
    "too few zero points": ([0.01] * 8, [0] * 5, 0),
    "zero points without scales": (0.01, [0] * 8, 0),
    "another axis": ([0.01] * 8, [0] * 8, 3),
    "no axis": ([0.01] * 8, [0] * 8, 4),
    "no axis from behind": ([0.01] * 8, [0] * 8, -5),
    "the last axis of all": ([0.01] * 8, [0] * 8, -(1 << 63)),
}


@pytest.mark.parametrize("quantised_when", ["stored", "run"])
@pytest.mark.parametrize("case", HOSTILE)
def test_scales_that_fit_nothing_are_refused(case: str, quantised_when: str) -> None:
    scales, zeros, axis = HOSTILE[case]
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    given = [array(np.asarray(scales, np.float32), "scales"), array(np.asarray(zeros, np.int8), "zeros")]
    given += [array(np.float32(0.02), "s"), array(np.int8(0), "z")]
    kind = np.int8 if quantised_when == "stored" else np.float32
    given.append(array(np.ones((8, 3, 3, 3), kind), "codes" if quantised_when == "stored" else "floats"))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["codes", "scales", "zeros"], ["w"], axis=axis),
        helper.make_node("Conv", ["d", "w"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["e"]),
        helper.make_node("DequantizeLinear", ["e", "s", "z"], ["y"]),
    ]
    if quantised_when == "run":
        nodes.insert(2, helper.make_node("QuantizeLinear", ["floats", "scales", "zeros"], ["codes"], axis=axis))
    ends = [[helper.make_tensor_value_info(name, 1, shape)] for name, shape in (("x", SHAPE), ("y", None))]
    model = helper.make_model(
        helper.make_graph(nodes, "net", *ends, given), opset_imports=[helper.make_opsetid("", 13)], ir_version=9
    )
    with pytest.raises(CompileError):
        anynpu.compile(model, target="rk3588", dtype="int8")
