"""The folder that programs of one user share: nobody else chooses where it is, or writes to it."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from anynpu.dropin.environment import board_root
from anynpu.errors import DeviceUnavailable, ParameterError
from anynpu.npu.board import board_folder, open_status, runtime_folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder will be: below a temporary folder, since there is no other."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"anynpu-{os.getuid()}"


def test_it_is_private(place: Path) -> None:
    assert runtime_folder() == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert runtime_folder() == place


def test_a_link_is_refused(place: Path, tmp_path: Path) -> None:
    """A folder of this user behind the link makes it no better: another owner chose it."""
    (tmp_path / "precious").mkdir(0o700)
    place.symlink_to(tmp_path / "precious")
    with pytest.raises(DeviceUnavailable, match="is not a folder"):
        runtime_folder()
    assert open_status("rk3588", 3) is None
    assert list((tmp_path / "precious").iterdir()) == []


def test_a_link_that_leads_nowhere_is_not_followed(place: Path, tmp_path: Path) -> None:
    place.symlink_to(tmp_path / "made")
    with pytest.raises(DeviceUnavailable, match="is not a folder"):
        runtime_folder()
    assert not (tmp_path / "made").exists()


def test_a_folder_that_others_can_write_to_is_refused(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(DeviceUnavailable, match="others can write"):
        runtime_folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(place: Path) -> None:
    place.mkdir(0o700)
    os.chown(place, 65534, 65534)
    with pytest.raises(DeviceUnavailable, match="another user"):
        runtime_folder()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\0b", "x" * 65])
def test_the_name_of_a_board_is_no_path(place: Path, name: str) -> None:
    for use in (lambda: board_folder(name, "rk3588"), lambda: board_root("rk3588", name)):
        with pytest.raises(ParameterError, match="cannot be the name of a board"):
            use()


def test_it_waits_for_no_lock_of_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is forked while another thread looks for the temporary folder inherits that lock, and nobody to release it."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(runtime_folder()), daemon=True)
    with tempfile._once_lock:  # type: ignore[attr-defined]
        thread.start()
        thread.join(300)
        assert found == [tmp_path / f"anynpu-{os.getuid()}"]
