"""The library object: all ``rknn_*`` functions, of the vendor's library or of the software NPU.

What is above it calls its methods with pointers of ``anynpu._rknn.ffi`` and reads codes, as a C program does; which of the two answers
makes no difference to it.

>>> from anynpu._rknn import ffi
>>> library = open_library("sim:rk3588")
>>> handle = ffi.new("rknn_context *")
>>> library.rknn_init(handle, ffi.new("char[]", b"missing.rknn"), 0, 0, ffi.NULL)
-6
"""

from __future__ import annotations

import threading

from ..devices import DeviceChoice, choose_device
from ..errors import (
    AnynpuError,
    CallFailed,
    CustomOperatorError,
    DeviceClosed,
    DeviceError,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    ModelError,
    ParameterError,
    UnsupportedCall,
)
from .constants import Code
from .interface import Library
from .software.library import SoftwareLibrary
from .vendor import VendorLibrary

__all__ = ["Library", "check", "open_library"]

_libraries: dict[tuple[str, str], Library] = {}
_lock = threading.Lock()


def open_library(device: str | DeviceChoice | Library | None = None) -> Library:
    """The library for *device* (see :mod:`anynpu.devices`); the same object for the same device, so contexts can share weights."""
    if device is not None and not isinstance(device, (str, DeviceChoice)):
        return device
    choice = device if isinstance(device, DeviceChoice) else choose_device(device)
    if choice.kind == "vip":
        raise DeviceUnavailable(
            f"this device ({choice.reason}) has no RKNN NPU",
            hint="Allwinner's chips have the VIPLite calls; or pass device='sim'",
        )
    key = (choice.kind, choice.detail)
    with _lock:
        if key not in _libraries:
            if choice.kind == "sim":
                _libraries[key] = _software(choice.detail)
            else:
                _libraries[key] = VendorLibrary.find(choice.detail, reason=choice.reason)
        return _libraries[key]


def _software(chip: str) -> SoftwareLibrary:
    return SoftwareLibrary(chip or None)


_CLASSES: dict[int, type[AnynpuError]] = {
    Code.RKNN_ERR_TIMEOUT: DeviceTimeout,
    Code.RKNN_ERR_DEVICE_UNAVAILABLE: DeviceUnavailable,
    Code.RKNN_ERR_MALLOC_FAIL: DeviceMemoryError,
    Code.RKNN_ERR_PARAM_INVALID: ParameterError,
    Code.RKNN_ERR_MODEL_INVALID: ModelError,
    Code.RKNN_ERR_CTX_INVALID: DeviceClosed,
    Code.RKNN_ERR_INPUT_INVALID: ParameterError,
    Code.RKNN_ERR_OUTPUT_INVALID: ParameterError,
    Code.RKNN_ERR_DEVICE_UNMATCH: DeviceError,
    Code.RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL: ModelError,
    Code.RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION: ModelError,
    Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH: UnsupportedCall,
}

_TEXTS: dict[int, tuple[str, str]] = {
    Code.RKNN_ERR_FAIL: ("the runtime failed without a reason", "set RKNN_LOG_LEVEL=5 to see what the vendor's library says"),
    Code.RKNN_ERR_TIMEOUT: ("the NPU did not finish in time", "look at what else uses it"),
    Code.RKNN_ERR_DEVICE_UNAVAILABLE: ("the NPU is not available", "run `anynpu doctor`"),
    Code.RKNN_ERR_MALLOC_FAIL: ("there is not enough memory for the NPU", "close contexts that are not used"),
    Code.RKNN_ERR_PARAM_INVALID: ("a parameter does not fit", ""),
    Code.RKNN_ERR_MODEL_INVALID: (
        "the model is not valid for this runtime",
        "compile it with the toolkit of the runtime's version",
    ),
    Code.RKNN_ERR_CTX_INVALID: ("the context is not valid", "it was destroyed, or never made"),
    Code.RKNN_ERR_INPUT_INVALID: ("an input is not valid", ""),
    Code.RKNN_ERR_OUTPUT_INVALID: ("an output is not valid", ""),
    Code.RKNN_ERR_DEVICE_UNMATCH: ("library and driver do not fit each other", "update both; run `anynpu doctor`"),
    Code.RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL: ("the model was precompiled for another driver", "compile it again"),
    Code.RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION: (
        "the driver does not know the model's optimisation level",
        "update it",
    ),
    Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH: ("this is not available on this chip", ""),
}


def check(library: Library, call: str, code: int, *, cause: BaseException | None = None) -> None:
    """Raise the error that *code* stands for; nothing for success.

    :param cause: what a function of a custom operator raised meanwhile
    """
    if code >= 0:
        return
    failure = library.last_error()
    if failure is not None and (failure.call != call or failure.code != code):
        failure = None
    text, hint = _TEXTS.get(code, ("the runtime returned a code without a meaning", ""))
    if failure is not None:
        text, hint = failure.text, failure.hint
    kind = _CLASSES.get(code, CallFailed) if cause is None else CustomOperatorError
    if call == "rknn_init" and code == Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH:
        kind = ModelError
    name = Code(code).name if code in Code._value2member_map_ else ""
    raise kind(text, hint=hint, code=code, call=call, code_name=name) from cause
