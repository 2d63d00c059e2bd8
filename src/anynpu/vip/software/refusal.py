"""What a call of the software library raises inside: a status for the caller and words for who wants to know why."""

from __future__ import annotations

from ...errors import (
    AnynpuError,
    DeviceClosed,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    InputError,
    JobCancelled,
    ModelError,
    UnsupportedCall,
)
from ...vendors.libraries import Refusal
from ..constants import vip_status_e

__all__ = ["Refusal", "Status", "status_of"]

Status = vip_status_e


_STATUS: tuple[tuple[type[AnynpuError], Status], ...] = (
    (DeviceTimeout, Status.VIP_ERROR_TIMEOUT),
    (JobCancelled, Status.VIP_ERROR_CANCELED),
    (DeviceMemoryError, Status.VIP_ERROR_OUT_OF_MEMORY),
    (DeviceUnavailable, Status.VIP_ERROR_IO),
    (UnsupportedCall, Status.VIP_ERROR_NOT_SUPPORTED),
    (DeviceClosed, Status.VIP_ERROR_FAILURE),
    (ModelError, Status.VIP_ERROR_INVALID_NETWORK),
    (InputError, Status.VIP_ERROR_INVALID_ARGUMENTS),
)


def status_of(error: AnynpuError) -> Status:
    """The status that says best what *error* says; an error that carries one keeps it."""
    if error.code is not None:
        return Status(error.code)
    return next((status for kind, status in _STATUS if isinstance(error, kind)), Status.VIP_ERROR_FAILURE)
