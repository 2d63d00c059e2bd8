"""The system files of a board, as a folder that ``libanynpu_board.so`` shows to a program in their place.

A folder depends on the chip alone, so it is made once and used by all programs of a user. Nothing in it changes while programs run, except
that the load of a core on a shared board is asked for when a program opens its file.
"""

from __future__ import annotations

import os
from pathlib import Path

from .. import chips
from ..chips import Chip
from ..npu.board import require_board_name, runtime_folder
from ..vendors import registry

__all__ = ["board_root"]

_HEAPS = ("system", "system-uncached", "system-dma32", "system-uncached-dma32", "cma", "cma-uncached")

_MAINLINE = {
    "dev/accel/accel0": "",
    "sys/class/accel/accel0/dev": "261:0\n",
    "sys/class/accel/accel0/device/uevent": "DRIVER=rocket\n",
    "sys/module/rocket/initstate": "live\n",
}
"""What a kernel with the driver ``rocket`` shows of it."""


def board_root(chip: str, board: str | None = None, *, mainline: bool = False) -> Path:
    """The folder with the files of a board of *chip*; *board* is the name of a shared one.

    :param mainline: its kernel has the driver ``rocket`` instead of the vendor's
    """
    entry = chips.get(chip)
    kernel = "-mainline" if mainline else ""
    root = runtime_folder() / f"system-{entry.name}{kernel}{'' if board is None else f'-{require_board_name(board)}'}"
    for name, text in _files(entry, mainline).items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    return root


def _files(chip: Chip, mainline: bool) -> dict[str, str]:
    files = {f"dev/dma_heap/{name}": "" for name in _HEAPS}
    vendor = registry.of_chip(chip)
    for folder in ("proc/device-tree", "sys/firmware/devicetree/base"):
        files[f"{folder}/compatible"] = f"anynpu,{chip.name}-virtual\0{vendor.device_tree},{chip.name}\0"
        files[f"{folder}/model"] = f"anynpu virtual board ({chip.name})\0"
    files.update(_MAINLINE if mainline else vendor.board_files(chip))
    return files
