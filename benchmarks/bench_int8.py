"""CPU time of int8 networks next to onnxruntime's int8: one thread each, in turns, as one table with goals.

Run it with ``python -m benchmarks.bench_int8``. It also writes the table to ``benchmarks/RESULTS.md``, with machine, date and commit.
Graphs that are not part of the project are read from the directory that ``ANYNPU_BENCH_GRAPHS`` names; their weights are random.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import anynpu
from anynpu import Device, Model
from anynpu.cli.demo.detection import MEAN, STD, find_detector
from anynpu.cli.demo.pages import page
from anynpu.npu.engines.native import NativeEngine

from . import interleaved, print_table
from .engine_onnxruntime import Session, prepare, quantize
from .engine_timing import verdict
from .networks import efficientnet_lite0, mobilenet_v1, resnet18, with_random_weights, yolov5s, yolox_nano

VARIABLE = "ANYNPU_BENCH_GRAPHS"
RESULTS = Path(__file__).with_name("RESULTS.md")
ROUNDS = 15
HEADER = ("network", "anynpu, ms", "onnxruntime int8, ms", "ratio", "goal")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    """A network of the table: its goal, and how it is made, or else its file in the directory of graphs."""

    name: str
    goal: float
    build: Callable[[], Any] | None = None
    file: str = ""


NETWORKS = (
    Entry("yolov8n 640", 0.72, file="yolov8n.onnx"),
    Entry("yolo11n 640", 0.68, file="yolo11n.onnx"),
    Entry("yolox_s 640", 0.78, file="yolox_s.onnx"),
    Entry("YOLOX-nano 416", 0.60, yolox_nano),
    Entry("YOLOv5s backbone 640", 0.80, yolov5s),
    Entry("mobilenetv2 224", 0.82, file="mobilenetv2-12.onnx"),
    Entry("MobileNetV1 224", 0.82, mobilenet_v1),
    Entry("efficientnet-lite0 224", 0.82, efficientnet_lite0),
    Entry("ResNet18 224", 0.88, resnet18),
    Entry("resnet50 224", 0.88, file="resnet50-v2-7.onnx"),
)
DETECTION_GOAL = 0.36


def main() -> None:
    """Print the table, and write it."""
    with tempfile.TemporaryDirectory() as name:
        rows = [_measured(entry, Path(name)) for entry in NETWORKS]
        rows.append(_detection(Path(name)))
    engine = NativeEngine().isa
    print_table(f"int8, CPU time, one thread, best of {ROUNDS} in turns, {_processor()}, {engine}", HEADER, rows)
    RESULTS.write_text(_page(rows, engine), encoding="utf-8")


def _measured(entry: Entry, folder: Path) -> list[str]:
    """A row; for a graph that is not there, what is missing."""
    if entry.build is not None:
        network = entry.build()
    else:
        directory = os.environ.get(VARIABLE, "")
        path = Path(directory) / entry.file
        if not directory or not path.is_file():
            return [entry.name, "-", "-", "-", f"{entry.file} is not in the directory of {VARIABLE}"]
        network = with_random_weights(path)
    shape = [dimension.dim_value for dimension in network.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    values, sample = (rng.standard_normal(shape, np.float32) for _ in range(2))
    model = anynpu.compile(network, "rk3588", dataset=[sample])
    session = Session(quantize(prepare(network, folder / "network.onnx"), folder / "network_int8.onnx", [sample]))
    return _row(entry.name, entry.goal, model, {"x": values}, session, values)


def _detection(folder: Path) -> list[str]:
    """The detector of the demonstration, with its own weights."""
    import onnx

    samples = [page(seed) for seed in range(4)]
    image = page(10_000)
    model = anynpu.compile(find_detector(), "rk3588", dataset=samples, mean=MEAN, std=STD, shapes={"x": (1, 3, 480, 480)})
    source = prepare(onnx.load(find_detector()), folder / "detection.onnx")
    session = Session(quantize(source, folder / "detection_int8.onnx", [_normalized(sample) for sample in samples]))
    return _row("text detection 480", DETECTION_GOAL, model, {"x": image[None], "layout": "nhwc"}, session, _normalized(image))


def _row(name: str, goal: float, model: Model, given: dict[str, Any], session: Session, values: Floats) -> list[str]:
    arguments = dict(given)
    array = arguments.pop("x")
    with Device(model.chip, host_threads=1) as device:
        context = device.load(model).context()
        runs: dict[str, Callable[[], object]] = {
            "anynpu": lambda: context.run(array, **arguments),
            "onnxruntime": lambda: session.run(values),
        }
        for run in runs.values():
            run()
        best = interleaved(runs, ROUNDS, time.process_time)
    ratio = best["anynpu"] / best["onnxruntime"]
    return [name, f"{best['anynpu'] * 1e3:.2f}", f"{best['onnxruntime'] * 1e3:.2f}", f"{ratio:.2f}", verdict(ratio, goal)]


def _page(rows: Sequence[Sequence[str]], engine: str) -> str:
    """The table as Markdown, with what it was measured on."""
    lines = [
        "# Results",
        "",
        f"CPU time of int8 networks, one thread each, best of {ROUNDS} runs in turns with onnxruntime.",
        "",
        f"- Processor: {_processor()}, {engine}",
        f"- Date: {datetime.datetime.now(datetime.timezone.utc).date().isoformat()}",
        f"- Commit: {_commit()}",
        "- Command: `make bench`, or `python -m benchmarks.bench_int8`",
        f"- Graphs outside the project, with random weights: the directory that `{VARIABLE}` names",
        "",
        "| " + " | ".join(HEADER) + " |",
        "|---|---:|---:|---:|---|",
    ]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit that is checked out; whether files differ from it."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


def _normalized(image: npt.NDArray[np.uint8]) -> Floats:
    values = (image.astype(np.float32) - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


if __name__ == "__main__":
    main()
