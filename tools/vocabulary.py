"""Look for words of tools/vocabulary.txt in the documentation, help texts, messages and docstrings: python tools/vocabulary.py.

Also checks that numbers quoted in several places agree, and that subjects of commits are short. Links are checked by tests/test_docs.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tools" / "vocabulary.txt"
MOST_ALLOWED = 60
SUBJECT = 72
PACKAGE = "src/anynpu"
FACTS: dict[str, tuple[tuple[str, str], ...]] = {
    "output bytes of an RV1103": (
        ("README.md", r"([\d,]+) of [\d,]+ output bytes"),
        ("docs/index.md", r"([\d,]+) of [\d,]+ output bytes"),
        ("docs/validation.md", r"([\d,]+) of [\d,]+ published output bytes"),
        ("CHANGELOG.md", r"([\d,]+) published output bytes"),
    ),
    "chips": (
        ("README.md", r"one of (\d+) chips"),
        ("docs/index.md", r"one of (\d+) chips"),
        ("CHANGELOG.md", r"for (\d+) chips"),
    ),
    "functions of the RKNN API": (
        ("docs/board-programs.md", r"all (\d+), `rknn_matmul"),
        ("CHANGELOG.md", r"RKNN API: (\d+) functions"),
    ),
    "functions of VIPLite": (("docs/vip.md", r"All (\d+) functions"), ("CHANGELOG.md", r"VIPLite API: (\d+) functions")),
    "networks inside the 80 % range": (
        ("docs/choose-a-chip.md", r"it holds (\d+) %"),
        ("docs/validation.md", r"^\| all \| (\d+) % \|"),
    ),
    "median error on RK3588": (
        ("docs/choose-a-chip.md", r"^rk3588 .*median error (\d+) %"),
        ("README.md", r"^rk3588 .*median error (\d+) %"),
        ("docs/validation.md", r"^\| \*\*median, int8\*\* \| ([\d.]+) %"),
    ),
    "exit code of the sanitizer": (
        ("docs/failures.md", r"exit code (\d+);"),
        ("docs/options.md", r"^\| (\d+) \| `exec --sanitize`"),
    ),
    "status of compare": (("docs/compare.md", r"exit status is (\d+)"), ("docs/options.md", r"^\| (\d+) \| `compare`")),
}
"""Numbers that several pages quote: where, and how the number is found there."""


def words() -> tuple[list[tuple[re.Pattern[str], str]], list[str]]:
    """Patterns with the word to use, and what is allowed."""
    found, allowed = [], []
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("allow: "):
            allowed.append(line.removeprefix("allow: "))
        elif line and not line.startswith("#"):
            pattern, _, use = line.partition(" = ")
            found.append((re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE), use))
    return found, allowed


def prose(text: str) -> str:
    """Text without code and link targets, with the same lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = re.sub(r"^```.*?^```|<!--.*?-->", blank, text, flags=re.DOTALL | re.MULTILINE)
    # names of parameters and fields, examples, and commands
    text = re.sub(
        r":(?:param|ivar|raises) [\w, ]+:|\*\w+\*|^ *(?:>>>|\.\.\.) .*$|\banynpu (?:twin|models recipe)\b",
        blank,
        text,
        flags=re.MULTILINE,
    )
    return re.sub(r"``?[^`\n]+``?|\]\([^)\s]*\)", blank, text)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file with the line on which each begins: a page as a whole, the docstrings and messages of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, prose(text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, prose(node.value)


def files() -> list[Path]:
    """Pages and modules."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.md")]
    modules = (ROOT / PACKAGE).rglob("*.py")
    return sorted([*pages, *modules])


def unwanted() -> list[str]:
    """Words that are neither allowed nor wanted, with their place."""
    patterns, allowed = words()
    if len(allowed) > MOST_ALLOWED:
        return [f"{LIST.name}: {len(allowed)} entries are allowed, at most {MOST_ALLOWED}"]
    found = [f"{LIST.name}: '{entry}' is one word" for entry in allowed if not re.search(r"\S\s+\S|:\d+$", entry)]
    for path in files():
        place = path.relative_to(ROOT)
        for start, text in texts(path):
            for pattern, use in patterns:
                for match in pattern.finditer(text):
                    line = start + text.count("\n", 0, match.start())
                    around = " ".join(text[max(0, match.start() - 60) : match.end() + 60].split())
                    if f"{place}:{line}" not in allowed and not any(phrase in around for phrase in allowed):
                        found.append(f"{place}:{line}: '{match[0]}': write {use}")
    return found


def differing() -> list[str]:
    """Facts whose places quote different numbers."""
    found = []
    for name, places in FACTS.items():
        quoted = {}
        for place, pattern in places:
            match = re.search(pattern, (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE)
            quoted[place] = "not found" if match is None else round(float(match[1].replace(",", "")))
        if len(set(quoted.values())) > 1:
            found.append(f"{name}: {', '.join(f'{place} has {number}' for place, number in quoted.items())}")
    return found


def long_subjects() -> list[str]:
    """Commits after the one that added this check whose subject is too long; none where git or the history is missing."""
    name = Path(__file__).relative_to(ROOT)
    git = ("git", "-C", str(ROOT), "log")
    added = subprocess.run([*git, "--diff-filter=A", "--format=%H", "--", str(name)], capture_output=True, text=True, check=False)
    if added.returncode or not added.stdout.strip():
        return []
    first = added.stdout.split()[-1]
    log = subprocess.run([*git, "--no-merges", "--format=%h %s", f"{first}..HEAD"], capture_output=True, text=True, check=True)
    return [f"commit {line}" for line in log.stdout.splitlines() if len(line.partition(" ")[2]) > SUBJECT]


def main() -> int:
    """Print what was found; 1 if there is anything."""
    found = [*unwanted(), *differing(), *long_subjects()]
    print("\n".join(found) or "vocabulary, numbers and subjects of commits are fine")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
