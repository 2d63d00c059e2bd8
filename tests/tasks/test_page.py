"""The examples of docs/tasks.md run as they stand."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
