"""quantizer="vendor", arithmetic="simulator": a model computes in float32, from quantized values to quantized values, as the
toolkit's simulator does.

What is right is written down here once more, as a model of ONNX with the scales and quantized values of the compiled one, and
run by onnxruntime as it stands. The real simulator gave every code of whole networks that were compiled so (docs/to-the-board.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import anynpu
from anynpu.analysis.compare import CompiledSubject
from anynpu.analysis.compare.layers import compare
from anynpu.compiler import CompileOptions
from anynpu.compiler import pipeline as driver
from anynpu.modelfile.float_rules import check_float
from anynpu.modelfile.operator_rules import RuleBroken
from anynpu.program import Float, FloatOp, Model, Placement
from anynpu.tensor import DType

from .onnx_builders import Net
from .running import run_model

SHAPE = (1, 8, 8, 8)
F = np.float32
Array = npt.NDArray[Any]


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


def _net(build: Callable[[Net, str], str], **options: int) -> Net:
    net = Net(seed=7, **options)
    net.output(build(net, net.input("x", SHAPE)))
    return net


def _samples(count: int = 3) -> list[dict[str, Array]]:
    random = np.random.default_rng(5)
    return [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(count)]


def _compiled(net: Net, **options: Any) -> Model:
    asked = {"dataset": _samples(), "quantizer": "vendor", "arithmetic": "simulator", "accuracy": "fast", **options}
    return anynpu.compile(net.proto(), "rk3588", CompileOptions(**asked))


@pytest.mark.parametrize("build", [_detector, _gates])
def test_it_has_the_layers_and_scales_of_the_twin_and_its_codes_but_for_ties(
    build: Callable[[Net, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _compiled(_net(build))
    chip = _compiled(_net(build), arithmetic="chip")
    ours, theirs = model.programs[0], chip.programs[0]
    made = {layer.kind for layer in ours.layers}
    assert made >= {layer.kind for layer in theirs.layers if layer.nodes}
    for name, spec in ours.tensors.items():
        if name in theirs.tensors:
            assert (spec.quantization, spec.dtype) == (theirs.tensors[name].quantization, theirs.tensors[name].dtype), name
    monkeypatch.setattr(driver, "sums_in_float32", lambda _: False)
    integers = CompiledSubject(_compiled(_net(build)), "integers")
    found = compare(integers, CompiledSubject(model, "float32"), _samples(1))
    alone = [entry for entry in found.layers if entry.alone is not None and entry.step]
    assert len(alone) >= 7
    for entry in alone:
        assert entry.alone is not None
        assert entry.alone.differing < 0.01, entry.layer
        assert entry.alone.error < 1.01 * entry.step, entry.layer


def test_a_convolution_is_summed_in_float32_and_rounded_once() -> None:
    """A 1x1 convolution of one channel has one product: then the order of sums does not matter, and numpy does the same."""
    net = Net(seed=1)
    x = net.input("x", (1, 1, 16, 16))
    net.output(net.op("Conv", x, net.constant(np.full((1, 1, 1, 1), 0.37, F)), net.constant(np.array([0.1], F))))
    ranges = {"x": (0.03, 5), net.outputs[0]: (0.0111, -7)}
    model = _compiled(net, dataset=[{"x": np.linspace(-3, 3, 256, dtype=F).reshape(1, 1, 16, 16)}], ranges=ranges)
    codes = np.arange(-128, 128).reshape(1, 1, 16, 16)
    values = (codes - 5).astype(F) * F(0.03)
    unit = F(float(F(0.37)) / 255 * float(F(0.03)))
    total = values * (F(255) * F(float(F(0.37)) / 255)) + np.rint(F(0.1) / unit) * unit
    wanted = np.clip(np.rint(total / F(0.0111)) - 7, -128, 127)
    ((result,),) = run_model(model, [{"x": values}])
    assert np.array_equal(np.rint(result / F(0.0111)) - 7, wanted)


def test_it_is_a_model_like_any_other(tmp_path: Path) -> None:
    """Saved, loaded and run by a session, on either engine; weights are stored as quantized values, and layers are where the chip's are."""
    model = _compiled(_net(_detector))
    path = model.save(tmp_path / "net.rknn")
    loaded = anynpu.load(path)
    assert (loaded.arithmetic, loaded.dtype) == ("simulator", "w8a8")
    program = loaded.programs[0]
    assert all(spec.dtype is DType.INT8 for spec in (*program.input_specs, *program.output_specs))
    assert len(program.float_stretches()) == 1
    chip = _compiled(_net(_detector), arithmetic="chip").programs[0]
    stored, wanted = (sum(layer.weight_bytes for layer in entry.layers) for entry in (program, chip))
    assert stored < 2 * wanted
    places = {layer.name: layer.placement for layer in chip.layers}
    assert all(layer.placement is places.get(layer.name, Placement.NPU) for layer in program.layers)
    sample = _samples(1)[0]
    results = []
    for engine in ("native", "reference"):
        with anynpu.InferenceSession(path, device="sim", engine=engine) as session:
            results.append(session.run(None, sample)[0])
    assert np.array_equal(*results)
    ((whole,),) = run_model(model, [sample])
    assert np.array_equal(results[0], whole)


def test_layers_give_the_same_codes_alone_and_in_the_network() -> None:
    model = _compiled(_net(_detector))
    made = compare(CompiledSubject(model, "a"), CompiledSubject(model, "b"), _samples(1))
    assert all(entry.so_far.exact and (entry.alone is None or entry.alone.exact) for entry in made.layers)
    ((whole,),) = run_model(model, _samples(1))
    subject = CompiledSubject(model, "a")
    subject.watch({*subject.outputs})
    assert np.array_equal(subject.run(_samples(1)[0])[model.outputs[0].name], whole)


def test_an_output_without_codes_is_float16() -> None:
    net = Net(seed=3)
    made = net.op("Flatten", net.conv(net.input("x", SHAPE), 2))
    net.output(net.op("Softmax", made, axis=1))
    model = _compiled(net)
    assert model.outputs[0].dtype is DType.FLOAT16
    softmax = model.programs[0].layers[-1].op
    assert isinstance(softmax, Float)
    assert softmax.names == ("DequantizeLinear", "Cast", "Cast", "Softmax", "Cast", "Cast")  # float16 before and after


def test_a_model_from_before_codes_were_part_of_onnx_is_computed_so_too() -> None:
    new, old = (_compiled(_net(lambda net, x: net.op("Relu", net.conv(x, 8)), opset=opset)) for opset in (13, 9))
    assert all(isinstance(layer.op, Float) for layer in old.programs[0].layers if layer.operator == "Conv")
    assert np.array_equal(run_model(old, _samples(1))[0][0], run_model(new, _samples(1))[0][0])


def test_custom_operators_and_other_recipes_are_summed_in_integers() -> None:
    net = _net(lambda net, x: net.op("Twice", net.op("Relu", net.conv(x, 8))))
    found = [
        _compiled(_net(lambda net, x: net.op("Relu", net.conv(x, 8))), quantizer="anynpu"),
        _compiled(net, custom_ops={"Twice": lambda shapes, attributes: shapes}),
    ]
    for model in found:
        assert model.arithmetic == "simulator"
        assert not any(isinstance(layer.op, Float) for layer in model.programs[0].layers)


def test_codes_are_no_numbers_to_other_operators() -> None:
    """A file in which an operator reads or makes quantized values as if they were numbers is rejected."""
    program = _compiled(_net(lambda net, x: net.op("Relu", net.conv(x, 8)))).programs[0]
    layer = program.layers[-1]
    assert isinstance(layer.op, Float)
    inputs = {name: program.tensors[name] for name in layer.inputs}
    check_float(layer.op, inputs, program.tensors, layer.outputs, contents=True)
    first, last = layer.op.operators[0], layer.op.operators[-1]
    for place, other in ((0, FloatOp("Abs", layer.inputs, first.outputs)), (-1, FloatOp("Abs", last.inputs[:1], layer.outputs))):
        operators = list(layer.op.operators)
        operators[place] = other
        with pytest.raises(RuleBroken, match="which is quantized"):
            check_float(replace(layer.op, operators=tuple(operators)), inputs, program.tensors, layer.outputs, contents=True)
