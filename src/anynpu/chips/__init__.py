"""The chip catalogue: what each NPU is, takes and answers. Data and look-ups only.

>>> from anynpu import chips
>>> chip = chips.get("RK3588S")
>>> chip.name, chip.cores, chip.channel_block["int8"], 33 in chip.limits.conv.kernel
('rk3588', 3, 16, False)
>>> print(chip.sources["buffer_bytes"])
published TRM and datasheet figures
"""

from __future__ import annotations

from ..errors import UnknownChipError
from .allwinner import ALLWINNER
from .model import (
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
from .rockchip import ROCKCHIP
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

_CATALOGUE: dict[str, Chip] = {chip.name: chip for chip in (*ROCKCHIP, *ALLWINNER)}
_BY_ANY_NAME: dict[str, Chip] = {name: chip for chip in _CATALOGUE.values() for name in (chip.name, *chip.aliases)}


def names() -> tuple[str, ...]:
    """The names of all chips, in the catalogue's order."""
    return tuple(_CATALOGUE)


def all_chips() -> tuple[Chip, ...]:
    """All chips, in the catalogue's order."""
    return tuple(_CATALOGUE.values())


def get(name: str) -> Chip:
    """The chip called *name*, whatever its case; names of variants such as ``rk3588s`` work too.

    >>> get("V851se").name
    'v851'
    >>> get("rk3558")    # doctest: +ELLIPSIS +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    anynpu.errors.UnknownChipError: there is no chip 'rk3558' in the catalogue
    """
    key = name.strip().lower() if isinstance(name, str) else ""
    chip = _BY_ANY_NAME.get(key)
    if chip is None:
        import difflib  # only a wrong name needs it

        near = dict.fromkeys(_BY_ANY_NAME[match].name for match in difflib.get_close_matches(key, _BY_ANY_NAME, n=3))
        guess = f"did you mean {', '.join(near)}? " if near else ""
        raise UnknownChipError(f"there is no chip {name!r} in the catalogue", hint=f"{guess}Known: {', '.join(_CATALOGUE)}")
    return chip


def source(chip: Chip, attribute: str) -> Source:
    """Where a value comes from: the most precise entry of ``chip.sources`` for *attribute*.

    >>> source(get("rk3588"), "macs_per_cycle.int8").assumed, source(get("rk3588"), "macs_per_cycle.int4").assumed
    (False, True)
    """
    whole, _, _ = attribute.rpartition(".")
    return chip.sources[attribute if attribute in chip.sources else whole]
