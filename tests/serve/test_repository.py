"""Which models the command line names."""

from __future__ import annotations

from pathlib import Path

import pytest

from anynpu.errors import OptionError
from anynpu.serve.repository import find_models


def test_a_folder_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    """As KServe gives it: the model of a service is whatever file lies in the folder."""
    (tmp_path / "lost+found").mkdir(mode=0o000)
    (tmp_path / "README.md").write_text("not a model")
    file = tmp_path / "exported-model.rknn"
    file.write_bytes(b"model")
    assert find_models([f"yolo={tmp_path}"]) == {"yolo": {"1": file}}
    assert find_models([f"yolo:3={tmp_path}"]) == {"yolo": {"3": file}}
    (tmp_path / "second.rknn").write_bytes(b"model")
    with pytest.raises(OptionError, match="has 2 model files"):
        find_models([f"yolo={tmp_path}"])


def test_a_named_folder_may_have_versions(tmp_path: Path) -> None:
    for version in ("1", "12", "latest"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "net.rknn").write_bytes(b"model")
    assert find_models([f"yolo={tmp_path}"]) == {"yolo": {"1": tmp_path / "1" / "net.rknn", "12": tmp_path / "12" / "net.rknn"}}


def test_a_named_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has 0 model files"):
        find_models([f"yolo={tmp_path}"])
