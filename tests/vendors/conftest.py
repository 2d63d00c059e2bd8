"""A third vendor, installed as pip would: its package on the path, and a dist-info with an entry point."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anynpu.chips import catalog
from anynpu.vendors import registry

THIRD = Path(__file__).parent / "third"


def install(folder: Path, name: str, value: str) -> Path:
    """What pip leaves of a distribution with the entry point *name* = *value*."""
    info = folder / f"anynpu_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: anynpu-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{catalog.GROUP}]\n{name} = {value}\n")
    return folder


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """What a test finds is forgotten after it."""
    registry.refresh()
    yield
    registry.refresh()


@pytest.fixture
def site(tmp_path: Path) -> list[str]:
    """The folders of an installation that has the third vendor."""
    folder = tmp_path / "site"
    folder.mkdir()
    return [str(THIRD), str(install(folder, "acme", "anynpu_acme:VENDOR"))]


@pytest.fixture
def third(site: list[str], monkeypatch: pytest.MonkeyPatch, fresh_registry: None) -> Iterator[None]:
    """The third vendor, in this process."""
    for folder in site:
        monkeypatch.syspath_prepend(folder)
    registry.refresh()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "anynpu_acme"]:
        del sys.modules[name]


@pytest.fixture
def environment(site: list[str]) -> dict[str, str]:
    """The environment of a process that has the third vendor."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANYNPU_", "COV_", "COVERAGE_"))}
    inherited = [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
    return {**kept, "PYTHONPATH": os.pathsep.join([*site, *inherited])}
