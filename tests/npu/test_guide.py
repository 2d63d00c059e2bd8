"""The examples of the guide run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anynpu import modelfile

from .builders import image_model

GUIDE = Path(__file__).parents[2] / "docs" / "software-npu.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modelfile.write(image_model((480, 480), name="x"), tmp_path / "det.rknn")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
