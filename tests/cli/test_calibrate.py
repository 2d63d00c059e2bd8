"""``anynpu calibrate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Invoke = Callable[..., Any]


def save_network(path: Path, index: int) -> None:
    """One of a family of networks of different sizes."""
    size, channels = (64, 128, 192, 256)[index % 4], (16, 32, 64)[index % 3]
    nodes, weights = [], []
    before, last = 3, "x"
    for depth in range(1 + index % 4):
        name = f"w{depth}"
        weights.append(numpy_helper.from_array(np.full((channels, before, 3, 3), 0.01, np.float32), name))
        nodes.append(helper.make_node("Conv", [last, name], [f"c{depth}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Sigmoid" if (index + depth) % 2 else "Relu", [f"c{depth}"], [f"a{depth}"]))
        before, last = channels, f"a{depth}"
    graph = helper.make_graph(
        nodes,
        "family",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    for index in range(12):
        save_network(folder / f"net{index}.onnx", index)
    return folder


def predicted(invoke: Invoke, model: Path, *options: object) -> float:
    outcome = invoke("predict", model, "--json", *options)
    assert outcome.code == 0, outcome.err
    return float(json.loads(outcome.out)["predictions"][0]["latency_ms"])


def test_two_models_calibrate_a_board(invoke: Invoke, family: Path, tmp_path: Path) -> None:
    lines = ["model,ms"]
    for index in (0, 7):
        lines.append(f"net{index}.onnx,{1.31 * predicted(invoke, family / f'net{index}.onnx', '-t', 'rk3588') + 0.8}")
    table, board = tmp_path / "desk.csv", tmp_path / "desk.json"
    table.write_text("\n".join(lines) + "\n")
    outcome = invoke("calibrate", table, "--models", family, "--target", "rk3588", "-o", board, "--sdk", "2.3.0")
    assert outcome.code == 0, outcome.err
    assert "1.31" in outcome.out
    assert "left out one by one: median error" in outcome.out
    third = family / "net3.onnx"
    there = predicted(invoke, third, "--board", board)
    assert there == pytest.approx(1.31 * predicted(invoke, third, "-t", "rk3588") + 0.8, rel=1e-3)
    assert json.loads(board.read_text())["sdk"] == "2.3.0"


def test_many_models_give_a_full_fit_whose_errors_are_printed(invoke: Invoke, family: Path) -> None:
    lines = ["graph,dtype,chip,published_fps"]
    for index in range(12):
        path = family / f"net{index}.onnx"
        lines += [f"{path.name},INT8,{chip},{1000 / predicted(invoke, path, '-t', chip)}" for chip in ("rk3566", "rk3588")]
    lines.append("net1.onnx,FP16,rk3588,100")
    table = family / "published.csv"
    table.write_text("\n".join(lines) + "\n")
    outcome = invoke("calibrate", table, "--target", "rk3588", "--fresh", "--json")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert data["form"] == "full"
    assert data["models"] == 12
    assert len(data["measured"]) == 13
    assert data["median_error"] < 0.03
    (half,) = [entry for entry in data["measured"] if entry["error_left_out"] is None]
    assert half["dtype"] == "float16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column for the model"),
        ("model\nnet0.onnx\n", "no column for the time"),
        ("model,ms\n", "has no measurements"),
        ("model,ms\nnet0.onnx,fast\n", "line 2: 'fast' is not a positive number"),
        ("model,ms\nnet0.onnx,-3\n", "'-3' is not a positive number"),
        ("model,ms\nnet0.onnx,nan\n", "'nan' is not a positive number"),
        ("model,fps\nnet0.onnx,0\n", "'0' is not a positive number"),
        ("model,ms,dtype\nnet0.onnx,3,int3\n", "there is no type 'int3'"),
        ("model,ms,cores\nnet0.onnx,3,9\n", "rk3588 has 3 cores, not 9"),
        ("model,ms,cores\nnet0.onnx,3,two\n", "'two' is not a number of cores"),
        ("model,ms,chip\nnet0.onnx,3,rk3566\n", "has no measurements of rk3588"),
        ("model,ms,chip\nnet0.onnx,3,rk1\n", "there is no chip 'rk1'"),
        ("model,ms\nabsent.onnx,3\n", "there is no file"),
        ("model,ms\nbad\x00.onnx,3\n", "error"),
    ],
)
def test_wrong_tables_are_explained(invoke: Invoke, family: Path, tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "wrong.csv"
    table.write_text(text)
    outcome = invoke("calibrate", table, "--models", family, "--target", "rk3588")
    assert outcome.code == 1
    assert message in " ".join(outcome.err.split())


def test_milliseconds_count_before_frames(invoke: Invoke, family: Path, tmp_path: Path) -> None:
    table = tmp_path / "both.csv"
    table.write_text("Model, ms ,fps,cores\nnet0.onnx,4,,1\nnet7.onnx,,50,\n\n")
    outcome = invoke("calibrate", table, "--models", family, "--target", "rk3588", "--json")
    assert outcome.code == 0, outcome.err
    assert [entry["measured_ms"] for entry in json.loads(outcome.out)["measured"]] == [4.0, 20.0]


def perf_text(microseconds: float) -> str:
    return (
        f"noise\nTotal Operator Elapsed Per Frame Time(us): {microseconds:.0f}\nTotal Memory Read/Write Per Frame Size(KB): 1\n"
    )


def test_texts_of_a_board_calibrate_it(invoke: Invoke, family: Path, tmp_path: Path) -> None:
    pairs: list[str] = []
    for index in (0, 7):
        text = tmp_path / f"perf{index}.txt"
        model = family / f"net{index}.onnx"
        text.write_text(perf_text(1000 * (1.5 * predicted(invoke, model, "-t", "rk3588") + 0.4)))
        pairs += ["--log", f"{model}={text}"]
    board = tmp_path / "desk.json"
    outcome = invoke("calibrate", *pairs, "--target", "rk3588", "-o", board)
    assert outcome.code == 0, outcome.err
    data = json.loads(board.read_text())
    assert data["parameters"]["scale"] == pytest.approx(1.5, rel=0.05)
    assert data["float_numbers"]["cpu_macs_per_ns"] > 0
    model = family / "net3.onnx"
    there, chip = predicted(invoke, model, "--board", board), predicted(invoke, model, "-t", "rk3588")
    assert there == pytest.approx(1.5 * chip + 0.4, rel=0.05)
    table = family / "logs.csv"
    (family / "perf.txt").write_text("Avg Time 3.00ms, Avg FPS = 333.3\n")
    table.write_text("model,log\nnet0.onnx,perf.txt\n")
    assert invoke("calibrate", table, "--target", "rk3588", "--json").code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing here", "no time of a run"),
        ("Predicted for rk3588, not measured: x\nTotal Time(us): 5", "a prediction of anynpu"),
    ],
)
def test_texts_that_say_nothing_are_refused(invoke: Invoke, family: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "perf.txt").write_text(text)
    outcome = invoke("calibrate", "--log", f"{family / 'net0.onnx'}={tmp_path / 'perf.txt'}", "--target", "rk3588")
    assert outcome.code != 0
    assert message in " ".join(outcome.err.split())


def test_a_calibration_needs_something(invoke: Invoke, tmp_path: Path) -> None:
    assert "give a CSV file" in " ".join(invoke("calibrate", "--target", "rk3588").err.split())
    assert "does not name a model" in " ".join(invoke("calibrate", "--log", "x", "--target", "rk3588").err.split())
    missing = invoke("calibrate", "--log", f"a.onnx={tmp_path / 'none.txt'}", "--target", "rk3588")
    assert "cannot be read" in " ".join(missing.err.split())
