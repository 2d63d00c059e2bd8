"""A small network with many kinds of layers, and compiled models with one layer that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from compiler.onnx_builders import Net

from anynpu.program import Binary, FixedPoint, Layer, Model, Pool

Array = npt.NDArray[Any]

SHAPE = (1, 3, 32, 32)


def network() -> onnx.ModelProto:
    """Convolutions of every kind with several activations, a residual, products, pools, a dense head; two outputs."""
    net = Net(seed=7)
    x = net.input("x", SHAPE)
    stem = net.op("Relu", net.conv(x, 16, strides=[2, 2], pads=[1, 1, 1, 1]))
    depthwise = net.op("Relu", net.conv(stem, 16, cin=16, group=16, pads=[1, 1, 1, 1]))
    pointwise = net.conv(depthwise, 24, 1, cin=16)
    swish = net.op("Mul", pointwise, net.op("Sigmoid", pointwise))
    leaky = net.op("LeakyRelu", net.conv(swish, 24, cin=24, pads=[1, 1, 1, 1]), alpha=0.1)
    pooled = net.op("AveragePool", net.op("Add", swish, leaky), kernel_shape=[2, 2], strides=[2, 2])
    curved = net.op("Tanh", net.conv(pooled, 32, cin=24, pads=[1, 1, 1, 1]))
    gated = net.op("Mul", curved, net.conv(pooled, 32, 1, cin=24))
    larger = net.op("ConvTranspose", gated, net.weights(32, 16, 2, 2, scale=0.2), strides=[2, 2])
    heat = net.op("Sigmoid", net.conv(larger, 8, cin=16, pads=[1, 1, 1, 1]))
    flat = net.op("Flatten", net.op("GlobalAveragePool", gated))
    hidden = net.op("Relu", net.op("MatMul", flat, net.weights(32, 20, scale=0.2)))
    net.output(heat, net.op("Gemm", hidden, net.weights(20, 10, scale=0.3)))
    return net.proto()


def samples(count: int, seed: int) -> list[dict[str, Array]]:
    """Inputs for the network."""
    random = np.random.default_rng(seed)
    return [{"x": random.uniform(-1, 1, SHAPE).astype(np.float32)} for _ in range(count)]


def scaled_layers(model: Model) -> list[int]:
    """The layers that scale their results."""
    return [index for index, layer in enumerate(model.programs[0].layers) if _scales(layer)]


def with_wrong_scale(model: Model, index: int, factor: float) -> Model:
    """The same model, but one layer's results are too large or too small (before its table, if it has one)."""
    program = model.programs[0]
    layer = program.layers[index]
    op: Any = layer.op
    if isinstance(getattr(op, "epilogue", None), FixedPoint):
        op = _with_other_integers(op, factor)
    elif isinstance(op, Binary):
        both = op.kind != "mul"  # a product has a single multiplier
        op = replace(
            op, a_multiplier=_times(op.a_multiplier, factor), b_multiplier=_times(op.b_multiplier, factor if both else 1.0)
        )
    else:
        op = replace(op, epilogue=replace(op.epilogue, multiplier=_times(op.epilogue.multiplier, factor)))
    layers = [*program.layers[:index], replace(layer, op=op), *program.layers[index + 1 :]]
    return replace(model, programs=(replace(program, layers=tuple(layers)),))


def _scales(layer: Layer) -> bool:
    return isinstance(layer.op, Binary) or getattr(layer.op, "epilogue", None) is not None


def _with_other_integers(op: Any, factor: float) -> Any:
    """The operator with multipliers of the chip's rule that are too large or too small."""
    if isinstance(op, Pool):
        assert op.divisors is not None
        return replace(op, divisors=np.stack(_halved(op.divisors[0] * factor, op.divisors[1])))
    stage = op.epilogue
    multiplier, shift = _halved(stage.multiplier * factor, stage.shift)
    return replace(op, epilogue=replace(stage, multiplier=multiplier, shift=shift))


def _halved(multiplier: Array, shift: Array) -> tuple[Array, Array]:
    """Multipliers as integers, halved where they have more than 15 bits."""
    large = multiplier > 32767
    return np.rint(np.where(large, multiplier / 2, multiplier)).astype(np.int32), (shift - large).astype(np.int32)


def _times(numbers: Array, factor: float) -> Array:
    return (numbers * np.float32(factor)).astype(np.float32)
