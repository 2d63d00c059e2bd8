"""Files of ranges, and other small JSON files that lie beside a model: what makes no sense is an error of ours, and a short one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu.chips.timing.board import read_board
from anynpu.compiler.board.simulator import read_job
from anynpu.compiler.toolkit.quantizer import read_ranges
from anynpu.errors import AnynpuError, CompileError
from anynpu.rknn.lite.lite import _recipe
from anynpu.rknn.toolkit.hybrid import read_prepared

from .onnx_builders import Net

DEEP = '{"a":' * 100_000


def net() -> Any:
    made = Net()
    made.output(made.conv(made.input("x", (1, 3, 8, 8)), 4))
    return made.proto()


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        "[" * 100_000,
        '{"x": "%s"}' % ("a" * 100_000),
        '{"%s": 1}' % ("a" * 100_000),
        '{"x": [true, false]}',
        '{"x": [1, 2, 3]}',
        '{"x": {"scale": 1}}',
        "[]",
        "",
    ],
    ids=["deep", "deep lists", "long value", "long name", "truths", "three", "half", "list", "empty"],
)
def test_a_file_of_ranges_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ranges.json"
    path.write_text(text)
    with pytest.raises(CompileError) as refusal:
        read_ranges(path)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("scale", ["0", "-1", "NaN", "Infinity", "1e-320", "1e300", "9" * 400, "1e-46"])
def test_scales_that_float32_cannot_hold(tmp_path: Path, scale: str) -> None:
    path = tmp_path / "ranges.json"
    path.write_text(f'{{"x": [{scale}, 0]}}')
    data = [np.zeros((1, 3, 8, 8), np.float32)]
    with pytest.raises(CompileError, match="ranges of 'x'") as refusal:
        anynpu.compile(net(), target="rk3588", dtype="int8", dataset=data, ranges=read_ranges(path))
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("net.compile.json", lambda path: _recipe(path.with_name("net.rknn"), path.with_name("net.onnx"))),
        ("board.json", read_board),
        ("net.data", read_prepared),
        ("job.json", lambda path: read_job(path.parent)),
    ],
)
def test_files_that_are_nested_too_deep(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    path = tmp_path / name
    path.write_text(DEEP)
    with pytest.raises(AnynpuError):
        read(path)


@pytest.mark.parametrize(
    ("name", "size", "read"),
    [
        ("net.compile.json", 1 << 21, lambda path: _recipe(path.with_name("net.rknn"), path.with_name("net.onnx"))),
        ("ranges.json", 1 << 25, read_ranges),
        ("net.onnx", 1 << 32, lambda path: anynpu.compile(path, dtype="fp16")),
    ],
)
def test_files_that_are_too_large_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int, read: Callable[[Path], object]
) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(size)
    for way in ("read_bytes", "read_text"):
        monkeypatch.setattr(Path, way, lambda *_, **__: pytest.fail("the file was read"))
    with pytest.raises(AnynpuError, match="bytes"):
        read(path)
