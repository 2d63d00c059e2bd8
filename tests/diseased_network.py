"""A network with the disease that int8 is known for: a stem whose channel ranges span three decades, then a depthwise convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["STEM", "diseased_network", "diseased_samples"]

STEM = "stem_act"
"""The tensor that suffers."""

_SIZE = 32


def diseased_network() -> onnx.ModelProto:
    """Stem of 16 channels with SiLU, depthwise 3x3 with SiLU, two dense convolutions."""
    rng = np.random.default_rng(5)
    gains = np.concatenate([np.logspace(0.0, 1.3, 12), np.logspace(2.2, 3.0, 4)])[rng.permutation(16)]
    stem = rng.standard_normal((16, 3, 3, 3)) / 6.0 * gains[:, None, None, None]
    taps = rng.standard_normal((16, 1, 3, 3))
    taps -= taps.mean(axis=(2, 3), keepdims=True)  # it looks at differences, which are small
    depthwise = taps / gains[:, None, None, None] * 8.0
    mixing = rng.standard_normal((24, 16, 1, 1)) / 3.0
    last = rng.standard_normal((4, 24, 1, 1)) / 4.0
    tensors = {"w0": stem, "w1": depthwise, "w2": mixing, "w3": last, "b0": rng.standard_normal(16) * gains * 0.1}

    def silu(source: str, result: str) -> list[onnx.NodeProto]:
        gate = f"{result}_gate"
        return [helper.make_node("Sigmoid", [source], [gate]), helper.make_node("Mul", [source, gate], [result])]

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["stem"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        *silu("stem", STEM),
        helper.make_node("Conv", [STEM, "w1"], ["depth"], "depth", pads=[1, 1, 1, 1], group=16),
        *silu("depth", "depth_act"),
        helper.make_node("Conv", ["depth_act", "w2"], ["mixed"], "mixed"),
        helper.make_node("Relu", ["mixed"], ["mixed_act"]),
        helper.make_node("Conv", ["mixed_act", "w3"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes,
        "diseased",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, _SIZE, _SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, _SIZE // 2, _SIZE // 2])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def diseased_samples(count: int, first: int = 0) -> list[dict[str, npt.NDArray[Any]]]:
    """Smooth random images with a little noise."""
    samples = []
    for seed in range(first, first + count):
        rng = np.random.default_rng((7, seed))
        coarse = rng.standard_normal((3, 5, 5))
        smooth = np.repeat(np.repeat(coarse, 7, axis=1), 7, axis=2)[:, :_SIZE, :_SIZE]
        samples.append({"x": (smooth + 0.05 * rng.standard_normal(smooth.shape)).astype(np.float32)[None]})
    return samples
