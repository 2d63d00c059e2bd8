"""The chips of all vendors, by any of their names.

The entries of this package are :mod:`~anynpu.chips.rockchip` and :mod:`~anynpu.chips.allwinner`. A distribution adds its own through the
entry points of the group ``anynpu.vendors``, whose objects have an attribute ``chips``; they are looked for only if no entry here answers.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

from .._util import optional as _optional
from ..errors import UnknownChipError
from .allwinner import ALLWINNER
from .chip import Chip
from .rockchip import ROCKCHIP

GROUP = "anynpu.vendors"
"""The group of entry points."""


@functools.cache
def plugins() -> tuple[tuple[str, object], ...]:
    """The objects that other distributions declare as vendors, each with its name; one that cannot be loaded is left out with a warning."""
    found: list[tuple[str, object]] = []
    for entry in _optional.entry_points(GROUP):
        try:
            found.append((f"'{entry.name}' ({entry.value})", entry.load()))
        except Exception as error:  # foreign code: whatever it raises, the other vendors still work
            warnings.warn(f"the vendor '{entry.name}' ({entry.value}) is left out: {error}", RuntimeWarning, stacklevel=3)
    return tuple(found)


def _of_plugins() -> tuple[Chip, ...]:
    return tuple(chip for _, vendor in plugins() for chip in getattr(vendor, "chips", ()) if isinstance(chip, Chip))


def all_chips() -> tuple[Chip, ...]:
    """All chips, in the order of the vendors."""
    return (*ROCKCHIP, *ALLWINNER, *_of_plugins())


@functools.lru_cache(maxsize=4)
def _by_any_name(chips: tuple[Chip, ...]) -> Mapping[str, Chip]:
    return {name: chip for chip in chips for name in (chip.name, *chip.aliases)}


_BUILT_IN = _by_any_name((*ROCKCHIP, *ALLWINNER))


def find(name: str) -> Chip | None:
    """The chip called *name*, in lower case; None if there is none."""
    return _BUILT_IN.get(name) or _by_any_name(_of_plugins()).get(name)


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

        known = _by_any_name(all_chips())
        near = dict.fromkeys(known[match].name for match in difflib.get_close_matches(key, known, n=3))
        guess = f"did you mean {', '.join(near)}? " if near else ""
        listed = ", ".join(chip.name for chip in all_chips())
        raise UnknownChipError(f"there is no chip {name!r} in the catalogue", hint=f"{guess}Known: {listed}")
    return chip


def refresh() -> None:
    """Forget the plug-ins that were found, so that distributions which were installed meanwhile are seen."""
    plugins.cache_clear()
