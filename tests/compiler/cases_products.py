"""Convolutions, transposed convolutions and matmuls, with what is folded into them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases import Build, Cases
from .onnx_builders import Net

PRODUCTS = Cases()
_STEPS = 4.0


def _conv(
    channels: int = 8, kernel: int | tuple[int, ...] = 3, shape: tuple[int, ...] = (1, 8, 11, 13), **attributes: Any
) -> Build:
    def build(net: Net) -> None:
        net.output(net.conv(net.input("x", shape), channels, kernel, **attributes))

    return build


for _name, _build in {
    "plain": _conv(),
    "no bias": _conv(bias=False),
    "batch of 2": _conv(shape=(2, 8, 9, 9)),
    "symmetric pads": _conv(pads=[1, 1, 1, 1]),
    "asymmetric pads": _conv(pads=[0, 2, 1, 3], strides=[2, 2]),
    "unequal strides": _conv(strides=[1, 3], pads=[1, 0, 1, 0]),
    "oblong kernel": _conv(kernel=(1, 5), pads=[0, 2, 0, 2]),
    "dilated": _conv(dilations=[2, 3], pads=[2, 3, 2, 3]),
    "2 groups": _conv(channels=12, group=2),
    "4 groups": _conv(channels=16, group=4, pads=[1, 1, 1, 1], strides=[2, 2]),
    "depthwise": _conv(channels=8, group=8, pads=[1, 1, 1, 1]),
    "depthwise with multiplier": _conv(channels=16, group=8),
    "1x1": _conv(channels=5, kernel=1),
    "kernel as large as the image": _conv(kernel=(11, 13)),
    "one pixel": _conv(shape=(1, 8, 1, 1), kernel=1),
    "1d": _conv(kernel=(3,), shape=(1, 8, 17)),
    "1d strided and padded": _conv(kernel=(5,), shape=(2, 8, 17), strides=[2], pads=[3, 1], dilations=[2]),
    "1d depthwise": _conv(kernel=(3,), shape=(1, 8, 17), group=8, pads=[1, 1]),
    "explicit kernel_shape": _conv(kernel_shape=[3, 3]),
    **{
        f"auto_pad {mode} stride {stride}": _conv(kernel=kernel, auto_pad=mode, strides=[stride, stride])
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for stride, kernel in ((1, 3), (2, 3), (3, 4))
    },
    "auto_pad SAME_UPPER 1d": _conv(kernel=(4,), shape=(1, 8, 18), auto_pad="SAME_UPPER", strides=[2]),
    "auto_pad NOTSET": _conv(auto_pad="NOTSET", pads=[1, 1, 1, 1]),
}.items():
    PRODUCTS.add(f"Conv {_name}", _build, steps=_STEPS, kinds=("Conv",))
PRODUCTS.add("Conv opset 7", _conv(pads=[1, 1, 1, 1]), opset=7, steps=_STEPS, kinds=("Conv",))
PRODUCTS.add("Conv 3d", _conv(kernel=(3, 3, 3), shape=(1, 4, 6, 6, 6)), integer=False, steps=0.3)


def _conv_with_computed_weights(net: Net) -> None:
    x, w = net.input("x", (1, 4, 8, 8)), net.input("w", (6, 4, 3, 3))
    net.output(net.op("Conv", x, w))


PRODUCTS.add("Conv with computed weights", _conv_with_computed_weights, integer=False, steps=0.3)


def _transposed(cin: int = 6, cout: int = 4, kernel: tuple[int, ...] = (3, 3), group: int = 1, **attributes: Any) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", (1, cin, *(5, 6, 4)[: len(kernel)]))
        weights = net.weights(cin, cout // group, *kernel, scale=0.3)
        net.output(net.op("ConvTranspose", x, weights, net.weights(cout, scale=0.1), group=group, **attributes))

    return build


for _name, _build in {
    "plain": _transposed(),
    "2x2 stride 2": _transposed(kernel=(2, 2), strides=[2, 2]),
    "4x4 stride 2": _transposed(kernel=(4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    "asymmetric pads": _transposed(strides=[2, 2], pads=[0, 1, 1, 0]),
    "output_padding": _transposed(strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 0]),
    "output_shape": _transposed(strides=[2, 2], output_shape=[10, 12]),
    "output_shape SAME_UPPER": _transposed(strides=[2, 2], output_shape=[10, 12], auto_pad="SAME_UPPER"),
    "output_shape SAME_LOWER": _transposed(strides=[2, 2], output_shape=[10, 12], auto_pad="SAME_LOWER"),
    "auto_pad SAME_UPPER": _transposed(strides=[2, 2], auto_pad="SAME_UPPER"),
    "auto_pad VALID": _transposed(strides=[2, 2], auto_pad="VALID"),
    "dilated": _transposed(dilations=[2, 2]),
    "2 groups": _transposed(group=2, strides=[2, 2]),
    "depthwise": _transposed(cout=6, group=6, strides=[2, 2], kernel=(4, 4), pads=[1, 1, 1, 1]),
}.items():
    PRODUCTS.add(f"ConvTranspose {_name}", _build, steps=_STEPS, kinds=("ConvTranspose",))
for _name, _build in {
    "1d": _transposed(kernel=(3,)),
    "1d stride 2": _transposed(kernel=(4,), strides=[2], pads=[1, 1]),
    "1d asymmetric pads": _transposed(kernel=(4,), strides=[2], pads=[0, 1], output_padding=[1]),
    "1d SAME_UPPER": _transposed(kernel=(3,), strides=[2], output_shape=[10], auto_pad="SAME_UPPER"),
    "1d 2 groups": _transposed(kernel=(4,), group=2, strides=[2]),
}.items():
    PRODUCTS.add(f"ConvTranspose {_name}", _build, steps=_STEPS, kinds=("ConvTranspose",))


def _gemm(bias: tuple[int, ...] | None = (7,), rows: int = 3, **attributes: Any) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", (rows, 20) if not attributes.get("transA") else (20, rows))
        shape = (7, 20) if attributes.get("transB") else (20, 7)
        inputs = [x, net.weights(*shape, scale=0.3)]
        if bias is not None:
            inputs.append(net.weights(*bias))
        net.output(net.op("Gemm", *inputs, **attributes))

    return build


for _name, _build in {
    "plain": _gemm(),
    "transB": _gemm(transB=1),
    "alpha and beta": _gemm(alpha=0.5, beta=2.0),
    "transB, alpha and beta": _gemm(transB=1, alpha=-1.5, beta=0.25),
    "no bias": _gemm(bias=None, transB=1),
    "bias of one row": _gemm(bias=(1, 7)),
    "scalar bias": _gemm(bias=(1,), beta=3.0),
    "bias of rank 0": _gemm(bias=()),
    "beta 0": _gemm(beta=0.0),
}.items():
    PRODUCTS.add(f"Gemm {_name}", _build, steps=_STEPS, kinds=("Gemm",))
PRODUCTS.add("Gemm bias by row", _gemm(bias=(3, 1)), steps=3.0)
PRODUCTS.add("Gemm bias by row and column", _gemm(bias=(3, 7)), steps=3.0)
PRODUCTS.add("Gemm bias by row, transB", _gemm(bias=(3, 7), transB=1), steps=3.0)
PRODUCTS.add("Gemm transA", _gemm(transA=1), steps=_STEPS)
PRODUCTS.add("Gemm opset 9", _gemm(transB=1), opset=9, steps=_STEPS, kinds=("Gemm",))


def _gemm_with_computed_bias(net: Net) -> None:
    x, c = net.input("x", (3, 20)), net.input("c", (7,))
    net.output(net.op("Gemm", x, net.weights(20, 7, scale=0.3), c))


PRODUCTS.add("Gemm with computed bias", _gemm_with_computed_bias, integer=False, steps=0.5)


def _matmul(left: tuple[int, ...], right: tuple[int, ...], *, bias: tuple[int, ...] | None = None, then: str = "") -> Build:
    def build(net: Net) -> None:
        y = net.op("MatMul", net.input("x", left), net.weights(*right, scale=0.3))
        if bias is not None:
            y = net.op("Add", net.weights(*bias), y) if len(bias) > 1 else net.op("Add", y, net.weights(*bias))
        net.output(net.op(then, y) if then else y)

    return build


PRODUCTS.add("MatMul rank 2", _matmul((3, 20), (20, 7)), steps=_STEPS, kinds=("Gemm",))
PRODUCTS.add("MatMul rank 2 and bias", _matmul((3, 20), (20, 7), bias=(7,)), steps=_STEPS)
PRODUCTS.add("MatMul rank 3", _matmul((2, 5, 20), (20, 7)), steps=_STEPS, kinds=("MatMul",))
PRODUCTS.add("MatMul rank 3 and bias", _matmul((2, 5, 20), (20, 7), bias=(7,)), steps=_STEPS, kinds=("MatMul",))
PRODUCTS.add("MatMul rank 3, bias before", _matmul((2, 5, 20), (20, 7), bias=(1, 1, 7)), steps=_STEPS, kinds=("MatMul",))
PRODUCTS.add("MatMul, bias and Relu", _matmul((2, 5, 20), (20, 7), bias=(7,), then="Relu"), steps=_STEPS, kinds=("MatMulRelu",))
PRODUCTS.add(
    "MatMul, bias and Sigmoid", _matmul((2, 5, 20), (20, 7), bias=(7,), then="Sigmoid"), steps=3.0, kinds=("MatMulSigmoid",)
)
PRODUCTS.add("MatMul rank 4", _matmul((1, 2, 5, 20), (20, 7)), steps=_STEPS)
PRODUCTS.add("MatMul of one unit", _matmul((2, 5, 20), (20, 1), bias=(1,)), steps=_STEPS)
PRODUCTS.add("MatMul stacked weights", _matmul((2, 5, 20), (2, 20, 7)), integer=False, steps=0.5)


def _matmul_of_two(left: tuple[int, ...], right: tuple[int, ...], *, then: str = "") -> Build:
    def build(net: Net) -> None:
        y = net.op("MatMul", net.input("a", left), net.input("b", right))
        net.output(net.op(then, y) if then else y)

    return build


PRODUCTS.add("MatMul of two, rank 2", _matmul_of_two((5, 16), (16, 6)), steps=_STEPS, kinds=("MatMul",))
PRODUCTS.add("MatMul of two, rank 3", _matmul_of_two((2, 5, 16), (2, 16, 6)), steps=_STEPS, kinds=("MatMul",))
PRODUCTS.add("MatMul of two, rank 4", _matmul_of_two((1, 3, 5, 16), (1, 3, 16, 6)), steps=_STEPS)
PRODUCTS.add("MatMul of two, broadcast", _matmul_of_two((2, 3, 5, 16), (1, 3, 16, 6)), steps=_STEPS)
PRODUCTS.add("MatMul of two, Tanh", _matmul_of_two((2, 5, 16), (2, 16, 6), then="Tanh"), steps=_STEPS, kinds=("MatMulTanh",))
PRODUCTS.add("MatMul of two, unlike ranks", _matmul_of_two((2, 5, 16), (16, 6)), integer=False, steps=0.5)


def _attention(net: Net) -> None:
    """Heads of rank 4 that come from a product of rank 3: reshape, transpose, two products of activations, a softmax."""
    x = net.input("x", (1, 6, 16))

    def heads(perm: list[int]) -> str:
        y = net.op("Add", net.op("MatMul", x, net.weights(16, 16, scale=0.25)), net.weights(16, scale=0.1))
        return net.op("Transpose", net.op("Reshape", y, net.constant([1, 6, 2, 8])), perm=perm)

    scores = net.op("Softmax", net.op("MatMul", heads([0, 2, 1, 3]), heads([0, 2, 3, 1])), axis=-1)
    mixed = net.op("Transpose", net.op("MatMul", scores, heads([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    joined = net.op("Reshape", mixed, net.constant([1, 6, 16]))
    net.output(net.op("Add", net.op("MatMul", joined, net.weights(16, 16, scale=0.25)), x))


PRODUCTS.add("attention", _attention, steps=_STEPS)


def _norm(*, before: bool, after: str = "", shape: tuple[int, ...] = (1, 8, 9, 9)) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", shape)
        y = net.conv(x, 8, (3,) * (len(shape) - 2), bias=False) if before else x
        y = net.batch_norm(y, shape[1])
        net.output(net.op(after, y) if after else y)

    return build


PRODUCTS.add("BatchNormalization alone", _norm(before=False), steps=2.0, kinds=("Conv",))
PRODUCTS.add("BatchNormalization rank 3", _norm(before=False, shape=(1, 8, 9)), steps=2.0, kinds=("Conv",))
PRODUCTS.add("BatchNormalization after Conv", _norm(before=True), steps=_STEPS, kinds=("Conv",))
PRODUCTS.add("BatchNormalization after Conv, Relu", _norm(before=True, after="Relu"), steps=_STEPS, kinds=("ConvRelu",))
PRODUCTS.add("BatchNormalization after Conv 1d", _norm(before=True, shape=(1, 8, 9)), steps=_STEPS, kinds=("Conv",))


def _norm_after_transposed(net: Net) -> None:
    x = net.input("x", (1, 6, 5, 5))
    y = net.op("ConvTranspose", x, net.weights(6, 2, 2, 2, scale=0.3), group=2, strides=[2, 2])
    net.output(net.op("Relu", net.batch_norm(y, 4)))


def _norm_after_gemm(net: Net) -> None:
    y = net.op("Gemm", net.input("x", (4, 12)), net.weights(7, 12, scale=0.3), net.weights(7), transB=1, alpha=0.5)
    net.output(net.batch_norm(y, 7))


def _norm_rank_2(net: Net) -> None:
    net.output(net.batch_norm(net.input("x", (4, 12)), 12))


def _affine_chain(net: Net) -> None:
    """Everything that a convolution absorbs: scale, shift, difference and quotient per channel."""
    y = net.conv(net.input("x", (1, 6, 7, 7)), 6, bias=False)
    y = net.op("Mul", y, net.weights(1, 6, 1, 1, shift=2.0, scale=0.3))
    y = net.op("Add", net.weights(6, 1, 1), y)
    y = net.op("Sub", net.weights(1, 6, 1, 1), y)
    y = net.op("Div", y, net.weights(6, 1, 1, shift=2.0, scale=0.2))
    net.output(net.op("Sub", y, net.constant(0.25)))


def _norm_of_shared_result(net: Net) -> None:
    """The convolution is read by two: nothing may be folded into it."""
    y = net.conv(net.input("x", (1, 6, 7, 7)), 6)
    net.output(net.op("Add", net.batch_norm(y, 6), y))


PRODUCTS.add("BatchNormalization after grouped ConvTranspose", _norm_after_transposed, steps=_STEPS, kinds=("ConvTransposeRelu",))
PRODUCTS.add("BatchNormalization after Gemm", _norm_after_gemm, steps=_STEPS, kinds=("Gemm",))
PRODUCTS.add("BatchNormalization rank 2", _norm_rank_2, integer=False, steps=0.5)
PRODUCTS.add("scale and shift per channel after Conv", _affine_chain, steps=_STEPS, kinds=("Conv",))
PRODUCTS.add("BatchNormalization of a tensor with two readers", _norm_of_shared_result, steps=_STEPS)


def _residual(net: Net) -> None:
    x = net.input("x", (1, 8, 9, 9))
    first = net.op("Relu", net.conv(x, 8, pads=[1, 1, 1, 1]))
    second = net.conv(first, 8, cin=8, pads=[1, 1, 1, 1])
    net.output(net.op("Relu", net.op("Add", second, first)))


def _two_convolutions_added(net: Net) -> None:
    x = net.input("x", (1, 8, 9, 9))
    net.output(net.op("Add", net.conv(x, 8, pads=[1, 1, 1, 1]), net.conv(x, 8, 1)))


def _squeeze_and_excite(net: Net) -> None:
    x = net.op("Relu", net.conv(net.input("x", (1, 8, 9, 9)), 8))
    y = net.op("GlobalAveragePool", x)
    y = net.op("Relu", net.conv(y, 4, 1, cin=8))
    y = net.op("HardSigmoid", net.conv(y, 8, 1, cin=4), alpha=float(np.float32(1 / 6)), beta=0.5)
    net.output(net.op("Mul", x, y))


PRODUCTS.add("residual", _residual, steps=5.0, kinds=("ConvRelu", "ConvAddRelu"))
PRODUCTS.add("two convolutions added", _two_convolutions_added, steps=5.0, kinds=("Conv", "ConvAdd"))
PRODUCTS.add("squeeze and excite", _squeeze_and_excite, steps=5.0)


def _pad_then_conv(form: str, pads: list[int], value: float = 0.0) -> Build:
    def build(net: Net) -> None:
        x = net.input("x", (1, 4, 8, 8))
        if form == "attribute":
            y = net.op("Pad", x, pads=pads, value=value)
        elif form == "bare":
            y = net.op("Pad", x, net.constant(pads))
        else:
            y = net.op("Pad", x, net.constant(pads), net.constant(value))
        net.output(net.conv(y, 4, cin=4, pads=[1, 0, 0, 1]))

    return build


_AROUND = [0, 0, 1, 2, 0, 0, 3, 0]
PRODUCTS.add("Pad attribute folded into Conv", _pad_then_conv("attribute", _AROUND), opset=7, steps=_STEPS, kinds=("Conv",))
PRODUCTS.add("Pad input folded into Conv", _pad_then_conv("input", _AROUND), steps=_STEPS, kinds=("Conv",))
PRODUCTS.add("Pad without value folded into Conv", _pad_then_conv("bare", _AROUND), steps=_STEPS, kinds=("Conv",))
