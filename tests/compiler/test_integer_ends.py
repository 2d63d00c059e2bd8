"""An int8 model is int8 at its ends: reductions and spatial constants in integers, requantization after float layers."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import onnx
import pytest

import anynpu
from anynpu.program import Placement, Program
from anynpu.tensor import DType

from . import detectors
from .onnx_builders import Net, feeds
from .running import Run, assert_close_in_steps, execute

CHIPS = ("rk3588", "rv1106")


def ends(program: Program) -> set[DType]:
    return {spec.dtype for spec in (*program.input_specs, *program.output_specs)}


def assert_all_integer(run: Run) -> None:
    assert ends(run.program) == {DType.INT8}
    assert not run.float_layers, run.kinds


@pytest.mark.parametrize("target", CHIPS)
@pytest.mark.parametrize("network", [detectors.yolov8, detectors.yolox])
def test_a_detector_is_int8_from_end_to_end(network: Callable[[], onnx.ModelProto], target: str) -> None:
    run = execute(network(), target, accuracy="fast", without=["mixed"])
    assert_all_integer(run)
    assert_close_in_steps(run, 4)


@pytest.mark.parametrize("target", CHIPS)
def test_boxes_of_the_int8_detector_are_those_of_float16_as_far_as_int8_allows(target: str) -> None:
    proto = detectors.yolox()
    samples = feeds(proto, 3)
    whole = execute(proto, target, samples=samples, accuracy="fast", without=["mixed"])
    expected = np.stack([entry[0] for entry in whole.expected])
    given = np.stack([entry[0] for entry in whole.results])
    if target == "rk3588":
        half = execute(proto, target, samples=samples, dtype="fp16")
        expected = np.stack([entry[0] for entry in half.results])
    scale = whole.program.output_specs[0].quantization.scale  # type: ignore[union-attr]
    assert np.abs(given[..., :4] - expected[..., :4]).max() < 4 * scale
    assert np.abs(given[..., :4] - expected[..., :4]).mean() < scale


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(("axes", "keepdims"), [([1], 1), ([1], 0), ([3], 0), ([2, 3], 1), ([1, 3], 1), ([1, 2, 3], 0)])
def test_reductions_of_images_are_integer(kind: str, axes: list[int], keepdims: int) -> None:
    net = Net(opset=13)
    x = net.conv(net.input("x", (1, 3, 6, 5)), 4, pads=[1, 1, 1, 1])
    reduced = (
        net.op(kind, x, net.constant(axes), keepdims=keepdims)
        if kind == "ReduceSum"
        else net.op(kind, x, axes=axes, keepdims=keepdims)
    )
    net.output(reduced)
    run = execute(net.proto(), accuracy="fast")
    assert_all_integer(run)
    # a sum of n quantized values has the error of n of them
    assert_close_in_steps(run, 6)


@pytest.mark.parametrize(("shape", "axes"), [((4, 6), [1]), ((2, 3, 5), [2]), ((2, 3, 5), [1]), ((1, 2, 3, 4, 5), [2, 4])])
@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceMax"])
def test_reductions_of_other_ranks_are_integer(kind: str, shape: tuple[int, ...], axes: list[int]) -> None:
    net = Net()
    x = net.op("Tanh", net.input("x", shape))
    net.output(net.op(kind, x, axes=axes, keepdims=1))
    run = execute(net.proto(), accuracy="fast")
    assert_all_integer(run)
    assert_close_in_steps(run, 3)


@pytest.mark.parametrize("opset", [13, 18])
def test_axes_that_are_an_input_and_axes_that_are_not_given(opset: int) -> None:
    net = Net(opset=opset)
    x = net.conv(net.input("x", (1, 3, 4, 4)), 4, pads=[1, 1, 1, 1])
    net.output(net.op("ReduceSum", x, net.constant([1])), net.op("ReduceSum", x, keepdims=0))
    run = execute(net.proto(), accuracy="fast")
    assert_all_integer(run)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(
    ("shape", "swapped"),
    [((1, 4, 6, 5), False), ((1, 4, 6, 5), True), ((1, 1, 6, 5), False), ((1, 4, 6, 1), True), ((5,), False)],
)
def test_full_constants_are_integer(kind: str, shape: tuple[int, ...], swapped: bool) -> None:
    if kind == "Div" and swapped:
        pytest.skip("a constant divided by a tensor is no arithmetic of this kind")
    net = Net()
    x = net.conv(net.input("x", (2, 3, 6, 5)), 4, pads=[1, 1, 1, 1])
    value = net.constant(net.random.uniform(0.5, 2.0, shape).astype(np.float32))
    net.output(net.op(kind, *((value, x) if swapped else (x, value))))
    run = execute(net.proto(), accuracy="fast")
    assert_all_integer(run)
    assert_close_in_steps(run, 3)


@pytest.mark.parametrize("arithmetic", ["chip", "simulator"])
def test_a_grid_and_a_stride_are_one_layer_with_one_rounding(arithmetic: str) -> None:
    net = Net()
    x = net.op("Sigmoid", net.conv(net.input("x", (1, 3, 8, 8)), 2, pads=[1, 1, 1, 1]))
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8)))[None].astype(np.float32)
    moved = net.op("Add", net.op("Sub", net.op("Mul", x, net.constant(2.0)), net.constant(0.5)), net.constant(grid))
    net.output(net.op("Mul", moved, net.constant(8.0)))
    run = execute(net.proto(), accuracy="fast", arithmetic=arithmetic)
    assert_all_integer(run)
    assert run.operators.count("Conv") == 2
    assert_close_in_steps(run, 1.5)


def test_a_normalisation_stays_float() -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 3, 4, 4)), 4, pads=[1, 1, 1, 1])
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes=[1], keepdims=1))
    variance = net.op("ReduceMean", net.op("Mul", centred, centred), axes=[1], keepdims=1)
    normal = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.constant(1e-5))))
    net.output(net.conv(net.op("Mul", normal, net.weights(1, 4, 1, 1)), 2, 1, cin=4))
    run = execute(net.proto(), accuracy="fast")
    assert {layer.operator for layer in run.float_layers} >= {"ReduceMean", "Sub", "Div"}
    assert ends(run.program) == {DType.INT8}


def softmax_net() -> onnx.ModelProto:
    net = Net()
    x = net.conv(net.input("x", (1, 3, 4, 4)), 4, 4)
    net.output(net.op("Softmax", net.op("Reshape", x, net.constant([1, 4])), axis=1))
    return net.proto()


@pytest.mark.parametrize("target", CHIPS)
def test_float_layers_at_the_end_are_requantised(target: str) -> None:
    run = execute(softmax_net(), target, accuracy="fast")
    assert ends(run.program) == {DType.INT8}
    assert run.float_layers
    assert run.kinds[-1] == "Quantize"
    assert_close_in_steps(run, 4)


def test_outputs_stay_float_where_that_is_asked_for_and_compile_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        run = execute(softmax_net(), accuracy="fast", keep_float_outputs=True)
    assert run.program.output_specs[0].dtype is DType.FLOAT16
    assert run.program.input_specs[0].dtype is DType.INT8
    name = run.program.outputs[0]
    assert f"output '{name}' is float16, not int8" in caplog.text
    assert name in run.model.provenance["float_ends"]


def test_nothing_is_said_about_a_model_that_is_int8_or_float16(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        execute(softmax_net(), accuracy="fast")
        execute(softmax_net(), dtype="fp16")
    assert not caplog.records


def test_an_output_that_is_named_as_hybrid_stays_float() -> None:
    proto = softmax_net()
    run = execute(proto, accuracy="fast", hybrid=[proto.graph.output[0].name])
    assert run.program.output_specs[0].dtype is DType.FLOAT16


def test_an_input_that_only_float_layers_read_is_int8() -> None:
    net = Net()
    x = net.op("Softmax", net.input("x", (1, 4, 3, 3)), axis=1)
    net.output(net.conv(x, 2, 1, cin=4))
    run = execute(net.proto(), accuracy="fast")
    assert ends(run.program) == {DType.INT8}
    assert_close_in_steps(run, 4)


def test_a_float_output_that_others_read_too() -> None:
    net = Net()
    x = net.conv(net.input("x", (1, 3, 4, 4)), 4, pads=[1, 1, 1, 1])
    soft = net.op("Softmax", x, axis=1)
    net.output(soft, net.conv(soft, 2, 1, cin=4), net.op("Softmax", net.op("Mul", soft, soft), axis=3))
    run = execute(net.proto(), accuracy="fast")
    assert ends(run.program) == {DType.INT8}
    assert_close_in_steps(run, 4)


@pytest.mark.parametrize("accuracy", ["default", "best"])
def test_recipes_judge_the_rounded_output(accuracy: str) -> None:
    run = execute(softmax_net(), accuracy=accuracy, count=9)
    assert ends(run.program) == {DType.INT8}


def test_int16_models_are_int16_at_their_ends() -> None:
    run = execute(softmax_net(), "rv1106", accuracy="fast", dtype="w16a16")
    assert ends(run.program) == {DType.INT16}


def test_an_allwinner_model_may_end_in_float_as_the_vendor_has_it() -> None:
    run = execute(softmax_net(), "t527", accuracy="fast")
    assert run.program.output_specs[0].dtype is DType.FLOAT16


def test_bgr_on_a_network_that_begins_with_slices_keeps_its_int8_input() -> None:
    proto = detectors.yolox()
    samples = feeds(proto, 2)
    turned = [{"images": np.ascontiguousarray(sample["images"][:, ::-1])} for sample in samples]
    plain = execute(proto, samples=samples, accuracy="fast", without=["mixed"])
    options = {"algorithm": "minmax", "accuracy": "fast", "without": ["mixed"]}
    swapped = anynpu.compile(proto, dataset=turned, channel_order="bgr", **options)
    assert ends(swapped.programs[0]) == {DType.INT8}
    assert len(swapped.programs[0].layers) == len(plain.program.layers), "the order goes into the weights"
    # calibration sums the channels in another order: on some processors a scale differs in its last bit, and with it a code at a tie
    step = plain.program.output_specs[0].quantization.scale  # type: ignore[union-attr]
    with anynpu.Device("rk3588") as device, device.load(swapped).context() as context:
        for sample, expected in zip(turned, plain.results, strict=True):
            apart = np.abs(context.run(sample)[0] - expected[0])
            assert apart.max() < 1.01 * step
            assert apart.mean() < 0.01 * step


def test_bgr_on_a_network_that_mixes_channels_at_once_keeps_its_int8_input() -> None:
    net = Net()
    x = net.input("x", (1, 3, 4, 4))
    net.output(net.conv(net.op("Softmax", net.op("Transpose", x, perm=[0, 1, 3, 2]), axis=1), 4, cin=3))
    proto = net.proto()
    samples = feeds(proto, 2)
    model = anynpu.compile(proto, dataset=samples, algorithm="minmax", accuracy="fast", channel_order="bgr")
    assert ends(model.programs[0]) == {DType.INT8}
    expected = execute(proto, samples=samples, accuracy="fast")
    with anynpu.Device("rk3588") as device, device.load(model).context() as context:
        for sample, wanted in zip(samples, expected.results, strict=True):
            turned = {"x": np.ascontiguousarray(sample["x"][:, ::-1])}
            np.testing.assert_allclose(context.run(turned)[0], wanted[0], atol=0.05)


def test_a_focus_of_slices_loses_nothing() -> None:
    run = execute(detectors.yolox(), accuracy="fast")
    program = run.program
    concat = next(layer for layer in program.layers if layer.kind == "Concat")
    assert program.tensors[concat.outputs[0]].quantization == program.input_specs[0].quantization


def test_channel_sums_run_on_the_npu() -> None:
    run = execute(detectors.yolov8(), accuracy="fast")
    assert all(layer.placement is Placement.NPU for layer in run.program.layers)


@pytest.mark.parametrize(("sides", "warns"), [((4, 8), True), ((8, 4), False)])
def test_a_larger_shape_that_comes_later_is_warned_of(
    sides: tuple[int, int], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, "h", "w")), 2, 1))
    shapes = [{"x": (1, 3, side, side)} for side in sides]
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16", shapes=shapes)
    assert ("not the largest" in caplog.text) is warns


@pytest.mark.parametrize("first", ["Add", "Mul"])
def test_a_stride_by_row_joins_the_grid_in_one_rounding(first: str) -> None:
    net = Net()
    x = net.op("Sigmoid", net.input("x", (1, 64, 2)))
    constants = {
        "Add": net.constant(np.arange(128, dtype=np.float32).reshape(1, 64, 2) / 2),
        "Mul": net.constant(np.repeat([8.0, 16.0, 32.0, 8.0], 16).astype(np.float32).reshape(1, 64, 1)),
    }
    for kind in ("Add", "Mul") if first == "Add" else ("Mul", "Add"):
        x = net.op(kind, x, constants[kind])
    net.output(x)
    run = execute(net.proto(), accuracy="fast")
    assert_all_integer(run)
    assert run.operators.count("Conv") == 1
    assert_close_in_steps(run, 1)
