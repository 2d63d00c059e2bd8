"""QDQ models as other tools write them: where pairs, scales, zero points and axes may stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import anynpu
from anynpu.errors import CompileError
from anynpu.tensor import DType

from .running import run_fp32, run_model

Array = npt.NDArray[Any]
SHAPE = (1, 3, 12, 12)


class Pairs:
    """A quantized model under construction. Its input is ``x``."""

    def __init__(self, opset: int = 13) -> None:
        self.random = np.random.default_rng(2)
        self._opset = opset
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(onnx.helper.make_node(kind, list(inputs), [name], name=f"node_{name}", **attributes))
        return name

    def rounded(self, x: str, scale: float, zero: int, dtype: Any = np.uint8) -> str:
        ends = self.constant(np.float32(scale)), self.constant(np.asarray(zero, dtype))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *ends), *ends)

    def weights(self, *shape: int, axis: int | None = None, channels: int = 0) -> str:
        """int8 values with a scale for all, or for each of the *channels* of an axis."""
        codes = self.random.integers(-127, 128, shape).astype(np.int8)
        if axis is None:
            return self.op("DequantizeLinear", self.constant(codes), self.constant(np.float32(0.0077)), self.constant(np.int8(0)))
        scales = self.random.uniform(0.005, 0.01, channels).astype(np.float32)
        zeros = self.constant(np.zeros(channels, np.int8))
        return self.op("DequantizeLinear", self.constant(codes), self.constant(scales), zeros, axis=axis)

    def model(self, *outputs: str) -> onnx.ModelProto:
        ends = [[onnx.helper.make_tensor_value_info("x", 1, SHAPE)]]
        ends.append([onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs])
        graph = onnx.helper.make_graph(self._nodes, "net", *ends, self._constants)
        imports = [onnx.helper.make_opsetid("", self._opset)]
        return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8 if self._opset < 19 else 10)


def assert_equal_codes(model: onnx.ModelProto, *, share: float = 0.995) -> Any:
    """Sums in float32 may lead to another code where a value lies between two."""
    compiled = anynpu.compile(model, "rk3588", arithmetic="simulator")
    random = np.random.default_rng(4)
    samples = [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(2)]
    for wanted, found in zip(run_fp32(model, samples), run_model(compiled, samples), strict=True):
        for spec, one, other in zip(compiled.programs[0].output_specs, wanted, found, strict=True):
            assert spec.quantization is not None
            steps = np.abs(np.rint((np.asarray(other).reshape(one.shape) - one) / spec.quantization.scale))
            assert steps.max() <= 1
            assert (steps == 0).mean() >= share
    return compiled


def test_weights_by_channel_and_a_bias_as_codes() -> None:
    """As torch.ao writes them."""
    net = Pairs()
    x = net.rounded("x", 0.0213, 110)
    codes = net.random.integers(-3000, 3000, 8).astype(np.int32)
    bias = net.op("DequantizeLinear", net.constant(codes), net.constant(np.full(8, 0.0213 * 0.0077, np.float32)), axis=0)
    assert_equal_codes(net.model(net.rounded(net.op("Relu", net.op("Conv", x, net.weights(8, 3, 3, 3), bias)), 0.0371, 0)))


@pytest.mark.parametrize("kind", ["from behind", "transposed", "rows", "columns", "turned"])
def test_axes_of_weights(kind: str) -> None:
    net = Pairs()
    x = net.rounded("x", 0.0213, 110)
    flat = net.op("Flatten", x)
    if kind == "from behind":
        y = net.op("Conv", x, net.weights(8, 3, 3, 3, axis=-4, channels=8))
    elif kind == "transposed":
        y = net.op("ConvTranspose", x, net.weights(3, 8, 2, 2, axis=1, channels=8), strides=[2, 2])
    elif kind == "rows":
        y = net.op("Gemm", flat, net.weights(10, 432, axis=0, channels=10), transB=1)
    elif kind == "columns":
        y = net.op("MatMul", flat, net.weights(432, 10, axis=1, channels=10))
    else:
        y = net.op("MatMul", flat, net.op("Transpose", net.weights(10, 432, axis=0, channels=10), perm=[1, 0]))
    assert_equal_codes(net.model(net.rounded(y, 0.0971, 120)))


def test_weights_that_are_quantised_when_the_model_runs() -> None:
    net = Pairs(19)
    values = net.constant(net.random.normal(size=(4, 3, 1, 1)).astype(np.float32))
    ends = net.constant(net.random.uniform(0.01, 0.03, 4).astype(np.float32)), net.constant(np.zeros(4, np.int8))
    weights = net.op("DequantizeLinear", net.op("QuantizeLinear", values, *ends, axis=0), *ends, axis=0)
    assert_equal_codes(net.model(net.rounded(net.op("Conv", net.rounded("x", 0.0213, 110), weights), 0.0371, 120)))


def other_weights(kind: Any) -> onnx.ModelProto:
    """Weights of another type, between -7 and 7."""
    net = Pairs(21)
    x = net.rounded("x", 0.0213, 110)
    tensor = onnx.helper.make_tensor("codes", kind, (4, 3, 1, 1), np.arange(12) % 15 - 7)
    weights = net.op("DequantizeLinear", "codes", net.constant(np.float32(0.11)))
    model = net.model(net.rounded(net.op("Conv", x, weights), 0.0371, 120))
    model.graph.initializer.append(tensor)
    return model


def test_weights_of_four_bits_keep_their_codes(caplog: pytest.LogCaptureFixture) -> None:
    assert_equal_codes(other_weights(onnx.TensorProto.INT4))
    assert "weights are int8 here" not in caplog.text


def test_weights_of_sixteen_bits_are_rounded_anew_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    anynpu.compile(other_weights(onnx.TensorProto.INT16), "rk3588")
    assert "is int16, which is rounded to int8 again" in caplog.text


def test_two_pairs_in_a_row_round_twice() -> None:
    net = Pairs()
    again = net.rounded(net.rounded("x", 0.0213, 110), 0.0517, 100)
    assert_equal_codes(net.model(net.rounded(net.op("Conv", again, net.weights(4, 3, 1, 1)), 0.0371, 120)))


def test_two_pairs_beside_each_other_round_each_by_itself() -> None:
    """As NNCF does it, with a quantizer for each reader: the second one is finer, and cuts off earlier."""
    net = Pairs()
    x = net.op("Conv", net.rounded("x", 0.0213, 110), net.weights(4, 3, 1, 1))
    ends = [net.op("Conv", net.rounded(x, scale, 120), net.weights(4, 4, 1, 1)) for scale in (0.0371, 0.0101)]
    compiled = assert_equal_codes(net.model(*(net.rounded(end, 0.0411, 130) for end in ends)))
    assert all(spec.dtype is DType.INT8 for spec in compiled.programs[0].tensors.values())


def test_an_input_that_is_rounded_in_two_ways_is_float() -> None:
    net = Pairs()
    ends = [net.op("Conv", net.rounded("x", scale, 110), net.weights(4, 3, 1, 1)) for scale in (0.0213, 0.0613)]
    compiled = assert_equal_codes(net.model(*(net.rounded(end, 0.0911, 130) for end in ends)), share=0.97)
    assert compiled.programs[0].input_specs[0].dtype is DType.FLOAT16


def test_an_input_that_is_taken_apart_first_has_codes() -> None:
    """The Focus of YOLOX as onnxruntime quantizes it: only its parts have a scale, all the same."""
    net = Pairs()

    def part(start: int) -> str:
        ends = (net.constant(np.array([value], np.int64)) for value in (start, 12, 2, 2))
        return net.op("Slice", "x", *ends)

    parts = [net.rounded(part(start), 0.0213, 110) for start in (0, 1)]
    joined = net.rounded(net.op("Concat", *parts, axis=1), 0.0213, 110)
    compiled = assert_equal_codes(net.model(net.rounded(net.op("Conv", joined, net.weights(4, 6, 3, 3)), 0.0371, 120)))
    assert compiled.programs[0].input_specs[0].dtype is DType.INT8


def test_a_type_without_a_zero_point() -> None:
    net = Pairs(21)
    scale = net.constant(np.float32(0.0313))
    codes = net.op("QuantizeLinear", "x", scale, output_dtype=onnx.TensorProto.INT8)
    x = net.op("DequantizeLinear", codes, scale)
    assert_equal_codes(net.model(net.rounded(net.op("Conv", x, net.weights(4, 3, 1, 1)), 0.0371, 0, np.int8)))


def unusual(kind: str) -> onnx.ModelProto:
    net = Pairs(21)
    if kind == "16 bits":
        x = net.rounded("x", 0.0002, 32000, np.uint16)
        return net.model(net.rounded(net.op("Conv", x, net.weights(4, 3, 1, 1)), 0.0003, 32000, np.uint16))
    x = net.rounded("x", 0.0213, 110)
    if kind == "blocks":
        scales = net.constant(net.random.uniform(0.005, 0.01, (27, 10)).astype(np.float32))
        codes = net.constant(net.random.integers(-127, 128, (432, 10)).astype(np.int8))
        weights = net.op("DequantizeLinear", codes, scales, axis=0, block_size=16)
        return net.model(net.rounded(net.op("MatMul", net.op("Flatten", x), weights), 0.0971, 120))
    codes = net.op("QuantizeLinear", net.op("Conv", x, net.weights(4, 3, 1, 1)), net.constant(np.float32(0.03)))
    return net.model(net.rounded(net.op("DequantizeLinear", codes, net.constant(np.float32(0.06))), 0.06, 0))


@pytest.mark.parametrize(
    ("kind", "words"),
    [("16 bits", "an activation is uint16"), ("blocks", "a scale for each block"), ("two scales", "than they were written with")],
)
def test_what_has_no_meaning_here_is_said(kind: str, words: str) -> None:
    with pytest.raises(CompileError, match=words) as caught:
        anynpu.compile(unusual(kind), "rk3588")
    assert "calibration data" in caught.value.hint


def test_with_data_such_a_model_is_quantised_anew() -> None:
    random = np.random.default_rng(4)
    data = [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(2)]
    compiled = anynpu.compile(unusual("16 bits"), "rk3588", dataset=data, accuracy="fast")
    assert compiled.programs[0].output_specs[0].dtype is DType.INT8
