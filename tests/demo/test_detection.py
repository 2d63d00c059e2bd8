"""The demonstration's own parts; the whole of it runs in tests/cli/test_demo.py."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from anynpu.cli.demo import detection
from anynpu.cli.demo.pages import page
from anynpu.errors import MissingDependencyError


def test_the_detector_is_found_without_importing_its_package() -> None:
    before = "rapidocr_onnxruntime" in sys.modules
    path = detection.find_detector()
    assert path.name == "ch_PP-OCRv4_det_infer.onnx"
    assert path.is_file()
    assert ("rapidocr_onnxruntime" in sys.modules) == before


@pytest.mark.parametrize("installed", [False, True])
def test_a_missing_detector_names_the_pip_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: bool) -> None:
    spec = importlib.machinery.ModuleSpec("rapidocr_onnxruntime", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if installed else None)
    with pytest.raises(MissingDependencyError, match="pip install rapidocr-onnxruntime"):
        detection.find_detector()


def test_calibration_pages_are_the_pages_of_their_seeds(tmp_path: Path) -> None:
    folder = detection.calibration_pages(tmp_path / "pages", 2)
    assert sorted(path.name for path in folder.iterdir()) == ["page00.png", "page01.png"]
    stored = cv2.cvtColor(cv2.imread(str(folder / "page01.png")), cv2.COLOR_BGR2RGB)
    np.testing.assert_array_equal(stored, page(1))


def test_cosine() -> None:
    a = np.array([[3.0, 4.0]], np.float32)
    assert detection.cosine(a, 2 * a) == pytest.approx(1.0)
    assert detection.cosine(a, -a) == pytest.approx(-1.0)
    assert detection.cosine(a, np.zeros_like(a)) == 0.0
