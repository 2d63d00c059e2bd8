"""Compile time and peak memory of three networks, beside onnxruntime's static quantization.

A network with the shapes of MobileNetV2, YOLOv8n and ViT-B each, with random weights. Each run is a fresh interpreter that reads the ONNX
file and writes its result; seconds are those of all processors together, so that a busy machine does not change them much. Memory is the
largest resident size, as a multiple of the ONNX file; what an interpreter takes with its libraries alone is most of it for a small file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import print_table
from .bench_compile import _peak_megabytes
from .networks import mobilenet_v2, vit_b, yolov8n

SAMPLES = 8
MEMORY_GOAL = 5.0
LARGE_MEGABYTES = 50
"""The goal for memory is one for files of at least this size."""

NETWORKS: dict[str, tuple[Callable[[int], object], int]] = {
    "MobileNetV2 224": (mobilenet_v2, 224),
    "YOLOv8n 640": (yolov8n, 640),
    "ViT-B 224": (vit_b, 224),
}


def main() -> None:
    """Print the table, one row per network and way of compiling it."""
    rows = []
    for name, (make, size) in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_network(make(size), size, Path(folder))
            megabytes = path.stat().st_size / 2**20
            found = {worker: _measured(worker, folder) for worker in WORKERS}
        theirs, _ = found["quantize_static"]
        for worker, (seconds, memory) in found.items():
            share = memory / megabytes
            goal = megabytes >= LARGE_MEGABYTES and worker.startswith("anynpu")
            verdict = f" {'ok' if share <= MEMORY_GOAL else 'MISSED'} (goal {MEMORY_GOAL:.0f})" if goal else ""
            rows.append(
                [f"{name}, {megabytes:.0f} MB, {worker}", f"{seconds:.1f}", f"{seconds / theirs:.2f}", f"{share:.1f}{verdict}"]
            )
    header = ["", "CPU s", "over quantize_static", "peak memory over file"]
    print_table(f"compile time and memory, {SAMPLES} samples", header, rows)


def write_network(model: object, size: int, folder: Path) -> Path:
    import numpy as np

    from anynpu._util.optional import onnx

    onnx().save(model, folder / "network.onnx")
    np.save(folder / "samples.npy", np.random.default_rng(1).random((SAMPLES, 1, 3, size, size), np.float32))
    return folder / "network.onnx"


def _measured(worker: str, folder: str) -> tuple[float, float]:
    """CPU seconds and megabytes of one run in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-m", __name__, worker, folder], check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, megabytes


def _anynpu(folder: Path, dtype: str) -> None:
    import anynpu

    samples = folder / "samples.npy" if dtype == "w8a8" else None
    anynpu.compile(folder / "network.onnx", "rk3588", dtype=dtype, dataset=samples).save(folder / "network.rknn")


def _quantize_static(folder: Path) -> None:
    from anynpu._util.optional import onnxruntime

    onnxruntime()  # sets what must be set before its first import
    import numpy as np
    from onnxruntime import quantization

    samples = iter(np.load(folder / "samples.npy", mmap_mode="r"))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(({"images": np.ascontiguousarray(sample)} for sample in samples), None)

    quantization.quantize_static(
        folder / "network.onnx",
        folder / "quantized.onnx",
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        calibrate_method=quantization.CalibrationMethod.MinMax,
    )


WORKERS: dict[str, Callable[[Path], None]] = {
    "anynpu fp16": lambda folder: _anynpu(folder, "fp16"),
    "anynpu int8": lambda folder: _anynpu(folder, "w8a8"),
    "quantize_static": _quantize_static,
}


if __name__ == "__main__":
    WORKERS[sys.argv[1]](Path(sys.argv[2]))
    spent = os.times()
    print(json.dumps([spent.user + spent.system, _peak_megabytes()]))
