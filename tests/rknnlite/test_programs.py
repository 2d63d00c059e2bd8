"""Scripts after the model zoo's pattern, unmodified under ``anynpu exec``: they give what a session gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net
from dropin.running import python_environment, run
from real_models import RealModels

import anynpu

PROGRAMS = Path(__file__).parent / "programs"


def execute(*command: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, *command], python_environment(), code=code, timeout=600)


def pictures(folder: Path, height: int, width: int) -> Path:
    random = np.random.default_rng(1)
    for index in range(2):
        smooth = cv2.resize(random.integers(0, 256, (5, 5, 3), np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{index}.jpg"), smooth)
    (folder / "dataset.txt").write_text("0.jpg\n1.jpg\n")
    return folder / "dataset.txt"


def through_both_scripts(folder: Path, model: Path, dtype: str, height: int, width: int, size: str = "") -> None:
    """Convert and execute by the scripts, and compare with a session on what they wrote."""
    target, dataset = folder / "model.rknn", pictures(folder, height, width)
    done = execute(PROGRAMS / "convert.py", model, "rk3588", dtype, target, dataset, *([size] if size else []))
    assert done.stdout.count("done") == 4
    image = cv2.cvtColor(cv2.imread(str(folder / "0.jpg")), cv2.COLOR_BGR2RGB)[np.newaxis]
    np.save(folder / "image.npy", image)
    options = anynpu.make_provider_options(layout="nhwc")
    with anynpu.InferenceSession(target, provider_options=options, device="sim") as session:
        expected = session.run(None, [image])
    for mask in ("0", "7"):
        execute(PROGRAMS / "executor.py", target, folder / "image.npy", folder / "outputs.npz", mask)
        with np.load(folder / "outputs.npz") as outputs:
            found = list(outputs.values())
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.full
def test_a_small_network(tmp_path: Path) -> None:
    net = Net(seed=2)
    net.output(net.op("Relu", net.conv(net.input("image", (1, 3, 24, 32)), 8, pads=[1, 1, 1, 1])))
    onnx.save(net.proto(), tmp_path / "small.onnx")
    through_both_scripts(tmp_path, tmp_path / "small.onnx", "i8", 24, 32)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "dtype", "height", "width", "size"),
    [
        ("classification", "i8", 48, 192, "1x3x48x192"),
        ("orientation", "i8", 224, 224, ""),
        ("recognition", "fp", 48, 160, "1x3x48x160"),
        ("detection", "i8", 96, 96, "3x96x96"),
        ("squeezenet", "fp", 224, 224, ""),
    ],
)
def test_five_models(tmp_path: Path, real_models: RealModels, name: str, dtype: str, height: int, width: int, size: str) -> None:
    model = real_models.light[name] if name in real_models.light else getattr(real_models, name)
    through_both_scripts(tmp_path, model, dtype, height, width, size)


@pytest.mark.full
def test_what_fails_ends_the_scripts_as_on_a_board(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    convert = execute(PROGRAMS / "convert.py", tmp_path / "text.onnx", "rk3588", "fp", tmp_path / "x.rknn", code=255)
    assert "Load model failed!" in convert.stdout
    missing = execute(PROGRAMS / "executor.py", tmp_path / "missing.rknn", "image.npy", "out.npz", code=255)
    assert "Load RKNN model failed" in missing.stdout
    assert "E Invalid RKNN model path" in missing.stderr
