"""Bytes that a real RV1103 produced, one JSON file per case in the folder ``board``.

Transcribed from the logs of github.com/dnhkng/open-rknpu (MIT license); each file names commit and paths. The networks were compiled by the
vendor's toolkit and run by the vendor's runtime (``kind`` is ``vendor``), or written by an open compiler with every integer known
(``direct``). Outputs are NHWC, real channels only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent / "board"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class BoardCase:
    """One network with its inputs, and what the board made of them."""

    name: str

    @cached_property
    def record(self) -> dict[str, Any]:
        """The file as it is."""
        record: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text(encoding="utf-8"))
        return record

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A float tensor of the network."""
        tensor = self.record["tensors"][name]
        return np.array(tensor["float32"], np.float32).reshape(tensor["shape"])

    @property
    def patterns(self) -> list[str]:
        """The names of the inputs that the board was given."""
        return list(self.record["board_output_hex"])

    def input(self, pattern: str) -> npt.NDArray[np.uint8]:
        """The image, NHWC."""
        data = bytes.fromhex(self.record["patterns"][pattern]["input_hex"])
        return np.frombuffer(data, np.uint8).reshape(self.record["input"]["shape_nhwc"])

    def output(self, pattern: str) -> npt.NDArray[np.int8]:
        """The quantized values that the board gave."""
        return np.frombuffer(bytes.fromhex(self.record["board_output_hex"][pattern]), np.int8)

    @property
    def scale(self) -> float:
        """Of the output."""
        return float(self.record["output"]["scale"])

    @property
    def zero_point(self) -> int:
        """Of the output."""
        return int(self.record["output"]["zero_point"])


def names(kind: str) -> list[str]:
    """The cases of one kind that have outputs of a board, in int8."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["kind"] == kind and "board_output_hex" in record and record["output"]["dtype"] == "int8":
            found.append(path.stem)
    return found
