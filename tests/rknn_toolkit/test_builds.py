"""RKNN: the rarer ways to build a model, and models with several inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from compiler.onnx_builders import Net

from anynpu import modelfile
from anynpu.errors import ModelError
from anynpu.rknn_toolkit import RKNN
from anynpu.rknn_toolkit.hybrid import parse_config

SIDE = 8
SCALED: dict[str, Any] = {"mean_values": [[0, 0, 0]], "std_values": [[255, 255, 255]], "target_platform": "rk3588"}
IMAGE = np.random.default_rng(5).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8)


@pytest.fixture
def rknn() -> Iterator[RKNN]:
    made = RKNN()
    yield made
    made.release()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    net = Net(seed=3)
    first = net.op("Relu", net.conv(net.input("image", (1, 3, SIDE, SIDE)), 8, pads=[1, 1, 1, 1]))
    net.output(net.conv(first, 4, kernel=1, cin=8))
    onnx.save(net.proto(), tmp_path / "net.onnx")
    random = np.random.default_rng(0)
    for index in range(2):
        cv2.imwrite(str(tmp_path / f"{index}.png"), random.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
        np.save(tmp_path / f"{index}.npy", random.standard_normal((1, 6)).astype(np.float32))
    (tmp_path / "dataset.txt").write_text("0.png\n1.png\n")
    (tmp_path / "pairs.txt").write_text("0.png 0.npy\n1.png 1.npy\n")
    return tmp_path


def loaded(rknn: RKNN, **config: Any) -> RKNN:
    assert rknn.config(**{**SCALED, **config}) == 0
    assert rknn.load_onnx("net.onnx") == 0
    return rknn


def cosine(a: Any, b: Any) -> float:
    a, b = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def expected(**feeds: Any) -> Any:
    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_layers_that_the_toolkit_proposes(rknn: RKNN, work: Path) -> None:
    """What is proposed can be compiled."""
    assert loaded(rknn).hybrid_quantization_step1(dataset="dataset.txt", proposal=True) == 0
    proposed = parse_config(work / "net.quantization.cfg").floats
    tensors = {name for node in onnx.load("net.onnx").graph.node for name in node.output}
    assert set(proposed) <= tensors
    assert rknn.hybrid_quantization_step2("net.model", "net.data", "net.quantization.cfg") == 0
    assert rknn.init_runtime() == 0
    image = (IMAGE.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    assert cosine(rknn.inference([IMAGE])[0], expected(image=image)[0]) > 0.98


def test_auto_hybrid(rknn: RKNN, work: Path) -> None:
    assert loaded(rknn).build(do_quantization=True, dataset="dataset.txt", auto_hybrid=True) == 0
    assert rknn.init_runtime() == 0
    image = (IMAGE.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    assert cosine(rknn.inference([IMAGE])[0], expected(image=image)[0]) > 0.99


def test_a_file_without_weights(rknn: RKNN, work: Path) -> None:
    assert loaded(rknn, remove_weight=True).build(do_quantization=False) == 0
    assert rknn.export_rknn("net.rknn") == 0
    assert modelfile.read(work / "net.rknn").weightless


def test_a_text_that_travels_with_the_model(rknn: RKNN, work: Path) -> None:
    assert loaded(rknn, custom_string="made in a test").build(do_quantization=False) == 0
    rknn.export_rknn("net.rknn")
    assert modelfile.read(work / "net.rknn").custom_string == "made in a test"


def test_a_folder_that_is_missing(rknn: RKNN, work: Path) -> None:
    assert loaded(rknn).build(do_quantization=False) == 0
    assert rknn.export_rknn("missing/net.rknn") == -1


def test_a_rewritten_model_is_the_same_function(rknn: RKNN, work: Path) -> None:
    assert rknn.optimize_onnx("net.onnx") == -1
    assert rknn.optimize_onnx("net.onnx", optimized_path="better.onnx", inputs_for_dump="dataset.txt") == 0
    image = np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)
    session = onnxruntime.InferenceSession("better.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"image": image})[0], expected(image=image)[0], rtol=1e-3, atol=1e-3)


@pytest.fixture
def pairs(work: Path) -> Path:
    """A network with a picture and a vector as inputs."""
    net = Net(seed=4)
    pooled = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv(net.input("image", (1, 3, SIDE, SIDE)), 6))))
    net.output(net.op("Gemm", net.op("Add", pooled, net.input("vector", (1, 6))), net.weights(6, 4), net.weights(4)))
    onnx.save(net.proto(), work / "net.onnx")
    return work


@pytest.mark.parametrize("quantised", [True, False])
def test_several_inputs(rknn: RKNN, pairs: Path, quantised: bool) -> None:
    loaded(rknn, mean_values=[[0, 0, 0]], std_values=[[255, 255, 255]])
    assert rknn.build(do_quantization=quantised, dataset="pairs.txt") == 0
    assert rknn.init_runtime() == 0
    vector = np.load("0.npy")
    (output,) = rknn.inference([IMAGE, vector], data_format=["nhwc", "nhwc"])
    image = (IMAGE.transpose(0, 3, 1, 2) / 255).astype(np.float32)
    assert cosine(output, expected(image=image, vector=vector)[0]) > (0.97 if quantised else 0.999)
    assert rknn.accuracy_analysis(inputs=["0.png", "0.npy"], output_dir="snapshot") == 0
    assert rknn.codegen("program", inputs=["0.png", "0.npy"]) == 0


def test_a_free_size_is_asked_for_in_the_words_of_the_class(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net()
    net.output(net.op("Relu", net.input("image", ("batch", 3, "height", SIDE))))
    onnx.save(net.proto(), work / "net.onnx")
    assert loaded(rknn).build(do_quantization=False) == -1
    assert "[[1, 3, 640, 640]]), or config(dynamic_input=...)" in capsys.readouterr().err
    assert rknn.load_onnx("net.onnx", inputs=["image"], input_size_list=[[1, 3, SIDE, SIDE]]) == 0
    assert rknn.build(do_quantization=False) == 0


def test_too_many_means_are_refused(rknn: RKNN, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded(rknn, mean_values=[[0, 0, 0], [1, 2, 3]])
    assert rknn.build(do_quantization=False) == -1
    assert "mean_values has 2 lists, the model has 1 inputs" in capsys.readouterr().err


@pytest.mark.parametrize("quantised", [True, False])
def test_accuracy_analysis_of_arrays(rknn: RKNN, work: Path, quantised: bool) -> None:
    assert loaded(rknn).build(do_quantization=quantised, dataset="dataset.txt") == 0
    assert rknn.accuracy_analysis(inputs=[IMAGE], output_dir="snapshot", target="rk3588") == 0
    assert (work / "snapshot" / "runtime").is_dir()
    assert rknn.accuracy_analysis(inputs=["missing.png"], output_dir="snapshot") == -1


def test_a_file_of_another_program_is_no_second_step(rknn: RKNN, work: Path) -> None:
    (work / "net.data").write_text("{}")
    assert rknn.hybrid_quantization_step2("net.onnx", "net.data", "net.cfg") == -1
    with pytest.raises(ModelError, match="cannot be read"):
        parse_config(work / "missing.cfg")
