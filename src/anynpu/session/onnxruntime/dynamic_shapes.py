"""A model with dynamic shapes: the ONNX model is compiled for each set of input shapes when it first comes.

An NPU needs fixed shapes. The backend here begins with none; a feed of new shapes adds one (:meth:`OpenShapes.grow`), in the thread of the
caller. A device worker opens the compiled models that it meets and keeps the last few.

Who owns what: a device worker owns the backends that it opened, and one thread at a time uses it. The list of compiled files belongs to the
backend; ``_lock`` protects it, and is held while a model is compiled, so that nothing is compiled twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ... import chips
from ..._util.types import Array
from ...errors import FeedShapeError, SessionError
from ...tensor import DType, TensorSpec
from ...vendors import registry
from .. import Backend, Bound, Feed, Lane, Marks, Memory, SessionOptions
from ..devices import with_tail
from .ports import OnnxPort
from .source import OnnxSource
from .values import ELEMENT_TYPES

__all__ = ["OpenShapes"]

Shapes = tuple[tuple[int, ...], ...]

MAX_OPEN = 8
"""Compiled models that a device worker keeps open."""

_TYPES = {number: kind for kind, number in ELEMENT_TYPES.items()}


class OpenShapes:
    """The backend of a session for an ONNX model with dynamic shapes; also the factory that a session asks for it."""

    lanes_on_demand = True

    def __init__(self, source: OnnxSource) -> None:
        chip = chips.get(source.chip)
        vendor = registry.of_chip(chip)
        self.source = source
        self.chip = chip.name
        self.cores = chip.cores
        self.core_masks = chip.core_masks
        self.provider = vendor.providers[0]
        self.description = f"software NPU, {chip.name}, {chip.cores} core{'' if chip.cores == 1 else 's'}"
        self.inputs = tuple(map(_spec, source.inputs))
        self.outputs = tuple(map(_spec, source.outputs))
        self.native_inputs, self.native_outputs = self.inputs, self.outputs
        self.shape_sets: tuple[Shapes, ...] = ()
        self.metadata: Mapping[str, str] = source.entries
        self._vendor = vendor
        self._options = SessionOptions()
        self._lock = threading.Lock()
        self._files: list[Path] = []

    def open_backend(self, model: str | PathLike[str] | bytes, options: SessionOptions, weights_from: Backend | None) -> Backend:
        """Itself: what a session asks a device for."""
        if weights_from is not None:
            raise SessionError("weights cannot be shared with a model of dynamic shapes", hint="leave use_weight_from out")
        self._options = options
        return self

    def grow(self, number: int, shapes: Shapes) -> None:
        """Compile the model for *shapes*, which become set *number*."""
        for port, shape in zip(self.source.inputs, shapes, strict=True):
            fits = len(port.shape) == len(shape) and all(
                not isinstance(extent, int) or extent == given for extent, given in zip(port.shape, shape, strict=True)
            )
            if not fits:
                raise FeedShapeError(
                    f"Input '{port.name}' shape mismatch: it takes {list(port.shape)}, got {list(shape)}",
                    hint="axes with a name may have any size",
                )
        with self._lock:
            if number == len(self._files):
                names = (port.name for port in self.source.inputs)
                self._files.append(self.source.compiled(dict(zip(names, shapes, strict=True))))

    def open_file(self, number: int, mask: int) -> tuple[Backend, Lane]:
        """The compiled model of set *number*, opened, and a device worker on it."""
        with self._lock:
            path = self._files[number]
        backend: Backend = with_tail(self._vendor.open_backend(path, self._options, f"sim:{self.chip}", None), path)
        try:
            return backend, backend.open_lane(mask)
        except BaseException:
            backend.close()
            raise

    def open_lane(self, mask: int) -> _OpenLane:
        """A device worker without any model yet."""
        return _OpenLane(self, mask)

    def allocate(self, nbytes: int) -> Memory:
        """Rejected: bindings of dynamic shapes are in the memory of this process."""
        raise SessionError("a model with dynamic shapes has no device memory of its own", hint="use device_type='cpu'")

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> Memory:
        """Rejected, as :meth:`allocate`."""
        raise SessionError("a model with dynamic shapes has no device memory of its own", hint="use device_type='cpu'")

    def close(self) -> None:
        """Nothing is left: device workers close what they opened."""


class _OpenLane:
    """Runs each feed on the compiled model of its shapes."""

    def __init__(self, owner: OpenShapes, mask: int) -> None:
        self._owner = owner
        self._mask = mask
        self._opened: OrderedDict[int, tuple[Backend, Lane]] = OrderedDict()
        self._current: Lane | None = None

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """As every device worker does, on the model of the feed's shapes."""
        number = feed.shape_set
        if number in self._opened:
            self._opened.move_to_end(number)
        else:
            if len(self._opened) == MAX_OPEN:
                self._shut(*self._opened.popitem(last=False)[1])
            self._opened[number] = self._owner.open_file(number, self._mask)
        self._current = self._opened[number][1]
        return self._current.infer(Feed(feed.arrays, feed.nhwc, 0), wanted, types, timeout, marks)

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Rejected: see :meth:`OpenShapes.allocate`."""
        raise SessionError("a model with dynamic shapes has no device memory of its own", hint="use device_type='cpu'")

    def cancel(self) -> bool:
        """Ask the run to stop."""
        lane = self._current
        return lane is not None and lane.cancel()

    def abandon(self) -> None:
        """Its thread did not come back."""
        if self._current is not None:
            self._current.abandon()

    def close(self) -> None:
        """Close all models."""
        while self._opened:
            self._shut(*self._opened.popitem()[1])

    @staticmethod
    def _shut(backend: Backend, lane: Lane) -> None:
        lane.close()
        backend.close()


def _spec(port: OnnxPort) -> TensorSpec:
    """A port with 1 for what is open, which nothing but its rank and type is used of."""
    shape = tuple(extent if isinstance(extent, int) else 1 for extent in port.shape)
    return TensorSpec(port.name, shape, _TYPES.get(port.kind, DType.FLOAT32))
