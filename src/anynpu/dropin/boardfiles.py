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


def board_root(chip: str, board: str | None = None) -> Path:
    """The folder with the files of a board of *chip*; *board* is the name of a shared one."""
    entry = chips.get(chip)
    root = runtime_folder() / f"system-{entry.name}{'' if board is None else f'-{require_board_name(board)}'}"
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
    vendor = registry.of_chip(chip)
    for folder in ("proc/device-tree", "sys/firmware/devicetree/base"):
        files[f"{folder}/compatible"] = f"anynpu,{chip.name}-virtual\0{vendor.device_tree},{chip.name}\0"
        files[f"{folder}/model"] = f"anynpu virtual board ({chip.name})\0"
    files.update(vendor.board_files(chip))
    return files
