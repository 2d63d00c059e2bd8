"""Which backend a session gets."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import chips
from .._util.types import Array
from ..errors import ModelError, SessionError
from ..modelfile.post_processing import Tail, tail_path
from ..modelfile.recognize import open_source, vendor_of
from ..vendors import Vendor, registry
from ..vendors.devices import SOFTWARE, choose_device
from .options import SessionOptions

if TYPE_CHECKING:
    from .backend import Backend, Bound, DeviceFactory, Lane, Marks
    from .feeds import Feed


# A backend whose model has a tail: what the device gives goes through the operators that the host computes.


def with_tail(backend: Backend, model: str | PathLike[str] | bytes) -> Backend:
    """The backend of a model file, with the tail that lies beside the file, if there is one."""
    if isinstance(model, bytes) or not tail_path(os.fspath(model)).is_file():
        return backend
    try:
        tail = Tail(os.fspath(model))
        names = {spec.name for spec in backend.outputs}
        if not names.issuperset(tail.inputs) or not names.issuperset(set(tail.order) - set(tail.outputs)):
            raise SessionError(
                f"{tail_path(os.fspath(model)).name} is the post-processing file of another model: it reads {', '.join(tail.inputs)}",
                hint="compile the model again, or remove the file to get the outputs of the model itself",
            )
        return cast("Backend", _TailBackend(backend, tail))
    except BaseException:
        backend.close()
        raise


def without_tail(backend: Backend | None) -> Backend | None:
    """The backend of the device itself."""
    return backend.device_backend if isinstance(backend, _TailBackend) else backend


class _TailBackend:
    """Has all that the device's backend has, but the outputs of the whole model."""

    def __init__(self, backend: Backend, tail: Tail) -> None:
        self.device_backend = backend
        self.tail = tail
        own = {spec.name: spec for spec in backend.outputs}
        self.outputs = tuple(tail.spec(name) if name in tail.outputs else own[name] for name in tail.order)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device_backend, name)

    def open_lane(self, mask: int) -> Lane:
        """A device worker of the device, and the tail behind it."""
        return cast("Lane", _TailLane(self, self.device_backend.open_lane(mask)))


class _TailLane:
    """One context of the device; the host computes the rest in the thread that runs it."""

    def __init__(self, owner: _TailBackend, lane: Lane) -> None:
        self._owner = owner
        self._lane = lane
        specs = owner.device_backend.outputs
        read = set(owner.tail.inputs)
        kept = {spec.name for spec in owner.outputs}
        self._wanted = tuple(number for number, spec in enumerate(specs) if spec.name in read | kept)
        self._names = [specs[number].name for number in self._wanted]
        self._types = [
            owner.tail.input_type(name) if name in read else _plain_type(specs[number])
            for number, name in zip(self._wanted, self._names, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """As every device worker does; the outputs are those of the whole model."""
        begun = time.monotonic()
        results = self._lane.infer(feed, self._wanted, self._types, timeout, marks)
        names = [self._owner.outputs[number].name for number in wanted]
        left = None if timeout is None else max(timeout - (time.monotonic() - begun), 0.0)
        found = self._owner.tail.run(dict(zip(self._names, results, strict=True)), names, timeout=left) if names else []
        return [array.astype(kind, copy=False) for array, kind in zip(found, types, strict=True)]

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Rejected: results whose size depends on the data have no memory of their own."""
        raise SessionError(
            "a model with host post-processing cannot run on bound memory", hint="use run, or compile the model with --tail cut"
        )


def _plain_type(spec: Any) -> np.dtype[Any]:
    values = spec.quantization is not None or spec.dtype.is_float
    found: np.dtype[Any] = np.dtype(np.float32) if values else np.dtype(spec.dtype.storage)
    return found


REMOTE_SCHEMES = ("grpc://", "grpcs://")


def open_backend(
    model: str | PathLike[str] | bytes,
    options: SessionOptions,
    device: str | DeviceFactory | None,
    weights_from: Backend | None,
) -> Backend:
    """The backend for *device*: a name (see :mod:`anynpu.vendors.devices`), None for the machine's own, or an object that opens one."""
    if isinstance(model, str) and is_remote(model):
        from . import remote

        return remote.open_backend(model, options, device, weights_from)
    if options.isolate:
        from . import isolation

        return isolation.open_backend(model, options, device, weights_from)
    if device is not None and not isinstance(device, str):
        return device.open_backend(model, options, weights_from)
    opened: Backend = _vendor(model, options, device).open_backend(model, options, device, without_tail(weights_from))
    return with_tail(opened, model)


def is_remote(model: object) -> bool:
    """Whether a model is the address of one on a server.

    >>> is_remote("grpc://127.0.0.1:8001/yolo"), is_remote("yolo.rknn")
    (True, False)
    """
    return isinstance(model, str) and model.startswith(REMOTE_SCHEMES)


def _vendor(model: str | PathLike[str] | bytes, options: SessionOptions, device: str | None) -> Vendor:
    """Whose calls a session makes: those of the device, else those of the model. A provider that asks for another vendor than the model's
    is rejected by the model's backend."""
    if not options.family:
        choice = choose_device(device)
        if choice.kind != SOFTWARE:
            return registry.get(choice.kind)
        if choice.detail:
            return registry.of_chip(chips.get(choice.detail))
    try:
        found = vendor_of(open_source(model).data)
    except ModelError:  # the backend states what is wrong with it
        found = None
    if found is not None:
        return found[0]
    return registry.get(options.family) if options.family else registry.default()
