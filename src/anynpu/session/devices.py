"""Which backend a session gets."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from .. import chips
from ..devices import choose_device
from ..errors import ModelError
from ..modelfile.recognise import RKNN_MAGIC, VIP_MAGIC, open_source
from .options import SessionOptions

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
    """The backend for *device*: a name (see :mod:`anynpu.devices`), None for the machine's own, or an object that opens one."""
    if isinstance(model, str) and is_remote(model):
        from . import remote

        return remote.open_backend(model, options, device, weights_from)
    if device is not None and not isinstance(device, str):
        return device.open_backend(model, options, weights_from)
    if _family(model, options, device) == "vip":
        from .. import vip

        return vip.open_backend(model, options, device, weights_from)
    from .. import rknn

    return rknn.open_backend(model, options, device, weights_from)


def is_remote(model: object) -> bool:
    """Whether a model is the address of one on a server.

    >>> is_remote("grpc://127.0.0.1:8001/yolo"), is_remote("yolo.rknn")
    (True, False)
    """
    return isinstance(model, str) and model.startswith(REMOTE_SCHEMES)


def _family(model: str | PathLike[str] | bytes, options: SessionOptions, device: str | None) -> str:
    """Whose calls a session makes: what the device has, and else what the model is for. A provider that asks for another family than the
    model's is refused by the model's backend."""
    if not options.family:
        choice = choose_device(device)
        if choice.kind != "sim":
            return choice.kind
        if choice.detail:
            return chips.get(choice.detail).family
    try:
        head = bytes(open_source(model).data[:4])
    except ModelError:  # the backend says what is wrong with it
        head = b""
    return {VIP_MAGIC: "vip", RKNN_MAGIC: "rknn"}.get(head, options.family or "rknn")
