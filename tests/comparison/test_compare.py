"""A comparison names the layer that is wrong, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from compiler.onnx_builders import Net
from silu_network import silu_network

import anynpu
from anynpu.analysis.compare import (
    CompiledSubject,
    InputSpec,
    Limits,
    OnnxSubject,
    OutputsSubject,
    compare,
    random_samples,
    rule_sentences,
    sentences,
)
from anynpu.errors import ParameterError, ShapeError, TensorNameError
from anynpu.program import Model, Preprocess

from .networks import SHAPE, network, samples, scaled_layers, with_wrong_scale

Array = npt.NDArray[Any]

TEST = samples(4, seed=1)
LAYERS = 14
"""How many layers of the network scale their results."""


def test_the_network_has_many_layers_that_scale(model: Model) -> None:
    assert len(scaled_layers(model)) == LAYERS


def test_a_sound_model_has_no_diverging_layer(proto: onnx.ModelProto, model: Model) -> None:
    comparison = compare(OnnxSubject(proto, "fp32"), CompiledSubject(model, "int8"), TEST)
    assert comparison.first_diverging is None
    assert "Each layer is within the limits: cosine 0.99, scale 0.01." in sentences(comparison)
    layers = [entry for entry in comparison.layers if entry.index >= 0]
    assert [entry.layer for entry in layers] == [layer.name for layer in model.programs[0].layers]
    for entry in layers:
        assert entry.alone is not None
        assert entry.alone.snr > 30
        assert entry.codes is not None
        assert 20 < entry.codes.used <= entry.codes.available == 256


def test_layers_that_were_not_run_alone_are_counted_and_no_verdict_covers_them(proto: onnx.ModelProto, model: Model) -> None:
    comparison = compare(OnnxSubject(proto, "fp32"), CompiledSubject(model, "int8"), TEST)
    unknown = [replace(entry, alone=None) if entry.index in (2, 5) else entry for entry in comparison.layers]
    text = sentences(replace(comparison, layers=tuple(unknown)))
    count = sum(entry.index in (2, 5) for entry in comparison.layers)
    assert any(line.startswith("Each layer that could be compared alone is within the limits") for line in text)
    assert any(line.startswith(f"{count} of {len(unknown)} layers cannot be compared alone") for line in text)
    assert not any("No layer diverges" in line for line in text)
    rules = rule_sentences(replace(comparison, layers=tuple(unknown)))
    assert f"of {len(unknown) - count} layers differ when run alone" in rules[-2]
    assert rules[-1].startswith(f"{count} of {len(unknown)} layers cannot be compared alone")
    same = compare(CompiledSubject(model, "a"), CompiledSubject(model, "b"), TEST)
    assert "No layer diverges." in sentences(same)


@pytest.mark.parametrize("factor", [1.02, 0.98])
@pytest.mark.parametrize("number", range(LAYERS))
def test_a_scale_that_is_off_by_two_percent_is_found(proto: onnx.ModelProto, model: Model, number: int, factor: float) -> None:
    index = scaled_layers(model)[number]
    wrong = with_wrong_scale(model, index, factor)
    name = model.programs[0].layers[index].name
    for right in (OnnxSubject(proto, "fp32"), CompiledSubject(model, "int8")):
        found = compare(right, CompiledSubject(wrong, "wrong"), TEST).first_diverging
        assert found is not None, right.title
        assert (found.layer.layer, found.layer.index, found.alone) == (name, index, True), right.title


def test_a_model_equals_itself_and_alone_equals_in_place(model: Model) -> None:
    comparison = compare(CompiledSubject(model, "a"), CompiledSubject(model, "b"), TEST)
    assert all(entry.so_far.exact for entry in comparison.layers)
    assert all(
        entry.alone is not None and entry.alone.exact and entry.must_equal for entry in comparison.layers if entry.index >= 0
    )
    assert sentences(comparison)[0] == "The outputs are equal."


def test_both_engines_give_the_same_bytes(model: Model) -> None:
    native, reference = CompiledSubject(model, "a", engine="native"), CompiledSubject(model, "b", engine="reference")
    assert all(entry.so_far.exact for entry in compare(native, reference, TEST[:1]).layers)


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
def test_layers_one_by_one_give_what_a_device_gives(dtype: str) -> None:
    """The network has float layers between integer ones; in float16 all of it is one segment."""
    data = [{"x": np.random.default_rng(4).random((1, 3, 96, 96), np.float32)}]
    model = anynpu.compile(silu_network(), dtype=dtype, dataset=data if dtype == "w8a8" else None)
    subject = CompiledSubject(model, "net")
    subject.watch(subject.tensors)
    with anynpu.Device("rk3588") as device, device.load(model).context() as context:
        (expected,) = context.run(data[0])
    np.testing.assert_allclose(subject.run(data[0])["y"], expected, rtol=2e-3, atol=1e-6)


def test_every_layer_of_a_float_stretch_is_seen(proto: onnx.ModelProto, half_model: Model) -> None:
    comparison = compare(OnnxSubject(proto, "fp32"), CompiledSubject(half_model, "fp16"), TEST)
    assert comparison.first_diverging is None
    assert len(comparison.layers) > 14
    for entry in comparison.layers:
        assert entry.so_far.snr > 50
        assert entry.codes is None
        assert entry.index < 0 or entry.alone is not None


def test_layers_that_compute_in_a_type_that_tensors_do_not_have_are_seen_too() -> None:
    net = Net()
    wide = net.op("Cast", net.input("x", (1, 4, 4, 4)), to=onnx.TensorProto.DOUBLE)
    net.output(net.op("Cast", net.op("Tanh", net.op("Tanh", wide)), to=onnx.TensorProto.FLOAT))
    model = anynpu.compile(net.proto(), dtype="fp16")
    data = [{"x": np.random.default_rng(0).standard_normal((1, 4, 4, 4), np.float32)}]
    comparison = compare(OnnxSubject(net.proto(), "fp32"), CompiledSubject(model, "fp16"), data)
    entries = [entry for entry in comparison.layers if entry.index >= 0]
    assert all(entry.so_far.snr > 50 for entry in entries)
    assert {name for entry in entries for name in entry.nodes} >= {"node_Tanh_1", "node_Tanh_2"}


def test_a_dense_layer_that_reads_an_image_in_its_own_order_is_fed_right() -> None:
    net = Net(seed=2)
    image = net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 6, pads=[1, 1, 1, 1]))
    net.output(net.op("MatMul", net.op("Flatten", image), net.weights(6 * 64, 12, scale=0.05)))
    random = np.random.default_rng(3)
    data = [{"x": random.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]
    model = anynpu.compile(net.proto(), dataset=data)
    comparison = compare(OnnxSubject(net.proto(), "fp32"), CompiledSubject(model, "int8"), data)
    assert comparison.first_diverging is None
    assert comparison.layers[-1].alone is not None
    backwards = compare(CompiledSubject(model, "int8"), OnnxSubject(net.proto(), "fp32"), data)
    assert backwards.first_diverging is None


def test_errors_that_pile_up_are_told_from_one_that_is_made(proto: onnx.ModelProto, model: Model) -> None:
    comparison = compare(
        OnnxSubject(proto, "fp32"), CompiledSubject(model, "int8"), TEST, limits=Limits(cosine=0.99975, scale=0.05)
    )
    found = comparison.first_diverging
    assert found is not None
    assert not found.alone
    assert "errors accumulate" in sentences(comparison)[1]


def test_inputs_beyond_the_calibrated_range_are_called_clipped() -> None:
    net = Net()
    net.output(net.op("Tanh", net.input("x", (1, 2, 8, 8))))
    low = [{"x": np.random.default_rng(1).uniform(-0.3, 0.3, (1, 2, 8, 8)).astype(np.float32)} for _ in range(3)]
    model = anynpu.compile(net.proto(), dataset=low)
    wider = [{"x": 2 * sample["x"]} for sample in low]
    text = sentences(compare(OnnxSubject(net.proto(), "fp32"), CompiledSubject(model, "int8"), wider))
    assert text[-1].startswith("2 tensors clip more than 1 % of their elements, most of all x (Input) with ")
    text = sentences(compare(OnnxSubject(net.proto(), "fp32"), CompiledSubject(model, "int8"), low))
    assert not any("clip" in sentence for sentence in text)


def test_mean_std_and_channel_order_are_applied_to_the_onnx_side() -> None:
    """Raw pixels in, RGB; the network takes BGR, normalized."""
    random = np.random.default_rng(9)
    data = [{"x": random.integers(0, 256, SHAPE).astype(np.float32)} for _ in range(4)]
    model = anynpu.compile(network(), dataset=data, mean=(100, 110, 120), std=(50, 60, 70), channel_order="bgr")
    right = OnnxSubject(network(), "fp32", preprocess=model.preprocess, channel_order="bgr")
    sound = compare(right, CompiledSubject(model, "int8"), data)
    assert sound.first_diverging is None
    assert sound.layers[0].kind == "Input"
    assert sound.layers[0].so_far.snr > 40
    without_order = OnnxSubject(network(), "fp32", preprocess=model.preprocess)
    assert compare(without_order, CompiledSubject(model, "int8"), data).first_diverging is not None
    without_mean = OnnxSubject(network(), "fp32", preprocess={"x": Preprocess((0.0,) * 3, (60.0,) * 3)}, channel_order="bgr")
    assert compare(without_mean, CompiledSubject(model, "int8"), data).first_diverging is not None


def _focus(net: Net, x: str) -> str:
    """YOLOX's start: every second pixel, four times."""
    starts = ((0, 0), (1, 0), (0, 1), (1, 1))
    ends, axes, steps = (net.constant(values) for values in ([1 << 30, 1 << 30], [2, 3], [2, 2]))
    return net.op("Concat", *(net.op("Slice", x, net.constant(start), ends, axes, steps) for start in starts), axis=1)


def _reshaped(net: Net, x: str) -> str:
    """The channel order does not reach weights here."""
    return net.op("Reshape", net.op("Relu", x), net.constant([1, 12, 8, 8]))


def _by_channel(net: Net, x: str) -> str:
    """Layers before the first convolution that keep channels apart."""
    pooled = net.op("MaxPool", net.conv(x, 3, group=3, pads=[1, 1, 1, 1]), kernel_shape=[2, 2], strides=[2, 2])
    return net.op("Concat", *[net.op("Relu", pooled), net.op("Sigmoid", pooled)] * 2, axis=1)


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
@pytest.mark.parametrize("start", [_focus, _reshaped, _by_channel])
def test_tensors_before_the_channel_swap_are_compared_in_one_order(start: Callable[[Net, str], str], dtype: str) -> None:
    net = Net(opset=13, seed=7)
    first = start(net, net.input("x", (1, 3, 16, 16)))
    net.output(net.op("Relu", net.conv(net.op("Relu", net.conv(first, 16, cin=12)), 8, cin=16)))
    random = np.random.default_rng(9)
    colors = np.array([40.0, 120.0, 210.0]).reshape(1, 3, 1, 1)
    data = [{"x": np.clip(random.normal(colors, 30, (1, 3, 16, 16)), 0, 255).astype(np.float32)} for _ in range(4)]
    model = anynpu.compile(net.proto(), dataset=data, dtype=dtype, mean=100, std=50, channel_order="bgr")
    right = OnnxSubject(net.proto(), "fp32", preprocess=model.preprocess, channel_order="bgr")
    comparison = compare(right, CompiledSubject(model, dtype), data)
    assert comparison.first_diverging is None
    assert min(entry.so_far.worst_cosine for entry in comparison.layers) > 0.99
    backwards = compare(CompiledSubject(model, dtype), right, data)
    assert min(entry.alone.worst_cosine for entry in backwards.layers if entry.alone) > 0.99


def test_two_onnx_models_part_where_a_weight_was_changed(proto: onnx.ModelProto) -> None:
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    weights = next(tensor for tensor in changed.graph.initializer if tensor.name == changed.graph.node[7].input[1])
    assert changed.graph.node[7].op_type == "Conv"
    weights.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights) * np.float32(1.05), weights.name))
    found = compare(OnnxSubject(proto, "a"), OnnxSubject(changed, "b"), TEST).first_diverging
    assert found is not None
    assert found.layer.layer == changed.graph.node[7].name


def test_a_device_is_judged_by_its_outputs(proto: onnx.ModelProto, model: Model) -> None:
    a = CompiledSubject(model, "int8")
    with anynpu.Device("rk3588") as device, device.load(model).context() as context:

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            return context.run(list(arrays))

        comparison = compare(a, OutputsSubject("device", a.inputs, a.outputs, run), TEST)
        assert all(entry.so_far.exact and entry.alone is None for entry in comparison.layers)
        assert "Only outputs are known" in sentences(comparison)[-1]
        outputs: Mapping[str, tuple[int, ...]] = {**a.outputs, "more": (1,)}
        with pytest.raises(TensorNameError, match="outputs differ"):
            compare(a, OutputsSubject("device", a.inputs, outputs, run), TEST)
        short = OutputsSubject("device", a.inputs, a.outputs, lambda arrays: run(arrays)[:1])
        with pytest.raises(ShapeError, match="gives 1 outputs"):
            compare(a, short, TEST)


def test_networks_that_do_not_belong_together_are_refused(proto: onnx.ModelProto, model: Model) -> None:
    other = Net()
    other.output(other.op("Relu", other.input("y", (1, 3, 8, 8))))
    with pytest.raises(TensorNameError, match="inputs differ: int8 has x; other has y"):
        compare(CompiledSubject(model, "int8"), OnnxSubject(other.proto(), "other"), TEST)
    smaller = Net()
    smaller.output(smaller.op("Relu", smaller.input("x", (1, 3, 8, 8))))
    with pytest.raises(ShapeError, match="input 'x' is"):
        compare(CompiledSubject(model, "int8"), OnnxSubject(smaller.proto(), "other"), TEST)
    with pytest.raises(ParameterError, match="no samples"):
        compare(CompiledSubject(model, "a"), CompiledSubject(model, "b"), [])


def test_random_samples_fill_the_range_of_an_input_and_repeat() -> None:
    entries = [
        InputSpec("pixels", (1, 3, 16, 16), np.dtype(np.float32), 0.0, 255.0),
        InputSpec("numbers", (64,), np.dtype(np.float32)),
        InputSpec("flags", (8,), np.dtype(np.int64)),
    ]
    first, second = list(random_samples(entries, 2, seed=5))
    (again, _) = random_samples(entries, 2, seed=5)
    assert not np.array_equal(first["pixels"], second["pixels"])
    np.testing.assert_array_equal(first["pixels"], again["pixels"])
    assert 0 <= first["pixels"].min() < 20 < 235 < first["pixels"].max() <= 255
    assert first["numbers"].min() < 0
    assert first["flags"].dtype == np.int64
    assert set(first["flags"].tolist()) <= {0, 1}
