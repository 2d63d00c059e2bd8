"""Hashes of compiled models and of JSON output, to show that a change of structure changes no result.

    python tools/golden.py check                    # compares with tests/golden.json
    python tools/golden.py check --files FOLDER     # writes the models and outputs there as well, to look at what differs
    python tools/golden.py open --files FOLDER      # files of an earlier tree can be read and written again, byte by byte
    python tools/golden.py write                    # records the present results
    python tools/golden.py write --wide --record FILE    # before a change; with check afterwards

``--wide`` adds the operator cases of tests/compiler, in int8 and float16 and for a chip of Allwinner, and the real models of the tests: a
minute or two. Record these outside the repository, with the tree before the change.

A hash is that of the saved file without text for people (provenance, reasons), and of JSON output without strings that have spaces.
Results of calibration depend on the versions of numpy and onnxruntime and on the processor in the last bit: they are compared only where
these are the recorded ones. The other results need no calibration.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "golden.json"
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
from compiler.onnx_builders import Net  # noqa: E402

import anynpu  # noqa: E402
from anynpu import modelfile  # noqa: E402
from anynpu.errors import AnynpuError  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]


def classifier() -> Net:
    """Convolutions, pooling, a fully connected layer."""
    net = Net(seed=1)
    x = net.op("Relu", net.conv(net.input("x", (1, 3, 16, 16)), 8, pads=[1, 1, 1, 1], strides=[2, 2]))
    x = net.op("Relu", net.batch_norm(net.conv(x, 12, cin=8, pads=[1, 1, 1, 1]), 12))
    x = net.op("GlobalAveragePool", x)
    net.output(net.op("Gemm", net.op("Flatten", x), net.weights(12, 10, scale=0.3), net.weights(10, scale=0.2)))
    return net


def detector() -> Net:
    """A residual block, a split, a concatenation, an enlarged map, SiLU and two heads."""
    net = Net(seed=2)

    def silu(x: str) -> str:
        return net.op("Mul", x, net.op("Sigmoid", x))

    x = silu(net.conv(net.input("x", (1, 3, 24, 32)), 8, pads=[1, 1, 1, 1], strides=[2, 2]))
    left, right = net.ops("Split", x, count=2, axis=1)
    right = net.op("Add", right, silu(net.conv(right, 4, cin=4, pads=[1, 1, 1, 1])))
    joined = silu(net.conv(net.op("Concat", left, right, axis=1), 12, 1, cin=8))
    small = silu(net.conv(joined, 12, cin=12, pads=[1, 1, 1, 1], strides=[2, 2]))
    sizes = net.constant(np.zeros(0, np.float32)), net.constant([1.0, 1.0, 2.0, 2.0])
    large = net.op("Concat", net.op("Resize", small, *sizes, mode="nearest"), joined, axis=1)
    net.output(net.conv(large, 6, 1, cin=24), net.op("Sigmoid", net.conv(small, 6, 1, cin=12)))
    return net


def mobile() -> Net:
    """Depthwise convolutions, clipped activations, squeeze and excitation."""
    net = Net(opset=14, seed=3)
    x = net.op("Clip", net.conv(net.input("x", (1, 3, 16, 16)), 8, pads=[1, 1, 1, 1]), net.constant(0.0), net.constant(6.0))
    x = net.op("HardSwish", net.conv(x, 8, cin=8, group=8, pads=[1, 1, 1, 1]))
    gate = net.op("HardSigmoid", net.conv(net.op("GlobalAveragePool", x), 8, 1, cin=8))
    net.output(net.conv(net.op("Mul", x, gate), 5, 1, cin=8))
    return net


def pooling() -> Net:
    """Pooling with pads, ceil_mode and counted pads."""
    net = Net(seed=4)
    x = net.op("Relu", net.conv(net.input("x", (1, 4, 15, 17)), 8))
    most = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    mean = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1)
    plain = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.output(most, net.op("Add", mean, plain), net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1))
    return net


def activations() -> Net:
    """Functions that become tables, and their chains."""
    net = Net(opset=20, seed=5)
    x = net.conv(net.input("x", (1, 4, 8, 8)), 8)
    chains = [["Tanh"], ["Elu"], ["Gelu"], ["Mish"], ["Softplus"], ["LeakyRelu"], ["Exp", "Neg"], ["Sigmoid", "Sqrt"]]
    for chain in chains:
        y = x
        for op in chain:
            y = net.op(op, y)
        net.output(y)
    net.output(net.op("PRelu", x, net.weights(8, 1, 1, scale=0.2, shift=0.2)))
    return net


def upsampler() -> Net:
    """Transposed convolutions, pixel shuffling, padding and slicing."""
    net = Net(seed=6)
    x = net.input("x", (1, 4, 6, 7))
    y = net.op("ConvTranspose", x, net.weights(4, 8, 4, 4, scale=0.2), net.weights(8), strides=[2, 2], pads=[1, 1, 1, 1])
    shuffled = net.op("DepthToSpace", net.op("Relu", y), blocksize=2)
    padded = net.op("Pad", shuffled, net.constant([0, 0, 1, 2, 0, 0, 2, 1]))
    cut = net.op("Slice", padded, net.constant([1, 3]), net.constant([20, 25]), net.constant([2, 3]))
    net.output(net.op("Transpose", cut, perm=[0, 2, 3, 1]))
    return net


def transformer() -> Net:
    """Attention with two heads, layer normalization, GELU."""
    net = Net(opset=20, seed=7)
    x = net.input("x", (1, 6, 16))

    def dense(y: str, width: int, depth: int) -> str:
        return net.op("Add", net.op("MatMul", y, net.weights(depth, width, scale=0.25)), net.weights(width, scale=0.1))

    def heads(y: str, perm: list[int]) -> str:
        return net.op("Transpose", net.op("Reshape", dense(y, 16, 16), net.constant([1, 6, 2, 8])), perm=perm)

    normal = net.op("LayerNormalization", x, net.weights(16, shift=1.0, scale=0.1), net.weights(16, scale=0.1))
    scores = net.op("Softmax", net.op("MatMul", heads(normal, [0, 2, 1, 3]), heads(normal, [0, 2, 3, 1])), axis=-1)
    mixed = net.op("Transpose", net.op("MatMul", scores, heads(normal, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
    y = net.op("Add", x, dense(net.op("Reshape", mixed, net.constant([1, 6, 16])), 16, 16))
    net.output(net.op("Add", y, dense(net.op("Gelu", dense(y, 24, 16)), 16, 24)))
    return net


def recurrent() -> Net:
    """An LSTM and a product."""
    net = Net(seed=8)
    x = net.input("x", (5, 1, 8))
    weights = net.weights(1, 24, 8, scale=0.4), net.weights(1, 24, 6, scale=0.4), net.weights(1, 48, scale=0.1)
    outputs = net.ops("LSTM", x, *weights, count=3, hidden_size=6)
    net.output(net.op("MatMul", net.op("Squeeze", outputs[0], net.constant([1])), net.weights(6, 4, scale=0.4)), outputs[2])
    return net


def sequence() -> Net:
    """Convolutions of rank 3."""
    net = Net(seed=9)
    x = net.op("Relu", net.conv(net.input("x", (1, 8, 33)), 12, [5], strides=[2], pads=[2, 2]))
    x = net.op("Relu", net.conv(x, 12, [3], cin=12, group=12, dilations=[2]))
    net.output(net.op("Softmax", net.conv(x, 5, [1], cin=12), axis=1))
    return net


def between() -> Net:
    """Integer and float layers in turns."""
    net = Net(opset=17, seed=10)
    x = net.conv(net.input("x", (1, 4, 8, 8)), 8)
    x = net.op("InstanceNormalization", x, net.weights(8, shift=1.0, scale=0.1), net.weights(8, scale=0.1))
    x = net.op("Relu", net.conv(x, 8, cin=8))
    mean = net.op("ReduceMean", x, axes=[2, 3], keepdims=1)
    net.output(net.conv(net.op("Div", x, net.op("Add", mean, net.constant(1.0))), 4, 1, cin=8))
    return net


def inputs() -> Net:
    """An image of bytes, channels last, indices and a mask."""
    net = Net(seed=11)
    image = net.op("Transpose", net.op("Cast", net.input("image", (1, 6, 6, 3), np.uint8), to=1), perm=[0, 3, 1, 2])
    y = net.op("GlobalAveragePool", net.op("Relu", net.conv(image, 4, cin=3)))
    words = net.op("Gather", net.weights(4, 4), net.input("words", (1, 5), np.int64))
    masked = net.op("Where", net.input("mask", (1, 5, 1), np.bool_), words, net.constant(0.0))
    net.output(net.op("Add", net.op("Flatten", y), net.op("ReduceSum", masked, net.constant([1]), keepdims=0)))
    return net


def flexible() -> Net:
    """A dynamic image size and batch."""
    net = Net(seed=12)
    x = net.op("Relu", net.conv(net.input("x", ("n", 3, "height", "width")), 8, pads=[1, 1, 1, 1]))
    shape = net.op("Shape", x)
    batch = net.op("Gather", shape, net.constant([0]))
    net.output(net.op("Reshape", x, net.op("Concat", batch, net.constant([-1]), axis=0)))
    return net


def suppression() -> Net:
    """A detector with NonMaxSuppression at its end."""
    net = Net(seed=13)
    features = net.op("Relu", net.conv(net.input("x", (1, 3, 4, 4)), 8, pads=[1, 1, 1, 1]))
    boxes = net.op("Sigmoid", net.conv(features, 4, 1, cin=8))
    scores = net.op("Sigmoid", net.conv(features, 2, 1, cin=8))
    boxes = net.op("Transpose", net.op("Reshape", boxes, net.constant([1, 4, 16])), perm=[0, 2, 1])
    scores = net.op("Reshape", scores, net.constant([1, 2, 16]))
    limits = net.constant([5]), net.constant([0.5]), net.constant([0.1])
    selected = net.op("NonMaxSuppression", boxes, scores, *limits)
    chosen = net.op("Gather", boxes, net.op("Gather", selected, net.constant(np.array(2)), axis=1), axis=1)
    net.output(selected, chosen, scores)
    return net


def custom() -> Net:
    """An operator that ONNX does not know, between two convolutions."""
    net = Net(seed=14)
    net.opsets["example"] = 1
    x = net.conv(net.input("x", (1, 3, 8, 8)), 4)
    y = net.op("Stretch", x, domain="example", factor=2.0)
    net.output(net.conv(y, 4, 1, cin=4))
    return net


def controlled() -> Net:
    """An If with a constant condition and a Loop of three rounds."""
    from onnx import TensorProto, helper

    net = Net(opset=16, seed=18)
    x = net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 4))
    twice, once = (
        helper.make_node("Mul" if op == "Mul" else "Identity", [x, x] if op == "Mul" else [x], [op]) for op in ("Mul", "One")
    )
    result = helper.make_empty_tensor_value_info
    branches = [helper.make_graph([node], node.output[0], [], [result(node.output[0])]) for node in (twice, once)]
    y = net.op("If", net.constant(np.array(True)), then_branch=branches[0], else_branch=branches[1])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Sqrt", ["before"], ["after"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            result("before"),
        ],
        [result("on"), result("after")],
    )
    z = net.op("Loop", net.constant(3), net.constant(np.array(True)), y, body=body)
    net.output(net.conv(z, 4, 1, cin=4))
    return net


def fused() -> Net:
    """Operators that onnxruntime's optimizer writes."""
    net = Net(seed=19)
    net.opsets["com.microsoft"] = 1
    x = net.input("x", (1, 6, 16))
    weights = net.weights(16, shift=1.0, scale=0.1), net.weights(16, scale=0.1), net.weights(16, scale=0.1)
    y = net.op("SkipLayerNormalization", x, x, *weights, domain="com.microsoft", epsilon=1e-5)
    y = net.op("BiasGelu", net.op("MatMul", y, net.weights(16, 8, scale=0.25)), net.weights(8, scale=0.1), domain="com.microsoft")
    net.output(net.op("FusedMatMul", y, y, domain="com.microsoft", transB=1, alpha=0.5))
    return net


def movement() -> Net:
    """Gather, reductions, tiles, stacks and comparisons."""
    net = Net(seed=20)
    x = net.conv(net.input("x", (1, 4, 8, 8)), 8)
    rows = net.op("Gather", x, net.constant([0, 2, 2, 5]), axis=2)
    most = net.op("ReduceMax", rows, axes=[3], keepdims=0)
    tiled = net.op("Tile", net.op("ReduceMean", x, axes=[2, 3], keepdims=1), net.constant([1, 1, 2, 3]))
    best = net.op("ArgMax", x, axis=1)
    net.output(net.op("Where", net.op("Greater", rows, net.constant(0.1)), rows, net.constant(0.0)), most, tiled, best)
    return net


def products() -> Net:
    """Products of two activations, Gemm with transposed weights, Einsum."""
    net = Net(seed=21)
    a, b = net.input("a", (2, 5, 16)), net.input("b", (2, 16, 6))
    both = net.op("MatMul", a, b)
    rows = net.op("Reshape", both, net.constant([10, 6]))
    dense = net.op("Gemm", rows, net.weights(7, 6, scale=0.4), net.weights(7, scale=0.1), transB=1, alpha=0.5, beta=2.0)
    net.output(net.op("Relu", dense), net.op("Einsum", a, net.weights(16, 3, scale=0.3), equation="bij,jk->bik"))
    return net


def gated() -> Net:
    """A GRU in both directions."""
    net = Net(seed=22)
    x = net.input("x", (4, 1, 6))
    weights = net.weights(2, 15, 6, scale=0.4), net.weights(2, 15, 5, scale=0.4), net.weights(2, 30, scale=0.1)
    all_steps, last = net.ops("GRU", x, *weights, count=2, hidden_size=5, direction="bidirectional", linear_before_reset=1)
    net.output(all_steps, last)
    return net


def pairs() -> Net:
    """QuantizeLinear and DequantizeLinear around each tensor."""
    net = Net(seed=15)

    def around(x: str, scale: float, zero: int) -> str:
        ends = net.constant(scale), net.constant(np.array(zero, np.int8))
        return net.op("DequantizeLinear", net.op("QuantizeLinear", x, *ends), *ends)

    def weights(*shape: int) -> str:
        values = net.constant(net.random.integers(-127, 128, shape).astype(np.int8))
        scales = net.constant(net.random.uniform(0.002, 0.006, shape[0]).astype(np.float32))
        return net.op("DequantizeLinear", values, scales, net.constant(np.zeros(shape[0], np.int8)), axis=0)

    x = around(net.input("x", (1, 3, 10, 10)), 2 / 255, 3)
    first = around(net.op("Relu", net.op("Conv", x, weights(4, 3, 3, 3), pads=[1, 1, 1, 1])), 4 / 255, -128)
    second = around(net.op("Conv", first, weights(4, 4, 3, 3), pads=[1, 1, 1, 1]), 5 / 255, 1)
    added = around(net.op("Add", first, second), 6 / 255, -5)
    pooled = around(net.op("MaxPool", added, kernel_shape=[2, 2], strides=[2, 2]), 6 / 255, -5)
    net.output(around(net.op("Sigmoid", pooled), 1 / 256, -128))
    return net


def operators() -> Net:
    """The operators of onnxruntime's format QOperator."""
    net = Net(seed=16)
    net.opsets["com.microsoft"] = 1
    start, middle, share = (
        (net.constant(scale), net.constant(np.array(zero, np.uint8)))
        for scale, zero in ((2 / 255, 128), (4 / 255, 120), (1 / 255, 0))
    )
    x = net.op("QuantizeLinear", net.input("x", (1, 3, 6, 6)), *start)
    values = net.constant(net.random.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
    scales = net.constant(net.random.uniform(0.002, 0.006, 4).astype(np.float32))
    bias = net.constant(np.array([100, -200, 300, 0], np.int32))
    conv = net.op("QLinearConv", x, *start, values, scales, net.constant(np.zeros(4, np.int8)), *middle, bias)
    gate = net.op("QLinearSigmoid", conv, *middle, *share, domain="com.microsoft")
    gated = net.op("QLinearMul", gate, *share, conv, *middle, *middle, domain="com.microsoft")
    joined = net.op("QLinearConcat", *middle, gated, *middle, conv, *middle, axis=1, domain="com.microsoft")
    net.output(net.op("DequantizeLinear", net.op("MaxPool", joined, kernel_shape=[2, 2]), *middle))
    return net


def lite() -> bytes:
    """A full-integer TFLite network."""
    from tflite_files import Byte, Tflite

    random, file = np.random.default_rng(17), Tflite()
    values = random.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    scales = np.array([0.01, 0.02, 0.005, 0.03], np.float32)
    bias = random.integers(-300, 300, 4).astype(np.int32)
    x = file.tensor("image", (1, 6, 6, 3), "uint8", scale=1.0 / 255.0, zero=0)
    inner = file.tensor("inner", (1, 6, 6, 3), "int8", scale=1.0 / 255.0, zero=-128)
    mapped = file.tensor("mapped", (1, 6, 6, 4), "int8", scale=0.05, zero=-128)
    y = file.tensor("result", (1, 6, 6, 4), "uint8", scale=0.05, zero=0)
    kernel = file.constant("w", values, scale=scales, zero=[0] * 4)
    offsets = file.constant("v", bias, scale=scales / 255.0, zero=[0] * 4)
    file.operator("QUANTIZE", [x], [inner])
    file.operator("CONV_2D", [inner, kernel, offsets], [mapped], {0: Byte(0), 1: 1, 2: 1, 3: Byte(1)})
    file.operator("QUANTIZE", [mapped], [y])
    return bytes(file.file([x], [y]))


@dataclass(frozen=True)
class Case:
    """One compilation.

    :ivar calibrated: it has a dataset, so that its result depends on floats of this machine
    :ivar given: give a scale for each tensor
    """

    build: Callable[[], Net | bytes]
    target: str = "rk3588"
    calibrated: bool = True
    given: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def _stretch(shapes: Any, attributes: Any) -> Any:
    return [shapes[0]]


def _fp16(build: Callable[[], Net | bytes], target: str = "rk3588", **options: Any) -> Case:
    return Case(build, target, False, False, {"dtype": "fp16", **options})


def _int8(build: Callable[[], Net | bytes], target: str = "rk3588", **options: Any) -> Case:
    return Case(build, target, True, False, options)


def _given(build: Callable[[], Net | bytes], target: str = "rk3588", **options: Any) -> Case:
    return Case(build, target, False, True, options)


def _own(build: Callable[[], Net | bytes], target: str = "rk3588", **options: Any) -> Case:
    return Case(build, target, False, False, options)


_IMAGE = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}

CASES = {
    # float: nothing is calibrated
    "classifier fp16": _fp16(classifier),
    "detector fp16 rk3566": _fp16(detector, "rk3566", name="net", custom_string="text"),
    "transformer fp16": _fp16(transformer),
    "recurrent fp16 rk3576": _fp16(recurrent, "rk3576"),
    "sequence fp16 rk3562": _fp16(sequence, "rk3562"),
    "activations fp16": _fp16(activations),
    "inputs fp16": _fp16(inputs),
    "custom fp16": _fp16(custom, custom_ops={"Stretch": _stretch}),
    "suppression fp16": _fp16(suppression),
    "suppression cut fp16": _fp16(suppression, tail="cut"),
    "flexible fp16": _fp16(flexible, shapes=[{"x": (1, 3, 8, 8)}, {"x": (2, 3, 10, 12)}]),
    "mobile bf16 a733": _own(mobile, "a733", dtype="bf16"),
    "controlled fp16": _fp16(controlled),
    "fused fp16": _fp16(fused),
    "movement fp16": _fp16(movement),
    "products fp16 rk3568": _fp16(products, "rk3568"),
    "gated fp16": _fp16(gated),
    # scales that the model or the caller gives
    "pairs rk3588": _own(pairs),
    "pairs simulator rk3588": _own(pairs, arithmetic="simulator"),
    "pairs rv1106": _own(pairs, "rv1106"),
    "pairs t527": _own(pairs, "t527"),
    "operators rk3588": _own(operators),
    "operators a733": _own(operators, "a733"),
    "tflite rk3588": _own(lite),
    "tflite rv1103": _own(lite, "rv1103"),
    "tflite v853": _own(lite, "v853"),
    "detector given": _given(detector),
    "detector given simulator": _given(detector, arithmetic="simulator"),
    "detector given rv1103": _given(detector, "rv1103"),
    "mobile given": _given(mobile),
    "pooling given": _given(pooling),
    "activations given": _given(activations),
    "upsampler given": _given(upsampler),
    "transformer given": _given(transformer),
    "sequence given": _given(sequence),
    "between given": _given(between),
    # calibrated
    "classifier int8": _int8(classifier, **_IMAGE),
    "classifier bgr": _int8(classifier, channel_order="bgr", **_IMAGE),
    "classifier rv1126b": _int8(classifier, "rv1126b"),
    "classifier minmax simulator": _int8(classifier, algorithm="minmax", arithmetic="simulator"),
    "classifier vendor": _int8(classifier, quantizer="vendor", **_IMAGE),
    "classifier a733 uint8": _int8(classifier, "a733", dtype="uint8", preprocess="rgb", **_IMAGE),
    "classifier t527 i8dfp": _int8(classifier, "t527", dtype="i8dfp"),
    "classifier v853 int8": _int8(classifier, "v853", dtype="int8"),
    "classifier t536 int16": _int8(classifier, "t536", dtype="int16"),
    "classifier int16": _int8(classifier, "rv1106", dtype="w16a16"),
    "detector int8": _int8(detector, std=(255, 255, 255)),
    "detector vendor": _int8(detector, quantizer="vendor"),
    "detector vendor simulator": _int8(detector, quantizer="vendor", arithmetic="simulator"),
    "detector best": _int8(detector, accuracy="best"),
    "detector fast": _int8(detector, accuracy="fast"),
    "detector kl": _int8(detector, algorithm="kl"),
    "detector mse 4 groups": _int8(detector, algorithm="mse", channel_groups=4),
    "detector hybrid": _int8(detector, hybrid=("Mul_11",), keep_float_outputs=True),
    "detector a733": _int8(detector, "a733", dtype="uint8"),
    "detector t527": _int8(detector, "t527", dtype="int8"),
    "mobile int8": _int8(mobile),
    "mobile per tensor": _int8(mobile, per_channel=False),
    "pooling int8": _int8(pooling),
    "activations int8": _int8(activations),
    "activations a733": _int8(activations, "a733", dtype="uint8"),
    "upsampler int8": _int8(upsampler),
    "transformer int8": _int8(transformer),
    "recurrent int8": _int8(recurrent),
    "sequence int8": _int8(sequence),
    "between int8": _int8(between),
    "inputs int8": _int8(inputs),
    "controlled int8": _int8(controlled),
    "fused int8": _int8(fused),
    "movement int8": _int8(movement),
    "products int8": _int8(products),
    "gated int8": _int8(gated),
    "suppression int8": _int8(suppression),
    "flexible int8": _int8(flexible, shapes=[{"x": (1, 3, 8, 8)}, {"x": (1, 3, 10, 12)}]),
    "custom int8": _int8(custom, custom_ops={"Stretch": _stretch}, hybrid=("Conv_2",)),
}  # fmt: skip


def samples(net: Net, shapes: Any) -> list[dict[str, Array]]:
    """Random inputs for calibration."""
    random = np.random.default_rng(99)
    first = shapes[0] if isinstance(shapes, list) else {}
    found = []
    for _ in range(4):
        sample: dict[str, Array] = {}
        for name, kind in net.types.items():
            shape = first.get(name, net.shapes[name])
            values = random.uniform(0, 255, shape) if shape[1:2] == (3,) else random.normal(size=shape)
            if kind == np.bool_:
                values = values > 0
            elif kind == np.int64:
                values = random.integers(0, 4, shape)
            sample[name] = values.astype(kind)
        found.append(sample)
    return found


def compiled(case: Case) -> anynpu.Model:
    """The model of a case."""
    net = case.build()
    options = dict(case.options)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(net, bytes):
            source: Any = Path(folder) / "net.tflite"
            source.write_bytes(net)
        else:
            source = net.proto()
            if case.calibrated or case.given:
                options["dataset"] = samples(net, options.get("shapes"))
            if case.given:  # and nothing else is taken from the samples
                options = {"accuracy": "fast", "algorithm": "minmax", "channel_groups": 1, **options}
                names = [*net.types, *(name for node in net.nodes for name in node.output)]
                options["ranges"] = {name: (0.02 + 0.003 * (index % 7), index % 11 - 5) for index, name in enumerate(names)}
        return anynpu.compile(source, case.target, **options)


def without_text(model: anynpu.Model) -> bytes:
    """The file of a model, without text for people."""
    programs = tuple(
        replace(program, layers=tuple(replace(layer, reason="why" if layer.reason else "") for layer in program.layers))
        for program in model.programs
    )
    return bytes(modelfile.to_bytes(replace(model, programs=programs, provenance={})))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items() if key != "provenance"}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return "text" if isinstance(value, str) and " " in value else value


EXACT_COMMANDS = {
    "inspect": "inspect exact.rknn --json",
    "inspect onnx": "inspect net.onnx --json",
    "predict": "predict exact.rknn --json",
    "predict all": "predict net.onnx --target all --json",
    "predict matmul": "predict --matmul 1x4096x4096 --target rk3588 --json",
    "check": "check net.onnx --target v853 --json",
    "check layers": "check net.onnx --target rk3588 --layers --json",
    "profile": "profile exact.rknn --json",
    "models": "models --json",
}
CALIBRATED_COMMANDS = {
    "compile": "compile net.onnx -o made.rknn --dataset samples.npy --json",
    "inspect compiled": "inspect made.rknn --json",
    "lint": "lint lint.onnx --dataset lint.npy --json",
    "compare": "compare net.onnx made.rknn --dataset samples.npy --json",
    "compare arithmetic": "compare made.rknn --arithmetic chip,simulator --dataset samples.npy --json",
    "report": "report net.onnx --dataset samples.npy --json",
}


def outputs(commands: dict[str, str]) -> dict[str, bytes]:
    """What commands print, in a folder with a network, a compiled model and samples."""
    import onnx
    from diseased_network import diseased_network, diseased_samples

    from anynpu.cli.app import run
    from anynpu.cli.helpers import verbosity

    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder, _moved(folder):
        net = detector()
        onnx.save(net.proto(), "net.onnx")
        onnx.save(diseased_network(), "lint.onnx")
        np.save("lint.npy", np.stack([sample["x"][0] for sample in diseased_samples(4)]))
        np.save("samples.npy", np.stack([sample["x"][0] for sample in samples(net, None)]))
        compiled(CASES["detector given"]).save("exact.rknn")
        for name, command in commands.items():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
                run(command.split())
            verbosity.reset()
            found[name] = json.dumps(_plain(json.loads(printed.getvalue())), sort_keys=True, indent=1).encode()
    return found


@contextlib.contextmanager
def _moved(folder: str) -> Any:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@functools.cache
def environment() -> dict[str, str]:
    """What the last bit of a calibration depends on."""
    import onnx
    import onnxruntime
    from numpy._core._multiarray_umath import __cpu_features__ as features

    wide = [name for name in ("AVX2", "AVX512F", "AVX512VNNI", "ASIMD") if features.get(name)]
    versions = {module.__name__: module.__version__ for module in (np, onnx, onnxruntime)}
    return {**versions, "processor": " ".join(wide)}


def digest(data: bytes) -> str:
    """The hash that is recorded."""
    return hashlib.sha256(data).hexdigest()[:24]


def results() -> dict[str, bytes]:
    """The data behind the hashes, by name: models, then outputs of commands."""
    found = {name: without_text(compiled(case)) for name, case in CASES.items()}
    printed = outputs({**EXACT_COMMANDS, **CALIBRATED_COMMANDS})
    return {**found, **{f"anynpu {name}": text for name, text in printed.items()}}


def wide_results() -> dict[str, bytes]:
    """The same for more networks. Where a network cannot be compiled, the class of the error counts."""
    from compiler.onnx_builders import feeds
    from compiler.test_operators import CASES as OPERATORS
    from real_models import find_real_models

    found: dict[str, bytes] = {}

    def add(name: str, source: Any, target: str, dataset: Any, **options: Any) -> None:
        try:
            found[name] = without_text(anynpu.compile(source, target, dataset=dataset, **options))
        except AnynpuError as error:
            found[name] = type(error).__name__.encode()

    for name, case in OPERATORS.items():
        proto = case.proto()
        dataset = feeds(proto, 4, low=case.low, high=case.high)
        add(f"operator {name} int8", proto, "rk3588", dataset)
        add(f"operator {name} vendor", proto, "rk3588", dataset, quantizer="vendor")
        add(f"operator {name} fp16", proto, "rk3566", None, dtype="fp16")
        add(f"operator {name} a733", proto, "a733", dataset, dtype="uint8")
    real = find_real_models()
    sizes = {"detection": (160, 160), "recognition": (48, 320), "classification": (48, 192), "orientation": (224, 224)}
    random = np.random.default_rng(5)
    for name, (height, width) in sizes.items():
        shape = (1, 3, height, width)
        dataset = [{"x": random.normal(size=shape).astype(np.float32)} for _ in range(2)]
        for target, dtype in (("rk3588", "w8a8"), ("rk3588", "fp16"), ("t527", "int8")):
            given = None if dtype == "fp16" else dataset
            add(f"real {name} {target} {dtype}", getattr(real, name), target, given, dtype=dtype, shapes={"x": shape})
    for name in ("squeezenet", "shufflenet", "resnet50"):
        add(f"real {name} fp16", real.light[name], "rk3588", None, dtype="fp16")
    return found


def reopened(folder: Path) -> int:
    """Read each file that ``--files`` wrote; 1 if one is written differently."""
    files = sorted(folder.glob("*.rknn"))
    changed = [path.name for path in files if without_text(modelfile.read(path)) != path.read_bytes()]
    print("\n".join([*(f"differs: {name}" for name in changed), f"{len(files) - len(changed)} equal, {len(changed)} differ"]))
    return 1 if changed or not files else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["write", "check", "open"])
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--files", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.action == "open":
        return reopened(arguments.files)
    found = results() | (wide_results() if arguments.wide else {})
    if arguments.files:
        arguments.files.mkdir(parents=True, exist_ok=True)
        for name, data in found.items():
            extension = ".json" if name.startswith("anynpu ") else ".rknn"
            (arguments.files / (re.sub(r"[^A-Za-z0-9]+", "_", name) + extension)).write_bytes(data)
    hashes = {name: digest(data) for name, data in found.items()}
    if arguments.action == "write":
        arguments.record.write_text(
            json.dumps({"environment": environment(), "hashes": hashes}, indent=1) + "\n", encoding="utf-8"
        )
        print(f"{len(hashes)} hashes in {arguments.record}")
        return 0
    recorded = json.loads(arguments.record.read_text(encoding="utf-8"))
    if recorded["environment"] != environment():
        print(f"recorded with {recorded['environment']}, this is {environment()}: calibrated results may differ")
    changed = [name for name in recorded["hashes"] if hashes.get(name) != recorded["hashes"][name]]
    print(
        "\n".join(
            [*(f"differs: {name}" for name in changed), f"{len(recorded['hashes']) - len(changed)} equal, {len(changed)} differ"]
        )
    )
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
