"""The vendor's own library behind the library object."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from .._vip import ffi
from ..errors import DeviceUnavailable
from ..vendors.libraries import LoadedLibrary, find_library
from .generations import generation_of_version
from .interface import VipLibrary, functions
from .table import VENDOR

__all__ = ["VendorLibrary"]

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
        """What a user is told that he runs on."""
        return f"{Path(self.path).stem} {self.version >> 16}.{self.version >> 8 & 255}.{self.version & 255}"


def _load_helpers(path: Path) -> list[ctypes.CDLL]:
    """The libraries beside *path* that it needs, in the scope where it finds them."""
    found = []
    for name in HELPERS:
        helper = path.parent / name
        if helper.is_file():
            try:
                found.append(ctypes.CDLL(str(helper), mode=os.RTLD_NOW | os.RTLD_GLOBAL))
            except OSError:  # not the one that is needed; if it is, the library itself says what is missing
                continue
    return found
