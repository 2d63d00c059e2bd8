"""What the software library says that it is, and what the system of its board says."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from ...chips import Chip

__all__ = ["API_VERSION", "api_version", "board_files", "driver_version"]

API_VERSION = "2.3.2"
"""The interface that it offers, the newest whose calls it answers; ``abi.h`` is this version's."""

VERSION_VARIABLE = "ANYNPU_API_VERSION"
"""The environment variable that makes it state another version, for programs that refuse or warn by it."""

VERSION_FORM = r"\d+\.\d+\.\d+\w*"
"""What a version looks like: 1.6.0, 2.0.0b0."""

_NPU_DEVICES = {
    "rk3588": "fdab0000.npu",
    "rk3576": "27700000.npu",
    "rk3566": "fde40000.npu",
    "rk3568": "fde40000.npu",
    "rk3562": "ff300000.npu",
}
"""Under which name the NPU's clock is found in sysfs."""


@lru_cache(maxsize=1)
def _product() -> str:
    from importlib import metadata  # takes long, and few programs ask

    try:
        return f"anynpu {metadata.version('anynpu')}"
    except metadata.PackageNotFoundError:  # run from its sources
        return "anynpu"


def api_version(chip: Chip) -> str:
    """Version and, in brackets, whose it is."""
    del chip
    asked = os.environ.get(VERSION_VARIABLE, "")
    return f"{asked if re.fullmatch(VERSION_FORM, asked) else API_VERSION} ({_product()})"


def driver_version(chip: Chip) -> str:
    """The driver that this version of the library is used with."""
    return "0.8.2" if chip.library == "librknnmrt" else "0.9.8"


def board_files(chip: Chip) -> dict[str, str]:
    """The files of the driver, of the NPU's clock and of the small chips' heap, by path."""
    load = "".join(f" Core{core}:  0%," for core in range(chip.cores)) if chip.cores > 1 else " 0%"
    files = {}
    for folder in ("sys/kernel/debug/rknpu", "proc/rknpu"):
        files[f"{folder}/version"] = f"RKNPU driver: v{driver_version(chip)}\n"
        files[f"{folder}/load"] = f"NPU load: {load}\n"
        files[f"{folder}/freq"] = f"{chip.clock_hz}\n"
        files[f"{folder}/power"] = "on\n"
    clock = f"sys/class/devfreq/{_NPU_DEVICES.get(chip.name, 'npu')}"
    for name in ("cur_freq", "max_freq", "available_frequencies"):
        files[f"{clock}/{name}"] = f"{chip.clock_hz}\n"
    files[f"{clock}/governor"] = "performance\n"
    files[f"{clock}/load"] = f"0@{chip.clock_hz}Hz\n"
    if chip.library == "librknnmrt":
        files["dev/rk_dma_heap/rk-dma-heap-cma"] = ""
    return files
