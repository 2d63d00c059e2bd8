"""The native engine beside onnxruntime and beside the limit of the processor: one thread, CPU time, candidates that take turns.

Of anynpu the whole run is measured, from the image (or float32 values) in the caller's array to float32 results; onnxruntime gets its
values normalized beforehand. Best times and medians are printed, and ratios of the best.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import anynpu
from anynpu import Device, Model, _native
from anynpu.cli.demo.detection import MEAN, STD, find_detector
from anynpu.cli.demo.pages import page
from anynpu.npu.engines.native import NativeEngine

from . import print_table
from .engine_contexts import print_contexts, print_memory
from .engine_depthwise import print_depthwise
from .engine_first_result import print_first_result
from .engine_layers import print_layers
from .engine_onnxruntime import Session, prepare, quantize
from .engine_timing import cpu_times, verdict

INT8, FLOAT, SIMULATED = "onnxruntime int8", "onnxruntime float32", "onnxruntime int8 in float (Q/DQ)"
INT8_GOAL = 0.45
FLOAT_GOAL = 0.30
AVX2_GOAL = 1 / 3
LIBRARY_GOAL = 1.0
CALIBRATION_PAGES = 4
HELD_OUT_PAGE = 10_000
DETECTION_SECONDS = 15.0


def main() -> None:
    """Print all tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _compiled_detector()
        _print_detection(model, folder)
        print_layers(NativeEngine())
        print_depthwise(NativeEngine())
        print_memory(model)
        print_contexts(model)
        print_first_result(model.save(folder / "detection.rknn"))
        _print_library(folder)


def _compiled_detector() -> Model:
    pages = [page(seed) for seed in range(CALIBRATION_PAGES)]
    return anynpu.compile(find_detector(), "rk3588", dataset=pages, mean=MEAN, std=STD, shapes={"x": (1, 3, 480, 480)})


def _print_detection(model: Model, folder: Path) -> None:
    """The detector with the best instruction set and with AVX2, and onnxruntime's ways to run it."""
    import onnx

    source = prepare(onnx.load(find_detector()), folder / "detection.onnx")
    samples = [_normalized(page(seed)) for seed in range(CALIBRATION_PAGES)]
    sessions = {
        INT8: Session(quantize(source, folder / "symmetric.onnx", samples)),
        FLOAT: Session(source),
        SIMULATED: Session(quantize(source, folder / "asymmetric.onnx", samples, symmetric=False), float_kernels=True),
    }
    image = page(HELD_OUT_PAGE)
    values = _normalized(image)
    best = NativeEngine().isa
    with ExitStack() as stack:
        contexts = {}
        for isa in [best, "avx2"] if best == "avx512vnni" else [best]:
            device = stack.enter_context(Device(model.chip, engine=NativeEngine(isa=isa)))
            contexts[isa] = device.load(model).context()
        results = [context.run(image[None], layout="nhwc", dequantize=False)[0] for context in contexts.values()]
        if not all(np.array_equal(result, results[0]) for result in results):
            raise RuntimeError("instruction sets give different results")
        runs: dict[str, Callable[[], object]] = {
            f"anynpu {isa}": partial(context.run, image[None], layout="nhwc") for isa, context in contexts.items()
        }
        times = cpu_times(runs | {name: partial(session.run, values) for name, session in sessions.items()}, DETECTION_SECONDS)
    ratios = {isa: {name: times[f"anynpu {isa}"].best / taken.best for name, taken in times.items()} for isa in contexts}
    goals = {INT8: verdict(ratios[best][INT8], INT8_GOAL), FLOAT: verdict(ratios[best][FLOAT], FLOAT_GOAL)}
    if "avx2" in ratios:
        goals[SIMULATED] = f"avx2 {verdict(ratios['avx2'][SIMULATED], AVX2_GOAL)}"
    rows = [
        [name, taken.milliseconds, *(f"{ratio[name]:.2f}" for ratio in ratios.values()), goals.get(name, "")]
        for name, taken in times.items()
    ]
    header = ["CPU time, best (median)", "ms", *(f"{isa} is" for isa in ratios), "goal"]
    print_table("PP-OCRv4 detection 480x480, one thread; all instruction sets give the same bytes", header, rows)


def _print_library(folder: Path) -> None:
    """Size of the compiled library without its symbols."""
    library, stripped = Path(str(_native.__file__)), folder / "stripped.so"
    strip = shutil.which("strip")
    if strip is None:
        shutil.copy(library, stripped)
    else:
        subprocess.run([strip, "-o", stripped, library], check=True)
    size = stripped.stat().st_size / 1e6
    name = "compiled library" if strip is None else "compiled library, stripped"
    print_table("size", ["MB", "", "goal"], [[name, f"{size:.2f}", verdict(size, LIBRARY_GOAL)]])


def _normalized(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    values = (image.astype(np.float32) - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
