"""The chips of all vendors, by any of their names."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from ..errors import UnknownChipError
from . import registry
from .chip import Chip
from .table import Vendor

__all__ = ["all_chips", "find", "get"]


def all_chips() -> tuple[Chip, ...]:
    """All chips, in the order of the vendors."""
    return tuple(chip for vendor in registry.all_vendors() for chip in vendor.chips)


@functools.lru_cache(maxsize=4)
def _by_any_name(vendors: tuple[Vendor, ...]) -> Mapping[str, Chip]:
    return {name: chip for vendor in vendors for chip in vendor.chips for name in (chip.name, *chip.aliases)}


def find(name: str) -> Chip | None:
    """The chip called *name*, in lower case; None if there is none."""
    return _by_any_name(registry.built_in()).get(name) or _by_any_name(registry.installed()).get(name)


def get(name: str) -> Chip:
    """The chip called *name*, whatever its case; names of variants such as ``rk3588s`` work too.

    >>> get("V851se").name
    'v851'
    >>> get("rk3558")    # doctest: +ELLIPSIS +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    anynpu.errors.UnknownChipError: there is no chip 'rk3558' in the catalogue
    """
    key = name.strip().lower() if isinstance(name, str) else ""
    chip = find(key)
    if chip is None:
        import difflib  # only a wrong name needs it

        known = _by_any_name(registry.all_vendors())
        near = dict.fromkeys(known[match].name for match in difflib.get_close_matches(key, known, n=3))
        guess = f"did you mean {', '.join(near)}? " if near else ""
        listed = ", ".join(chip.name for chip in all_chips())
        raise UnknownChipError(f"there is no chip {name!r} in the catalogue", hint=f"{guess}Known: {listed}")
    return chip
