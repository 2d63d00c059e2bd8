"""Which models the command line names."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from anynpu.errors import AccessDeniedError, OptionError, RequestError, UnknownModelError
from anynpu.serve import ServeOptions
from anynpu.serve.repository import Repository, find_models


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


def test_names_that_are_not_there_leave_nothing(tmp_path: Path) -> None:
    repository = Repository([str(tmp_path)], ServeOptions())

    async def ask() -> int:
        for number in range(50):
            with pytest.raises(UnknownModelError):
                await repository.load(f"unknown-{number}")
            with pytest.raises(UnknownModelError):
                await repository.unload(f"unknown-{number}")
        gc.collect()
        return sum(isinstance(one, asyncio.Lock) for one in gc.get_objects())

    gc.collect()
    before = sum(isinstance(one, asyncio.Lock) for one in gc.get_objects())
    assert asyncio.run(ask()) <= before


@pytest.mark.parametrize("name", ["a" * 129, "a" * 60_000, "", "a/b", "../a", "a b", "\x00"])
def test_what_is_no_name_is_not_looked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="no name for a model") as caught:
        asyncio.run(Repository([str(tmp_path)], ServeOptions()).load(name))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("path", ["a" * 5000, "a" * 300 + ".rknn", "\x00.rknn", "a/" * 3000 + "b.rknn"])
def test_paths_that_are_too_long_are_client_errors(tmp_path: Path, path: str) -> None:
    options = ServeOptions(load_root=tmp_path)
    with pytest.raises((RequestError, AccessDeniedError)):
        asyncio.run(Repository([str(tmp_path)], options).load("net", path))
