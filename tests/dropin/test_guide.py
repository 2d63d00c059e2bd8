"""The example of docs/board-programs.md compiles and runs as it stands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from documentation import blocks, section
from tools import need

from anynpu.dropin.environment import library_folder

from .conftest import SIDE, Models
from .running import board_environment, run

PAGE = section("board-programs", "C and C++")


def block(language: str) -> str:
    (found,) = blocks(PAGE, language)
    return found


@pytest.mark.full
def test_the_program_of_the_page(models: Models, tmp_path: Path) -> None:
    cmake = need("cmake")
    (tmp_path / "infer.c").write_text(block("c"))
    (tmp_path / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.16)\nproject(infer C)\n{block('cmake')}")
    flags = [f"-DCMAKE_PREFIX_PATH={library_folder()}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror"]
    for command in ([cmake, "-S", str(tmp_path), "-B", str(tmp_path), *flags], [cmake, "--build", str(tmp_path)]):
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    done = run([tmp_path / "infer", models.small], board_environment("rk3588"))
    assert re.fullmatch(rf"input images: {SIDE} x {SIDE}, INT8\nfirst value \d+\.\d{{6}}\n", done.stdout)
    failed = run([tmp_path / "infer", tmp_path / "absent.rknn"], board_environment("rk3588"), code=1)
    assert re.fullmatch(r"E RKNN: \[.+\] rknn_init: .*absent\.rknn cannot be read: .*\n", failed.stderr)
