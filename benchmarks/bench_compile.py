"""Compile time and peak memory of PP-OCRv4 detection in int8, beside onnxruntime's static quantization of the same model.

Both calibrate with the same pages, read from the same file, and write their result. Each runs in fresh interpreters, so that its peak
memory is its own; time and memory count from before the first import of a library to the finished file. CPU time is that of all
threads together: it states something on a busy machine, too. ``python -m benchmarks.bench_compile 8`` takes another number of pages.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import print_table

if TYPE_CHECKING:
    import numpy as np

GOAL = 1.0
CPU_GOAL = 1.2
PAGES = 16
ROUNDS = 3
SOURCE = "opset13.onnx"
MODULE = "benchmarks.bench_compile"


def main(pages: int = PAGES) -> None:
    """Print the table."""
    found = measured_times(pages)
    ours = found["anynpu"]
    print_table(
        f"PP-OCRv4 detection 480x480 to int8, {pages} pages",
        ["", "s", "processor s", "peak MB", "anynpu's time", "anynpu's CPU time", "anynpu's memory"],
        [
            [
                name,
                *(f"{seconds:.2f}" for seconds in theirs[:2]),
                f"{theirs[2]:.0f}",
                *(_ratio(mine / its, name, goal) for mine, its, goal in zip(ours, theirs, (GOAL, CPU_GOAL, GOAL), strict=True)),
            ]
            for name, theirs in found.items()
        ],
    )


def measured_times(pages: int) -> dict[str, list[float]]:
    """Seconds, processor seconds and megabytes of each: the median of some rounds that take turns."""
    import numpy as np

    from anynpu.cli.demo.pages import page

    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "pages.npy", np.stack([page(seed) for seed in range(pages)]))
        _write_opset_13(Path(folder) / SOURCE)
        runs: dict[str, list[tuple[float, ...]]] = {name: [] for name in WORKERS}
        for index in range(ROUNDS + 1):
            for name in WORKERS:
                measured = _measured(name, folder)
                if index:  # the first one compiles the modules
                    runs[name].append(measured)
    return {name: [statistics.median(column) for column in zip(*measured, strict=True)] for name, measured in runs.items()}


def _write_opset_13(path: Path) -> None:
    """The detector for onnxruntime: scales per channel are not part of the opset that it was exported with."""
    import onnx
    from onnx import version_converter

    from anynpu.cli.demo.detection import find_detector

    onnx.save(version_converter.convert_version(onnx.load(find_detector()), 13), path)


def _ratio(value: float, name: str, goal: float) -> str:
    if name == "anynpu":
        return ""
    return f"{value:.2f} {'ok' if value <= goal else 'MISSED'} (goal {goal:.1f})"


def _measured(name: str, folder: str) -> tuple[float, ...]:
    """Seconds, processor seconds and megabytes of one run in a fresh interpreter."""
    command = [sys.executable, "-m", MODULE, name, folder]
    # modules are compiled once, as pip does when it installs a package, whatever the environment states
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/pycache", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def _anynpu(folder: Path) -> None:
    import anynpu
    from anynpu.cli.demo.detection import MEAN, STD, find_detector

    model = anynpu.compile(
        find_detector(), "rk3588", dataset=folder / "pages.npy", mean=MEAN, std=STD, shapes={"x": (1, 3, 480, 480)}
    )
    model.save(folder / "detection.rknn")


def _quantize_static(folder: Path, *, preprocess: bool) -> None:
    from anynpu._util.optional import onnxruntime

    onnxruntime()  # sets what must be set before its first import
    import numpy as np
    from onnxruntime import quantization

    source = folder / SOURCE
    if preprocess:
        from onnxruntime.quantization.shape_inference import quant_pre_process

        prepared = folder / "prepared.onnx"
        # the symbolic inference needs a package of its own, and the shapes do not matter to what follows
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        source = prepared
    pages = iter(np.load(folder / "pages.npy", mmap_mode="r"))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(({"x": _normalized(page)} for page in pages), None)

    quantization.quantize_static(
        source,
        folder / "quantized.onnx",
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        calibrate_method=quantization.CalibrationMethod.MinMax,
    )


def _normalized(page: np.ndarray) -> np.ndarray:
    import numpy as np

    from anynpu.cli.demo.detection import MEAN, STD

    values = (page.astype(np.float32) - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _peak_megabytes() -> float:
    """The largest resident size of this process. Its ru_maxrss would begin with that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kilobytes) / 1024


WORKERS: dict[str, Callable[[Path], None]] = {
    "anynpu": _anynpu,
    "quantize_static": lambda folder: _quantize_static(folder, preprocess=False),
    "quant_pre_process + quantize_static": lambda folder: _quantize_static(folder, preprocess=True),
}


if __name__ == "__main__":
    if len(sys.argv) < 3:
        main(*map(int, sys.argv[1:]))
    else:
        begin = time.perf_counter()
        WORKERS[sys.argv[1]](Path(sys.argv[2]))
        passed, spent = time.perf_counter() - begin, os.times()
        print(json.dumps([passed, spent.user + spent.system, _peak_megabytes()]))
