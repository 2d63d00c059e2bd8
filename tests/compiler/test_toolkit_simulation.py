"""A model as the toolkit's simulator computes it, in float32: the layers, scales and weights of the twin, which sums in integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import anynpu
from anynpu.comparison import CompiledSubject, OnnxSubject
from anynpu.comparison.compare import compare
from anynpu.compiler import CompileOptions
from anynpu.compiler.toolkit_simulation import simulation
from anynpu.errors import CompileError

from .onnx_builders import Net

SHAPE = (1, 8, 8, 8)


def _detector(net: Net, x: str) -> str:
    """What detectors are made of: Swish, a sum, a Concat, a Resize."""
    first = net.conv(x, 8, pads=[1, 1, 1, 1])
    first = net.op("Mul", first, net.op("Sigmoid", first))
    second = net.op("Relu", net.conv(first, 8, cin=8, pads=[1, 1, 1, 1]))
    large = net.op("Resize", net.op("Add", first, second), "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    small = net.op("ConvTranspose", second, net.weights(8, 4, 2, 2, scale=0.2), strides=[2, 2], group=2)
    return net.op("Sigmoid", net.conv(net.op("Concat", large, small, axis=1), 8, 1, cin=16))


def _gates(net: Net, x: str) -> str:
    """What classifiers are made of: HardSwish in the operators of an exporter, a gate, and a product with weights."""
    made = net.conv(x, 8, pads=[1, 1, 1, 1])
    three, six, zero = (net.constant(np.array(value, np.float32)) for value in (3, 6, 0))
    active = net.op("Div", net.op("Mul", made, net.op("Clip", net.op("Add", made, three), zero, six)), six)
    gate = net.op("HardSigmoid", net.conv(net.op("GlobalAveragePool", active), 8, 1, cin=8), alpha=0.2, beta=0.5)
    pooled = net.op("Flatten", net.op("MaxPool", net.op("Mul", active, gate), kernel_shape=[8, 8]))
    return net.op("Add", net.op("MatMul", pooled, net.weights(8, 8, scale=0.4)), net.weights(8))


@pytest.mark.parametrize("build", [_detector, _gates])
def test_it_has_the_codes_of_the_twin_but_for_ties(build: Callable[[Net, str], str]) -> None:
    net = Net(seed=7)
    net.output(build(net, net.input("x", SHAPE)))
    random = np.random.default_rng(5)
    data = [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(3)]
    options = CompileOptions(dataset=data, quantizer="vendor", arithmetic="simulator", accuracy="fast")
    twin = CompiledSubject(anynpu.compile(net.proto(), "rk3588", options), "twin")
    graph, preprocess = simulation(net.proto(), "rk3588", options)
    made = compare(OnnxSubject(graph, "float32", preprocess=preprocess, literal=True), twin, data[:1])
    alone = [entry for entry in made.layers if entry.alone is not None and entry.step]
    assert len(alone) >= 7
    for entry in alone:
        assert entry.alone is not None
        assert entry.alone.differing < 0.01, entry.layer
        assert entry.alone.error < 1.01 * entry.step, entry.layer


def test_an_output_without_codes_is_float16() -> None:
    net = Net(seed=3)
    made = net.op("Flatten", net.conv(net.input("x", SHAPE), 2))
    net.output(net.op("Softmax", made, axis=1))
    sample = {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)}
    graph, _ = simulation(net.proto(), "rk3588", CompileOptions(dataset=[sample]))
    subject = OnnxSubject(graph, "float32", literal=True)
    subject.watch({*net.outputs})
    values = subject.run(sample)[net.outputs[0]]
    assert np.array_equal(values, values.astype(np.float16).astype(np.float32))
    casts = [node for node in graph.nodes if node.op == "Cast"]
    assert len(casts) == 4  # what the Softmax reads and what it gives
    assert [unit.name for unit in subject.units()] == net.outputs


def test_a_model_from_before_codes_were_part_of_onnx_is_refused() -> None:
    net = Net(opset=9)
    net.output(net.conv(net.input("x", SHAPE), 8))
    with pytest.raises(CompileError, match="opset 9"):
        simulation(net.proto(), "rk3588", CompileOptions(dataset=[{"x": np.ones(SHAPE, np.float32)}]))
