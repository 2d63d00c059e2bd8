"""Models that onnxruntime has quantized, through compile and the native engine, beside onnxruntime's own evaluation of them, code by code.

The networks of PP-OCR, three with random weights and, where a folder with ``yolox_nano.onnx`` and ``photos/*.jpg`` is named as an
argument or in ANYNPU_BENCH_DETECTOR, a detector. Each is quantized by ``quantize_static`` in four ways and compiled without any data, for
both rules.

onnxruntime evaluates such a model in two ways: with its graph optimizations in integer kernels, where it has them, and without these every
operator in float32. *theirs* compares the two: it is what the order of float32 sums and values between two codes make of a network. *alone*
gives every layer the values that onnxruntime's integer network has there: what differs is its own. *whole* compares the codes of the
outputs of the whole network, with the integer kernels and with float32.
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
from .networks import mobilenet_v2, resnet18, yolov8n
from .photographs import letterboxed, photographed_page, photos

GOAL = 0.999
OPSET = 13
SAMPLES, TESTS = 4, 2
SCHEMES = ("asymmetric per tensor", "asymmetric per channel", "symmetric per tensor", "symmetric per channel")
Feeds = list[dict[str, np.ndarray]]
Values = Mapping[str, np.ndarray]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table, two rows for each network and scheme."""
    folder = next(iter(arguments), os.environ.get(VARIABLE, ""))
    rows = []
    for name, source, feeds in _networks(folder):
        for scheme in SCHEMES:
            with tempfile.TemporaryDirectory() as place:
                model = _quantised(source, feeds[TESTS:], scheme, Path(place))
            integers, floats = (_evaluated(model, feeds[:TESTS], integers=kind) for kind in (True, False))
            for rule in ("simulator", "chip"):
                found = _compared(model, feeds[:TESTS], rule, integers, floats)
                shares = [_shares(found[key]) for key in ("theirs", "alone", "whole", "whole, float32")]
                verdict = "ok" if _near(found["whole"]) >= GOAL else "below"
                rows.append([f"{name}, {scheme}", rule, *(text for pair in shares for text in pair), verdict])
                print(rows[-1], file=sys.stderr, flush=True)
    header = ["", "rule", "theirs: equal", "one step", "alone: equal", "one step", "whole: equal", "one step"]
    header += ["with float32: equal", "one step", f"whole >= {100 * GOAL:.1f} %"]
    print_table("QDQ models beside onnxruntime, shares of codes", header, rows)


def _networks(folder: str) -> Iterator[tuple[str, Any, Feeds]]:
    from anynpu.cli.demo.detection import MEAN, STD, find_detector
    from anynpu.cli.demo.pages import text_line

    def taken(picture: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
        values = (picture.astype(np.float32) - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None])

    count = SAMPLES + TESTS
    detector = find_detector()
    yield "PP-OCRv4 detection", detector, [{"x": taken(photographed_page(seed), MEAN, STD)} for seed in range(count)]
    lines = [{"x": taken(text_line(seed, seed % 2 == 1), (127.5,) * 3, (127.5,) * 3)} for seed in range(count)]
    yield "PP-OCR classifier", detector.parent / "ch_ppocr_mobile_v2.0_cls_infer.onnx", lines
    wide = [{"x": np.ascontiguousarray(np.concatenate([entry["x"], entry["x"]], axis=3)[..., :320])} for entry in lines[::2] * 2]
    yield "PP-OCRv4 recognition", detector.parent / "ch_PP-OCRv4_rec_infer.onnx", wide[:count]
    random = np.random.default_rng(5)
    noise = [{"images": random.normal(size=(1, 3, 96, 96)).astype(np.float32)} for _ in range(count)]
    for network in (mobilenet_v2, resnet18, yolov8n):
        yield f"{network.__name__}, random weights", network(96), noise
    if folder:
        pictures = [letterboxed(photo, SIZE) for photo in photos(Path(folder) / "photos")[:count]]
        feeds = [{"images": picture.transpose(2, 0, 1)[None].astype(np.float32)} for picture in pictures]
        yield "YOLOX-nano", Path(folder) / "yolox_nano.onnx", feeds


def _quantised(source: Any, feeds: Feeds, scheme: str, folder: Path) -> Any:
    import onnx
    from onnx import version_converter
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from anynpu.compiler.importers.onnx_model import load_onnx

    name, shape = next(iter((name, value.shape) for name, value in feeds[0].items()))
    proto = load_onnx(source, (), shapes={name: shape})
    if next(entry.version for entry in proto.opset_import if not entry.domain) < OPSET:
        proto = version_converter.convert_version(proto, OPSET)
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


def _compared(model: Any, feeds: Feeds, rule: str, integers: list[Values], floats: list[Values]) -> dict[str, list[np.ndarray]]:
    """Steps between both sides."""
    import anynpu
    from anynpu.analysis.compare.sides import CompiledSubject

    shapes = {name: value.shape for name, value in feeds[0].items()}
    compiled = anynpu.compile(model, "rk3588", shapes=shapes, arithmetic=rule)
    subject = CompiledSubject(compiled, "compiled", engine="native")
    subject.watch(subject.tensors)
    found: dict[str, list[np.ndarray]] = {"theirs": [], "alone": [], "whole": [], "whole, float32": []}
    for sample, theirs, real in zip(feeds, integers, floats, strict=True):
        ours = subject.run(sample)
        for unit in subject.units():
            made = subject.alone(unit, theirs)
            for tensor, spec in zip(unit.tensors, unit.specs, strict=True):
                if spec.quantization is None or tensor not in theirs:
                    continue
                scale = spec.quantization.scale
                if made is not None:
                    found["alone"].append(_steps(theirs[tensor], made.values[tensor], scale))
                if tensor in subject.outputs:
                    found["theirs"].append(_steps(theirs[tensor], real[tensor], scale))
                    found["whole"].append(_steps(theirs[tensor], ours[tensor], scale))
                    found["whole, float32"].append(_steps(real[tensor], ours[tensor], scale))
    return found


def _evaluated(model: Any, feeds: Feeds, *, integers: bool) -> list[Values]:
    """What onnxruntime gives for each tensor that is rounded to codes: its value after that, by its own name."""
    import onnx

    from anynpu._util.optional import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    constants = {entry.name: onnx.numpy_helper.to_array(entry) for entry in copy.graph.initializer}
    quantised = {node.output[0]: node for node in copy.graph.node if node.op_type == "QuantizeLinear"}
    readers: dict[str, list[str]] = {}
    for node in copy.graph.node:
        if node.op_type == "DequantizeLinear":
            readers.setdefault(node.input[0], []).append(node.output[0])
    # the codes themselves are asked for: what follows them stays as it is
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in quantised)
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    level = runtime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if integers else level.ORT_DISABLE_ALL
    options.add_session_config_entry("session.qdqisint8allowed", "1")  # else signed activations have no integer kernels on x86
    options.log_severity_level = 4
    session = runtime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Values] = []
    for sample in feeds:
        values: dict[str, np.ndarray] = {}
        for name, codes in zip(quantised, session.run(list(quantised), sample), strict=True):
            scale, zero = (constants[entry] for entry in quantised[name].input[1:3])
            value = (codes.astype(np.float32) - zero.astype(np.float32)) * scale
            values.update(dict.fromkeys([quantised[name].input[0], *readers.get(name, ())], value))
        results.append(values)
    return results


def _steps(wanted: np.ndarray, given: np.ndarray, scale: float) -> np.ndarray:
    difference: np.ndarray = np.abs(np.rint((np.asarray(given).reshape(wanted.shape) - wanted) / scale)).ravel()
    return difference


def _near(steps: Sequence[np.ndarray]) -> float:
    return float((np.concatenate(steps) <= 1).mean()) if steps else float("nan")


def _shares(steps: Sequence[np.ndarray]) -> list[str]:
    if not steps:
        return ["-"] * 2
    return [f"{100 * (np.concatenate(steps) == 0).mean():.3f} %", f"{100 * _near(steps):.4f} %"]


if __name__ == "__main__":
    main(sys.argv[1:])
