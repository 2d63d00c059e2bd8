"""What is fused and what must not be: a tensor that another owner reads has to exist, with a scale of its own."""

from __future__ import annotations

import numpy as np

from anynpu.tensor import Affine

from .onnx_builders import Net
from .running import assert_close_in_steps, execute


def test_a_convolution_that_is_read_twice_takes_no_residual() -> None:
    net = Net()
    x = net.input("x", (1, 4, 7, 7))
    y = net.conv(x, 4, 1)
    net.output(net.op("Add", y, x), net.op("MaxPool", y, kernel_shape=[2, 2]))
    run = execute(net.proto())
    assert sorted(run.kinds) == ["Add", "Conv", "MaxPool"]
    assert_close_in_steps(run, 4.0)


def test_the_later_of_two_convolutions_takes_the_residual() -> None:
    """Whichever side of the Add it stands on: only then does the other operand exist."""
    for swapped in (False, True):
        net = Net()
        x = net.input("x", (1, 4, 7, 7))
        early, late = net.conv(x, 4, 1), net.conv(net.op("Relu", net.conv(x, 4, 1)), 4, 1, cin=4)
        net.output(net.op("Add", late, early) if swapped else net.op("Add", early, late))
        run = execute(net.proto())
        assert run.kinds.count("ConvAdd") == 1
        assert len(run.kinds) == 3
        assert_close_in_steps(run, 5.0)


def test_a_residual_with_a_table_activation_stays_an_add() -> None:
    """The sum has no scale of its own between convolution and table; with a clamp or a leak it needs none."""
    for activation, kinds in (
        ("Sigmoid", ["Conv", "AddSigmoid"]),
        ("Relu", ["ConvAddRelu"]),
        ("LeakyRelu", ["ConvAddLeakyRelu"]),
    ):
        net = Net()
        x = net.input("x", (1, 4, 7, 7))
        net.output(net.op(activation, net.op("Add", net.conv(x, 4, 1), x)))
        run = execute(net.proto())
        assert run.kinds == kinds
        assert_close_in_steps(run, 5.0)


def test_parts_of_a_concat_take_its_scale_unless_others_read_them() -> None:
    net = Net()
    x = net.input("x", (1, 4, 7, 7))
    small = net.op("Conv", x, net.weights(4, 4, 1, 1, scale=0.01))
    alone = net.op("Conv", x, net.weights(4, 4, 1, 1, scale=0.01))
    large = net.op("Conv", x, net.weights(4, 4, 1, 1, scale=10.0))
    joined = net.op("Concat", small, alone, large, axis=1)
    net.output(joined, net.conv(small, 4, 1, cin=4))
    run = execute(net.proto(), without=["mixed"])
    scales = {}
    for name in (small, alone, large, joined):
        quantization = run.program.tensors[name].quantization
        assert quantization is not None
        scales[name] = quantization.scale
    assert scales[alone] == scales[large] == scales[joined]
    assert scales[small] < 0.01 * scales[joined]
    assert_close_in_steps(run, 5.0)


def test_what_is_joined_and_taken_apart_again_keeps_its_scale() -> None:
    """As exports of detectors do it, to scale boxes but not scores."""
    net = Net()
    x = net.input("x", (1, 4, 7, 7))
    boxes = net.op("Mul", net.op("Sigmoid", net.conv(x, 4, 1)), net.constant(600.0))
    scores = net.op("Sigmoid", net.conv(x, 3, 1))
    joined = net.op("Concat", boxes, scores, axis=1)
    first = net.op("Slice", joined, *(net.constant(values) for values in ([0], [4], [1])))
    second = net.op("Slice", joined, *(net.constant(values) for values in ([4], [7], [1])))
    net.output(net.op("Concat", net.op("Div", first, net.constant(640.0)), second, axis=1))
    run = execute(net.proto())
    assert "Slice" not in run.kinds
    quantization = run.program.output_specs[0].quantization
    assert quantization is not None
    assert float(np.max(quantization.scale)) < 1.1 / 255
    assert_close_in_steps(run, 5.0)


def test_groups_only_before_readers_that_can_take_them() -> None:
    """A dense convolution that pads has one zero for all channels, and an element-wise reader one scale."""
    sizes = np.repeat([1.0, 0.001], 4).astype(np.float32)
    for reader, expected in (("dense", True), ("padded", False), ("add", False), ("grouped", False)):
        net = Net()
        weights = net.random.normal(size=(8, 3, 3, 3)).astype(np.float32) * sizes[:, None, None, None]
        y = net.op("Conv", net.input("x", (1, 3, 9, 9)), net.constant(weights))
        dense = net.constant(net.random.normal(size=(8, 8, 3, 3)).astype(np.float32) / sizes[None, :, None, None])
        if reader == "add":
            net.output(net.op("Conv", y, dense), net.op("Max", y, net.op("Tanh", y)))
        elif reader == "grouped":
            half = net.random.normal(size=(8, 4, 3, 3)).astype(np.float32)
            half[4:] /= sizes[-1]
            net.output(net.op("Conv", y, net.constant(half), group=2))
        else:
            net.output(net.op("Conv", y, dense, pads=[1, 1, 1, 1] if reader == "padded" else [0, 0, 0, 0]))
        quantization = execute(net.proto(), channel_groups=2).program.tensors[y].quantization
        assert isinstance(quantization, Affine)
        assert bool(quantization.group_sizes) is expected, reader


def test_layers_name_the_nodes_they_are_made_of() -> None:
    net = Net()
    y = net.batch_norm(net.conv(net.input("x", (1, 3, 9, 9)), 4, bias=False), 4)
    sigmoid = net.op("Sigmoid", y)
    net.output(net.op("Mul", y, sigmoid))
    (layer,) = execute(net.proto()).program.layers
    assert (layer.name, layer.kind) == ("node_Conv_0", "ConvSwish")
    assert set(layer.nodes) == {"node_Conv_0", "node_Sigmoid_2", "node_Mul_3"}
