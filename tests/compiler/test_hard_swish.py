"""HardSwish in the operators of an exporter, before a Concat: written so that Rockchip's toolkit leaves it whole."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.compiler.graph import Graph
from anynpu.compiler.importers.onnx_graph import import_onnx
from anynpu.compiler.passes.optimize import write_hard_swish_as_gate
from anynpu.compiler.quantize.calibrate import FloatModel
from anynpu.compiler.toolkit.graph_rules import functions_behind_concats

from .onnx_builders import Net

SHAPE = (1, 8, 4, 4)


def _graph(*, parts: int = 1, swapped: bool = False, numbers: tuple[float, float, float] = (3, 6, 6)) -> Graph:
    net = Net(seed=4)
    x = net.input("x", SHAPE)
    three, divisor = (net.constant(np.array([value], np.float32)) for value in numbers[::2])
    zero, top = (net.constant(np.array(value, np.float32)) for value in (0.0, numbers[1]))
    made = []
    for _ in range(parts):
        source = net.conv(x, 8, 1, cin=8)
        clipped = net.op("Clip", net.op("Add", *((three, source) if swapped else (source, three))), zero, top)
        made.append(net.op("Div", net.op("Mul", *((clipped, source) if swapped else (source, clipped))), divisor))
    net.output(net.op("Concat", *made, axis=1) if parts > 1 else made[0])
    return import_onnx(net.proto())


@pytest.mark.parametrize("swapped", [False, True])
def test_it_is_a_gate_and_the_same_function(swapped: bool) -> None:
    sample = {"x": 4 * np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)}
    before, after = _graph(swapped=swapped), _graph(swapped=swapped)
    assert write_hard_swish_as_gate(after) == 1
    assert [node.op for node in after.nodes] == ["Conv", "HardSigmoid", "Mul"]
    wanted, given = (FloatModel(graph, graph.outputs, {}).run(sample)[graph.outputs[0]] for graph in (before, after))
    assert np.abs(wanted - given).max() < 1e-5


@pytest.mark.parametrize("numbers", [(2, 6, 6), (3, 5, 6), (3, 6, 5)])
def test_other_numbers_stay(numbers: tuple[float, float, float]) -> None:
    graph = _graph(numbers=numbers)
    assert write_hard_swish_as_gate(graph) == 0
    assert [node.op for node in graph.nodes] == ["Conv", "Add", "Clip", "Mul", "Div"]


def test_the_toolkit_then_takes_nothing_behind_the_concat() -> None:
    plain, written = _graph(parts=3), _graph(parts=3)
    assert functions_behind_concats(plain)
    assert write_hard_swish_as_gate(written) == 3
    assert not functions_behind_concats(written)
    assert written.nodes[-1].op == "Concat"
