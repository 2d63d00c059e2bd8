"""How operators meet: heads, float layers between integer ones, unusual inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases import Build, Cases
from .onnx_builders import Net

GRAPHS = Cases()


def _head(reshape: list[int], perm: list[int], then: str = "Softmax") -> Build:
    """Conv, reshape, transpose and softmax: the head of a detector or of a text recognizer."""

    def build(net: Net) -> None:
        y = net.conv(net.input("x", (1, 4, 5, 6)), 8, 1)
        y = net.op("Transpose", net.op("Reshape", y, net.constant(reshape)), perm=perm)
        net.output(net.op(then, y, axis=-1) if then == "Softmax" else net.op(then, y))

    return build


# what the convolution writes, channels last, already is what the transpose asks for
GRAPHS.add(
    "head with Softmax",
    _head([1, 8, 30], [0, 2, 1]),
    steps=3.0,
    integer=False,
    kinds=("Conv", "Dequantize", "Softmax", "Quantize"),
)
GRAPHS.add("head with Sigmoid", _head([1, 8, 30], [0, 2, 1], "Sigmoid"), steps=4.0, kinds=("Conv", "Sigmoid"))
GRAPHS.add("head by anchor", _head([1, 2, 4, 5, 6], [0, 1, 3, 4, 2], "Sigmoid"), steps=4.0)
GRAPHS.add("head with Tanh of swapped axes", _head([1, 8, 30], [1, 0, 2], "Tanh"), steps=4.0)


def _classifier(flatten: str, *, pool: bool = False, opset: int = 13) -> Build:
    def build(net: Net) -> None:
        y = net.op("Relu", net.conv(net.input("x", (2, 3, 6, 7)), 5, 3, pads=[1, 1, 1, 1]))
        if pool:
            y = net.op("GlobalAveragePool", y)
        size = 5 if pool else 5 * 42
        if flatten == "Reshape":
            y = net.op("Reshape", y, net.constant([2, size]))
        else:
            y = net.op(flatten, y)
        net.output(net.op("Gemm", y, net.weights(9, size, scale=0.1), net.weights(9, scale=0.1), transB=1))

    return build


GRAPHS.add("Flatten before Gemm", _classifier("Flatten"), steps=5.0, kinds=("ConvRelu", "Gemm"))
GRAPHS.add("Reshape before Gemm", _classifier("Reshape"), steps=5.0, kinds=("ConvRelu", "Gemm"))
GRAPHS.add("pooling before Gemm", _classifier("Flatten", pool=True), steps=6.0, kinds=("ConvRelu", "GlobalAveragePool", "Gemm"))


def _flattened_twice(net: Net) -> None:
    """The flattened tensor is read by a product, which could take any order, and by a sum, which cannot."""
    y = net.op("Flatten", net.conv(net.input("x", (1, 3, 4, 5)), 2, 1))
    net.output(net.op("Gemm", y, net.weights(40, 7, scale=0.2)), net.op("Add", y, net.input("other", (1, 40))))


def _flattened_output(net: Net) -> None:
    """A flattened tensor that a product reads, and that is an output as well."""
    y = net.op("Flatten", net.conv(net.input("x", (1, 3, 4, 5)), 2, 1))
    net.output(y, net.op("Gemm", y, net.weights(40, 7, scale=0.2)))


def _row_flattened(net: Net) -> None:
    """Rank 3, channels last in memory, flattened into a product."""
    y = net.op("Flatten", net.conv(net.input("x", (2, 3, 9)), 4, (3,)))
    net.output(net.op("Gemm", y, net.weights(28, 7, scale=0.2)))


GRAPHS.add("Flatten read by two", _flattened_twice, steps=4.0)
GRAPHS.add("Flatten that is an output", _flattened_output, steps=4.0)
GRAPHS.add("Flatten of rank 3 before Gemm", _row_flattened, steps=4.0, kinds=("Conv", "Gemm"))


def _between(op: str, *constants: Any, opset_inputs: tuple[str, ...] = (), **attributes: Any) -> Build:
    """An operator without an integer form between two convolutions."""

    def build(net: Net) -> None:
        y = net.op("Relu", net.conv(net.input("x", (1, 4, 7, 7)), 6, pads=[1, 1, 1, 1]))
        y = net.op(op, y, *map(net.constant, constants), **attributes)
        net.output(net.conv(y, 5, 1, cin=6))

    return build


GRAPHS.add("Softmax between convolutions", _between("Softmax", axis=1), steps=5.0)
GRAPHS.add(
    "LayerNormalization between convolutions",
    _between("LayerNormalization", np.full(7, 1.5, np.float32), np.full(7, 0.1, np.float32)),
    opset=17,
    steps=5.0,
)
GRAPHS.add(
    "InstanceNormalization between convolutions",
    _between("InstanceNormalization", np.full(6, 1.5, np.float32), np.full(6, 0.1, np.float32)),
    steps=5.0,
)
GRAPHS.add("ReduceSum between convolutions", _between("ReduceSum", [3]), steps=5.0)
GRAPHS.add("ReduceMax between convolutions", _between("ReduceMax", axes=[2]), steps=5.0)
GRAPHS.add("Gather between convolutions", _between("Gather", [3, 1, 0, 2, 2, 5], axis=1), steps=5.0)
GRAPHS.add("Tile between convolutions", _between("Tile", [1, 1, 2, 1]), steps=5.0)
GRAPHS.add("Expand between convolutions", _between("Expand", [2, 6, 7, 7]), steps=5.0)
GRAPHS.add("CumSum between convolutions", _between("CumSum", np.int64(2)), steps=5.0)
GRAPHS.add("LRN between convolutions", _between("LRN", size=3), steps=5.0)
GRAPHS.add("LogSoftmax between convolutions", _between("LogSoftmax", axis=1), steps=5.0)


def _several_stretches(net: Net) -> None:
    """Integer, float, integer, float: two segments of float layers, and a tensor that crosses both."""
    x = net.op("Relu", net.conv(net.input("x", (1, 4, 6, 6)), 4, 1))
    y = net.op("Softmax", x, axis=1)
    y = net.op("Relu", net.conv(y, 4, 1, cin=4))
    z = net.op("Softmax", net.op("Add", x, y), axis=3)
    net.output(net.conv(z, 3, 1, cin=4), net.op("ReduceSum", z, net.constant([1])))


def _layer_norm_parts(net: Net) -> None:
    """A layer normalization as older exporters write it."""
    x = net.op("MatMul", net.input("x", (1, 6, 8)), net.weights(8, 8, scale=0.4))
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
    variance = net.op("ReduceMean", net.op("Pow", centred, net.constant(2.0)), axes=[-1])
    y = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.constant(1e-5))))
    y = net.op("Add", net.op("Mul", y, net.weights(8, shift=1.0, scale=0.1)), net.weights(8, scale=0.1))
    net.output(net.op("MatMul", y, net.weights(8, 5, scale=0.4)))


GRAPHS.add("several stretches", _several_stretches, steps=5.0)
GRAPHS.add("LayerNormalization in parts", _layer_norm_parts, steps=6.0)


def _lstm(net: Net) -> None:
    x = net.input("x", (5, 1, 8))
    outputs = net.ops(
        "LSTM",
        x,
        net.weights(1, 24, 8, scale=0.4),
        net.weights(1, 24, 6, scale=0.4),
        net.weights(1, 48, scale=0.1),
        count=3,
        hidden_size=6,
    )
    net.output(net.op("MatMul", net.op("Squeeze", outputs[0], net.constant([1])), net.weights(6, 4, scale=0.4)), outputs[2])


GRAPHS.add("LSTM", _lstm, steps=4.0)


def _inputs_of_all_kinds(net: Net) -> None:
    """An image of bytes, channels last, a table of embeddings and a mask."""
    image = net.op("Transpose", net.op("Cast", net.input("image", (1, 6, 6, 3), np.uint8), to=1), perm=[0, 3, 1, 2])
    y = net.op("GlobalAveragePool", net.op("Relu", net.conv(image, 4, cin=3)))
    words = net.op("Gather", net.weights(4, 4), net.input("words", (1, 5), np.int64))
    masked = net.op("Where", net.input("mask", (1, 5, 1), np.bool_), words, net.constant(0.0))
    pooled = net.op("ReduceSum", masked, net.constant([1]), keepdims=0)
    net.output(net.op("Add", net.op("Flatten", y), pooled))


GRAPHS.add("bytes, indices and a mask as inputs", _inputs_of_all_kinds, steps=3.0, integer=False)


def _input_read_by_both(net: Net) -> None:
    x = net.input("x", (1, 4, 6, 6))
    net.output(net.conv(x, 4), net.op("ReduceSum", x, net.constant([1])))


def _intermediate_output(net: Net) -> None:
    y = net.op("Relu", net.conv(net.input("x", (1, 4, 6, 6)), 4))
    net.output(y, net.op("Sigmoid", net.conv(y, 4, cin=4)))


def _before_and_after_activation(net: Net) -> None:
    """The tensor before an activation is an output too: nothing may be fused over it."""
    y = net.conv(net.input("x", (1, 4, 6, 6)), 4)
    net.output(y, net.op("Relu", y), net.op("Sigmoid", y))


def _reshape_output(net: Net) -> None:
    net.output(net.op("Reshape", net.conv(net.input("x", (1, 4, 6, 6)), 4, 1), net.constant([1, 4, 36])))


def _reshape_and_itself(net: Net) -> None:
    y = net.conv(net.input("x", (1, 4, 6, 6)), 4, 1)
    net.output(net.op("Reshape", y, net.constant([1, 4, 36])), y)


def _transposed_view_output(net: Net) -> None:
    """The transpose to channels last costs nothing: it is the memory that the convolution wrote."""
    net.output(net.op("Transpose", net.conv(net.input("x", (1, 4, 6, 6)), 4, 1), perm=[0, 2, 3, 1]))


def _two_views(net: Net) -> None:
    y = net.op("Tanh", net.input("x", (2, 12)))
    net.output(net.op("Reshape", y, net.constant([4, 6])), net.op("Reshape", y, net.constant([24])), net.op("Neg", y))


def _view_of_input(net: Net) -> None:
    x = net.input("x", (2, 12))
    net.output(net.op("Reshape", x, net.constant([4, 6])), net.op("Gemm", x, net.weights(12, 5, scale=0.3)))


def _input_to_output(net: Net) -> None:
    x = net.input("x", (1, 4, 6, 6))
    net.output(net.op("Identity", x), net.conv(x, 4))


def _only_identity(net: Net) -> None:
    net.output(net.op("Identity", net.input("x", (1, 4, 6, 6))))


def _identity_of_output(net: Net) -> None:
    y = net.conv(net.input("x", (1, 4, 6, 6)), 4)
    net.output(y, net.op("Identity", y))


def _dropout_and_identity(net: Net) -> None:
    y = net.op("Identity", net.conv(net.input("x", (1, 4, 6, 6)), 4))
    net.output(net.op("Relu", net.op("Dropout", net.op("Identity", y))))


def _cast_to_half(net: Net) -> None:
    y = net.op("Cast", net.op("Cast", net.conv(net.input("x", (1, 4, 6, 6)), 4), to=10), to=1)
    net.output(net.conv(y, 4, 1, cin=4))


def _shape_arithmetic(net: Net) -> None:
    """The target of a reshape computed from the shape of a tensor, as PyTorch exports it."""
    x = net.input("x", (2, 4, 6, 6))
    y = net.conv(x, 4, 1)
    batch = net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), net.constant(0)), net.constant([0]))
    net.output(net.op("Relu", net.op("Reshape", y, net.op("Concat", batch, net.constant([-1]), axis=0))))


def _shared_weights(net: Net) -> None:
    """One constant for two convolutions, of which one absorbs a scale."""
    x = net.input("x", (1, 4, 6, 6))
    weights = net.weights(4, 4, 3, 3, scale=0.2)
    first = net.op("Mul", net.op("Conv", x, weights), net.weights(4, 1, 1, shift=2.0))
    net.output(net.op("Add", first, net.op("Conv", x, weights)))


def _dead_nodes(net: Net) -> None:
    x = net.input("x", (1, 4, 6, 6))
    net.op("Softmax", net.conv(x, 4))
    net.output(net.conv(x, 4))


def _float64_product(net: Net) -> None:
    """Double precision in the middle: folding a scale into such weights would change their type."""
    x = net.op("Cast", net.input("x", (3, 4)), to=11)
    y = net.op("Gemm", x, net.constant(net.random.normal(size=(4, 5))))
    parameters = [net.constant(value) for value in (np.full(5, 1.5), np.full(5, 0.1), np.zeros(5), np.ones(5))]
    net.output(net.op("Cast", net.op("BatchNormalization", y, *parameters), to=1))


def _float16_model(net: Net) -> None:
    """A model that was exported in half precision: nothing of it is float32."""
    x = net.input("x", (1, 4, 6, 6), np.float16)
    y = net.op("Conv", x, net.constant(net.random.normal(size=(4, 4, 3, 3)).astype(np.float16)))
    ones = [net.constant(value.astype(np.float16)) for value in (np.full(4, 1.5), np.full(4, 0.1), np.zeros(4), np.ones(4))]
    net.output(net.op("Relu", net.op("BatchNormalization", y, *ones)))


for _name, _build, _steps in (
    ("output that is read again", _intermediate_output, 5.0),
    ("outputs before and after activations", _before_and_after_activation, 4.0),
    ("output that is a reshape", _reshape_output, 4.0),
    ("output and its reshape", _reshape_and_itself, 4.0),
    ("output that is a transpose", _transposed_view_output, 4.0),
    ("two outputs of one memory", _two_views, 1.1),
    ("output that views an input", _view_of_input, 4.0),
    ("Identity and Dropout", _dropout_and_identity, 4.0),
    ("Cast to half and back", _cast_to_half, 4.0),
    ("computed reshape", _shape_arithmetic, 4.0),
    ("shared weights", _shared_weights, 5.0),
    ("dead nodes", _dead_nodes, 4.0),
):
    GRAPHS.add(_name, _build, steps=_steps)
GRAPHS.add("input read by integer and float", _input_read_by_both, steps=4.0)
GRAPHS.add("input to output", _input_to_output, integer=False, steps=4.0)
GRAPHS.add("output twice", _identity_of_output, integer=False, steps=4.0)
GRAPHS.add("Identity and nothing else", _only_identity, integer=False, steps=0.3)
GRAPHS.add("double precision", _float64_product, steps=4.0)
GRAPHS.add("half precision", _float16_model, steps=4.0)


def _outputs_everywhere(net: Net) -> None:
    """Reshapes that are outputs and are read again, one of an input and one of another output."""
    x = net.input("x", (1, 4, 6, 6))
    rows = net.op("Reshape", x, net.constant([1, 4, 36]))
    y = net.conv(rows, 4, (1,), cin=4)
    flat = net.op("Flatten", y)
    net.output(rows, y, flat, net.op("Gemm", flat, net.weights(144, 3, scale=0.1)), net.op("ReduceSum", flat, net.constant([1])))


GRAPHS.add("outputs that are views and are read", _outputs_everywhere, steps=5.0)
