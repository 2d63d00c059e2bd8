"""What int8 keeps of a network's answers, quantization config by quantization config: text detection on photographed pages, and
a detector on photographs.

The pages are drawn here (perspective, shadows, little contrast, blur, grain): 14 for calibration and 6 others. The detector and its
photographs are not part of the project: name a folder with ``yolox_nano.onnx`` and ``photos/*.jpg`` as an argument or in
ANYNPU_BENCH_DETECTOR. Half of the photographs is for calibration and the other half for the test, and the other way round; each is looked
at in several views. A detection is kept where the int8 model has one of the same class that overlaps by half (score 0.3, NMS 0.45).

``python -m benchmarks.bench_accuracy [pages] [detector] [FOLDER] [recipe=NAME ...]`` measures a part. Each compilation is a process of its
own; its seconds are those of all processors together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.compiler.quantize.metrics import cosine

from . import print_table
from .photographs import VIEWS, folds, letterboxed, photographed_page, photos, viewed

VARIABLE = "ANYNPU_BENCH_DETECTOR"
MODULE = "benchmarks.bench_accuracy"
CALIBRATION_PAGES, TEST_PAGES = 14, 6
SIZE = 416
SCORE, OVERLAP, SAME_BOX = 0.3, 0.45, 0.5
TARGET = "rk3588"

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"accuracy": "fast", "algorithm": "minmax", "without": ("groups", "clip")},
    "vendor": {"quantizer": "vendor"},
    "optimize + vendor": {"quantizer": "vendor", "optimize": True},
    "fast": {"accuracy": "fast"},
    "default": {},
    "best": {"accuracy": "best"},
}
"""Options of ``compile`` by the name of the row: plain is min/max, one scale for each tensor and no weight reconstruction;
vendor is the graph and the ranges of Rockchip's toolkit, for the model as it is and as ``optimize`` rewrites it."""


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for each network."""
    chosen = [word.removeprefix("recipe=") for word in arguments if word.startswith("recipe=")] or list(RECIPES)
    words = [word for word in arguments if not word.startswith("recipe=")]
    parts = [word for word in words if word in ("pages", "detector")] or ["pages", "detector"]
    folder = next((word for word in words if word not in ("pages", "detector")), os.environ.get(VARIABLE, ""))
    if "pages" in parts:
        _pages(chosen)
    if "detector" in parts and folder:
        _detector(Path(folder), chosen)
    elif "detector" in parts:
        print(f"\nno detector: name a folder with yolox_nano.onnx and photos in {VARIABLE}")


def _pages(recipes: Sequence[str]) -> None:
    from anynpu.cli.demo.detection import MEAN, STD, find_detector

    source = find_detector()
    calibration = np.stack([photographed_page(seed) for seed in range(CALIBRATION_PAGES)])
    tests = [photographed_page(seed) for seed in range(1000, 1000 + TEST_PAGES)]
    options = {"mean": MEAN, "std": STD, "shapes": {"x": (1, 3, 480, 480)}}
    expected = [_float(source, _normalized(test, MEAN, STD)) for test in tests]
    rows, plain = [], list[float]()
    for name in recipes:
        with tempfile.TemporaryDirectory() as folder:
            seconds, passed = _compiled(source, calibration, {**options, **RECIPES[name]}, Path(folder))
            given = _run(Path(folder), tests)
        cosines = [cosine([one], [other]) for one, other in zip(expected, given, strict=True)]
        plain = cosines if name == "plain" else plain
        overlaps = [_overlap_of_maps(one, other) for one, other in zip(expected, given, strict=True)]
        rows.append(
            [
                name,
                f"{np.mean(cosines):.4f}",
                f"{min(cosines):.4f}",
                _worse(cosines, plain),
                f"{np.mean(overlaps):.3f}",
                f"{min(overlaps):.3f}",
                " ".join(f"{value:.3f}" for value in cosines),
                f"{seconds:.0f}",
                f"{passed:.0f}",
            ]
        )
        print(rows[-1], file=sys.stderr)
    header = ["", "mean cosine", "worst", "below plain", "mean overlap", "worst", "page by page", "processor s", "s"]
    print_table(f"PP-OCRv4 detection, {TEST_PAGES} photographed pages, {CALIBRATION_PAGES} for calibration", header, rows)


def _detector(folder: Path, recipes: Sequence[str]) -> None:
    source, pictures = folder / "yolox_nano.onnx", photos(folder / "photos")
    rows, plain = [], list[float]()
    tests = {index: [letterboxed(viewed(picture, view), SIZE) for view in VIEWS] for index, picture in enumerate(pictures)}
    expected = {
        (index, view): _float(source, test.transpose(2, 0, 1)[None].astype(np.float32))
        for index, views in tests.items()
        for view, test in zip(VIEWS, views, strict=True)
    }
    for name in recipes:
        kept, found = dict.fromkeys(VIEWS, 0), 0
        total = dict.fromkeys(VIEWS, 0)
        cosines: list[float] = []
        seconds = passed = 0.0
        for calibration, others in folds(len(pictures)):
            with tempfile.TemporaryDirectory() as place:
                data = np.stack([letterboxed(pictures[index], SIZE) for index in calibration])
                options = {"mean": (0, 0, 0), "std": (1, 1, 1), **RECIPES[name]}
                added = _compiled(source, data, options, Path(place))
                given = _run(Path(place), [test for index in others for test in tests[index]])
            seconds, passed = seconds + added[0], passed + added[1]
            pairs = [(index, view) for index in others for view in VIEWS]
            for (index, view), result in zip(pairs, given, strict=True):
                wanted = expected[index, view]
                cosines.append(cosine([wanted], [result]))
                theirs, ours = _detections(wanted), _detections(result)
                kept[view] += matched(theirs, ours)
                total[view] += len(theirs)
                found += len(ours)
        plain = cosines if name == "plain" else plain
        all_kept, all_total = sum(kept.values()), sum(total.values())
        rows.append(
            [
                name,
                f"{all_kept}/{all_total}",
                f"{100 * all_kept / all_total:.1f} %",
                *(f"{kept[view]}/{total[view]}" for view in VIEWS),
                f"{2 * all_kept / (all_total + found):.3f}",
                f"{np.mean(cosines):.4f}",
                f"{min(cosines):.4f}",
                _worse(cosines, plain),
                f"{seconds / 2:.0f}",
                f"{passed / 2:.0f}",
            ]
        )
        print(rows[-1], file=sys.stderr)
    header = ["", "kept", "", *VIEWS, "F1", "mean cosine", "worst", "below plain", "processor s", "s"]
    print_table(f"YOLOX-nano, {len(pictures)} photographs in {len(VIEWS)} views, two halves", header, rows)


def _compiled(source: Path, data: np.ndarray, options: Mapping[str, Any], folder: Path) -> tuple[float, float]:
    """Compile into a folder in a fresh interpreter; processor seconds and seconds."""
    np.save(folder / "samples.npy", data)
    (folder / "options.json").write_text(json.dumps({**options, "source": str(source)}))
    done = subprocess.run([sys.executable, "-m", MODULE, "compile", str(folder)], check=True, capture_output=True, text=True)
    seconds, passed, notes = json.loads(done.stdout.splitlines()[-1])
    for line in notes.split("; "):
        print("   ", line, file=sys.stderr)
    return seconds, passed


def _compile(folder: Path) -> str:
    import anynpu

    options = json.loads((folder / "options.json").read_text())
    shapes = {name: tuple(shape) for name, shape in options.pop("shapes", {}).items()}
    source = options.pop("source")
    if options.pop("optimize", False):
        from anynpu.compiler import optimize

        data = {key: options[key] for key in ("mean", "std")}
        source = optimize(source, TARGET, dataset=folder / "samples.npy", shapes=shapes or None, **data).model
    model = anynpu.compile(source, TARGET, dataset=folder / "samples.npy", shapes=shapes or None, **options)
    model.save(folder / "model.rknn")
    return str(model.provenance.get("accuracy", ""))


def _run(folder: Path, pictures: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The first output of a compiled model for bytes of images, from the native engine."""
    import anynpu

    with anynpu.InferenceSession(folder / "model.rknn", device="sim") as session:
        name = session.get_inputs()[0].name
        return [np.asarray(session.run(None, {name: picture.transpose(2, 0, 1)[None]})[0]) for picture in pictures]


def _float(source: Path, values: np.ndarray) -> np.ndarray:
    session = _sessions.get(source)
    if session is None:
        from anynpu._util.optional import onnxruntime

        runtime = onnxruntime()
        session = _sessions[source] = runtime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    (first, *_) = session.run(None, {session.get_inputs()[0].name: values})
    return np.asarray(first)


_sessions: dict[Path, Any] = {}


def _normalized(picture: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    values = (picture.astype(np.float32) - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _worse(cosines: Sequence[float], plain: Sequence[float]) -> str:
    """On how many samples a quantization config is worse than plain min/max."""
    if not plain:
        return "-"
    return f"{sum(mine < its for mine, its in zip(cosines, plain, strict=True))} of {len(plain)}"


def _overlap_of_maps(expected: np.ndarray, given: np.ndarray) -> float:
    one, other = expected > SCORE, given > SCORE
    return float((one & other).sum() / max((one | other).sum(), 1))


def _detections(output: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Boxes and classes, the most certain first."""
    from anynpu.tasks.boxes import decode_rows
    from anynpu.tasks.results import Thresholds

    found = decode_rows(output, (SIZE, SIZE), Thresholds(score=SCORE, overlap=OVERLAP))
    order = np.argsort(-found.scores, kind="stable")
    return [(found.boxes[index], int(found.classes[index])) for index in order]


def matched(expected: Sequence[tuple[np.ndarray, int]], given: Sequence[tuple[np.ndarray, int]]) -> int:
    """How many of the expected boxes have one of the same class that overlaps by half; each is taken once."""
    left, count = list(given), 0
    for box, kind in expected:
        overlaps = [_shared(box, other) if kind == its else 0.0 for other, its in left]
        if overlaps and max(overlaps) >= SAME_BOX:
            left.pop(int(np.argmax(overlaps)))
            count += 1
    return count


def _shared(first: np.ndarray, second: np.ndarray) -> float:
    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    inside = float(np.prod(np.maximum(high - low, 0.0)))
    areas = sum(float(np.prod(np.maximum(box[2:] - box[:2], 0.0))) for box in (first, second))
    return inside / max(areas - inside, 1e-12)


if __name__ == "__main__":
    if sys.argv[1:2] == ["compile"]:
        begin = time.perf_counter()
        text = _compile(Path(sys.argv[2]))
        spent = os.times()
        print(json.dumps([spent.user + spent.system, time.perf_counter() - begin, text]))
    else:
        main(sys.argv[1:])
