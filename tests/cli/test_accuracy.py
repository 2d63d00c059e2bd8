"""lint, optimize, and the accuracy options of compile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from diseased_network import STEM, diseased_network, diseased_samples

from anynpu import modelfile

Invoke = Callable[..., Any]


@pytest.fixture(scope="module")
def diseased(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The ONNX file and the samples of a network that suffers."""
    folder = tmp_path_factory.mktemp("diseased")
    onnx.save(diseased_network(), folder / "net.onnx")
    np.save(folder / "samples.npy", np.concatenate([sample["x"] for sample in diseased_samples(9)]))
    return folder / "net.onnx", folder / "samples.npy"


def test_lint_names_the_tensor(invoke: Invoke, diseased: tuple[Path, Path]) -> None:
    model, samples = diseased
    outcome = invoke("lint", model, "--dataset", samples)
    assert outcome.code == 0
    first = outcome.out.splitlines()[1]
    assert first.split()[:3] == ["error", "group-noise", STEM]


def test_strict_lint_fails_and_json_is_complete(invoke: Invoke, diseased: tuple[Path, Path]) -> None:
    model, samples = diseased
    outcome = invoke("lint", model, "--dataset", samples, "--strict", "--json")
    assert outcome.code == 1
    findings = json.loads(outcome.out)
    assert {"rule", "severity", "tensor", "text", "remedy", "numbers"} == set(findings[0])


def test_optimize_writes_a_model_and_the_difference(invoke: Invoke, diseased: tuple[Path, Path], tmp_path: Path) -> None:
    model, samples = diseased
    outcome = invoke("optimize", model, "-o", tmp_path / "better.onnx", "--dataset", samples)
    assert outcome.code == 0
    assert f"split {STEM} into 4 groups" in outcome.out
    assert "difference in float32: " in outcome.out
    onnx.checker.check_model(onnx.load(tmp_path / "better.onnx"))
    assert "error" not in invoke("lint", tmp_path / "better.onnx", "--dataset", samples).out  # the disease is gone


def test_compile_tells_and_records_what_it_did(invoke: Invoke, diseased: tuple[Path, Path], tmp_path: Path) -> None:
    model, samples = diseased
    saved = tmp_path / "net.rknn"
    outcome = invoke("compile", model, "-o", saved, "-t", "rk3588", "--dataset", samples, "-v")
    assert outcome.code == 0
    assert re.fullmatch(r"int8 keeps 0\.99\d\d of the float output: good", outcome.out.splitlines()[0])
    assert "1 tensor has a scale per channel group" in outcome.out
    assert f"(tensor {STEM}) with " in outcome.out or f"{STEM} with " in outcome.out
    assert "convolutions fitted to rounded inputs" in outcome.out or "weights    not fitted" in outcome.out
    assert "error:" not in outcome.out
    assert f"groups: {STEM} in 2" in modelfile.read(saved).provenance["accuracy"]
    assert f"groups: {STEM} in 2" in invoke("inspect", saved).out


def test_steps_are_left_out(invoke: Invoke, diseased: tuple[Path, Path], tmp_path: Path) -> None:
    model, samples = diseased
    options = ("compile", model, "-o", tmp_path / "net.rknn", "-t", "rk3588", "--dataset", samples)
    outcome = invoke(*options, "--without", "groups", "--without", "refit", "-v")
    assert outcome.code == 0
    assert "channel group" not in outcome.out
    assert "fitted" not in outcome.out
    looks = [line for line in outcome.out.splitlines() if line.startswith("  look at ")]
    assert any(STEM in line for line in looks)
    assert "error" not in outcome.out  # nothing failed
    assert invoke(*options, "--without", "luck").code == 1


def test_best_prints_what_each_step_bought(invoke: Invoke, diseased: tuple[Path, Path], tmp_path: Path) -> None:
    model, samples = diseased
    outcome = invoke(
        "compile", model, "-o", tmp_path / "net.rknn", "-t", "rk3588", "--dataset", samples, "--accuracy", "best", "-v"
    )
    assert outcome.code == 0
    assert outcome.out.count("  tried      ") == 12
    assert outcome.out.count("  chosen     ") == 1


def test_two_shapes_are_one_too_many(invoke: Invoke, diseased: tuple[Path, Path]) -> None:
    model, samples = diseased
    shapes = ("--shape", "x=1,3,32,32", "--shape", "x=1,3,16,16")
    outcome = invoke("lint", model, "--dataset", samples, *shapes)
    assert outcome.code == 2
    assert "--shape" in outcome.err
