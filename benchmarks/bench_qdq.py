"""Models that onnxruntime has quantised, through compile and the native engine, beside onnxruntime's own evaluation of them, code by code.

Text detection, the classifier of directions and, where a folder with ``yolox_nano.onnx`` and ``photos/*.jpg`` is named as an argument or in
ANYNPU_BENCH_DETECTOR, a detector. Each is quantised by ``quantize_static`` in four ways and compiled without any data. *Alone* gives every
layer the values that onnxruntime's network has there: what differs is its own. *Whole* compares the codes of the outputs of the whole
network, where differences of single steps have grown from layer to layer. Both sides compute the same network: the QuantizeLinear and
DequantizeLinear nodes, every operator between them in float32.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import print_table
from .bench_accuracy import SIZE, VARIABLE
from .photographs import letterboxed, photographed_page, photos

GOAL = 0.999
SAMPLES, TESTS = 4, 2
SCHEMES = ("asymmetric per tensor", "asymmetric per channel", "symmetric per tensor", "symmetric per channel")
Feeds = list[dict[str, np.ndarray]]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, a row for each network and scheme."""
    folder = next(iter(arguments), os.environ.get(VARIABLE, ""))
    rows = []
    for name, source, feeds in _networks(folder):
        for scheme in SCHEMES:
            with tempfile.TemporaryDirectory() as place:
                model = _quantised(source, feeds[TESTS:], scheme, Path(place))
            alone, whole, layers = _compared(model, feeds[:TESTS])
            rows.append([f"{name}, {scheme}", str(layers), *_shares(alone, GOAL), *_shares(whole)])
            print(rows[-1], file=sys.stderr)
    header = ["", "layers", "alone: equal", "one step", "most", "worst layer", "whole: equal", "one step", "most", "worst"]
    print_table("QDQ models beside onnxruntime, shares of codes", header, rows)


def _networks(folder: str) -> Iterator[tuple[str, Path, Feeds]]:
    from anynpu.demo.detection import MEAN, STD, find_detector
    from anynpu.demo.pages import text_line

    def taken(picture: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
        values = (picture.astype(np.float32) - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None])

    count = SAMPLES + TESTS
    detector = find_detector()
    yield "PP-OCRv4 detection", detector, [{"x": taken(photographed_page(seed), MEAN, STD)} for seed in range(count)]
    lines = [{"x": taken(text_line(seed, seed % 2 == 1), (127.5,) * 3, (127.5,) * 3)} for seed in range(count)]
    yield "PP-OCR classifier", detector.parent / "ch_ppocr_mobile_v2.0_cls_infer.onnx", lines
    if folder:
        pictures = [letterboxed(photo, SIZE) for photo in photos(Path(folder) / "photos")[:count]]
        feeds = [{"images": picture.transpose(2, 0, 1)[None].astype(np.float32)} for picture in pictures]
        yield "YOLOX-nano", Path(folder) / "yolox_nano.onnx", feeds


def _quantised(source: Path, feeds: Feeds, scheme: str, folder: Path) -> Any:
    import onnx
    from onnx import version_converter
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from anynpu.compiler.onnx_model import load_onnx

    name, shape = next(iter((name, value.shape) for name, value in feeds[0].items()))
    proto = version_converter.convert_version(load_onnx(source, (), shapes={name: shape}), 13)
    onnx.save(proto, folder / "source.onnx")
    quant_pre_process(folder / "source.onnx", folder / "float.onnx", skip_symbolic_shape=True)
    symmetric, per_channel = scheme.startswith("symmetric"), scheme.endswith("channel")
    signed, unsigned = quantization.QuantType.QInt8, quantization.QuantType.QUInt8
    left = iter(feeds)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(left, None)

    quantization.quantize_static(
        folder / "float.onnx",
        folder / "qdq.onnx",
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=signed if symmetric else unsigned,
        weight_type=signed if symmetric or per_channel else unsigned,
        per_channel=per_channel,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True} if symmetric else {},
    )
    return onnx.load(folder / "qdq.onnx")


def _compared(model: Any, feeds: Feeds) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Steps between both sides, layer by layer alone and for the outputs of the whole network; and how many layers were seen."""
    import anynpu
    from anynpu.comparison.compiled import CompiledSubject

    shapes = {name: value.shape for name, value in feeds[0].items()}
    subject = CompiledSubject(anynpu.compile(model, "rk3588", shapes=shapes), "compiled", engine="native")
    subject.watch(subject.tensors)
    alone: dict[str, list[np.ndarray]] = {}
    whole: dict[str, list[np.ndarray]] = {}
    for sample, theirs in zip(feeds, _evaluated(model, feeds), strict=True):
        ours = subject.run(sample)
        for unit in subject.units():
            made = subject.alone(unit, theirs)
            for tensor, spec in zip(unit.tensors, unit.specs, strict=True):
                if spec.quantization is None or tensor not in theirs:
                    continue
                scale = spec.quantization.scale
                if made is not None:
                    alone.setdefault(tensor, []).append(_steps(theirs[tensor], made.values[tensor], scale))
                if tensor in subject.outputs:
                    whole.setdefault(tensor, []).append(_steps(theirs[tensor], ours[tensor], scale))
    joined = [[np.concatenate(parts) for parts in side.values()] for side in (alone, whole)]
    return joined[0], joined[1], len(alone)


def _evaluated(model: Any, feeds: Feeds) -> list[Mapping[str, np.ndarray]]:
    """What onnxruntime gives for each tensor that is rounded to codes: its value after that, by its own name."""
    import onnx

    from anynpu._optional import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    quantised = {node.output[0]: node.input[0] for node in copy.graph.node if node.op_type == "QuantizeLinear"}
    found = {
        node.output[0]: quantised[node.input[0]]
        for node in copy.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in quantised
    }
    outputs = {value.name for value in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in found if name not in outputs)
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = runtime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = []
    for sample in feeds:
        values = dict(zip(found, session.run(list(found), sample), strict=True))
        results.append({**{found[name]: value for name, value in values.items()}, **values})
    return results


def _steps(wanted: np.ndarray, given: np.ndarray, scale: float) -> np.ndarray:
    difference: np.ndarray = np.abs(np.rint((np.asarray(given).reshape(wanted.shape) - wanted) / scale)).ravel()
    return difference


def _shares(steps: Sequence[np.ndarray], goal: float = 0.0) -> list[str]:
    if not steps:
        return ["-"] * 4
    together = np.concatenate(steps)
    near = float((together <= 1).mean())
    worst = min(float((part <= 1).mean()) for part in steps)
    verdict = f" {'ok' if near >= goal else 'MISSED'}" if goal else ""
    return [
        f"{100 * (together == 0).mean():.3f} %",
        f"{100 * near:.4f} %{verdict}",
        f"{together.max():.0f}",
        f"{100 * worst:.3f} %",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
