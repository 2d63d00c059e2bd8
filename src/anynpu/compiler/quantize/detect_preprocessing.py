"""Which preprocessing a network reacts to: the usual ones are tried on images with the float model.

A wrong mean, std or order of channels gives a network that sees nothing. Comparing the compiled model with the float one does not show
it, since both are fed alike. What does show it is the network's own answer: a detector finds objects in images and none in a gray area,
and a classifier names an image and its mirror image alike, and other images differently.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import AnynpuError, CalibrationError, PreprocessingWarning
from ...tasks import Classification, Detections, OutputReader, TextRegions, Thresholds, fit_picture, reader_for
from ..compile_options import Normalisation
from ..graph import Graph
from ..images import IMAGE_SUFFIXES, read_image
from ..importers.onnx_graph import Shapes, import_onnx
from ..importers.onnx_model import first_line, load_onnx
from .calibrate import FloatModel

MAX_PICTURES = 6
"""Images that are tried."""

MIN_REACTION = 0.3
"""A network that reacts less than this to everything states nothing."""

CLEAR = 0.75
"""What reacts by no more than this share of the strongest is worse; in between it cannot be determined."""

MAX_STRETCH = 2.5
"""Images whose proportions differ by more than this factor from the input's are not what the network was trained with."""

_STRONG = 10
"""Objects per image that count."""

_MACS = 24 << 30
"""Of all images that a network is tried on once."""

_THRESHOLDS = Thresholds(score=0.3, overlap=0.45, count=_STRONG)


@dataclass(frozen=True)
class PictureRecipe:
    """A preprocessing: (x - mean) / std per channel in the network's own order, which is ``rgb`` or ``bgr``."""

    name: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    order: str = "rgb"

    @property
    def flags(self) -> str:
        """The options of ``compile`` for it. Their mean and std are for images as they come, in RGB."""
        mean, std = (values[::-1] if self.order == "bgr" else values for values in (self.mean, self.std))
        parts = []
        if any(mean):
            parts.append(f"--mean {','.join(f'{value:g}' for value in mean)}")
        if set(std) != {1.0}:
            parts.append(f"--std {','.join(f'{value:g}' for value in std)}")
        if self.order == "bgr":
            parts.append("--channel-order bgr")
        return " ".join(parts) or "no --mean, no --std"

    @property
    def keywords(self) -> str:
        """The same as keywords of :func:`anynpu.compile`."""
        mean, std = (values[::-1] if self.order == "bgr" else values for values in (self.mean, self.std))
        parts = [
            f"{name}=({', '.join(f'{value:g}' for value in values)})"
            for name, values, usual in (("mean", mean, 0.0), ("std", std, 1.0))
            if set(values) != {usual}
        ]
        return ", ".join([*parts, *(["channel_order='bgr'"] if self.order == "bgr" else [])]) or "no mean, no std"

    def apply(self, picture: Array) -> Array:
        """An RGB image [H, W, 3] as the network takes it: float32 [1, 3, H, W]."""
        turned = picture[..., ::-1] if self.order == "bgr" else picture
        values = (turned.astype(np.float32) - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None], np.float32)


_SCALES = (
    ("0 to 255", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ("0 to 1", (0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
    ("ImageNet's mean and std", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    ("-1 to 1", (127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
    ("Caffe's mean", (103.94, 116.78, 123.68), (1.0, 1.0, 1.0)),
)

RECIPES = tuple(PictureRecipe(name, mean, std, order) for name, mean, std in _SCALES for order in ("rgb", "bgr"))
"""What networks are usually trained with."""


@dataclass(frozen=True)
class Reaction:
    """How strongly a network reacts to each quantization config.

    :ivar values: by quantization config that was tried, 0 for not at all
    :ivar best: the quantization config that it reacts to; None where it cannot be determined
    :ivar order_known: whether the order of channels could be determined
    """

    values: Mapping[PictureRecipe, float]
    best: PictureRecipe | None = None
    order_known: bool = False

    @property
    def words(self) -> str:
        """One line, with options of the command line; empty where it cannot be determined."""
        return self._sentence(keywords=False)

    def _sentence(self, *, keywords: bool) -> str:
        if self.best is None:
            return ""
        order = f" in {self.best.order.upper()}" if self.order_known else ", in an order of channels that cannot be determined"
        return f"the network reacts to {self.best.name}{order}: {self.best.keywords if keywords else self.best.flags}"

    def complaint(self, asked: PictureRecipe, *, keywords: bool = False) -> str:
        """What is wrong with a preprocessing that was asked for; empty if nothing is, or if it cannot be determined.

        :param keywords: name keywords of :func:`anynpu.compile`, not options of the command line
        """
        if self.best is None or asked not in self.values or self.values[asked] > CLEAR * self.values[self.best]:
            return ""
        if asked.name == self.best.name and not self.order_known:
            return ""
        return (
            f"{self._sentence(keywords=keywords)}. With the preprocessing that was asked for "
            f"({asked.keywords if keywords else asked.flags}) it reacts by {self.values[asked]:.2f} "
            f"instead of {self.values[self.best]:.2f}"
        )


def pictures_of(source: Any) -> list[Array]:
    """The first images of a folder or file, RGB in their own size; none where it holds something else."""
    if not isinstance(source, (str, Path)):
        return []
    path = Path(source)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()]
    return [read_image(file) for file in found[:MAX_PICTURES]]


def find_recipe(
    model: Any, pictures: Sequence[Array], *, shapes: Shapes | None = None, asked: PictureRecipe | None = None
) -> Reaction:
    """What *model* reacts to among :data:`RECIPES`, and *asked* beside them.

    It states nothing where the model does not take one image, where its outputs are not understood, and where no quantization
    config stands out.
    """
    proto = load_onnx(model)
    return _reaction(import_onnx(proto, shapes), _metadata(proto), pictures, asked)


def _metadata(proto: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def _reaction(
    graph: Graph, metadata: Mapping[str, str], pictures: Sequence[Array], asked: PictureRecipe | None, *, turned: bool = False
) -> Reaction:
    """As :func:`find_recipe`; *turned*: the graph takes the channels in reverse order."""
    reader = _reader(graph, metadata)
    if reader is None or len(pictures) < 2:
        return Reaction({})
    try:
        return _judged(_Trial(graph, reader, pictures, turned), asked)
    except AnynpuError:  # outputs that are not those of the head that their shapes suggest
        return Reaction({})


def check_preprocessing(graph: Graph, normalisation: Normalisation, proto: Any, images: Sequence[Array]) -> str:
    """Warn (:class:`anynpu.errors.PreprocessingWarning`) of a preprocessing or of images that do not fit the network.

    :param graph: as it is calibrated: simplified, with its channels turned where the caller asked for it
    :param images: the first calibration images, in their own size
    :returns: what is wrong with the preprocessing, in the words of the command line; empty if nothing is, or if it cannot be determined
    """
    if len(graph.inputs) != 1 or not images:
        return ""
    (name,) = graph.inputs
    _warn_of_proportions(name, graph.shapes[name], images)
    given = normalisation.preprocess.get(name)
    if graph.shapes[name][:2] != (1, 3) or (given is not None and given.picture):
        return ""
    order = "bgr" if normalisation.trained.get(name) == "bgr" else "rgb"
    mean, std = (given.mean, given.std) if given is not None else ((0.0,) * 3, (1.0,) * 3)
    asked = _recipe_of(mean, std, order)
    found = _reaction(graph, _metadata(proto), images[: _affordable(graph)], asked, turned=name in normalisation.reversed_inputs)
    complaint = found.complaint(asked)
    if complaint:
        _warn(PreprocessingWarning(found.complaint(asked, keywords=True), complaint))
    return complaint


def _recipe_of(mean: Sequence[float], std: Sequence[float], order: str) -> PictureRecipe:
    """A preprocessing in the order of the samples (RGB) as a quantization config: one of the usual ones, if it is near."""
    places = (2, 1, 0) if order == "bgr" else (0, 1, 2)
    first, second = ((values[places[0]], values[places[1]], values[places[2]]) for values in (mean, std))
    wanted = PictureRecipe("what was asked for", first, second, order)

    def near(known: Sequence[float], given: Sequence[float]) -> bool:
        return all(abs(a - b) <= 1.0 and (a > 2.0) == (b > 2.0) for a, b in zip(known, given, strict=True))

    usual = (recipe for recipe in RECIPES if recipe.order == order)
    return next((recipe for recipe in usual if near(recipe.mean, wanted.mean) and near(recipe.std, wanted.std)), wanted)


def _affordable(graph: Graph) -> int:
    """How many images a network is tried on: fewer where it is large, since it runs seven times and more on each."""
    macs = 0
    for node in graph.nodes:
        weights = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op == "Conv" and weights is not None:
            macs += int(np.prod(graph.shapes[node.outputs[0]])) * int(np.prod(weights.shape[1:]))
    return max(2, min(MAX_PICTURES, _MACS // max(macs, 1)))


def _warn_of_proportions(name: str, shape: tuple[int, ...], images: Sequence[Array]) -> None:
    ratio = float(np.median([image.shape[1] / image.shape[0] for image in images]))
    wanted = shape[3] / shape[2]
    if max(ratio / wanted, wanted / ratio) > MAX_STRETCH:
        text = (
            f"the calibration images are {ratio:.2g} times as wide as high, and input '{name}' is {wanted:.2g} times as wide as high: they "
            "are distorted. Calibrate with images of what the network is shown, such as crops of text lines for a network that reads lines"
        )
        _warn(PreprocessingWarning(text))


def _warn(warning: Warning) -> None:
    """Warn at the line of the program that compiles."""
    package, frame, level = __name__.partition(".")[0], sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


def _reader(graph: Graph, metadata: Mapping[str, str]) -> OutputReader | None:
    inputs = list(graph.inputs)
    if len(inputs) != 1 or len(graph.shapes[inputs[0]]) != 4 or graph.shapes[inputs[0]][:2] != (1, 3):
        return None
    height, width = graph.shapes[inputs[0]][2:]
    if any(node.custom for node in graph.nodes):
        return None
    try:
        return reader_for((height, width), [graph.shapes[name] for name in graph.outputs], metadata=metadata)
    except AnynpuError:
        return None


class _Trial:
    """A float model, and images in the size of its input."""

    def __init__(self, graph: Graph, reader: OutputReader, pictures: Sequence[Array], turned: bool) -> None:
        self._turned = turned
        self._input = next(iter(graph.inputs))
        self._outputs = list(graph.outputs)
        self._model = FloatModel(graph, self._outputs, {})
        self._reader = reader
        self._pictures = [fit_picture(picture, reader.size, reader.fit)[0] for picture in pictures]
        self._blank = np.full((*reader.size, 3), 114, np.uint8)

    def _read(self, picture: Array, recipe: PictureRecipe) -> Any:
        try:
            fed = recipe.apply(picture)
            values = self._model.run({self._input: np.ascontiguousarray(fed[:, ::-1]) if self._turned else fed})
        except Exception as error:  # onnxruntime's exception classes are private
            raise CalibrationError(f"the model failed on an image: {first_line(error)}", hint="check the model") from error
        outputs = [np.asarray(values[name]) for name in self._outputs]
        if not all(np.isfinite(output).all() for output in outputs):
            return None
        return self._reader.read(outputs, None, _THRESHOLDS)

    def reaction(self, recipe: PictureRecipe) -> float:
        """How strongly the network reacts to a quantization config."""
        results = [self._read(picture, recipe) for picture in self._pictures]
        if any(result is None for result in results):
            return 0.0
        if isinstance(results[0], Classification):
            mirrored = [self._read(np.ascontiguousarray(picture[:, ::-1]), recipe) for picture in self._pictures]
            return _agreement([_first(result) for result in results], [_first(result) for result in mirrored])
        blank = self._read(self._blank, recipe)
        strengths = [_strength(result) for result in results]
        return max(float(np.mean(strengths)) - _strength(blank), 0.0)


def _first(result: Any) -> int:
    return int(result.classes[0]) if isinstance(result, Classification) else -1


def _agreement(first: Sequence[int], second: Sequence[int]) -> float:
    """How often an image and its mirror image are named alike, less how often different images are: 0 for a network that is blind."""
    alike = float(np.mean([a == b for a, b in zip(first, second, strict=True)]))
    pairs = [a == b for index, a in enumerate(first) for b in first[index + 1 :]]
    return max(alike - float(np.mean(pairs)), 0.0)


def _strength(result: Any) -> float:
    if isinstance(result, (Detections, TextRegions)):
        return float(np.sort(result.scores)[::-1][:_STRONG].sum())
    return 0.0


def _judged(trial: _Trial, asked: PictureRecipe | None) -> Reaction:
    # one order for each scale, and the other only for the scale that stands out: a large network takes its time
    values = {recipe: trial.reaction(recipe) for recipe in RECIPES if recipe.order == "rgb"}
    if max(values.values()) < MIN_REACTION:  # what it looks for may be in one channel
        values |= {recipe: trial.reaction(recipe) for recipe in RECIPES if recipe.order == "bgr"}
    best = replace(max(values, key=lambda recipe: values[recipe]), order="rgb")
    turned = replace(best, order="bgr")
    if turned not in values:
        values[turned] = trial.reaction(turned)
    others = [value for recipe, value in values.items() if recipe.name != best.name]
    if asked is not None and asked not in values:
        values[asked] = trial.reaction(asked)
    strongest = max(values[best], values[turned])
    if strongest < MIN_REACTION or max(others) > CLEAR * strongest:
        return Reaction(values)
    known = min(values[best], values[turned]) <= CLEAR * strongest
    # RGB is what compile does without being notified
    return Reaction(values, turned if known and values[turned] > values[best] else best, known)
