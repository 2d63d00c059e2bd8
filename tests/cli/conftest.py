"""Small models and images for the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.cli.app import run
from anynpu.cli.helpers import verbosity


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Outcome]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run the command line in this process."""

    def invoked(*arguments: object) -> Outcome:
        capsys.readouterr()
        try:
            with pytest.raises(SystemExit) as exit_info:
                run([str(argument) for argument in arguments])
        finally:
            verbosity.reset()  # no handler of the log stays behind
        captured = capsys.readouterr()
        code = exit_info.value.code
        return Outcome(code if isinstance(code, int) else 0, captured.out, captured.err)

    return invoked


def small_model(size: int | str = 16, extra_input: bool = False) -> onnx.ModelProto:
    """Convolution, ReLU, global pooling, fully connected: ten scores for an image."""
    rng = np.random.default_rng(5)
    constants = {
        "weights": rng.standard_normal((8, 3, 3, 3)),
        "bias": rng.standard_normal(8),
        "matrix": rng.standard_normal((8, 10)),
    }
    nodes = [
        helper.make_node("Conv", ["images", "weights", "bias"], ["features"], "conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["features"], ["positive"], "relu"),
        helper.make_node("GlobalAveragePool", ["positive"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "matrix"], ["product" if extra_input else "scores"], "matmul"),
    ]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, size, size])]
    if extra_input:
        inputs.append(helper.make_tensor_value_info("offset", TensorProto.FLOAT, [1, 10]))
        nodes.append(helper.make_node("Add", ["product", "offset"], ["scores"], "add"))
    graph = helper.make_graph(
        nodes,
        "small",
        inputs,
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(small_model(), path)
    return path


@pytest.fixture(scope="session")
def dynamic_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "dynamic.onnx"
    onnx.save(small_model(size="side"), path)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four images."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(7)
    for index in range(4):
        cv2.imwrite(str(folder / f"{index}.png"), rng.integers(0, 256, (20, 24, 3), np.uint8))
    return folder


@pytest.fixture(scope="session")
def compiled_path(model_path: Path, pictures: Path) -> Path:
    """The small model, compiled to int8."""
    import anynpu

    path = model_path.with_suffix(".rknn")
    return anynpu.compile(model_path, "rk3588", dataset=pictures, std=(255, 255, 255)).save(path)


@pytest.fixture
def custom_path(tmp_path: Path) -> Path:
    """A model with an operator that ONNX does not know, and a Softmax."""
    nodes = [
        helper.make_node("Stretch", ["x"], ["stretched"], "stretch", factor=2.0),
        helper.make_node("Softmax", ["stretched"], ["y"], "softmax"),
    ]
    shape = [1, 4]
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "stretched", "y")}
    graph = helper.make_graph(nodes, "custom", [infos["x"]], [infos["y"]], value_info=[infos["stretched"]])
    path = tmp_path / "custom.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path
