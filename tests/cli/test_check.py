"""``anynpu check``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from anynpu import chips

Invoke = Callable[..., Any]


@pytest.fixture
def softmax_path(tmp_path: Path) -> Path:
    """A model whose only operator no NPU takes on that axis."""
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], "odd_axis", axis=2)],
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
    )
    path = tmp_path / "softmax.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_one_chip(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "rk3588")
    assert outcome.code == 0, outcome.err
    assert "small.onnx on rk3588 (int8): 5 nodes" in outcome.out
    assert " on NPU, " in outcome.out


def test_cpu_layers_come_with_their_reason(invoke: Invoke, softmax_path: Path) -> None:
    outcome = invoke("check", softmax_path, "--target", "rk3588")
    assert outcome.code == 0, outcome.err
    (row,) = [line for line in outcome.out.splitlines() if line.startswith("odd_axis")]
    assert "Softmax" in row
    assert "axis 2" in row


def test_equal_reasons_are_told_once(invoke: Invoke, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Softmax", ["x"], ["a"], "first", axis=2),
            helper.make_node("Softmax", ["a"], ["y"], "second", axis=2),
        ],
        "softmax",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
    )
    path = tmp_path / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    outcome = invoke("check", path, "--target", "rk3588")
    assert outcome.code == 0, outcome.err
    assert re.search(r"2 on CPU \(Softmax: axis 2 [^;]*\(x2\)\)", outcome.out)


def test_all_layers(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "rk3588", "--layers")
    assert outcome.code == 0, outcome.err
    (row,) = [line for line in outcome.out.splitlines() if " conv " in line]
    assert "1x8x8x8" in row
    assert "int8" in row


def test_all_chips_have_a_row(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "all")
    assert outcome.code == 0, outcome.err
    first_words = [line.split()[0] for line in outcome.out.splitlines()]
    assert first_words == ["chip", *chips.names()]


def test_json_of_one_chip(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "rv1106", "--json")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert data["chip"] == "rv1106"
    assert data["on_npu"] + data["on_cpu"] == len(data["layers"]) > 0
    assert data["macs"] >= 8 * 8 * 8 * 27


def test_json_of_all_chips(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "all", "--json")
    assert outcome.code == 0, outcome.err
    assert [entry["chip"] for entry in json.loads(outcome.out)] == list(chips.names())


def test_a_chip_that_refuses_the_type_says_so_and_the_others_answer(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "all", "--dtype", "fp16", "--json")
    assert outcome.code == 0, outcome.err
    by_chip = {entry["chip"]: entry for entry in json.loads(outcome.out)}
    assert "layers" in by_chip["rk3588"]
    assert by_chip["rv1106"]["error"]


def test_a_chip_that_refuses_the_type_fails_alone(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "rv1106", "--dtype", "fp16")
    assert outcome.code == 1
    assert "rv1106" in outcome.err
    assert "hint: " in outcome.err


def test_the_list_of_layers_needs_one_chip(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("check", model_path, "--target", "all", "--layers")
    assert outcome.code == 2
    assert "needs one chip" in outcome.err


def test_an_open_shape_needs_the_option(invoke: Invoke, dynamic_path: Path) -> None:
    outcome = invoke("check", dynamic_path, "--target", "rk3588")
    assert outcome.code == 1
    assert "images" in outcome.err
    closed = invoke("check", dynamic_path, "--target", "rk3588", "--shape", "images=1,3,32,32")
    assert closed.code == 0, closed.err


def test_a_model_that_no_chip_takes_fails(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    outcome = invoke("check", path, "--target", "all", "--json")
    assert outcome.code == 1
    assert outcome.out == ""
    assert "is not an ONNX model" in outcome.err


def test_custom_operators(invoke: Invoke, custom_path: Path) -> None:
    outcome = invoke("check", custom_path, "--target", "rk3588", "--custom-op", "Stretch")
    assert outcome.code == 0, outcome.err
    assert "custom operator 'Stretch'" in outcome.out


def test_what_would_avoid_the_cpu(invoke: Invoke, tmp_path: Path) -> None:
    """Heads of detectors end in a Transpose that is too large for the NPU: the remedy stands below the table."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Transpose", ["r"], ["y"], perm=[0, 1, 3, 2])]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 2, *tail))
        for name, tail in (("x", (64, 256)), ("y", (256, 64)))
    )
    path = tmp_path / "head.onnx"
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "head", [x], [y]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        path,
    )
    outcome = invoke("check", path, "--target", "rk3588")
    assert "height x width 64*256 exceeds 8192" in outcome.out
    assert "to avoid it: Transpose: export the model so that it ends before it" in outcome.out
    assert "to avoid it" not in invoke("check", path, "--target", "rk3576").out
    (advice,) = json.loads(invoke("check", path, "--target", "rk3588", "--json").out)["advice"]
    assert advice.startswith("Transpose: export the model so that it ends before it")


def test_another_kind_of_file_is_named(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    compiled, image = tmp_path / "small.rknn", tmp_path / "photo.jpg"
    assert invoke("compile", model_path, "-o", compiled, "-t", "rk3588", "--dtype", "fp16").code == 0
    outcome = invoke("check", compiled)
    assert outcome.code == 1
    assert f"{compiled} is a compiled model, made by anynpu, not an ONNX model" in outcome.err
    image.write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    assert f"{image} is a JPEG image, not an ONNX model" in invoke("check", image).err


def test_configs_state_which_images_to_calibrate_with(invoke: Invoke) -> None:
    assert "# calibrate with: cropped lines of text" in invoke("models", "recipe", "ppocr-v4-rec").out
    assert "# calibrate with: images like those of your application" in invoke("models", "recipe", "yolox-nano").out
