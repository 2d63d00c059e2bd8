"""Entry points are found as importlib.metadata finds them, which is not even imported where there are none."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from anynpu._util import optional as _optional

GROUP = "anynpu.test.group"
TEXT = f"[{GROUP}]\nsecond = os:sep\nfirst = os:name\n"
METADATA = "Metadata-Version: 2.1\nName: some\nVersion: 1.0\n"


def _archive(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.writestr("some-1.0.dist-info/METADATA", METADATA)
        archive.writestr("some-1.0.dist-info/entry_points.txt", TEXT)
    return folder / "some.zip"


def _folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "METADATA").write_text(METADATA)
    (folder / name / "PKG-INFO").write_text(METADATA)
    (folder / name / "entry_points.txt").write_text(TEXT)
    return folder


PLACES = {
    "a wheel": lambda folder: _folder(folder, "some-1.0.dist-info"),
    "a source folder": lambda folder: _folder(folder, "some.egg-info"),
    "an egg": lambda folder: _folder(folder / "some-1.0-py3.egg", "EGG-INFO"),
    "an archive": _archive,
}


@pytest.mark.parametrize("place", PLACES)
def test_they_are_found_wherever_they_are(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _optional.entry_points(GROUP) == []
    monkeypatch.syspath_prepend(str(PLACES[place](tmp_path)))
    assert [(entry.name, entry.value) for entry in _optional.entry_points(GROUP)] == [("first", "os:name"), ("second", "os:sep")]


def test_the_folder_of_the_program_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _folder(tmp_path, "some-1.0.dist-info")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert len(_optional.entry_points(GROUP)) == 2


def test_a_finder_of_somebody_else_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = _folder(tmp_path, "some-1.0.dist-info") / "some-1.0.dist-info"

    class Finder:
        @staticmethod
        def find_spec(*arguments: object) -> None:
            return None

        @staticmethod
        def find_distributions(*arguments: object) -> Iterable[importlib.metadata.Distribution]:
            return [importlib.metadata.PathDistribution(info)]

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert len(_optional.entry_points(GROUP)) == 2


def test_what_is_damaged_or_away_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.egg-info").write_text(METADATA)
    (tmp_path / "two.dist-info").mkdir()
    (tmp_path / "three.dist-info").mkdir()
    (tmp_path / "three.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[other]")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "missing"))
    assert _optional.entry_points(GROUP) == []


def test_choosing_a_device_does_not_load_the_reader_of_metadata() -> None:
    program = """
    import sys
    sys.modules["importlib.metadata"] = None  # an import of it would fail
    from anynpu.vendors.devices import choose_device
    print(choose_device().kind)
    """
    done = subprocess.run([sys.executable, "-c", "if True:" + program], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "sim\n"), done.stderr
