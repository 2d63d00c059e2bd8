"""Networks as people have them, each reduced to the few nodes that once went wrong: silent faults, crashes, needless rejections."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import modelfile
from anynpu._util import optional as _optional
from anynpu.compiler.importers.control_flow import MAX_ROUNDS
from anynpu.compiler.quantize import calibrate
from anynpu.compiler.quantize.metrics import cosine
from anynpu.errors import CalibrationError, CompileError, ShapeError, TensorNameError, UnsupportedOperatorError
from anynpu.program import Float
from anynpu.tensor import DType

from .onnx_builders import Net
from .running import assert_close_in_steps, assert_close_relative, execute, run_fp32, run_model

BOTH = pytest.mark.parametrize("dtype", ["fp16", "w8a8"])


def small_network(dtype: Any) -> onnx.ModelProto:
    """Convolution, activation, convolution and a sum, all of it in one type."""
    random = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = [
        numpy_helper.from_array((random.normal(size=shape) / 3).astype(dtype), name)
        for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)), ("v", (4, 4, 1, 1)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, kind, (1, channels, 6, 6)) for name, channels in (("x", 3), ("y", 4)))
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_real_numbers_of_other_widths_become_integers_too(kind: str) -> None:
    """A float16 model asked for int8 was a "w8a8" file without a single integer layer."""
    dtype = np.dtype(kind)
    samples = [{"x": np.random.default_rng(seed).normal(size=(1, 3, 6, 6)).astype(dtype)} for seed in range(3)]
    narrow = [{"x": sample["x"].astype(np.float32)} for sample in samples]
    float32 = execute(small_network(np.float32), samples=narrow)
    assert not float32.float_layers
    for name, tolerance in (("w8a8", 0.05), ("fp16", 0.01)):
        model = anynpu.compile(small_network(dtype), "rk3588", dtype=name, dataset=samples, algorithm="minmax")
        if name == "w8a8":
            assert [layer.kind for layer in model.programs[0].layers] == float32.kinds
        for (given,), (wanted,) in zip(run_model(model, samples), float32.expected, strict=True):
            assert np.abs(given - wanted).max() < tolerance * np.abs(wanted).max()


def test_bfloat16_is_read_as_well() -> None:
    """onnxruntime computes nothing in it, so the expected values are those of the same network in float32."""
    proto = small_network(np.float32)
    for tensor in proto.graph.initializer:
        bits = numpy_helper.to_array(tensor).view(np.uint32) & 0xFFFF0000
        rounded = bits.view(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    half = onnx.ModelProto()
    half.CopyFrom(proto)
    for tensor, source in zip(half.graph.initializer, proto.graph.initializer, strict=True):
        value = numpy_helper.to_array(source)
        raw = (value.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        tensor.CopyFrom(helper.make_tensor(source.name, TensorProto.BFLOAT16, value.shape, raw, raw=True))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    sample = {"x": np.random.default_rng(1).normal(size=(1, 3, 6, 6)).astype(np.float32)}
    model = anynpu.compile(half, "rk3588", dataset=[sample], algorithm="minmax")
    assert [layer.kind for layer in model.programs[0].layers] == execute(proto).kinds
    ((given,),), ((wanted,),) = run_model(model, [sample]), run_fp32(proto, [sample])
    assert np.abs(given - wanted).max() < 0.05 * np.abs(wanted).max()


def attention(far: float, *, computed: bool = False, shown: bool = False) -> onnx.ModelProto:
    """Scores of two projections, an additive mask that is an input, softmax, and values; the masked scores may be *shown*, too."""
    net = Net()
    x, mask = net.input("x", (1, 6, 8)), net.input("mask", (1, 1, 6))
    query, key, value = (net.op("MatMul", x, net.weights(8, 8, scale=0.5)) for _ in range(3))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
    added = net.op("Mul", net.op("Sub", net.constant(1.0), mask), net.constant(far)) if computed else mask
    masked = net.op("Add", scores, added)
    net.output(net.op("MatMul", net.op("Softmax", masked, axis=-1), value))
    if shown:
        net.output(masked)
    return net.proto()


def masked_samples(far: float, count: int, *, computed: bool = False) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    samples = []
    for index in range(count):
        seen = np.arange(6) < 3 + index % 3
        mask = (seen if computed else np.where(seen, 0.0, far)).astype(np.float32)
        samples.append({"x": random.normal(size=(1, 6, 8)).astype(np.float32), "mask": mask.reshape(1, 1, 6)})
    return samples


@pytest.mark.parametrize(("far", "computed"), [(-1e4, False), (-1e9, False), (-np.inf, False), (-1e4, True), (-1e9, True)])
def test_additive_masks_leave_int8_alone(far: float, computed: bool) -> None:
    """With one scale for scores and mask the scores were gone: cosine 0.08 to 0.69."""
    run = execute(attention(far, computed=computed), samples=masked_samples(far, 4, computed=computed))
    given, wanted = (np.concatenate([entry[0].ravel() for entry in side]) for side in (run.results, run.expected))
    cosine = float(given @ wanted / np.linalg.norm(given) / np.linalg.norm(wanted))
    assert cosine > 0.99, run.kinds
    assert any(name.startswith(("Conv", "Dense")) or "MatMul" in name for name in run.operators), run.operators


def test_infinity_that_goes_out_is_real_and_the_rest_has_codes() -> None:
    """With enough samples for the search of a quantization config, which compares outputs."""
    samples = masked_samples(-np.inf, 9)
    model = anynpu.compile(attention(-np.inf, shown=True), "rk3588", dataset=samples)
    program = model.programs[0]
    types = [program.tensors[name].dtype for name in (*program.inputs, *program.outputs)]
    assert types == [DType.INT8, DType.FLOAT16, DType.INT8, DType.FLOAT16]
    given, wanted = run_model(model, samples), run_fp32(attention(-np.inf, shown=True), samples)
    for ours, theirs in zip(given, wanted, strict=True):
        assert (np.isfinite(ours[1]) == np.isfinite(theirs[1])).all()
        assert np.abs(ours[0] - theirs[0]).max() < 0.1 * np.ptp(theirs[0])


def test_only_masks_may_be_infinite() -> None:
    samples = masked_samples(-np.inf, 3)
    samples[1]["mask"][0, 0, 2] = np.nan
    with pytest.raises(CalibrationError, match="sample 1 holds NaN") as caught:
        anynpu.compile(attention(-np.inf), "rk3588", dataset=samples)
    assert caught.value.tensor == "mask"
    samples = masked_samples(-np.inf, 3)
    samples[2]["x"][0, 1, 2] = np.inf
    with pytest.raises(CalibrationError, match="sample 2 holds NaN, infinity") as caught:
        anynpu.compile(attention(-np.inf), "rk3588", dataset=samples)
    assert caught.value.tensor == "x"


def test_weights_beyond_float16_are_told(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    net.output(net.op("MatMul", net.input("x", (1, 16)), net.constant(np.full((16, 16), 1e5, np.float32))))
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert "reaches 100000, and float16 ends at 65504" in caplog.text


def test_far_values_that_are_added_end_at_the_limit_of_float16(caplog: pytest.LogCaptureFixture) -> None:
    """A whole row of minus infinity would make softmax NaN."""
    net = Net()
    mask = np.where(np.arange(80).reshape(8, 10) >= 10, -1e9, 0).astype(np.float32)
    net.output(net.op("Softmax", net.op("Add", net.input("x", (1, 8, 10)), net.constant(mask)), axis=-1))
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        run = execute(net.proto(), dtype="fp16")
    assert not caplog.text
    assert all(np.isfinite(result).all() for (result,) in run.results)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_calibration_data_of_one_number_is_told(value: float, caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    x = net.input("camera", (1, 3, 6, 6))
    net.output(net.op("Relu", net.conv(x, 4, cin=3)))
    sample = {"camera": np.full((1, 3, 6, 6), value, np.float32)}
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        anynpu.compile(net.proto(), "rk3588", dataset=[sample, sample])
    assert f"the calibration data of input 'camera' is {value:g} everywhere" in caplog.text


def test_data_that_leaves_most_tensors_constant_is_told(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    last = net.op("Relu", net.op("Conv", net.input("x", (1, 3, 6, 6)), net.weights(4, 3, 1, 1), net.constant([-100.0] * 4)))
    for _ in range(3):
        last = net.op("Relu", net.op("Conv", last, net.weights(4, 4, 1, 1)))
    net.output(last)
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        execute(net.proto())
    assert "tensors are constant over the calibration data" in caplog.text
    assert "look at the data of the input 'x'" in caplog.text


def test_training_mode_is_refused() -> None:
    net = Net(opset=15)
    x = net.input("x", (1, 4, 6, 6))
    ones = [net.constant(np.ones(4, np.float32)) for _ in range(4)]
    net.output(net.ops("BatchNormalization", x, *ones, count=3, training_mode=1)[0])
    with pytest.raises(UnsupportedOperatorError, match="BatchNormalization is in training mode") as caught:
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert "model.eval()" in caught.value.hint
    net = Net()
    net.output(net.op("Dropout", net.input("x", (1, 4)), net.constant(0.5), net.constant(np.array(True))))
    with pytest.raises(UnsupportedOperatorError, match="Dropout is in training mode"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")


def test_two_convolutions_that_are_added_can_be_calibrated() -> None:
    """An optimizer of onnxruntime fuses the sum into one of them and loses the other's result, which calibration watches."""
    net = Net()
    x = net.input("x", (1, 4, 6, 6))
    grouped = net.op("Conv", x, net.weights(4, 2, 3, 3), net.weights(4), group=2, pads=[1, 1, 1, 1])
    net.output(net.op("Add", grouped, net.op("Conv", x, net.weights(4, 4, 1, 1))))
    assert_close_in_steps(execute(net.proto()), 4)


def test_a_failure_of_onnxruntime_while_calibrating_has_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _optional.onnxruntime()

    class Broken:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            raise RuntimeError("This is an invalid model")

    monkeypatch.setattr(runtime, "InferenceSession", Broken)
    with pytest.raises(CalibrationError, match="onnxruntime cannot run the model for calibration") as caught:
        calibrate._session(runtime, b"", runtime.SessionOptions())
    assert "fp16" in caught.value.hint


def test_a_failure_in_the_middle_of_a_run_is_typed() -> None:
    """Also where a quantization config is evaluated on data that calibration has not seen."""

    class Broken:
        def run(self, *arguments: Any) -> None:
            raise RuntimeError("Non-zero status code returned while running Max node")

    with pytest.raises(CalibrationError, match="the float model failed in onnxruntime: Non-zero status code"):
        calibrate._FloatSession(Broken()).run(["y"], {})


@BOTH
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_of_which_only_the_last_state_is_read(kind: str, gates: int, dtype: str) -> None:
    net = Net(opset=14)
    x = net.input("x", (5, 1, 3))
    weights = [net.weights(1, gates * 4, size, scale=0.3) for size in (3, 4)]
    net.nodes.append(helper.make_node(kind, [x, *weights], ["", "last"], hidden_size=4))
    net.output("last")
    assert_close_relative(execute(net.proto(), dtype=dtype), 2e-2)


@BOTH
@pytest.mark.parametrize("kind", ["Sum", "Max", "Min"])
def test_a_sum_of_one(kind: str, dtype: str) -> None:
    net = Net()
    net.output(net.op(kind, net.input("x", (1, 4))))
    assert_close_relative(execute(net.proto(), dtype=dtype))


@BOTH
def test_transposed_convolutions_beyond_their_natural_size(dtype: str) -> None:
    net = Net()
    x = net.input("x", (1, 2, 3, 3))
    y = net.op("ConvTranspose", x, net.weights(2, 3, 3, 3), strides=[3, 2], output_shape=[10, 8])
    net.output(y)
    assert_close_in_steps(execute(net.proto(), dtype=dtype), 3)


def reshaped() -> onnx.ModelProto:
    net = Net()
    x, shape = net.input("x", (1, 12)), net.input("shape", (2,), np.int64)
    net.output(net.op("Relu", net.op("Reshape", x, shape)))
    return net.proto()


def test_a_shape_that_is_an_input_is_refused_with_a_way_out() -> None:
    with pytest.raises(CompileError, match="is an input of the model, and the chip needs it at compile time") as caught:
        anynpu.compile(reshaped(), "rk3588", dtype="fp16")
    assert caught.value.tensor == "shape"
    assert "--constant shape=1,1" in caught.value.hint
    model = anynpu.compile(reshaped(), "rk3588", dtype="fp16", constants={"shape": [3, 4]})
    assert [spec.name for spec in model.inputs] == ["x"]
    assert model.outputs[0].shape == (3, 4)


def test_constants_that_do_not_fit() -> None:
    with pytest.raises(TensorNameError, match="no input 'size'"):
        anynpu.compile(reshaped(), "rk3588", dtype="fp16", constants={"size": [3, 4]})
    with pytest.raises(ShapeError, match=r"takes \[2\], the constant has \[3\]"):
        anynpu.compile(reshaped(), "rk3588", dtype="fp16", constants={"shape": [3, 2, 2]})


def branches(condition: str, net: Net, x: str) -> str:
    """An If that doubles or negates."""
    outputs = [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)]
    double = helper.make_graph([helper.make_node("Add", [x, x], ["r"])], "then", [], outputs)
    negate = helper.make_graph([helper.make_node("Neg", [x], ["r"])], "else", [], outputs)
    return net.op("If", condition, then_branch=double, else_branch=negate)


@BOTH
def test_an_if_whose_condition_follows_from_shapes(dtype: str) -> None:
    net = Net()
    x = net.input("x", (1, 4, 6))
    extent = net.op("Gather", net.op("Shape", x), net.constant(np.array(2)))
    first = branches(net.op("Equal", extent, net.constant(np.array(6))), net, x)
    net.output(branches(net.op("Equal", extent, net.constant(np.array(5))), net, first))
    run = execute(net.proto(), dtype=dtype)
    assert_close_relative(run)


def test_an_if_on_data_is_refused() -> None:
    net = Net()
    x = net.input("x", (1, 100))
    net.output(branches(net.op("Greater", net.op("ReduceSum", x, keepdims=0), net.constant(0.0)), net, x))
    with pytest.raises(UnsupportedOperatorError, match="its course depends on the data"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")


def test_an_if_on_an_input_takes_a_constant() -> None:
    net = Net()
    x, flag = net.input("x", (1, 4)), net.input("flag", (), np.bool_)
    net.output(branches(flag, net, x))
    with pytest.raises(CompileError, match="depends on an input of the model") as caught:
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert caught.value.tensor == "flag"
    model = anynpu.compile(net.proto(), "rk3588", dtype="fp16", constants={"flag": [1]})
    ((result,),) = run_model(model, [{"x": np.ones((1, 4), np.float32)}])
    np.testing.assert_array_equal(result, np.full((1, 4), 2))


def loop(rounds: int) -> onnx.ModelProto:
    """A running sum, with what it was after each round."""
    net = Net()
    x = net.input("x", (1, 4))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Add", ["state", x], ["next"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1, 4]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, [1, 4]),
        ],
    )
    count, going = net.constant(np.array(rounds)), net.constant(np.array(True))
    last, all_of_them = net.ops("Loop", count, going, x, count=2, body=body)
    net.output(last)
    net.output(all_of_them)
    return net.proto()


@BOTH
def test_a_loop_with_a_fixed_number_of_rounds_is_written_out(dtype: str) -> None:
    run = execute(loop(3), dtype=dtype)
    assert run.results[0][1].shape == (3, 1, 4)
    assert_close_in_steps(run, 4)


def test_a_loop_that_is_too_long_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=f"longer than {MAX_ROUNDS} rounds"):
        anynpu.compile(loop(MAX_ROUNDS + 1), "rk3588", dtype="fp16")


def test_a_loop_that_does_not_fit_its_body_is_refused() -> None:
    proto = loop(3)
    body = next(entry for node in proto.graph.node if node.op_type == "Loop" for entry in node.attribute).g
    del body.input[1:]
    with pytest.raises(CompileError):
        anynpu.compile(proto, "rk3588", dtype="fp16")


def test_constants_that_are_no_numbers() -> None:
    with pytest.raises(CompileError, match="is not made of numbers"):
        anynpu.compile(reshaped(), "rk3588", dtype="fp16", constants={"shape": ["three", "four"]})


def test_a_scan_is_written_out() -> None:
    net = Net()
    x = net.input("x", (5, 4))
    body = helper.make_graph(
        [helper.make_node("Add", ["state", "row"], ["next"]), helper.make_node("Neg", ["next"], ["turned"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("state", "row")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("next", "turned")],
    )
    start = net.constant(np.zeros(4, np.float32))
    for name in net.ops("Scan", start, x, count=2, body=body, num_scan_inputs=1, scan_input_directions=[1], scan_output_axes=[1]):
        net.output(name)
    assert_close_relative(execute(net.proto(), dtype="fp16"))


@BOTH
def test_outputs_that_are_constant_and_inputs_that_only_give_shapes(dtype: str) -> None:
    net = Net()
    x, like = net.input("x", (1, 12)), net.input("like", (1, 3, 4))
    net.output(net.op("Reshape", net.op("Relu", x), net.op("Shape", like)))
    net.output(net.op("Mul", net.constant([1.0, 2.0]), net.constant(2.0)))
    run = execute(net.proto(), dtype=dtype)
    assert [spec.name for spec in run.model.inputs] == ["x", "like"]
    assert_close_in_steps(run, 2)


@BOTH
def test_empty_parts_of_a_concat(dtype: str) -> None:
    """What torch.roll by 0 and rotary embeddings of the whole width export."""
    net = Net()
    x = net.input("x", (1, 4, 6))
    empty = net.op("Slice", x, net.constant([6]), net.constant([6]), net.constant([2]))
    whole, nothing = net.ops("Split", x, net.constant([6, 0]), count=2, axis=2)
    net.output(net.op("Relu", net.op("Concat", empty, whole, nothing, axis=2)))
    assert_close_in_steps(execute(net.proto(), dtype=dtype), 2)


@BOTH
def test_functions_of_the_model_are_put_in_place(dtype: str) -> None:
    net = Net()
    x = net.input("x", (1, 4))
    net.opsets["mine"] = 1
    net.output(net.op("Twice", net.op("Twice", x, domain="mine"), domain="mine"))
    proto = net.proto()
    body = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    proto.functions.append(body)
    assert_close_in_steps(execute(proto, dtype=dtype), 2)


@BOTH
def test_group_normalization_of_operator_set_18(dtype: str) -> None:
    net = Net(opset=18)
    x = net.input("x", (1, 4, 3, 3))
    net.output(net.op("GroupNormalization", x, net.weights(2), net.weights(2), num_groups=2))
    sample = {"x": np.random.default_rng(0).normal(size=(1, 4, 3, 3)).astype(np.float32)}
    model = anynpu.compile(net.proto(), "rk3588", dtype=dtype, dataset=[sample], algorithm="minmax")
    scale, bias = (numpy_helper.to_array(tensor) for tensor in net.proto().graph.initializer)
    groups = sample["x"].reshape(1, 2, -1)
    centred = groups - groups.mean(2, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(2, keepdims=True) + 1e-5)
    wanted = (normal * scale.reshape(1, 2, 1) + bias.reshape(1, 2, 1)).reshape(1, 4, 3, 3)
    ((given,),) = run_model(model, [sample])
    np.testing.assert_allclose(given, wanted, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("shape", "dtype", "example"),
    [
        (("batch", 3, "height", "width"), np.float32, "1,3,640,640"),
        (("N", "sequence_length"), np.int64, "1,128"),
        (("batch_size", "seq", 768), np.float32, "1,128,768"),
        (("b", "past_len", 2, 64), np.float32, "1,128,2,64"),
        ((1, 80, "frames"), np.float32, "1,80,100"),
        ((1, "samples"), np.float32, "1,16000"),
    ],
)
def test_suggested_sizes_fit_the_axis(shape: tuple[Any, ...], dtype: Any, example: str) -> None:
    net = Net()
    net.output(net.op("Neg", net.input("x", shape, dtype)))
    with pytest.raises(ShapeError) as caught:
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert f"--shape x={example}," in caught.value.hint


def growing_network(activation: str, shape: tuple[int, ...] = (1, 16)) -> onnx.ModelProto:
    """Squares what it is given, and divides it again: the square leaves float16 where the input is beyond 256.

    :param activation: Relu has a kernel in C, Ceil has none, so that onnxruntime runs it
    """
    net = Net()
    x = net.input("x", shape)
    square = net.op("Mul", net.op("Abs", x), net.op(activation, x))
    net.output(net.op("Mul", square, net.constant(np.full(shape, 1e-3, np.float32))))
    return net.proto()


@pytest.mark.parametrize("activation", ["Relu", "Ceil"])
def test_results_beyond_float16_are_infinite_and_told(activation: str, caplog: pytest.LogCaptureFixture) -> None:
    """They stayed finite, in silence, where a chip overflows."""
    large = [{"x": np.full((1, 16), 400, np.float32)}]
    small = [{"x": np.full((1, 16), 10, np.float32)}]
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(growing_network(activation), "rk3588", dtype="fp16", dataset=large)
    assert "reaches 160000 on the given data, and float16 ends at 65504" in caplog.text
    model = modelfile.read(modelfile.to_bytes(model))
    assert np.isposinf(run_model(model, large)[0][0]).all()
    np.testing.assert_allclose(run_model(model, small)[0][0], 0.1, rtol=2e-3)


@pytest.mark.parametrize("activation", ["Relu", "Ceil"])
def test_results_beyond_float16_are_infinite_without_data_too(activation: str, caplog: pytest.LogCaptureFixture) -> None:
    """An image is made up where it is known how its bytes are normalized."""
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(growing_network(activation, (1, 3, 4, 4)), "rk3588", dtype="fp16", std=(0.5, 0.5, 0.5))
    assert "on random inputs, and float16 ends at 65504" in caplog.text
    large, small = (np.full((1, 3, 4, 4), value, np.float32) for value in (200, 5))
    assert np.isposinf(run_model(model, [{"x": large}])[0][0]).all()
    np.testing.assert_allclose(run_model(model, [{"x": small}])[0][0], 0.1, rtol=2e-3)


def test_a_sum_that_no_input_keeps_within_float16_is_told_without_data(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    x = net.input("x", (1, 64))
    large = net.op("MatMul", x, net.constant(np.full((64, 8), 6e4, np.float32)))
    net.output(net.op("Mul", net.op("Ceil", large), net.constant(np.full((1, 8), 1e-6, np.float32))))
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert "on random inputs, and float16 ends at 65504" in caplog.text
    assert np.isposinf(run_model(model, [{"x": np.ones((1, 64), np.float32)}])[0][0]).all()


@pytest.mark.filterwarnings("error")
def test_results_that_are_no_numbers_are_no_matter_of_float16() -> None:
    net = Net()
    net.output(net.op("Abs", net.op("Log", net.op("Neg", net.op("Abs", net.input("x", (1, 4)))))))
    model = anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert np.isnan(run_model(model, [{"x": np.ones((1, 4), np.float32)}])[0][0]).all()


def test_nothing_is_cast_where_results_stay_within_float16(caplog: pytest.LogCaptureFixture) -> None:
    data = [{"x": np.full((1, 16), 10, np.float32)}]
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(growing_network("Relu"), "rk3588", dtype="fp16", dataset=data)
    assert "float16" not in caplog.text
    names = [name for layer in model.programs[0].layers if isinstance(layer.op, Float) for name in layer.op.names]
    assert names
    assert "Cast" not in names


@pytest.mark.parametrize("samples", [4, 8])
@pytest.mark.parametrize("small", [1e-2, 1e-5, 1e-8, 0.0])
def test_a_branch_that_is_next_to_nothing_does_not_spoil_what_it_is_added_to(small: float, samples: int) -> None:
    """PoolFormer and CaiT scale each branch by 1e-5 at first; the rest came out as a constant, in silence."""
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 8))
    branch = net.op("Conv", x, net.weights(8, 8, 1, 1, scale=small), net.weights(8, scale=small))
    net.output(net.op("Add", x, branch))
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((1, 3, 8, 8), np.float32)} for _ in range(samples)]
    model = anynpu.compile(net.proto(), "rk3588", dataset=data)
    for (expected,), (given,) in zip(run_fp32(net.proto(), data), run_model(model, data), strict=True):
        assert cosine([expected], [given]) > 0.999


def test_inputs_that_no_layer_reads_are_named(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    x, _ = net.input("x", (1, 4)), net.input("spare", (1, 3))
    net.output(net.op("Relu", x))
    with caplog.at_level(logging.WARNING, "anynpu"):
        model = anynpu.compile(net.proto(), dtype="fp16")
    assert [spec.name for spec in model.inputs] == ["x"]
    assert "no layer reads the values of input 'spare'" in caplog.text


def test_branch_by_data_is_not_said_to_be_a_constant() -> None:
    value = helper.make_tensor_value_info
    branches = {
        key: helper.make_graph([helper.make_node(op, ["x"], [key])], key, [], [value(key, 1, [1, 8])])
        for key, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["chosen"], to=TensorProto.BOOL),
        helper.make_node("If", ["chosen"], ["y"], **branches),
    ]
    graph = helper.make_graph(nodes, "branch", [value("x", 1, [1, 8])], [value("y", 1, [1, 8])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedOperatorError, match="its course depends on the data") as caught:
        anynpu.compile(proto, dtype="fp16")
    assert "constant" not in caught.value.hint
