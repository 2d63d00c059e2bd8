"""Files that torch itself writes: networks compile and give what torch gives; the attacks that once worked are rejected.

Torch is some gigabytes. The tests use a Python that has it: that of ``make zoo``, or ``ANYNPU_TORCH_PYTHON``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import anynpu

PYTHON = os.environ.get("ANYNPU_TORCH_PYTHON", str(Path(sys.prefix) / "zoo" / "bin" / "python"))
SOURCE = Path(__file__).parents[2] / "src"
CONVERT = """
import sys
from pathlib import Path
from anynpu.errors import CompileError
from anynpu.compiler.importers.frameworks import torch_file_to_onnx
shape = tuple(map(int, sys.argv[2].split(",")))
try:
    Path(sys.argv[3]).write_bytes(torch_file_to_onnx(Path(sys.argv[1]), {"x": shape}).SerializeToString())
except CompileError as error:
    print("rejected:", error)
"""

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="no Python with torch: make zoo, or set ANYNPU_TORCH_PYTHON"),
]


def torch_python(*arguments: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([PYTHON, *arguments], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    torch_python(Path(__file__).with_name("write_torch_files.py"), folder)
    return folder


@pytest.mark.parametrize("network", ["conv", "attention", "pool"])
@pytest.mark.parametrize("kind", [".pt2", "_trace.pt", "_script.pt"])
def test_networks_compile(network: str, kind: str, files: Path, tmp_path: Path) -> None:
    shape = json.loads((files / f"{network}.json").read_text())
    result = tmp_path / "net.onnx"
    said = torch_python("-c", CONVERT, files / f"{network}{kind}", ",".join(map(str, shape)), result)
    assert "rejected" not in said, said
    values = np.frombuffer((files / f"{network}.bin").read_bytes(), np.float32)
    x, y = values[: np.prod(shape)].reshape(shape), values[np.prod(shape) :]
    model = anynpu.compile(onnx.load(result), "rk3588", dtype="fp16")
    model.save(tmp_path / "net.rknn")
    with anynpu.InferenceSession(tmp_path / "net.rknn", device="sim") as session:
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found.ravel(), y, atol=2e-2)


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("legacy.pt2", "in a pickle"),
        ("opaque.pt2", "in a pickle"),
        ("directories.pt2", "hide others"),
        ("nested.pt2", "nests its arguments"),
        ("space.pt", "calls aten::save"),
        ("ops.pt", "calls aten::save"),
        ("both.pt", "calls aten::save"),
        ("reads.pt", "calls aten::from_file"),
    ],
)
def test_attacks_are_rejected(attack: str, why: str, files: Path, tmp_path: Path) -> None:
    said = torch_python("-c", CONVERT, files / attack, "2,4,8,8", tmp_path / "net.onnx")
    assert why in said
    assert list((files / "marks").iterdir()) == []
