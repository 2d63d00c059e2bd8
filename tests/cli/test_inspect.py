"""``anynpu inspect``."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vendor_files import nb_file, rknn_file

Invoke = Callable[..., Any]


def test_onnx(invoke: Invoke, dynamic_path: Path) -> None:
    outcome = invoke("inspect", dynamic_path)
    assert outcome.code == 0, outcome.err
    assert "opset 13" in outcome.out
    assert "1x3xsidexside" in outcome.out
    assert "GlobalAveragePool" in outcome.out


def test_onnx_as_json(invoke: Invoke, model_path: Path) -> None:
    outcome = invoke("inspect", model_path, "--json")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert data["format"] == "onnx"
    assert data["inputs"] == [{"name": "images", "dtype": "float32", "shape": [1, 3, 16, 16]}]
    assert data["operators"]["Conv"] == 1


def test_a_compiled_model(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("inspect", compiled_path)
    assert outcome.code == 0, outcome.err
    assert "rk3588" in outcome.out
    assert "1x3x16x16" in outcome.out
    assert "scores" in outcome.out
    assert " on NPU, " in outcome.out
    assert "arithmetic   chip: integer layers round as the NPU does" in outcome.out


def test_layers_of_a_compiled_model(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("inspect", compiled_path, "--layers")
    assert outcome.code == 0, outcome.err
    assert any(" conv " in line and "NPU" in line for line in outcome.out.splitlines())


def test_a_compiled_model_as_json(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("inspect", compiled_path, "--json")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert data["format"] == "anynpu"
    assert data["chip"] == "rk3588"
    assert data["inputs"][0]["shape"] == [1, 3, 16, 16]
    assert data["preprocess"]["images"]["std"] == [255.0, 255.0, 255.0]
    assert len(data["programs"]) == 1
    assert data["programs"][0]["layers"]


FORMATS = {
    "uint8": ("w8a8 (uint8)", "uint8", "zero point 0"),
    "int8": ("i8 (int8)", "int8", "zero point -128"),
    "int8_dfp": ("i8dfp (int8 dynamic fixed point)", "int8", "fixed point, 6 fraction bits"),
    "int16": ("w16a16 (int16 dynamic fixed point)", "int16", "fixed point, 14 fraction bits"),
    "float16": ("fp16 (float16)", "float16", "none"),
    "bfloat16": ("bf16 (bfloat16)", "bfloat16", "none"),
}


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_format_of_a_vip_model(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "model.nb"
    arguments = ["compile", model_path, "-o", out, "-t", "a733", "--dtype", dtype, "--dataset", pictures, "--std", "255,255,255"]
    outcome = invoke(*arguments)
    assert outcome.code == 0, outcome.err
    assert out.read_bytes()[:4] == b"VPMN"
    shown = invoke("inspect", out).out
    words, kind, quantization = FORMATS[dtype]
    assert f"for a733, {words}\n" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("input"))
    assert f" {kind} " in line
    assert "nchw" in line
    assert line.rstrip().endswith(quantization)
    data = json.loads(invoke("inspect", out, "--json").out)
    assert (data["dtype"], data["inputs"][0]["dtype"], data["inputs"][0]["layout"]) == (words.split()[0], kind, "nchw")


def test_a_pre_process_node(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.nb"
    arguments = [
        "compile",
        model_path,
        "-o",
        out,
        "-t",
        "t527",
        "--dataset",
        pictures,
        "--std",
        "255,255,255",
        "--preprocess",
        "bgr",
    ]
    assert invoke(*arguments).code == 0
    shown = invoke("inspect", out).out
    assert "images: node for BGR images, mean 0 0 0, std 255 255 255" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("input"))
    assert line.split() == ["input", "images", "1x3x16x16", "uint8", "nhwc", "none"]
    assert json.loads(invoke("inspect", out, "--json").out)["preprocess"]["images"]["picture"] == "bgr"


def test_an_unknown_file_fails(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    outcome = invoke("inspect", path)
    assert outcome.code == 1
    assert "notes.txt" in outcome.err
    assert "hint: " in outcome.err


def test_a_truncated_model_fails(invoke: Invoke, compiled_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.rknn"
    path.write_bytes(compiled_path.read_bytes()[:200])
    outcome = invoke("inspect", path)
    assert outcome.code == 1
    assert "cut.rknn" in outcome.err


def vendor_rknn(path: Path) -> Path:
    """A file with the outer shape of a vendor's .rknn: header, payload, description."""
    description = {
        "name": "detector",
        "version": "2.3.2",
        "target_platform": ["rk3588"],
        "inputs": [{"name": "images", "shape": [1, 3, 640, 640], "dtype": "int8", "layout": "nchw"}],
        "outputs": [{"name": "boxes", "shape": [1, 255, 80, 80], "dtype": "int8", "scale": 0.5, "zero_point": -3}],
    }
    text = json.dumps(description).encode()
    payload = bytes(100)
    header = struct.pack("<4s4xQQ", b"RKNN", 6, len(payload)).ljust(64, b"\0")
    path.write_bytes(header + payload + struct.pack("<Q", len(text)) + text)
    return path


def test_a_vendors_rknn(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("inspect", vendor_rknn(tmp_path / "detector.rknn"))
    assert outcome.code == 0, outcome.err
    assert "a vendor's .rknn file, version 6, rknn-toolkit2 2.3.2 for rk3588" in outcome.out
    assert "1x3x640x640" in outcome.out
    assert "scale 0.5, zero point -3" in outcome.out
    assert "runs on the vendor's runtime only" in outcome.out


def test_a_vendors_rknn_as_json(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("inspect", vendor_rknn(tmp_path / "detector.rknn"), "--json")
    assert outcome.code == 0, outcome.err
    data = json.loads(outcome.out)
    assert (data["format"], data["version"], data["chip"]) == ("rknn", 6, "rk3588")
    assert data["outputs"][0]["shape"] == [1, 255, 80, 80]


def test_a_vendors_nb(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "detector.nb"
    path.write_bytes(struct.pack("<4sII", b"VPMN", 0x20001, 0x1000003B).ljust(512, b"\0"))
    outcome = invoke("inspect", path)
    assert outcome.code == 0, outcome.err
    assert "a vendor's .nb file, version 0x20001" in outcome.out
    assert "  note  " in outcome.out
    as_json = invoke("inspect", path, "--json")
    assert json.loads(as_json.out)["format"] == "nb"


def test_a_vendors_file_cannot_be_run(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("run", vendor_rknn(tmp_path / "detector.rknn"))
    assert outcome.code == 1
    assert "only the vendor's runtime can execute it" in outcome.err


def test_a_file_for_another_chip_names_both(invoke: Invoke, tmp_path: Path, compiled_path: Path) -> None:
    path, rknn = tmp_path / "lenet.nb", tmp_path / "yolo.rknn"
    path.write_bytes(nb_file(customer=0x1000003B))
    rknn.write_bytes(rknn_file())
    for file, chip in ((path, "t736"), (rknn, "rk3588"), (compiled_path, "rk3588s")):
        outcome = invoke("inspect", file, "--target", chip)
        assert outcome.code == 0, outcome.err
    outcome = invoke("inspect", path, "--target", "t527")
    assert outcome.code == 1
    words = " ".join(outcome.err.split())
    assert "binary target=0x1000003b" in words
    assert "actual target=0x10000016" in words
    for file, chip, text in ((path, "rk3588", "not for rk3588"), (rknn, "rk3566", "is for rk3588, not for rk3566")):
        outcome = invoke("inspect", file, "--target", chip)
        assert outcome.code == 1
        assert text in " ".join(outcome.err.split())
    assert "is for rk3588, not for v853" in " ".join(invoke("inspect", compiled_path, "-t", "v853").err.split())


def test_a_command_stream_and_a_recorded_job(invoke: Invoke, tmp_path: Path) -> None:
    data = Path(__file__).parents[1] / "npu" / "rocket" / "data"
    outcome = invoke("inspect", data / "conv_15_20_33_k3s2.npz")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("task 0 at 0x1000c000, 130 words\n")
    assert "WEIGHT_SIZE2         KERNELS=34, HEIGHT=3, WIDTH=3" in outcome.out
    stream = tmp_path / "stream.bin"
    stream.write_bytes(struct.pack("<3Q", 0x0201_0000_002A_1040, 0x1001_0000_000E_4004, 0x2001_0000_000E_5004))
    outcome = invoke("inspect", stream, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)[0]["commands"][0] == {"target": 0x201, "register": 0x1040, "value": 42}
    stream.write_bytes(stream.read_bytes()[:-1])
    assert "is not a command stream" in invoke("inspect", stream).err
