"""Several chips in one option: ``--target rk3588,rk3566`` or ``--target all``."""

from __future__ import annotations

from typing import Annotated

import typer

from ... import chips
from ...chips import Chip
from .options import ALL_CHIPS, chip_name

__all__ = ["TargetsOption", "chips_of", "several_chips"]


def several_chips(value: str | None) -> str | None:
    """The catalogue's spelling of chips with commas between them, or ``all``; wrong usage if there is no such chip."""
    if value is None or value.lower() == ALL_CHIPS:
        return value
    return ",".join(dict.fromkeys(chip_name(part.strip()) for part in value.split(",") if part.strip()))


def _complete(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in (*chips.names(), ALL_CHIPS) if name.startswith(last.lower())]


TargetsOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="CHIP,...|all",
        help="One chip, several with commas, or all of them.",
        callback=several_chips,
        autocompletion=_complete,
    ),
]


def chips_of(text: str) -> tuple[Chip, ...]:
    """The chips that an option names.

    >>> [chip.name for chip in chips_of("rk3588,t527")]
    ['rk3588', 't527']
    """
    if text.lower() == ALL_CHIPS:
        return tuple(chips.all_chips())
    return tuple(chips.get(name) for name in text.split(","))
