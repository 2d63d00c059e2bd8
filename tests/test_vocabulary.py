"""The vocabulary of pages and messages, numbers that several pages quote, and what the check of both finds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vocabulary", ROOT / "tools" / "vocabulary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vocabulary"] = module
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()


def test_pages_and_messages_use_the_words_of_the_field() -> None:
    assert TOOL.unwanted() == []


def test_numbers_that_several_places_quote_agree() -> None:
    assert TOOL.differing() == []


def test_allowed_entries_are_few_and_longer_than_a_word() -> None:
    _, allowed = TOOL.words()
    assert len(allowed) <= 60
    assert all(" " in entry or ":" in entry for entry in allowed)


def test_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\nA picture, but `picture` is code.\n\n```text\na picture\n```\n")
    (tmp_path / "module.py").write_text('"""Nobody reads this."""\n\nNAME = "nobody"\nTEXT = f"{NAME} is refused"\n')
    monkeypatch.setattr(TOOL, "ROOT", tmp_path)
    monkeypatch.setattr(TOOL, "files", lambda: [tmp_path / "docs" / "page.md", tmp_path / "module.py"])
    found = [line.partition(": write")[0] for line in TOOL.unwanted()]
    assert found == ["docs/page.md:3: 'picture'", "module.py:1: 'Nobody'", "module.py:4: 'refused'"]


def test_numbers_that_differ_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("16 of 20 bytes\n")
    (tmp_path / "b.md").write_text("17 of 20 bytes\n")
    monkeypatch.setattr(TOOL, "ROOT", tmp_path)
    monkeypatch.setattr(TOOL, "FACTS", {"bytes": (("a.md", r"(\d+) of"), ("b.md", r"(\d+) of"))})
    assert TOOL.differing() == ["bytes: a.md has 16, b.md has 17"]
