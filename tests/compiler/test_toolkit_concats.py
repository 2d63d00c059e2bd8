"""quantizer="vendor": what all parts of a Concat end with is computed once, behind it.

Each case was seen in graphs that the toolkit wrote.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anynpu import chips
from anynpu.compiler.graph import Graph
from anynpu.compiler.importers.onnx_graph import import_onnx
from anynpu.compiler.lower.forms import forms_of
from anynpu.compiler.lower.fuse import build_steps, toolkit_rules
from anynpu.compiler.quantize.calibrate import FloatModel
from anynpu.compiler.toolkit.graph_rules import simplify_as_toolkit

from .onnx_builders import Net
from .running import run_fp32

Part = Callable[[Net, str, int], str]


def _graph(part: Part, count: int = 3, *, activation: str = "HardSwish", behind: str = "Sigmoid") -> tuple[Net, Graph]:
    net = Net(opset=18)
    x = net.input("x", (1, 8, 4, 4))
    parts = []
    for index in range(count):
        made = net.conv(x, 8, 1, cin=8)
        parts.append(part(net, net.op(activation, made) if activation else made, index))
    joined = net.op("Concat", *parts, axis=1)
    net.output(net.conv(net.op(behind, joined) if behind else joined, 32, 1, cin=8 * count))
    graph = import_onnx(net.proto())
    simplify_as_toolkit(graph)
    return net, graph


def _operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def _with(op: str, number: float = 0.7, *, first: bool = False) -> Part:
    def part(net: Net, x: str, _: int) -> str:
        constant = net.constant(np.array([number], np.float32))
        return net.op(op, constant, x) if first else net.op(op, x, constant)

    return part


@pytest.mark.parametrize(
    "part",
    [_with("Mul"), _with("Mul", first=True), _with("Add"), _with("Sub"), _with("Sub", first=True), _with("Div")],
    ids=["mul", "mul first", "add", "sub", "sub first", "div"],
)
def test_a_number_that_three_parts_share_is_behind_the_concat(part: Part) -> None:
    _, graph = _graph(part)
    assert _operators(graph)[-4] == "Concat"
    assert _operators(graph)[:-4].count("HardSwish") == 3
    assert {"Add", "Sub", "Mul", "Div"}.isdisjoint(_operators(graph)[:-4])


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Tanh", "HardSigmoid", "LeakyRelu", "Elu"])
def test_so_is_an_activation_that_does_not_follow_a_convolution(op: str) -> None:
    _, graph = _graph(lambda net, x, _: net.op(op, x))
    assert _operators(graph)[-4:] == ["Concat", op, "Sigmoid", "Conv"]
    _, graph = _graph(lambda _net, x, _: x, activation=op)
    assert _operators(graph)[-3:] == ["Concat", "Sigmoid", "Conv"]


def test_two_parts_other_numbers_rows_and_readers_stay() -> None:
    def other(net: Net, x: str, index: int) -> str:
        return net.op("Mul", x, net.constant(np.array([0.7 + index], np.float32)))

    def row(net: Net, x: str, _: int) -> str:
        return net.op("Mul", x, net.constant(np.linspace(0.5, 1.0, 8, dtype=np.float32).reshape(1, 8, 1, 1)))

    def read(net: Net, x: str, _: int) -> str:
        made = net.op("Relu", x)
        net.output(net.op("Sigmoid", made))
        return made

    for _, graph in (_graph(_with("Mul"), 2), _graph(other), _graph(row), _graph(read)):
        assert _operators(graph)[-3:] == ["Concat", "Sigmoid", "Conv"]


def test_a_factor_goes_into_the_convolution_that_alone_reads_it() -> None:
    net, graph = _graph(_with("Mul", 0.5), behind="")
    assert _operators(graph)[-2:] == ["Concat", "Conv"]
    assert "Mul" not in _operators(graph)
    original = import_onnx(net.proto())
    assert np.array_equal(graph.constants[graph.nodes[-1].inputs[1]], 0.5 * original.constants[original.nodes[-1].inputs[1]])


def _exported_hard_swish(net: Net, x: str, _: int) -> str:
    three, six, zero = (net.constant(np.array(value, np.float32)) for value in (3, 6, 0))
    divided = net.op("Div", net.op("Mul", x, net.op("Clip", net.op("Add", x, three), zero, six)), six)
    return net.op(
        "Add", net.op("Mul", net.constant(np.array([0.9], np.float32)), divided), net.constant(np.array([-0.8], np.float32))
    )


def test_an_activation_that_loses_its_last_operator_is_computed_operator_by_operator() -> None:
    """As in text detection, split by optimize: with the names that the toolkit's configuration has."""
    _, graph = _graph(_exported_hard_swish, 4, activation="", behind="")
    steps = build_steps(graph, forms_of(graph), toolkit_rules(chips.get("rk3588")))
    assert [step.kind for step in steps].count("Clip") == 4
    tail = graph.nodes[-4:]
    assert [node.op for node in tail] == ["Concat", "Mul", "Add", "Conv"]
    assert tail[0].outputs == [f"{tail[0].inputs[0]}_concat"]
    assert all(node.outputs[0].endswith("-split") for node in tail[1:3])
    factor = next(graph.constants[name] for name in tail[1].inputs if name in graph.constants)
    assert factor == pytest.approx(0.15)


def test_the_function_stays_the_same() -> None:
    sample = {"x": np.random.default_rng(2).normal(size=(1, 8, 4, 4)).astype(np.float32)}
    for net, graph in (_graph(_exported_hard_swish, 4, activation=""), _graph(_with("Div")), _graph(_with("Mul"), behind="")):
        wanted = run_fp32(net.proto(), [sample])[0][0]
        assert np.allclose(FloatModel(graph, graph.outputs, {}).run(sample)[graph.outputs[0]], wanted, atol=1e-4)
