"""The demonstration: text detection compiled to int8, run on the software NPU, and compared with the float32 model."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import anynpu

from ..._util import optional as _optional
from ...errors import MissingDependencyError
from ...modelfile import CompiledModel
from ...tasks import find_text
from ...tasks.draw import draw
from .pages import PAGE_SIZE, Grain, captioned, page, side_by_side

MEAN = tuple(255 * value for value in (0.485, 0.456, 0.406))
STD = tuple(255 * value for value in (0.229, 0.224, 0.225))
HELD_OUT_PAGES = 6

_PACKAGE = "rapidocr_onnxruntime"
_FILE = "ch_PP-OCRv4_det_infer.onnx"
_FIRST_HELD_OUT_SEED = 10_000
_GROWTH = {"min_score": 0.5, "unclip": 2.0}
"""As the detector was trained: what is found grows by twice its area over its perimeter."""


@dataclass(frozen=True)
class BoxComparison:
    """The int8 model beside the float32 model on pages that calibration has not seen.

    :ivar cosines: likeness of the two outputs, page by page; 1 is equal
    :ivar seconds: host time of each run of the software NPU
    :ivar picture: the first page twice, with the boxes of both models
    """

    cosines: tuple[float, ...]
    seconds: tuple[float, ...]
    picture: npt.NDArray[np.uint8]


def find_detector() -> Path:
    """The PP-OCRv4 detection model inside the installed package ``rapidocr-onnxruntime``; the package itself is not imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "models" / _FILE
        if path.is_file():
            return path
    raise MissingDependencyError(
        f"the demonstration takes its model from the package 'rapidocr-onnxruntime', and {_FILE} was not found there",
        hint="pip install rapidocr-onnxruntime",
    )


def calibration_pages(folder: Path, count: int, grain: Grain = Grain.COLOR) -> Path:
    """Draw *count* pages into *folder* as PNG files and return the folder."""
    cv2 = _optional.cv2()
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        cv2.imwrite(str(folder / f"page{seed:02d}.png"), page(seed, grain=grain)[..., ::-1])
    return folder


def compile_detector(
    detector: Path, pages: Path, target: str, count: int, progress: Callable[[str, int, int | None], None] | None = None
) -> CompiledModel:
    """The detector as an int8 model for *target*, calibrated with the first *count* images of *pages*."""
    return anynpu.compile(
        detector,
        target,
        dataset=pages,
        mean=MEAN,
        std=STD,
        shapes={"x": (1, 3, PAGE_SIZE, PAGE_SIZE)},
        calibration_limit=count,
        progress=progress,
    )


def compare(detector: Path, model: CompiledModel, grain: Grain = Grain.COLOR) -> BoxComparison:
    """Run both models on the held-out pages."""
    options = _optional.onnxruntime().SessionOptions()
    options.log_severity_level = 3
    session = _optional.ort_session(str(detector), options)
    cosines, seconds, panels = [], [], []
    with anynpu.Device(model.chip) as device, device.load(model) as loaded, loaded.context() as context:
        context.run(
            {"x": page(_FIRST_HELD_OUT_SEED, grain=grain)[None]}, layout="nhwc"
        )  # the first run prepares what later runs reuse
        for number in range(HELD_OUT_PAGES):
            image = page(_FIRST_HELD_OUT_SEED + number, grain=grain)
            (expected,) = session.run(None, {"x": _normalized(image)})
            start = time.perf_counter()
            (result,) = context.run({"x": image[None]}, layout="nhwc")
            seconds.append(time.perf_counter() - start)
            cosines.append(cosine(expected, result))
            if number == 0:
                before, after = (find_text(output, **_GROWTH) for output in (expected, result))
                panels = [
                    captioned(draw(image, before), f"float32, onnxruntime: {len(before)} boxes"),
                    captioned(draw(image, after), f"int8, software NPU {model.chip}: {len(after)} boxes"),
                ]
    return BoxComparison(tuple(cosines), tuple(seconds), side_by_side(panels))


def cosine(first: npt.NDArray[np.floating], second: npt.NDArray[np.floating]) -> float:
    """Cosine of the angle between two arrays.

    >>> cosine(np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    1.0
    """
    a, b = first.astype(np.float64).ravel(), second.astype(np.float64).ravel()
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))


def _normalized(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    values = (image.astype(np.float32) - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
