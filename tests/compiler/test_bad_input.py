"""Wrong models, files, names, shapes and options: each gives a typed error that names the thing and states what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import anynpu
from anynpu.errors import (
    AnynpuError,
    CalibrationError,
    CompileError,
    ShapeError,
    TensorNameError,
    UnknownChipError,
    UnsupportedOperatorError,
)
from anynpu.modelfile.validate import validate_model

from .onnx_builders import Net

SAMPLE = {"x": np.ones((1, 3, 8, 8), np.float32)}


def tiny(opset: int = 13, shape: tuple[int | str, ...] = (1, 3, 8, 8)) -> onnx.ModelProto:
    net = Net(opset)
    net.output(net.op("Relu", net.conv(net.input("x", shape), 4, cin=3)))
    return net.proto()


def changed(change: Callable[[onnx.ModelProto], Any]) -> onnx.ModelProto:
    proto = tiny()
    change(proto)
    return proto


def with_node(op: str, *inputs: str, count: int = 1, **attributes: Any) -> onnx.ModelProto:
    net = Net()
    y = net.conv(net.input("x", (1, 3, 8, 8)), 4)
    net.output(net.ops(op, y, *inputs, count=count, **attributes)[0])
    return net.proto()


def two_inputs() -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Add", net.input("a", (1, 3, 4, 4)), net.input("b", (1, 3, 4, 4))))
    return net.proto()


def control_flow() -> onnx.ModelProto:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["Relu_1"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    proto = tiny()
    proto.graph.node.append(helper.make_node("ReduceMax", ["Relu_1"], ["largest"], keepdims=0))
    proto.graph.node.append(helper.make_node("Cast", ["largest"], ["yes"], to=TensorProto.BOOL))
    proto.graph.node.append(helper.make_node("If", ["yes"], ["chosen"], name="choice", then_branch=branch, else_branch=branch))
    proto.graph.output[0].name = "chosen"
    return proto


def shape_from_data() -> onnx.ModelProto:
    """NonZero in the middle of a network; at the end it would be taken off."""
    net = Net()
    places = net.op("NonZero", net.conv(net.input("x", (1, 3, 8, 8)), 4))
    rows = net.op("Cast", net.op("Transpose", places, perm=[1, 0]), to=TensorProto.FLOAT)
    net.output(net.op("Gemm", rows, net.weights(4, 4)))
    return net.proto()


WRONG_MODELS: dict[str, tuple[Callable[[], Any], type[AnynpuError], tuple[str, ...]]] = {
    "no such file": (lambda: "missing/model.onnx", CompileError, ("missing/model.onnx",)),
    "a folder": (lambda: Path(__file__).parent, CompileError, ("folder",)),
    "not ONNX": (lambda: b"this is no model", CompileError, ("not an ONNX model",)),
    "empty": (lambda: b"", CompileError, ("an empty file",)),
    "truncated": (lambda: tiny().SerializeToString()[:-40], CompileError, ("damaged",)),
    "compiled already": (lambda: b"RKNN" + bytes(100), CompileError, ("already compiled", "inspect")),
    "a number": (lambda: 42, CompileError, ("int", "path")),
    "old opset": (lambda: changed(lambda proto: setattr(proto.opset_import[0], "version", 5)), CompileError, ("opset 5", "7")),
    "unknown operator": (
        lambda: changed(lambda proto: setattr(proto.graph.node[1], "op_type", "Frobnicate")),
        CompileError,
        ("Frobnicate", "custom_ops", "--custom-op"),
    ),
    "custom domain": (
        lambda: with_domain("com.example"),
        CompileError,
        ("custom operator", "'Relu'", "shape", "custom_ops", "value_info"),
    ),
    "shape from data": (
        shape_from_data,
        UnsupportedOperatorError,
        ("NonZero", "node_NonZero_1", "depends on the data"),
    ),
    "control flow": (control_flow, UnsupportedOperatorError, ("If", "choice", "control flow")),
    "tensor that nobody makes": (
        lambda: changed(lambda proto: proto.graph.node[1].input.__setitem__(0, "ghost")),
        CompileError,
        ("ghost",),
    ),
    "shapes that do not fit": (
        lambda: changed(lambda proto: setattr(proto.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 5)),
        CompileError,
        ("node_Conv_0", "Conv"),
    ),
    "an output twice": (
        lambda: changed(lambda proto: proto.graph.output.append(proto.graph.output[0])),
        CompileError,
        ("Relu_1", "twice"),
    ),
    "a constant output": (
        lambda: changed(lambda proto: setattr(proto.graph.output[0], "name", "constant_1")),
        CompileError,
        (),
    ),
    "too large": (
        lambda: tiny(shape=(1, 3, 40000, 40000)),
        CompileError,
        ("elements", "smaller"),
    ),
    "too many axes": (
        lambda: changed_rank(),
        CompileError,
        ("9 axes", "8"),
    ),
    "empty tensor": (lambda: tiny(shape=(1, 3, 2, 8)), CompileError, ("node_Conv_0",)),
    "reserved names": (lambda: renamed("x@int8"), CompileError, ("x@int8", "rename")),
    "weights that are no numbers": (lambda: with_weights(np.nan), CompileError, ()),
    "weights far too large": (lambda: with_weights(3e38), AnynpuError, ()),
}


def with_domain(domain: str) -> onnx.ModelProto:
    proto = tiny()
    proto.graph.node[1].domain = domain
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def changed_rank() -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Relu", net.input("x", (1, 2, 1, 2, 1, 2, 1, 2, 1))))
    return net.proto()


def renamed(name: str) -> onnx.ModelProto:
    proto = tiny()
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = name
    return proto


def with_weights(value: float) -> onnx.ModelProto:
    net = Net()
    x = net.input("x", (1, 3, 8, 8))
    net.output(net.op("Conv", x, net.constant(np.full((4, 3, 1, 1), value, np.float32))))
    return net.proto()


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_wrong_model(name: str) -> None:
    make, kind, words = WRONG_MODELS[name]
    with pytest.raises(kind) as caught:
        anynpu.compile(make(), dataset=[SAMPLE])
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value)


OPTIONS: dict[str, tuple[dict[str, Any], type[AnynpuError], tuple[str, ...]]] = {
    "unknown chip": ({"target": "rk3558"}, UnknownChipError, ("rk3558", "rk3588")),
    "unknown type": ({"dtype": "int3"}, CompileError, ("int3", "w8a8", "fp16")),
    "fp16 on a chip without it": ({"target": "rv1106", "dtype": "fp16"}, CompileError, ("rv1106", "fp16", "w8a8")),
    "w16a16 on a chip without it": ({"target": "rk3588", "dtype": "w16a16"}, CompileError, ("rk3588", "w16a16")),
    "no data set": ({"dataset": None}, CompileError, ("calibration data", "fp16")),
    "empty data set": ({"dataset": []}, CalibrationError, ("empty",)),
    "empty generator": ({"dataset": iter(())}, CalibrationError, ("no samples",)),
    "data set that is not there": ({"dataset": "no/such/folder"}, CalibrationError, ("no/such/folder",)),
    "sample of another shape": ({"dataset": [{"x": np.ones((1, 3, 9, 9), np.float32)}]}, CalibrationError, ("x", "9")),
    "samples of other names": (
        {"dataset": [{name: np.ones((1, 3, 8, 8), np.float32) for name in ("y", "z")}]},
        CalibrationError,
        ("'x'",),
    ),
    "sample without numbers": ({"dataset": [{"x": np.full((1, 3, 8, 8), np.nan, np.float32)}]}, CalibrationError, ("x", "NaN")),
    "samples that are not numbers": ({"dataset": [{"x": np.full((1, 3, 8, 8), "a")}]}, CalibrationError, ("x",)),
    "no samples at all": ({"calibration_limit": 0}, CompileError, ("calibration_limit", "0")),
    "unknown algorithm": ({"algorithm": "guess"}, CompileError, ("guess", "minmax")),
    "percentile": ({"algorithm": "percentile", "percentile": 20.0}, CompileError, ("20",)),
    "shape of another input": ({"shapes": {"y": (1, 3, 8, 8)}}, TensorNameError, ("'y'", "x")),
    "shape of another rank": ({"shapes": {"x": (1, 3, 8)}}, ShapeError, ("[1, 3, 8, 8]", "[1, 3, 8]")),
    "shape of fixed axes": ({"shapes": {"x": (1, 3, 9, 9)}}, ShapeError, ("[1, 3, 8, 8]", "[1, 3, 9, 9]")),
    "negative shape": ({"shapes": {"x": (1, 3, -8, 8)}}, ShapeError, ("-8",)),
    "shapes that are no dict": ({"shapes": [(1, 3, 8, 8)]}, CompileError, ("dict",)),
    "no shape sets": ({"shapes": []}, CompileError, ("dict",)),
    "batch": ({"batch": 0}, CompileError, ("0",)),
    "mean of another input": ({"mean": {"y": 3}}, TensorNameError, ("'y'", "x")),
    "mean of four numbers": ({"mean": (1, 2, 3, 4)}, CompileError, ("4 numbers", "3 channels")),
    "std of zero": ({"std": (1, 0, 1)}, CompileError, ("zero",)),
    "std without numbers": ({"std": (1, float("nan"), 1)}, CompileError, ("x",)),
    "channel order": ({"channel_order": "grb"}, CompileError, ("grb", "bgr")),
    "channel order of another input": ({"channel_order": {"y": "bgr"}}, TensorNameError, ("'y'", "x")),
    "hybrid tensor": ({"hybrid": ["nobody"]}, TensorNameError, ("nobody",)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_option(name: str) -> None:
    options, kind, words = OPTIONS[name]
    with pytest.raises(kind) as caught:
        anynpu.compile(tiny(), **{"dataset": [SAMPLE], **options})
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value)


def test_dynamic_axes_need_numbers() -> None:
    with pytest.raises(ShapeError, match=r"\[\?, 3, \?, \?\]") as caught:
        anynpu.compile(tiny(shape=("n", 3, "h", "w")), dtype="fp16")
    assert "--shape x=1,3,640,640" in caught.value.hint


def test_mean_for_several_inputs_needs_a_name() -> None:
    with pytest.raises(CompileError, match="2 inputs"):
        anynpu.compile(two_inputs(), dataset=[{}], mean=3.0)


def test_weights_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    """A model may not make the compiler read any file of the machine."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(4 * 4 * 3 * 3 * 3))
    folder = tmp_path / "model"
    folder.mkdir()
    for location in ("../secret.bin", str(secret)):
        proto = tiny()
        weights = proto.graph.initializer[0]
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=location)
        path = folder / "model.onnx"
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(CompileError) as caught:
            anynpu.compile(path, dtype="fp16")
        assert caught.value.hint


def test_weights_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(tiny(), path, save_as_external_data=True, location="model.data", size_threshold=0)
    (tmp_path / "model.data").unlink()
    with pytest.raises(CompileError, match=r"model\.data|cannot be read"):
        anynpu.compile(path, dtype="fp16")


def test_errors_name_node_operator_and_tensor() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        anynpu.compile(shape_from_data(), dtype="fp16")
    assert (caught.value.node, caught.value.operator) == ("node_NonZero_1", "NonZero")


def test_values_beyond_every_scale_are_refused_for_integers_only() -> None:
    net = Net()
    y = net.op("Add", net.input("x", (1, 3, 8, 8)), net.constant(np.full((1, 3, 8, 8), -5e37, np.float32)))
    net.output(net.op("AveragePool", y, kernel_shape=[2, 2]))
    with pytest.raises(CalibrationError, match="Add_0") as caught:
        anynpu.compile(net.proto(), dataset=[SAMPLE])
    assert "hybrid" in caught.value.hint
    anynpu.compile(net.proto(), dtype="fp16")


@pytest.mark.parametrize("slope", [np.inf, np.nan])
@pytest.mark.parametrize("op", ["PRelu", "LeakyRelu"])
def test_slopes_that_are_no_numbers_do_not_reach_the_program(op: str, slope: float) -> None:
    """They do no harm as long as nothing is negative."""
    net = Net()
    y = net.op("Conv", net.input("x", (1, 3, 8, 8)), net.constant(np.ones((4, 3, 1, 1), np.float32)))
    if op == "PRelu":
        net.output(net.op(op, y, net.constant(np.full((4, 1, 1), slope, np.float32))))
    else:
        net.output(net.op(op, y, alpha=slope))
    try:
        model = anynpu.compile(net.proto(), dataset=[SAMPLE])
    except CalibrationError as error:  # onnxruntime before 1.24 multiplies them with 0
        if "computes NaN or infinity" not in str(error):
            raise
    else:
        validate_model(model)
