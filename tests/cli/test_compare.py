"""``anynpu compare``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from vendor_files import rknn_file

import anynpu

Invoke = Callable[..., Any]


def test_onnx_against_compiled(invoke: Invoke, model_path: Path, compiled_path: Path, pictures: Path, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    outcome = invoke("compare", model_path, compiled_path, "--dataset", pictures, "--html", page)
    assert outcome.code == 0, outcome.err
    assert "small.rknn compared with small.onnx, 4 samples" in outcome.out
    assert "ConvRelu" in outcome.out
    assert "Each layer is within the limits: cosine 0.99, scale 0.01." in outcome.out
    assert page.read_text().startswith("<!doctype html>")


def test_json_and_thresholds(invoke: Invoke, model_path: Path, compiled_path: Path, pictures: Path) -> None:
    arguments = ("compare", model_path, compiled_path, "--dataset", pictures, "--json")
    outcome = invoke(*arguments, "--fail-below", "cosine=0.99", "--fail-above", "alone.scale=0.02")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert data["samples"] == 4
    assert data["missed"] == []
    assert data["outputs"]["scores"]["cosine"] > 0.99
    outcome = invoke(*arguments, "--fail-below", "snr=190", "--samples", 1)
    assert outcome.code == 3
    (sentence,) = json.loads(outcome.out)["missed"]
    assert sentence.startswith("output scores: snr ")
    outcome = invoke(*arguments, "--fail-diverging", "--cosine", 1.0)
    assert outcome.code == 3
    outcome = invoke(*arguments, "--fail-below", "beauty=1")
    assert outcome.code == 1
    assert "'beauty=1' is no threshold" in outcome.err


def test_random_inputs_repeat(invoke: Invoke, model_path: Path, compiled_path: Path) -> None:
    first, again, other = (
        json.loads(invoke("compare", model_path, compiled_path, "--seed", seed, "--samples", 2, "--json").out)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first["outputs"] != other["outputs"]


def test_a_device_as_a_side(invoke: Invoke, model_path: Path, compiled_path: Path) -> None:
    outcome = invoke("compare", compiled_path, "sim", "--samples", 1)
    assert outcome.code == 0, outcome.err
    assert "software NPU, rk3588, 3 cores compared with small.rknn" in outcome.out
    assert "The outputs are equal." in outcome.out
    outcome = invoke("compare", "sim", model_path, "--model", compiled_path, "--samples", 1, "--fail-below", "cosine=0.99")
    assert outcome.code == 0, outcome.err


def test_the_twin_of_a_vendors_file(invoke: Invoke, model_path: Path, compiled_path: Path, tmp_path: Path) -> None:
    vendor = tmp_path / "small.rknn"
    vendor.write_bytes(rknn_file())
    (tmp_path / "small.anynpu").write_bytes(compiled_path.read_bytes())
    outcome = invoke("compare", model_path, vendor, "--samples", 1, "--fail-diverging")
    assert outcome.code == 0, outcome.err


def test_mean_and_std_for_two_onnx_models(invoke: Invoke, model_path: Path, compiled_path: Path, pictures: Path) -> None:
    arguments = ("compare", model_path, model_path, "--dataset", pictures, "--std", "255,255,255", "--samples", 1)
    outcome = invoke(*arguments)
    assert outcome.code == 0, outcome.err
    assert "The outputs are equal." in outcome.out
    outcome = invoke("compare", model_path, compiled_path, "--std", "255,255,255")
    assert "has its own mean and std" in outcome.err
    assert invoke("compare", compiled_path, compiled_path, "--std", "255").code == 2


def test_top_lists_the_worst(invoke: Invoke, model_path: Path, compiled_path: Path) -> None:
    outcome = invoke("compare", model_path, compiled_path, "--top", 1, "--samples", 1)
    assert outcome.code == 0, outcome.err
    assert "... and 3 more" in outcome.out


def test_wrong_sides(
    invoke: Invoke,
    model_path: Path,
    compiled_path: Path,
    dynamic_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A library of that name which another test has loaded would be found without a path.
    monkeypatch.setenv("ANYNPU_RKNN_LIBRARY", str(tmp_path / "librknnrt.so"))
    vendor = tmp_path / "yolo.rknn"
    vendor.write_bytes(rknn_file())
    notes = tmp_path / "notes.txt"
    notes.write_text("no model")
    other = tmp_path / "other.onnx"
    proto = onnx.load(model_path)
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "picture"
    onnx.save(proto, other)
    weightless = anynpu.load(compiled_path).save(tmp_path / "light.rknn", remove_weight=True)
    for arguments, words in [
        ((model_path, vendor), "only the vendor's runtime can execute it"),
        ((model_path, notes), "is not a model that is known here"),
        ((model_path, "missing.rknn"), "neither a file nor a device"),
        ((model_path, "sim"), "state what sim runs: --model"),
        (("sim", "rknn"), "both devices"),
        ((compiled_path, "rknn"), "the device 'rknn' is not here"),
        ((compiled_path, "rknn:/nowhere/librknnrt.so"), "librknnrt.so"),
        ((other, compiled_path), "the model has no input 'images'"),
        ((compiled_path, compiled_path, "--model", compiled_path), "neither side is a device"),
        ((compiled_path, model_path, "--shape", "images=1,3,8,8"), "input 'images' takes [1, 3, 16, 16]"),
        ((dynamic_path, dynamic_path), "a chip needs fixed numbers"),
        ((compiled_path, compiled_path, "--shape-set", 4), "there is no shape set 4"),
        ((compiled_path, weightless), "without its weights"),
    ]:
        outcome = invoke("compare", *arguments)
        assert outcome.code == 1, arguments
        assert words in outcome.err, (arguments, outcome.err)
        assert "hint:" in outcome.err, arguments


def test_a_dataset_that_does_not_fit(invoke: Invoke, model_path: Path, compiled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.npy"
    np.save(path, np.zeros((2, 5, 7), np.float32))
    outcome = invoke("compare", model_path, compiled_path, "--dataset", path)
    assert outcome.code == 1
    assert "input 'images' takes [1, 3, 16, 16], got [2, 5, 7]" in outcome.err


def test_a_shape_for_a_dynamic_model(invoke: Invoke, dynamic_path: Path) -> None:
    outcome = invoke("compare", dynamic_path, dynamic_path, "--shape", "images=1,3,8,8", "--samples", 1)
    assert outcome.code == 0, outcome.err
    outcome = invoke("compare", dynamic_path, dynamic_path, "--shape", "images=1,3,8,8", "--shape", "images=1,3,16,16")
    assert outcome.code == 2


def test_a_model_with_custom_operators_is_refused(invoke: Invoke, custom_path: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "custom.rknn"
    anynpu.compile(custom_path, dtype="fp16", custom_ops=["Stretch"]).save(compiled)
    for path, words in ((custom_path, "No Op registered for Stretch"), (compiled, "has custom operators (Stretch)")):
        outcome = invoke("compare", path, path)
        assert outcome.code == 1
        assert words in outcome.err


@pytest.mark.parametrize("option", ["--no-alone", "--alone"])
def test_without_the_layers_alone(invoke: Invoke, model_path: Path, compiled_path: Path, option: str) -> None:
    data = json.loads(invoke("compare", model_path, compiled_path, option, "--samples", 1, "--json").out)
    assert all((layer["alone"] is None) is (option == "--no-alone") for layer in data["layers"] if layer["index"] >= 0)


def test_a_file_compared_with_itself_says_so(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("compare", compiled_path, compiled_path, "--samples", 1)
    assert outcome.code == 0
    assert "A and B are the same file" in outcome.out.splitlines()[-1]
    assert json.loads(invoke("compare", compiled_path, compiled_path, "--samples", 1, "--json").out)["same_file"] is True


@pytest.mark.parametrize("threshold", [("--fail-below", "cosine=0.9"), ("--fail-diverging",)])
def test_a_check_that_cannot_fail_is_refused(invoke: Invoke, compiled_path: Path, threshold: tuple[str, ...]) -> None:
    outcome = invoke("compare", compiled_path, compiled_path, *threshold)
    assert outcome.code == 1
    assert "compared with itself" in outcome.err
