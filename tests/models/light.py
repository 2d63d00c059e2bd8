"""The architectures that onnx carries for its own tests. Their weights are constants; here they also get random ones."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

Floats = npt.NDArray[np.float32]


def input_of(model: onnx.ModelProto) -> tuple[str, tuple[int, ...]]:
    """Name and shape of the only input that is not a weight."""
    stored = {tensor.name for tensor in model.graph.initializer}
    (value,) = (value for value in model.graph.input if value.name not in stored)
    return value.name, tuple(extent.dim_value for extent in value.type.tensor_type.shape.dim)


def blurred_noise(shape: tuple[int, ...], seed: int) -> Floats:
    """Patches of light and shade, another contrast for each seed: networks answer them differently, which plain noise does not bring."""
    rng = np.random.default_rng((0xB1, seed))
    _, channels, height, width = shape
    coarse = rng.standard_normal((4, 4, channels), np.float32) * np.float32(rng.uniform(0.5, 2.0))
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    image += rng.standard_normal(image.shape, np.float32) * np.float32(0.1)
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None])


def with_random_weights(path: Path, seed: int) -> onnx.ModelProto:
    """The architecture with weights as a training would begin with, and without its last softmax.

    With the constants of the file all channels are alike, values grow beyond what float16 holds, and every answer is the same.
    """
    model = onnx.load(path)
    graph = model.graph
    rng = np.random.default_rng(seed)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    filled = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    readers = {name: node.op_type for node in graph.node for name in node.input}
    gain = 0.7 if any(node.op_type == "Sum" for node in graph.node) else 1.1  # residual sums let values grow by themselves
    drawn: dict[str, Floats] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in filled and name not in drawn:
                shape = tuple(int(extent) for extent in shapes[filled[name].input[0]])
                reader = readers.get(node.output[0], node.op_type) if node.op_type == "Unsqueeze" else node.op_type
                drawn[name] = _weights(rng, reader, place, shape, gain)
    kept = [node for node in graph.node if not (node.op_type == "ConstantOfShape" and node.output[0] in drawn)]
    if kept[-1].op_type == "Softmax":
        graph.output[0].name = kept.pop().input[0]
    del graph.node[:]
    graph.node.extend(kept)
    model.ir_version = max(model.ir_version, 4)  # from then on a weight need not be listed among the inputs
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in drawn.items())
    return model


def _weights(rng: np.random.Generator, operator: str, place: int, shape: tuple[int, ...], gain: float) -> Floats:
    """What keeps the spread of activations about the same from layer to layer."""
    if operator in ("Conv", "Gemm", "MatMul") and place == 1:
        inputs = math.prod(shape[1:])
        return (rng.standard_normal(shape) * math.sqrt(2.0 / inputs)).astype(np.float32)
    if operator == "BatchNormalization" and place == 1:
        return rng.uniform(gain - 0.2, gain + 0.2, shape).astype(np.float32)
    if operator == "BatchNormalization" and place == 4:
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if operator == "Mul":
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    return rng.uniform(-0.1, 0.1, shape).astype(np.float32)
