"""Prints the lowest version of every package that pyproject.toml allows, as constraints for pip.

``make test-lowest`` installs them: what a lower bound promises is tested, and the two cannot disagree.

    python tools/lowest_versions.py pyproject.toml > lowest.txt
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError:  # nothing but pip is installed when `make test-lowest` runs this
        from pip._vendor import tomli as tomllib

EXTRAS = ("sim", "vision", "serve", "trace")
"""What users install. The tools of the tests themselves (``test``, ``dev``) may be new."""

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?>=(?P<version>[0-9.]+)(,(<|!=)[0-9.*]+)*\s*(?P<marker>;.*)?")


def lowest_versions(project: Mapping[str, Any]) -> Iterator[str]:
    """``name==version`` for each requirement of the package and its extras; one without a lower bound is an error."""
    requirements = list(project["dependencies"])
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    for requirement in requirements:
        if requirement.startswith(f"{project['name']}["):
            continue
        found = _REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise SystemExit(f"'{requirement}' has no lower bound of the form name>=version")
        yield f"{found['name']}=={found['version']}{found['marker'] or ''}"


def read_project(path: str | Path) -> Mapping[str, Any]:
    """The table ``project`` of a pyproject.toml."""
    project: Mapping[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))["project"]
    return project


def main(path: str) -> None:
    print("\n".join(dict.fromkeys(lowest_versions(read_project(path)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
