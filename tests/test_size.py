"""The count of code lines that `make lint` compares with the budget."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SIZE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "size.py"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("# a comment\n\n\n", 0),
        ('"""A docstring."""\n', 0),
        ('"""A docstring\n\nof three lines."""\nimport os\n', 1),
        ('limit = 3  # of what\n"""Of an attribute."""\n', 1),
        ('def f():\n    """What it does."""\n    return (\n        1,\n        # nothing\n        2,\n    )\n', 5),
        ('text = """not\na docstring"""\n', 2),
    ],
)
def test_lines_with_a_token_outside_comments_and_docstrings_count(text: str, expected: int) -> None:
    assert SIZE["code_lines"](text) == expected


def test_files_and_lines_add_up_by_package(tmp_path: Path) -> None:
    for name, text in {
        "errors.py": "x = 1\n",
        "old.py": 'from .a import alias\n\nalias(__name__, "b")\n',
        "npu/a.py": "y = 2\nz = 3\n",
        "npu/engines/b.py": "# none\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert SIZE["sizes"](tmp_path) == {"errors.py": (1, 1), "npu": (2, 2)}
