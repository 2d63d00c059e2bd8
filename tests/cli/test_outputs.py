"""Files that commands write: never an input, never a device, complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu._util import output_files as outputfile
from anynpu.errors import OutputFileError

Invoke = Callable[..., Any]

FP16 = ("-t", "rk3588", "--dtype", "fp16")


@pytest.fixture
def source(model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(model_path, tmp_path / "yolo.onnx"))


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_compile_never_overwrites_its_input(invoke: Invoke, source: Path, tmp_path: Path, link: Any) -> None:
    before = source.read_bytes()
    output = source
    if link is not None:
        output = tmp_path / "copy.rknn"
        link(source, output)
    outcome = invoke("compile", source, "-o", output, *FP16)
    assert outcome.code == 2
    assert "is an input of this command" in outcome.err
    assert source.read_bytes() == before


@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".pt", ".pt2", ".keras", ".ONNX"])
def test_a_compiled_model_has_no_source_extension(invoke: Invoke, source: Path, tmp_path: Path, suffix: str) -> None:
    outcome = invoke("compile", source, "-o", tmp_path / f"new{suffix}", *FP16)
    assert outcome.code == 2
    assert "source models" in outcome.err
    assert not (tmp_path / f"new{suffix}").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("profile", "--html"),
        ("profile", "--trace"),
        ("report", "-t", "rk3588", "--html"),
        ("predict", "-t", "rk3588", "--plot"),
    ],
)
def test_reports_are_held_to_the_same_rules(invoke: Invoke, source: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *options = command
    before = source.read_bytes()
    assert invoke(name, source, *options, source).code == 2
    assert invoke(name, source, *options, tmp_path / "page.onnx").code == 2
    assert source.read_bytes() == before


def test_optimize_and_qdq_write_onnx_but_not_over_the_input(invoke: Invoke, source: Path, pictures: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    data = ("--dataset", pictures, "--std", "255,255,255")
    assert invoke("optimize", source, "-o", source, *data).code == 2
    assert invoke("export", source, "--qdq", source, "-t", "rk3588", *data).code == 2
    assert source.read_bytes() == before
    assert invoke("optimize", source, "-o", tmp_path / "new.onnx", *data).code == 0


@pytest.mark.parametrize("command", [("compile", "-o"), ("profile", "--html"), ("profile", "--trace")])
def test_what_is_no_regular_file_is_rejected(invoke: Invoke, source: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    pipe = tmp_path / "pipe.rknn"
    os.mkfifo(pipe)
    name, option = command
    more = FP16 if name == "compile" else ()
    outcome = invoke(name, source, option, pipe, *more)
    assert outcome.code == 2
    assert "it is not a regular file" in outcome.err
    assert pipe.is_fifo()


def test_build_makes_no_folder_with_the_name_of_a_model(invoke: Invoke, source: Path, pictures: Path, tmp_path: Path) -> None:
    outcome = invoke("build", source, "-o", tmp_path / "board.rknn", "-t", "rk3588", "--dataset", pictures, "--no-toolkit")
    assert outcome.code == 2
    assert "a folder" in outcome.err
    assert not (tmp_path / "board.rknn").exists()


def test_the_extension_of_another_vendor_is_a_warning(invoke: Invoke, source: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", source, "-o", tmp_path / "x.nb", *FP16)
    assert outcome.code == 0
    assert "warning: .nb is the extension of models for Allwinner" in outcome.err
    assert ".rknn" in outcome.err
    outcome = invoke("compile", source, "-o", tmp_path / "x.rknn", "-t", "t527", "--dtype", "fp16")
    assert "warning: .rknn is the extension of models for Rockchip" in outcome.err
    assert "warning" not in invoke("compile", source, "-o", tmp_path / "x.rknn", *FP16).err


def test_drawn_images_do_not_replace_what_was_read(invoke: Invoke, tmp_path: Path, pictures: Path, model_path: Path) -> None:
    compiled, folder = tmp_path / "small.rknn", tmp_path / "street"
    shutil.copytree(pictures, folder)
    files = sorted(folder.iterdir())
    before = [file.read_bytes() for file in files]
    assert invoke("compile", model_path, "-o", compiled, *FP16).code == 0
    for read, drawn in ((files[0], files[0]), (files[0], folder), (folder, folder)):
        outcome = invoke("run", compiled, read, "--task", "classify", "--draw", drawn)
        assert outcome.code != 0
        assert "is an input" in outcome.err
    assert [file.read_bytes() for file in files] == before


def test_saved_outputs_do_not_replace_what_was_read(invoke: Invoke, tmp_path: Path, model_path: Path) -> None:
    compiled, given = tmp_path / "small.rknn", tmp_path / "scores.npy"
    np.save(given, np.zeros((1, 3, 16, 16), np.uint8))
    assert invoke("compile", model_path, "-o", compiled, *FP16).code == 0
    before = given.read_bytes()
    outcome = invoke("run", compiled, "--input", given, "--output", tmp_path)
    assert outcome.code != 0
    assert "scores.npy is an input" in outcome.err
    assert given.read_bytes() == before


def test_samples_do_not_replace_models_of_the_user(invoke: Invoke, source: Path) -> None:
    before = source.read_bytes()
    outcome = invoke("samples", source.parent)
    assert outcome.code == 1
    assert "yolo.onnx" in outcome.err
    assert source.read_bytes() == before


def test_recordings_and_traces_do_not_replace_what_the_program_reads(invoke: Invoke, source: Path) -> None:
    before = source.read_bytes()
    for option in ("--record", "--trace", "--log", "--sanitize-report"):
        more = ("--sanitize",) if option == "--sanitize-report" else ()
        outcome = invoke("exec", *more, option, source, "--", "true", source)
        assert outcome.code == 2, option
        assert "is an input of this command" in outcome.err
    assert source.read_bytes() == before


def test_a_model_in_python_gets_no_source_extension(model_path: Path, tmp_path: Path) -> None:
    model = anynpu.compile(model_path, "rk3588", dtype="fp16")
    with pytest.raises(OutputFileError, match="source models"):
        model.save(tmp_path / "small.onnx")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")

    def pieces() -> Any:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputFileError, match=r"page\.html cannot be written: No space left on device"):
        outputfile.write_output(page, pieces())
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "latest.html").symlink_to("page.html")
    outputfile.write_output(tmp_path / "latest.html", "text")
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "page.html").read_text() == "text"


def test_a_profile_on_a_full_disk_names_the_file(
    invoke: Invoke, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    page = tmp_path / "page.html"
    page.write_text("old")
    monkeypatch.setattr(os, "replace", full)
    for arguments in (("profile", source, "--html", page), ("report", source, "-t", "rk3588", "--html", page)):
        outcome = invoke(*arguments)
        assert outcome.code == 1
        assert f"{page} cannot be written: No space left on device" in outcome.err
    assert page.read_text() == "old"


def test_build_does_not_remove_the_folder_that_holds_its_input(invoke: Invoke, source: Path, tmp_path: Path) -> None:
    job = tmp_path / "out" / "yolo.toolkit"
    job.mkdir(parents=True)
    shutil.move(source, job / "yolo.onnx")
    outcome = invoke("build", job / "yolo.onnx", "-o", tmp_path / "out", "--no-toolkit", *FP16)
    assert outcome.code == 1
    assert "is an input" in outcome.err
    assert (job / "yolo.onnx").is_file()
