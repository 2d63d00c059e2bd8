"""What a job of the playground computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import pytest

import anynpu
from anynpu.errors import AnynpuError, ImageError, RequestError
from anynpu.serve.playground import work
from anynpu.serve.playground.request import ACCURACIES, AUTO, SCALES, JobRequest
from anynpu.serve.playground.work import do_job

from .models import brightest_channel, colour_picture


def job(folder: Path, request: JobRequest, model: Path, *pictures: Path, **more: Any) -> dict[str, Any]:
    files = {"model": model, **dict(zip(request.pictures, pictures, strict=True))}
    return do_job(request, files, folder, **more)


def test_both_sides_of_a_dropped_model(tmp_path: Path) -> None:
    model, red = brightest_channel(tmp_path / "net.onnx"), colour_picture(tmp_path / "red.png", "red")
    stages: list[str] = []
    request = JobRequest(model="model", pictures=("a",), chip="rk3566", scale="0 to 1")
    result = job(tmp_path, request, model, red, progress=lambda stage, done, total: stages.append(stage))
    assert result["sides"]["float"]["rows"][0]["label"] == "red"
    assert result["sides"]["compiled"]["rows"][0]["label"] == "red"
    assert (result["chip"], result["dtype"]) == ("rk3566", "int8")
    assert result["distance"][0]["output"] == "logits"
    assert result["distance"][0]["cosine"] > 0.999
    assert result["latency_ms"] > 0
    assert result["memory"]["all"] > 0
    assert {layer["name"] for layer in result["layers"]} >= {"mix", "pool"}
    assert any("1 image" in note and "far too little" in note for note in result["notes"])
    assert "--target rk3566 --dataset IMAGES/ --std 255,255,255" in result["command"]
    for name in ("float", "compiled"):
        shown = cv2.imread(str(tmp_path / result["sides"][name]["picture"]))
        assert shown is not None
        assert shown.shape == (24, 32, 3)
    assert stages.index("running the float model") < stages.index("calibrating") < stages.index("running on the software NPU")


def test_the_order_of_channels_holds_for_both_sides(tmp_path: Path) -> None:
    model, red = brightest_channel(tmp_path / "net.onnx"), colour_picture(tmp_path / "red.png", "red")
    result = job(tmp_path, JobRequest(model="m", pictures=("a",), scale="0 to 1", order="bgr"), model, red)
    assert [result["sides"][side]["rows"][0]["label"] for side in ("float", "compiled")] == ["blue", "blue"]
    assert "--channel-order bgr" in result["command"]


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_the_page_says_how_far_the_compiler_goes(accuracy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def compiled(*given: Any, **options: Any) -> Any:
        asked.append(options["accuracy"])
        return anynpu.compile(*given, **options)

    monkeypatch.setattr(work, "compile", compiled)
    model, red = brightest_channel(tmp_path / "net.onnx"), colour_picture(tmp_path / "red.png", "red")
    request = JobRequest.read({"model": "m", "pictures": ["a"], "scale": "0 to 1", "accuracy": accuracy})
    result = job(tmp_path, request, model, red)
    assert asked == [accuracy]
    assert ("--accuracy fast" in result["command"]) == (accuracy == "fast")


def test_a_preprocessing_that_cannot_be_told_is_assumed_and_said(tmp_path: Path) -> None:
    model, green = brightest_channel(tmp_path / "net.onnx"), colour_picture(tmp_path / "green.png", "green")
    result = job(tmp_path, JobRequest(model="m", pictures=("a",), scale=AUTO, dtype="fp16"), model, green)
    assert "could not be found" in result["notes"][0]
    assert result["sides"]["compiled"]["rows"][0]["label"] == "green"
    assert any("float16 needs no calibration" in note for note in result["notes"])


def test_without_a_picture_times_and_memory_are_shown(tmp_path: Path) -> None:
    result = job(tmp_path, JobRequest(model="m", chip="t527"), brightest_channel(tmp_path / "net.onnx"))
    assert "sides" not in result
    assert result["latency_ms"] > 0


def test_a_served_model_runs_on_its_own_chip(tmp_path: Path) -> None:
    source, blue = brightest_channel(tmp_path / "net.onnx"), colour_picture(tmp_path / "blue.png", "blue")
    compiled = anynpu.compile(source, "rk3576", dtype="fp16", std=255.0).save(tmp_path / "net.rknn")
    result = job(tmp_path, JobRequest(served="net", pictures=("a",)), compiled, blue)
    assert list(result["sides"]) == ["compiled"]
    assert result["sides"]["compiled"]["rows"][0]["label"] == "blue"
    assert result["chip"] == "rk3576"


def test_an_open_size_is_given_by_the_request(tmp_path: Path) -> None:
    model = brightest_channel(tmp_path / "net.onnx", open_size=True)
    with pytest.raises(AnynpuError):
        job(tmp_path, JobRequest(model="m"), model)
    assert job(tmp_path, JobRequest(model="m", shape=(1, 3, 32, 32)), model)["latency_ms"] > 0


def test_what_is_no_picture_or_no_model_is_said(tmp_path: Path) -> None:
    model, noise = brightest_channel(tmp_path / "net.onnx"), tmp_path / "noise"
    noise.write_bytes(b"no picture")
    with pytest.raises(ImageError, match="not an image"):
        job(tmp_path, JobRequest(model="m", pictures=("a",)), model, noise)
    (tmp_path / "noise.onnx").write_bytes(b"no model")
    with pytest.raises(AnynpuError):
        job(tmp_path, JobRequest(model="m"), tmp_path / "noise.onnx")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "one model"),
        ({"model": "a", "served": "b"}, "one model"),
        ({"model": "a", "chip": "z80"}, "no chip"),
        ({"model": "a", "dtype": "int3"}, "no type"),
        ({"model": "a", "accuracy": "best"}, "no accuracy"),
        ({"model": "a", "scale": "wild"}, "no preprocessing"),
        ({"model": "a", "order": "gbr"}, "no channel order"),
        ({"model": "a", "shape": [1, 3, 0, 4]}, "shape"),
        ({"model": "a", "shape": [True]}, "shape"),
        ({"model": "a", "pictures": "b"}, "list"),
        ({"model": "a", "pictures": [1]}, "short text"),
        ({"model": "a" * 300}, "short text"),
        ({"model": "a", "path": "/etc"}, "no 'path'"),
        ({"served": "a"}, "needs an image"),
    ],
)
def test_a_request_that_is_none(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        JobRequest.read(given)


def test_the_preprocessings_are_those_that_the_compiler_tries() -> None:
    from anynpu.compiler.quantize.detect_preprocessing import RECIPES

    assert set(SCALES) == {recipe.name for recipe in RECIPES}
