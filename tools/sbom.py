"""Writes the list of what a wheel is made of and what it needs (SBOM), as CycloneDX JSON.

The build calls it and puts the file into the wheel, as ``anynpu-VERSION.dist-info/sboms/anynpu.cdx.json`` (PEP 770):

    python tools/sbom.py pyproject.toml anynpu.cdx.json

It states the same for the same sources and tools: no time (unless SOURCE_DATE_EPOCH gives one), no serial number, no path.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # scikit-build-core needs it there
    import tomli as tomllib

DEPLOYED = ("serve", "sim", "vision", "trace", "opencl", "cluster")
"""The extras that a user installs; those for tests and documents are not part of the product."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def bill(project: Mapping[str, Any], cffi: str) -> dict[str, Any]:
    """The document.

    :param project: the table ``project`` of pyproject.toml
    :param cffi: the version of cffi, which writes the bindings and adds some code of its own to them
    """
    name, version = project["name"], project["version"]
    own = {
        "type": "library",
        "bom-ref": _package(name, version),
        "name": name,
        "version": version,
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": _package(name, version),
    }
    compiled = {
        "type": "library",
        "bom-ref": f"{_package('cffi', cffi)}#bindings",
        "name": "cffi",
        "version": cffi,
        "scope": "required",
        "description": "code of the bindings, compiled into the extension modules",
        "purl": _package("cffi", cffi),
    }
    needed = list(_needed(project))
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own, "lifecycles": [{"phase": "build"}]},
        "components": [compiled, *needed],
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [compiled["bom-ref"], *(entry["bom-ref"] for entry in needed)]},
        ],
    }
    if "SOURCE_DATE_EPOCH" in os.environ:
        when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)
        document["metadata"]["timestamp"] = when.isoformat().replace("+00:00", "Z")
    return document


def _needed(project: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is installed beside the wheel: a name with the versions that are allowed; which one it is, the installation decides."""
    extras = project["optional-dependencies"]
    groups = {"": project["dependencies"], **{extra: extras[extra] for extra in DEPLOYED}}
    found: dict[str, dict[str, Any]] = {}
    for extra, requirements in groups.items():
        for requirement in requirements:
            match = _NAME.match(requirement)
            assert match is not None, requirement
            name = re.sub(r"[-_.]+", "-", match[0]).lower()
            if name == project["name"]:
                continue
            entry = found.setdefault(
                name,
                {
                    "type": "library",
                    "bom-ref": f"pkg:pypi/{name}",
                    "name": name,
                    "scope": "optional" if extra else "required",
                    "purl": f"pkg:pypi/{name}",
                    "properties": [],
                },
            )
            told = f"{requirement} (extra {extra})" if extra else requirement
            entry["properties"].append({"name": "anynpu:requirement", "value": told})
    yield from (found[name] for name in sorted(found))


def _package(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def main(source: str, target: str) -> None:
    project = tomllib.loads(Path(source).read_text(encoding="utf-8"))["project"]
    Path(target).write_text(json.dumps(bill(project, metadata.version("cffi")), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
