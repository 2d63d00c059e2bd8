"""Which backend a session gets."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from .options import SessionOptions

if TYPE_CHECKING:
    from .backend import Backend, DeviceFactory

__all__ = ["open_backend"]


def open_backend(
    model: str | PathLike[str] | bytes,
    options: SessionOptions,
    device: str | DeviceFactory | None,
    weights_from: Backend | None,
) -> Backend:
    """The backend for *device*: a name (see :mod:`anynpu.devices`), None for the machine's own, or an object that opens one."""
    if device is not None and not isinstance(device, str):
        return device.open_backend(model, options, weights_from)
    from .. import rknn

    return rknn.open_backend(model, options, device, weights_from)
