"""A small network with the layers that profiles and benchmarks talk about."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["silu_network"]


def silu_network() -> onnx.ModelProto:
    """Convolutions with SiLU, a residual, a Softmax."""
    rng = np.random.default_rng(3)
    weights, nodes, value = [], [], "x"
    for index, channels in enumerate(((3, 16), (16, 32), (32, 32))):
        array = rng.standard_normal((channels[1], channels[0], 3, 3)).astype(np.float32) / 10
        weights.append(numpy_helper.from_array(array, f"w{index}"))
        stride = 2 if index < 2 else 1
        nodes.append(helper.make_node("Conv", [value, f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1], strides=[stride, stride]))
        nodes.append(helper.make_node("Sigmoid", [f"c{index}"], [f"s{index}"]))
        nodes.append(helper.make_node("Mul", [f"c{index}", f"s{index}"], [f"m{index}"]))
        value = f"m{index}"
    nodes.append(helper.make_node("Add", ["m1", "m2"], ["sum"]))
    nodes.append(helper.make_node("Softmax", ["sum"], ["y"], axis=2))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 96, 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 24, 24])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
