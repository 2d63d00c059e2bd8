"""``anynpu inspect``."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
