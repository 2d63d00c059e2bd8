"""The library object: all ``vip_*`` functions, of the vendor's library or of the software NPU.

What is above it calls its methods with pointers of ``anynpu._vip.ffi`` and reads statuses, as a C program does; which of the two
answers makes no difference to it.

>>> from anynpu._vip import ffi
>>> library = open_library("sim:t527")
>>> library.vip_init(0)
0
>>> network = ffi.new("vip_network *")
>>> library.vip_create_network(ffi.new("char[]", b"missing.nb"), 0, 1, network)
-7
>>> library.vip_destroy()
0
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from .. import chips
from .._vip import ffi
from ..errors import (
    AnynpuError,
    DeviceError,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    JobCancelled,
    ModelError,
    ParameterError,
    UnsupportedCall,
)
from ..vendors.devices import DeviceChoice
from ..vendors.libraries import LoadedLibrary, Meanings, OpenLibraries, find_library
from .constants import vip_status_e
from .generations import generation_of_version
from .interface import VipLibrary, functions
from .software.library import SoftwareLibrary
from .table import VENDOR

# The vendor's own library behind the library object.


NAMES, FOLDERS = VENDOR.library_names, VENDOR.library_folders
HELPERS = VENDOR.library_helpers
"""What the two need; loaded first where it lies beside them, because a board does not always have its folder on the loader's
path."""


class VendorLibrary(LoadedLibrary, VipLibrary):
    """A library that was loaded at run time. A function that it lacks raises :class:`UnsupportedCall` when it is called.

    :param path: file, or a name that the system's loader finds

    >>> library = VendorLibrary("/usr/lib/libNBGlinker.so")     # doctest: +SKIP
    >>> library.generation.name                                 # doctest: +SKIP
    '2.0'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._helpers = _load_helpers(Path(path)) if "/" in os.fspath(path) else []
        super().__init__(
            path,
            hint="install the libraries of the board's SDK, or name one with ANYNPU_VIP_LIBRARY; `anynpu doctor` prints more",
        )
        if not self.has("vip_get_version"):
            raise DeviceUnavailable(
                f"{self.path} has no vip_get_version",
                hint=f"the libraries with the calls are {' and '.join(NAMES)}; {' and '.join(HELPERS)} only serve them",
            )
        self._library.vip_get_version.restype = ctypes.c_uint32
        self.version = int(self._library.vip_get_version())
        self.generation = generation_of_version(self.version, self.path)
        self._bind(ffi, functions())

    @classmethod
    def find(cls, path: str = "", *, reason: str = "") -> VendorLibrary:
        """The library at *path*, or the first that is found where such libraries are."""
        hint = "install the libraries, name one with ANYNPU_VIP_LIBRARY, or ask for the software NPU with ANYNPU_DEVICE=sim"
        return find_library(cls, path, NAMES, FOLDERS, reason=reason, hint=hint)

    def cancel(self, handle: Any) -> bool:
        """Stop the run of a network, where this generation can."""
        return "vip_cancel_network" not in self.generation.missing and bool(self.vip_cancel_network(handle) == 0)

    @property
    def description(self) -> str:
        """Description of the device for users."""
        return f"{Path(self.path).stem} {self.version >> 16}.{self.version >> 8 & 255}.{self.version & 255}"


def _load_helpers(path: Path) -> list[ctypes.CDLL]:
    """The libraries beside *path* that it needs, in the scope where it finds them."""
    found = []
    for name in HELPERS:
        helper = path.parent / name
        if helper.is_file():
            try:
                found.append(ctypes.CDLL(str(helper), mode=os.RTLD_NOW | os.RTLD_GLOBAL))
            except OSError:  # not the one that is needed; if it is, the library itself states what is missing
                continue
    return found


def open_library(device: str | DeviceChoice | VipLibrary | None = None) -> VipLibrary:
    """The library for *device* (see :mod:`anynpu.vendors.devices`); the same object for the same device, so networks can share
    weights."""
    return _libraries.get(device)


def _software(chip: str) -> SoftwareLibrary:
    return SoftwareLibrary(chips.get(chip).name if chip else None)


def _vendor(path: str, reason: str) -> VendorLibrary:
    return VendorLibrary.find(path, reason=reason)


_libraries: OpenLibraries[VipLibrary] = OpenLibraries(VENDOR, software=_software, vendor=_vendor)

_CLASSES: dict[int, type[AnynpuError]] = {
    vip_status_e.VIP_ERROR_TIMEOUT: DeviceTimeout,
    vip_status_e.VIP_ERROR_INVALID_ARGUMENTS: ParameterError,
    vip_status_e.VIP_ERROR_NOT_SUPPORTED: UnsupportedCall,
    vip_status_e.VIP_ERROR_OUT_OF_RESOURCE: DeviceMemoryError,
    vip_status_e.VIP_ERROR_OUT_OF_MEMORY: DeviceMemoryError,
    vip_status_e.VIP_ERROR_INVALID_NETWORK: ModelError,
    vip_status_e.VIP_ERROR_MISSING_INPUT_OUTPUT: ParameterError,
    vip_status_e.VIP_ERROR_NETWORK_NOT_PREPARED: DeviceError,
    vip_status_e.VIP_ERROR_NETWORK_INCOMPATIBLE: ModelError,
    vip_status_e.VIP_ERROR_POWER_OFF: DeviceUnavailable,
    vip_status_e.VIP_ERROR_POWER_STOP: DeviceUnavailable,
    vip_status_e.VIP_ERROR_CANCELED: JobCancelled,
}

_TEXTS: dict[int, tuple[str, str]] = {
    vip_status_e.VIP_ERROR_TIMEOUT: ("the NPU did not finish in time", "look at what else uses it"),
    vip_status_e.VIP_ERROR_IO: ("a file, descriptor or the driver failed", "read the kernel's messages (dmesg)"),
    vip_status_e.VIP_ERROR_INVALID_ARGUMENTS: ("a parameter does not fit", ""),
    vip_status_e.VIP_ERROR_NOT_SUPPORTED: ("this is not available with this NPU, driver or model", ""),
    vip_status_e.VIP_ERROR_OUT_OF_RESOURCE: ("the NPU has no space for it", "destroy what is not used"),
    vip_status_e.VIP_ERROR_OUT_OF_MEMORY: (
        "there is not enough memory for the NPU",
        "destroy networks and buffers that are not used",
    ),
    vip_status_e.VIP_ERROR_INVALID_NETWORK: ("the model is not valid, or the network does not exist", "compile it again"),
    vip_status_e.VIP_ERROR_MISSING_INPUT_OUTPUT: ("an input or output has no buffer", "set all of them before a run"),
    vip_status_e.VIP_ERROR_NETWORK_NOT_PREPARED: ("the network is not prepared", "prepare it before"),
    vip_status_e.VIP_ERROR_NETWORK_INCOMPATIBLE: ("the model was compiled for another NPU", "compile it for this chip"),
    vip_status_e.VIP_ERROR_FAILURE: ("the driver failed without a reason", "look at what it printed"),
    vip_status_e.VIP_ERROR_POWER_OFF: ("the NPU has no power", "switch it on"),
    vip_status_e.VIP_ERROR_POWER_STOP: ("the NPU was stopped", "start it"),
    vip_status_e.VIP_ERROR_RECOVERY: ("the NPU was reset after a hang", "submit the network again"),
    vip_status_e.VIP_ERROR_CANCELED: ("the network was cancelled", ""),
    vip_status_e.VIP_ERROR_NAN_INF: ("the network computed what is no number", "look at its inputs"),
    vip_status_e.VIP_ERROR_FUSA: ("the NPU found a fault in itself", "restart the board"),
}

_MEANINGS = Meanings(vip_status_e, _CLASSES, _TEXTS, unknown="the driver returned a status without a meaning")


def check(library: VipLibrary, call: str, status: int) -> None:
    """Raise the error that *status* stands for; nothing for success."""
    if status == 0:
        return
    wrong_model = call == "vip_create_network" and status == vip_status_e.VIP_ERROR_NOT_SUPPORTED
    raise _MEANINGS.error(library, call, status, ModelError if wrong_model else None)
