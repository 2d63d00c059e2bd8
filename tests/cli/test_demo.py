"""``anynpu demo``, from end to end."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import anynpu
from anynpu.cli.demo.detection import HELD_OUT_PAGES
from anynpu.cli.demo.pages import PAGE_SIZE
from anynpu.tasks import find_text

Invoke = Callable[..., Any]


@pytest.mark.full
def test_the_demonstration(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    outcome = invoke("demo", "--output", folder, "--pages", 4)
    assert outcome.code == 0, outcome.err
    assert "compiling PP-OCRv4 detection for rk3588 (int8, 4 pages)" in outcome.err
    assert re.search(r"^  layers \d+ on NPU, \d+ on CPU.*weights \d+\.\d MB   internal \d+\.\d MB$", outcome.out, re.MULTILINE)
    assert "running on the software NPU: rk3588, 3 cores" in outcome.out
    accuracy = re.search(rf"cosine (\d\.\d+) to fp32 over {HELD_OUT_PAGES} pages, worst (\d\.\d+)", outcome.out)
    assert accuracy is not None
    assert float(accuracy[1]) >= 0.97
    assert float(accuracy[2]) >= 0.92
    assert re.search(r"^  host       \d+ ms per page on this machine$", outcome.out, re.MULTILINE)
    assert re.search(
        r"^  rk3588     predicted \d+\.\d ms per page on one core, \d+ pages/s on 3: calibrated", outcome.out, re.MULTILINE
    )
    assert "<svg" in (folder / "profile.html").read_text()

    picture = cv2.imread(str(folder / "page.png"))
    left, right = picture[-PAGE_SIZE:, :PAGE_SIZE].astype(int), picture[-PAGE_SIZE:, -PAGE_SIZE:].astype(int)
    # BGR: outlines are green; all else is gray up to the grain
    assert ((left[..., 1] - left[..., 2]) > 60).sum() > 500
    assert ((right[..., 1] - right[..., 2]) > 60).sum() > 500
    assert len(list((folder / "pages").iterdir())) == 4

    page = cv2.cvtColor(cv2.imread(str(folder / "pages" / "page00.png")), cv2.COLOR_BGR2RGB)
    with anynpu.Device("rk3588") as device:
        (probability,) = device.load(folder / "det.rknn").context().run({"x": page[np.newaxis]}, layout="nhwc")
    assert len(find_text(probability)) >= 5


def test_without_the_package_it_names_the_pip_line(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    outcome = invoke("demo", "--output", tmp_path / "demo")
    assert outcome.code == 1
    assert "pip install rapidocr-onnxruntime" in outcome.err
    assert not (tmp_path / "demo").exists()
