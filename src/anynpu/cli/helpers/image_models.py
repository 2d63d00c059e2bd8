"""A model that is shown images, compiled or in float: how they get in, what its outputs say, and how fast that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anynpu

from ... import chips
from ..._util.types import Array
from ...chips import timing
from ...errors import ShapeError
from ...program import Model
from ...session import InferenceSession
from ...tasks import COCO, PictureReader, labels_from_metadata, reader_for
from .preprocess import reversed_orders

__all__ = ["FloatPictureModel", "PictureModel", "predicted_fps"]


class PictureModel(PictureReader):
    """A model on the software NPU that takes pictures. Close it after use, or use it in a ``with`` block.

    :param task: what its outputs are; guessed where not given
    :param given: options of a session; with ``isolate`` the model runs in a process of its own
    :ivar assumes_coco: nobody named the classes, and there are as many as COCO has
    """

    def __init__(
        self,
        path: Path,
        *,
        target: str | None = None,
        shape_set: int = 0,
        task: str | None = None,
        head: str | None = None,
        labels: Sequence[str] = (),
        fit: str | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Model = anynpu.load(path)
        self.program = self.model.programs[shape_set]
        self.spec = self.program.input_specs[0]
        if (
            len(self.program.inputs) != 1
            or len(self.spec.shape) != 4
            or self.spec.shape[0] != 1
            or self.spec.shape[1] not in (1, 3)
        ):
            raise ShapeError(
                f"{path.name} does not take one picture: its inputs are "
                + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.program.input_specs),
                hint="give each input with --input NAME=FILE",
            )
        metadata = {} if self.model.metadata is None else dict(self.model.metadata.properties)
        self.labels = tuple(labels) or labels_from_metadata(metadata)
        size = (self.spec.shape[2], self.spec.shape[3])
        shapes = [spec.shape for spec in self.program.output_specs]
        reader = reader_for(size, shapes, task=task, head=head, labels=self.labels, metadata=metadata)
        preprocess = self.model.preprocess.get(self.spec.name)
        order = "rgb" if preprocess is None else preprocess.picture or "rgb"
        self.assumes_coco = not self.labels and reader.task in ("detect", "segment") and reader.classes == len(COCO)
        if self.assumes_coco:
            self.labels = COCO
        super().__init__(
            reader, lambda planes: self._run({self.spec.name: planes}), channels=self.spec.shape[1], order=order, fit=fit
        )
        self.chip = target or self.model.chip
        self._cleanup = contextlib.ExitStack()
        self._run = self._opened(path, shape_set, given or {})

    def _opened(self, path: Path, shape_set: int, given: Mapping[str, Any]) -> Callable[[dict[str, Array]], Sequence[Array]]:
        with contextlib.ExitStack() as stack:
            if given.get("isolate"):
                session = stack.enter_context(InferenceSession(path, provider_options=dict(given), device=f"sim:{self.chip}"))
                run: Callable[[dict[str, Array]], Sequence[Array]] = lambda arrays: session.run(None, arrays)  # noqa: E731
            else:
                device = stack.enter_context(anynpu.Device(self.chip))
                loaded = stack.enter_context(device.load(self.model))
                run = stack.enter_context(loaded.context(shapes=shape_set)).run
            self._cleanup = stack.pop_all()
        return run

    def __enter__(self) -> PictureModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()


class FloatPictureModel(PictureReader):
    """An ONNX model that takes images, in float32 on this machine.

    :param like: a compiled model whose mean, std and channel order are used; without it, usual ones are tried on *first*
    :param first: an image
    :ivar preprocessing: how the images are prepared, in words
    """

    def __init__(
        self,
        path: Path,
        *,
        like: PictureModel | None = None,
        first: Array | None = None,
        task: str | None = None,
        head: str | None = None,
        labels: Sequence[str] = (),
        fit: str | None = None,
    ) -> None:
        from ...compiler.importers.onnx_graph import import_onnx
        from ...compiler.importers.onnx_model import load_onnx
        from ...compiler.quantize.calibrate import FloatModel

        proto = load_onnx(path)
        given = None if like is None else {like.spec.name: like.spec.shape}
        graph = import_onnx(proto, given)
        shapes = {name: graph.shapes[name] for name in graph.inputs}
        name, shape = next(iter(shapes.items()), ("", ()))
        if len(shapes) != 1 or len(shape) != 4 or shape[0] != 1 or shape[1] not in (1, 3):
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ShapeError(
                f"{path.name} does not take one image: its inputs are {listed}",
                hint="compile it, and give the file that compile writes with --input NAME=FILE",
            )
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self.labels = tuple(labels) or labels_from_metadata(metadata)
        outputs = list(graph.outputs)
        reader = reader_for(
            (shape[2], shape[3]),
            [graph.shapes[output] for output in outputs],
            task=task,
            head=head,
            labels=self.labels,
            metadata=metadata,
        )
        self.assumes_coco = not self.labels and reader.task in ("detect", "segment") and reader.classes == len(COCO)
        if self.assumes_coco:
            self.labels = COCO
        self.chip = "float32"
        (mean, std, is_bgr), self.preprocessing = _as_compiled(like) if like is not None else _tried(path, first, shapes)
        model = FloatModel(graph, outputs, {})

        def run(planes: Array) -> Sequence[Array]:
            count = planes.shape[1]
            values = (planes.astype(np.float32) - mean[:count, None, None]) / std[:count, None, None]
            made = model.run({name: np.ascontiguousarray(values[:, ::-1] if is_bgr else values)})
            return [np.asarray(made[output]) for output in outputs]

        super().__init__(reader, run, channels=shape[1], fit=fit)


_Preparation = tuple[Array, Array, bool]
"""Mean and std of RGB channels, and whether the network takes BGR."""


def _as_compiled(model: PictureModel) -> tuple[_Preparation, str]:
    preprocess = model.model.preprocess.get(model.spec.name)
    mean, std = ((0.0,), (1.0,)) if preprocess is None else (preprocess.mean, preprocess.std)
    order = list(reversed_orders(model.model).values())
    prepared = _three(mean), _three(std), "bgr" in order
    return prepared, "images are prepared as for the compiled model"


def _tried(path: Path, first: Array | None, shapes: Mapping[str, tuple[int, ...]]) -> tuple[_Preparation, str]:
    from ...compiler.quantize.detect_preprocessing import find_recipe

    # one image says little; its mirror image is another one
    images = [] if first is None else [first, np.ascontiguousarray(first[:, ::-1])]
    found = find_recipe(path, images, shapes=dict(shapes))
    if found.best is None:
        words = "which preprocessing it was trained with cannot be told from this image; values from 0 to 1 are assumed"
        return (_three((0.0,)), _three((255.0,)), False), words
    is_bgr = found.best.order == "bgr"
    mean, std = (values[::-1] if is_bgr else values for values in (found.best.mean, found.best.std))
    return (_three(mean), _three(std), is_bgr), f"preprocessing found by trying: {found.words}"


def _three(values: Sequence[float]) -> Array:
    return np.resize(np.asarray(values, np.float32), 3)


def predicted_fps(model: Model, shape_set: int, chip: str) -> tuple[float, str]:
    """Pictures per second that all cores of a chip are predicted to reach, and the confidence in it."""
    prediction = timing.predict(model.programs[shape_set], chips.get(chip))
    return timing.fps(prediction), str(prediction.confidence)
