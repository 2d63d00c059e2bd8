"""What is deployed is known beforehand: locks with hashes for all that the container installs, and a list of what a wheel is made of."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import lock  # noqa: E402
import sbom  # noqa: E402
from lowest_versions import read_project  # noqa: E402

PINNED = re.compile(r"([a-z0-9-]+)==([^ ]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes by the name of the package."""
    head, _, text = (lock.LOCKS / f"{name}.lock").read_text(encoding="utf-8").partition("\n")
    assert head.startswith("#")
    found = {match[1]: (match[2], match[3].count("--hash")) for match in PINNED.finditer(text)}
    assert "".join(match[0] for match in PINNED.finditer(text)) == text, "there is a line that is no pin with hashes"
    return found


@pytest.mark.parametrize("name", list(lock.wanted()))
def test_a_lock_holds_what_is_asked_for(name: str) -> None:
    """A changed bound in pyproject.toml needs new locks: ``python tools/lock.py``."""
    found = locked(name)
    for text in lock.wanted()[name]:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"python_version": lock.PYTHON}):
            continue
        version, _ = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text}, but {version} is locked; write the locks again"


@pytest.mark.parametrize("name", list(lock.wanted()))
def test_a_lock_serves_both_machines_and_names_no_host(name: str) -> None:
    compiled = {"cffi", "numpy", "grpcio", "httptools", "onnxruntime", "ninja"} & locked(name).keys()
    assert all(locked(name)[package][1] >= len(lock.MACHINES) for package in compiled)
    assert not re.search(r"https?:|//|index|@", (lock.LOCKS / f"{name}.lock").read_text(encoding="utf-8"))


def test_the_container_installs_from_locks_only() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    commands = re.findall(r"pip (?:install|wheel) [^&\n]*", text.replace("\\\n", " "))
    assert len(commands) == 4
    for command in commands:
        own = "/wheels/anynpu-" in command or command.startswith("pip wheel")
        assert "--no-deps" in command
        assert own or ("--require-hashes" in command and ".lock" in command)
    (default,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert {default, "serve"} <= lock.wanted().keys()


def report(*packages: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "install": [
            {
                "metadata": {"name": name, "version": version},
                "download_info": {"url": "https://host.example/file", "archive_info": {"hashes": {"sha256": digest}}},
            }
            for name, version, digest in packages
        ]
    }


def test_reports_of_two_machines_become_one_lock() -> None:
    first = lock.pins(report(("Num_Py", "2.1", "a" * 64), ("plain", "1", "b" * 64)))
    second = lock.pins(report(("plain", "1", "b" * 64), ("num.py", "2.1", "c" * 64)))
    text = lock.lock_text([first, second])
    hashes = f"    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'c' * 64}"
    assert text.split("\n", 1)[1] == f"num-py==2.1 \\\n{hashes}\nplain==1 \\\n    --hash=sha256:{'b' * 64}\n"
    with pytest.raises(SystemExit, match="different machines"):
        lock.lock_text([first, lock.pins(report(("plain", "2", "b" * 64)))])
    with pytest.raises(SystemExit, match="SHA-256"):
        lock.pins({"install": [{"metadata": {"name": "x", "version": "1"}, "download_info": {"archive_info": {"hashes": {}}}}]})


def test_the_list_names_all_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    project = read_project(ROOT / "pyproject.toml")
    document = sbom.bill(project, "1.2.3")
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["version"] == project["version"]
    assert document["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    names = {entry["name"] for entry in document["components"]}
    for text in (
        *project["dependencies"],
        *(text for extra in sbom.DEPLOYED for text in project["optional-dependencies"][extra]),
    ):
        assert canonicalize_name(Requirement(text).name) in names | {"anynpu"}
    references = [entry["bom-ref"] for entry in (document["metadata"]["component"], *document["components"])]
    assert len(set(references)) == len(references)
    assert all(set(entry["dependsOn"]) <= set(references) for entry in document["dependencies"])


def test_the_installed_package_carries_its_list() -> None:
    """In its metadata, as PEP 770 states; the build wrote it."""
    text = metadata.distribution("anynpu").read_text("sboms/anynpu.cdx.json")
    assert text is not None
    document = json.loads(text)
    assert document["metadata"]["component"]["name"] == "anynpu"
    assert "numpy" in {entry["name"] for entry in document["components"]}


@pytest.mark.parametrize(
    ("package", "vulnerable", "fixed"),
    [
        ("onnx", ["1.16.2"], ["1.17.0", "1.23.2"]),
        (
            "protobuf",
            ["4.25.7", "5.26.1", "5.27.5", "5.28.3", "5.29.0", "5.29.4", "6.30.2", "6.31.0"],
            ["4.25.8", "5.29.5", "6.31.1", "7.36.2"],
        ),
    ],
)
def test_versions_with_published_vulnerabilities_are_not_allowed(package: str, vulnerable: list[str], fixed: list[str]) -> None:
    extras = read_project(ROOT / "pyproject.toml")["optional-dependencies"]
    requirements = [Requirement(text) for name in ("sim", "serve") for text in extras[name]]
    named = [requirement for requirement in requirements if requirement.name == package]
    assert named
    for requirement in named:
        assert not [version for version in vulnerable if requirement.specifier.contains(version)]
        assert [version for version in fixed if requirement.specifier.contains(version)] == fixed
