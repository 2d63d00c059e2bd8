"""The system files of a board, as a folder that ``libanynpu_board.so`` shows to a program in their place.

A folder depends on the chip alone, so it is made once and used by all programs of a user. Nothing in it changes while programs run, except
that the load of a core on a shared board is asked for when a program opens its file.
"""

from __future__ import annotations

import os
from pathlib import Path

from .. import chips
from ..chips import Chip
from ..npu.board import runtime_folder
from ..rknn.software.versions import driver_version

__all__ = ["board_root"]

_NPU_DEVICES = {
    "rk3588": "fdab0000.npu",
    "rk3576": "27700000.npu",
    "rk3566": "fde40000.npu",
    "rk3568": "fde40000.npu",
    "rk3562": "ff300000.npu",
}
"""Under which name the NPU's clock is found in sysfs."""

_HEAPS = ("system", "system-uncached", "system-dma32", "system-uncached-dma32", "cma", "cma-uncached")


def board_root(chip: str, board: str | None = None) -> Path:
    """The folder with the files of a board of *chip*; *board* is the name of a shared one."""
    entry = chips.get(chip)
    root = runtime_folder() / f"system-{entry.name}{'' if board is None else f'-{board}'}"
    for name, text in _files(entry).items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    return root


def _files(chip: Chip) -> dict[str, str]:
    files = {f"dev/dma_heap/{name}": "" for name in _HEAPS}
    vendor = "rockchip" if chip.family == "rknn" else "allwinner"
    for folder in ("proc/device-tree", "sys/firmware/devicetree/base"):
        files[f"{folder}/compatible"] = f"anynpu,{chip.name}-virtual\0{vendor},{chip.name}\0"
        files[f"{folder}/model"] = f"anynpu virtual board ({chip.name})\0"
    if chip.family == "vip":
        files["dev/vipcore"] = ""
    if chip.family == "rknn":
        load = "".join(f" Core{core}:  0%," for core in range(chip.cores)) if chip.cores > 1 else " 0%"
        for folder in ("sys/kernel/debug/rknpu", "proc/rknpu"):
            files[f"{folder}/version"] = f"RKNPU driver: v{driver_version(chip)}\n"
            files[f"{folder}/load"] = f"NPU load: {load}\n"
            files[f"{folder}/freq"] = f"{chip.clock_hz}\n"
            files[f"{folder}/power"] = "on\n"
        clock = f"sys/class/devfreq/{_NPU_DEVICES.get(chip.name, 'npu')}"
        files[f"{clock}/cur_freq"] = f"{chip.clock_hz}\n"
        files[f"{clock}/max_freq"] = f"{chip.clock_hz}\n"
        files[f"{clock}/available_frequencies"] = f"{chip.clock_hz}\n"
        files[f"{clock}/governor"] = "performance\n"
        files[f"{clock}/load"] = f"0@{chip.clock_hz}Hz\n"
    return files
