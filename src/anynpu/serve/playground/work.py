"""What one job of the playground computes: results of both sides, the distance between them, time, memory and what the CPU does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ... import chips
from ..._util.optional import cv2
from ..._util.progress import Progress, tell
from ..._util.types import Array
from ...analysis.compare.metrics import Difference, verdict_of
from ...analysis.profile import Profile, profile_program
from ...chips.timing import fps
from ...compiler import ModelOutline, compile
from ...compiler.graph import Graph
from ...compiler.images import read_image
from ...compiler.importers.onnx_graph import import_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...compiler.quantize.calibrate import FloatModel
from ...compiler.quantize.detect_preprocessing import RECIPES, PictureRecipe, find_recipe
from ...errors import AnynpuError, ImageError
from ...modelfile import read
from ...npu import Device
from ...program import Model
from ...tasks import COCO, Detections, OutputReader, PictureReader, labels_from_metadata, reader_for
from ...tasks.draw import draw
from .request import AUTO, DTYPES, MAX_PIXELS, SCALES, JobRequest

# The two sides that the playground sets beside each other: the float model, and the compiled one on the software NPU.


MAX_SHOWN = 1280
"""Longer side of an image that is shown."""

_MAX_ROWS = 50
_QUALITY = 88


@dataclass
class Side:
    """A network that is shown images, and what it saw.

    :ivar reader: None where the outputs are not those of a known head, or no image fits the input
    :ivar outputs: of the last image
    """

    name: str
    reader: PictureReader | None
    output_names: Sequence[str]
    labels: tuple[str, ...]
    outputs: Sequence[Array] = ()

    def look(self, picture: Array, folder: Path) -> dict[str, Any]:
        """Show it *picture*, write the image with the results on it, and state what was found, JSON-ready."""
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
    """Whether an input of this shape takes an image."""
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
        """The side that is shown images prepared by *recipe*."""
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


_ASSUMED = "0 to 1"
_FEW = 20
"""Images from which on calibration is not called little."""


def do_job(request: JobRequest, files: dict[str, Path], folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """All that the page shows, JSON-ready; images are written to *folder*.

    :param files: by the names that the request has for them; the model's is ``model``
    """
    tell(progress, "reading the images", 0, 1)
    pictures = [_picture(files[name], index) for index, name in enumerate(request.pictures)]
    if request.served:
        return _served(files["model"], pictures[0], folder, progress)
    tell(progress, "reading the model", 0, 1)
    side = FloatSide(files["model"], request.shape)
    if not pictures or not side.takes_picture:
        notes = [] if side.takes_picture else [_no_picture(side)]
        return {"notes": notes, **_outlined(files["model"], side, request)}
    return _dropped(request, files["model"], side, pictures, folder, progress)


def _picture(path: Path, index: int) -> Array:
    picture = read_image(path)
    if picture.shape[0] * picture.shape[1] > MAX_PIXELS:
        raise ImageError(f"image {index + 1} has more than {MAX_PIXELS // 10**6} million pixels", hint="make it smaller")
    return picture


def _no_picture(side: FloatSide) -> str:
    inputs = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in side.shapes.items())
    return f"The model does not take one image (its inputs: {inputs}), so only times and memory are shown."


def _outlined(path: Path, side: FloatSide, request: JobRequest) -> dict[str, Any]:
    """Time and memory alone, which need no data."""
    chip = chips.get(request.chip)
    program = ModelOutline(path, shapes=side.shapes).program(chip, dtype=request.dtype)
    return {"chip": chip.name, "dtype": DTYPES[request.dtype], **_figures(profile_program(program, chip))}


def _dropped(
    request: JobRequest, path: Path, float_side: FloatSide, pictures: Sequence[Array], folder: Path, progress: Progress | None
) -> dict[str, Any]:
    tell(progress, "looking for the preprocessing", 0, 1)
    recipe, words = _recipe(request, path, float_side, pictures)
    side = float_side.side(recipe)
    notes, shown = [words], {}
    tell(progress, "running the float model", 0, len(pictures))
    if side.reader is None:
        notes.append(
            "The outputs are not those of a network that is known here, so nothing is drawn; how far they are from float is shown below."
        )
        float_side.seen = [_planes(picture, float_side.input_shape) for picture in pictures]
        side.outputs = float_side.run(float_side.seen[0])
    else:
        for picture in reversed(pictures):  # the first image is the one that is shown
            shown["float"] = side.look(picture, folder)
    compiled = compile(
        path,
        request.chip,
        dtype=request.dtype,
        dataset=float_side.seen,
        shapes=float_side.shapes,
        accuracy=request.accuracy,
        progress=progress,
        **_options(recipe, float_side.input_shape[1]),
    )
    tell(progress, "running on the software NPU", 0, 1)
    with compiled_side(compiled, "compiled") as other:
        if other.reader is not None and side.reader is not None:
            shown["compiled"] = other.look(pictures[0], folder)
        else:
            other.outputs = _raw(compiled, float_side.seen[0])
    return {
        "chip": compiled.chip,
        "dtype": DTYPES[request.dtype],
        "task": "" if side.reader is None else side.reader.reader.words,
        "sides": shown,
        "notes": [*notes, *_calibration_notes(len(pictures), request)],
        "distance": _distances(side, other),
        "command": _command(request, recipe),
        **_figures(profile_program(compiled.programs[0], chips.get(compiled.chip))),
    }


def _served(path: Path, picture: Array, folder: Path, progress: Progress | None) -> dict[str, Any]:
    """A compiled model of the server, on the software NPU of its own chip."""
    tell(progress, "running on the software NPU", 0, 1)
    model = read(path)
    notes = ["A served model is compiled already: it runs on its own chip, and there is no float model to compare with."]
    shown: dict[str, Any] = {}
    with compiled_side(model, "compiled") as side:
        if side.reader is None:
            raise ImageError(
                "the model does not take an image, or its outputs are not known here", hint="use anynpu run --task raw"
            )
        shown["compiled"] = side.look(picture, folder)
        task = side.reader.reader.words
    profile = profile_program(model.programs[0], chips.get(model.chip))
    return {"chip": model.chip, "dtype": model.dtype, "task": task, "sides": shown, "notes": notes, **_figures(profile)}


def _recipe(request: JobRequest, path: Path, side: FloatSide, pictures: Sequence[Array]) -> tuple[PictureRecipe, str]:
    """The preprocessing, and where it comes from."""
    by_name = {(recipe.name, recipe.order): recipe for recipe in RECIPES}
    if request.scale != AUTO:
        chosen = by_name[request.scale, request.order]
        return chosen, f"Preprocessing as chosen: {SCALES[chosen.name]}, {chosen.order.upper()}."
    # one image states little; its mirror image is another one
    tried = list(pictures[:4]) if len(pictures) > 1 else [pictures[0], np.ascontiguousarray(pictures[0][:, ::-1])]
    found = find_recipe(path, tried, shapes=side.shapes)
    if found.best is not None:
        return found.best, f"Preprocessing found by trying: {found.words}."
    assumed = by_name[_ASSUMED, request.order]
    return assumed, (
        f"Which preprocessing the network was trained with could not be found from these images; {SCALES[_ASSUMED]} is assumed. "
        "If the results are nonsense, choose another."
    )


def _options(recipe: PictureRecipe, channels: int) -> dict[str, Any]:
    """Mean, std and order as the compiler takes them: for images as they come, in RGB."""
    mean, std = (values[::-1] if recipe.order == "bgr" else values for values in (recipe.mean, recipe.std))
    order = {"channel_order": "bgr"} if recipe.order == "bgr" and channels == 3 else {}
    return {"mean": list(mean[:channels]), "std": list(std[:channels]), **order}


def _planes(picture: Array, shape: Sequence[int]) -> Array:
    from ...tasks import fit_picture

    planes = fit_picture(picture, (shape[2], shape[3]))[0].transpose(2, 0, 1)[None]
    return np.ascontiguousarray(planes if shape[1] == 3 else planes.mean(axis=1, keepdims=True).astype(np.uint8))


def _raw(model: Model, planes: Array) -> list[Array]:
    from ...npu import Device

    with Device(model.chip) as device, device.load(model) as loaded, loaded.context() as context:
        return list(context.run({model.programs[0].input_specs[0].name: planes}))


def _distances(first: Side, second: Side) -> list[dict[str, Any]]:
    """Of each output of the first image."""
    known = dict(zip(first.output_names, first.outputs, strict=False))
    rows = []
    for name, value in zip(second.output_names, second.outputs, strict=False):
        if name not in known or known[name].size != value.size:
            continue
        difference = Difference()
        difference.add(known[name], value)
        figures = difference.figures()
        row = {"output": name, "shape": list(value.shape), "cosine": round(figures.cosine, 5)}
        row["verdict"] = verdict_of(figures.cosine)
        rows.append({**row, "snr_db": round(figures.snr, 1) if np.isfinite(figures.snr) else None})
    return rows


def _calibration_notes(count: int, request: JobRequest) -> list[str]:
    number = "1 image" if count == 1 else f"{count} images"
    if request.dtype == "fp16":
        return ["float16 needs no calibration; the images are only run."]
    little = "far too little" if count < 5 else "little" if count < _FEW else "a fair number"
    return [
        f"Calibrated on {number}, the one that is shown among them: {little} for a verdict on accuracy. "
        "Use 20 to 200 images from the place of use, and evaluate on others."
    ]


def _command(request: JobRequest, recipe: PictureRecipe) -> str:
    flags = "" if recipe.flags.startswith("no ") else f" {recipe.flags}"
    data = "" if request.dtype == "fp16" else " --dataset IMAGES/"
    kind = f" --dtype {request.dtype}" if request.dtype != "w8a8" else ""
    effort = " --accuracy fast" if request.accuracy == "fast" and request.dtype != "fp16" else ""
    return f"anynpu compile MODEL.onnx -o MODEL.out --target {request.chip}{kind}{data}{flags}{effort}"


def _figures(profile: Profile) -> dict[str, Any]:
    """Time, memory and layers."""
    prediction = profile.prediction
    low, high = prediction.range_us
    on_cpu = [layer for layer in profile.layers if not layer.on_npu]
    return {
        "latency_ms": round(profile.latency_us / 1000, 3),
        "range_ms": [round(low / 1000, 3), round(high / 1000, 3)],
        "fps": round(fps(prediction), 1),
        "cores": profile.chip.cores,
        "confidence": str(prediction.confidence),
        "memory": {"weights": prediction.weight_bytes, "internal": profile.internal_bytes, "all": prediction.memory_bytes},
        "cpu_share": round(prediction.cpu_share, 4),
        "advice": profile.advice(),
        "on_cpu": [
            {"name": layer.name, "operator": layer.kind, "reason": layer.reason, "time_us": round(layer.time_us, 2)}
            for layer in on_cpu
        ],
        "layers": [
            {
                "index": layer.index,
                "name": layer.name,
                "operator": layer.kind,
                "shape": list(layer.output_shape),
                "time_us": round(layer.time_us, 2),
                "bound": layer.bound.value if layer.on_npu else "cpu",
            }
            for layer in profile.layers
        ],
    }
