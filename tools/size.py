"""Count the files and code lines of the package, and fail above the budget: python tools/size.py.

A code line has a token that is neither part of a comment nor of a docstring. A docstring is a string that stands alone as a statement.
``make lint`` runs this. The budget is lowered as the package shrinks; a commit that raises it states the reason.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "anynpu"

MAX_FILES = 404
MAX_LINES = 70_700

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """The number of lines of one file that have code."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def sizes(package: Path) -> dict[str, tuple[int, int]]:
    """Files and code lines of each package and module directly in *package*, by name; modules that are an alias do not count."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in package.rglob("*.py"):
        name, text = path.relative_to(package).parts[0], path.read_text(encoding="utf-8")
        if "\nalias(__name__, " in text:
            continue
        files, lines = found[name]
        found[name] = files + 1, lines + code_lines(text)
    return dict(found)


def main() -> int:
    """Print the table; 1 if the package is above its budget."""
    found = sizes(PACKAGE)
    for name, (files, lines) in sorted(found.items(), key=lambda entry: -entry[1][1]):
        print(f"{files:4} {lines:7,}  {name}")
    files, lines = (sum(column) for column in zip(*found.values(), strict=True))
    print(f"{files:4} {lines:7,}  total; the budget is {MAX_FILES} files and {MAX_LINES:,} lines")
    if files > MAX_FILES or lines > MAX_LINES:
        print("tools/size.py: above the budget: remove what is not needed, or raise the budget and state why", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
