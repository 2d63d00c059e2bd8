"""Small networks whose time is predicted: conv chains with known shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from anynpu import chips
from anynpu.chips.timing import Prediction, predict
from anynpu.compiler import ModelOutline
from anynpu.program import Program


class Chain:
    """Nodes one after the other on one tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = list(shape)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.last = "x"
        self._input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)

    def op(self, kind: str, *others: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, [self.last, *others], names, f"{kind}{len(self.nodes)}", **attributes))
        self.last = names[0]
        return self.last

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def conv(self, channels: int, kernel: int = 3, *, stride: int = 1, groups: int = 1, activation: str = "") -> str:
        shape = (channels, self.shape[1] // groups, kernel, kernel)
        rng = np.random.default_rng(len(self.nodes))
        weights = self.constant((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))
        pad = kernel // 2
        self.op("Conv", weights, pads=[pad] * 4, strides=[stride] * 2, group=groups)
        self.shape = [self.shape[0], channels, *(-(-extent // stride) for extent in self.shape[2:])]
        if activation == "Silu":
            before = self.last
            gate = self.op("Sigmoid")
            self.last = before
            self.op("Mul", gate)
        elif activation:
            self.op(activation)
        return self.last

    def proto(self, *outputs: str, stripped: bool = False) -> Any:
        names = outputs or (self.last,)
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        weights = [_strip(tensor) if stripped else tensor for tensor in self.weights]
        graph = helper.make_graph(self.nodes, "chain", [self._input], infos, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)

    def save(self, path: Path, *, stripped: bool = False) -> Path:
        onnx.save(self.proto(stripped=stripped), path)
        return path

    def program(self, chip: str = "rk3588", dtype: str = "w8a8", *outputs: str, stripped: bool = False) -> Program:
        return ModelOutline(self.proto(*outputs, stripped=stripped)).program(chip, dtype=dtype)

    def predict(self, chip: str = "rk3588", dtype: str = "w8a8", **options: Any) -> Prediction:
        return predict(self.program(chip, dtype), chips.get(chip), **options)


def _strip(tensor: Any) -> Any:
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def one_conv(channels_in: int, channels: int, size: int, kernel: int = 3, activation: str = "Relu", **options: Any) -> Chain:
    """A chain of a single convolution on a square image."""
    chain = Chain(1, channels_in, size, size)
    chain.conv(channels, kernel, activation=activation, **options)
    return chain
