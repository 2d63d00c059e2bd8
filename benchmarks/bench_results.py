"""All networks and ratios that have a goal next to onnxruntime, as one table.

Run it with ``python -m benchmarks.bench_results``; names of sections (``int8 float16 operators threads defaults serving compile``) measure
those only. A complete run also writes the table to ``benchmarks/RESULTS.md``, with machine, date and commit. Graphs that are not part of
the project are read from the directory that ``ANYNPU_BENCH_GRAPHS`` names; their weights are random.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import anynpu
from anynpu import Device, Model
from anynpu._util.optional import onnx
from anynpu.cli.demo.detection import MEAN, STD, find_detector
from anynpu.cli.demo.pages import page
from anynpu.npu.engines.native import NativeEngine

from . import bench_compile, bench_serve, interleaved, print_table
from .engine_onnxruntime import Session, prepare, quantize
from .engine_timing import verdict
from .networks import (
    bert_base,
    efficientnet_lite0,
    mobilenet_v1,
    resnet18,
    vit_b,
    whisper_encoder,
    with_random_weights,
    yolov5s,
    yolox_nano,
)

VARIABLE = "ANYNPU_BENCH_GRAPHS"
RESULTS = Path(__file__).with_name("RESULTS.md")
KEPT = "<!-- what follows is kept when the tables above are written -->"
ROUNDS = 15
FLOAT16_GOAL, OPERATOR_GOAL, THREADS_GOAL, DEFAULTS_GOAL, SERVING_GOAL, COMPILE_GOAL = 1.0, 1.2, 0.55, 0.85, 0.7, 1.0
CHAIN = 8
"""Operators in a row: the rounding to float16 at both ends of a network counts little."""
LONG_MS = 10.0
"""Networks that take longer on one thread are measured on two."""

Floats = npt.NDArray[np.float32]
Row = tuple[str, str, str, str, str]
HEADER = ("network", "anynpu", "compared with", "ratio", "goal")


@dataclass(frozen=True)
class Entry:
    """A network of the table: its goal, and how it is made, or else its file in the directory of graphs."""

    name: str
    goal: float
    build: Callable[[], Any] | None = None
    file: str = ""

    def network(self) -> Any:
        """The ONNX model; None where its file is missing."""
        if self.build is not None:
            return self.build()
        path = Path(os.environ.get(VARIABLE, "")) / self.file
        return with_random_weights(path) if os.environ.get(VARIABLE) and path.is_file() else None


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
FLOAT16 = (
    Entry("ViT-B 224", FLOAT16_GOAL, vit_b),
    Entry("BERT base, 128 tokens", FLOAT16_GOAL, bert_base),
    Entry("Whisper tiny encoder", FLOAT16_GOAL, whisper_encoder),
)
OPERATORS = (
    ("Softmax 2x400x400", "Softmax", (2, 400, 400)),
    ("LayerNormalization 197x768", "LayerNormalization", (1, 197, 768)),
    ("Gelu 197x3072", "Gelu", (1, 197, 3072)),
)


@dataclass
class Case:
    """A network that both have."""

    name: str
    goal: float
    model: Model
    path: Path
    given: Any
    values: Floats
    arguments: dict[str, Any] = field(default_factory=dict)

    def own(self, device: Device) -> Callable[[], object]:
        """What runs the network here once."""
        context = device.load(self.model).context()
        return lambda: context.run(self.given, **self.arguments)

    def other(self, threads: int) -> Callable[[], object]:
        """What runs it in onnxruntime."""
        session = Session(self.path, threads=threads)
        return lambda: session.run(self.values)

    @cached_property
    def best(self) -> dict[str, float]:
        """Milliseconds of CPU time on one thread each."""
        with Device(self.model.chip, host_threads=1) as device:
            runs = {"anynpu": self.own(device), "other": self.other(threads=1)}
            for run in runs.values():
                run()
            return {name: 1e3 * seconds for name, seconds in interleaved(runs, ROUNDS, time.process_time).items()}


class Results:
    """Measures section after section; networks are made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _int8(self) -> list[Case | str]:
        """The int8 networks; for those that are missing a text."""
        cases: list[Case | str] = []
        for entry in NETWORKS:
            network = entry.network()
            if network is None:
                cases.append(f"{entry.name}: {entry.file} is not in the directory of {VARIABLE}")
                continue
            values, sample = _random(network, 0), _random(network, 1)
            model = anynpu.compile(network, "rk3588", dataset=[sample])
            source = prepare(network, self._folder / f"{entry.name}.onnx")
            path = quantize(source, self._folder / f"{entry.name} int8.onnx", [sample])
            cases.append(Case(entry.name, entry.goal, model, path, values, values))
        samples, image = [page(seed) for seed in range(4)], page(10_000)
        model = anynpu.compile(find_detector(), "rk3588", dataset=samples, mean=MEAN, std=STD, shapes={"x": (1, 3, 480, 480)})
        path = quantize(self._detector, self._folder / "detection int8.onnx", [_normalized(sample) for sample in samples])
        given = {"layout": "nhwc"}
        cases.append(Case("text detection 480", DETECTION_GOAL, model, path, image[None], _normalized(image), given))
        return cases

    @cached_property
    def _detector(self) -> Path:
        return prepare(onnx().load(find_detector()), self._folder / "detection.onnx")

    def int8(self) -> tuple[str, list[Row]]:
        """CPU time of int8 networks next to onnxruntime's int8."""
        rows = [_missing(case) if isinstance(case, str) else _compared(case) for case in self._int8]
        return f"int8 networks and onnxruntime int8: CPU ms, one thread each, best of {ROUNDS} in turns", rows

    def float16(self) -> tuple[str, list[Row]]:
        """CPU time of float16 networks next to onnxruntime's float32."""
        shapes = {"x": (1, 3, 480, 480)}
        model = anynpu.compile(find_detector(), "rk3588", dtype="fp16", mean=MEAN, std=STD, shapes=shapes)
        image = page(10_000)
        given = {"layout": "nhwc"}
        case = Case("text detection 480", FLOAT16_GOAL, model, self._detector, image[None], _normalized(image), given)
        rows = [_compared(case)]
        for entry in FLOAT16:
            network = entry.network()
            path = self._folder / "float.onnx"
            onnx().save(network, path)
            values = _random(network, 0)
            rows.append(
                _compared(Case(entry.name, entry.goal, anynpu.compile(network, "rk3588", dtype="fp16"), path, values, values))
            )
        return f"float16 networks and onnxruntime float32: CPU ms, one thread each, best of {ROUNDS} in turns", rows

    def operators(self) -> tuple[str, list[Row]]:
        """CPU time of float operators."""
        helper, kinds = onnx().helper, onnx().TensorProto
        rows = []
        for name, operator, shape in OPERATORS:
            ends = [helper.make_tensor_value_info(end, kinds.FLOAT, shape) for end in "xy"]
            weights = [onnx().numpy_helper.from_array(np.ones(shape[-1], np.float32), each) for each in ("scale", "bias")]
            more = [weight.name for weight in weights] if operator == "LayerNormalization" else []
            names = ["x", *(f"t{index}" for index in range(1, CHAIN)), "y"]
            nodes = [helper.make_node(operator, [x, *more], [y]) for x, y in pairwise(names)]
            graph = helper.make_graph(nodes, "operators", ends[:1], ends[1:], weights if more else [])
            network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
            path = self._folder / "operator.onnx"
            onnx().save(network, path)
            values = _random(network, 0)
            model = anynpu.compile(network, "rk3588", dtype="fp16")
            rows.append(_compared(Case(name, OPERATOR_GOAL, model, path, values, values)))
        return (
            f"{CHAIN} float operators in a row, and onnxruntime float32: CPU ms, one thread each, best of {ROUNDS} in turns",
            rows,
        )

    def threads(self) -> tuple[str, list[Row]]:
        """Wall time of one run on two threads."""
        rows: list[Row] = []
        for case in self._int8:
            if isinstance(case, str) or case.best["anynpu"] < LONG_MS:
                continue
            with Device(case.model.chip, host_threads=1) as one, Device(case.model.chip, host_threads=2) as two:
                runs = {"one": case.own(one), "two": case.own(two)}
                for run in runs.values():
                    run()
                best = interleaved(runs, 2 * ROUNDS)
            rows.append(_row(case.name, 1e3 * best["two"], 1e3 * best["one"], THREADS_GOAL))
        return f"two threads and one: wall ms, best of {2 * ROUNDS} in turns; networks above {LONG_MS:g} ms", rows

    def defaults(self) -> tuple[str, list[Row]]:
        """Wall time with both at their defaults."""
        rows: list[Row] = []
        for case in self._int8:
            if isinstance(case, str):
                rows.append(_missing(case))
                continue
            with Device(case.model.chip) as device:
                runs = {"own": case.own(device), "other": case.other(threads=0)}
                times: dict[str, list[float]] = {name: [] for name in runs}
                for _ in range(ROUNDS + 2):
                    for name, run in runs.items():
                        began = time.perf_counter()
                        run()
                        times[name].append(1e3 * (time.perf_counter() - began))
            own, other = (statistics.median(values[2:]) for values in times.values())
            rows.append(_row(case.name, own, other, DEFAULTS_GOAL))
        return f"int8 networks and onnxruntime int8 at their defaults: wall ms, median of {ROUNDS} pairs", rows

    def serving(self) -> tuple[str, list[Row]]:
        """Requests a second of the server next to a bare echo server."""
        found = bench_serve.small_requests()
        rows = [_row(kind, own, echo, SERVING_GOAL, at_least=True) for kind, echo, own in found]
        return f"small requests of {bench_serve.CLIENTS} clients to the server and to a bare echo server: requests a second", rows

    def compile(self) -> tuple[str, list[Row]]:
        """Compile time next to onnxruntime's static quantization."""
        found = bench_compile.measured_times(bench_compile.PAGES)
        name = "quant_pre_process + quantize_static"
        rows = [
            _row(f"text detection 480, {what}", found["anynpu"][index], found[name][index], COMPILE_GOAL)
            for index, what in enumerate(("seconds", "CPU seconds"))
        ]
        return f"compile with {bench_compile.PAGES} images and {name}", rows


SECTIONS = ("int8", "float16", "operators", "threads", "defaults", "serving", "compile")


def main(names: Sequence[str] = ()) -> None:
    """Print the tables; of all sections also write them."""
    engine = NativeEngine().isa
    lines = [
        "# Results",
        "",
        f"- Processor: {_processor()}, {os.cpu_count()} processors, {engine}",
        f"- Date: {datetime.datetime.now(datetime.timezone.utc).date().isoformat()}",
        f"- Commit: {_commit()}",
        f"- Load before the run: {_load()}",
        "- Command: `make bench`, or `python -m benchmarks.bench_results`",
        f"- Graphs outside the project, with random weights: the directory that `{VARIABLE}` names",
    ]
    print("\n".join(line for line in lines[2:6]))
    with tempfile.TemporaryDirectory() as folder:
        results = Results(Path(folder))
        for name in names or SECTIONS:
            title, rows = getattr(results, name)()
            print_table(title, HEADER, rows)
            sys.stdout.flush()
            lines += ["", f"## {title[0].upper()}{title[1:]}", "", "| " + " | ".join(HEADER) + " |", "|---|---:|---:|---:|---|"]
            lines += ["| " + " | ".join(row) + " |" for row in rows]
    if not names:
        kept = RESULTS.read_text(encoding="utf-8").partition(KEPT)[2] if RESULTS.is_file() else ""
        RESULTS.write_text("\n".join([*lines, "", KEPT]) + (kept or "\n"), encoding="utf-8")


def _compared(case: Case) -> Row:
    return _row(case.name, case.best["anynpu"], case.best["other"], case.goal)


def _row(name: str, own: float, other: float, goal: float, *, at_least: bool = False) -> Row:
    return name, f"{own:.2f}", f"{other:.2f}", f"{own / other:.2f}", verdict(own / other, goal, at_least=at_least)


def _missing(what: str) -> Row:
    name, _, why = what.partition(": ")
    return name, "-", "-", "-", why


def _random(network: Any, seed: int) -> Floats:
    shape = [dimension.dim_value for dimension in network.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = {
        key: [line.partition(":")[2].strip() for line in lines if line.startswith(key)] for key in ("model name", "cpu family")
    }
    if not found["model name"]:
        return platform.processor() or platform.machine()
    return found["model name"][0] + (f" (family {found['cpu family'][0]})" if found["cpu family"] else "")


def _load() -> str:
    """What ran on the machine in the minute before: times of a busy one state little about wall time."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


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
    main(sys.argv[1:])
