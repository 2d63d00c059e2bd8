"""Whether a tag may become a release: version, changelog and tag agree.

    python tools/release_check.py v0.2.0

The rule: the version in pyproject.toml is that of the tag, the topmost section of CHANGELOG.md is about it and has a date, and it follows
semantic versioning: what users can notice and must act upon ("Removed", or "Changed" from 1.0 on) needs a new first number, what was
"Added" a new second one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_HEAD = re.compile(r"^## (\d+)\.(\d+)\.(\d+) - (\S+)$", re.MULTILINE)


def problems(tag: str, version: str, changelog: str) -> list[str]:
    """What keeps a tag from being released; empty if nothing does.

    >>> problems("v0.2.0", "0.2.0", "## 0.2.0 - 2026-01-31\\n### Added\\n- x\\n## 0.1.0 - 2026-01-01\\n")
    []
    """
    found = []
    if tag != f"v{version}":
        found.append(f"the tag {tag} is not v{version}, the version in pyproject.toml")
    heads = list(_HEAD.finditer(changelog))
    if not heads:
        return [*found, "CHANGELOG.md has no section such as '## 0.2.0 - 2026-01-31'"]
    newest = heads[0]
    numbers = tuple(int(newest[index]) for index in (1, 2, 3))
    if ".".join(map(str, numbers)) != version:
        found.append(f"the topmost section of CHANGELOG.md is about {'.'.join(map(str, numbers))}, not about {version}")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", newest[4]):
        found.append(f"the topmost section of CHANGELOG.md has no date but '{newest[4]}'")
    if len(heads) > 1:
        section = changelog[newest.end() : heads[1].start()]
        before = tuple(int(heads[1][index]) for index in (1, 2, 3))
        found += _step(section, before, numbers)
    return found


def _step(section: str, before: tuple[int, ...], now: tuple[int, ...]) -> list[str]:
    """Whether the numbers rise as the entries ask for."""
    if now <= before:
        return [f"{'.'.join(map(str, now))} does not come after {'.'.join(map(str, before))}"]
    heads = set(re.findall(r"^### (\w+)$", section, re.MULTILINE))
    breaking = "Removed" in heads or ("Changed" in heads and before[0] >= 1)
    if breaking and now[0] == before[0] and (before[0] >= 1 or now[1] == before[1]):
        return ["something was removed or changed: that needs a higher first number, or second one before 1.0"]
    if "Added" in heads and now[:2] == before[:2]:
        return ["something was added: that needs a higher second number"]
    return []


def main() -> int:
    """The command line."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "([^"]+)"$', project, re.MULTILINE)
    assert version is not None
    found = problems(sys.argv[1], version[1], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    for text in found:
        sys.stderr.write(f"{text}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
