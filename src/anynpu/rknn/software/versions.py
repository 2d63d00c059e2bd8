"""What the software library says that it is."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata

from ...chips import Chip

__all__ = ["API_VERSION", "api_version", "driver_version"]

API_VERSION = "2.3.2"
"""The interface that it offers; ``abi.h`` is this version's."""


@lru_cache(maxsize=1)
def _product() -> str:
    try:
        return f"anynpu {metadata.version('anynpu')}"
    except metadata.PackageNotFoundError:  # run from its sources
        return "anynpu"


def api_version(chip: Chip) -> str:
    """Version and, in brackets, whose it is."""
    del chip
    return f"{API_VERSION} ({_product()})"


def driver_version(chip: Chip) -> str:
    """The driver that this version of the library is used with."""
    return "0.8.2" if chip.library == "librknnmrt" else "0.9.8"
