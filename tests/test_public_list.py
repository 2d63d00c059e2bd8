"""Nothing that the documentation shows to users disappears without a change of tests/public_names.txt."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "public_names.py"))


@pytest.mark.parametrize("section", ["names", "commands", "environment variables", "exit codes"])
def test_everything_listed_exists(tool: dict[str, Any], section: str) -> None:
    """If a removal is intended: python tools/public_names.py, and name it in the commit."""
    lines = tool["sections"](tool["LIST"].read_text(encoding="utf-8"))[section]
    assert len(lines) > 4
    assert tool["missing"](section, lines) == []


@pytest.mark.parametrize(
    ("section", "line", "expected"),
    [
        ("names", "anynpu.no_such_name", "anynpu.no_such_name: there is no anynpu.no_such_name"),
        ("names", "anynpu.Device.no_such_method()", "anynpu.Device.no_such_method: anynpu.Device has no no_such_method"),
        ("names", "anynpu.load(source, weights, color)", "anynpu.load: no parameter color, or at another place"),
        ("names", "anynpu.load(weights, source)", "anynpu.load: no parameter source, or at another place"),
        ("commands", 'anynpu compile --dtype VALUE = "fp16"', 'anynpu compile --dtype VALUE = "fp16"'),
        ("environment variables", "ANYNPU_NOTHING", "ANYNPU_NOTHING"),
        ("exit codes", "77", "77"),
    ],
)
def test_a_missing_line_is_reported(tool: dict[str, Any], section: str, line: str, expected: str) -> None:
    assert tool["missing"](section, [line]) == [expected]


def test_names_are_read_from_programs_through_imports(tool: dict[str, Any]) -> None:
    code = "import anynpu as ort\nfrom anynpu.rknn import Context as C\nort.InferenceSession('x').run()\nC.open\nother.thing\n"
    assert tool["names_in"](code) == {"anynpu", "anynpu.InferenceSession", "anynpu.rknn.Context", "anynpu.rknn.Context.open"}
