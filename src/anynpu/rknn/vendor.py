"""The vendor's own library behind the library object."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from .._rknn import ffi
from ..errors import DeviceUnavailable
from ..vendors.libraries import LoadedLibrary, find_library
from .interface import RknnLibrary, functions
from .table import VENDOR

__all__ = ["VendorLibrary", "read_version"]

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
        """What a user is told that he runs on."""
        version = "" if self.version is None else f" {_dotted(self.version)}"
        return f"{Path(self.path).stem}{version}"


def read_version(path: str) -> tuple[int, int, int] | None:
    """The version that the file of a library states; None where it cannot be told."""
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
