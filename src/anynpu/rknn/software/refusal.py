"""What a call of the software library raises inside: a code for the caller and words for who wants to know why."""

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
from ..constants import Code

__all__ = ["Refusal", "code_of"]


_CODES: tuple[tuple[type[AnynpuError], Code], ...] = (
    (DeviceTimeout, Code.RKNN_ERR_TIMEOUT),
    (DeviceMemoryError, Code.RKNN_ERR_MALLOC_FAIL),
    (DeviceUnavailable, Code.RKNN_ERR_DEVICE_UNAVAILABLE),
    (UnsupportedCall, Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH),
    (DeviceClosed, Code.RKNN_ERR_CTX_INVALID),
    (JobCancelled, Code.RKNN_ERR_FAIL),
    (ModelError, Code.RKNN_ERR_MODEL_INVALID),
    (InputError, Code.RKNN_ERR_PARAM_INVALID),
)


def code_of(error: AnynpuError) -> Code:
    """The code that says best what *error* says."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.RKNN_ERR_FAIL)
