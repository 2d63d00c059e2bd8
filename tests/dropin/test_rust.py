"""A program in Rust that knows the library by its name alone, in the order of calls of the rknn-runtime crate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tools import need

from anynpu.rknn.model import RknnModel

from .conftest import SIDE, Models
from .running import PROGRAMS, board_environment, fill_bytes, run

pytestmark = pytest.mark.full  # a Rust compiler


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = need("rustc")
    target = tmp_path_factory.mktemp("rust") / "mini"
    command = [compiler, "--edition", "2021", "-D", "warnings", "-O", "-o", str(target), str(PROGRAMS / "mini.rs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def test_the_same_bytes_as_in_python(program: Path, models: Models, tmp_path: Path) -> None:
    pixels = fill_bytes(3 * SIDE * SIDE, 3).tobytes()
    (tmp_path / "input").write_bytes(pixels)
    done = run([program, models.mini, tmp_path / "input", tmp_path / "output"], board_environment("rv1106"))
    with RknnModel.load(models.mini, device="sim:rv1106") as model:
        model.run(pixels)
        attributes = model.output_attrs()
        assert len(attributes) == len(done.stdout.splitlines())
        for index, entry in enumerate(attributes):
            assert (tmp_path / f"output{index}").read_bytes() == model.output_raw(index).tobytes()
            assert str(list(entry.shape)) in done.stdout


def test_without_a_chip_the_mini_library_is_rv1106(program: Path, models: Models, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(fill_bytes(3 * SIDE * SIDE, 3).tobytes())
    run([program, models.mini, tmp_path / "input", tmp_path / "output"], board_environment())
    refused = run([program, models.small, tmp_path / "input", tmp_path / "output"], board_environment(), code=None)
    assert refused.returncode != 0
    assert "-13" in refused.stderr
