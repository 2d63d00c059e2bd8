"""Sections of the documentation and their code blocks, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def section(page: str, heading: str = "") -> str:
    """The text below a heading of ``docs/PAGE.md`` up to the next heading of its level or a higher one; without a heading, the page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    if not heading:
        return text
    shown = _FENCE.sub(
        lambda block: re.sub(r"^#", " ", block[0], flags=re.MULTILINE), text
    )  # comments of programs are no headings
    (start,) = re.finditer(rf"^(#+) {re.escape(heading)}$", shown, re.MULTILINE)
    end = re.search(rf"^#{{1,{len(start[1])}}} ", shown[start.end() :], re.MULTILINE)
    return text[start.end() : start.end() + end.start() if end else len(text)]


def blocks(text: str, language: str = "python") -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
