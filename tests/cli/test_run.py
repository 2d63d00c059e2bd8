"""``anynpu run``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import anynpu

Invoke = Callable[..., Any]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    cv2.imwrite(str(path), np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8))
    return path


def test_a_picture(invoke: Invoke, compiled_path: Path, picture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    outcome = invoke("run", compiled_path, "--input", picture, "--output", folder)
    assert outcome.code == 0, outcome.err
    assert f"input   images 1x3x16x16: {picture}" in outcome.out
    assert f"wrote {folder / 'scores.npy'}" in outcome.out
    saved = np.load(folder / "scores.npy")

    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
    model = anynpu.load(compiled_path)
    with anynpu.Device("rk3588") as device:
        (expected,) = device.load(model).context().run({"images": image[None]}, layout="nhwc")
    np.testing.assert_array_equal(saved, expected)
    best = int(expected.argmax())
    assert f"[0, {best}] {expected[0, best]:.4g}" in outcome.out


def test_random_input_depends_on_the_seed(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        outcome = invoke("run", compiled_path, "--seed", seed, "--output", tmp_path / folder)
        assert outcome.code == 0, outcome.err
        assert f"random, seed {seed}" in outcome.out
    first, second, third = (np.load(tmp_path / folder / "scores.npy") for folder in "abc")
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)


def test_an_array_by_name(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "frame.npy"
    np.save(path, np.zeros((1, 3, 16, 16), np.uint8))
    outcome = invoke("run", compiled_path, "--input", f"images={path}")
    assert outcome.code == 0, outcome.err
    assert f"images 1x3x16x16: {path}" in outcome.out


def test_a_wrong_shape_fails_with_a_hint(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "frame.npy"
    np.save(path, np.zeros((1, 3, 8, 8), np.float32))
    outcome = invoke("run", compiled_path, "--input", path)
    assert outcome.code == 1
    assert "[1, 3, 16, 16]" in outcome.err
    assert "[1, 3, 8, 8]" in outcome.err


def test_a_damaged_picture_fails(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"not a picture")
    outcome = invoke("run", compiled_path, "--input", path)
    assert outcome.code == 1
    assert "broken.jpg" in outcome.err


def test_a_damaged_array_fails(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.npy"
    path.write_bytes(b"not an array")
    outcome = invoke("run", compiled_path, "--input", path)
    assert outcome.code == 1
    assert "is not a .npy file" in outcome.err


def test_a_missing_input_file_is_wrong_usage(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("run", compiled_path, "--input", "absent.png")
    assert outcome.code == 2
    assert "'absent.png' does not exist" in outcome.err


def test_a_shape_set_that_is_not_there_is_wrong_usage(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("run", compiled_path, "--shape-set", 1)
    assert outcome.code == 2
    assert "1 shape set" in outcome.err


def test_a_shape_set_can_be_chosen(invoke: Invoke, dynamic_path: Path, tmp_path: Path) -> None:
    shapes = [{"images": (1, 3, 16, 16)}, {"images": (1, 3, 24, 24)}]
    path = anynpu.compile(dynamic_path, "rk3588", dtype="fp16", shapes=shapes).save(tmp_path / "dynamic.rknn")
    outcome = invoke("run", path, "--shape-set", 1)
    assert outcome.code == 0, outcome.err
    assert "images 1x3x24x24" in outcome.out


def test_another_chip_than_the_models_fails(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("run", compiled_path, "--target", "rk3566")
    assert outcome.code == 1
    assert "rk3566" in outcome.err
    assert "rk3588" in outcome.err


def test_an_onnx_file_must_be_compiled_first(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("run", model_path)
    assert outcome.code == 1
    assert "anynpu compile" in outcome.err


def test_an_isolated_run_gives_the_same(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    for name, options in (("plain", ()), ("isolated", ("--isolate", "--isolate-memory", "512"))):
        outcome = invoke("run", compiled_path, "--output", tmp_path / name, *options)
        assert outcome.code == 0, outcome.err
    np.testing.assert_array_equal(np.load(tmp_path / "plain" / "scores.npy"), np.load(tmp_path / "isolated" / "scores.npy"))
