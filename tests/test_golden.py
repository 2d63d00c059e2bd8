"""Compiled models and JSON outputs stay the same, byte by byte; tools/golden.py states how to record a change that is intended."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", ROOT / "tools" / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool  # dataclasses look their module up
    spec.loader.exec_module(tool)
    return tool


tool = load_tool()
RECORD = json.loads(tool.RECORD.read_text(encoding="utf-8"))


def assert_recorded(name: str, data: bytes, calibrated: bool) -> None:
    same = tool.digest(data) == RECORD["hashes"][name]
    if not same and calibrated and tool.environment() != RECORD["environment"]:
        pytest.skip("calibrated results were recorded with other versions or on another processor")
    assert same, f"{name} differs: python tools/golden.py check --files FOLDER, in this tree and in the one before"


@pytest.mark.parametrize("name", tool.CASES)
def test_the_compiled_file(name: str) -> None:
    case = tool.CASES[name]
    assert_recorded(name, tool.without_text(tool.compiled(case)), case.calibrated)


@pytest.mark.parametrize("commands", ["EXACT_COMMANDS", "CALIBRATED_COMMANDS"])
def test_json_output(commands: str) -> None:
    for name, data in tool.outputs(getattr(tool, commands)).items():
        assert_recorded(f"anynpu {name}", data, commands == "CALIBRATED_COMMANDS")


def test_text_for_people_does_not_count() -> None:
    plain: Any = tool._plain({"layers": [{"reason": "no such operator", "name": "Conv_1"}], "provenance": {"nodes": "3"}})
    assert plain == {"layers": [{"reason": "text", "name": "Conv_1"}]}


def test_nothing_is_recorded_that_is_not_tried() -> None:
    commands = [f"anynpu {name}" for name in (*tool.EXACT_COMMANDS, *tool.CALIBRATED_COMMANDS)]
    assert list(RECORD["hashes"]) == [*tool.CASES, *commands]
