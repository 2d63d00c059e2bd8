"""Which backend a session gets."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from .. import chips
from ..errors import ModelError
from ..modelfile.recognize import open_source, vendor_of
from ..vendors import Vendor, registry
from ..vendors.devices import SOFTWARE, choose_device
from .options import SessionOptions
from .tail import with_tail, without_tail

if TYPE_CHECKING:
    from .backend import Backend, DeviceFactory

__all__ = ["is_remote", "open_backend"]

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
    is refused by the model's backend."""
    if not options.family:
        choice = choose_device(device)
        if choice.kind != SOFTWARE:
            return registry.get(choice.kind)
        if choice.detail:
            return registry.of_chip(chips.get(choice.detail))
    try:
        found = vendor_of(open_source(model).data)
    except ModelError:  # the backend says what is wrong with it
        found = None
    if found is not None:
        return found[0]
    return registry.get(options.family) if options.family else registry.default()
