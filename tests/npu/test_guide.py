"""The examples of the guide run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import blocks, section

from anynpu import modelfile

from .builders import image_model

GUIDE = section("how-it-works", "Software NPU")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modelfile.write(image_model((480, 480), name="x"), tmp_path / "det.rknn")
    monkeypatch.chdir(tmp_path)
    found = blocks(GUIDE)
    assert len(found) == 5
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, "how-it-works.md", "exec"), names)
