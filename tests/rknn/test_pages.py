"""The pages about RKNN: the examples run, and the table of calls is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from documentation import blocks, section

from anynpu import modelfile
from anynpu.chips import CALLS, QUERIES
from anynpu.rknn.interface import functions

from .support import dynamic_model, picture_model

ROOT = Path(__file__).parents[2]


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    modelfile.write(picture_model(), tmp_path / "detector.rknn")
    modelfile.write(dynamic_model(), tmp_path / "dynamic.rknn")
    monkeypatch.chdir(tmp_path)
    found = blocks(section("rknn", "Context"))
    assert len(found) == 8
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, "docs/rknn.md", "exec"), names)
    printed = capsys.readouterr().out
    for line in ("image (1, 6, 20, 3)", "-5 rknn_set_core_mask possible are 0, 1, 2", "((1, 8, 8, 3), (1, 12, 16, 3))", "0 1 2"):
        assert line in printed


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rknn_calls_page", ROOT / "tools/rknn_calls_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_up_to_date(tool: ModuleType) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.updated(page), "run python tools/rknn_calls_page.py"


def test_the_table_has_everything(tool: ModuleType) -> None:
    assert set(tool.CALL_NOTES) == set(CALLS)
    assert set(tool.QUERY_NOTES) == set(QUERIES)
    assert {*tool.CALL_NOTES, *tool.LATER_CALLS} == set(functions())


def test_every_entry_names_a_test_that_has_it(tool: ModuleType) -> None:
    entries = {
        **{name: notes[0] for name, notes in tool.CALL_NOTES.items()},
        **{name: notes[1] for name, notes in tool.LATER_CALLS.items()},
        **{name: notes[0] for name, notes in tool.QUERY_NOTES.items()},
    }
    for name, test in entries.items():
        source = (tool.TESTS / f"{test}.py").read_text(encoding="utf-8")
        if test == "test_attributes":  # which has the functions behind these queries
            source = (tool.TESTS / "test_queries.py").read_text(encoding="utf-8")
        assert name in source, (name, test)
