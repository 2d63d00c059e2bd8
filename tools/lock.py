"""Writes the lock files of what is deployed: every package with its version and the hashes of its files, from the report of pip's resolver.

    python tools/lock.py            # resolves again and writes deploy/locks

The container installs nothing else (``pip install --require-hashes``). A lock serves amd64 and arm64: it is resolved for the first, and the
same versions are looked up for the second. No address of a package index is written down; pip asks the one that it is configured for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowest_versions import read_project, tomllib

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "deploy" / "locks"
PYTHON = "3.12"
"""The Python of the container."""
MACHINES = ("x86_64", "aarch64")
GLIBC = range(36, 4, -1)
"""The versions 2.x of the C library that files may be built for: up to that of the container's system."""
BUILD_TOOLS = ("cmake>=3.26", "ninja>=1.11")
"""What scikit-build-core asks for where the system lacks it."""

Report = Mapping[str, Any]


def wanted(path: Path = ROOT / "pyproject.toml") -> dict[str, list[str]]:
    """What each lock holds, as requirements: the name of a lock is the extras that are installed, or ``build``."""
    project = read_project(path)
    extras = project["optional-dependencies"]
    build = tomllib.loads(path.read_text(encoding="utf-8"))["build-system"]["requires"]
    plain = list(project["dependencies"])
    return {
        "build": [*build, *BUILD_TOOLS],
        "serve": [*plain, *extras["serve"]],
        "serve,sim": [*plain, *extras["serve"], *extras["sim"]],
    }


def platforms(machine: str) -> list[str]:
    """The tags of files that run in the container, the best first."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    tags += [f"manylinux{year}_{machine}" for year in ("2014", "2010", "1")]
    return [*tags, f"linux_{machine}"]


def resolve(requirements: Sequence[str], machine: str) -> Report:
    """The report of pip for one kind of machine."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--only-binary=:all:", "--target", folder, "--report", str(report)]
        command += [
            "--implementation",
            "cp",
            "--python-version",
            PYTHON,
            "--abi",
            f"cp{PYTHON.replace('.', '')}",
            "--abi",
            "abi3",
            "--abi",
            "none",
        ]
        command += [word for tag in platforms(machine) for word in ("--platform", tag)]
        subprocess.run([*command, *requirements], check=True)
        found: Report = json.loads(report.read_text())
        return found


def pins(report: Report) -> dict[str, tuple[str, str]]:
    """Version and hash by the name of the package, in its plain form."""
    found = {}
    for entry in report["install"]:
        name = re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower()
        hashes = entry["download_info"]["archive_info"]["hashes"]
        if "sha256" not in hashes:
            raise SystemExit(f"the index has no SHA-256 for {name}")
        found[name] = (entry["metadata"]["version"], hashes["sha256"])
    return found


def lock_text(found: Sequence[Mapping[str, tuple[str, str]]]) -> str:
    """A lock from what was found for each kind of machine; the versions are the same, the files need not be."""
    lines = ["# Written by tools/lock.py; do not edit. For: pip install --require-hashes --no-deps -r FILE"]
    for name in sorted({name for pinned in found for name in pinned}):
        versions = {pinned[name][0] for pinned in found if name in pinned}
        if len(versions) != 1:
            raise SystemExit(f"{name} has the versions {', '.join(sorted(versions))} on different machines")
        hashes = sorted({pinned[name][1] for pinned in found if name in pinned})
        lines.append(" \\\n".join([f"{name}=={versions.pop()}", *(f"    --hash=sha256:{each}" for each in hashes)]))
    return "\n".join(lines) + "\n"


def main() -> None:
    LOCKS.mkdir(parents=True, exist_ok=True)
    for name, requirements in wanted().items():
        first = pins(resolve(requirements, MACHINES[0]))
        exact = [f"{package}=={version}" for package, (version, _) in first.items()]
        others = [pins(resolve(exact, machine)) for machine in MACHINES[1:]]
        (LOCKS / f"{name}.lock").write_text(lock_text([first, *others]), encoding="utf-8")


if __name__ == "__main__":
    main()
