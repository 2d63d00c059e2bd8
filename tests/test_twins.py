"""Anynpu models: what the software NPU runs in place of a vendor's file, found by the hash of that file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from compiler.onnx_builders import Net
from typer.testing import CliRunner
from vendor_files import rknn_description, rknn_file

import anynpu
from anynpu import modelfile
from anynpu.cli.app import app
from anynpu.errors import VendorModelError
from anynpu.modelfile.stand_ins import find_twin, twin_folders, twin_name
from anynpu.rknn import Context


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYNPU_TWINS", str(tmp_path / "twins"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def vendors_file(folder: Path) -> Path:
    path = folder / "net.rknn"
    path.write_bytes(rknn_file(rknn_description()))
    return path


def network(folder: Path) -> Path:
    import onnx

    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 8)), 2, 1))
    onnx.save(net.proto(), folder / "net.onnx")
    return folder / "net.onnx"


def made(folder: Path, *more: str) -> Result:
    arguments = [
        "twin",
        str(vendors_file(folder)),
        "--onnx",
        str(network(folder)),
        "--dtype",
        "fp16",
        "--target",
        "rk3588",
        *more,
    ]
    return CliRunner().invoke(app, arguments)


def test_a_program_that_passes_bytes_finds_the_twin_that_the_command_made(folder: Path) -> None:
    done = made(folder)
    assert done.exit_code == 0, done.output
    data = (folder / "net.rknn").read_bytes()
    assert find_twin(data) == folder / "twins" / twin_name(data)
    with Context(data, device="sim:rk3588") as context:
        assert context.inputs[0].name == "x"
    assert modelfile.read_or_twin(folder / "net.rknn").chip == "rk3588"


def test_the_cache_is_searched_too_and_a_twin_beside_the_file_comes_first(folder: Path) -> None:
    path = vendors_file(folder)
    cache = twin_folders()[-1]
    assert cache == folder / "cache" / "anynpu" / "twins"
    assert made(folder, "--folder", str(cache)).exit_code == 0
    assert find_twin(path) == cache / twin_name(path)
    anynpu.compile(folder / "net.onnx", "rk3588", dtype="fp16").save(folder / "net.anynpu")
    assert find_twin(path) == folder / "net.anynpu"


def test_without_a_twin_the_hint_says_how_to_make_one(folder: Path) -> None:
    data = vendors_file(folder).read_bytes()
    assert find_twin(data) is None
    with pytest.raises(VendorModelError) as caught:
        modelfile.read_or_twin(data)
    assert "anynpu twin model.rknn --onnx" in caught.value.hint
