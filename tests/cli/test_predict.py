"""``anynpu predict``."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu import chips
from anynpu.chips.timing.board import write_board
from anynpu.chips.timing.parameters import TimingProfile, timing_profile

Invoke = Callable[..., Any]

KEYS = {"chip", "latency_ms", "fps_one_core", "fps_all_cores", "memory_bytes", "cpu_share", "confidence", "latency_ms_range"}


@pytest.fixture
def stripped_path(tmp_path: Path) -> Path:
    """A convolution of a large image without the values of its weights; it needs more memory than the smallest chips have."""
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", ["c"], ["s"], "gate"),
            helper.make_node("Mul", ["c", "s"], ["y"], "silu"),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 32, 1024, 1024])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 40, 1024, 1024])],
        [TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[40, 32, 3, 3])],
    )
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_all_chips_are_the_default(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("predict", model_path)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split() == [
        "chip",
        "one",
        "core",
        "80",
        "%",
        "range",
        "fps",
        "all",
        "cores",
        "memory",
        "CPU",
        "layers",
        "confidence",
    ]
    assert [line.split()[0] for line in lines[1:]] == list(chips.names())
    assert next(line for line in lines if line.startswith("t527")).count("~") == 3


def test_json_is_one_object(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("predict", model_path, "--target", "all", "--json")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert set(data) == {"model", "dtype", "predictions"}
    assert (data["model"], data["dtype"]) == ("small.onnx", "int8")
    assert [entry["chip"] for entry in data["predictions"]] == list(chips.names())
    for entry in data["predictions"]:
        assert set(entry) == KEYS
        assert entry["fps_one_core"] == pytest.approx(1000 / entry["latency_ms"], rel=1e-2)
        assert entry["fps_all_cores"] >= entry["fps_one_core"]
        assert entry["confidence"] in ("calibrated", "extrapolated", "uncalibrated")
        low, high = entry["latency_ms_range"]
        assert low < entry["latency_ms"] < high


def test_stripped_weights_and_chips_with_too_little_memory(invoke: Invoke, stripped_path: Path) -> None:
    outcome = invoke("predict", stripped_path, "--target", "all")
    assert outcome.code == 0, outcome.err
    rows = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert "does not fit: 72.0 MB needed, 57.6 MB available" in rows["rv1103"]
    assert "uncalibrated" in rows["rv1106"]
    data = json.loads(invoke("predict", stripped_path, "--json").out)
    entry = next(entry for entry in data["predictions"] if entry["chip"] == "rv1103")
    assert entry["latency_ms"] is None
    assert entry["memory_bytes"] > 60 << 20
    assert "does not fit" in entry["reason"]


def test_float16_is_slower_and_not_for_every_chip(invoke: Invoke, stripped_path: Path) -> None:
    int8, half = (json.loads(invoke("predict", stripped_path, "--json", "--dtype", kind).out) for kind in ("int8", "fp16"))
    assert half["dtype"] == "fp16"
    first, second = int8["predictions"][0], half["predictions"][0]
    assert second["latency_ms"] > first["latency_ms"]
    assert (first["confidence"], second["confidence"]) == ("calibrated", "calibrated")
    refusing = next(entry for entry in half["predictions"] if entry["chip"] == "rv1106")
    assert "does not take fp16" in refusing["reason"]
    alone = invoke("predict", stripped_path, "--dtype", "fp16", "--target", "rv1106")
    assert alone.code == 1
    assert "does not take fp16" in alone.err


def test_a_compiled_model_is_predicted_for_its_chip(invoke: Invoke, compiled_path: Path, model_path: Path) -> None:
    outcome = invoke("predict", compiled_path, "--json")
    assert outcome.code == 0, outcome.err
    (compiled,) = json.loads(outcome.out)["predictions"]
    assert compiled["chip"] == "rk3588"
    (outline,) = json.loads(invoke("predict", model_path, "--target", "rk3588", "--json").out)["predictions"]
    assert compiled["latency_ms"] == outline["latency_ms"]
    everywhere = json.loads(invoke("predict", compiled_path, "--target", "all", "--json").out)["predictions"]
    assert len(everywhere) == len(chips.names())
    assert everywhere[1]["confidence"] == "extrapolated"


def test_layers(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("predict", model_path, "--target", "rk3588", "--layers")
    assert outcome.code == 0, outcome.err
    row = next(line for line in outcome.out.splitlines() if " ConvRelu " in line)
    assert "floor" in row
    refused = invoke("predict", model_path, "--layers")
    assert refused.code == 2
    assert "one chip" in refused.err


def test_a_plot_is_an_svg_with_a_bar_for_each_chip(invoke: Invoke, stripped_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "chips.svg"
    outcome = invoke("predict", stripped_path, "--plot", path)
    assert outcome.code == 0, outcome.err
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "large.onnx, int8: one run on one core"
    for chip in chips.all_chips():
        assert (chip.name in texts) == (chip.dram_bytes is None or chip.dram_bytes > 100 << 20), chip.name
    for element in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(element.get("x", "0")) + float(element.get("width", "0")) <= 960
    refused = invoke("predict", stripped_path, "--plot", tmp_path / "chips.png")
    assert refused.code == 2
    assert ".svg" in refused.err


def test_a_board_is_used(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    known = timing_profile(chips.get("rk3588")).parameters
    numbers = {**vars(known), "scale": 2.0, "offset_ns": 1e6}
    board = write_board(
        TimingProfile("rk3588", type(known)(**numbers), True, "a desk", median_error=0.07), tmp_path / "desk.json"
    )
    plain = json.loads(invoke("predict", model_path, "--target", "rk3588", "--json").out)["predictions"][0]
    outcome = invoke("predict", model_path, "--board", board, "--json")
    assert outcome.code == 0, outcome.err
    (there,) = json.loads(outcome.out)["predictions"]
    assert there["latency_ms"] == pytest.approx(2 * plain["latency_ms"] + 1, rel=1e-3)
    other = invoke("predict", model_path, "--board", board, "--target", "rk3566")
    assert other.code == 2
    assert "the board has a rk3588" in other.err


def test_wrong_inputs_are_explained(
    invoke: Invoke, tmp_path: Path, compiled_path: Path, dynamic_path: Path, model_path: Path
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    outcome = invoke("predict", text)
    assert outcome.code == 1
    assert "is not a model that is known here" in outcome.err
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(bytes(range(256)))
    assert "is not an ONNX model, or is damaged" in invoke("predict", broken).err
    assert "a chip needs fixed numbers" in invoke("predict", dynamic_path).err
    assert invoke("predict", dynamic_path, "--shape", "images=1,3,32,32", "--target", "rk3588").code == 0
    assert "is compiled to int8" in invoke("predict", compiled_path, "--dtype", "fp16").err
    assert "its shapes are fixed" in invoke("predict", compiled_path, "--batch", 2).err
    assert "is not a board profile" in invoke("predict", model_path, "--board", text).err
    assert invoke("predict", model_path, "--target", "rk3558").code == 2


def test_a_larger_batch_takes_longer(invoke: Invoke, model_path: Path) -> None:
    rows = [
        json.loads(invoke("predict", model_path, "--batch", batch, "--target", "rk3588", "--json").out)["predictions"][0]
        for batch in (1, 64)
    ]
    assert rows[1]["memory_bytes"] > rows[0]["memory_bytes"]
    assert np.all(rows[1]["latency_ms"] >= rows[0]["latency_ms"])


def test_a_matrix_product(invoke: Invoke) -> None:
    options = ("--matmul", "1x4096x4096", "--types", "int8*int8->int32")
    data = json.loads(invoke("predict", *options, "--target", "rk3588", "--json").out)
    assert (data["matmul"], data["types"], data["layout"]) == ([1, 4096, 4096], "int8*int8->int32", "native")
    (entry,) = data["predictions"]
    assert (entry["chip"], entry["bound"], entry["confidence"]) == ("rk3588", "memory", "calibrated")
    assert 1900 < entry["time_us"] < 2600
    rows = invoke("predict", *options, "--layout", "normal").out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == [chip.name for chip in chips.all_chips() if chip.matmul]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give a model"),
        (("--matmul", "1x2"), "is no product"),
        (("--matmul", "0x64x64"), "is no product"),
        (("--matmul", "1x64x64", "--types", "int9"), "no matmul of int9"),
        (("--matmul", "1x64x64", "--target", "rv1106"), "has no matmul calls"),
    ],
)
def test_questions_without_an_answer(invoke: Invoke, options: tuple[str, ...], message: str) -> None:
    outcome = invoke("predict", *options)
    assert outcome.code != 0
    assert message in " ".join(outcome.err.split())


def test_a_model_and_a_product_are_too_much(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("predict", model_path, "--matmul", "1x2x3")
    assert outcome.code == 2
    assert "too much for one prediction" in " ".join(outcome.err.split())


def test_a_costly_layer_on_the_cpu_is_named(invoke: Invoke, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "patches", strides=[32, 32])],
        "patches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 7, 7])],
        [numpy_helper.from_array(np.zeros((64, 3, 32, 32), np.float32), "w")],
    )
    path = tmp_path / "patches.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    sentence = "this convolution on the CPU takes"
    outcome = invoke("predict", path, "--dtype", "fp16", "-t", "rk3588")
    assert sentence in " ".join(outcome.out.split())
    data = json.loads(invoke("predict", path, "--dtype", "fp16", "-t", "rk3588", "--json").out)
    assert "a kernel of 31 or two convolutions" in data["predictions"][0]["advice"][0]
    assert sentence in " ".join(invoke("check", path, "--dtype", "fp16", "-t", "rk3588").out.split())
