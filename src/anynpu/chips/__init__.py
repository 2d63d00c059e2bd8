"""The chip catalogue: what each NPU is, takes and answers. Data and look-ups only; distributions of other vendors add entries.

>>> from anynpu import chips
>>> chip = chips.get("RK3588S")
>>> chip.name, chip.cores, chip.channel_block["int8"], 33 in chip.limits.conv.kernel
('rk3588', 3, 16, False)
>>> print(chip.sources["buffer_bytes"])
published TRM and datasheet values
"""

from __future__ import annotations

from .catalog import all_chips, get
from .chip import (
    Chip,
    ConvLimits,
    ConvTransposeLimits,
    MatMulRules,
    OperatorLimits,
    PoolLimits,
    Range,
    ResizeLimits,
    Source,
    VipIdentity,
)
from .support import CALLS, QUERIES

__all__ = [
    "CALLS",
    "QUERIES",
    "Chip",
    "ConvLimits",
    "ConvTransposeLimits",
    "MatMulRules",
    "OperatorLimits",
    "PoolLimits",
    "Range",
    "ResizeLimits",
    "Source",
    "VipIdentity",
    "all_chips",
    "get",
    "names",
    "source",
]


def names() -> tuple[str, ...]:
    """The names of all chips, in the catalogue's order."""
    return tuple(chip.name for chip in all_chips())


def source(chip: Chip, attribute: str) -> Source:
    """Where a value comes from: the most precise entry of ``chip.sources`` for *attribute*.

    >>> source(get("rk3588"), "macs_per_cycle.int8").assumed, source(get("rk3588"), "macs_per_cycle.int4").assumed
    (False, True)
    """
    whole, _, _ = attribute.rpartition(".")
    return chip.sources[attribute if attribute in chip.sources else whole]
