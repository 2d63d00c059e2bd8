"""Four small networks of the kinds that ordinary scripts run: a classifier, a detector, a text recognizer, sentence embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
LABELS = {0: "person", 1: "bicycle", 2: "car"}


def save_models(folder: Path) -> None:
    """Write the networks, and calibration data for ``classifier8``."""
    rng = np.random.default_rng(20)
    classifier = _classifier(rng)
    onnx.save(classifier, folder / "classifier.onnx")
    onnx.save(classifier, folder / "classifier8.onnx")
    onnx.save(_detector(rng), folder / "detector.onnx")
    onnx.save(_recogniser(rng), folder / "recogniser.onnx")
    onnx.save(_embeddings(rng), folder / "embeddings.onnx")
    data = folder / "data"
    data.mkdir()
    for index in range(8):
        np.save(data / f"{index}.npy", rng.standard_normal((1, 3, 16, 16)).astype(np.float32))


def _weights(rng: np.random.Generator, name: str, *shape: int) -> Any:
    scale = 1.5 / np.sqrt(np.prod(shape[1:]))
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name)


def _value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], **properties: str) -> Any:
    graph = helper.make_graph(nodes, name, inputs, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_operatorsetid("", 17)], ir_version=9, producer_name="tests", model_version=3
    )
    helper.set_model_props(model, properties)
    return model


def _classifier(rng: np.random.Generator) -> Any:
    nodes = [
        helper.make_node("Conv", ["input", "w1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("GlobalAveragePool", ["r1"], ["p1"]),
        helper.make_node("Flatten", ["p1"], ["f1"]),
        helper.make_node("Gemm", ["f1", "w2"], ["g1"], transB=1),
        helper.make_node("Softmax", ["g1"], ["probabilities"], axis=1),
    ]
    constants = [_weights(rng, "w1", 8, 3, 3, 3), _weights(rng, "w2", 10, 8)]
    return _model("classifier", nodes, [_value("input", [1, 3, 16, 16])], [_value("probabilities", [1, 10])], constants)


def _detector(rng: np.random.Generator) -> Any:
    nodes = [
        helper.make_node("Conv", ["images", "w1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Sigmoid", ["c2"], ["s2"]),
        helper.make_node("Reshape", ["s2", "shape"], ["output0"]),
    ]
    constants = [_weights(rng, "w1", 8, 3, 3, 3), _weights(rng, "w2", 7, 8, 3, 3)]
    constants.append(numpy_helper.from_array(np.array([1, 7, 64], np.int64), "shape"))
    return _model(
        "detector",
        nodes,
        [_value("images", [1, 3, 32, 32])],
        [_value("output0", [1, 7, 64])],
        constants,
        names=repr(LABELS),
        stride="4",
    )


def _recogniser(rng: np.random.Generator) -> Any:
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], kernel_shape=[16, 4], strides=[16, 4]),
        helper.make_node("Squeeze", ["c1", "two"], ["s1"]),
        helper.make_node("Transpose", ["s1"], ["t1"], perm=[0, 2, 1]),
        helper.make_node("Softmax", ["t1"], ["text"], axis=2),
    ]
    constants = [
        _weights(rng, "w1", len(CHARACTERS) + 1, 3, 16, 4),
        numpy_helper.from_array(np.array([2], np.int64), "two"),
    ]
    inputs = [_value("x", ["batch", 3, 16, "width"])]
    outputs = [_value("text", ["batch", "steps", len(CHARACTERS) + 1])]
    return _model("recogniser", nodes, inputs, outputs, constants, character="\n".join(CHARACTERS))


def _embeddings(rng: np.random.Generator) -> Any:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e1"], axis=0),
        helper.make_node("Cast", ["attention_mask"], ["m1"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m1", "two"], ["m2"]),
        helper.make_node("Mul", ["e1", "m2"], ["e2"]),
        helper.make_node("ReduceMean", ["e2"], ["sentence"], axes=[1], keepdims=0),
    ]
    constants = [_weights(rng, "table", 50, 16), numpy_helper.from_array(np.array([2], np.int64), "two")]
    inputs = [_value(name, ["batch", "length"], TensorProto.INT64) for name in ("input_ids", "attention_mask")]
    return _model("embeddings", nodes, inputs, [_value("sentence", ["batch", 16])], constants)
