"""Rewrites of the graph: many of them at a time, and what one leaves for the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.compiler.graph import Graph
from anynpu.compiler.importers.onnx_graph import import_onnx
from anynpu.compiler.passes import simplify as module
from anynpu.compiler.passes.simplify import simplify


def graph_of(nodes: list[Any], outputs: list[str], constants: dict[str, Any] | None = None) -> Graph:
    shape = [1, 4, 8, 8]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return import_onnx(model)


def test_all_nodes_are_gone_through_once_for_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes a rule removes: a model whose branches were unrolled has thousands of copies."""
    nodes, last = [], "x"
    for index in range(40):
        nodes.append(helper.make_node("Identity", [last], [f"i{index}"]))
        nodes.append(helper.make_node("Relu", [f"i{index}"], [f"r{index}"]))
        last = f"r{index}"
    graph = graph_of(nodes, [last])
    looks: list[int] = []
    consumers = Graph.consumers

    def counted(self: Graph) -> Any:
        looks.append(1)
        return consumers(self)

    monkeypatch.setattr(Graph, "consumers", counted)
    simplify(graph)
    assert [node.op for node in graph.nodes] == ["Relu"] * 40
    assert [node.inputs for node in graph.nodes[:2]] == [["x"], ["r0"]]
    assert len(looks) <= len(module._REWRITES)


def test_copies_of_copies_and_of_outputs() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("Mul", ["c", "b"], ["d"]),
        helper.make_node("Identity", ["d"], ["first"]),
        helper.make_node("Identity", ["first"], ["second"]),
        helper.make_node("Add", ["d", "first"], ["third"]),
    ]
    graph = graph_of(nodes, ["first", "second", "third"])
    simplify(graph)
    made = {node.outputs[0]: (node.op, node.inputs) for node in graph.nodes}
    assert made == {
        "a": ("Relu", ["x"]),
        "first": ("Mul", ["a", "a"]),
        "second": ("Identity", ["first"]),
        "third": ("Add", ["first", "first"]),
    }


def test_a_sum_of_many_and_a_shift_after_it_keep_their_order() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sum", ["x", "a", "x"], ["s"]),
        helper.make_node("PRelu", ["s", "slope"], ["p"]),
        helper.make_node("Conv", ["p", "w"], ["c"]),
        helper.make_node("Mul", ["c", "two"], ["m"]),
        helper.make_node("Add", ["m", "one"], ["n"]),
        helper.make_node("Identity", ["n"], ["y"]),
    ]
    constants = {
        "slope": np.full((4, 1, 1), 0.25),
        "w": np.ones((4, 4, 1, 1)),
        "two": np.full((1, 4, 1, 1), 2.0),
        "one": np.ones((1, 4, 1, 1)),
    }
    graph = graph_of(nodes, ["y"], constants)
    simplify(graph)
    assert [node.op for node in graph.nodes] == ["Relu", "Add", "Add", "Conv", "PRelu", "Conv"]
    known = {"x", *graph.constants}
    for node in graph.nodes:
        assert known.issuperset(node.inputs)
        known.update(node.outputs)
    last = graph.nodes[-1]
    assert last.outputs == ["y"]
    np.testing.assert_array_equal(graph.constants[last.inputs[1]], np.full((4, 4, 1, 1), 2.0))
    np.testing.assert_array_equal(graph.constants[last.inputs[2]], np.ones(4))
