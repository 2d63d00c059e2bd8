"""The networks that a board ran, as ONNX models, with their calibration images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from arithmetic.board_cases import BoardCase, names
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

SEED = 110310
_UNARY = {
    "base": [],
    "relu": [("Relu", {})],
    "leakyrelu": [("LeakyRelu", {"alpha": 0.1})],
    "sigmoid": [("Sigmoid", {})],
    "hardsigmoid": [("HardSigmoid", {"alpha": 0.2, "beta": 0.5})],
    "softplus": [("Softplus", {})],
    "elu": [("Elu", {"alpha": 1.0})],
    "swish": [("Sigmoid", {}), ("Mul", {})],
    "hardswish": [("HardSigmoid", {"alpha": 1.0 / 6.0, "beta": 0.5}), ("Mul", {})],
    "transpose": [("Transpose", {"perm": [0, 1, 3, 2]})],
}
_BINARY = {"add": "Add", "mul": "Mul", "max": "Max", "div": "Div", "concat": "Concat"}
NETWORKS = sorted([*_UNARY, *_BINARY, "batchnorm", "depthwise", "matmul", "reshape", "resize"])
"""Compiled by the vendor's toolkit."""

PROGRAMS = names("direct")
"""Written by an open compiler, with every integer known."""


class _Builder:
    def __init__(self, case: BoardCase) -> None:
        self.case = case
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def stem(self, output: str = "stem", suffix: str = "") -> str:
        weights = self.constant(f"stem{suffix}_w", self.case.tensor(f"stem{suffix}_w").reshape(3, 3, 1, 1))
        return self.node(
            "Conv", ["input", weights, self.constant(f"stem{suffix}_b", self.case.tensor(f"stem{suffix}_b"))], output
        )

    def model(self, shape: tuple[int, ...]) -> onnx.ModelProto:
        height, width, channels = self.case.record["input"]["shape_nhwc"][1:]
        graph = helper.make_graph(
            self.nodes,
            self.case.name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, channels, height, width])],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, list(shape))],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def network(case: BoardCase) -> onnx.ModelProto:
    """The float network of a case."""
    if case.record["kind"] == "direct":
        return _program(case)
    build, name = _Builder(case), case.name
    shape: tuple[int, ...] = (1, 3, 8, 8)
    if name in _UNARY:
        chain = _UNARY[name]
        before = stem = build.stem("stem" if chain else "output")
        for number, (op, attributes) in enumerate(chain):
            inputs = [stem, before] if op == "Mul" else [before]
            before = build.node(op, inputs, "output" if number == len(chain) - 1 else "act", **attributes)
    elif name in _BINARY:
        parts = [
            build.node("Sigmoid", [build.stem(f"stem{suffix}", suffix)], "ab"[index]) for index, suffix in enumerate(["", "2"])
        ]
        build.node(_BINARY[name], parts, "output", **({"axis": 1} if name == "concat" else {}))
        shape = (1, 6, 8, 8) if name == "concat" else shape
    elif name == "batchnorm":
        numbers = [build.constant(f"bn_{part}", case.tensor(f"bn_{part}")) for part in ("scale", "bias", "mean", "var")]
        build.node("BatchNormalization", [build.stem(), *numbers], "output", epsilon=1e-5)
    elif name == "depthwise":
        weights = build.constant("dw_w", case.tensor("dw_w").reshape(3, 1, 3, 3))
        build.node("Conv", [build.stem(), weights, build.constant("dw_b", case.tensor("dw_b"))], "output", group=3, pads=[1] * 4)
    elif name == "matmul":
        flat = build.node("Reshape", [build.stem(), build.constant("shape", np.array([1, 192], np.int64))], "flat")
        build.node("MatMul", [flat, build.constant("matrix", case.tensor("matrix"))], "output")
        shape = (1, 8)
    elif name == "reshape":
        build.node("Reshape", [build.stem(), build.constant("shape", np.array([1, 3, 4, 16], np.int64))], "output")
        shape = (1, 3, 4, 16)
    else:
        assert name == "resize"
        scales = build.constant("scales", np.array([1, 1, 2, 2], np.float32))
        attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        build.node("Resize", [build.stem(), "", scales], "output", **attributes)
        shape = (1, 3, 16, 16)
    return build.model(shape)


def _program(case: BoardCase) -> onnx.ModelProto:
    """A program of known integers as the float network whose weights and biases have them as quantized values."""
    build, params = _Builder(case), case.record["params"]
    kernel, channels = params["k"], params["shape"][2]
    scales = np.array(params["ws"], np.float32)
    codes = np.array(params["w"], np.int64).reshape(-1, channels, kernel, kernel) - np.reshape(params["wz"], (-1, 1, 1, 1))
    # the program's bias holds the zero point of the input, which is -128, already
    bias = (np.array(params["bias"]) - 128 * codes.sum((1, 2, 3))) * scales.astype(np.float64)
    weights = codes.astype(np.float32) * scales[:, None, None, None]
    inputs = ["input", build.constant("weights", weights), build.constant("bias", bias.astype(np.float32))]
    levels = params.get("levels", 1) if params.get("pool") else 0
    last = build.node("Conv", inputs, "stem" if levels or params["relu"] else "output", pads=[kernel // 2] * 4)
    if params["relu"]:
        last = build.node("Relu", [last], "limited" if levels else "output")
    for level in range(levels):
        op = {"max": "MaxPool", "average": "AveragePool"}[params["pool"]]
        last = build.node(op, [last], f"pool{level}" if level < levels - 1 else "output", kernel_shape=[2, 2], strides=[2, 2])
    _, height, width, outs = case.record["output"]["shape_nhwc"]
    return build.model((1, outs, height, width))


def calibration_images(case: BoardCase) -> list[Array]:
    """The images that the vendor's toolkit calibrated the network with, as the case's generator line states; one of zeros for a program
    of known integers, whose ranges are all recorded."""
    if case.record["kind"] == "direct":
        _, height, width, channels = case.record["input"]["shape_nhwc"]
        return [np.zeros((1, channels, height, width), np.float32)]
    rng = np.random.default_rng(SEED)
    drawn = {"stem_w": rng.uniform(-0.025, 0.025, (3, 3, 1, 1)).astype(np.float32)}
    if "dw_w" in case.record["tensors"]:
        drawn["dw_w"] = rng.uniform(-0.3, 0.3, (3, 1, 3, 3)).astype(np.float32)
    if "stem2_w" in case.record["tensors"]:
        drawn["stem2_w"] = rng.uniform(-0.025, 0.025, (3, 3, 1, 1)).astype(np.float32)
    if "matrix" in case.record["tensors"]:
        drawn["matrix"] = rng.uniform(-0.2, 0.2, (192, 8)).astype(np.float32)
    for name, value in drawn.items():
        assert np.array_equal(value.ravel(), case.tensor(name).ravel()), "the generator line describes other numbers"
    images = []
    for _ in range(8):
        image = rng.integers(0, 256, (1, 3, 8, 8)).astype(np.float32)
        image[..., 0, 0], image[..., -1, -1] = 0, 255
        images.append(image)
    return images


def recorded_ranges(case: BoardCase) -> dict[str, tuple[float, int]]:
    """Scale and zero point of every tensor that the case records."""
    found = {"output": (case.scale, case.zero_point), "input": (1.0, -128)}
    if case.record["kind"] == "direct":
        # every tensor after the convolution has one scale
        params = case.record["params"]
        found |= {name: (params["s_out"], params["z_out"]) for node in network(case).graph.node for name in node.output}
    for name, entry in (case.record.get("intermediate") or {}).items():
        found[name] = (entry["scale"], entry["zero_point"])
    return found
