"""The MAC array and the on-chip buffer of a chip, for one type of element."""

from __future__ import annotations

import math

from .. import Chip

__all__ = ["INPUT_LANES", "MacArray", "peak_macs", "relative_rate", "splits_blocks", "up"]

INPUT_LANES = 32
"""Input channels that the MAC array takes at once; the rest of its MACs are output channels."""


class MacArray:
    """The MAC array and the buffer of a chip, for one type."""

    def __init__(self, chip: Chip, dtype: str) -> None:
        rates = chip.macs_per_cycle
        int8 = rates["int8"]
        self.per_cycle = rates.get(dtype, int8 // 2 if dtype in ("int16", "float16") else int8)
        self.relative = self.per_cycle / int8
        self.lanes = max(self.per_cycle // INPUT_LANES, 1)
        self.half_buffer = chip.buffer_bytes / 2

    def padded(self, channels: int) -> int:
        """Output channels, padded to the array."""
        return up(channels, self.lanes)

    def repeated(self, read: float, weights: float) -> float:
        """Bytes that are read again, because neither the input nor the weights fit into the buffer as a whole."""
        inputs, parts = math.ceil(read / self.half_buffer), math.ceil(weights / self.half_buffer)
        return float(min(max(parts - 1, 0) * read, max(inputs - 1, 0) * weights))


def peak_macs(chip: Chip, dtype: str) -> int:
    """Multiply-accumulates of one cycle of one core."""
    return MacArray(chip, dtype).per_cycle


def relative_rate(chip: Chip, dtype: str) -> float:
    """How fast the MAC array is with a type, int8 being 1."""
    return MacArray(chip, dtype).relative


def up(value: float, multiple: int) -> int:
    """The next multiple.

    >>> up(17, 16)
    32
    """
    return -(-int(value) // multiple) * multiple


def splits_blocks(before: tuple[int, ...], after: tuple[int, ...], block: int) -> bool:
    """Whether a Reshape splits the channels of an image into parts that are no whole blocks: every element has to move.

    >>> splits_blocks((1, 51, 8400), (1, 17, 3, 8400), 16), splits_blocks((1, 256, 400), (1, 2, 128, 400), 16)
    (True, False)
    """
    if len(before) < 3 or len(after) < 4 or before[0] != after[0] or before[1] != after[1] * after[2] or 1 in after[1:3]:
        return False
    return after[2] % block != 0 and math.prod(before[2:]) == math.prod(after[3:]) > 1
