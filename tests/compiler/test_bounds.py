"""Small files that stand for more than a machine can do are rejected before a library expands them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.compiler.importers import onnx_model
from anynpu.compiler.importers.onnx_model import read_onnx
from anynpu.errors import CompileError

node = helper.make_node


def model_of(nodes: list[onnx.NodeProto], **parts: Any) -> onnx.ModelProto:
    functions = parts.pop("functions", [])
    shape = [1, 3, 8, 8]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        **parts,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


def function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("bomb", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)])


def chain(kind: str, times: int, domain: str = "bomb") -> list[onnx.NodeProto]:
    names = ["a", *(f"t{index}" for index in range(times - 1)), "b"]
    return [node(kind, [names[index]], [names[index + 1]], domain=domain) for index in range(times)]


def function_bomb(levels: int = 20, times: int = 10) -> onnx.ModelProto:
    """Functions that call functions: *times* to the power of *levels* nodes in all."""
    functions = [function("f0", chain("Relu", times, ""))]
    functions += [function(f"f{level}", chain(f"f{level - 1}", times)) for level in range(1, levels)]
    return model_of([node(f"f{levels - 1}", ["x"], ["y"], domain="bomb")], functions=functions)


def unused_function_bomb() -> onnx.ModelProto:
    proto = function_bomb()
    proto.graph.node[0].CopyFrom(node("Relu", ["x"], ["y"]))
    return proto


def function_that_calls_itself() -> onnx.ModelProto:
    functions = [function("f", chain("g", 1)), function("g", chain("f", 1))]
    return model_of([node("f", ["x"], ["y"], domain="bomb")], functions=functions)


def long_chain_of_functions() -> onnx.ModelProto:
    return function_bomb(levels=300, times=1)


def sparse_bomb() -> onnx.ModelProto:
    """A constant of 2^40 elements, of which one is written down."""
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [1 << 20, 1 << 20])
    return model_of([node("Relu", ["x"], ["y"])], sparse_initializer=[sparse])


def sparse_attribute_bomb() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [1 << 20, 1 << 20])
    return model_of([node("Constant", [], ["c"], sparse_value=sparse), node("Relu", ["x"], ["y"])])


def constant_without_values() -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 31, 1 << 31])
    return model_of([node("Add", ["x", "w"], ["y"])], initializer=[tensor])


def negative_constant() -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-1, 1 << 31], raw_data=b"")
    return model_of([node("Add", ["x", "w"], ["y"])], initializer=[tensor])


def constant_of_many_axes() -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 10_000, raw_data=b"\0\0\0\0")
    return model_of([node("Add", ["x", "w"], ["y"])], initializer=[tensor])


def node_with_many_inputs() -> onnx.ModelProto:
    return model_of([node("Sum", ["x"] * (onnx_model.MAX_TENSORS + 1), ["y"])])


def node_with_many_outputs() -> onnx.ModelProto:
    """onnxruntime took 24 s for each session of a node with 16,000 outputs, and four times as long for twice as many."""
    return model_of([node("Split", ["x"], [f"y{index}" for index in range(onnx_model.MAX_OUTPUTS + 1)])])


def function_with_many_inputs() -> onnx.ModelProto:
    """Few nodes, but tensors without end."""
    wide = [node("Sum", ["a"] * 2000, ["b"])]
    functions = [function("f0", wide), *(function(f"f{level}", chain(f"f{level - 1}", 10)) for level in range(1, 4))]
    return model_of([node("f3", ["x"], ["y"], domain="bomb")], functions=functions)


def long_name() -> onnx.ModelProto:
    name = "n" * (onnx_model.MAX_NAME + 1)
    return model_of([node("Relu", ["x"], [name]), node("Relu", [name], ["y"])])


BOMBS = [
    function_bomb,
    unused_function_bomb,
    function_that_calls_itself,
    long_chain_of_functions,
    sparse_bomb,
    sparse_attribute_bomb,
    constant_without_values,
    negative_constant,
    constant_of_many_axes,
    node_with_many_inputs,
    node_with_many_outputs,
    function_with_many_inputs,
    long_name,
]


@pytest.mark.parametrize("make", BOMBS, ids=lambda make: make.__name__)
def test_bombs_are_refused_before_a_library_sees_them(
    make: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(*_arguments: Any, **_options: Any) -> None:
        pytest.fail("a library has got the model")

    monkeypatch.setattr(onnx.checker, "check_model", seen)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", seen)
    data = make().SerializeToString()
    with pytest.raises(CompileError) as caught:
        anynpu.compile(data, "rk3588", dtype="fp16")
    assert caught.value.hint


def test_the_bomb_is_small() -> None:
    assert len(function_bomb().SerializeToString()) < 6000


def test_reading_for_predictions_is_bounded_too() -> None:
    with pytest.raises(CompileError, match="too much"):
        read_onnx(function_bomb().SerializeToString(), external=False)


def test_functions_of_honest_size_are_counted_and_accepted() -> None:
    proto = function_bomb(levels=3, times=4)
    read_onnx(proto.SerializeToString())
    count = onnx_model._Count(proto)
    count.check()
    assert count._sizes["bomb", "f2"] == (4 * (1 + 4 * (1 + 4)), 2 * 4 * (1 + 4 * (1 + 4)), 3)


@pytest.mark.parametrize("place", ["weights", "attribute", "function"])
def test_a_model_that_is_no_file_names_no_other_file(place: str) -> None:
    """onnxruntime up to 1.23 would read the file that such a tensor names."""
    foreign = numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "w")
    foreign.ClearField("raw_data")
    foreign.data_location = TensorProto.EXTERNAL
    foreign.external_data.add(key="location", value="../secret")
    constant = helper.make_node("Constant", [], ["w"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(foreign)
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    nodes = [conv] if place == "weights" else [constant, conv]
    functions = []
    if place == "function":
        opsets = [helper.make_opsetid("", 14)]
        functions = [helper.make_function("own", "Hidden", ["x"], ["y"], nodes, opsets)]
        nodes = [helper.make_node("Hidden", ["x"], ["y"], domain="own")]
    shape = [1, 3, 8, 8]
    graph = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [foreign] if place == "weights" else [],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)
    for given in (model, model.SerializeToString()):
        with pytest.raises(CompileError, match="lie in another file"):
            anynpu.compile(given, target="rk3588", dtype="fp16")
