"""The files that the examples of the documentation name: small networks, compiled ones, and images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._util import optional as _optional
from ..._util.output_files import write_output
from ..._util.types import Floats
from ...compiler import compile
from ...errors import OutputFileError

PICTURES = 12
_SEED = 11
_PRODUCER = "anynpu samples"


def write_samples(folder: str | Path, *, pictures: int = PICTURES) -> list[Path]:
    """Write the files, and give their paths.

    ``detector.onnx`` finds colorful boxes in the images, ``yolo.onnx`` takes ``images`` of 640 x 640 and gives ``boxes``, ``det.onnx``
    takes ``x`` of 480 x 480 and gives ``heat``, ``tiny.onnx`` takes four numbers. The weights of the last three are random: what they find
    means nothing. All are compiled for RK3588 as well, and ``street/`` has images to calibrate with.
    """
    place = Path(folder)
    street = place / "street"
    _check_place(place)
    street.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(_SEED)
    made = [_write_picture(street / f"{number:03d}.jpg", rng) for number in range(1, pictures + 1)]
    tiny = place / "tiny.onnx"
    pyramids = {
        place / "yolo.onnx": (place / "yolo.rknn", _pyramid("images", "boxes", 640, 5, rng)),
        place / "det.onnx": (place / "det.rknn", _pyramid("x", "heat", 480, 3, rng)),
        place / "detector.onnx": (place / "detector.rknn", _detector()),
    }
    for path, (compiled, proto) in pyramids.items():
        write_output(path, proto.SerializeToString())
        made += [path, compile(path, "rk3588", dataset=street, std=(255, 255, 255)).save(compiled)]
    write_output(tiny, _product(rng).SerializeToString())
    made += [tiny, compile(tiny, "rk3588", dtype="fp16").save(place / "tiny.rknn")]
    return made


def write_detector(folder: Path, pictures: int) -> tuple[Path, list[Path]]:
    """Write the detector of :func:`write_samples` and images for it, without compiling; gives their paths."""
    rng = np.random.default_rng(_SEED)
    images = [_write_picture(folder / f"{number:03d}.jpg", rng) for number in range(1, pictures + 1)]
    return write_output(folder / "detector.onnx", _detector().SerializeToString()), images


def _check_place(place: Path) -> None:
    """Reject a folder that holds models of these names from elsewhere."""
    for name in ("detector", "yolo", "det", "tiny"):
        path = place / f"{name}.onnx"
        if path.exists() and (not path.is_file() or _PRODUCER.encode() not in path.read_bytes()):
            raise OutputFileError(f"{path} exists and is not a sample; it would be overwritten", hint="name another folder")


def _write_picture(path: Path, rng: np.random.Generator) -> Path:
    """A street as a child would paint it: sky, road, and some boxes."""
    cv2 = _optional.cv2()
    picture = np.empty((96, 128, 3), np.uint8)
    picture[:48], picture[48:] = (210, 170, 120), (90, 90, 90)
    for _ in range(6):
        left, top = int(rng.integers(0, 100)), int(rng.integers(24, 72))
        color = [int(value) for value in rng.integers(0, 256, 3)]
        cv2.rectangle(picture, (left, top), (left + int(rng.integers(8, 28)), top + int(rng.integers(8, 24))), color, -1)
    picture = np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
    return write_output(path, cv2.imencode(".jpg", picture)[1].tobytes())


def _pyramid(source: str, result: str, size: int, halvings: int, rng: np.random.Generator) -> Any:
    """Convolutions that halve the image, each with a ReLU."""
    helper = _optional.onnx().helper
    nodes, constants = [], {}
    name, channels = source, 3
    for level in range(halvings):
        last = level == halvings - 1
        wider = 6 if last else 8
        constants[f"weights{level}"] = rng.normal(0, (2 / (9 * channels)) ** 0.5, (wider, channels, 3, 3))
        features, positive = f"features{level}", result if last else f"positive{level}"
        nodes += [
            helper.make_node("Conv", [name, f"weights{level}"], [features], f"conv{level}", strides=[2, 2], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [features], [positive], f"relu{level}"),
        ]
        name, channels = positive, wider
    side = size >> halvings
    return _model(nodes, constants, (source, (1, 3, size, size)), (result, (1, channels, side, side)))


_DETECTOR_SIDE = 320
_DETECTOR_STRIDE = 16
_COLORFUL = 0.45
"""Difference of two channels, from 0 to 1, from which on a pixel counts; the sky has less."""


def _detector() -> Any:
    """A detector with weights made by hand, and a head of distances by grid: the mean color of a cell is its score."""
    helper = _optional.onnx().helper
    pairs = [(first, second) for first in range(3) for second in range(3) if first != second]
    colors = np.zeros((6, 3, 1, 1))
    for index, (first, second) in enumerate(pairs):
        colors[index, first], colors[index, second] = 1, -1
    constants: dict[str, Floats] = {"colors": colors, "least": np.full(6, -_COLORFUL)}
    nodes = [
        helper.make_node("Conv", ["images", "colors", "least"], ["differences"], "differences"),
        helper.make_node("Relu", ["differences"], ["colorful"], "colorful"),
    ]
    outputs = []
    for stride in (8, 16, 32):
        extent, shape = _DETECTOR_SIDE // stride, {"kernel_shape": [stride, stride], "strides": [stride, stride]}
        gain = (4 if stride == _DETECTOR_STRIDE else 0.1) / stride**2
        constants[f"mean{stride}"] = np.full((1, 6, stride, stride), gain)
        constants[f"wider{stride}"] = np.full((4, 6, stride, stride), 0.2 / stride**2)
        constants[f"distance{stride}"] = np.full(4, 1.5)
        nodes += [
            helper.make_node("Conv", ["colorful", f"mean{stride}"], [f"sums{stride}"], f"sums{stride}", **shape),
            helper.make_node("Clip", [f"sums{stride}", "zero", "one"], [f"scores{stride}"], f"scores{stride}"),
            helper.make_node(
                "Conv", ["colorful", f"wider{stride}", f"distance{stride}"], [f"boxes{stride}"], f"boxes{stride}", **shape
            ),
        ]
        outputs += [(f"boxes{stride}", (1, 4, extent, extent)), (f"scores{stride}", (1, 1, extent, extent))]
    constants |= {"zero": np.zeros(()), "one": np.ones(())}
    model = _model(nodes, constants, ("images", (1, 3, _DETECTOR_SIDE, _DETECTOR_SIDE)), *outputs)
    helper.set_model_props(model, {"names": "{0: 'box'}"})
    return model


def _product(rng: np.random.Generator) -> Any:
    node = _optional.onnx().helper.make_node("MatMul", ["x", "matrix"], ["y"], "product")
    return _model([node], {"matrix": rng.normal(size=(4, 3))}, ("x", (1, 4)), ("y", (1, 3)))


def _model(
    nodes: Sequence[Any],
    constants: dict[str, Floats],
    source: tuple[str, tuple[int, ...]],
    *results: tuple[str, tuple[int, ...]],
) -> Any:
    onnx = _optional.onnx()
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()]
    ports = [helper.make_tensor_value_info(name, float32, shape) for name, shape in (source, *results)]
    graph = helper.make_graph(nodes, results[0][0], ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name=_PRODUCER)
