"""``anynpu profile``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from silu_network import silu_network

import anynpu
from anynpu.program import Model

Invoke = Callable[..., Any]


@pytest.fixture(scope="module")
def model() -> Model:
    rng = np.random.default_rng(4)
    samples = [{"x": rng.random((1, 3, 96, 96), np.float32)} for _ in range(2)]
    return anynpu.compile(silu_network(), target="rk3588", dataset=samples, name="net")


def test_the_command(invoke: Invoke, model: Model, tmp_path: Path) -> None:
    path = model.save(tmp_path / "net.rknn")
    outcome = invoke("profile", path, "--host", "--html", tmp_path / "p.html", "--trace", tmp_path / "t.json", "--top", 3)
    assert outcome.code == 0
    assert "look-up" in outcome.out
    assert "host" in outcome.out
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    outcome = invoke("profile", path, "--json")
    data = json.loads(outcome.out)
    assert data["chip"] == "rk3588"
    assert len(data["layers"]) == len(model.programs[0].layers)


def test_wrong_arguments(invoke: Invoke, model: Model, tmp_path: Path) -> None:
    path = model.save(tmp_path / "net.rknn")
    assert "compiled for rk3588" in invoke("profile", path, "--target", "rk3566").err
    onnx.save(silu_network(), tmp_path / "net.onnx")
    assert "only a compiled model" in invoke("profile", tmp_path / "net.onnx", "--host").err
    assert invoke("profile", path, "--cores", 9).code == 1


def test_the_table_of_a_device(invoke: Invoke, model: Model, tmp_path: Path) -> None:
    path = model.save(tmp_path / "net.rknn")
    outcome = invoke("profile", path, "--device", "sim")
    assert outcome.code == 0, outcome.err
    assert "Network Layer Information Table" in outcome.out
    assert "the last of 3 runs" in outcome.out
    assert "cannot be loaded" in invoke("profile", path, "--device", "rknn:/nowhere/librknnrt.so").err
