"""A compiled model that is shown pictures: how they get in, what its outputs say, and how fast that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anynpu

from ... import chips
from ..._util.types import Array
from ...chips import timing
from ...errors import ShapeError
from ...program import Model
from ...session import InferenceSession
from ...tasks import COCO, PictureReader, labels_from_metadata, reader_for

__all__ = ["PictureModel", "predicted_fps"]


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


def predicted_fps(model: Model, shape_set: int, chip: str) -> tuple[float, str]:
    """Pictures per second that all cores of a chip are predicted to reach, and the confidence in it."""
    prediction = timing.predict(model.programs[shape_set], chips.get(chip))
    return timing.fps(prediction), str(prediction.confidence)
