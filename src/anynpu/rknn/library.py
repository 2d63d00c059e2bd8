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

import mmap
import os
import re
from pathlib import Path

from .._rknn import ffi
from ..errors import (
    AnynpuError,
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
from ..npu.engines.choice import choose_engine
from ..vendors.devices import DeviceChoice
from ..vendors.libraries import LoadedLibrary, Meanings, OpenLibraries, find_library
from .constants import Code
from .interface import RknnLibrary, functions
from .software.library import SoftwareLibrary
from .table import VENDOR

# The vendor's own library behind the library object.


NAMES, FOLDERS = VENDOR.library_names, VENDOR.library_folders
OLDEST = (1, 3, 0)
"""Before it the attributes of tensors had another layout."""

_VERSION = re.compile(rb"librknnm?rt version: (\d+)\.(\d+)\.(\d+)")


class VendorLibrary(LoadedLibrary, RknnLibrary):
    """A library that was loaded at run time. A function that it lacks raises :class:`UnsupportedCall` when it is called.

    :param path: file, or a name that the system's loader finds

    >>> library = VendorLibrary("/usr/lib/librknnrt.so")        # doctest: +SKIP
    >>> library.version                                         # doctest: +SKIP
    (2, 3, 2)
    """

    noun = "runtime"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            path,
            hint="install the runtime of the board's SDK, or name it with ANYNPU_RKNN_LIBRARY; `anynpu doctor` prints more",
        )
        self.version = read_version(self.path)
        if self.version is not None and self.version < OLDEST:
            raise DeviceUnavailable(
                f"{self.path} is version {_dotted(self.version)}, at least {_dotted(OLDEST)} is needed",
                hint="update the runtime of the board",
            )
        self._bind(ffi, functions())

    @classmethod
    def find(cls, path: str = "", *, reason: str = "") -> VendorLibrary:
        """The library at *path*, or the first that is found where such libraries are."""
        hint = "install the runtime, name it with ANYNPU_RKNN_LIBRARY, or ask for the software NPU with ANYNPU_DEVICE=sim"
        return find_library(cls, path, NAMES, FOLDERS, reason=reason, hint=hint)

    @property
    def description(self) -> str:
        """Description of the device for users."""
        version = "" if self.version is None else f" {_dotted(self.version)}"
        return f"{Path(self.path).stem}{version}"


def read_version(path: str) -> tuple[int, int, int] | None:
    """The version that the file of a library states; None where it cannot be determined."""
    if "/" not in path:
        found = next((folder for folder in FOLDERS if Path(folder, path).is_file()), None)
        if found is None:
            return None
        path = str(Path(found, path))
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = _VERSION.search(content)
            return None if match is None else (int(match[1]), int(match[2]), int(match[3]))
    except (OSError, ValueError):
        return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def open_library(device: str | DeviceChoice | RknnLibrary | None = None) -> RknnLibrary:
    """The library for *device* (see :mod:`anynpu.vendors.devices`); the same object for the same device, so contexts can share weights."""
    return _libraries.get(device)


def _software(chip: str) -> SoftwareLibrary:
    return SoftwareLibrary(chip or None)


def _vendor(path: str, reason: str) -> VendorLibrary:
    return VendorLibrary.find(path, reason=reason)


def _on_engine(chip: str, engine: str) -> SoftwareLibrary:
    return SoftwareLibrary(chip, engine=choose_engine(engine))


_libraries: OpenLibraries[RknnLibrary] = OpenLibraries(VENDOR, software=_software, vendor=_vendor, on_engine=_on_engine)

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
    Code.RKNN_ERR_FAIL: (
        "the runtime failed without a reason",
        "set RKNN_LOG_LEVEL=5 to see the messages of the vendor's library",
    ),
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
        "the driver does not know the model's optimization level",
        "update it",
    ),
    Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH: ("this is not available on this chip", ""),
}

_MEANINGS = Meanings(Code, _CLASSES, _TEXTS, unknown="the runtime returned a code without a meaning")


def check(library: RknnLibrary, call: str, code: int, *, cause: BaseException | None = None) -> None:
    """Raise the error that *code* stands for; nothing for success.

    :param cause: what a function of a custom operator raised meanwhile
    """
    if code >= 0:
        return
    kind: type[AnynpuError] | None = None if cause is None else CustomOperatorError
    if call == "rknn_init" and code == Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH:
        kind = ModelError
    raise _MEANINGS.error(library, call, code, kind) from cause
