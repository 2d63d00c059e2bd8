"""RKNN: the rarer ways to build a model, and models with several inputs."""

from __future__ import annotations

import re
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
from anynpu.errors import ModelError, ParameterError
from anynpu.rknn.toolkit import RKNN
from anynpu.rknn.toolkit.hybrid import parse_config
from anynpu.rknn.toolkit.onnx_edit import onnx_edit

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
    """A network with an image and a vector as inputs."""
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


@pytest.mark.parametrize(
    ("formula", "function"),
    [
        ("a,b,c,d->a,d,b,c", lambda x: x.transpose(0, 3, 1, 2)),
        ("a,b,c,d->a,c,d,b", lambda x: x.transpose(0, 2, 3, 1)),
        ("q,b,c,d -> q, b,1,cd", lambda x: x.reshape(1, 4, 1, 48)),
        ("1,b,c,d->1,db,c", lambda x: x.transpose(0, 3, 1, 2).reshape(1, 32, 6)),
        ("a,bc,de,f[b=2,d=3]->ab,fe,dc,1", lambda x: x.reshape(2, 2, 3, 2, 8).transpose(0, 4, 3, 2, 1).reshape(2, 16, 6, 1)),
        ("a,bc,d,e[b=2,c=2]->cb,a,d,e", lambda x: x.reshape(1, 2, 2, 6, 8).transpose(2, 1, 0, 3, 4).reshape(4, 1, 6, 8)),
        ("a,b,c,d->a,b,c,d", lambda x: x),
    ],
)
def test_edited_inputs_and_outputs_hold_the_same_values(work: Path, formula: str, function: Any) -> None:
    net = Net(seed=4)
    x, other = net.input("x", (1, 4, 6, 8)), net.input("other", (1, 4, 6, 8))
    joined = net.op("Concat", net.conv(x, 4, cin=4, pads=[1, 1, 1, 1]), other, axis=1)
    half = net.op("Relu", net.op("Slice", joined, net.constant([0]), net.constant([4]), net.constant([1])))
    net.output(half)
    net.output(net.op("Sigmoid", half))  # reads an output that is edited
    onnx.save(net.proto(), "net.onnx")
    assert onnx_edit("net.onnx", "edited.onnx", {"x": formula}, {half: formula}) == 0
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal((1, 4, 6, 8), np.float32) for name in ("x", "other")}
    right = expected(**feeds)
    session = onnxruntime.InferenceSession("edited.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["x", "other"]
    assert tuple(session.get_inputs()[0].shape) == function(feeds["x"]).shape
    given = session.run(None, {"x": np.ascontiguousarray(function(feeds["x"])), "other": feeds["other"]})
    np.testing.assert_allclose(given[0], function(right[0]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(given[1], right[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ({"no_such_input": "a,b->b,a"}, {}, "no input 'no_such_input'"),
        ({}, {"image": "a,b->b,a"}, "no output 'image'"),
        ({"image": "a,b,c->a,c,b"}, {}, "the left side has 3 dimensions"),
        ({"image": "a,b,c,d->a,b,c"}, {}, "each letter"),
        ({"image": "a,b,c,d->a,b,c,d,e"}, {}, "each letter"),
        ({"image": "a,b,c,a->a,b,c"}, {}, "each letter"),
        ({"image": "1,1,c,d->c,d"}, {}, "1 is 1"),
        ({"image": "a,bc,d,e[b=2]->a,b,c,d,e"}, {}, "not a multiple of 2"),
        ({"image": "a,b,cd,e->a,b,c,d,e"}, {}, "do not follow"),
        ({"image": "a,b,cd,e[x=2]->a,b,c,d,e"}, {}, "'x=2'"),
        ({"image": "a,b,2,e->a,b,e"}, {}, "letters and 1"),
        ({"image": "abc"}, {}, "letters and 1"),
    ],
    ids=str,
)
def test_formulas_that_do_not_fit_are_rejected(work: Path, inputs: Any, outputs: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(words)):
        onnx_edit("net.onnx", "edited.onnx", inputs, outputs)
    assert not (work / "edited.onnx").exists()


def test_an_edit_does_not_replace_its_source(work: Path) -> None:
    before = (work / "net.onnx").read_bytes()
    with pytest.raises(ParameterError, match="model itself"):
        onnx_edit(str(work / "net.onnx"), "net.onnx", {"image": "a,b,c,d->a,c,d,b"})
    assert (work / "net.onnx").read_bytes() == before


def test_the_dataset_of_an_edited_model_calibrates_it(rknn: RKNN, work: Path) -> None:
    assert onnx_edit("net.onnx", "edited.onnx", {"image": "a,b,c,d->a,1,b,cd"}, dataset="dataset.txt") == 0
    lines = (work / "dataset_for_edited.txt").read_text().splitlines()
    assert len(lines) == len((work / "dataset.txt").read_text().split())
    sample = np.load(lines[0])
    picture = cv2.cvtColor(cv2.imread("0.png"), cv2.COLOR_BGR2RGB).transpose(2, 0, 1)
    np.testing.assert_array_equal(sample, picture.reshape(1, 1, 3, -1))
    rknn.config(target_platform="rk3588")
    assert rknn.load_onnx("edited.onnx") == 0
    assert rknn.build(do_quantization=True, dataset="dataset_for_edited.txt") == 0
    assert rknn.init_runtime() == 0
    (given,) = rknn.inference([sample], data_format="nchw")
    assert cosine(given, expected(image=picture[np.newaxis].astype(np.float32))[0]) > 0.99
