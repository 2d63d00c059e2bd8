"""Models whose ends or insides are not plain tensors: sequences, optional values, nothing at all, constants alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.compiler import Tail
from anynpu.compiler.importers.control_flow import write_out_control_flow
from anynpu.compiler.importers.split_post_processing import ModelWithTail
from anynpu.errors import CompileError, ShapeError, UnsupportedOperatorError

from .onnx_builders import Net
from .running import run_fp32, run_model

X = np.random.default_rng(3).normal(size=(2, 6)).astype(np.float32)


def proto_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "net", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def sequence(name: str) -> Any:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def tensor(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def number(name: str, value: Any) -> Any:
    return numpy_helper.from_array(np.asarray(value, np.int64), name)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("keep", [0, 1])
def test_parts_of_a_split_are_tensors(opset: int, keep: int) -> None:
    """torch.split and torch.stack of a scripted module."""
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1, keepdims=keep),
        helper.make_node("SequenceAt", ["parts", "last"], ["a"]),
        helper.make_node("SequenceErase", ["parts", "two"], ["fewer"]),
        helper.make_node("SequenceInsert", ["fewer", "a", "two"], ["mixed"]),
        helper.make_node("SequenceLength", ["mixed"], ["count"]),
        helper.make_node("Cast", ["count"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("ConcatFromSequence", ["mixed"], ["joined"], axis=1, new_axis=1 - keep),
        helper.make_node("Mul", ["joined", "factor"], ["y"]),
    ]
    proto = proto_of(nodes, [tensor("x", 2, 6)], [tensor("y", 2, 6)], [number("last", -1), number("two", 2)], opset)
    (wanted,) = run_fp32(proto, [{"x": X}])
    (given,) = run_model(anynpu.compile(proto, "rk3588", dtype="fp16"), [{"x": X}])
    np.testing.assert_allclose(given[0], wanted[0], rtol=2e-3)


def test_a_split_into_chunks_that_do_not_come_out_even() -> None:
    nodes = [helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1)]
    proto = proto_of(nodes, [tensor("x", 2, 6)], [sequence("parts")], [number("size", 4)])
    model = anynpu.compile(proto, "rk3588", dtype="fp16")
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("parts.0", (2, 4)), ("parts.1", (2, 2))]
    (given,) = run_model(model, [{"x": X}])
    np.testing.assert_allclose(np.concatenate(given, 1), X, rtol=1e-3)


def test_a_split_of_a_large_constant() -> None:
    """Large constants lie beside other models while they are compiled."""
    rows = np.arange(4 * 20_000, dtype=np.float32).reshape(4, -1) / 4096
    nodes = [
        helper.make_node("SplitToSequence", ["rows"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "two"], ["row"]),
        helper.make_node("Add", ["x", "row"], ["y"]),
    ]
    constants = [numpy_helper.from_array(rows, "rows"), number("two", 2)]
    proto = proto_of(nodes, [tensor("x", 1, 20_000)], [tensor("y", 1, 20_000)], constants)
    x = np.ones((1, 20_000), np.float32)
    (given,) = run_model(anynpu.compile(proto, "rk3588", dtype="fp16"), [{"x": x}])
    np.testing.assert_allclose(given[0], x + rows[2], rtol=1e-3)


@pytest.mark.parametrize(("size", "extent"), [(0, 6), (1, 2000)])
def test_a_split_into_nothing_or_too_many_is_refused(size: int, extent: int) -> None:
    nodes = [helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1)]
    proto = proto_of(nodes, [tensor("x", 1, extent)], [sequence("parts")], [number("size", size)])
    with pytest.raises(CompileError):
        anynpu.compile(proto, "rk3588", dtype="fp16")


def test_a_map_at_the_end_is_refused() -> None:
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.INT64
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    proto = proto_of(
        [helper.make_node("Identity", ["x"], ["y"])], [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)], []
    )
    with pytest.raises(CompileError):
        anynpu.compile(proto, "rk3588", dtype="fp16")


def mapped() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Add", ["one", "other"], ["sum"])], "body", [tensor("one", 2), tensor("other", 2)], [tensor("sum", 2)]
    )
    return proto_of(
        [helper.make_node("SequenceMap", ["s", "t"], ["y"], body=body)], [sequence("s"), tensor("t", 2)], [sequence("y")], []
    )


def test_the_shapes_say_how_many_tensors_a_sequence_has() -> None:
    with pytest.raises(CompileError, match="the number of its tensors") as caught:
        anynpu.compile(mapped(), "rk3588", dtype="fp16")
    assert "s.0" in caught.value.hint
    model = anynpu.compile(mapped(), "rk3588", dtype="fp16", shapes={"s.0": (2,), "s.1": (2,)})
    assert [spec.name for spec in model.inputs] == ["s.0", "s.1", "t"]
    assert [spec.name for spec in model.outputs] == ["y.0", "y.1"]
    ones = np.ones(2, np.float32)
    ((first, second),) = run_model(model, [{"s.0": ones, "s.1": 2 * ones, "t": 3 * ones}])
    assert (first.tolist(), second.tolist()) == ([4, 4], [5, 5])


def test_a_sequence_can_be_constant() -> None:
    model = anynpu.compile(mapped(), "rk3588", dtype="fp16", constants={"s": [[1.0, 2.0]]})
    ((given,),) = run_model(model, [{"t": np.ones(2, np.float32)}])
    assert given.tolist() == [2, 3]
    for wrong in (["one"], 3):
        with pytest.raises(CompileError, match="not made of numbers"):
            anynpu.compile(mapped(), "rk3588", dtype="fp16", constants={"s": wrong})


def test_a_place_that_depends_on_an_input_has_to_be_given() -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["parts"]), helper.make_node("SequenceAt", ["parts", "n"], ["y"])]
    proto = proto_of(nodes, [tensor("x", 2, 6), tensor("n", kind=TensorProto.INT64)], [tensor("y", 1, 6)], [])
    with pytest.raises(CompileError) as caught:
        anynpu.compile(proto, "rk3588", dtype="fp16")
    assert caught.value.tensor == "n"
    assert "constants=" in caught.value.hint
    model = anynpu.compile(proto, "rk3588", dtype="fp16", constants={"n": 1})
    np.testing.assert_allclose(run_model(model, [{"x": X}])[0][0], X[1:], rtol=1e-3)
    with pytest.raises(CompileError, match="element 5 of a sequence of 2"):
        anynpu.compile(proto, "rk3588", dtype="fp16", constants={"n": 5})


@pytest.mark.parametrize("there", [True, False])
def test_an_optional_input_is_there_or_not(there: bool) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    branches = {
        "then_branch": helper.make_graph([helper.make_node("OptionalGetElement", ["o"], ["v"])], "then", [], [tensor("v", 2)]),
        "else_branch": helper.make_graph([helper.make_node("Neg", ["x"], ["w"])], "else", [], [tensor("w", 2)]),
    }
    nodes = [helper.make_node("OptionalHasElement", ["o"], ["has"]), helper.make_node("If", ["has"], ["y"], **branches)]
    inputs = [helper.make_value_info("o", kind), tensor("x", 2)]
    proto = proto_of(nodes, inputs, [tensor("y", 2)], [], 18)
    ones = np.ones(2, np.float32)
    model = anynpu.compile(proto, "rk3588", dtype="fp16", constants={} if there else {"o": None})
    feeds = {"o": 3 * ones, "x": ones}
    ((given,),) = run_model(model, [{spec.name: feeds[spec.name] for spec in model.inputs}])
    assert given.tolist() == ([3, 3] if there else [-1, -1])


def test_a_scan_of_operator_set_8_goes_over_each_sample() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "p"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body",
        [tensor("s", 2), tensor("p", 2)],
        [tensor("t", 2), tensor("o", 2)],
    )
    nodes = [helper.make_node("Scan", ["", "start", "x"], ["end", "all"], body=body, num_scan_inputs=1)]
    inputs = [tensor("start", 3, 2), tensor("x", 3, 4, 2)]
    proto = proto_of(nodes, inputs, [tensor("end", 3, 2), tensor("all", 3, 4, 2)], [], 8)
    random = np.random.default_rng(0)
    sample = {"start": random.normal(size=(3, 2)).astype(np.float32), "x": random.normal(size=(3, 4, 2)).astype(np.float32)}
    sums = sample["start"][:, None] + np.cumsum(sample["x"], 1)
    (end, every), *_ = run_model(anynpu.compile(proto, "rk3588", dtype="fp16"), [sample])
    np.testing.assert_allclose(end, sums[:, -1], atol=5e-3)
    np.testing.assert_allclose(every, sums, atol=5e-3)


def constants_alone() -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Relu", net.constant([-1.0, 2.0])))
    return net.proto()


def test_a_model_may_have_constants_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(constants_alone(), "rk3588", dtype="fp16")
    assert "do not depend on any input" in caplog.text
    path = model.save(tmp_path / "constant.rknn")
    with anynpu.InferenceSession(path, device="sim:rk3588") as session:
        assert session.run(None, {})[0].tolist() == [0, 2]


def test_an_input_without_elements_has_to_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    net.output(net.op("ReduceSum", net.input("x", ("n", 3)), net.constant([0]), keepdims=0))
    with pytest.raises(ShapeError, match="takes"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16", shapes={"x": (-1, 3)})
    model = anynpu.compile(net.proto(), "rk3588", dtype="fp16", shapes={"x": (0, 3)})
    assert run_model(model, [{}])[0][0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["fp16", "w8a8"])
def test_a_part_without_elements_is_a_constant(dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    x = net.input("x", (1, 3, 4, 4))
    nothing = net.op("Slice", x, net.constant([9]), net.constant([12]), net.constant([1]))
    net.output(
        net.op("ReduceSum", nothing, net.constant([1]), keepdims=0), net.op("Neg", nothing), net.op("Relu", net.conv(x, 4))
    )
    sample = {"x": np.random.default_rng(0).normal(size=(1, 3, 4, 4)).astype(np.float32)}
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(net.proto(), "rk3588", dtype=dtype, dataset=[sample])
    assert "has no elements" in caplog.text
    (wanted,) = run_fp32(net.proto(), [sample])
    with anynpu.InferenceSession(model.save(tmp_path / "nothing.rknn"), device="sim:rk3588") as session:
        sums, rest, plain = session.run(None, sample)
    assert sums.tolist() == wanted[0].tolist()
    assert rest.shape == wanted[1].shape == (1, 0, 4, 4)
    np.testing.assert_allclose(plain, wanted[2], atol=0.05)


def test_the_tail_may_read_inputs_of_the_model(tmp_path: Path) -> None:
    net = Net()
    boxes, scores = net.input("boxes", (1, 3, 4)), net.input("scores", (1, 1, 3))
    limits = net.constant([5]), net.constant([0.5]), net.constant([0.1])
    net.output(net.op("NonMaxSuppression", boxes, net.op("Sigmoid", scores), *limits))
    sample = {
        "boxes": np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [3, 3, 4, 4]]], np.float32),
        "scores": np.array([[[1, 2, 0.5]]], np.float32),
    }
    (wanted,) = run_fp32(net.proto(), [sample])
    model = anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert isinstance(model, ModelWithTail)
    assert "boxes.copy" in Tail(model).inputs
    with anynpu.InferenceSession(model.save(tmp_path / "nms.rknn"), device="sim:rk3588") as session:
        np.testing.assert_array_equal(session.run(None, sample)[0], wanted[0])


def test_old_operator_sets_whose_operators_did_not_change() -> None:
    nodes = [helper.make_node("Not", ["x"], ["y"])]
    proto = proto_of(nodes, [tensor("x", 2, kind=TensorProto.BOOL)], [tensor("y", 2, kind=TensorProto.BOOL)], [], 1)
    ((given,),) = run_model(anynpu.compile(proto, "rk3588", dtype="fp16"), [{"x": np.array([True, False])}])
    assert given.tolist() == [False, True]
    old = proto_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 2)], [tensor("y", 2)], [], 5)
    with pytest.raises(CompileError, match="opset 5; 7 is the oldest"):
        anynpu.compile(old, "rk3588", dtype="fp16")


def test_training_that_drops_nothing() -> None:
    proto = proto_of(
        [helper.make_node("Dropout", ["x", "share", "training"], ["y"])],
        [tensor("x", 2, 6), tensor("share"), tensor("training", kind=TensorProto.BOOL)],
        [tensor("y", 2, 6)],
        [],
    )
    with pytest.raises(CompileError, match="the training mode is an input") as caught:
        anynpu.compile(proto, "rk3588", dtype="fp16")
    assert "constants=" in caught.value.hint
    for constants in ({"training": False}, {"training": True, "share": 0.0}):
        model = anynpu.compile(proto, "rk3588", dtype="fp16", constants=constants)
        sample = {spec.name: {"x": X, "share": np.float32(0.5)}[spec.name] for spec in model.inputs}
        np.testing.assert_allclose(run_model(model, [sample])[0][0], X, rtol=1e-3)
    with pytest.raises(UnsupportedOperatorError, match="in training mode"):
        anynpu.compile(proto, "rk3588", dtype="fp16", constants={"training": True, "share": 0.5})


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_the_bits_of_a_number_are_those_of_its_type(kind: str) -> None:
    if onnx.defs.onnx_opset_version() < 26:
        pytest.skip("this version of ONNX has no BitCast")
    dtype = np.dtype(kind)
    whole = np.dtype(f"int{8 * dtype.itemsize}")
    types = [helper.np_dtype_to_tensor_dtype(entry) for entry in (dtype, whole)]
    nodes = [helper.make_node("BitCast", ["x"], ["y"], to=types[1])]
    proto = proto_of(nodes, [tensor("x", 3, kind=types[0])], [tensor("y", 3, kind=types[1])], [], 26)
    values = np.array([1.0, -2.5, 0.0], dtype)
    ((given,),) = run_model(anynpu.compile(proto, "rk3588", dtype="fp16"), [{"x": values}])
    assert given.tolist() == values.view(whole).tolist()


def test_a_sequence_that_grows_without_end_is_refused() -> None:
    nodes = [helper.make_node("SequenceEmpty", [], ["s0"])]
    nodes += [helper.make_node("SequenceInsert", [f"s{index}", "x"], [f"s{index + 1}"]) for index in range(1025)]
    nodes.append(helper.make_node("ConcatFromSequence", ["s1025"], ["y"], axis=0))
    with pytest.raises(UnsupportedOperatorError, match="more than 1024 tensors"):
        anynpu.compile(proto_of(nodes, [tensor("x", 1, 4)], [tensor("y", 1025, 4)], []), "rk3588", dtype="fp16")


def test_what_stands_beside_is_not_copied() -> None:
    """Messages never give memory back: with a copy of all nodes for each that is replaced, 2,000 of them took gigabytes."""
    branches = {
        name: helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "branch", [], [tensor("r", 1, 4)])
        for name in ("then_branch", "else_branch")
    }
    nodes = [
        helper.make_node("If", ["yes"], ["a"], **branches),
        helper.make_node("SequenceConstruct", ["a", "x"], ["both"]),
        helper.make_node("SequenceAt", ["both", "first"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array(True), "yes"), number("first", 0)]
    proto = proto_of(nodes, [tensor("x", 1, 4)], [tensor("y", 1, 4)], constants)
    last = proto.graph.node[-1]
    write_out_control_flow(proto)
    assert [node.op_type for node in proto.graph.node] == ["Relu", "Identity", "Identity", "Neg"]
    assert proto.graph.node[-1] is last
