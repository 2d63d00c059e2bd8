"""TFLite files: what they become in ONNX computes what they mean, with few transposes; damaged ones end in one error."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tflite_files import Byte, Float, Tflite, Truth

import anynpu
from anynpu.compiler.importers import known_scales
from anynpu.compiler.importers.tflite import tflite_to_onnx
from anynpu.errors import AnynpuError, CalibrationError, CompileError, UnsupportedOperatorError

Array = np.ndarray[Any, Any]
SAME, VALID = 0, 1
RELU, RELU6 = 1, 3
RANDOM = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in this process."""
    RANDOM.bit_generator.state = np.random.default_rng(7).bit_generator.state


def numbers(*shape: int) -> Array:
    return RANDOM.normal(0.0, 1.0, shape).astype(np.float32)


def run(proto: Any, *values: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {entry.name: value for entry, value in zip(session.get_inputs(), values, strict=True)}
    return [np.asarray(value) for value in session.run(None, feeds)]


def nchw(value: Array) -> Array:
    return np.ascontiguousarray(value.transpose(0, 3, 1, 2))


def operators(proto: Any) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


def convolved(
    x: Array, weights: Array, bias: Array, stride: int = 1, dilation: int = 1, *, same: bool = True, groups: int = 1
) -> Array:
    """A convolution over NHWC, unrolled; weights are [O, KH, KW, I / groups]."""
    size = weights.shape[1]
    reach = (size - 1) * dilation + 1
    extents = [-(-extent // stride) if same else (extent - reach) // stride + 1 for extent in x.shape[1:3]]
    totals = [
        max((out - 1) * stride + reach - extent, 0) if same else 0 for out, extent in zip(extents, x.shape[1:3], strict=True)
    ]
    padded = np.pad(x, ((0, 0), *((total // 2, total - total // 2) for total in totals), (0, 0)))
    result = np.zeros((x.shape[0], *extents, len(weights)), np.float64)
    inner = x.shape[3] // groups
    for channel in range(len(weights)):
        first = channel // (len(weights) // groups) * inner
        for row in range(extents[0]):
            for column in range(extents[1]):
                top, left = row * stride, column * stride
                part = padded[:, top : top + reach : dilation, left : left + reach : dilation, first : first + inner]
                result[:, row, column, channel] = (part * weights[channel]).sum(axis=(1, 2, 3)) + bias[channel]
    return result


def test_a_picture_network_becomes_nchw_without_transposes() -> None:
    file = Tflite()
    weights, bias, depth, shift = numbers(4, 3, 3, 3), numbers(4), numbers(1, 3, 3, 4), numbers(4)
    x = file.tensor("image", (1, 7, 6, 3))
    first, second, pooled = file.tensor("a", (1, 4, 3, 4)), file.tensor("b", (1, 4, 3, 4)), file.tensor("c", (1, 4))
    file.operator(
        "CONV_2D",
        [x, file.constant("w", weights), file.constant("v", bias)],
        [first],
        {0: Byte(SAME), 1: 2, 2: 2, 3: Byte(RELU6)},
    )
    options = {0: Byte(SAME), 1: 1, 2: 1, 3: 1, 4: Byte(RELU)}
    file.operator("DEPTHWISE_CONV_2D", [first, file.constant("d", depth), file.constant("s", shift)], [second], options)
    file.operator("MEAN", [second, file.constant("axes", np.array([1, 2], np.int32))], [pooled], {})
    proto = tflite_to_onnx(file.file([x], [pooled]))
    assert operators(proto) == {"Conv": 2, "Clip": 1, "Relu": 1, "GlobalAveragePool": 1, "Reshape": 1}
    value = numbers(1, 7, 6, 3)
    expected = np.clip(convolved(value, weights, bias, 2), 0.0, 6.0)
    expected = np.maximum(convolved(expected, depth[0].transpose(2, 0, 1)[..., None], shift, groups=4), 0.0).mean(axis=(1, 2))
    assert [entry.name for entry in proto.graph.input] == ["image"]
    np.testing.assert_allclose(run(proto, nchw(value))[0], expected, atol=1e-5)


def test_outputs_keep_the_axes_of_the_file() -> None:
    file = Tflite()
    weights, bias = numbers(4, 1, 1, 3), numbers(4)
    x, y = file.tensor("image", (1, 5, 6, 3)), file.tensor("map", (1, 5, 6, 4))
    file.operator("CONV_2D", [x, file.constant("w", weights), file.constant("v", bias)], [y], {0: Byte(VALID), 1: 1, 2: 1})
    proto = tflite_to_onnx(file.file([x], [y]))
    assert [entry.name for entry in proto.graph.output] == ["map"]
    value = numbers(1, 5, 6, 3)
    np.testing.assert_allclose(run(proto, nchw(value))[0], convolved(value, weights, bias), atol=1e-5)


def test_a_file_that_turns_pictures_back_and_forth_gets_no_transposes() -> None:
    """Converters from ONNX put a TRANSPOSE before and after every convolution."""
    file = Tflite()
    weights = numbers(3, 1, 1, 3)
    order = {
        name: file.constant(name, np.array(axes, np.int32)) for name, axes in {"to": [0, 2, 3, 1], "back": [0, 3, 1, 2]}.items()
    }
    current = first = file.tensor("x", (1, 3, 4, 5))
    kernel = file.constant("w", weights)
    for index in range(3):
        turned, made = file.tensor(f"t{index}", (1, 4, 5, 3)), file.tensor(f"c{index}", (1, 4, 5, 3))
        back = file.tensor(f"b{index}", (1, 3, 4, 5))
        file.operator("TRANSPOSE", [current, order["to"]], [turned])
        file.operator("CONV_2D", [turned, kernel], [made], {0: Byte(VALID), 1: 1, 2: 1})
        file.operator("TRANSPOSE", [made, order["back"]], [back])
        current = back
    proto = tflite_to_onnx(file.file([first], [current]))
    assert operators(proto) == {"Conv": 3, "Identity": 1}
    value = numbers(1, 3, 4, 5)
    expected = value.transpose(0, 2, 3, 1)
    for _ in range(3):
        expected = convolved(expected, weights, np.zeros(3))
    np.testing.assert_allclose(run(proto, value)[0], expected.transpose(0, 3, 1, 2), atol=1e-5)


def test_flattened_pictures_change_weights_not_places() -> None:
    file = Tflite()
    weights, matrix, bias = numbers(2, 1, 1, 3), numbers(5, 24), numbers(5)
    x, made = file.tensor("image", (1, 3, 4, 3)), file.tensor("made", (1, 3, 4, 2))
    flat, result = file.tensor("flat", (1, 24)), file.tensor("result", (1, 5))
    file.operator("CONV_2D", [x, file.constant("w", weights)], [made], {0: Byte(VALID), 1: 1, 2: 1})
    file.operator("RESHAPE", [made, file.constant("shape", np.array([1, 24], np.int32))], [flat])
    file.operator("FULLY_CONNECTED", [flat, file.constant("m", matrix), file.constant("n", bias)], [result], {0: Byte(0)})
    proto = tflite_to_onnx(file.file([x], [result]))
    assert operators(proto) == {"Conv": 1, "Reshape": 1, "Gemm": 1}
    value = numbers(1, 3, 4, 3)
    expected = convolved(value, weights, np.zeros(2)).reshape(1, 24) @ matrix.T + bias
    np.testing.assert_allclose(run(proto, nchw(value))[0], expected, atol=1e-5)


def sole(
    kind: str, shape: Sequence[int], more: Sequence[Array] = (), options: Any = None, result: Sequence[int] | None = None
) -> Any:
    """A network of one operator, whose input does not look like an image."""
    file = Tflite()
    x, y = file.tensor("x", shape), file.tensor("y", result if result is not None else shape)
    constants = [file.constant(f"c{index}", value) for index, value in enumerate(more)]
    file.operator(kind, [x, *constants], [y], options)
    return tflite_to_onnx(file.file([x], [y]))


SIDE = numbers(2, 3)
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Callable[[Array], Array]]] = {
    "ADD": (((2, 3), [SIDE], {0: Byte(RELU)}), {}, lambda x: np.maximum(x + SIDE, 0.0)),
    "SUB": (((2, 3), [SIDE], {}), {}, lambda x: x - SIDE),
    "MUL": (((2, 3), [SIDE], {}), {}, lambda x: x * SIDE),
    "DIV": (((2, 3), [SIDE], {}), {}, lambda x: x / SIDE),
    "MAXIMUM": (((2, 3), [SIDE]), {}, lambda x: np.maximum(x, SIDE)),
    "SQUARED_DIFFERENCE": (((2, 3), [SIDE]), {}, lambda x: (x - SIDE) ** 2),
    "FLOOR_DIV": (((2, 3), [SIDE]), {}, lambda x: np.floor(x / SIDE)),
    "LOGISTIC": (((2, 3),), {}, lambda x: 1.0 / (1.0 + np.exp(-x))),
    "TANH": (((2, 3),), {}, np.tanh),
    "RELU_N1_TO_1": (((2, 3),), {}, lambda x: np.clip(x, -1.0, 1.0)),
    "HARD_SWISH": (((2, 3),), {}, lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0),
    "LEAKY_RELU": (((2, 3), [], {0: Float(0.25)}), {}, lambda x: np.where(x < 0.0, 0.25 * x, x)),
    "PRELU": (((2, 3), [SIDE[0]]), {}, lambda x: np.where(x < 0.0, SIDE[0] * x, x)),
    "SQUARE": (((2, 3),), {}, np.square),
    "GELU": (
        ((2, 3), [], {0: Truth(1)}),
        {},
        lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "SOFTMAX": (((2, 3), [], {0: Float(2.0)}), {}, lambda x: np.exp(2.0 * x) / np.exp(2.0 * x).sum(axis=-1, keepdims=True)),
    "L2_NORMALIZATION": (((2, 3), [], {}), {}, lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)),
    "PAD": (((2, 3), [np.array([[1, 0], [0, 2]], np.int32)]), {"result": (3, 5)}, lambda x: np.pad(x, ((1, 0), (0, 2)))),
    "MIRROR_PAD": (
        ((2, 3), [np.array([[0, 0], [1, 2]], np.int32)], {}),
        {"result": (2, 6)},
        lambda x: np.pad(x, ((0, 0), (1, 2)), mode="reflect"),
    ),
    "SLICE": (
        ((2, 3), [np.array([0, 1], np.int32), np.array([2, -1], np.int32)]),
        {"result": (2, 2)},
        lambda x: x[:, 1:],
    ),
    "STRIDED_SLICE": (
        ((4, 3, 2), [np.array(part, np.int32) for part in ([0, 1, 0], [0, 2, 0], [2, 1, 1])], {0: 1, 1: 5, 4: 2}),
        {"result": (2, 2)},
        lambda x: x[::2, 1, :],
    ),
    "SUM": (((2, 3), [np.array([1], np.int32)], {0: Truth(1)}), {"result": (2, 1)}, lambda x: x.sum(axis=1, keepdims=True)),
    "REDUCE_MAX": (((2, 3), [np.array([-1], np.int32)], {}), {"result": (2,)}, lambda x: x.max(axis=1)),
    "TRANSPOSE": (((2, 3, 4), [np.array([2, 0, 1], np.int32)]), {"result": (4, 2, 3)}, lambda x: x.transpose(2, 0, 1)),
    "EXPAND_DIMS": (((2, 3), [np.array(1, np.int32)]), {"result": (2, 1, 3)}, lambda x: x[:, None]),
    "GATHER": (((4, 3), [np.array([2, 0], np.int32)], {0: 0}), {"result": (2, 3)}, lambda x: x[[2, 0]]),
    "TILE": (((2, 3), [np.array([1, 2], np.int32)]), {"result": (2, 6)}, lambda x: np.tile(x, (1, 2))),
    "BATCH_MATMUL": (((2, 3), [SIDE], {0: Truth(0), 1: Truth(1)}), {"result": (2, 2)}, lambda x: x @ SIDE.T),
    "PACK": (((2, 3), [SIDE], {0: 2, 1: 1}), {"result": (2, 2, 3)}, lambda x: np.stack([x, SIDE], axis=1)),
    "CONCATENATION": (((2, 3), [SIDE], {0: -1}), {"result": (2, 6)}, lambda x: np.concatenate([x, SIDE], axis=1)),
}


@pytest.mark.parametrize("kind", CASES)
def test_an_operator_computes_what_it_means(kind: str) -> None:
    arguments, named, expected = CASES[kind]
    value = numbers(*arguments[0])
    np.testing.assert_allclose(run(sole(kind, *arguments, **named), value)[0], expected(value), atol=1e-5, rtol=1e-5)


PICTURES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Callable[[Array], Array]]] = {
    "MAX_POOL_2D": (
        ((1, 4, 4, 2), [], {0: Byte(VALID), 1: 2, 2: 2, 3: 2, 4: 2}),
        {"result": (1, 2, 2, 2)},
        lambda x: x.reshape(1, 2, 2, 2, 2, 2).max(axis=(2, 4)),
    ),
    "AVERAGE_POOL_2D": (
        ((1, 3, 3, 2), [], {0: Byte(SAME), 1: 2, 2: 2, 3: 2, 4: 2}),
        {"result": (1, 2, 2, 2)},
        lambda x: np.stack([x[:, a : a + 2, b : b + 2].mean(axis=(1, 2)) for a in (0, 2) for b in (0, 2)], 1).reshape(1, 2, 2, 2),
    ),
    "RESIZE_NEAREST_NEIGHBOR": (
        ((1, 2, 3, 2), [np.array([4, 6], np.int32)], {1: Truth(1)}),
        {"result": (1, 4, 6, 2)},
        lambda x: x.repeat(2, axis=1).repeat(2, axis=2),
    ),
    "DEPTH_TO_SPACE": (
        ((1, 2, 3, 8), [], {0: 2}),
        {"result": (1, 4, 6, 2)},
        lambda x: x.reshape(1, 2, 3, 2, 2, 2).transpose(0, 1, 3, 2, 4, 5).reshape(1, 4, 6, 2),
    ),
    "SPACE_TO_DEPTH": (
        ((1, 4, 6, 2), [], {0: 2}),
        {"result": (1, 2, 3, 8)},
        lambda x: x.reshape(1, 2, 2, 3, 2, 2).transpose(0, 1, 3, 2, 4, 5).reshape(1, 2, 3, 8),
    ),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_an_operator_with_windows_computes_what_it_means(kind: str) -> None:
    arguments, named, expected = PICTURES[kind]
    value = numbers(*arguments[0])
    np.testing.assert_allclose(run(sole(kind, *arguments, **named), nchw(value))[0], expected(value), atol=1e-5)


def test_a_transposed_convolution_undoes_the_shape_of_a_convolution() -> None:
    file = Tflite()
    weights = numbers(3, 3, 3, 2)  # [O, KH, KW, I]
    x, y = file.tensor("x", (1, 3, 4, 2)), file.tensor("y", (1, 6, 8, 3))
    shape = file.constant("shape", np.array([1, 6, 8, 3], np.int32))
    file.operator("TRANSPOSE_CONV", [shape, file.constant("w", weights), x], [y], {0: Byte(SAME), 1: 2, 2: 2})
    value = numbers(1, 3, 4, 2)
    spread = np.zeros((1, 8, 10, 3))
    for row in range(3):
        for column in range(4):
            spread[0, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3] += np.einsum(
                "i,okli->klo", value[0, row, column], weights
            )
    np.testing.assert_allclose(run(tflite_to_onnx(file.file([x], [y])), nchw(value))[0], spread[:, :6, :8], atol=1e-5)


def test_three_operators_of_old_converters_are_one_convolution_with_gaps() -> None:
    file = Tflite()
    weights = numbers(2, 3, 3, 2)
    x, batch = file.tensor("x", (1, 8, 8, 2)), file.tensor("batch", (4, 6, 6, 2))
    made, y = file.tensor("made", (4, 4, 4, 2)), file.tensor("y", (1, 8, 8, 2))
    block = file.constant("block", np.array([2, 2], np.int32))
    padding, crops = file.constant("padding", np.full((2, 2), 2, np.int32)), file.constant("crops", np.zeros((2, 2), np.int32))
    file.operator("SPACE_TO_BATCH_ND", [x, block, padding], [batch])
    file.operator("CONV_2D", [batch, file.constant("w", weights)], [made], {0: Byte(VALID), 1: 1, 2: 1})
    file.operator("BATCH_TO_SPACE_ND", [made, block, crops], [y])
    proto = tflite_to_onnx(file.file([x], [y]))
    value = numbers(1, 8, 8, 2)
    expected = convolved(value, weights, np.zeros(2), dilation=2)
    np.testing.assert_allclose(run(proto, nchw(value))[0], expected, atol=1e-5)


def quantized_network() -> tuple[bytes, Array, Array]:
    """A full-integer network (uint8 ends, weights per channel), its input, and what exact arithmetic gives."""
    file = Tflite()
    codes = RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    codes[:, 0, 0, 0] = 127  # the largest code is used, as a converter has it
    scales = np.array([0.01, 0.02, 0.005, 0.03], np.float32)
    bias = RANDOM.integers(-300, 300, 4).astype(np.int32)
    x = file.tensor("image", (1, 6, 6, 3), "uint8", scale=1.0 / 255.0, zero=0)
    inner, mapped = (
        file.tensor("inner", (1, 6, 6, 3), "int8", scale=1.0 / 255.0, zero=-128),
        file.tensor("mapped", (1, 6, 6, 4), "int8", scale=0.05, zero=-128),
    )
    y = file.tensor("result", (1, 6, 6, 4), "uint8", scale=0.05, zero=0)
    file.operator("QUANTIZE", [x], [inner])
    kernel = file.constant("w", codes, scale=scales, zero=[0] * 4)
    file.operator(
        "CONV_2D",
        [inner, kernel, file.constant("v", bias, scale=scales / 255.0, zero=[0] * 4)],
        [mapped],
        {0: Byte(SAME), 1: 1, 2: 1, 3: Byte(RELU)},
    )
    file.operator("QUANTIZE", [mapped], [y])
    value = RANDOM.integers(0, 256, (1, 6, 6, 3)).astype(np.float32) / np.float32(255.0)
    real = codes.astype(np.float64) * scales.reshape(-1, 1, 1, 1)
    expected = np.maximum(convolved(value, real, bias * (scales / 255.0)), 0.0)
    return file.file([x], [y]), value, np.clip(np.rint(expected / 0.05), 0, 255) * 0.05


def test_a_full_integer_network_is_real_numbers_with_its_scales_beside() -> None:
    data, value, expected = quantized_network()
    proto = tflite_to_onnx(data)
    assert operators(proto) == {"Conv": 1, "Relu": 1, "Transpose": 1, "Identity": 1}
    ranges = known_scales(proto).ranges
    assert ranges["image"] == pytest.approx((1.0 / 255.0, -128))
    assert ranges["mapped"] == ranges["result"] == pytest.approx((0.05, -128))
    assert np.abs(run(proto, nchw(value))[0] - expected).max() <= 0.05


def test_a_full_integer_network_compiles_with_its_own_scales_and_without_data(tmp_path: Path) -> None:
    data, value, expected = quantized_network()
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    model = anynpu.compile(path, "rk3588")
    assert model.dtype == "w8a8"
    assert model.name == "net"
    assert "own scales" in model.provenance["calibration"]
    assert model.programs[0].input_specs[0].quantization.scale == pytest.approx(1.0 / 255.0)  # type: ignore[union-attr]
    with anynpu.Device("rk3588") as device:
        (result,) = device.load(model).context().run({"image": nchw(value)})
    assert np.abs(result - expected).max() <= 0.05 * 1.001  # one step


def test_with_data_a_full_integer_network_is_quantised_anew() -> None:
    data, value, _ = quantized_network()
    model = anynpu.compile(data, "rk3588", dataset=[{"image": nchw(value)}])
    assert "1 samples" in model.provenance["calibration"]


def test_with_the_simulators_arithmetic_every_tensor_is_rounded_as_the_interpreter_does() -> None:
    """By default a convolution and its activation are one layer, which rounds once."""
    file = Tflite()
    codes, scales = RANDOM.integers(-127, 128, (4, 1, 1, 3)).astype(np.int8), np.array([0.01, 0.02, 0.005, 0.03], np.float32)
    x = file.tensor("image", (1, 16, 16, 3), "int8", scale=1.0 / 64.0, zero=0)
    made = file.tensor("made", (1, 16, 16, 4), "int8", scale=0.0613, zero=3)
    gate = file.tensor("gate", (1, 16, 16, 4), "int8", scale=1.0 / 256.0, zero=-128)
    y = file.tensor("result", (1, 16, 16, 4), "int8", scale=0.04, zero=-110)
    kernel = file.constant("w", codes, scale=scales, zero=[0] * 4)
    file.operator("CONV_2D", [x, kernel], [made], {0: Byte(VALID), 1: 1, 2: 1})
    file.operator("LOGISTIC", [made], [gate])
    file.operator("MUL", [made, gate], [y])
    data = file.file([x], [y])
    value = RANDOM.integers(-128, 128, (1, 16, 16, 3)).astype(np.float32) / 64.0

    def rounded(numbers: Array, scale: float, zero: int) -> Array:
        return np.asarray((np.clip(np.rint(numbers / scale) + zero, -128, 127) - zero) * scale)

    inner = rounded(value.astype(np.float64) @ (codes.reshape(4, 3) * scales[:, None].astype(np.float64)).T, 0.0613, 3)
    expected = rounded(inner * rounded(1.0 / (1.0 + np.exp(-inner)), 1.0 / 256.0, -128), 0.04, -110)
    equal, furthest = {}, {}
    for arithmetic, kinds in (("simulator", ["Conv", "Sigmoid", "Mul"]), ("chip", ["ConvSwish"])):
        model = anynpu.compile(data, "rk3588", arithmetic=arithmetic)
        layers = [layer.kind for layer in model.programs[0].layers]
        assert [kind for kind in layers if kind != "Transpose"] == kinds
        with anynpu.Device("rk3588") as device:
            (result,) = device.load(model).context().run({"image": nchw(value)})
        steps = np.abs(result - expected) / 0.04
        equal[arithmetic], furthest[arithmetic] = float(np.mean(steps < 0.5)), float(steps.max())
    assert furthest["simulator"] < 1.5
    assert equal["simulator"] > 0.995 > equal["chip"]


def test_scales_that_are_missing_are_asked_for() -> None:
    """A network that is float but for its end has no scale for what comes before."""
    file = Tflite()
    x, made = file.tensor("x", (1, 4, 4, 3)), file.tensor("made", (1, 4, 4, 2))
    y = file.tensor("y", (1, 4, 4, 2), "int8", scale=1.0 / 256.0, zero=-128)
    file.operator("CONV_2D", [x, file.constant("w", numbers(2, 1, 1, 3))], [made], {0: Byte(VALID), 1: 1, 2: 1})
    file.operator("QUANTIZE", [made], [y])
    data = file.file([x], [y])
    with pytest.raises(CalibrationError, match="not for this tensor"):
        anynpu.compile(data, "rk3588")
    value = 10.0 * numbers(1, 4, 4, 3)
    result = run(tflite_to_onnx(data), nchw(value))[0]
    assert result.min() == 0.0, "codes cut off what is beyond them"
    assert result.max() == pytest.approx(255.0 / 256.0)


def test_float16_weights_run_on_the_software_npu() -> None:
    file = Tflite()
    weights = numbers(4, 1, 1, 3).astype(np.float16)
    x, y = file.tensor("x", (1, 4, 4, 3)), file.tensor("y", (1, 4, 4, 4))
    wide = file.tensor("wide", (4, 1, 1, 3))
    file.operator("DEQUANTIZE", [file.constant("w", weights)], [wide])
    file.operator("CONV_2D", [x, wide], [y], {0: Byte(VALID), 1: 1, 2: 1})
    model = anynpu.compile(file.file([x], [y]), "rk3588", dtype="fp16")
    value = numbers(1, 4, 4, 3)
    with anynpu.Device("rk3588") as device:
        (result,) = device.load(model).context().run({"x": nchw(value)})
    np.testing.assert_allclose(result, convolved(value, weights.astype(np.float32), np.zeros(4)), atol=2e-2)


def test_check_reads_tflite_too() -> None:
    data, _, _ = quantized_network()
    assert anynpu.check(data, "rk3588").macs == 6 * 6 * 4 * 27


def test_four_bits_are_unpacked() -> None:
    file = Tflite()
    x, y = file.tensor("x", (1, 3)), file.tensor("y", (1, 2))
    packed = np.array([0x21, 0xF3, 0x8E], np.uint8)  # 1 2 3 -1 -2 -8
    matrix = file.tensor("m", (2, 3), "int4", packed, scale=0.5)
    file.operator("FULLY_CONNECTED", [x, matrix], [y], {0: Byte(0)})
    value = numbers(1, 3)
    expected = value @ (0.5 * np.array([[1, 2, 3], [-1, -2, -8]])).T
    np.testing.assert_allclose(run(tflite_to_onnx(file.file([x], [y])), value)[0], expected, atol=1e-5)


def test_a_tail_that_finishes_detections_is_cut_off_and_said(caplog: pytest.LogCaptureFixture) -> None:
    file = Tflite()
    x, boxes = file.tensor("x", (1, 4)), file.tensor("boxes", (1, 4))
    result = file.tensor("detections", (1, 10, 4))
    file.operator("LOGISTIC", [x], [boxes])
    file.operator("TFLite_Detection_PostProcess", [boxes, file.constant("anchors", numbers(1, 4))], [result])
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        proto = tflite_to_onnx(file.file([x], [result]))
    assert [entry.name for entry in proto.graph.output] == ["boxes"]
    assert "TFLite_Detection_PostProcess runs on no NPU" in caplog.text


def test_an_operator_that_is_not_known_is_named() -> None:
    with pytest.raises(UnsupportedOperatorError, match="SVDF") as caught:
        sole("SVDF", (2, 3))
    assert "tf2onnx.convert --tflite" in caught.value.hint


def test_names_that_come_twice_are_told_apart() -> None:
    file = Tflite()
    x, first, second = (file.tensor("same", (2, 3)) for _ in range(3))
    file.operator("TANH", [x], [first])
    file.operator("ABS", [first], [second])
    value = numbers(2, 3)
    np.testing.assert_allclose(run(tflite_to_onnx(file.file([x], [second])), value)[0], np.abs(np.tanh(value)), atol=1e-6)


def test_damaged_files_end_in_one_error() -> None:
    data, _, _ = quantized_network()
    random = np.random.default_rng(3)
    for _ in range(300):
        broken = bytearray(data)
        for place in random.integers(0, len(data), 3):
            broken[place] = random.integers(0, 256)
        cut = bytes(broken[: random.integers(0, len(data))]) if random.random() < 0.5 else bytes(broken)
        try:
            tflite_to_onnx(cut)
        except AnynpuError:
            continue


def test_a_file_with_the_wrong_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tflite"
    path.write_bytes(b"nothing")
    with pytest.raises(CompileError, match="is not a TFLite model"):
        anynpu.compile(path, "rk3588", dtype="fp16")
