"""By which rule the integer layers of a model round."""

from __future__ import annotations

from dataclasses import replace

from ...chips import Chip
from ...errors import CompileError
from ...program.arithmetic import WeightScales
from ...program.arithmetic.fixed_point import EVIDENCE
from ...tensor import DType
from ..lower.formats import Format

__all__ = ["CHIP", "SIMULATOR", "with_arithmetic"]

CHIP = "chip"
SIMULATOR = "simulator"


def with_arithmetic(kind: Format, chip: Chip, wanted: str | None) -> Format:
    """The format with the rule that was asked for, or with the default: that of the chip, where it is known."""
    known = chip.name in EVIDENCE and kind.codes is DType.INT8 and not kind.fixed_point and not kind.floats
    if wanted == CHIP and not known:
        raise CompileError(
            f"the chip's own arithmetic is not known for {kind.name} models of {chip.name}",
            hint=f"leave arithmetic out, or use {SIMULATOR}; it is known for int8 models of: {', '.join(EVIDENCE)}",
        )
    if wanted == SIMULATOR or not known:
        return replace(kind, unrounded=known)
    weights = WeightScales.CHANNEL_STEPS if kind.weights is WeightScales.CHANNEL else kind.weights
    return replace(kind, arithmetic=CHIP, weights=weights)
