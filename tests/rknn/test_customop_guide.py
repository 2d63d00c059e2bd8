"""The examples of docs/rknn.md run as they stand, those in C too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from documentation import blocks, section
from onnx import TensorProto, helper, numpy_helper
from tools import need, need_module

from .customop_helpers import ABI_FOLDER, build_plugin

GUIDE = section("rknn", "Custom operators")


def classifier() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    weights = numpy_helper.from_array(rng.standard_normal((4, 3, 16, 16)).astype(np.float32), "weights")
    bias = numpy_helper.from_array(np.array([1, 2, 3, 4], np.float32), "bias")
    nodes = [
        helper.make_node("Conv", ["images", "weights", "bias"], ["features"], "conv"),
        helper.make_node("Flatten", ["features"], ["scores"], "flatten"),
        helper.make_node("cstSoftmax", ["scores"], ["probabilities"], "softmax", domain="acme", axis=1),
    ]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 16, 16])]
    outputs = [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, [weights, bias])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid("acme", 1)], ir_version=8)


@pytest.mark.full  # one of them is for the GPU
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    need_module("pyopencl")
    need("OpenCL")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANYNPU_DEVICE", "sim")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    onnx.save(classifier(), "classifier.onnx")
    (source,) = blocks(GUIDE, "c")
    Path("halve.c").write_text(source)
    Path("rknn_custom_op.h").write_text(f'#include "{ABI_FOLDER / "abi.h"}"\n')
    build_plugin(tmp_path / "halve.c", tmp_path, "-fvisibility=default")
    found = blocks(GUIDE)
    assert len(found) == 4
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, "rknn.md", "exec"), names)
    scores = np.array([[1, 2, 3, 4]], np.float32)  # a black image leaves the bias
    np.testing.assert_allclose(names["probabilities"], np.exp(scores) / np.exp(scores).sum(), rtol=1e-3)
    np.testing.assert_array_equal(names["halves"], scores / 2)
    np.testing.assert_array_equal(names["doubled"], scores * 2)
    comments = re.findall(r"print\(.*?\)  # (.*)", GUIDE)
    assert capsys.readouterr().out.splitlines() == comments
