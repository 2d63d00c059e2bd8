"""Configs as files: ``compile --save-recipe`` and ``compile -c``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anynpu import modelfile

Invoke = Callable[..., Any]
needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML is read by Python 3.11 and later")


@pytest.mark.parametrize("suffix", [pytest.param(".toml", marks=needs_toml), ".json"])
def test_a_saved_recipe_makes_the_same_file(
    invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path, suffix: str
) -> None:
    recipe, first, second = tmp_path / f"small{suffix}", tmp_path / "first.rknn", tmp_path / "second.rknn"
    flags = ("--dataset", pictures, "--std", "255,255,255", "--without", "refit", "--without", "groups", "--limit", 3)
    outcome = invoke("compile", model_path, "-o", first, "-t", "rk3566", *flags, "--save-recipe", recipe)
    assert outcome.code == 0, outcome.err
    assert f"-c {recipe}" in outcome.out.replace("\n", "")
    assert "output" not in recipe.read_text()
    assert str(pictures) not in recipe.read_text()
    outcome = invoke("compile", model_path, "-o", second, "-c", recipe)
    assert outcome.code == 0, outcome.err
    assert second.read_bytes() == first.read_bytes()


def test_flags_count_more_than_a_recipe(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    recipe, made = tmp_path / "small.json", tmp_path / "small.rknn"
    recipe.write_text(json.dumps({"target": "rk3588", "dtype": "fp16", "std": [255, 255, 255], "batch": 2}))
    assert invoke("compile", model_path, "-o", made, "-c", recipe, "--target", "rk3566").code == 0
    model = modelfile.read(made)
    assert (model.chip, model.programs[0].input_specs[0].shape[0]) == ("rk3566", 2)


def test_data_are_beside_the_recipe(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "street").symlink_to(pictures)
    (folder / "small.json").write_text(json.dumps({"target": "rk3588", "dataset": "street", "accuracy": "fast"}))
    outcome = invoke("compile", model_path, "-o", tmp_path / "small.rknn", "--config", folder / "small.json")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"stdd": "255"}, "has 'stdd', which is no flag of this command; did you mean std?"),
        ({"output": "there.rknn"}, "has 'output', which is no flag"),
        ({"std": {"images": 255}}, "'std' of"),
        ({"target": "rk9999"}, "rk9999"),
        ({"batch": "many"}, "--batch"),
        ([1, 2], "is no table"),
    ],
    ids=["unknown", "output", "table", "chip", "number", "list"],
)
def test_a_wrong_recipe(invoke: Invoke, model_path: Path, tmp_path: Path, entries: object, words: str) -> None:
    recipe, made = tmp_path / "small.json", tmp_path / "small.rknn"
    recipe.write_text(json.dumps(entries))
    target = () if isinstance(entries, dict) and "target" in entries else ("-t", "rk3588")
    outcome = invoke("compile", model_path, "-o", made, *target, "--dtype", "fp16", "-c", recipe)
    assert outcome.code in (1, 2)
    assert words in " ".join(outcome.err.split())
    assert not made.exists()


def test_a_place_that_a_recipe_cannot_be_written_to(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    place = tmp_path / "nowhere" / "small.toml"
    flags = ("-t", "rk3588", "--dtype", "fp16", "--save-recipe", place)
    outcome = invoke("compile", model_path, "-o", tmp_path / "small.rknn", *flags)
    assert outcome.code == 2
    assert "'--save-recipe'" in outcome.err


def test_a_recipe_that_cannot_be_read(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "small.json"
    recipe.write_text('{"std": ')
    outcome = invoke("compile", model_path, "-o", tmp_path / "small.rknn", "-t", "rk3588", "-c", recipe)
    assert outcome.code == 1
    assert "hint: a config file has one line per flag" in " ".join(outcome.err.split())
