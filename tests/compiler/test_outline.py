"""Outlines: what a model would become, without the values of its weights and mostly without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.compiler import ModelCheck, ModelOutline
from anynpu.compiler.importers import onnx_graph as importer
from anynpu.errors import CompileError, ShapeError
from anynpu.program import Program

from .onnx_builders import Net


def strip(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the values of its float constants of more than 64 elements."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for tensor in bare.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) > 64:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    return bare


def detector() -> onnx.ModelProto:
    """Convolutions with batch normalization, a split, a resize by computed sizes, a product and a softmax."""
    net = Net()
    x = net.input("x", (1, 3, 64, 64))
    y = net.op("Relu", net.batch_norm(net.conv(x, 32, strides=[2, 2], pads=[1] * 4), 32))
    first, second = net.ops("Split", y, net.constant([16, 16]), count=2, axis=1)
    z = net.conv(second, 16, cin=16, pads=[1] * 4)
    joined = net.op("Concat", first, net.op("Mul", z, net.op("Sigmoid", z)), axis=1)
    rows = net.op("Slice", net.op("Shape", joined), net.constant([0]), net.constant([2]), net.constant([0]))
    flat = net.op("Reshape", joined, net.op("Concat", rows, net.constant([-1]), axis=0))
    scores = net.op("Softmax", net.op("MatMul", flat, net.weights(1024, 24)), axis=2)
    net.output(scores, joined)
    return net.proto()


def summary(program: Program) -> list[Any]:
    return [
        (layer.name, layer.kind, layer.placement, layer.inputs, layer.outputs, layer.macs, layer.weight_bytes)
        for layer in program.layers
    ]


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
@pytest.mark.parametrize("chip", ["rk3588", "rk3566"])
def test_an_outline_is_what_a_check_reports(chip: str, dtype: str) -> None:
    model = detector()
    program = ModelOutline(model).program(chip, dtype=dtype)
    report = ModelCheck(model).report(chip, dtype=dtype)
    rows = [(layer.name, layer.kind, layer.placement.value, layer.macs, layer.weight_bytes) for layer in program.layers]
    assert rows == [(row.name, row.kind, row.placement, row.macs, row.weight_bytes) for row in report.layers]
    assert program.memory.size == report.internal_bytes


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_stripped_weights_give_the_same_outline(dtype: str) -> None:
    model = detector()
    complete, bare = (ModelOutline(entry).program("rk3588", dtype=dtype) for entry in (model, strip(model)))
    assert summary(complete) == summary(bare)
    assert complete.memory == bare.memory
    assert {name: spec.shape for name, spec in complete.tensors.items()} == {
        name: spec.shape for name, spec in bare.tensors.items()
    }


@pytest.mark.parametrize("computed", [False, True])
def test_only_shapes_that_cannot_be_inferred_are_learned_by_running(computed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    y = net.conv(net.input("x", (1, 4, 8, 8)), 8, pads=[1] * 4)
    if computed:  # 1 + 8 + 8 + 8 = 25: nothing but a run reports
        last = net.op("Div", net.op("ReduceSum", net.op("Shape", y), keepdims=1), net.constant([25]))
        y = net.op("Reshape", y, net.op("Concat", net.constant([8, 64]), last, axis=0))
    net.output(y)
    proto = net.proto()
    runs = []
    trace = importer._trace
    monkeypatch.setattr(importer, "_trace", lambda graph, *rest: (runs.append(graph), trace(graph, *rest)))
    shape = ModelOutline(proto).program("rk3588").output_specs[0].shape
    assert shape == ((8, 64, 1) if computed else (1, 8, 8, 8))
    assert bool(runs) == computed


def test_chips_with_the_same_limits_share_an_outline() -> None:
    outline = ModelOutline(detector())
    assert outline.program("t527") is outline.program("a733")
    assert outline.program("rk3588") is not outline.program("rk3566")


def test_input_shapes_can_be_chosen() -> None:
    net = Net()
    x = net.input("x", ("n", 3, "h", "w"))
    net.output(net.conv(x, 8))
    proto = net.proto()
    with pytest.raises(ShapeError, match="a chip needs fixed numbers"):
        ModelOutline(proto)
    program = ModelOutline(proto, shapes={"x": (2, 3, 32, 16)}).program("rk3588")
    assert program.output_specs[0].shape == (2, 8, 30, 14)


def test_compiling_a_stripped_model_says_what_is_missing() -> None:
    with pytest.raises(CompileError, match="weights were stripped") as caught:
        anynpu.compile(strip(detector()), "rk3588", dtype="fp16")
    assert "anynpu predict" in caught.value.hint


def test_integers_may_not_be_stripped() -> None:
    model = detector()
    index = next(i for i, tensor in enumerate(model.graph.initializer) if tensor.data_type == TensorProto.INT64)
    model.graph.initializer[index].ClearField("raw_data")
    model.graph.initializer[index].ClearField("int64_data")
    with pytest.raises(CompileError, match="type int64 has no values"):
        ModelOutline(model)


def test_weights_in_a_file_that_is_not_there_are_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(detector(), path, save_as_external_data=True, location="net.data", size_threshold=4000)
    complete = summary(ModelOutline(path).program("rk3588"))
    (tmp_path / "net.data").unlink()
    assert summary(ModelOutline(path).program("rk3588")) == complete


def test_small_constants_in_a_file_that_is_not_there_are_missed(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(detector(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    (tmp_path / "net.data").unlink()
    with pytest.raises(CompileError, match="lies in another file"):
        ModelOutline(path)


def test_initialisers_that_are_declared_as_inputs_are_no_inputs() -> None:
    weights = numpy_helper.from_array(np.ones((64, 3, 3, 3), np.float32), "w")
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 8, 8]), ("w", [64, 3, 3, 3]))
    ]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "old",
        infos,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 6, 6])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)
    for entry in (model, strip(model)):
        assert ModelOutline(entry).program("rk3588").inputs == ("x",)
