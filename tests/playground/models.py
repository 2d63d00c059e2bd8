"""A network whose answers can be worked out by hand: it names the channel of an image that is brightest."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["NAMES", "brightest_channel", "colour_picture"]

NAMES = ("red", "green", "blue", "dark")


def brightest_channel(path: Path, *, open_size: bool = False) -> Path:
    """Write it. Its classes are red, green, blue, and dark, which never wins."""
    size = ["height", "width"] if open_size else [16, 16]
    weights = np.concatenate([np.eye(3), np.zeros((1, 3))]).astype(np.float32).reshape(4, 3, 1, 1) * 8
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["mixed"], "mix", kernel_shape=[1, 1]),
            helper.make_node("GlobalAveragePool", ["mixed"], ["mean"], "pool"),
            helper.make_node("Flatten", ["mean"], ["logits"], "flat", axis=1),
        ],
        "brightest",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, *size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, {"names": str(dict(enumerate(NAMES)))})
    onnx.save(model, path)
    return path


def colour_picture(path: Path, name: str) -> Path:
    """Write an image whose channel *name* is the brightest."""
    colour = [40, 40, 40]
    colour[NAMES.index(name)] = 220
    picture = np.empty((24, 32, 3), np.uint8)
    picture[:] = colour[::-1]  # OpenCV's order is BGR
    assert cv2.imwrite(str(path), picture)
    return path
