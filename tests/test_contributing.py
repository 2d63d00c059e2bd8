"""docs/architecture.md names files and names in them that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation import section

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anynpu"
PAGE = section("architecture", "What to touch")
SUBJECTS = (
    *(
        "A chip",
        "An ONNX operator, element by element",
        "An ONNX operator in integers",
        "A float operator",
        "A query of rknn_query",
    ),
    *("An option of a session", "A command", "An instruction set", "A REST endpoint", "A field of the model file"),
    *("A vendor", "A quantized type", "A Python package that programs find under exec"),
)


def sections() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def file_of(text: str) -> Path | None:
    """The file or folder that a piece of code in the text names; None if it is not a path, or stands for many."""
    if (
        not re.fullmatch(r"[\w./-]+", text)
        or ("/" not in text and "." not in text)
        or re.search(r"[A-Z]{4}", text.split("/")[-1])
    ):
        return None
    return next((path for path in (PACKAGE / text, ROOT / text) if path.exists()), PACKAGE / text)


def steps_of(section: str) -> list[str]:
    """The numbered steps and the paragraphs of a section."""
    return [step for step in re.split(r"\n(?=\d\. )|\n\n", section) if step.strip()]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_has_its_list_and_every_file_exists(subject: str) -> None:
    section = sections()[subject]
    code = [text for text in re.findall(r"`([^`\n]+)`", section) if not text.startswith(("python ", "pip "))]
    files = [path for path in map(file_of, code) if path is not None]
    assert files
    assert [str(path) for path in files if not path.exists()] == []
    for tool in re.findall(r"`python (tools/\w+\.py)`", section):
        assert (ROOT / tool).is_file()


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_name_stands_in_a_file_of_its_step(subject: str) -> None:
    for step in steps_of(sections()[subject]):
        code = re.findall(r"`([^`\n]+)`", step)
        files = [path for path in map(file_of, code) if path is not None and path.is_file()]
        names = [text for text in code if re.fullmatch(r"_[A-Z]\w+|[A-Z][A-Z_]{3,}|[A-Z][a-z]+[A-Z]\w+", text)]
        together = "\n".join(path.read_text(encoding="utf-8") for path in files)
        assert [name for name in names if files and not re.search(rf"\b{name}\b", together)] == [], step
