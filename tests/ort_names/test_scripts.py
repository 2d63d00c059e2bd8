"""Twelve ordinary onnxruntime scripts, run unmodified on onnxruntime and under ``anynpu exec --onnxruntime``, with the same results."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .models import save_models

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.py"))
FLOAT16, INT8 = 0.01, 0.06
"""How far results may be from those in float32: of probabilities and of numbers up to one."""

Found = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


def run(models: Path, out: Path, before: list[str]) -> Found:
    environment = {**os.environ, "ANYNPU_CACHE": str(out.parent / "cache"), "ORT_DISABLE_TELEMETRY": "1"}
    command = [*before, sys.executable, HERE / "run_scripts.py", models, out, *SCRIPTS]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    loaded: Found = pickle.loads(out.read_bytes())
    return loaded


@pytest.fixture(scope="module")
def theirs(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(models, tmp_path_factory.mktemp("theirs") / "out", [])


@pytest.fixture(scope="module")
def ours(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    exec_ = [sys.executable, "-m", "anynpu.cli", "exec", "--chip", "rk3588", "--onnxruntime", "--float16"]
    return run(models, tmp_path_factory.mktemp("ours") / "out", [*exec_, "--dataset", f"classifier8={models / 'data'}", "--"])


def test_there_are_twelve() -> None:
    assert len(SCRIPTS) == 12


@pytest.mark.parametrize("name", [script.stem for script in SCRIPTS])
def test_a_script_gives_the_same_on_both(name: str, theirs: Found, ours: Found) -> None:
    assert isinstance(theirs[name], dict), theirs[name]
    assert isinstance(ours[name], dict), ours[name]
    assert list(ours[name]) == list(theirs[name])
    for key, expected in theirs[name].items():
        found = ours[name][key]
        if isinstance(expected, np.ndarray):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype), key
            np.testing.assert_allclose(found, expected, atol=INT8 if "int8" in key else FLOAT16, err_msg=key)
        else:
            assert found == expected, key
