"""Programs of three hosts on the vendor's classes, under ``anynpu exec``: a plugin, a pool, and Ultralytics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net
from dropin.running import clean_environment, python_environment, run
from vendor_files import rknn_file

import anynpu

from .conftest import EXAMPLES, Load

SIZE, CLASSES = 32, 3
STUBS = Path(__file__).parent / "stubs"
PYTHON = os.environ.get("ANYNPU_ULTRALYTICS_PYTHON", str(Path(sys.prefix) / "ultralytics" / "bin" / "python"))


def execute(
    *command: str | Path, python: str = sys.executable, cwd: Path | None = None, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run([python, *command], python_environment(**environment), cwd=cwd, code=code, timeout=600)


def detector(path: Path) -> Path:
    """A network with an output [1, 4 + classes, n]: boxes of about 8 pixels everywhere, scores by the image."""
    net = Net(seed=7)
    maps = net.op("Sigmoid", net.conv(net.input("images", (1, 3, SIZE, SIZE)), 4 + CLASSES, kernel=8, strides=[8, 8]))
    scale = np.array([32.0] * 2 + [8.0] * 2 + [1.0] * CLASSES, np.float32).reshape(1, -1, 1, 1)
    net.output(net.op("Reshape", net.op("Mul", maps, net.constant(scale)), net.constant([1, 4 + CLASSES, -1])))
    onnx.save(net.proto(), path)
    return path


def test_a_detector_plugin(tmp_path: Path, load: Load) -> None:
    model = detector(tmp_path / "yolo.onnx")
    done = execute(EXAMPLES / "frigate_plugin" / "detect.py", model, str(SIZE), "3")
    rows = [[float(value) for value in line.split()] for line in done.stdout.splitlines()]
    assert rows, done.stderr
    plugin = load("frigate_plugin", "plugin")
    picture = np.random.default_rng(0).integers(0, 256, (1, SIZE, SIZE, 3), np.uint8)
    options = anynpu.make_provider_options(layout="nhwc")
    with anynpu.InferenceSession(tmp_path / "yolo-rk3588.rknn", provider_options=options, device="sim") as session:
        expected = plugin.boxes_of(session.run(None, [picture])[0], SIZE)
    np.testing.assert_allclose(rows, expected[expected[:, 1] > 0], atol=1e-3)


def test_the_plugin_says_where_it_is_no_board(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load("frigate_plugin", "plugin")

    def missing(*arguments: Any, **keywords: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(plugin.Path, "read_text", missing)
    with pytest.raises(RuntimeError, match="no board"):
        plugin.chip_of_this_board()


def test_a_pool_on_a_vendors_file(tmp_path: Path) -> None:
    """The file is the vendor's; its anynpu model is compiled from the ONNX file two folders above, once for six objects."""
    net = Net(seed=9)
    pooled = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv(net.input("images", (1, 3, SIZE, SIZE)), 8))))
    net.output(net.op("Gemm", pooled, net.weights(8, 4), net.weights(4)))
    onnx.save(net.proto(), tmp_path / "model.onnx")
    model = tmp_path / "rknpu" / "rk3588" / "model.rknn"
    model.parent.mkdir(parents=True)
    model.write_bytes(rknn_file())
    done = execute(EXAMPLES / "immich_pool" / "embed.py", model, str(SIZE), "30")
    assert "twin" not in done.stderr  # the pool asks for errors alone
    twin = model.with_suffix(".anynpu")
    random = np.random.default_rng(0)
    with anynpu.InferenceSession(twin, device="sim") as session:
        for number, line in enumerate(done.stdout.splitlines()):
            expected = session.run(None, [random.standard_normal((1, 3, SIZE, SIZE), np.float32)])[0].ravel()
            assert line == f"{number} " + " ".join(f"{value:.5f}" for value in expected)
    assert number == 29


EXPORTER_SHAPE = """
import platform, sys
from importlib import metadata
from pathlib import Path
import numpy as np

def checked(ret, name):
    if ret not in {0, None}:
        raise RuntimeError(f"{name} failed with {ret}")

def is_rockchip():
    if platform.system() != "Linux" or platform.machine() not in {"arm64", "aarch64"}:
        return False
    *_, chip = open("/proc/device-tree/compatible").read().split(",")
    return chip.replace("\\x00", "").split("-", 1)[0] == "rk3588"

folder, dataset = Path(sys.argv[1]), sys.argv[2]
major, minor, _ = map(int, metadata.version("rknn-toolkit2").split("."))
assert (2, 3) <= (major, minor) < (2, 5)
from rknn.api import RKNN
rknn = RKNN(verbose=False)
checked(rknn.config(mean_values=[[0, 0, 0]], std_values=[[255, 255, 255]], target_platform="rk3588"), "config")
checked(rknn.load_onnx(model=str(folder / "yolo.onnx")), "load_onnx")
keywords = {"do_quantization": bool(dataset)}
if dataset:
    keywords.update(dataset=dataset, auto_hybrid=False)
checked(rknn.build(**keywords, rknn_batch_size=1), "build")
checked(rknn.export_rknn(str(folder / "yolo-rk3588.rknn")), "export_rknn")
assert is_rockchip()
metadata.version("rknn-toolkit-lite2")
from rknnlite.api import RKNNLite
lite = RKNNLite()
assert lite.load_rknn(str(folder / "yolo-rk3588.rknn")) == 0 and lite.init_runtime() == 0
image = np.random.default_rng(0).random((1, 32, 32, 3), np.float32)
outputs = lite.inference(inputs=[(image * 255).astype("uint8")])
for output in outputs:
    output[:, [0, 2]] *= 32
    output[:, [1, 3]] *= 32
np.save(folder / "outputs.npy", outputs[0])
"""


@pytest.mark.parametrize("quantised", [False, True])
def test_the_calls_that_ultralytics_makes(tmp_path: Path, quantised: bool) -> None:
    """In its order and with its arguments, without its package."""
    detector(tmp_path / "yolo.onnx")
    cv2.imwrite(str(tmp_path / "0.jpg"), np.random.default_rng(1).integers(0, 256, (SIZE, SIZE, 3), np.uint8))
    (tmp_path / "dataset.txt").write_text("0.jpg\n")
    execute("-c", EXPORTER_SHAPE, tmp_path, str(tmp_path / "dataset.txt") if quantised else "")
    image = (np.random.default_rng(0).random((1, SIZE, SIZE, 3), np.float32) * 255).astype("uint8")
    options = anynpu.make_provider_options(layout="nhwc")
    with anynpu.InferenceSession(tmp_path / "yolo-rk3588.rknn", provider_options=options, device="sim") as session:
        expected = session.run(None, [image])[0].copy()
    expected[:, [0, 1, 2, 3]] *= 32
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npy"), expected)


TINY = """
import torch
from ultralytics import YOLO
torch.manual_seed(0)
model = YOLO("yolo11n.yaml")
for branch in model.model.model[-1].cv3:
    branch[-1].bias.data.zero_()
model.save("tiny.pt")
"""


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists(PYTHON), reason="Ultralytics is not installed: make ultralytics")
@pytest.mark.parametrize("quantize", [16, 8])
def test_ultralytics_itself(tmp_path: Path, quantize: int) -> None:
    """A network of its YAML files with random weights, whose scores are about a half: exported, and used to predict."""
    random = np.random.default_rng(0)
    for part in ("images", "labels"):
        (tmp_path / "data" / part).mkdir(parents=True)
    for index in range(4):
        smooth = cv2.resize(random.integers(0, 256, (5, 5, 3), np.uint8), (64, 64), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(tmp_path / "data" / "images" / f"{index}.jpg"), smooth)
        (tmp_path / "data" / "labels" / f"{index}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    names = "".join(f"  {index}: class {index}\n" for index in range(80))
    (tmp_path / "data.yaml").write_text(f"path: {tmp_path}/data\ntrain: images\nval: images\nnames:\n{names}")
    stubs = tmp_path / "stubs"
    (stubs / "torchvision-0.28.0.dist-info").mkdir(parents=True)
    (stubs / "torchvision-0.28.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n"
    )
    environment = {
        "PYTHONPATH": f"{STUBS}:{stubs}",
        "YOLO_OFFLINE": "true",
        "YOLO_AUTOINSTALL": "false",
        "YOLO_CONFIG_DIR": str(tmp_path),
    }
    run([PYTHON, "-c", TINY], clean_environment(**environment), cwd=tmp_path, timeout=600)
    script = EXAMPLES / "ultralytics" / "export_predict.py"
    given = ["tiny.pt", "data/images/0.jpg", "--size", "64", "--confidence", "0", "--quantize", str(quantize)]
    done = execute(
        *(script, *given, *(("--data", "data.yaml") if quantize == 8 else ())),
        python=PYTHON,
        cwd=tmp_path,
        **environment,
    )
    boxes = re.search(r"^boxes (\d+)$", done.stdout, re.MULTILINE)
    assert boxes is not None, done.stdout + done.stderr
    assert int(boxes[1]) > 0
    model = anynpu.load(tmp_path / "tiny_rknn_model" / "tiny-rk3588.rknn")
    assert (model.dtype, model.chip) == ("w8a8" if quantize == 8 else "fp16", "rk3588")
