"""The two sides that the playground sets beside each other: the float model, and the compiled one on the software NPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.optional import cv2
from ..._util.types import Array
from ...compiler.graph import Graph
from ...compiler.importers.onnx_graph import import_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...compiler.quantize.calibrate import FloatModel
from ...compiler.quantize.detect_preprocessing import PictureRecipe
from ...errors import AnynpuError
from ...npu import Device
from ...program import Model
from ...tasks import COCO, Detections, OutputReader, PictureReader, labels_from_metadata, reader_for
from ...tasks.draw import draw

__all__ = ["FloatSide", "Side", "compiled_side"]

MAX_SHOWN = 1280
"""Longer side of a picture that is shown."""

_MAX_ROWS = 50
_QUALITY = 88


@dataclass
class Side:
    """A network that is shown pictures, and what it saw.

    :ivar reader: None where the outputs are not those of a known head, or no picture fits the input
    :ivar outputs: of the last picture
    """

    name: str
    reader: PictureReader | None
    output_names: Sequence[str]
    labels: tuple[str, ...]
    outputs: Sequence[Array] = ()

    def look(self, picture: Array, folder: Path) -> dict[str, Any]:
        """Show it *picture*, write the picture with the results on it, and say what was found, JSON-ready."""
        assert self.reader is not None
        result = self.reader.result(picture)
        file = folder / f"{self.name}.jpg"
        _write(file, draw(picture, result, self.labels))
        rows = list(result.rows(self.labels))
        return {
            "picture": file.name,
            "count": len(rows) if isinstance(result, Detections) else len(result),
            "rows": [_short(row) for row in rows[:_MAX_ROWS]],
            "seconds": round(self.reader.spent.running, 4),
        }


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what no table shows."""
    return {key: value for key, value in row.items() if key not in ("keypoints", "corners")}


def _write(file: Path, picture: Array) -> None:
    library = cv2()
    share = MAX_SHOWN / max(picture.shape[:2])
    if share < 1:
        size = max(round(picture.shape[1] * share), 1), max(round(picture.shape[0] * share), 1)
        picture = library.resize(picture, size, interpolation=library.INTER_AREA)
    written, encoded = library.imencode(
        ".jpg", library.cvtColor(picture, library.COLOR_RGB2BGR), [library.IMWRITE_JPEG_QUALITY, _QUALITY]
    )
    assert written
    file.write_bytes(encoded.tobytes())


def _reader(size: tuple[int, int], shapes: Sequence[Sequence[int]], labels: Sequence[str], metadata: Mapping[str, str]) -> Any:
    try:
        return reader_for(size, shapes, labels=labels, metadata=metadata)
    except AnynpuError:
        return None


def _labels(reader: OutputReader | None, metadata: Mapping[str, str]) -> tuple[str, ...]:
    """From the model; COCO's where it has none and 80 classes."""
    own = labels_from_metadata(metadata)
    return own or (COCO if reader is not None and reader.classes == len(COCO) else ())


def takes_picture(shape: Sequence[int]) -> bool:
    """Whether an input of this shape takes a picture."""
    return len(shape) == 4 and shape[0] == 1 and shape[1] in (1, 3)


class FloatSide:
    """An ONNX model as it is, in float32.

    :ivar seen: what it was shown so far: uint8 [1, C, H, W], RGB
    """

    def __init__(self, path: Path, shape: Sequence[int]) -> None:
        proto = load_onnx(path)
        names = _open_inputs(proto)
        shapes = {names[0]: tuple(shape)} if shape and names else {}
        self.graph: Graph = import_onnx(proto, shapes)
        self.shapes = {name: self.graph.shapes[name] for name in self.graph.inputs}
        self.metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self.input, self.input_shape = next(iter(self.shapes.items()))
        self.takes_picture = len(self.shapes) == 1 and takes_picture(self.input_shape)
        self.seen: list[Array] = []
        self.recipe: PictureRecipe | None = None
        self._model: FloatModel | None = None
        self._outputs = list(self.graph.outputs)

    def reader(self) -> OutputReader | None:
        """What reads its outputs."""
        if not self.takes_picture:
            return None
        shapes = [self.graph.shapes[name] for name in self._outputs]
        found: OutputReader | None = _reader(
            (self.input_shape[2], self.input_shape[3]), shapes, labels_from_metadata(self.metadata), self.metadata
        )
        return found

    def side(self, recipe: PictureRecipe) -> Side:
        """The side that is shown pictures prepared by *recipe*."""
        self.recipe = recipe
        reader = self.reader()
        side = Side("float", None, self._outputs, _labels(reader, self.metadata))
        if reader is not None:

            def run(planes: Array) -> Sequence[Array]:
                self.seen.append(planes)
                side.outputs = self.run(planes)
                return side.outputs

            side.reader = PictureReader(reader, run, channels=self.input_shape[1])
        return side

    def run(self, planes: Array) -> list[Array]:
        """The outputs for raw pixels."""
        assert self.recipe is not None
        if self._model is None:
            self._model = FloatModel(self.graph, self._outputs, {})
        mean, std = (np.array(values, np.float32)[: planes.shape[1]] for values in (self.recipe.mean, self.recipe.std))
        turned = planes[:, ::-1] if self.recipe.order == "bgr" else planes
        values = (turned.astype(np.float32) - mean[None, :, None, None]) / std[None, :, None, None]
        made = self._model.run({self.input: np.ascontiguousarray(values, np.float32)})
        return [np.asarray(made[name]) for name in self._outputs]


def _open_inputs(proto: Any) -> list[str]:
    constants = {entry.name for entry in proto.graph.initializer}
    return [entry.name for entry in proto.graph.input if entry.name not in constants]


@contextlib.contextmanager
def compiled_side(model: Model, name: str) -> Iterator[Side]:
    """A compiled model on the software NPU of its own chip."""
    program = model.programs[0]
    spec = program.input_specs[0]
    metadata = {} if model.metadata is None else dict(model.metadata.properties)
    shapes = [entry.shape for entry in program.output_specs]
    reader = None
    if len(program.inputs) == 1 and takes_picture(spec.shape):
        reader = _reader((spec.shape[2], spec.shape[3]), shapes, labels_from_metadata(metadata), metadata)
    with Device(model.chip) as device, device.load(model) as loaded, loaded.context() as context:
        side = Side(name, None, [entry.name for entry in program.output_specs], _labels(reader, metadata))
        if reader is not None:
            preprocess = model.preprocess.get(spec.name)
            order = "rgb" if preprocess is None else preprocess.picture or "rgb"

            def run(planes: Array) -> Sequence[Array]:
                side.outputs = context.run({spec.name: planes})
                return side.outputs

            side.reader = PictureReader(reader, run, channels=spec.shape[1], order=order)
        yield side
